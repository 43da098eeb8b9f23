//! `forebay headspace` beside scripted trainers whose headspace is known: real daemons, real clients, real sleeps.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use forebay_client::Loader;
use forebay_tests::program::Finished;
use forebay_tests::{Daemon, TestDir, program};
use serde_json::Value;

/// What the loader takes for a batch: one thread sleeps so long for each of its samples.
const LOADING: Duration = Duration::from_millis(20);

/// A configuration whose one stage sleeps, and whose batches have one sample.
pub(crate) fn config(dir: &TestDir, more: &str) -> PathBuf {
    let milliseconds = LOADING.as_millis();
    let delay = format!("{{ op = \"delay\", milliseconds = {milliseconds} }}");
    let stage = format!("{{ name = \"slow\", concurrency = 1, operations = [{delay}] }}");
    let path = dir.staged_stream(400, &format!("order.epochs = 50\n{more}"), &stage);
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("batch.size = 4", "batch.size = 1")).unwrap();
    path
}

/// A trainer that takes so long for a step, until it is dropped.
pub(crate) struct Trainer {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Vec<Step>>>,
}

/// A batch as the trainer saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Step {
    epoch: u64,
    samples: u64,
    pub(crate) is_replayed: bool,
    /// When the trainer had the batch.
    at: Instant,
}

impl Trainer {
    pub(crate) fn start(mut loader: Loader, step: Duration, hold: usize) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let mut steps = Vec::new();
            let mut held = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                let Some(batch) = loader.next_batch().unwrap() else { continue };
                let after = batch.position_after();
                let is_replayed = batch.is_replayed();
                let at = Instant::now();
                steps.push(Step { epoch: after.epoch, samples: after.samples, is_replayed, at });
                held.push(batch);
                if held.len() > hold {
                    held.remove(0);
                }
                thread::sleep(step);
            }
            steps
        });
        Self { stop, thread: Some(thread) }
    }

    pub(crate) fn end(mut self) -> Vec<Step> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Trainer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(thread::panicking() || !matches!(ended, Some(Err(_))), "the trainer failed");
    }
}

fn headspace(dir: &TestDir, sockets: &[&Path], arguments: &[&str]) -> Finished {
    program::run(dir.forebay(&["headspace", "--json"]).args(arguments).args(sockets))
}

/// The batches of the stream as they were, without those shown again.
fn assert_nothing_is_lost(steps: &[Step], rows: u64) {
    let fresh: Vec<Step> = steps.iter().filter(|step| !step.is_replayed).copied().collect();
    for pair in fresh.windows(2) {
        let (before, after) = (pair[0], pair[1]);
        let follows = after.epoch == before.epoch && after.samples == before.samples + rows;
        let begins = after.epoch == before.epoch + 1 && after.samples <= rows;
        let ends = after.epoch == before.epoch + 1 && after.samples == 0;
        let from_start = before.samples == 0 && after.samples == rows;
        assert!(follows || begins || ends || from_start, "{before:?} was followed by {after:?}");
    }
}

/// What the steps themselves say: how much shorter those were whose batches were shown again.
fn seen_by_the_trainer(steps: &[Step]) -> f64 {
    const MEASURED: usize = 60;
    const WARM_UP: usize = 18;
    let first = steps.iter().position(|step| step.is_replayed).unwrap();
    let end = first + steps[first..].iter().take_while(|step| step.is_replayed).count();
    // As the command does it: blocks of steps, and the mean of the middle ones.
    let seconds = |from: usize, to: usize| {
        let blocks = steps[from..to.min(steps.len())].chunks_exact(MEASURED / 5);
        let mut blocks: Vec<f64> =
            blocks.map(|block| (block[block.len() - 1].at - block[0].at).as_secs_f64()).collect();
        blocks.sort_by(f64::total_cmp);
        let middle = &blocks[1..blocks.len() - 1];
        middle.iter().sum::<f64>() / middle.len() as f64
    };
    let with_data =
        [seconds(first - MEASURED, first), seconds(end + WARM_UP, end + WARM_UP + MEASURED)];
    1.0 - seconds(first + WARM_UP, end) / f64::midpoint(with_data[0], with_data[1])
}

/// A step would take `share` less if data were free. What the trainer sees itself is compared with: where other work slows the
/// machine down, a sleep takes longer than it should, and the share is another one.
fn told_within_three_points(share: f64) {
    let dir = TestDir::new();
    let daemon = Daemon::serve(&dir, &config(&dir, ""));
    // At no headspace the trainer is the slower one, by far.
    let step = if share == 0.0 { LOADING * 2 } else { LOADING.mul_f64(1.0 - share) };
    let mut last = (Value::Null, 0.0);
    // A burst of other work may fall into some measurements, not into each one.
    for _ in 0..12 {
        let trainer = Trainer::start(daemon.loader(0, 1).attach().unwrap(), step, 0);
        let done = headspace(
            &dir,
            &[&daemon.socket],
            &["--replay", "--yes", "--after", "90", "--steps", "90"],
        );
        let told = done.json();
        let steps = trainer.end();
        let replayed = steps.iter().filter(|step| step.is_replayed).count();
        assert_eq!(replayed, 90, "{told}");
        assert_nothing_is_lost(&steps, 1);
        let found = told["headspace"].as_f64().unwrap();
        let worth = told["worth"].as_str().unwrap();
        assert_eq!(worth == "yes", found > 0.1, "{told}");
        assert_eq!(worth == "no", found < 0.05, "{told}");
        assert!(told["hours_saved"].as_f64().unwrap() >= 0.0);
        let seen = seen_by_the_trainer(&steps);
        if (found - seen.max(0.0)).abs() < 0.03 && (seen - share).abs() < 0.2 {
            return;
        }
        last = (told, seen);
    }
    let (told, seen) = last;
    panic!("the headspace is {share}, the trainer saw {seen}, and what was told is {told}");
}

