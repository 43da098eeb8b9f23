//! SIGKILL of trainers of one load: those that are left, and those that come back with their last state, have the batches
//! of an undisturbed run.
//!
//! Four trainers share the rows of one stream. One of the last three is killed a random while after all have had a
//! batch since the kill before, and comes back under its name; each third kill is of two at once.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};

use super::reference::Reference;
use super::report::{Before, is_nothing};
use super::shared::{Board, Trainer, mismatches_of, start};
use super::{Plan, Random};
use crate::{TestDir, program, wait_until};

/// The trainers; the first is never killed.
const TRAINERS: usize = 4;
/// The longest pause between the next batches after a kill and the next one.
const PAUSE: Duration = Duration::from_millis(40);

/// A trainer that comes back after each death.
struct Immortal<'a> {
    number: usize,
    start: &'a dyn Fn(usize, Option<&str>) -> Trainer,
    now: Trainer,
    lines: Vec<Value>,
}

impl Immortal<'_> {
    /// Kills it, and gathers what it has printed.
    fn kill(&mut self) {
        let _ = self.now.child.kill();
        program::wait(&mut self.now.child);
        let reader = std::mem::replace(&mut self.now.reader, std::thread::spawn(Vec::new));
        self.lines.extend(reader.join().unwrap());
    }

    fn come_back(&mut self) {
        let state = self.lines.iter().rev().find_map(|line| line["state"].as_str());
        self.now = (self.start)(self.number, state);
    }
}

fn command(
    dir: &TestDir,
    config: &Path,
    trainer: &Path,
    number: usize,
    state: Option<&str>,
) -> Command {
    let mut command = dir.command(trainer);
    command.args(["share=".to_owned(), format!("trainer=trainer {number}")]);
    command.args(state.map(|state| format!("state={state}")));
    command.args([format!("use={}", config.display()), "train".to_owned()]);
    command
}

/// Does it with the trainer's program; gives the report, whose `ok` says whether all was well.
pub fn run(trainer: &Path, plan: Plan) -> Value {
    let dir = TestDir::new();
    let mut reference = Reference::new(&dir);
    let config = reference.config.clone();
    let before = Before::now(&dir);
    let board: &'static Board = Box::leak(Box::default());
    let start = |number, state: Option<&str>| {
        start(command(&dir, &config, trainer, number, state), number, board)
    };
    let mut trainers: Vec<_> = (0..TRAINERS)
        .map(|number| Immortal {
            number,
            start: &start,
            now: start(number, None),
            lines: Vec::new(),
        })
        .collect();
    let counts = || board.batches.each_ref().map(|count| count.load(Ordering::SeqCst));
    let all_move = || {
        let before = counts();
        wait_until("every trainer has a batch", || {
            counts().iter().zip(before).take(TRAINERS).all(|(now, before)| *now > before)
        });
    };
    let mut random = Random::new(plan.seed);
    let mut kills = 0;
    while kills < plan.kills {
        all_move();
        std::thread::sleep(random.pause(PAUSE));
        let first = 1 + usize::try_from(random.below(TRAINERS as u64 - 1)).unwrap_or(0);
        let second = (first % (TRAINERS - 1)) + 1;
        let victims = if kills % 3 == 2 { vec![first, second] } else { vec![first] };
        victims.iter().for_each(|victim| trainers[*victim].kill());
        victims.iter().for_each(|victim| trainers[*victim].come_back());
        kills += victims.len() as u64;
    }
    all_move();
    let mut mismatches = 0;
    for trainer in &mut trainers {
        trainer.kill();
        mismatches += mismatches_of(&trainer.lines, &mut reference);
    }
    drop(reference);
    let left = before.left(&dir);
    json!({
        "mode": "load", "kills": kills, "seed": plan.seed, "clients": TRAINERS,
        "batches": counts().iter().sum::<u64>(), "mismatches": mismatches, "left": left,
        "ok": mismatches == 0 && is_nothing(&left),
    })
}
