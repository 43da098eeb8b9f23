//! Lives of trainers that end with SIGKILL, each resumed from its last checkpoint, beside kills of their daemons and of
//! what their rows come from; and the comparison of what they deliver with an undisturbed run.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::{Value, json};

use super::Random;
use super::reference::Reference;
use crate::{DEADLINE, TestDir, names_in, program, wait_until};

/// The longest pause before a kill that waits for batches since the one before, and before one that does not.
const PAUSE: Duration = Duration::from_millis(30);
const SHORT_PAUSE: Duration = Duration::from_millis(80);
/// Kills in a trainer's life at most, with its own.
const KILLS_A_LIFE: u64 = 8;

/// One configuration and how far its trainers have come.
#[derive(Debug)]
pub struct Course {
    pub(super) name: &'static str,
    pub(super) config: PathBuf,
    pub(super) cache: Option<PathBuf>,
    pub(super) reference: Reference,
    /// Where the next trainer goes on: the state's text, the epoch and the batch in it.
    pub(super) checkpoint: Option<(String, u64, usize)>,
    /// The ids of the epoch that the checkpoint is in, up to it.
    pub(super) ids: Vec<i64>,
}

/// What was found.
#[derive(Debug, Default)]
pub struct Found {
    pub(super) kills: BTreeMap<&'static str, u64>,
    pub(super) batches: u64,
    pub(super) epochs: u64,
    pub(super) mismatches: u64,
    pub(super) lost: u64,
    pub(super) repeated: u64,
    /// Trainers whose daemon was killed before they had it: they end, and say so.
    pub(super) ended_at_start: u64,
    /// From each trainer's kill until nothing of it ran any more.
    pub(super) to_end: Vec<Duration>,
}

/// The trainer's lines so far, as a thread of its own reads them.
#[derive(Debug, Default)]
struct Output {
    lines: Mutex<Vec<String>>,
    count: AtomicU64,
}

/// Lets a trainer live, with kills of its daemon and of others beside it, and kills it; gives its complete lines.
pub fn live_and_die(
    dir: &TestDir,
    trainer: &Path,
    course: &Course,
    kill_other: &mut dyn FnMut(&mut Random) -> Option<&'static str>,
    random: &mut Random,
    found: &mut Found,
) -> Vec<Value> {
    let mut command = dir.command(trainer);
    if let Some((state, ..)) = &course.checkpoint {
        command.arg(format!("state={state}"));
    }
    command.arg(format!("use={}", course.config.display())).arg("train");
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let stdout = BufReader::new(child.stdout.take().unwrap());
    let output = Arc::new(Output::default());
    let reader = std::thread::spawn({
        let output = Arc::clone(&output);
        move || {
            // What was cut off by the kill does not count.
            for line in stdout.split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line).into_owned();
                output.lines.lock().unwrap_or_else(PoisonError::into_inner).push(line);
                output.count.fetch_add(1, Ordering::SeqCst);
            }
        }
    });
    for _ in 0..random.below(KILLS_A_LIFE) {
        let is_daemon = random.below(2) == 0;
        // Four in five come after some batches since the one before, the others whenever.
        if random.below(5) > 0 {
            let enough = output.count.load(Ordering::SeqCst) + random.below(12);
            wait_for_lines(&mut child, &output, enough, course.name);
            std::thread::sleep(random.pause(PAUSE));
        } else {
            std::thread::sleep(random.pause(SHORT_PAUSE));
        }
        let killed = match is_daemon {
            true => kill_daemon_of(child.id()).then_some("daemon"),
            false => kill_other(random),
        };
        if let Some(victim) = killed {
            *found.kills.entry(victim).or_default() += 1;
        }
    }
    // Every fourth dies without having been looked at: between fork and exec, while it attaches, whenever.
    if random.below(4) > 0 {
        let enough = output.count.load(Ordering::SeqCst) + random.below(40);
        wait_for_lines(&mut child, &output, enough, course.name);
    }
    std::thread::sleep(random.pause(PAUSE));
    let killed = Instant::now();
    // One that has ended by itself has said why.
    *found.kills.entry("trainer").or_default() += u64::from(child.try_wait().unwrap().is_none());
    let _ = child.kill();
    program::wait(&mut child);
    reader.join().unwrap();
    let own = |process: &String| process.parse().is_ok_and(crate::is_running);
    wait_until("nothing of the trainer runs any more", || !dir.processes().iter().any(own));
    found.to_end.push(killed.elapsed());
    let lines = output.lines.lock().unwrap_or_else(PoisonError::into_inner);
    lines.iter().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Waits until the trainer has written so many lines, or has ended.
