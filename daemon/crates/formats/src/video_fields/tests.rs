//! Videos in archives and in files that a manifest names.

use std::fs;
use std::path::{Path, PathBuf};

use forebay_config::DatasetConfig;
use forebay_dataset::{FieldKind, FieldValue, OpenOptions, Opened};
use forebay_protocol::ids::SampleId;
use forebay_protocol::tensor::DType;
use forebay_storage::location::SampleBytes;
use forebay_synth::tar;

use crate::conformance::{self, Format};
use crate::testing::{EVERYWHERE, Opener, config_for, own_keys, sample, write_aged};
use crate::{open, recognize};

/// Made by `make.py` beside it: 60 frames of 1/30 s, groups of 12 with B-frames.
const VIDEO: &[u8] = include_bytes!("../../../video/fixtures/h264-b.mp4");
const WEBM: &[u8] = include_bytes!("../../../video/fixtures/vp9.webm");

fn open_with(format: &str, path: &Path, fields: &str) -> Result<Opened, String> {
    let mut config = config_for(format, path);
    config.own = own_keys(&format!("[dataset.fields]\n{fields}"));
    open(&config, OpenOptions::default()).map_err(|error| error.to_string())
}

/// One archive of videos whose starts are in a JSON member.
fn archive(root: &Path, count: usize) -> PathBuf {
    let members: Vec<(String, Vec<u8>)> = (0..count)
        .flat_map(|number| {
            // What follows the boxes of an MP4 is not read.
            let free = u32::try_from(number).unwrap().to_be_bytes();
            let video = [VIDEO, b"\0\0\0\x0cfree", &free].concat();
            let json = format!("{{\"start\": {}}}", 0.1 * number as f64);
            [(format!("{number:03}.mp4"), video), (format!("{number:03}.json"), json.into())]
        })
        .collect();
    let members: Vec<_> = members.iter().map(|(name, data)| (&name[..], &data[..])).collect();
    write_aged(&root.join("videos.tar"), &tar::archive(&members));
    root.to_owned()
}

#[test]
fn archives_of_videos_conform() {
    let openers: [Opener; 3] = [
        |config, options| EVERYWHERE[0](&of_videos(config), options),
        |config, options| EVERYWHERE[1](&of_videos(config), options),
        |config, options| EVERYWHERE[2](&of_videos(config), options),
    ];
    for open in openers {
        let (name, make, has_names, refuses_cuts) = ("webdataset", archive as _, true, false);
        conformance::run(&Format { open, name, make, has_names, refuses_cuts });
    }
}

fn of_videos(config: &DatasetConfig) -> DatasetConfig {
    let own = own_keys("[dataset.fields]\nmp4 = { from = \"mp4\", as = \"video\", frames = 3 }");
    DatasetConfig { own, ..config.clone() }
}

/// The times of the frames that are drawn for a sample.
fn wanted(opened: &Opened, id: u64, draw: u64) -> Vec<i64> {
    let Opened { dataset, storage, .. } = opened;
    let (mut locations, mut parts) = (Vec::new(), Vec::new());
    let (mut bytes, mut ends, mut values) = (Vec::new(), Vec::new(), Vec::new());
    dataset.locate_drawn(SampleId(id), draw, &mut locations);
    storage.open_all(dataset.as_ref(), &locations, 1 << 30, &mut parts).unwrap();
    storage.read_all(dataset.as_ref(), &mut parts, &mut bytes, &mut ends).unwrap();
    let bytes = SampleBytes::new(&bytes, &ends);
    dataset.read_drawn(SampleId(id), draw, bytes, &mut values).unwrap();
    let clip = values.iter().find_map(|value| match value {
        FieldValue::Video(clip) => Some(clip),
        _ => None,
    });
    clip.unwrap().wanted.clone()
}

