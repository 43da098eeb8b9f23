//! A daemon at full speed for a long time, with trainers that come and are killed: what it holds must stay flat.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::{Daemon, TestDir, program, wait_until};

/// Lets the daemon work for so long; gives what it held. Pairs are medians of the second and the fourth quarter, between
/// trainers: the first quarter is warm-up. Memory is without shared segments, and also compared at equal numbers of
/// threads: fetch threads come and go, and each has a stack and caches of the allocator.
pub fn soak(trainer: &Path, duration: Duration) -> Value {
    let dir = TestDir::new();
    let config = dir.image_stream(400, 8, "");
    let mut daemon = Daemon::serve(&dir, &config);
    let begin = Instant::now();
    let mut figures = Vec::new();
    let (mut killed, mut batches) = (0, 0);
    while begin.elapsed() < duration {
        // Trainers live for 5 to 35 batches of 8; each third one goes in good order.
        let takes = 5 + killed % 31;
        let mut command = dir.command(trainer);
        command.env("FOREBAY_SOCKET", &daemon.socket).stderr(Stdio::null());
        command.args(["use=default", &format!("take={takes}")]);
        if killed % 3 == 2 {
            command.arg("exit=0");
        }
        let (mut child, told) = program::start_until_it_hangs(&mut command);
        let taken = told.iter().filter(|line| line["digest"].is_string()).count() as u64;
        assert_eq!(taken, takes, "a trainer got too few batches: {told:?}");
        batches += taken;
        program::kill(&mut child);
        killed += 1;
        wait_until("the session has ended", || daemon.mapped_segments() == 0);
        assert!(daemon.is_running(), "the daemon died");
        figures.push([
            daemon.resident_bytes(),
            daemon.descriptors() as u64,
            daemon.threads() as u64,
        ]);
    }
    let quarter = figures.len().div_ceil(4);
    let median = |figure: usize, from: usize| {
        let part = figures.iter().skip(from).take(quarter);
        let mut values: Vec<u64> = part.map(|figures| figures[figure]).collect();
        values.sort_unstable();
        values.get(values.len() / 2).copied().unwrap_or(0)
    };
    let pair = |figure| [median(figure, quarter), median(figure, figures.len() - quarter)];
    let early = &figures[quarter.min(figures.len())..(2 * quarter).min(figures.len())];
    let late = &figures[figures.len() - quarter..];
    let (at_equal_threads, equal_threads) = at_equal_threads(early, late);
    json!({
        "seconds": begin.elapsed().as_secs(), "trainers_killed": killed, "batches": batches,
        "resident_bytes": pair(0), "resident_bytes_at_equal_threads": at_equal_threads,
        "equal_threads": equal_threads, "descriptors": pair(1), "threads": pair(2),
    })
}

/// Medians of resident bytes at the number of threads that both parts have met most often, and that number.
fn at_equal_threads(early: &[[u64; 3]], late: &[[u64; 3]]) -> ([u64; 2], u64) {
    let at = |part: &[[u64; 3]], threads: u64| {
        let here = part.iter().filter(|figures| figures[2] == threads);
        let mut bytes: Vec<u64> = here.map(|figures| figures[0]).collect();
        bytes.sort_unstable();
        bytes
    };
    let counts: BTreeSet<u64> = early.iter().map(|figures| figures[2]).collect();
    let both = |threads: &u64| at(early, *threads).len().min(at(late, *threads).len());
    let threads = counts.into_iter().max_by_key(both).unwrap_or(0);
    let median = |bytes: Vec<u64>| bytes.get(bytes.len() / 2).copied().unwrap_or(0);
    ([median(at(early, threads)), median(at(late, threads))], threads)
}
