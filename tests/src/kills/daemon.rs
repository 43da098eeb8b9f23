//! SIGKILL of the daemon while its loader takes batches: every sample exactly once, the same bytes, the same order.
//!
//! A thread does the killing, so that the instants have nothing to do with what the loader is doing: most kills come a
//! few milliseconds after the one before was got over, one in five while its successor is just being started. With
//! decoders' processes two kills in three are of one of these.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use forebay_client::{Loader, Next};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::{Value, json};

use super::reference::Reference;
use super::report::{Before, is_nothing, percentiles};
use super::{Plan, Random};
use crate::{Taken, TestDir, test_dir, wait_until};

/// The longest pause between getting over a kill and the next one.
const PAUSE: Duration = Duration::from_millis(20);
/// The longest pause between two kills of which the second hits a daemon during its start.
const SHORT_PAUSE: Duration = Duration::from_millis(60);
/// A decoder is started by a process that the daemon has started.
const MAX_ANCESTORS: usize = 5;
/// Batches that a daemon may have published and not handed over, plus one.
const CERTAINLY_FRESH: usize = 5;

#[derive(Debug, Default)]
struct Board {
    /// The present daemon.
    target: Mutex<Option<(u32, Arc<OwnedFd>)>>,
    kills: AtomicU64,
    /// Those of decoders' processes among them.
    of_decoders: AtomicU64,
    /// All that were seen.
    decoders: Mutex<BTreeSet<u32>>,
    /// Batches since the last kill are not yet the next daemon's own.
    recovering: AtomicBool,
    last_kill: Mutex<Option<Instant>>,
}

fn is_decoder(process: u32) -> bool {
    let line = std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&line).contains("decode-media")
}

/// The present decoders' processes of this process's daemons.
fn decoders() -> BTreeSet<u32> {
    let is_own = |decoder: &u32| {
        let ancestors = std::iter::successors(Some(*decoder), |process| parent(*process));
        ancestors.take(MAX_ANCESTORS).any(|process| process == std::process::id())
    };
    let all = crate::names_in(Path::new("/proc"));
    let all = all.iter().filter_map(|name| name.parse::<u32>().ok());
    all.filter(|process| is_decoder(*process)).filter(is_own).collect()
}

/// Kills one of them, if there is one: at its start, at work, or while it waits.
fn kill_a_decoder(board: &Board, random: &mut Random) {
    let found = decoders();
    board.decoders.lock().unwrap().extend(&found);
    let place = usize::try_from(random.below(found.len() as u64)).unwrap_or(0);
    let Some(decoder) = found.iter().nth(place) else { return };
    let pid = i32::try_from(*decoder).ok().and_then(Pid::from_raw);
    let pidfd = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    // The number may be another process's by now.
    if let Some(pidfd) = pidfd.filter(|_| decoders().contains(decoder))
        && pidfd_send_signal(&pidfd, Signal::KILL).is_ok()
    {
        board.kills.fetch_add(1, Ordering::SeqCst);
        board.of_decoders.fetch_add(1, Ordering::SeqCst);
    }
}

fn kill_at_random(board: &Board, victim: Victim, plan: Plan) {
    let mut random = Random::new(plan.seed);
    while board.kills.load(Ordering::SeqCst) < plan.kills {
        let waits = random.below(5) > 0;
        while waits && board.recovering.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_micros(100));
        }
        std::thread::sleep(random.pause(if waits { PAUSE } else { SHORT_PAUSE }));
        if victim == Victim::Decoders && random.below(3) > 0 {
            kill_a_decoder(board, &mut random);
            continue;
        }
        let target = board.target.lock().unwrap().clone();
        let Some((daemon, pidfd)) = target else { continue };
        let mut last_kill = board.last_kill.lock().unwrap();
        if pidfd_send_signal(&*pidfd, Signal::KILL).is_ok() {
            *last_kill = Some(Instant::now());
            board.recovering.store(true, Ordering::SeqCst);
            board.kills.fetch_add(1, Ordering::SeqCst);
            // The next one may be shown already.
            let mut target = board.target.lock().unwrap();
            *target = target.take().filter(|(shown, _)| *shown != daemon);
        }
    }
}