#[test]
fn clips_of_an_archive_are_those_of_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let path = archive(&folder.path().join("data"), 3);
    let clip = "frames = 4, stride = 3, clips = 2";
    let fields = format!("video = {{ from = \"mp4\", as = \"video\", times = \"times\", {clip} }}");
    let opened = open_with("webdataset", &path, &fields).unwrap();
    let kinds: Vec<_> =
        opened.dataset.fields().iter().map(|field| (&field.name[..], &field.kind)).collect();
    let times = FieldKind::Array { dtype: DType::F64, shape: vec![2, 4] };
    let video = FieldKind::Video { clips: Some(2), frames: Some(4) };
    assert_eq!(kinds, [("video", &video), ("times", &times)]);
    let root = folder.path().join("videos");
    fs::create_dir(&root).unwrap();
    fs::write(root.join("0.mp4"), VIDEO).unwrap();
    let mut config = config_for("video-folder", &root);
    config.own =
        own_keys(&clip.split(", ").map(|key| format!("dataset.{key}\n")).collect::<String>());
    let of_folder = open(&config, OpenOptions::default()).unwrap();
    for draw in [0, 1, 99, u64::MAX] {
        assert_eq!(wanted(&opened, 1, draw), wanted(&of_folder, 0, draw));
    }
    let starts: std::collections::BTreeSet<_> =
        (0..400).map(|draw| wanted(&opened, 0, draw)[0]).collect();
    assert_eq!(starts.len(), 51, "each of the places where 10 frames follow");
    let note = ("videos", "2 clips of 4 frames with stride 3 from a random place".to_owned());
    let notes = opened.dataset.description().notes;
    assert!(
        notes.iter().any(|(name, text)| *name == note.0 && text.starts_with(&note.1)),
        "{notes:?}"
    );
}

#[test]
fn a_field_says_where_a_clip_begins() {
    let folder = tempfile::tempdir().unwrap();
    let path = archive(&folder.path().join("data"), 3);
    let behind = "v = { from = \"mp4\", as = \"video\", start = 2 }";
    let reason = sample(&open_with("webdataset", &path, behind).unwrap(), 0).unwrap_err();
    assert_eq!(reason, "`v`: its clip begins behind its end: it lasts 2.000 s");
    let fields = "begin = { from = \"json:start\", as = \"float\" }\n\
        video = { from = \"mp4\", as = \"video\", frames = 2, fps = 10, start_field = \"begin\", times = \"t\" }";
    let opened = open_with("webdataset", &path, fields).unwrap();
    // Frames of 1/30 s, from 0.2 s on.
    assert_eq!(sample(&opened, 2).unwrap(), ["0.2", "video [3072, 4608]", "F64 [2]"]);
    let root = folder.path().join("files");
    fs::create_dir(&root).unwrap();
    fs::write(root.join("a.mp4"), VIDEO).unwrap();
    fs::write(root.join("b.webm"), WEBM).unwrap();
    fs::write(root.join("c.mkv"), b"no video").unwrap();
    let list = root.join("list.csv");
    fs::write(&list, "path,begin\na.mp4,1\nb.webm,0.5\na.mp4,-1\nc.mkv,0\n").unwrap();
    let opened =
        open_with("manifest", &list, &fields.replace("json:start", "begin").replace("mp4", "path"));
    let opened = opened.unwrap();
    assert!(sample(&opened, 0).unwrap()[1].starts_with("video ["));
    assert!(sample(&opened, 1).unwrap()[1].starts_with("video ["));
    let reason = sample(&opened, 2).unwrap_err();
    assert_eq!(reason, "`video`: its start of -1 s is outside of a video");
    assert!(sample(&opened, 3).unwrap_err().starts_with("`video`: "));
}

