//! SIGKILL of the daemon that eight trainers share: each goes on, with the batches of an undisturbed run.
//!
//! A thread a trainer reads what it prints. A kill comes a random while after every trainer has had a batch since the
//! kill before, one in five while the next daemon is just being started.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::reference::Reference;
use super::report::{Before, is_nothing, percentiles};
use super::{Plan, Random};
use crate::{TestDir, program, wait_until};

/// The trainers.
const RANKS: u32 = 8;
/// The longest pause between getting over a kill and the next one.
const PAUSE: Duration = Duration::from_millis(40);

/// What the trainers have printed.
#[derive(Debug, Default)]
pub(super) struct Board {
    /// By trainer: batches so far.
    pub(super) batches: [AtomicU64; RANKS as usize],
    /// From each kill to the next batch of each trainer.
    pub(super) to_next: Mutex<Vec<Duration>>,
    pub(super) last_kill: Mutex<Option<Instant>>,
}

/// A trainer and the lines that it prints.
pub(super) struct Trainer {
    pub(super) child: Child,
    pub(super) reader: JoinHandle<Vec<Value>>,
}

fn command(dir: &TestDir, config: &Path, trainer: &Path, rank: u32) -> Command {
    let mut command = dir.command(trainer);
    for (name, number) in
        [("RANK", rank), ("WORLD_SIZE", RANKS), ("LOCAL_RANK", rank), ("LOCAL_WORLD_SIZE", RANKS)]
    {
        command.env(name, number.to_string());
    }
    command.args(["share=", &format!("use={}", config.display()), "train"]);
    command
}

/// Starts a trainer, by its number on the board.
pub(super) fn start(mut command: Command, number: usize, board: &'static Board) -> Trainer {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    let reader = std::thread::spawn(move || read(output, number, board));
    Trainer { child, reader }
}

fn read(output: impl BufRead, number: usize, board: &Board) -> Vec<Value> {
    let mut seen_kill = None;
    let mut lines = Vec::new();
    for line in output.lines() {
        // The last line of a killed trainer may be cut off.
        let Ok(Ok(line)) = line.map(|line| serde_json::from_str::<Value>(&line)) else { break };
        if line.get("digest").is_some() {
            let kill = *board.last_kill.lock().unwrap();
            if let Some(kill) = kill.filter(|_| kill != seen_kill) {
                seen_kill = Some(kill);
                board.to_next.lock().unwrap().push(kill.elapsed());
            }
            board.batches[number].fetch_add(1, Ordering::SeqCst);
        }
        lines.push(line);
    }
    lines
}

/// Kills daemons until the plan is done and every trainer has had a batch since.
fn kill_at_random(dir: &TestDir, board: &Board, plan: Plan) {
    let mut random = Random::new(plan.seed);
    let counts = || board.batches.each_ref().map(|count| count.load(Ordering::SeqCst));
    let all_moved = |before: [u64; RANKS as usize]| {
        wait_until("every trainer has a batch", || {
            counts().iter().zip(before).all(|(now, before)| *now > before)
        });
    };
    all_moved([0; RANKS as usize]);
    let mut before = counts();
    for _ in 0..plan.kills {
        if random.below(5) > 0 {
            // What was published before the kill is taken first.
            all_moved(before.map(|count| count + 4));
        }
        std::thread::sleep(random.pause(PAUSE));
        before = counts();
        wait_until("there is a daemon to kill", || {
            let mut last_kill = board.last_kill.lock().unwrap();
            let is_killed = dir
                .shared_daemons()
                .into_iter()
                .any(|daemon| crate::signal(daemon, Signal::SIGKILL));
            if is_killed {
                *last_kill = Some(Instant::now());
            }
            is_killed
        });
    }
    all_moved(before.map(|count| count + 4));
}

/// Does it with the trainer's program; gives the report, whose `ok` says whether all was well.
pub fn run(trainer: &Path, plan: Plan) -> Value {
    let dir = TestDir::new();
    let reference = Reference::new(&dir);
    let config = reference.config.clone();
    drop(reference);
    let before = Before::now(&dir);
    let board: &'static Board = Box::leak(Box::default());
    let trainers =
        (0..RANKS).map(|rank| start(command(&dir, &config, trainer, rank), rank as usize, board));
    let trainers: Vec<_> = trainers.collect();
    kill_at_random(&dir, board, plan);
    let mut mismatches = 0;
    for (rank, mut trainer) in (0..RANKS).zip(trainers) {
        let _ = trainer.child.kill();
        program::wait(&mut trainer.child);
        let lines = trainer.reader.join().unwrap();
        mismatches += mismatches_of(&lines, &mut Reference::of_rank(config.clone(), rank, RANKS));
    }
    let left = before.left(&dir);
    let mut to_next = board.to_next.lock().unwrap().clone();
    json!({
        "mode": "shared", "kills": plan.kills, "seed": plan.seed, "clients": RANKS,
        "batches": board.batches.iter().map(|count| count.load(Ordering::SeqCst)).sum::<u64>(),
        "mismatches": mismatches, "seconds_to_next_batch": percentiles(&mut to_next), "left": left,
        "ok": mismatches == 0 && is_nothing(&left),
    })
}

/// The batches of a trainer that are not those of an undisturbed run at their place.
pub(super) fn mismatches_of(lines: &[Value], reference: &mut Reference) -> u64 {
    let (mut epoch, mut batch, mut mismatches) = (0, 0, 0);
    for line in lines {
        assert!(line.get("error").is_none(), "the trainer failed: {line}");
        let Some(digest) = line.get("digest").and_then(Value::as_str) else { continue };
        let expected = reference.epoch(epoch);
        if line["epoch"] != epoch || expected.get(batch).is_none_or(|one| one.digest != digest) {
            mismatches += 1;
            eprintln!("batch {batch} of epoch {epoch} differs from the undisturbed one: {line}");
        }
        batch += 1;
        if batch == expected.len() {
            (epoch, batch) = (epoch + 1, 0);
        }
    }
    mismatches
}