/// Shows the killer the present daemon, once.
fn show(board: &Board, loader: &Loader, shown: &mut u32) {
    let Some(daemon) = loader.private_process().filter(|daemon| daemon != shown) else { return };
    let pid = i32::try_from(daemon).ok().and_then(Pid::from_raw);
    let pidfd = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    // The number may be another process's by now if the daemon is gone; a child's is not reused before it is reaped.
    if let Some(pidfd) = pidfd.filter(|_| is_child(daemon)) {
        *shown = daemon;
        *board.target.lock().unwrap() = Some((daemon, Arc::new(pidfd)));
    }
}

fn is_child(process: u32) -> bool {
    parent(process) == Some(std::process::id())
}

fn parent(process: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    status.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

/// What is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Victim {
    /// The daemon.
    Daemon,
    /// The daemon, and the processes that decode videos for it.
    Decoders,
}

/// Does it; gives the report, whose `ok` says whether all was well.
pub fn run(victim: Victim, plan: Plan) -> Value {
    let dir = TestDir::new();
    let mut reference = Reference::new(&dir);
    let _ = reference.epoch(0).len();
    let before = Before::now(&dir);
    let board = Arc::new(Board::default());
    let mut loader = test_dir::loader(reference.config.as_path(), 0, 1).attach().unwrap();
    let killer = std::thread::spawn({
        let board = Arc::clone(&board);
        move || kill_at_random(&board, victim, plan)
    });
    let (mut to_next, mut to_fresh) = (Vec::new(), Vec::new());
    let (mut mismatches, mut batches, mut epoch) = (0u64, 0u64, 0u64);
    let (mut shown, mut seen_kill, mut since_kill) = (0, None, 0);
    while !killer.is_finished() || board.recovering.load(Ordering::SeqCst) {
        let mut found = Vec::new();
        loader.begin_epoch().unwrap();
        loop {
            show(&board, &loader, &mut shown);
            match loader.try_next().unwrap() {
                Next::Batch(batch) => found.push(Taken::of(&batch)),
                Next::End => break,
                Next::Waiting => {
                    loader.wait().unwrap();
                    continue;
                }
            }
            let last_kill = *board.last_kill.lock().unwrap();
            if last_kill != seen_kill {
                (seen_kill, since_kill) = (last_kill, 0);
            }
            since_kill += 1;
            if let Some(kill) = seen_kill {
                match since_kill {
                    1 => to_next.push(kill.elapsed()),
                    CERTAINLY_FRESH => {
                        to_fresh.push(kill.elapsed());
                        board.recovering.store(false, Ordering::SeqCst);
                    }
                    _ => {}
                }
            }
            // A step of training.
            std::thread::sleep(Duration::from_micros(500));
        }
        batches += found.len() as u64;
        if found != reference.epoch(epoch) {
            mismatches += 1;
            eprintln!("epoch {epoch} differs from the undisturbed one");
        }
        epoch += 1;
    }
    killer.join().unwrap();
    let restarts = loader.restarts();
    drop(loader);
    drop(reference);
    let left = before.left(&dir);
    // They have no environment by which `left` could tell them.
    let decoders = board.decoders.lock().unwrap();
    let ended = || !decoders.iter().any(|process| is_decoder(*process));
    wait_until("no decoder's process is left", ended);
    let of_decoders = board.of_decoders.load(Ordering::SeqCst);
    // Without one it has killed daemons alone.
    let has_killed = victim == Victim::Daemon || of_decoders > 0;
    json!({
        "mode": if victim == Victim::Daemon { "daemon" } else { "decoders" },
        "kills": board.kills.load(Ordering::SeqCst), "of_decoders": of_decoders,
        "seed": plan.seed, "restarts": restarts,
        "epochs": epoch, "batches": batches, "mismatches": mismatches,
        "seconds_to_next_batch": percentiles(&mut to_next),
        "seconds_to_fresh_batch": percentiles(&mut to_fresh),
        "left": left, "ok": mismatches == 0 && is_nothing(&left) && has_killed,
    })
}
