//! Planes of videos written by FFmpeg, compared with those that the `ffmpeg` command decodes from the same files.
//!
//! Needs the `ffmpeg` command and a libavcodec; without them the tests say so and end. `FOREBAY_LIBAVCODEC` names the
//! folder of another version.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use forebay_decoders::{Defect, Frames, Library, Missing, Output, decode};
use forebay_video::clip::{Clip, Packet};
use forebay_video::table::{Media, Stream};

const MAX_PIXELS: u64 = 1 << 22;

#[derive(Default)]
struct Bytes(Vec<u8>);

impl Output for Bytes {
    fn append(&mut self, row: &[u8]) -> Result<(), String> {
        self.0.extend_from_slice(row);
        Ok(())
    }
}

/// The videos: name, arguments of the encoder, the name of the raw format.
const VIDEOS: [(&str, &str, &str); 11] = [
    ("h264-b-frames", "-c:v libx264 -preset fast -bf 3 -g 12", "yuv420p"),
    ("h264-open", "-c:v libx264 -preset fast -bf 3 -g 12 -x264-params open-gop=1", "yuv420p"),
    ("h264-no-order", "-c:v libx264 -bf 3 -g 30 -bsf:v filter_units=remove_types=6", "yuv420p"),
    ("h264-422-10", "-c:v libx264 -bf 2", "yuv422p10le"),
    ("h264-444-odd", "-vf scale=97:75 -c:v libx264 -bf 2", "yuv444p"),
    ("h264-full", "-c:v libx264 -color_range pc", "yuvj420p"),
    ("hevc", "-c:v libx265 -x265-params log-level=none:bframes=3", "yuv420p"),
    ("hevc-10", "-c:v libx265 -x265-params log-level=none", "yuv420p10le"),
    ("vp9-odd", "-vf scale=97:75 -c:v libvpx-vp9 -deadline realtime -cpu-used 8", "yuv420p"),
    (
        "vp9-alt",
        "-c:v libvpx-vp9 -deadline good -cpu-used 5 -auto-alt-ref 1 -lag-in-frames 16",
        "yuv420p",
    ),
    ("av1", "-c:v libsvtav1 -preset 12 -g 2", "yuv420p"),
];

/// Prints past the test runner, which hides the output of tests that pass.
fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// The library, if this host has it and the `ffmpeg` command.
fn library() -> Option<Library> {
    if Command::new("ffmpeg").arg("-version").output().is_err() {
        say("skipped: no `ffmpeg`");
        return None;
    }
    match Library::open() {
        Ok(library) => Some(library),
        Err(Missing::NotFound) => {
            say(&format!("skipped: {}", Missing::NotFound));
            None
        }
        // One that is there and not usable is a fault.
        Err(other) => panic!("{other}"),
    }
}

fn encode(folder: &Path, (name, arguments, format): (&str, &str, &str)) -> Option<PathBuf> {
    let file = folder.join(format!("{name}.mp4"));
    let source = "testsrc2=size=128x96:rate=30:duration=2";
    let status = Command::new("ffmpeg")
        .args(["-v", "error", "-nostdin", "-f", "lavfi", "-i", source])
        .args(arguments.split_whitespace())
        .args(["-pix_fmt", format])
        .arg(&file)
        .output()
        .unwrap();
    if !status.status.success() {
        say(&format!("not made: {name}: {}", String::from_utf8_lossy(&status.stderr).trim()));
        return None;
    }
    Some(file)
}

