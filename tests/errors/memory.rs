//! Ten configurations whose memory is hard to bound, on real daemons: what each of them had at its peak beside its program,
//! rings included, is held against what `forebay check` has planned, and ten per cent.
//!
//! `FOREBAY_TEST_PICTURE_SIDE=13000` makes the pictures as large as in `scripts/prove`; left out, 2500.

use std::fs;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use forebay_client::Target;
use forebay_synth::{GenerateOptions, generate_images};
use forebay_tests::{Daemon, TestDir, data, program, wait_until};

/// Plans are kept to so many per cent.
const PERCENT: u64 = 110;

struct Case {
    name: &'static str,
    /// Makes the data in a folder.
    make: fn(&Path),
    config: String,
    batches: u32,
}

fn picture_side() -> usize {
    std::env::var("FOREBAY_TEST_PICTURE_SIDE").map_or(2_500, |side| side.parse().unwrap())
}

/// Memory in MiB with which some pictures are decoded at a time, but not all.
fn for_pictures() -> u64 {
    let side = picture_side() as u64;
    ((side * side * 26) >> 20).max(260)
}

/// The same file under several names.
fn repeat(folder: &Path, name: &str, bytes: &[u8], count: usize) {
    fs::create_dir_all(folder).unwrap();
    let first = folder.join(format!("000-{name}"));
    fs::write(&first, bytes).unwrap();
    for number in 1..count {
        fs::hard_link(&first, folder.join(format!("{number:03}-{name}"))).unwrap();
    }
}

/// Deflated, as the member of an archive.
fn zipped(name: &str, parts: &[&[u8]]) -> Vec<u8> {
    let mut archive = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let deflated = zip::write::SimpleFileOptions::default()
        .compression_method(zip::CompressionMethod::Deflated);
    archive.start_file(name, deflated).unwrap();
    parts.iter().for_each(|part| archive.write_all(part).unwrap());
    archive.finish().unwrap().into_inner()
}

/// A black picture; its pixels are a thousand times its file.
fn large_png(folder: &Path) {
    let side = picture_side();
    let line = vec![0; 1 + 3 * side];
    let archive = zipped("lines", &vec![line.as_slice(); side]);
    let mut archive = zip::ZipArchive::new(std::io::Cursor::new(archive)).unwrap();
    let mut stream = vec![0x78, 0x9c];
    archive.by_index_raw(0).unwrap().read_to_end(&mut stream).unwrap();
    // Adler-32 of zeros.
    let zeros = (line.len() * side) as u64 % 65_521;
    stream.extend((u32::try_from(zeros).unwrap() << 16 | 1).to_be_bytes());
    let mut file = b"\x89PNG\r\n\x1a\n".to_vec();
    let sides = u32::try_from(side).unwrap().to_be_bytes();
    let header = [&sides[..], &sides, &[8, 2, 0, 0, 0]].concat();
    for (name, body) in [(b"IHDR", &header), (b"IDAT", &stream), (b"IEND", &Vec::new())] {
        let named = [&name[..], body].concat();
        file.extend(u32::try_from(body.len()).unwrap().to_be_bytes());
        file.extend(&named);
        file.extend(forebay_tests::corpus::crc32(&named).to_be_bytes());
    }
    repeat(&folder.join("class"), "black.png", &file, 16);
}

fn progressive_jpeg(folder: &Path) {
    let side = u16::try_from(picture_side()).unwrap();
    let pixels: Vec<u8> = (0..usize::from(side) * usize::from(side) * 3)
        .map(|at| (at / 1_000).to_le_bytes()[0])
        .collect();
    let mut file = Vec::new();
    let mut encoder = jpeg_encoder::Encoder::new(&mut file, 50);
    encoder.set_progressive(true);
    encoder.set_sampling_factor(jpeg_encoder::SamplingFactor::F_1_1);
    encoder.encode(&pixels, side, side, jpeg_encoder::ColorType::Rgb).unwrap();
    repeat(&folder.join("class"), "large.jpg", &file, 16);
}

fn large_webp(folder: &Path) {
    let side = u32::try_from(picture_side()).unwrap();
    let mut file = Vec::new();
    let pixels = vec![7; side as usize * side as usize * 3];
    image_webp::WebPEncoder::new(&mut file)
        .encode(&pixels, side, side, image_webp::ColorType::Rgb8)
        .unwrap();
    repeat(&folder.join("class"), "flat.webp", &file, 16);
}

fn tiny_rows(folder: &Path) {
    data::sparse_stack(folder, 2_000_000);
}

/// Arrays that are not read directly into their rows.
fn array_file(elements: usize, element_bytes: usize, big_endian: bool) -> [Vec<u8>; 2] {
    let order = if big_endian { '>' } else { '<' };
    let text = format!(
        "{{'descr': '{order}u{element_bytes}', 'fortran_order': False, 'shape': ({elements},), }}"
    );
    let mut header = b"\x93NUMPY\x01\x00".to_vec();
    header.extend(118_u16.to_le_bytes());
    header.extend(format!("{text:<117}\n").as_bytes());
    [header, vec![0; elements * element_bytes]]
}

