//! `decode-video` with real helper processes: this program starts itself again as their spawner and as a helper.
//!
//! The videos are written by the `ffmpeg` command. Without it, or without libavcodec, the tests say so and end.

#[path = "../examples/support/in_memory.rs"]
mod in_memory;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay_config::{Config, Override};
use forebay_dataset::{Dataset as _, Defect, FieldKind, FieldValue};
use forebay_decoders::{Library, Missing};
use forebay_order::DrawKey;
use forebay_protocol::ids::SampleId;
use forebay_transform::{SamplePlan, SampleTask, WorkerScratch};
use forebay_video::clip::{Clip, Packet};
use forebay_video::codec::Codec;
use forebay_video::table::Media;
use in_memory::{InMemory, OneRow};

const WIDTH: usize = 96;
const HEIGHT: usize = 64;
/// Mutations of each codec's packets.
const MUTATIONS: usize = 1000;

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some("spawn-workers") => return forebay_workers::serve_spawner().unwrap(),
        Some("decode-media") => return forebay_transform::serve_decoders(|_| ()).unwrap(),
        Some("replaced") => return run_replaced(),
        // All pictures of a file, for scripts/prove/video-colours.
        Some("dump") => return dump(),
        // Of test runners.
        Some("--list") => return ExitCode::SUCCESS,
        _ => {}
    }
    if Command::new("ffmpeg").arg("-version").output().is_err() {
        return end(0, "skipped: no `ffmpeg`");
    }
    match Library::open() {
        Ok(_) => {}
        Err(Missing::NotFound) => return end(0, &format!("skipped: {}", Missing::NotFound)),
        // One that is there and not usable is a fault.
        Err(other) => panic!("{other}"),
    }
    let tests: [(&str, fn()); 13] = [
        ("pictures_are_in_the_order_of_their_times", pictures_are_in_the_order_of_their_times),
        ("one_draw_is_for_all_pictures", one_draw_is_for_all_pictures),
        ("rotated_videos_are_turned", rotated_videos_are_turned),
        ("too_large_a_video_is_refused_before_its_packets", too_large_a_video_is_refused),
        ("codec_without_a_decoder_ends_the_run", codec_without_a_decoder_ends_the_run),
        ("killed_helpers_cost_no_sample", killed_helpers_cost_no_sample),
        ("helpers_start_from_a_program_whose_file_was_replaced", helpers_of_a_replaced_program),
        ("helper_is_confined_and_has_a_limit_of_memory", helper_is_confined),
        ("broken_packets_are_defects_and_nothing_else", broken_packets_are_defects),
        ("motion_jpeg_needs_no_helper", motion_jpeg_needs_no_helper),
        ("clip_between_stages_is_in_the_estimate", clip_between_stages_is_in_the_estimate),
        ("planes_need_at_most_the_estimate", planes_need_at_most_the_estimate),
        ("video_resized_twice_needs_at_most_the_estimate", video_resized_twice_needs_the_estimate),
    ];
    let wanted = std::env::args().nth(1).unwrap_or_default();
    let mut failed = 0;
    let mut passed = 0;
    for (name, test) in
        tests.iter().filter(|(name, _)| wanted.starts_with('-') || name.contains(&wanted))
    {
        let result = catch_unwind(AssertUnwindSafe(test));
        println!("test {name} ... {}", if result.is_ok() { "ok" } else { "FAILED" });
        *(if result.is_ok() { &mut passed } else { &mut failed }) += 1;
    }
    let left = children(std::process::id());
    println!("left: {left:?}");
    if failed > 0 || !left.is_empty() {
        println!("test result: FAILED. {passed} passed; {failed} failed");
        return ExitCode::FAILURE;
    }
    end(passed, "")
}

