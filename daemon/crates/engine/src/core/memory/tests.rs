use std::fs;
use std::path::Path;

use crate::core::memory::machine::{GroupFiles, VERSION_1, VERSION_2};
use crate::core::memory::*;

const MIB: u64 = 1 << 20;

fn write(folder: &Path, files: &[(&str, &str)]) {
    for (name, text) in files {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
}

fn plan(ring_bytes: u64, beside_bytes: u64) -> MemoryPlan {
    MemoryPlan {
        ring_bytes,
        rows_bytes: 0,
        fetch_bytes: 0,
        scratch_bytes: beside_bytes,
        carried_bytes: 0,
        workers_bytes: 0,
        decoders_bytes: 0,
        work_bytes: 0,
        jpeg_index_bytes: 0,
        window_bytes: 0,
        open_window_bytes: 0,
        ceiling_bytes: u64::MAX,
    }
}

/// The error for `ranks` such plans on a machine with these files.
fn refusal_of(files: &[(&str, &str)], plan: MemoryPlan, ranks: u32) -> Option<String> {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), files);
    let (proc, cgroup) = (folder.path().join("proc"), folder.path().join("cgroup"));
    let machine = Machine { proc: &proc, cgroup: &cgroup };
    let refused = plan.check_on("train.toml:7".to_owned(), ranks, &machine);
    refused.err().map(|error| error.to_string())
}

fn refusal(files: &[(&str, &str)], needed_bytes: u64) -> Option<String> {
    refusal_of(files, plan(needed_bytes, 0), 1)
}

#[test]
fn error_names_the_control_group_that_is_too_small_with_figures_and_remedy() {
    for (own, group, names) in [
        ("0::/pod/main\n", "cgroup/pod", VERSION_2),
        ("9:cpu,cpuacct:/\n4:memory:/pod/main\n", "cgroup/memory/pod", VERSION_1),
    ] {
        let [limit, used, cache, _]: GroupFiles = names;
        let name = |file: &str| format!("{group}/{file}");
        let files = [
            ("proc/meminfo".to_owned(), "MemTotal: 9 kB\nMemAvailable: 4194304 kB\n".to_owned()),
            ("proc/self/cgroup".to_owned(), own.to_owned()),
            (name(limit), "1073741824\n".to_owned()),
            (name(used), "805306368\n".to_owned()),
            (name("memory.stat"), format!("anon 5\n{cache}268435456\n")),
            (name("main/memory.stat"), String::new()),
        ];
        let files: Vec<_> = files.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
        assert_eq!(refusal(&files, 512 * MIB), None, "half of it is used, or could be given back");
        let message = refusal(&files, 512 * MIB + 1).unwrap();
        for part in ["train.toml:7", limit, "grants 512 MiB", "lower ring.slots"] {
            assert!(message.contains(part), "{part} in {message}");
        }
    }
}

/// Eight ranks of 110 MiB each in a group of 1,200 MiB: the memory of the first seven is not counted twice.
#[test]
fn last_rank_is_not_refused_for_memory_of_the_other_ranks() {
    for (own, names, group) in [
        ("0::/pod\n", VERSION_2, "cgroup/pod"),
        ("4:memory:/pod\n", VERSION_1, "cgroup/memory/pod"),
    ] {
        let [limit, used, _, shared] = names;
        let check = |running: u64, foreign_mib: u64, shared_mib: u64| {
            let mut files = vec![
                ("proc/self/cgroup".to_owned(), own.to_owned()),
                ("proc/self/comm".to_owned(), "forebay\n".to_owned()),
                (format!("{group}/{limit}"), (1_200 * MIB).to_string()),
                (
                    format!("{group}/{used}"),
                    ((running * 20 + foreign_mib + shared_mib) * MIB).to_string(),
                ),
                (format!("{group}/memory.stat"), format!("{shared}{}\n", shared_mib * MIB)),
                ("proc/7/comm".to_owned(), "python\n".to_owned()),
                ("proc/7/status".to_owned(), "RssAnon: 999999 kB\n".to_owned()),
            ];
            for other in 0..running {
                let process = format!("proc/{}", 4_000_000_000 + other);
                files.push((format!("{process}/comm"), "forebay\n".to_owned()));
                files.push((format!("{process}/status"), format!("RssAnon: {} kB\n", 20 * 1024)));
            }
            let files: Vec<_> = files.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
            refusal_of(&files, plan(80 * MIB, 30 * MIB), 8)
        };
        for running in 0..8 {
            assert_eq!(check(running, 300, running * 80), None, "{running} run");
        }
        assert_eq!(check(0, 300, 80), None, "the ring that a client has kept");
        assert!(check(0, 300, 120).is_some(), "others' shared memory");
        assert!(check(7, 330, 560).unwrap().contains("needs 880 MiB"), "and it is too much");
    }
}

#[test]
fn recording_must_fit_next_to_the_plan_of_some_stream() {
    let plan = |ceiling_bytes| MemoryPlan { ceiling_bytes, ..plan(60 * MIB, 40 * MIB) };
    let (small, roomy) = (plan(110 * MIB), plan(116 * MIB));
    let message = check_recording([small].into_iter(), 16 * MIB).unwrap_err();
    for part in ["16 MiB", "100 MiB", "110 MiB", "10 MiB", "ring.memory"] {
        assert!(message.contains(part), "{part} in {message}");
    }
    assert_eq!(check_recording([small, roomy].into_iter(), 16 * MIB), Ok(()));
}

#[test]
fn machine_without_memory_is_refused_and_one_without_files_is_trusted() {
    let files = [("proc/meminfo", "MemAvailable: 1024 kB\n"), ("proc/self/cgroup", "0::/\n")];
    assert!(refusal(&files, MIB + 1).unwrap().contains("the machine grants 1 MiB"));
    let unlimited = [("proc/self/cgroup", "0::/a\n"), ("cgroup/a/memory.max", "max\n")];
    assert_eq!(refusal(&unlimited, u64::MAX), None);
    assert_eq!(refusal(&[], u64::MAX), None);
}

#[test]
fn concurrently_unpacked_pages_are_bounded_by_the_granted_bytes() {
    let page_bytes = 170 * MIB;
    let reads =
        |open, fetch_bytes| bytes_of_reads((64, MIB + page_bytes), page_bytes, open, fetch_bytes);
    // Without blocks nothing is granted for a page.
    assert_eq!(reads(OpenBlocks::default(), 32 * MIB), 64 * 171 * MIB);
    let open = |bytes| OpenBlocks { bytes, largest: MIB, scratch_per_thousand: 2_000 };
    let planned = reads(open(340 * MIB), 372 * MIB);
    // Twice the budget, and the bytes that 64 threads keep besides a connection's buffers.
    assert_eq!(planned.div_ceil(MIB), 2 * 372 + 64 * (1 + 4) + 1);
    // Never more than without blocks.
    assert_eq!(reads(open(1 << 50), 1 << 50), 64 * 171 * MIB);
}
