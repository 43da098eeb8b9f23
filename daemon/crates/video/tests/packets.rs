//! The tables of files that ffmpeg has made equal what ffprobe shows (`fixtures/make.py`).

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use forebay_video::clip::Clip;
use forebay_video::table::Media;

#[test]
fn tables_equal_those_of_ffprobe() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    let mut files = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let Some(name) = path.to_str().and_then(|path| path.strip_suffix(".tsv")) else { continue };
        let table = forebay_video::read(fs::read(name).unwrap().as_slice()).unwrap();
        let mut shown = String::new();
        for stream in &table.streams {
            let (number, base) = (stream.number, stream.time_base);
            let (width, height) = match stream.media {
                Media::Video { width, height, .. } => (width, height),
                Media::Audio { .. } => (0, 0),
            };
            let (codec, ticks) =
                (stream.codec.name(), format!("{}/{}", base.numerator, base.denominator));
            writeln!(shown, "stream\t{number}\t{codec}\t{ticks}\t{width}x{height}").unwrap();
            for packet in &stream.packets {
                let key = if packet.key { 'K' } else { '_' };
                let discard = if packet.discard { 'D' } else { '_' };
                let (pts, size, offset) = (packet.pts, packet.size, packet.offset);
                // Matroska has no time of decoding.
                let has_dts = !name.ends_with(".mkv") && !name.ends_with(".webm");
                let dts = if has_dts { packet.dts.to_string() } else { "?".to_owned() };
                writeln!(shown, "{number}\t{pts}\t{dts}\t{size}\t{offset}\t{key}{discard}")
                    .unwrap();
            }
        }
        assert_eq!(shown, fs::read_to_string(&path).unwrap(), "{name}");
        files += 1;
    }
    assert!(files >= 34, "{files} files");
}

#[test]
fn every_frame_of_every_file_can_be_cut_out() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "tsv" || extension == "py") {
            continue;
        }
        let bytes = fs::read(&path).unwrap();
        let table = forebay_video::read(bytes.as_slice()).unwrap();
        let Some(stream) = table.video() else { continue };
        for time in stream.shown().unwrap().times {
            let cut = stream.cut(vec![time]).unwrap();
            let place = |at: u64| usize::try_from(at).unwrap();
            let data: Vec<u8> = cut
                .ranges
                .iter()
                .flat_map(|range| bytes[place(range.start)..place(range.end)].to_vec())
                .collect();
            let clip = stream.clip(&cut, &data).unwrap();
            assert_eq!(clip.packets.iter().filter(|packet| packet.pts == time).count(), 1);
            let copy = clip.to_bytes();
            assert_eq!(Clip::from_bytes(&copy).unwrap(), clip, "{}", path.display());
        }
    }
}

#[test]
fn cut_off_files_are_refused() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/h264-faststart.mp4");
    let bytes = fs::read(path).unwrap();
    for length in 0..bytes.len() {
        assert!(forebay_video::read(&bytes[..length]).is_err(), "{length} of {}", bytes.len());
    }
    let refused = format!("{:?}", forebay_video::read(&bytes[..bytes.len() - 1]).unwrap_err());
    assert!(refused.contains("the file is cut off, or its header is wrong"), "{refused}");
}

/// Numbers that look random.
fn next(state: &mut u64) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    usize::try_from(*state >> 33).unwrap()
}

#[test]
fn broken_files_are_no_crash() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    let mut state = 1;
    for name in [
        "h264-b.mp4",
        "h264-fragmented.mp4",
        "two-edits.mp4",
        "several.mp4",
        "vp9.webm",
        "h264.mkv",
        "live.webm",
    ] {
        let whole = fs::read(folder.join(name)).unwrap();
        let fuzz = match name.ends_with("mp4") {
            true => forebay_video::fuzzing::video_mp4,
            false => forebay_video::fuzzing::video_mkv,
        };
        for _ in 0..500 {
            let mut bytes = whole.clone();
            for _ in 0..=next(&mut state) % 8 {
                let place = next(&mut state) % bytes.len();
                bytes[place] =
                    [0, 1, 0x7f, 0xff, next(&mut state).to_le_bytes()[0]][next(&mut state) % 5];
            }
            if next(&mut state).is_multiple_of(4) {
                bytes.truncate(next(&mut state) % bytes.len());
            }
            fuzz(&bytes);
        }
    }
}