#[test]
fn a_headspace_is_told_from_none_to_45_percent() {
    thread::scope(|scope| {
        for share in [0.0, 0.05, 0.13, 0.45] {
            scope.spawn(move || told_within_three_points(share));
        }
    });
}

#[test]
fn a_private_loaders_daemon_is_found_and_watched_without_a_replay() {
    let dir = TestDir::new();
    let config = config(&dir, "");
    let mut loader = forebay_tests::test_dir::loader(config.as_path(), 0, 1).attach().unwrap();
    let stats: Value = serde_json::from_str(&loader.stats().unwrap()).unwrap();
    let socket = format!(
        "@forebay-{}/{}-train",
        nix::unistd::Uid::effective(),
        stats["pid"].as_u64().unwrap()
    );
    let trainer = Trainer::start(loader, LOADING / 4, 1);
    let page = dir.path("page.html");
    let arguments = ["--seconds", "1", "--report", page.to_str().unwrap()];
    let told = headspace(&dir, &[Path::new(&socket)], &arguments).json();
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("id=\"data\">{") && page.contains("\"kind\":\"headspace\""), "{page}");
    assert_eq!(told["replayed"], false);
    let share = told["headspace"].as_f64().unwrap();
    assert!(share > 0.4, "{told}");
    assert!(told["notes"][0].as_str().unwrap().contains("--replay"), "{told}");
    assert!(trainer.end().iter().all(|step| !step.is_replayed));
}

#[test]
fn all_ranks_replay_the_same_number_of_batches_from_the_same_place_and_some_alone_do_not() {
    let dir = TestDir::new();
    let daemon = Daemon::serve(&dir, &config(&dir, "ring.slots = 4\nring.hold = 1"));
    let ranks: Vec<Trainer> = (0..2)
        .map(|rank| {
            let loader = daemon.loader(rank, 2).attach().unwrap();
            Trainer::start(loader, Duration::from_millis(2), 1)
        })
        .collect();
    let done = headspace(
        &dir,
        &[&daemon.socket],
        &["--replay", "--yes", "--after", "20", "--steps", "20"],
    );
    let told = done.json();
    assert!(told["step_seconds"].as_f64().unwrap() > 0.0, "{told}");
    let seen: Vec<Vec<Step>> = ranks.into_iter().map(Trainer::end).collect();
    let replays = seen.iter().map(|steps| {
        assert_nothing_is_lost(steps, 2);
        let first = steps.iter().position(|step| step.is_replayed).unwrap();
        let count = steps.iter().filter(|step| step.is_replayed).count();
        assert!(steps[first..first + count].iter().all(|step| step.is_replayed));
        assert_eq!(count, 20);
        (steps[first - 1].epoch, steps[first - 1].samples)
    });
    let replays: Vec<(u64, u64)> = replays.collect();
    assert_eq!(replays[0], replays[1]);

    let alone = Trainer::start(daemon.loader(1, 3).attach().unwrap(), LOADING, 0);
    let refused = headspace(&dir, &[&daemon.socket], &["--replay", "--yes"]);
    assert!(!refused.status.success());
    assert!(refused.stderr.contains("rank 0, 2 is not among"), "{}", refused.stderr);
    assert!(alone.end().iter().all(|step| !step.is_replayed));
}

#[test]
fn a_killed_command_lets_the_trainer_have_its_data_again() {
    let dir = TestDir::new();
    let daemon = Daemon::serve(&dir, &config(&dir, ""));
    let trainer =
        Trainer::start(daemon.loader(0, 1).attach().unwrap(), Duration::from_millis(2), 0);
    let mut command = dir
        .forebay(&["headspace", "--replay", "--yes", "--after", "20", "--steps", "100000"])
        .arg(&daemon.socket)
        .spawn()
        .unwrap();
    let observed = || daemon.stats(&dir)["sessions"][0].clone();
    forebay_tests::wait_until("batches come again", || {
        let before = observed()["position"]["samples"].as_u64();
        thread::sleep(Duration::from_millis(100));
        observed()["position"]["samples"].as_u64() == before
    });
    program::kill(&mut command);
    let stands = observed()["position"].clone();
    forebay_tests::wait_until("the stream goes on", || observed()["position"] != stands);
    assert_nothing_is_lost(&trainer.end(), 1);
}

#[test]
fn what_cannot_be_measured_is_said() {
    let dir = TestDir::new();
    let daemon = Daemon::serve(&dir, &config(&dir, "session.allow_headspace = false"));
    let none = headspace(&dir, &[&daemon.socket], &[]);
    assert!(none.stderr.contains("no trainer is attached"), "{}", none.stderr);
    let trainer = Trainer::start(daemon.loader(0, 1).attach().unwrap(), LOADING, 0);
    let forbidden = headspace(&dir, &[&daemon.socket], &["--replay", "--yes"]);
    assert!(forbidden.stderr.contains("session.allow_headspace"), "{}", forbidden.stderr);
    // Nothing is asked where nobody can answer, and nothing is replayed.
    let unasked = headspace(&dir, &[&daemon.socket], &["--replay"]);
    assert!(!unasked.status.success(), "{unasked:?}");
    assert!(unasked.stderr.contains("changes the model's weights"), "{}", unasked.stderr);
    assert!(unasked.stderr.contains("pass --yes"), "{}", unasked.stderr);
    let few = headspace(&dir, &[&daemon.socket], &["--replay", "--yes", "--steps", "5"]);
    assert!(few.stderr.contains("--steps 5 is too small"), "{}", few.stderr);
    trainer.end();
}