/// Writes all pictures of a file, as rows of red, green and blue, one after another.
fn dump() -> ExitCode {
    let [file, out] = [2, 3].map(|place| std::env::args().nth(place).unwrap());
    let clip = clip_of(&std::fs::read(file).unwrap());
    let shown = clip.packets.iter().filter(|packet| !packet.discard);
    let mut wanted: Vec<i64> = shown.map(|packet| packet.pts).collect();
    wanted.sort_unstable();
    let (width, height) = match clip.rotation.swaps_sides() {
        true => (clip.height, clip.width),
        false => (clip.width, clip.height),
    };
    let crop = format!("{{ op = \"center-crop\", size = [{height}, {width}] }}");
    let planned = Planned::new(wanted.len() as u64, &crop, "");
    let row = planned.run(&Clip { wanted, ..clip }.to_bytes(), 0).unwrap();
    std::fs::write(out, row).unwrap();
    ExitCode::SUCCESS
}

fn end(passed: usize, why: &str) -> ExitCode {
    println!("{why}\ntest result: ok. {passed} passed; 0 failed");
    ExitCode::SUCCESS
}

fn children(of: u32) -> Vec<u32> {
    let text = std::fs::read_to_string(format!("/proc/{of}/task/{of}/children"));
    text.unwrap_or_default().split_whitespace().filter_map(|one| one.parse().ok()).collect()
}

/// The helpers: children of the spawners, which are children of this process.
fn helpers() -> Vec<u32> {
    children(std::process::id()).into_iter().flat_map(children).collect()
}

fn encode(folder: &Path, name: &str, arguments: &str) -> Vec<u8> {
    let file = folder.join(name);
    let source = format!("testsrc2=size={WIDTH}x{HEIGHT}:rate=30:duration=0.5");
    let output = Command::new("ffmpeg")
        .args(["-v", "error", "-nostdin", "-y", "-f", "lavfi", "-i", &source])
        .args(arguments.split_whitespace())
        .arg(&file)
        .output()
        .unwrap();
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    std::fs::read(file).unwrap()
}

/// A clip of all packets of a file, with no pictures wanted yet.
fn clip_of(file: &[u8]) -> Clip<'static> {
    let table = forebay_video::read(file).unwrap();
    let stream = table.video().unwrap();
    let Media::Video { width, height, color, rotation } = stream.media else { panic!("no video") };
    let packets = stream.packets.iter().enumerate().map(|(number, packet)| Packet {
        pts: packet.pts,
        dts: packet.dts,
        duration: packet.duration,
        start: u32::try_from(packet.offset).unwrap(),
        length: packet.size,
        key: packet.key,
        discard: packet.discard,
        restarts: number == 0,
    });
    Clip {
        codec: stream.codec,
        configuration: stream.configuration.clone().into(),
        width,
        height,
        color,
        rotation,
        time_base: stream.time_base,
        packets: packets.collect(),
        wanted: Vec::new(),
        data: file.to_vec().into(),
    }
}

/// With these pictures, counted in the order in which they are shown.
fn with_wanted(clip: &Clip<'static>, numbers: &[usize]) -> Clip<'static> {
    let mut times: Vec<i64> = clip.packets.iter().map(|packet| packet.pts).collect();
    times.sort_unstable();
    Clip { wanted: numbers.iter().map(|number| times[*number]).collect(), ..clip.clone() }
}

fn dataset(frames: u64) -> InMemory {
    let video = FieldKind::Video { clips: None, frames: Some(frames) };
    InMemory::new([("video", video)], |_, _, bytes| {
        FieldValue::Video(Box::new(Clip::from_bytes(bytes).unwrap()))
    })
}

fn config(text: &str) -> Config {
    let text = format!(
        "[dataset]\npath = \"/data\"\nformat = \"image-folder\"\n[batch]\nsize = 2\n[listen]\nsocket = \"/tmp/x\"\n{text}"
    );
    Config::from_text("test.toml", Path::new("/"), &text, &[] as &[Override]).unwrap()
}

/// A plan and its dataset.
struct Planned {
    plan: SamplePlan,
    dataset: InMemory,
}

impl Planned {
    /// Of these operations, at the video's own size or another one.
    fn new(frames: u64, operations: &str, limits: &str) -> Self {
        let text = format!(
            "{limits}\n[[stage]]\nname = \"decode\"\noperations = [{{ op = \"decode-video\" }}, {operations}]\n[output.video]\nlayout = \"NHWC\"\n"
        );
        let dataset = dataset(frames);
        let plan = SamplePlan::compile(&config(&text), &dataset).unwrap();
        Self { plan, dataset }
    }

    fn run(&self, clip: &[u8], sample: u64) -> Result<Vec<u8>, Defect> {
        self.run_with(clip, sample, &mut WorkerScratch::default())
    }

    fn run_with(
        &self,
        clip: &[u8],
        sample: u64,
        scratch: &mut WorkerScratch,
    ) -> Result<Vec<u8>, Defect> {
        let bytes = self.plan.tensors()[0].row_pitch_bytes().unwrap();
        let mut row = OneRow(vec![0; usize::try_from(bytes).unwrap()]);
        let key = DrawKey { seed: 3, epoch: 0, sample };
        let mut task = SampleTask::new(SampleId(sample), key, clip.to_vec());
        self.plan.run(0, &mut task, &self.dataset, &mut row, scratch)?;
        Ok(row.0)
    }
}

/// Gives all pictures their own size, so that their pixels stay as they are.
const AS_IT_IS: &str = "{ op = \"center-crop\", size = [64, 96] }";
const PICTURE_BYTES: usize = WIDTH * HEIGHT * 3;

fn h264(folder: &Path) -> Clip<'static> {
    clip_of(&encode(folder, "h264.mp4", "-c:v libx264 -bf 3 -g 30 -pix_fmt yuv420p"))
}