#[test]
fn other_frames_are_another_dataset_with_the_same_index() {
    let folder = tempfile::tempdir().unwrap();
    let path = archive(&folder.path().join("data"), 3);
    let opened = |keys: &str| {
        open_with("webdataset", &path, &format!("v = {{ from = \"mp4\", as = \"video\"{keys} }}"))
            .unwrap()
    };
    let plain = opened("");
    assert_eq!(
        plain.dataset.fingerprint(),
        opened(", frames = 16, start = \"random\"").dataset.fingerprint()
    );
    for keys in [", frames = 8", ", stride = 2", ", start = 1", ", times = \"t\""] {
        let other = opened(keys);
        assert_ne!(other.dataset.fingerprint(), plain.dataset.fingerprint(), "{keys}");
        assert!(other.report.reused, "{keys}");
    }
}

#[test]
fn contradicting_keys_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = archive(&folder.path().join("data"), 2);
    for (keys, expected) in [
        ("stride = 2, fps = 3", "`dataset.fields.v.stride` and `fps` exclude each other"),
        ("start = 1, start_field = \"v\"", "`dataset.fields.v.start_field` and `start` exclude"),
        (
            "start_field = \"x\"",
            "test.toml:6: `dataset.fields.v.start_field` is \"x\", and no field",
        ),
        ("start_field = \"v\"", "`dataset.fields.v.start_field` is \"v\", which is not a number"),
        ("times = \"v\"", "`dataset.fields.v.times` is \"v\", the name of another field"),
        ("clips = 2, start = 1", "`dataset.fields.v.clips` of more than 1 would all begin"),
        ("times = \"index\"", "`dataset.fields.v.times` is refused"),
        ("short = \"drop\"", "use \"pad\" or \"repeat\""),
        ("frames = 65536, clips = 2", "65536 frames"),
        ("frame = 2", "did you mean `dataset.fields.v.frames`"),
    ] {
        let fields = format!("v = {{ from = \"mp4\", as = \"video\", {keys} }}");
        let message = open_with("webdataset", &path, &fields).unwrap_err();
        assert!(message.contains(expected), "{keys}: {message}");
    }
    let two = "v = { from = \"mp4\", as = \"video\", times = \"t\" }\nw = { from = \"mp4\", as = \"video\", times = \"t\" }";
    let message = open_with("webdataset", &path, two).unwrap_err();
    assert!(message.contains("test.toml:7: `dataset.fields.w.times` is \"t\""), "{message}");
    let message = open_with("webdataset", &path, "v = { from = \"mp4\", frames = 2 }").unwrap_err();
    assert!(
        message
            .contains("`dataset.fields.v.frames` is a key of clips of videos: add as = \"video\""),
        "{message}"
    );
    assert_eq!(
        recognize(&config_for("auto", &path), OpenOptions::default()).unwrap(),
        "webdataset"
    );
}

#[test]
fn packets_that_overlap_make_no_clip_larger_than_its_file() {
    /// A video of `make.py` in whose file each frame is a separate chunk.
    const CHUNKS: &[u8] = include_bytes!("../../../video/fixtures/h264-audio.mp4");
    let folder = tempfile::tempdir().unwrap();
    let mut video = CHUNKS.to_vec();
    let table = video.windows(4).position(|bytes| bytes == b"stco").unwrap() + 12;
    let last = u32::try_from(video.len() - 3000).unwrap();
    for (place, offset) in video[table..table + 4 * 59].chunks_exact_mut(4).enumerate() {
        // By turns at the beginning and at the end of the file: each group of pictures spans all of it.
        offset.copy_from_slice(&if place % 2 == 0 { 48_u32 } else { last }.to_be_bytes());
    }
    let root = folder.path().join("data");
    write_aged(&root.join("v.tar"), &tar::archive(&[("0.mp4", CHUNKS), ("1.mp4", &video)]));
    let fields = "v = { from = \"mp4\", as = \"video\", frames = 5, stride = 12, start = 0.2 }";
    let opened = open_with("webdataset", &root, fields).unwrap();
    assert!(sample(&opened, 0).unwrap()[0].starts_with("video ["));
    let reason = sample(&opened, 1).unwrap_err();
    assert!(reason.starts_with("`v`: its frames need ") && reason.ends_with("overlap"), "{reason}");
}