fn many_arrays(folder: &Path) {
    repeat(folder, "a.npy", &array_file(150_000, 2, true).concat(), 512);
}

fn large_arrays(folder: &Path) {
    repeat(folder, "a.npy", &array_file(32 << 20, 2, true).concat(), 8);
}

fn photographs(folder: &Path) {
    let options = GenerateOptions {
        images: 256,
        classes: 2,
        width: 500,
        height: 375,
        ..GenerateOptions::default()
    };
    generate_images(folder, &options, &|_, _| {}).unwrap();
}

fn deflated_archives(folder: &Path) {
    let [header, elements] = array_file(8 << 20, 8, false);
    repeat(folder, "a.npz", &zipped("x.npy", &[&header, &elements]), 16);
}

fn ragged_archives(folder: &Path) {
    fs::create_dir_all(folder).unwrap();
    for number in 0..128 {
        let [header, elements] = array_file(1 + number * 1_000, 4, false);
        let file = folder.join(format!("{number:03}.npz"));
        fs::write(file, zipped("x.npy", &[&header, &elements])).unwrap();
    }
}

/// What all of them have: one client, and neither the machine's cores nor its memory decide anything.
fn config(format: &str, batch: u32, slots: u32, mebibytes: u64, stages: &str) -> String {
    let path = if batch > 10_000 { "data/samples.npy" } else { "data" };
    format!(
        "dataset.path = \"{path}\"\ndataset.format = \"{format}\"\nbatch.size = {batch}\n\
         listen.max_sessions = 1\nring = {{ slots = {slots}, memory = \"{mebibytes}MiB\" }}\n{stages}"
    )
}

fn cases() -> Vec<Case> {
    let to_224 = "[[stage]]\nname = \"work\"\nconcurrency = 4\noperations = [{ op = \"decode-image\" }, \
                  { op = \"resize\", size = [224, 224] }]\n";
    let copy = "[[stage]]\nname = \"work\"\nconcurrency = 4\noperations = []\n";
    let apart = "[[stage]]\nname = \"decode\"\nconcurrency = 2\noperations = [{ op = \"decode-image\" }]\n\
                 [[stage]]\nname = \"turn\"\nconcurrency = 1\noperations = [{ op = \"random-horizontal-flip\" }]\n\
                 [[stage]]\nname = \"crop\"\nconcurrency = 1\noperations = [{ op = \"center-crop\", size = 64 }]\n";
    let lanes = format!("[[stage]]\nname = \"fetch\"\nconcurrency = 64\n{copy}");
    let cast = "[[stage]]\nname = \"work\"\nconcurrency = 6\noperations = []\n[output]\nx = { dtype = \"uint8\" }\n";
    let ragged = format!("{copy}[output]\nx = {{ ragged = true, max_bytes = \"1MiB\" }}\n");
    let images = |name, make| Case {
        name,
        make,
        config: config("image-folder", 8, 4, for_pictures(), to_224),
        batches: 4,
    };
    let case = |name, make, config, batches| Case { name, make, config, batches };
    vec![
        images("large PNG", large_png),
        images("progressive JPEG", progressive_jpeg),
        images("lossless WebP", large_webp),
        case("tiny rows", tiny_rows, config("npy", 100_000, 8, 1_024, copy), 16),
        case("many lanes", many_arrays, config("npy", 64, 4, 420, &lanes), 24),
        case("many stages", photographs, config("image-folder", 64, 8, 200, apart), 16),
        case("deflated archives", deflated_archives, config("npz", 2, 3, 420, cast), 16),
        case("ragged rows", ragged_archives, config("npz", 16, 4, 300, &ragged), 30),
        case("large files", large_arrays, config("npy", 1, 3, 500, copy), 16),
    ]
}

/// What `forebay check` plans, with what large samples may take besides.
fn planned_bytes(dir: &TestDir, config: &Path) -> u64 {
    let plan = program::run(dir.forebay(&["check", "--json"]).arg(config)).json();
    let bytes = |key: &str| plan["streams"][0][key].as_u64().unwrap();
    bytes("memory_bytes") + bytes("memory_for_large_samples_bytes")
}

/// The most that a process had in memory, its program's file left out.
fn peak_bytes(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    };
    line("VmHWM:") - line("RssFile:")
}

#[test]
fn the_peak_of_ten_configurations_is_within_their_plans() {
    let only = std::env::var("FOREBAY_TEST_ONLY").ok();
    let mut within = 0;
    let mut beyond = Vec::new();
    for case in cases() {
        if only.as_ref().is_some_and(|only| only != case.name) {
            continue;
        }
        let dir = TestDir::new();
        (case.make)(&dir.path("data"));
        let config = dir.config("train.toml", &case.config);
        let planned = planned_bytes(&dir, &config);
        let daemon = Daemon::serve(&dir, &config);
        let mut loader = daemon.loader(0, 1).attach().unwrap();
        for _ in 0..case.batches {
            drop(loader.next_batch().unwrap());
        }
        let peak = peak_bytes(daemon.pid());
        let figures = format!("{}: {} of {} MiB planned", case.name, peak >> 20, planned >> 20);
        println!("{figures}");
        if peak * 100 <= planned * PERCENT { within += 1 } else { beyond.push(figures) }
    }
    within += usize::from(only.is_none() && ranks_in_a_control_group());
    assert!(beyond.is_empty(), "{beyond:?}");
    println!("{within} configurations stayed within their plans");
}

