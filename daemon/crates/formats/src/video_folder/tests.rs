//! Folders of videos that ffmpeg has made.

use std::fs;
use std::path::Path;

use forebay_storage::location::SampleBytes;
use forebay_video::clip::Clip;

use super::*;
use crate::conformance::{self, Format};
use crate::testing::{EVERYWHERE, config_for, own_keys, sample};
use crate::{open, recognize};
use forebay_dataset::Opened;

/// Made by `make.py` beside it: 60 frames of 1/30 s, groups of 12 with B-frames.
const VIDEO: &[u8] = include_bytes!("../../../video/fixtures/h264-b.mp4");

fn put(root: &Path, name: &str, bytes: &[u8]) {
    let path = root.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

fn open_with(root: &Path, keys: &str) -> Result<Opened, String> {
    let mut config = config_for("video-folder", root);
    let keys = keys.lines().map(|key| format!("dataset.{key}")).collect::<Vec<_>>();
    config.own = own_keys(&keys.join("\n"));
    open(&config, OpenOptions::default()).map_err(|error| error.to_string())
}

/// The bytes that are read of a sample for a draw, and what it shows.
fn drawn(opened: &Opened, id: u64, draw: u64) -> (u64, Vec<i64>, Vec<u8>) {
    let Opened { dataset, storage, .. } = opened;
    let (mut locations, mut parts) = (Vec::new(), Vec::new());
    let (mut bytes, mut ends, mut values) = (Vec::new(), Vec::new(), Vec::new());
    dataset.locate_drawn(SampleId(id), draw, &mut locations);
    let length = storage.open_all(dataset.as_ref(), &locations, 1 << 30, &mut parts).unwrap();
    storage.read_all(dataset.as_ref(), &mut parts, &mut bytes, &mut ends).unwrap();
    let bytes = SampleBytes::new(&bytes, &ends);
    dataset.read_drawn(SampleId(id), draw, bytes, &mut values).unwrap();
    let FieldValue::Video(clip) = &values[0] else { panic!("{values:?}") };
    let copy = clip.to_bytes();
    assert_eq!(&Clip::from_bytes(&copy).unwrap(), clip.as_ref());
    (length, clip.wanted.clone(), copy)
}

#[test]
fn video_folders_conform() {
    for open in EVERYWHERE {
        conformance::run(&Format {
            open,
            name: "video-folder",
            make: |root, count| {
                for number in 0..count {
                    // What follows the boxes of an MP4 is not read.
                    let mut video = VIDEO.to_vec();
                    video.extend(b"\0\0\0\x0cfree");
                    video.extend(u32::try_from(number).unwrap().to_be_bytes());
                    put(root, &format!("class{}/{number:03}.mp4", number * 3 / count), &video);
                }
                root.to_owned()
            },
            has_names: true,
            refuses_cuts: false,
        });
    }
}

#[test]
fn clips_are_read_by_the_ranges_of_their_groups() {
    let folder = tempfile::tempdir().unwrap();
    put(folder.path(), "a/0.mp4", VIDEO);
    put(folder.path(), "b/1.mp4", b"\0\0\0\x08ftyp");
    let unsaid = config_for("auto", folder.path());
    assert_eq!(recognize(&unsaid, OpenOptions::default()).unwrap(), "video-folder");
    let opened = open_with(folder.path(), "frames = 2\nstart = 1.05\nfps = 10").unwrap();
    let names: Vec<_> = opened.dataset.fields().iter().map(|field| &field.name[..]).collect();
    assert_eq!(names, ["video", "times", "label"]);
    // The frames at 1.05 s and 1.15 s are those of 31/30 s and 34/30 s; both are in the third group.
    assert_eq!(sample(&opened, 0).unwrap()[0], "video [15872, 17408]");
    let (bytes, ..) = drawn(&opened, 0, 1);
    assert!(bytes < VIDEO.len() as u64 / 4, "{bytes} of {}", VIDEO.len());
    let reason = sample(&opened, 1).unwrap_err();
    assert!(reason.contains("no header (`moov`)"), "{reason}");
    assert!(opened.report.warnings[0].contains("1 of 2 videos are bad samples"));
    let summary = &opened.dataset.description().notes[0];
    assert_eq!(summary.1, "1 h264; 60 frames, 2.0 s, 5 groups");
}

#[test]
fn draws_choose_the_clip() {
    let folder = tempfile::tempdir().unwrap();
    put(folder.path(), "0.mp4", VIDEO);
    let opened = open_with(folder.path(), "frames = 4\nstride = 3\nclips = 2").unwrap();
    let first = drawn(&opened, 0, 5);
    assert_eq!(first, drawn(&opened, 0, 5));
    assert_eq!(first.1.len(), 8);
    let starts: std::collections::BTreeSet<_> =
        (0..400).map(|draw| drawn(&opened, 0, draw).1[0]).collect();
    assert_eq!(starts.len(), 51, "each of the places where 10 frames follow");
}

#[test]
fn tables_are_kept_with_the_index() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("videos");
    put(&root, "0.mp4", VIDEO);
    // A folder that has just changed is scanned again.
    let before = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
    fs::File::open(&root).unwrap().set_modified(before).unwrap();
    let mut config = config_for("video-folder", &root);
    config.index = Some(folder.path().join("index"));
    let open = || open(&config, OpenOptions::default()).unwrap();
    let first = open();
    let kept = folder.path().join("index.video");
    let bytes = fs::read(&kept).unwrap();
    assert!(bytes.len() < 750, "{} bytes of 60 packets", bytes.len());
    // The header is not read again: without it the video still has its table.
    let mut cut = VIDEO.to_vec();
    let moov = cut.windows(4).position(|bytes| bytes == b"moov").unwrap();
    cut[moov..moov + 4].copy_from_slice(b"free");
    fs::write(root.join("0.mp4"), &cut).unwrap();
    let again = open();
    assert_eq!(drawn(&again, 0, 3), drawn(&first, 0, 3));
    assert_eq!(again.dataset.fingerprint(), first.dataset.fingerprint());
    assert_eq!(again.dataset.description().notes, first.dataset.description().notes);
    // A damaged file is made anew.
    fs::write(&kept, &bytes[..bytes.len() - 1]).unwrap();
    assert!(sample(&open(), 0).is_err());
}

#[test]
fn short_videos_are_dropped_or_filled() {
    let folder = tempfile::tempdir().unwrap();
    put(folder.path(), "0.mp4", VIDEO);
    put(folder.path(), "1.mov", include_bytes!("../../../video/fixtures/mjpeg.mov"));
    let open = |short: &str| {
        open_with(folder.path(), &format!("frames = 30\nshort = \"{short}\"\nstart = 0"))
    };
    assert_eq!(open("drop").unwrap().dataset.kept_count(), 1);
    let (pad, repeat) = (open("pad").unwrap(), open("repeat").unwrap());
    assert_eq!(pad.dataset.kept_count(), 2);
    let (padded, repeated) = (drawn(&pad, 1, 0).1, drawn(&repeat, 1, 0).1);
    assert_eq!((padded[14], padded[29]), (padded[15], padded[14]));
    assert_eq!(repeated[15], repeated[0]);
    assert!(
        open_with(folder.path(), "frames = 90\nshort = \"drop\"")
            .unwrap_err()
            .contains("shorter than a clip")
    );
    assert!(
        open_with(folder.path(), "stride = 2\nfps = 3").unwrap_err().contains("exclude each other")
    );
    assert!(
        open_with(folder.path(), "frames = 65536\nclips = 2").unwrap_err().contains("65536 frames")
    );
}