fn pictures_are_in_the_order_of_their_times() {
    let folder = tempfile::tempdir().unwrap();
    let clip = h264(folder.path());
    let planned = Planned::new(4, AS_IT_IS, "");
    assert_eq!(planned.plan.tensors()[0].row_shape, [4, 64, 96, 3]);
    let four = planned.run(&with_wanted(&clip, &[9, 2, 2, 5]).to_bytes(), 0).unwrap();
    let pictures: Vec<&[u8]> = four.chunks(PICTURE_BYTES).collect();
    assert!(pictures[1] == pictures[2] && pictures[0] != pictures[1]);
    let alone = Planned::new(1, AS_IT_IS, "");
    for (number, picture) in [9, 2, 2, 5].into_iter().zip(pictures) {
        assert!(alone.run(&with_wanted(&clip, &[number]).to_bytes(), 0).unwrap() == picture);
    }
    let short = planned.run(&with_wanted(&clip, &[1, 2]).to_bytes(), 0).unwrap_err();
    assert_eq!(short.0, "it has 2 pictures, and 4 are expected");
}

fn one_draw_is_for_all_pictures() {
    let folder = tempfile::tempdir().unwrap();
    let clip = with_wanted(&h264(folder.path()), &[4; 3]).to_bytes();
    let operations = "{ op = \"random-resized-crop\", size = [24, 32] }, { op = \"random-horizontal-flip\" }, \
                      { op = \"color-jitter\", brightness = 0.5 }";
    let planned = Planned::new(3, operations, "");
    let mut all = std::collections::HashSet::new();
    for sample in 0..8 {
        let row = planned.run(&clip, sample).unwrap();
        let pictures: Vec<&[u8]> = row.chunks(24 * 32 * 3).collect();
        assert!(pictures[0] == pictures[1] && pictures[1] == pictures[2]);
        assert!(all.insert(row), "each sample has draws of its own");
    }
}

fn rotated_videos_are_turned() {
    use forebay_video::codec::Rotation;
    let folder = tempfile::tempdir().unwrap();
    let clip = with_wanted(&h264(folder.path()), &[3]);
    let plain = Planned::new(1, AS_IT_IS, "").run(&clip.to_bytes(), 0).unwrap();
    let turned = Clip { rotation: Rotation::Quarter, ..clip };
    let planned = Planned::new(1, "{ op = \"center-crop\", size = [96, 64] }", "");
    let turned = planned.run(&turned.to_bytes(), 0).unwrap();
    for (x, y) in [(0, 0), (95, 0), (10, 40), (95, 63)] {
        let from = &plain[(y * WIDTH + x) * 3..][..3];
        let to = &turned[(x * HEIGHT + HEIGHT - 1 - y) * 3..][..3];
        assert_eq!(from, to);
    }
}