fn wait_for_lines(child: &mut Child, output: &Output, lines: u64, name: &str) {
    let begun = Instant::now();
    while output.count.load(Ordering::SeqCst) < lines && child.try_wait().unwrap().is_none() {
        let seconds = DEADLINE.as_secs();
        assert!(begun.elapsed() < DEADLINE, "no batch of {name} came within {seconds} s");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Kills the daemon that a trainer has now. False: it has none.
fn kill_daemon_of(trainer: u32) -> bool {
    let is_child = |process: &str| {
        let status = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        let rest = status.rsplit_once(") ").map(|(_, rest)| rest.split(' '));
        rest.is_some_and(|mut rest| {
            !matches!(rest.next(), Some("Z" | "X")) && rest.next() == Some(&trainer.to_string())
        })
    };
    names_in(Path::new("/proc")).iter().any(|process| {
        let pid = process.parse().ok().and_then(Pid::from_raw).filter(|_| is_child(process));
        let pidfd = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        // Its number may be another's by now.
        pidfd
            .filter(|_| is_child(process))
            .is_some_and(|it| pidfd_send_signal(&it, Signal::KILL).is_ok())
    })
}

impl Course {
    /// Whose trainers begin at the beginning of what the reference has.
    pub(super) fn new(
        name: &'static str,
        config: PathBuf,
        cache: Option<PathBuf>,
        reference: Reference,
    ) -> Self {
        Self { name, config, cache, reference, checkpoint: None, ids: Vec::new() }
    }

    /// Compares the batches of one trainer's life, from its checkpoint on.
    pub(super) fn check(&mut self, lines: &[Value], found: &mut Found) {
        let (mut epoch, mut batch) = match &self.checkpoint {
            Some((_, epoch, batch)) => (*epoch, *batch),
            None => (0, 0),
        };
        let mut ids = self.ids.clone();
        let has_attached = lines.iter().any(|line| line.get("attached").is_some());
        for line in lines {
            if let Some(error) = line.get("error").and_then(Value::as_str) {
                if !has_attached && error.contains("its process was ended by signal 9") {
                    found.ended_at_start += 1;
                    continue;
                }
                found.mismatches += 1;
                eprintln!("{}: the trainer failed: {line}", self.name);
                continue;
            }
            let Some(digest) = line.get("digest").and_then(Value::as_str) else { continue };
            let expected = self.reference.epoch(epoch);
            let is_right = line["epoch"] == epoch
                && expected.get(batch).is_some_and(|expected| {
                    expected.digest == digest && line["ids"] == json!(expected.ids)
                });
            if !is_right {
                found.mismatches += 1;
                let name = self.name;
                eprintln!(
                    "{name}: batch {batch} of epoch {epoch} differs from the undisturbed one: {line}"
                );
            }
            found.batches += 1;
            ids.extend(line["ids"].as_array().into_iter().flatten().filter_map(Value::as_i64));
            batch += 1;
            if batch == expected.len() {
                let expected = expected.iter().flat_map(|batch| batch.ids.iter().copied());
                let (lost, repeated) = differences(expected, std::mem::take(&mut ids));
                (found.lost, found.repeated) = (found.lost + lost, found.repeated + repeated);
                found.epochs += 1;
                (epoch, batch) = (epoch + 1, 0);
            }
            // Not each line is a checkpoint: what comes after the last one is delivered again.
            if batch % 3 == 0 {
                let state = line["state"].as_str().unwrap().to_owned();
                self.checkpoint = Some((state, epoch, batch));
                self.ids.clone_from(&ids);
            }
        }
    }
}

/// How many ids are missing, and how many are too many.
fn differences(expected: impl Iterator<Item = i64>, found: Vec<i64>) -> (u64, u64) {
    let mut counts: BTreeMap<i64, i64> = BTreeMap::new();
    expected.for_each(|id| *counts.entry(id).or_default() += 1);
    found.into_iter().for_each(|id| *counts.entry(id).or_default() -= 1);
    let sum = |sign: i64| counts.values().map(|count| (sign * count).max(0).cast_unsigned()).sum();
    (sum(1), sum(-1))
}

/// Looks for damaged entries of the caches and takes caches and indexes away, which are no remains. Half an index goes with
/// the next scan, and a socket's file with the next start.
pub(super) fn finish(dir: &TestDir, courses: &mut [Course]) -> u64 {
    let mut damaged = 0;
    for course in courses {
        let index = course.config.with_extension("index");
        let _ = std::fs::remove_file(&index);
        let mut last = dir.forebay(&["run"]);
        let last = program::run(last.arg(&course.config).args(["--", "true"]));
        assert!(last.status.success(), "{last:?}");
        if let Some(cache) = &course.cache {
            let mut verify = dir.forebay(&["cache"]);
            let verified = program::run(verify.arg(&course.config).arg("verify"));
            damaged += u64::from(!verified.stdout.contains(" 0 damaged"));
            let _ = std::fs::remove_dir_all(cache);
        }
        for name in ["index", "index.jpeg"] {
            let _ = std::fs::remove_file(course.config.with_extension(name));
        }
    }
    damaged
}
