//! SIGKILL of feeders, daemons and trainers, and feeders that join and drain, while batches flow: each trainer is resumed
//! from its last checkpoint, and what the trainers deliver is what an undisturbed run without feeders does.
//!
//! One to three feeders serve at any time, each at an address of its own: the file that the daemons read is replaced when
//! one joins, and when one drains. One that is killed stays listed until the next one joins.

use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::lives::{Course, Found, finish, live_and_die};
use super::reference::Reference;
use super::report::{Before, is_nothing, percentiles};
use super::{Plan, Random};
use crate::feeding::Feeder;
use crate::{TestDir, data, wait_until};

/// The last global batch of an epoch is short.
const SAMPLES: u64 = 202;
const MOST_FEEDERS: usize = 3;

/// The feeders that serve.
#[derive(Debug)]
struct Feeders {
    /// Where they run: not where the trainers do, of which nothing is left when one has ended.
    dir: TestDir,
    config: PathBuf,
    file: PathBuf,
    serving: Vec<Feeder>,
}

impl Feeders {
    /// Lists those that serve.
    fn list(&self) {
        let listed: String =
            self.serving.iter().map(|feeder| format!("{}\n", feeder.address)).collect();
        let new = self.file.with_extension("new");
        std::fs::write(&new, listed).unwrap();
        std::fs::rename(new, &self.file).unwrap();
    }

    fn join(&mut self) -> &'static str {
        self.serving.push(Feeder::start(&self.dir, &self.config, &["feed.rows=4"]));
        self.list();
        "feeder_joins"
    }

    fn drain(&mut self, random: &mut Random) -> &'static str {
        let drained = self.take(random);
        self.list();
        drained.signal(Signal::SIGTERM);
        wait_until("a drained feeder has ended", || !crate::is_running(drained.child.id()));
        "feeder_drains"
    }

    fn take(&mut self, random: &mut Random) -> Feeder {
        let count = self.serving.len() as u64;
        self.serving.swap_remove(usize::try_from(random.below(count)).unwrap())
    }

    /// Lets something happen to a feeder; one is left.
    fn disturb(&mut self, random: &mut Random) -> &'static str {
        match (self.serving.len(), random.below(3)) {
            (1, _) => self.join(),
            (2..MOST_FEEDERS, 0) => self.join(),
            (_, 1) => self.drain(random),
            _ => {
                // Dropping it kills it.
                drop(self.take(random));
                "feeder"
            }
        }
    }
}

/// Does it with the trainer's program; gives the report, whose `ok` says whether all was well.
pub fn run(trainer: &Path, plan: Plan) -> Value {
    let dir = TestDir::new();
    let images = dir.path("images");
    data::images(&images, SAMPLES, 4);
    std::fs::write(images.join("class-001/00000005.jpg"), "no image").unwrap();
    let mut feeders = Feeders {
        config: dir.config("feeder.toml", &text(&images, "")),
        file: dir.path("feeders.txt"),
        dir: TestDir::new(),
        serving: Vec::new(),
    };
    let before_feeders = Before::now(&feeders.dir);
    feeders.join();
    feeders.join();
    let mut courses = courses(&dir, &images, &feeders.file);
    for course in &mut courses {
        let _ = course.reference.epoch(0).len();
    }
    let before = Before::now(&dir);
    let mut random = Random::new(plan.seed);
    let mut found = Found::default();
    let mut life = 0;
    while found.kills.values().sum::<u64>() < plan.kills {
        let turn = life % courses.len();
        life += 1;
        let course = &mut courses[turn];
        let mut disturb = |random: &mut Random| Some(feeders.disturb(random));
        let lines = live_and_die(&dir, trainer, course, &mut disturb, &mut random, &mut found);
        course.check(&lines, &mut found);
    }
    let damaged = finish(&dir, &mut courses);
    drop(courses);
    let of_feeders = feeders.end(&before_feeders);
    let left = before.left(&dir);
    let is_right = found.mismatches + found.lost + found.repeated + damaged == 0;
    json!({
        "mode": "feeders", "kills": found.kills.values().sum::<u64>(), "kills_of": found.kills, "seed": plan.seed,
        "trainers": life, "ended_at_start": found.ended_at_start, "batches": found.batches, "epochs": found.epochs,
        "mismatches": found.mismatches, "lost": found.lost, "repeated": found.repeated,
        "seconds_to_end": percentiles(&mut found.to_end), "left": left, "left_of_feeders": of_feeders,
        "ok": is_right && found.batches > 0 && is_nothing(&left) && is_nothing(&of_feeders),
    })
}

fn text(images: &Path, keys: &str) -> String {
    let keys = format!(
        "ring.slots = 4\norder.seed = 11\nbatch.last = \"short\"\ndataset.outage_timeout = \"80s\"\n\
         errors.on_bad_sample = \"substitute\"\n{keys}"
    );
    data::image_config(images, &keys).replace("batch.size = 8", "batch.size = 4")
}

fn courses(dir: &TestDir, images: &Path, file: &Path) -> Vec<Course> {
    let course = |local: &'static str| {
        let reference =
            Reference::of(dir.config(&format!("without-{local}.toml"), &text(images, "")));
        let keys = format!("feeders = {{ file = {file:?}, local = {local:?} }}");
        let config = dir.config(&format!("{local}.toml"), &text(images, &keys));
        Course::new(local, config, None, reference)
    };
    ["never", "also", "last"].map(course).into()
}

impl Feeders {
    /// Drains those that serve; what is left of all.
    fn end(mut self, before: &Before) -> Value {
        let mut random = Random::new(0);
        while !self.serving.is_empty() {
            self.drain(&mut random);
        }
        for name in ["index", "index.jpeg"] {
            let _ = std::fs::remove_file(self.config.with_extension(name));
        }
        before.left(&self.dir)
    }
}