/// All pictures, in the order in which they are shown, as `ffmpeg` decodes them.
fn planes_of_ffmpeg(file: &Path, format: &str) -> Vec<u8> {
    let output = Command::new("ffmpeg")
        .args(["-v", "error", "-nostdin", "-noautorotate", "-i"])
        .arg(file)
        .args(["-fps_mode", "passthrough", "-f", "rawvideo", "-pix_fmt", format, "-"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// A clip of all of a stream's packets and pictures.
fn clip_of<'a>(stream: &Stream, data: &'a [u8]) -> Clip<'a> {
    let Media::Video { width, height, color, rotation } = stream.media else { panic!("no video") };
    let packet = |(number, packet): (usize, &forebay_video::table::Packet)| Packet {
        pts: packet.pts,
        dts: packet.dts,
        duration: packet.duration,
        start: u32::try_from(packet.offset).unwrap(),
        length: packet.size,
        key: packet.key,
        discard: packet.discard,
        restarts: number == 0,
    };
    let packets: Vec<Packet> = stream.packets.iter().enumerate().map(packet).collect();
    let mut wanted: Vec<i64> =
        packets.iter().filter(|packet| !packet.discard).map(|packet| packet.pts).collect();
    wanted.sort_unstable();
    Clip {
        codec: stream.codec,
        configuration: stream.configuration.clone().into(),
        width,
        height,
        color,
        rotation,
        time_base: stream.time_base,
        packets,
        wanted,
        data: data.into(),
    }
}

fn decoded(library: &Library, clip: &Clip<'_>) -> Result<(Frames, Vec<u8>), Defect> {
    let mut bytes = Bytes::default();
    let frames = decode(library, clip, MAX_PIXELS, &mut bytes)?;
    Ok((frames, bytes.0))
}

/// The planes of all wanted times, in their order.
fn in_order(frames: &Frames, bytes: &[u8], wanted: &[i64]) -> Vec<u8> {
    let places = frames.places(wanted).unwrap();
    let planes = places.into_iter().flat_map(|place| {
        let frame = &frames.frames[place];
        let at = usize::try_from(frame.at).unwrap();
        &bytes[at..at + frame.bytes()]
    });
    planes.copied().collect()
}

#[test]
fn planes_are_those_of_ffmpeg() {
    let Some(library) = library() else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut compared = 0;
    for video in VIDEOS {
        let Some(file) = encode(folder.path(), video) else { continue };
        let data = std::fs::read(&file).unwrap();
        let table = forebay_video::read(data.as_slice()).unwrap();
        let clip = clip_of(table.video().unwrap(), &data);
        if library.decoder_name(clip.codec).is_none() {
            say(&format!(
                "skipped: libavcodec {} has no decoder for {}",
                library.version(),
                video.0
            ));
            continue;
        }
        let (frames, bytes) =
            decoded(&library, &clip).unwrap_or_else(|why| panic!("{}: {why}", video.0));
        let expected = planes_of_ffmpeg(&file, video.2);
        assert_eq!(expected.len(), bytes.len(), "{}", video.0);
        assert!(in_order(&frames, &bytes, &clip.wanted) == expected, "{}", video.0);
        // Single pictures, backwards, each decoded from the beginning.
        for number in (0..clip.wanted.len()).rev().step_by(7) {
            let one = Clip { wanted: vec![clip.wanted[number]; 2], ..clip.clone() };
            let (frames, bytes) = decoded(&library, &one).unwrap();
            let size = expected.len() / clip.wanted.len();
            assert_eq!(frames.frames.len(), 1);
            assert!(bytes == expected[number * size..][..size], "{} {number}", video.0);
        }
        compared += 1;
    }
    say(&format!("libavcodec {}: {compared} videos equal `ffmpeg`'s planes", library.version()));
    assert!(compared > 0);
}

#[test]
fn each_picture_alone_is_that_of_the_whole() {
    let Some(library) = library() else { return };
    let folder = tempfile::tempdir().unwrap();
    for video in VIDEOS {
        let Some(file) = encode(folder.path(), video) else { continue };
        let data = std::fs::read(&file).unwrap();
        let table = forebay_video::read(data.as_slice()).unwrap();
        let stream = table.video().unwrap();
        let whole = clip_of(stream, &data);
        if library.decoder_name(whole.codec).is_none() {
            continue;
        }
        let (frames, bytes) = decoded(&library, &whole).unwrap();
        for (place, pts) in whole.wanted.iter().enumerate() {
            // Alone, and with one that is far away: the decoder is flushed between them.
            let far = whole.wanted[(place + 17) % whole.wanted.len()];
            for wanted in [vec![*pts], vec![*pts, far]] {
                let cut = stream.cut(wanted.clone()).unwrap();
                let place = |at: u64| usize::try_from(at).unwrap();
                let ranges = cut.ranges.iter().map(|range| place(range.start)..place(range.end));
                let read: Vec<u8> = ranges.flat_map(|range| data[range].to_vec()).collect();
                let clip = stream.clip(&cut, &read).unwrap();
                let (own, planes) = decoded(&library, &clip)
                    .unwrap_or_else(|defect| panic!("{}, {wanted:?}: {defect}", video.0));
                let expected = in_order(&frames, &bytes, &wanted);
                assert!(in_order(&own, &planes, &wanted) == expected, "{}, {wanted:?}", video.0);
            }
        }
    }
}

/// With `intra-refresh`, decoding begins at a picture of which one column of blocks is whole; the pictures after it bring
/// the others, until all are. Those are as good as the same ones of the whole stream.
#[test]
fn pictures_after_a_gradual_refresh_need_no_whole_ones_before() {
    let Some(library) = library() else { return };
    let folder = tempfile::tempdir().unwrap();
    let video = (
        "h264-refresh",
        "-c:v libx264 -x264-params intra-refresh=1:keyint=30:bframes=0 -threads 1",
        "yuv420p",
    );
    let Some(file) = encode(folder.path(), video) else { return say("skipped: no `libx264`") };
    let data = std::fs::read(&file).unwrap();
    let table = forebay_video::read(data.as_slice()).unwrap();
    let stream = table.video().unwrap();
    let key = stream.packets.iter().rposition(|packet| packet.key).unwrap();
    assert!(key > 0 && stream.packets.len() > key + 20, "{key} of {}", stream.packets.len());
    let alone = |number: usize| {
        let cut = stream.cut(vec![stream.packets[number].pts]).unwrap();
        let range = |at: u64| usize::try_from(at).unwrap();
        let clip =
            stream.clip(&cut, &data[range(cut.ranges[0].start)..range(cut.ranges[0].end)]).unwrap();
        assert_eq!(clip.packets.len(), number - key + 1);
        decoded(&library, &clip).map(|(_, planes)| planes)
    };
    let whole = clip_of(stream, &data);
    let (frames, planes) = decoded(&library, &whole).unwrap();
    for number in [key + 20, key + 25] {
        let expected = in_order(&frames, &planes, &[stream.packets[number].pts]);
        assert!(alone(number).unwrap() == expected, "{number}");
    }
    // Wanted itself, a picture that is not whole yet is a defect.
    assert!(alone(key + 2).unwrap_err().to_string().contains("is corrupt"));
}

/// Damage in an open group: decoding that begins there, where errors are not fatal to a packet, and decoding that comes from
/// the group before it find the same picture, or a defect. A few changed bits name other pictures of the group before.
#[test]
fn damage_is_judged_alike_wherever_decoding_begins() {
    let Some(library) = library() else { return };
    let folder = tempfile::tempdir().unwrap();
    let video =
        ("h264-open", "-c:v libx264 -preset fast -bf 2 -g 12 -x264-params open-gop=1", "yuv420p");
    let Some(file) = encode(folder.path(), video) else { return say("skipped: no `libx264`") };
    let data = std::fs::read(&file).unwrap();
    let table = forebay_video::read(data.as_slice()).unwrap();
    let stream = table.video().unwrap();
    let keys: Vec<usize> = (0..stream.packets.len()).filter(|at| stream.packets[*at].key).collect();
    let (first, key, end) = (keys[0], keys[1], keys[2]);
    let wanted = stream.packets[end - 1].pts;
    let picture_from = |from: usize, data: &[u8]| {
        let mut clip = clip_of(stream, data);
        clip.packets.drain(..from);
        clip.packets.truncate(end - from);
        clip.packets[0].restarts = true;
        let begin = clip.packets[0].pts;
        clip.packets.retain(|packet| packet.pts >= begin);
        let clip = Clip { wanted: vec![wanted], ..clip };
        decoded(&library, &clip).map(|(_, planes)| planes)
    };
    assert!(picture_from(first, &data).unwrap() == picture_from(key, &data).unwrap());
    // Those that both decode.
    let begin = stream.packets[key].pts;
    let packets: Vec<_> =
        stream.packets[key..end].iter().filter(|packet| packet.pts >= begin).collect();
    let mut state = 5_u64;
    let mut next = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        usize::try_from(state >> 33).unwrap() % below
    };
    let (mut same, mut refused, mut unlike) = (0, 0, Vec::new());
    for number in 0..1000 {
        let packet = packets[next(packets.len())];
        let at = usize::try_from(packet.offset).unwrap() + next(packet.size as usize);
        let mut broken = data.clone();
        broken[at] ^= 1 << next(8);
        match (picture_from(first, &broken), picture_from(key, &broken)) {
            (Ok(far), Ok(near)) if far == near => same += 1,
            (Err(_), Err(_)) => refused += 1,
            (far, near) => unlike.push((number, far.err(), near.err())),
        }
    }
    assert!(same > 300 && refused > 300 && unlike.len() <= 10, "{same}, {refused}, {unlike:?}");
}
