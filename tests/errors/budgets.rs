//! Machines that do not grant what is asked: descriptors, memory, room on a disk. Each message names the remedy.

use std::path::Path;

use forebay_tests::{Daemon, TestDir, data, program};

/// The program with a shell's limits.
fn limited(dir: &TestDir, limit: &str, arguments: &[&str], config: &Path) -> program::Finished {
    let mut command = dir.command(Path::new("sh"));
    command.args(["-c", &format!("ulimit {limit}; exec \"$@\""), "sh"]).arg(program::forebay());
    program::run(command.args(arguments).arg(config))
}

#[test]
fn an_address_space_that_is_too_small_is_an_error_and_no_signal() {
    use std::os::unix::process::ExitStatusExt as _;
    let dir = TestDir::new();
    let config = dir.image_stream(16, 2, "order.epochs = 1");
    // Room for the program and its libraries, none for a ring of 512 MiB.
    let text = std::fs::read_to_string(&config).unwrap();
    let text = text
        .replace("batch.size = 8", "batch.size = 8\nring = { slots = 20000, memory = \"4GiB\" }");
    std::fs::write(&config, text).unwrap();
    let outcome = limited(&dir, "-v 400000", &["bench"], &config);
    assert_eq!(outcome.status.signal(), None, "{outcome:?}");
    assert!(!outcome.status.success() && !outcome.stderr.is_empty(), "{outcome:?}");
}

/// Each stream of a daemon fits into the machine by itself, and so does each rank of a host; two together do not.
#[test]
fn what_all_streams_and_ranks_need_together_is_held_against_the_machine() {
    let dir = TestDir::new();
    data::sparse_stack(&dir.path("data"), 2_000_000);
    let text = data::stack_config(&dir.path("data"), "ring.memory = \"100TiB\"")
        .replace("batch.size = 4", "batch.size = 1000000");
    let [train, validation] =
        ["train", "validation"].map(|name| dir.config(&format!("{name}.toml"), &text));
    // No ring is made before a client attaches.
    let check = |configs: &[&Path], slots: u64, ranks: u32| {
        let mut command = dir.forebay(&["check", "--json", "--set"]);
        command.arg(format!("ring.slots={slots}"));
        command.env("LOCAL_RANK", "0").env("LOCAL_WORLD_SIZE", ranks.to_string());
        program::run(command.args(configs))
    };
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap();
    let available = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:")).unwrap();
    let available = available.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10;
    let planned_bytes =
        |slots| check(&[&train], slots, 1).json()["streams"][0]["memory_bytes"].as_u64().unwrap();
    let slots = available * 6 / 10 / (planned_bytes(4) - planned_bytes(3));
    let alone = check(&[&train], slots, 1);
    assert!(alone.status.success(), "{alone:?}");
    for outcome in [check(&[&train, &validation], slots, 1), check(&[&train], slots, 2)] {
        assert!(!outcome.status.success(), "{outcome:?}");
        for part in ["train.toml:", "all streams and local ranks", "grants", "lower ring.slots"] {
            assert!(outcome.stderr.contains(part), "{part} in {outcome:?}");
        }
    }
}

/// `ring.memory` has room for one session's ring: the second is refused, with the figures and the key, and the first goes on.
#[test]
fn an_attach_beyond_ring_memory_is_refused_and_nobody_else_suffers() {
    let dir = TestDir::new();
    data::sparse_stack(&dir.path("data"), 2_000_000);
    let config_with = |memory_bytes: u64| {
        let keys = format!("ring.memory = {memory_bytes}\nring.slots = 8");
        let text = data::stack_config(&dir.path("data"), &keys)
            .replace("batch.size = 4", "batch.size = 200000");
        dir.config("train.toml", &text)
    };
    let config = config_with(4 << 30);
    let mut check = dir.forebay(&["check", "--json"]);
    let plan = program::run(check.arg(&config)).json();
    let planned_bytes = plan["streams"][0]["memory_bytes"].as_u64().unwrap();
    let config = config_with(planned_bytes + 1);
    let daemon = Daemon::serve(&dir, &config);
    let mut first = daemon.loader(0, 2).attach().unwrap();
    let refused = daemon.loader(1, 2).attach().unwrap_err().to_string();
    for part in ["a new ring of", "but ring.memory is", "lower ring.slots or batch.size"] {
        assert!(refused.contains(part), "{part} in {refused}");
    }
    drop(first.next_batch());
    drop(first);
    assert!(daemon.loader(1, 2).attach().is_ok(), "the first one's ring was not given back");
}

/// What the plan says is what the daemon takes at most, rings included.
#[test]
fn a_daemon_at_work_stays_within_its_plan() {
    let dir = TestDir::new();
    let config = dir.image_stream(64, 4, "");
    let mut check = dir.forebay(&["check", "--json"]);
    let plan = program::run(check.arg(&config)).json();
    let planned_bytes = plan["streams"][0]["memory_bytes"].as_u64().unwrap();
    let daemon = Daemon::serve(&dir, &config);
    let mut loader = daemon.loader(0, 1).attach().unwrap();
    for _ in 0..50 {
        let _ = loader.next_batch().unwrap();
        let resident_bytes = daemon.stats(&dir)["resident_bytes"].as_u64().unwrap();
        assert!(resident_bytes <= planned_bytes, "{resident_bytes} of {planned_bytes}");
    }
}

/// A file system of 64 KiB, where this user may mount one.
struct TinyDisk(std::path::PathBuf);

impl TinyDisk {
    fn mount(path: std::path::PathBuf) -> Option<Self> {
        std::fs::create_dir_all(&path).unwrap();
        let mounted = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=64k", "forebay-test"])
            .arg(&path)
            .output()
            .is_ok_and(|output| output.status.success());
        mounted.then_some(Self(path))
    }
}

impl Drop for TinyDisk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg(&self.0).output();
    }
}

#[test]
fn a_full_disk_costs_the_index_and_the_list_of_bad_samples_and_no_batch() {
    let dir = TestDir::new();
    let Some(disk) = TinyDisk::mount(dir.path("disk")) else {
        forebay_tests::skipped("this user may not mount a file system");
        return;
    };
    let images = dir.path("images");
    data::images(&images, 64, 4);
    for number in 0..8_u32 {
        std::fs::write(images.join(format!("class-000/{:08}.jpg", number * 4)), b"broken").unwrap();
    }
    let filling = std::fs::write(disk.0.join("filling"), vec![0; 128 << 10]);
    assert!(filling.is_err(), "the disk is full");
    let keys = format!(
        "order.epochs = 1\nbatch.last = \"short\"\nerrors = {{ on_bad_sample = \"substitute\", budget = 99, quarantine = \
         {:?} }}",
        disk.0.join("bad.jsonl")
    );
    let config = dir.config("train.toml", &data::image_config(&images, &keys));
    let text = std::fs::read_to_string(&config).unwrap();
    let index = format!("dataset.index = {:?}", disk.0.join("train.index"));
    let rest = text
        .lines()
        .filter(|line| !line.starts_with("dataset.index"))
        .collect::<Vec<_>>()
        .join("\n");
    std::fs::write(&config, format!("{index}\n{rest}\n")).unwrap();
    let outcome = program::run(dir.forebay(&["bench", "--json"]).arg(&config));
    assert_eq!(outcome.json()["samples"].as_u64(), Some(64), "{outcome:?}");
    assert!(
        outcome.stderr.contains("cannot write a bad sample to errors.quarantine"),
        "{outcome:?}"
    );
    assert!(outcome.stderr.contains("No space left on device"), "{outcome:?}");
}
