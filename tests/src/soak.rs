//! A daemon at full speed for a long time, with trainers that come and are killed: what it holds must stay flat.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::{Daemon, TestDir, data, wait_until};

/// What a soak showed. The halves are the second and the fourth quarter: the first is warm-up.
#[derive(Debug, Clone)]
pub struct Soak {
    /// How long it took.
    pub seconds: u64,
    /// Trainers that were killed in the middle of an epoch.
    pub trainers_killed: u64,
    /// Batches that the trainers told of.
    pub batches: u64,
    /// Resident bytes of the daemon without shared segments, between trainers: the medians of the second and the fourth
    /// quarter.
    pub resident_bytes: [u64; 2],
    /// The same where the daemon had so many threads: fetch threads come and go, and each has a stack and caches of the
    /// allocator. The number of threads that was met most often in both quarters.
    pub resident_bytes_at_equal_threads: ([u64; 2], u64),
    /// Open descriptors between trainers, likewise.
    pub descriptors: [u64; 2],
    /// Threads between trainers, likewise.
    pub threads: [u64; 2],
}

/// Lets the daemon work for so long.
///
/// # Panics
/// When the daemon dies or a trainer gets nothing.
#[must_use]
pub fn soak(trainer: &Path, duration: Duration) -> Soak {
    let dir = TestDir::new();
    data::images(&dir.path("images"), 400, 8);
    let config = dir.config("train.toml", &data::image_config(&dir.path("images"), ""));
    let mut daemon = Daemon::serve(&dir, &config);
    let begin = Instant::now();
    let mut figures = Vec::new();
    let (mut killed, mut batches) = (0, 0);
    while begin.elapsed() < duration {
        // Trainers live for 5 to 35 batches of 8; each third one goes in good order.
        let takes = 5 + killed % 31;
        let mut child = start_trainer(trainer, &dir, &daemon, takes, killed % 3 == 2);
        batches += count_batches(&mut child, takes);
        let _ = child.kill();
        let _ = child.wait();
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
    Soak {
        seconds: begin.elapsed().as_secs(),
        trainers_killed: killed,
        batches,
        resident_bytes: pair(0),
        resident_bytes_at_equal_threads: at_equal_threads(early, late),
        descriptors: pair(1),
        threads: pair(2),
    }
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

fn start_trainer(
    trainer: &Path,
    dir: &TestDir,
    daemon: &Daemon,
    takes: u64,
    ends_well: bool,
) -> Child {
    let take = format!("take={takes}");
    let end = if ends_well { "exit=0" } else { "hang" };
    dir.command(trainer)
        .args(["use=default", &take, end])
        .env("FOREBAY_SOCKET", &daemon.socket)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Reads until the trainer has told of all its batches.
fn count_batches(child: &mut Child, takes: u64) -> u64 {
    let mut batches = 0;
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        assert!(!line.contains("\"error\""), "{line}");
        batches += u64::from(line.contains("\"digest\""));
        if batches == takes {
            break;
        }
    }
    assert_eq!(batches, takes, "a trainer got too few batches");
    batches
}
