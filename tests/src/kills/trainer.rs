//! SIGKILL of trainers: each one is resumed from its last checkpoint, and delivers from there what an undisturbed run does.
//!
//! What is killed: a trainer with a private daemon; `forebay run`, whose command dies with it; or all processes at once.
//! A kill may come at any instant, also before the trainer attached.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::reference::Reference;
use super::report::{Before, is_nothing, percentiles};
use super::{Plan, Random};
use crate::{TestDir, program, wait_until};

/// The longest time that a trainer lives after its first batch.
const LIFE: Duration = Duration::from_millis(25);
/// The longest time that a trainer lives which is killed without a look at what it does.
const BLIND_LIFE: Duration = Duration::from_millis(120);

/// What is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Victim {
    /// The trainer, which has a private daemon.
    Trainer,
    /// `forebay run`, whose command the trainer is.
    Run,
    /// The trainer and its daemon, or `forebay run` and its command, at once.
    All,
}

impl Victim {
    fn name(self) -> &'static str {
        match self {
            Self::Trainer => "trainer",
            Self::Run => "run",
            Self::All => "all",
        }
    }

    /// Whether this one is started by `forebay run`.
    fn runs(self, kill: u64) -> bool {
        self == Self::Run || (self == Self::All && kill % 2 == 1)
    }
}

struct Checked {
    batches: u64,
    repeated: u64,
    mismatches: u64,
    /// Where the next trainer goes on: the state's text, the epoch and the batch in it.
    checkpoint: Option<(String, u64, usize)>,
    /// From each kill until nothing of the trainer ran any more.
    to_end: Vec<Duration>,
}

/// Does it with the trainer's program; gives the report, whose `ok` says whether all was well.
pub fn run(victim: Victim, trainer: &Path, plan: Plan) -> Value {
    let dir = TestDir::new();
    let mut reference = Reference::new(&dir);
    let _ = reference.epoch(0).len();
    let before = Before::now(&dir);
    let mut random = Random::new(plan.seed);
    let mut checked =
        Checked { batches: 0, repeated: 0, mismatches: 0, checkpoint: None, to_end: Vec::new() };
    for kill in 0..plan.kills {
        let runs = victim.runs(kill);
        if random.below(8) == 0 {
            reference.forget_index();
        }
        let command = command(&dir, &reference.config, trainer, runs, checked.checkpoint.as_ref());
        let (lines, to_end) = live_and_die(command, victim, &dir, &mut random);
        checked.to_end.push(to_end);
        check(&lines, runs, &mut reference, &mut checked);
    }
    // A socket's file goes with the next start, when all that knew of it died at once, and half an index with the next scan.
    reference.forget_index();
    drop(reference);
    let config = dir.path("train.toml");
    let mut last = dir.forebay(&["run"]);
    assert!(program::run(last.arg(config).args(["--", "true"])).status.success());
    let left = before.left(&dir);
    json!({
        "mode": victim.name(), "kills": plan.kills, "seed": plan.seed, "batches": checked.batches,
        "repeated_since_checkpoint": checked.repeated, "mismatches": checked.mismatches,
        "seconds_to_end": percentiles(&mut checked.to_end), "left": left,
        "ok": checked.mismatches == 0 && checked.batches > 0 && is_nothing(&left),
    })
}

fn command(
    dir: &TestDir,
    config: &Path,
    trainer: &Path,
    runs: bool,
    checkpoint: Option<&(String, u64, usize)>,
) -> Command {
    let mut command = if runs {
        let mut command = dir.forebay(&["run"]);
        command.arg(config).arg("--").arg(trainer);
        command
    } else {
        dir.command(trainer)
    };
    if let Some((state, ..)) = checkpoint {
        command.arg(format!("state={state}"));
    }
    if runs {
        command.arg("use=default");
    } else {
        command.arg(format!("use={}", config.display()));
    }
    command.arg("train").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    command
}

/// Lets a trainer live for a while and kills it; gives its complete lines, and how long anything of it ran on.
fn live_and_die(
    mut command: Command,
    victim: Victim,
    dir: &TestDir,
    random: &mut Random,
) -> (Vec<Value>, Duration) {
    let mut child = command.spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut lines = Vec::new();
    // Every fourth dies without having been looked at: between fork and exec, while it attaches, whenever.
    if random.below(4) > 0 {
        // Its first lines, the first batch among them.
        for _ in 0..3 {
            lines.extend(read_line(&mut output));
        }
        std::thread::sleep(random.pause(LIFE));
    } else {
        std::thread::sleep(random.pause(BLIND_LIFE));
    }
    let others = if victim == Victim::All { dir.processes() } else { BTreeSet::new() };
    let killed = Instant::now();
    // One after the other without a pause, so that none reacts to the death of another.
    for process in others.iter().filter_map(|process| process.parse().ok()) {
        let _ = crate::signal(process, Signal::SIGKILL);
    }
    let _ = child.kill();
    program::wait(&mut child);
    while let Some(line) = read_line(&mut output) {
        lines.push(line);
    }
    // The trainer's daemon ends by itself; the reference's has the same environment as this process.
    let own = |process: &String| process.parse().is_ok_and(crate::is_running);
    wait_until("nothing of the trainer runs any more", || !dir.processes().iter().any(own));
    (lines, killed.elapsed())
}

/// A whole line; what was cut off by the kill does not count.
fn read_line(output: &mut impl BufRead) -> Option<Value> {
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    line.ends_with('\n').then(|| serde_json::from_str(&line).unwrap())
}

/// Compares the batches of one trainer's life, from its checkpoint on. `runs`: its daemon may have died before it.
fn check(lines: &[Value], runs: bool, reference: &mut Reference, checked: &mut Checked) {
    let (mut epoch, mut batch) = match &checked.checkpoint {
        Some((_, epoch, batch)) => (*epoch, *batch),
        None => (0, 0),
    };
    for line in lines {
        if let Some(error) = line.get("error").and_then(Value::as_str) {
            // The connection of `forebay run` closes a moment before the kernel kills its command.
            assert!(runs && error.contains("the daemon is gone"), "the trainer failed: {line}");
            continue;
        }
        let Some(digest) = line.get("digest").and_then(Value::as_str) else { continue };
        let expected = reference.epoch(epoch);
        let is_right = line["epoch"] == epoch
            && expected.get(batch).is_some_and(|expected| {
                expected.digest == digest && line["ids"] == json!(expected.ids)
            });
        if !is_right {
            checked.mismatches += 1;
            eprintln!("batch {batch} of epoch {epoch} differs from the undisturbed one: {line}");
        }
        checked.batches += 1;
        batch += 1;
        if batch == expected.len() {
            (epoch, batch) = (epoch + 1, 0);
        }
        // Not each line is a checkpoint: what comes after the last one is delivered again.
        if batch % 3 == 0 {
            let state = line["state"].as_str().unwrap().to_owned();
            checked.checkpoint = Some((state, epoch, batch));
        }
    }
    let (at_epoch, at_batch) = checked.checkpoint.as_ref().map_or((0, 0), |c| (c.1, c.2));
    if (at_epoch, at_batch) != (epoch, batch) {
        checked.repeated += 1;
    }
}