/// A control group with a limit of memory, where this user may make one. The processes in it must have ended before.
struct Group(PathBuf);

impl Group {
    fn make(limit_bytes: u64) -> Option<Self> {
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        let path = |line: &str| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            let root = match controllers {
                "" => Path::new("/sys/fs/cgroup").to_owned(),
                "memory" => Path::new("/sys/fs/cgroup/memory").to_owned(),
                _ => return None,
            };
            Some(root.join(path.trim_start_matches('/')))
        };
        own.lines().filter_map(path).find_map(|above| {
            let group = Self(above.join(format!("forebay-test-{}", std::process::id())));
            fs::create_dir(&group.0).ok()?;
            let limits = ["memory.limit_in_bytes", "memory.max"].map(|name| group.0.join(name));
            let limit = limits.iter().find(|limit| limit.exists())?;
            fs::write(limit, limit_bytes.to_string()).ok()?;
            Some(group)
        })
    }

    fn peak_bytes(&self) -> Option<u64> {
        let files = ["memory.max_usage_in_bytes", "memory.peak"];
        let text = files.iter().find_map(|file| fs::read_to_string(self.0.join(file)).ok())?;
        text.trim().parse().ok()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

struct Rank(Child);

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Eight ranks one after the other in a group that holds their plans and hardly more: none is refused for what the others
/// have taken. False: there can be no group.
fn ranks_in_a_control_group() -> bool {
    const RANKS: u32 = 8;
    let dir = TestDir::new();
    many_arrays(&dir.path("data"));
    let copy = "[[stage]]\nname = \"work\"\nconcurrency = 1\noperations = []\n";
    let config = dir.config("train.toml", &config("npy", 64, 4, 128, copy));
    let planned = planned_bytes(&dir, &config) * u64::from(RANKS);
    let Some(group) = Group::make(planned + planned / 10) else {
        forebay_tests::skipped("this user may not make a control group");
        return false;
    };
    let enter = "echo 0 >\"$0/cgroup.procs\" && exec \"$@\"";
    let mut ranks = Vec::new();
    let mut loaders = Vec::new();
    for rank in 0..RANKS {
        let socket = dir.path(&format!("{rank}.sock"));
        let mut command = dir.command(Path::new("sh"));
        command.args(["-c", enter]).arg(&group.0).arg(program::forebay());
        command.arg("serve").arg(&config).arg("--socket").arg(&socket);
        command.env("LOCAL_RANK", rank.to_string()).env("LOCAL_WORLD_SIZE", RANKS.to_string());
        let mut started = Rank(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap());
        wait_until("the daemon listens", || {
            assert_eq!(started.0.try_wait().unwrap(), None, "rank {rank} was refused");
            forebay_protocol::socket::Connection::connect(&socket).is_ok()
        });
        ranks.push(started);
        let target = Target::Socket(socket, None);
        let mut loader = forebay_tests::test_dir::loader(target, rank, RANKS).attach().unwrap();
        for _ in 0..8 {
            drop(loader.next_batch().unwrap());
        }
        loaders.push(loader);
    }
    let peak = group.peak_bytes().unwrap();
    println!("eight ranks: {} of {} MiB planned", peak >> 20, planned >> 20);
    drop(loaders);
    drop(ranks);
    assert!(peak * 100 <= planned * PERCENT, "{peak} of {planned}");
    true
}

#[test]
fn opening_that_takes_more_memory_than_its_limit_ends_with_the_key_to_raise() {
    let dir = TestDir::new();
    let list = dir.path("list.csv");
    let rows = (0..1_000_000).map(|row| format!("a.jpg,{}\n", row % 10));
    fs::write(&list, "path,label\n".to_owned() + &rows.collect::<String>()).unwrap();
    let text = format!(
        "preset = \"imagenet-eval\"\nbatch.size = 8\ndataset.path = {list:?}\ndataset.format = \"manifest\"\n"
    );
    let config = dir.config("train.toml", &text);
    let check = |limit: &str| {
        let mut command = dir.forebay(&["check", "--plan-only", "--set", limit]);
        program::run(command.arg(&config))
    };
    let refused = check("dataset.opening_memory=8MiB");
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(refused.stderr.contains("8 MiB of dataset.opening_memory"), "{refused:?}");
    let opened = check("dataset.opening_memory=1GiB");
    let line = opened.stdout.lines().find(|line| line.trim_start().starts_with("opening"));
    let has_figure = |line: &str| line.contains(" MiB at most") && line.contains("of 1 GiB");
    assert!(line.is_some_and(has_figure), "{opened:?}");
}