fn too_large_a_video_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let clip = with_wanted(&h264(folder.path()), &[3]);
    let planned = Planned::new(1, AS_IT_IS, "[limits]\npixels = 6143\n");
    let refused = planned.run(&clip.to_bytes(), 0).unwrap_err();
    assert!(
        refused
            .0
            .starts_with("its pictures have 96×64 pixels, more than 6143; raise limits.pixels")
    );
    // A stream that is larger than its file announces.
    let lying = Clip { width: 16, height: 16, ..clip };
    let refused = planned.run(&lying.to_bytes(), 0).unwrap_err();
    assert!(refused.0.starts_with("h264: "), "{}", refused.0);
}

fn codec_without_a_decoder_ends_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let clip = with_wanted(&h264(folder.path()), &[1]);
    let planned = Planned::new(1, AS_IT_IS, "");
    let mut scratch = WorkerScratch::default();
    // No library decodes it to pictures.
    let other = Clip { codec: Codec::Opus, ..clip.clone() };
    planned.run_with(&other.to_bytes(), 0, &mut scratch).unwrap_err();
    let said = scratch.take_no_helpers().expect("not a defect of the sample");
    assert!(said.contains("has no software decoder for opus; `"), "{said}");
    assert!(!said.contains('\n') && said.contains("install"), "{said}");
    // A damaged packet is one.
    let broken = Clip { data: vec![0xff; clip.data.len()].into(), ..clip.clone() };
    planned.run_with(&broken.to_bytes(), 0, &mut scratch).unwrap_err();
    assert_eq!(scratch.take_no_helpers(), None);
    planned.run_with(&clip.to_bytes(), 0, &mut scratch).unwrap();
}

fn killed_helpers_cost_no_sample() {
    let folder = tempfile::tempdir().unwrap();
    let clip = with_wanted(&h264(folder.path()), &[1, 5, 9, 13]).to_bytes();
    let planned = Planned::new(4, AS_IT_IS, "");
    let expected = planned.run(&clip, 0).unwrap();
    let is_done = Arc::new(AtomicBool::new(false));
    let until = Arc::clone(&is_done);
    let killer = std::thread::spawn(move || {
        let mut kills = 0;
        while !until.load(Ordering::Relaxed) {
            for helper in helpers() {
                let pid = nix::unistd::Pid::from_raw(i32::try_from(helper).unwrap());
                kills += usize::from(
                    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).is_ok(),
                );
            }
            std::thread::sleep(Duration::from_millis(150));
        }
        kills
    });
    let begun = std::time::Instant::now();
    for sample in 0.. {
        assert!(planned.run(&clip, sample).unwrap() == expected);
        if begun.elapsed() > Duration::from_secs(8) {
            break;
        }
    }
    is_done.store(true, Ordering::Relaxed);
    let kills = killer.join().unwrap();
    println!("{kills} kills");
    assert!(kills >= 10);
}

fn helpers_of_a_replaced_program() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("program");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let output = Command::new(&program).arg("replaced").output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// In another process: decodes after its own file was replaced, as by an upgrade.
fn run_replaced() -> ExitCode {
    let program = std::env::current_exe().unwrap();
    std::fs::remove_file(&program).unwrap();
    std::fs::write(&program, "another version").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let clip = with_wanted(&h264(folder.path()), &[1]).to_bytes();
    let planned = Planned::new(1, AS_IT_IS, "");
    planned.run(&clip, 0).unwrap();
    // Named after their program, and not after the link to it.
    let spawners = children(std::process::id());
    for process in spawners.into_iter().chain(helpers()) {
        assert_eq!(std::fs::read_to_string(format!("/proc/{process}/comm")).unwrap(), "program\n");
    }
    ExitCode::SUCCESS
}

