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
                let (pts, dts, size, offset) = (packet.pts, packet.dts, packet.size, packet.offset);
                writeln!(shown, "{number}\t{pts}\t{dts}\t{size}\t{offset}\t{key}{discard}")
                    .unwrap();
            }
        }
        assert_eq!(shown, fs::read_to_string(&path).unwrap(), "{name}");
        files += 1;
    }
    assert!(files >= 25, "{files} files");
}

#[test]
fn every_frame_of_every_file_can_be_cut_out() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if !path.to_str().is_some_and(|path| path.ends_with(".mp4") || path.ends_with(".mov")) {
            continue;
        }
        let bytes = fs::read(&path).unwrap();
        let table = forebay_video::read(bytes.as_slice()).unwrap();
        let stream = table.video().unwrap();
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