fn helper_is_confined() {
    let folder = tempfile::tempdir().unwrap();
    let clip = with_wanted(&h264(folder.path()), &[1]).to_bytes();
    let planned = Planned::new(1, AS_IT_IS, "");
    planned.run(&clip, 0).unwrap();
    let [helper] = helpers()[..] else { panic!("{:?}", helpers()) };
    let limits = std::fs::read_to_string(format!("/proc/{helper}/limits")).unwrap();
    let limit = |name: &str| {
        let line = limits.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        let of = |place: usize| {
            line.split_whitespace().nth(place).unwrap().parse::<u64>().unwrap_or(u64::MAX)
        };
        (of(0), of(1))
    };
    assert_eq!(limit("Max open files"), (0, 0));
    assert_eq!(limit("Max processes"), (0, 0));
    assert_eq!(limit("Max core file size"), (0, 0));
    let (soft, hard) = limit("Max data size");
    let plan = planned.plan.helpers().unwrap();
    assert!(soft < 256 << 20, "{soft}");
    assert!(hard > soft && hard < plan.memory_bytes + (512 << 20), "{hard}");
    let status = std::fs::read_to_string(format!("/proc/{helper}/status")).unwrap();
    assert!(status.contains("NoNewPrivs:\t1"));
    // /dev/null twice, the log, socket and arena.
    let open = std::fs::read_dir(format!("/proc/{helper}/fd")).unwrap().count();
    assert_eq!(open, 5);
}

/// Without the packets before its second key packet, and those that need them.
fn from_second_group(mut clip: Clip<'static>) -> Clip<'static> {
    let mut keys = (0..clip.packets.len()).filter(|place| clip.packets[*place].key);
    let key = keys.nth(1).unwrap();
    clip.packets.drain(..key);
    let begin = clip.packets[0].pts;
    clip.packets.retain(|packet| packet.pts >= begin);
    clip.packets[0].restarts = true;
    clip.wanted = clip.packets.iter().map(|packet| packet.pts).collect();
    clip.wanted.sort_unstable();
    clip
}

fn broken_packets_are_defects() {
    let folder = tempfile::tempdir().unwrap();
    let encoders = [
        ("h264", "-c:v libx264 -bf 2 -g 30 -pix_fmt yuv420p"),
        ("h264-open", "-c:v libx264 -bf 2 -g 5 -x264-params open-gop=1 -pix_fmt yuv420p"),
        ("hevc", "-c:v libx265 -x265-params log-level=none -pix_fmt yuv420p"),
        ("vp9", "-c:v libvpx-vp9 -deadline realtime -cpu-used 8"),
        ("av1", "-c:v libsvtav1 -preset 12 -g 4 -pix_fmt yuv420p"),
        ("mjpeg", "-c:v mjpeg -pix_fmt yuvj420p"),
    ];
    let planned = Planned::new(3, AS_IT_IS, "");
    for (name, arguments) in encoders {
        let file = encode(folder.path(), &format!("{name}.mp4"), arguments);
        let mut clip = clip_of(&file);
        if name == "h264-open" {
            clip = from_second_group(clip);
        }
        let clip = with_wanted(&clip, &[0, 4, 8]);
        let whole = planned.run(&clip.to_bytes(), 0).unwrap_or_else(|why| panic!("{name}: {why}"));
        let mut state = 7_u64;
        let mut next = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            usize::try_from(state >> 33).unwrap() % below
        };
        let (mut refused, mut same) = (0, 0);
        for _ in 0..MUTATIONS {
            let mut broken = clip.clone();
            let packet = broken.packets[next(9)];
            let (start, length) = (packet.start as usize, packet.length as usize);
            match next(4) {
                0 => {
                    let changed = next(length);
                    broken.data.to_mut()[start + changed] ^= 1 << next(8);
                }
                1 => (0..8).for_each(|_| {
                    let (at, value) = (next(length), next(256));
                    broken.data.to_mut()[start + at] = u8::try_from(value).unwrap();
                }),
                2 => {
                    let from = next(length);
                    broken.data.to_mut()[start + from..start + length].fill(0);
                }
                _ if !broken.configuration.is_empty() => {
                    let at = next(broken.configuration.len());
                    broken.configuration.to_mut()[at] ^= 1 << next(8);
                }
                _ => broken
                    .packets
                    .iter_mut()
                    .for_each(|packet| packet.length = 1.max(packet.length / 2)),
            }
            match planned.run(&broken.to_bytes(), 0) {
                Ok(row) => same += usize::from(row == whole),
                Err(defect) => {
                    assert!(!defect.0.is_empty() && defect.0.len() < 400, "{}", defect.0);
                    refused += 1;
                }
            }
        }
        println!("{name}: {refused} of {MUTATIONS} refused, {same} without effect");
        assert!(refused > 0, "{name}");
        assert!(planned.run(&clip.to_bytes(), 0).unwrap() == whole, "{name}");
    }
}

fn motion_jpeg_needs_no_helper() {
    let folder = tempfile::tempdir().unwrap();
    let clip = clip_of(&encode(folder.path(), "mjpeg.mp4", "-c:v mjpeg -q:v 2 -pix_fmt yuvj444p"));
    let planned = Planned::new(2, AS_IT_IS, "");
    helpers().into_iter().for_each(|helper| {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(helper).unwrap());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGSTOP).unwrap();
    });
    let row = planned.run(&with_wanted(&clip, &[0, 7]).to_bytes(), 0).unwrap();
    assert!(row[..PICTURE_BYTES] != row[PICTURE_BYTES..]);
    assert_eq!(planned.dataset.fields().len(), 1);
}

fn clip_between_stages_is_in_the_estimate() {
    let folder = tempfile::tempdir().unwrap();
    let clip = with_wanted(&h264(folder.path()), &[0, 3]);
    let bytes = clip.to_bytes();
    let text = format!(
        "[[stage]]\nname = \"wait\"\noperations = [{{ op = \"delay\", milliseconds = 0.1 }}]\n\
         [[stage]]\nname = \"decode\"\noperations = [{{ op = \"decode-video\" }}, {AS_IT_IS}]\n"
    );
    let dataset = dataset(2);
    let plan = SamplePlan::compile(&config(&text), &dataset).unwrap();
    let needs = plan.needs((SampleId(0), 0), bytes.as_slice().into(), &dataset);
    let key = DrawKey { seed: 3, epoch: 0, sample: 0 };
    let fetched = bytes.len();
    let mut task = SampleTask::new(SampleId(0), key, bytes);
    let mut row = OneRow(vec![0; 2 * PICTURE_BYTES]);
    plan.run(0, &mut task, &dataset, &mut row, &mut WorkerScratch::default()).unwrap();
    let held = (task.held_bytes() - fetched) as u64;
    assert!(held > clip.data.len() as u64 && held <= needs.carried_bytes, "{held}, {needs:?}");
}

/// A line of this process's status, in bytes.
fn status_bytes(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim_start_matches(':').trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// The memory that a sample takes is within its estimate, and not little.
fn check_needs(name: &str, planned: &Planned, clip: &[u8]) {
    let needs = planned.plan.needs((SampleId(0), 0), clip.into(), &planned.dataset);
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = status_bytes("VmRSS");
    planned.run(clip, 0).unwrap();
    let most = status_bytes("VmHWM").saturating_sub(before);
    let figures = format!("{name}: {most} of {}", needs.scratch_bytes);
    println!("{figures}");
    assert!(most > 40 << 20 && most <= needs.scratch_bytes + (2 << 20), "{figures}");
}

/// They are in the memory that is shared with the helper until they are copied.
fn planes_need_at_most_the_estimate() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = "-vf scale=960:640 -c:v libx264 -pix_fmt yuv444p10le";
    let clip = clip_of(&encode(folder.path(), "deep.mp4", arguments));
    let numbers: Vec<usize> = (0..10).collect();
    let clip = with_wanted(&clip, &numbers).to_bytes();
    check_needs("planes", &Planned::new(10, AS_IT_IS, ""), &clip);
}

/// The second resampling needs the pixels of the first one, of all pictures.
fn video_resized_twice_needs_the_estimate() {
    let folder = tempfile::tempdir().unwrap();
    let numbers: Vec<usize> = (0..10).collect();
    let clip = with_wanted(&h264(folder.path()), &numbers).to_bytes();
    let second = "{ op = \"resize\", size = [32, 48] }";
    for (name, first) in [
        ("resized", "{ op = \"resize\", size = [1200, 1600] }"),
        ("surrounded by zeros", "{ op = \"center-crop\", size = [1200, 1600] }"),
    ] {
        let planned = Planned::new(10, &format!("{first}, {second}"), "");
        check_needs(name, &planned, &clip);
    }
}
