//! SIGKILL of trainers, their daemons and the server behind which the data lies, in bad weather: each trainer is resumed
//! from its last checkpoint, and what the trainers deliver is what an undisturbed run over the folder on disk does.
//!
//! Trainers take turns in eight configurations: images, archives and an array of ranges, with a cache on disk and without
//! one, shuffled and in order. During a trainer's life its daemon and the server are killed at random instants, at last the trainer is.
//! The server comes back by itself after a while, on its port; it answers some requests wrongly or not at all.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::{Value, json};

use super::reference::Reference;
use super::report::{Before, is_nothing, percentiles};
use super::served::Served;
use super::{Plan, Random};
use crate::{DEADLINE, TestDir, data, names_in, program, wait_until};

/// Of each form of the data.
const SAMPLES: u64 = 202;
/// The longest pause before a kill that waits for batches since the one before, and before one that does not.
const PAUSE: Duration = Duration::from_millis(30);
const SHORT_PAUSE: Duration = Duration::from_millis(80);
/// The longest time that the server is away.
const AWAY: Duration = Duration::from_millis(250);
/// Kills in a trainer's life at most, with its own.
const KILLS_A_LIFE: u64 = 8;

/// One configuration and how far its trainers have come.
#[derive(Debug)]
struct Course {
    name: &'static str,
    config: PathBuf,
    cache: Option<PathBuf>,
    reference: Reference,
    /// Where the next trainer goes on: the state's text, the epoch and the batch in it.
    checkpoint: Option<(String, u64, usize)>,
    /// The ids of the epoch that the checkpoint is in, up to it.
    ids: Vec<i64>,
}

/// What was found.
#[derive(Debug, Default)]
struct Found {
    kills: BTreeMap<&'static str, u64>,
    batches: u64,
    epochs: u64,
    mismatches: u64,
    lost: u64,
    repeated: u64,
    /// Trainers whose daemon was killed before they had it: they end, and say so.
    ended_at_start: u64,
    /// From each trainer's kill until nothing of it ran any more.
    to_end: Vec<Duration>,
}

/// Does it with the trainer's and the server's program; gives the report, whose `ok` says whether all was well.
pub fn run(trainer: &Path, server: &Path, plan: Plan) -> Value {
    let dir = TestDir::new();
    let shown = dir.path("data");
    make_data(&shown);
    let served = Served::new(server, &shown, plan.seed);
    let mut courses = courses(&dir, &shown, served.port());
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
        if random.below(8) == 0 {
            let _ = std::fs::remove_file(course.config.with_extension("index"));
        }
        // What was fetched once would not be asked for any more.
        if let Some(cache) = course.cache.as_ref().filter(|_| random.below(3) == 0) {
            let _ = std::fs::remove_dir_all(cache);
        }
        let lines = live_and_die(&dir, trainer, course, &served, &mut random, &mut found);
        course.check(&lines, &mut found);
    }
    let damaged = finish(&dir, &mut courses);
    drop((courses, served));
    let left = before.left(&dir);
    let is_right = found.mismatches + found.lost + found.repeated + damaged == 0;
    json!({
        "mode": "remote", "kills": found.kills.values().sum::<u64>(), "kills_of": found.kills, "seed": plan.seed,
        "trainers": life, "ended_at_start": found.ended_at_start, "batches": found.batches, "epochs": found.epochs, "mismatches": found.mismatches,
        "lost": found.lost, "repeated": found.repeated, "damaged_entries": damaged,
        "seconds_to_end": percentiles(&mut found.to_end), "left": left,
        "ok": is_right && found.batches > 0 && is_nothing(&left),
    })
}

/// Images in class folders, one of them broken; the same in archives; an array of as many samples.
fn make_data(shown: &Path) {
    let images = shown.join("images");
    data::images(&images, SAMPLES, 4);
    forebay_synth::tar::pack_classes(&images, &shown.join("tars"), 50).unwrap();
    std::fs::write(images.join("class-001/00000005.jpg"), "no image").unwrap();
    data::stack(&shown.join("stack"), SAMPLES);
}

fn courses(dir: &TestDir, shown: &Path, port: u16) -> Vec<Course> {
    let keys = "ring.slots = 4\norder.seed = 11\nbatch.last = \"short\"\ndataset.outage_timeout = \"80s\"\n\
                errors.on_bad_sample = \"substitute\"";
    let storage = format!(
        "storage = {{ endpoint = \"http://127.0.0.1:{port}\", anonymous = true, stall = \"300ms\" }}"
    );
    // Of neighbours in order several come by one request.
    const COURSES: [(&str, &str, bool, bool); 8] = [
        ("images-cached", "images", true, true),
        ("tars-in-order", "tars", false, false),
        ("stack", "stack", true, false),
        ("stack-cached", "stack", true, true),
        ("images", "images", true, false),
        ("stack-in-order", "stack", false, false),
        ("tars-cached", "tars", true, true),
        ("tars", "tars", true, false),
    ];
    let course = |(name, data, is_shuffled, has_cache): (&'static str, &str, bool, bool)| {
        let keys = format!("order.shuffle = {is_shuffled}\n{keys}");
        let text = |root: &Path, keys: &str| match data {
            "stack" => data::stack_config(&root.join(data), keys),
            _ => {
                let text = data::image_config(&root.join(data), keys);
                let format = if data == "tars" { "webdataset" } else { "image-folder" };
                let text = text.replace("batch.size = 8", "batch.size = 4");
                format!("dataset.format = {format:?}\n{text}")
            }
        };
        let local = dir.config(&format!("local-{name}.toml"), &text(shown, &keys));
        let cache = has_cache.then(|| dir.path(&format!("kept-{name}")));
        let kept = cache.as_ref().map(|path| {
            format!("cache = {{ path = {:?}, keep_free = 0 }}", path.display().to_string())
        });
        let keys = [&keys, &storage, kept.as_deref().unwrap_or_default()].join("\n");
        let config = dir.config(&format!("{name}.toml"), &text(Path::new("s3://bucket"), &keys));
        let reference = Reference::of(local);
        Course { name, config, cache, reference, checkpoint: None, ids: Vec::new() }
    };
    COURSES.map(course).into()
}

/// The trainer's lines so far, as a thread of its own reads them.
#[derive(Debug, Default)]
struct Output {
    lines: Mutex<Vec<String>>,
    count: AtomicU64,
}

/// Lets a trainer live, with kills beside it, and kills it; gives its complete lines.
fn live_and_die(
    dir: &TestDir,
    trainer: &Path,
    course: &Course,
    served: &Served,
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
        let victim = if random.below(2) == 0 { "daemon" } else { "server" };
        // Four in five come after some batches since the one before, the others whenever.
        if random.below(5) > 0 {
            let enough = output.count.load(Ordering::SeqCst) + random.below(12);
            wait_for_lines(&mut child, &output, enough, course.name);
            std::thread::sleep(random.pause(PAUSE));
        } else {
            std::thread::sleep(random.pause(SHORT_PAUSE));
        }
        let away = random.pause(AWAY);
        let is_killed = match victim {
            "daemon" => kill_daemon_of(child.id()),
            _ => served.kill(away),
        };
        *found.kills.entry(victim).or_default() += u64::from(is_killed);
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
    /// Compares the batches of one trainer's life, from its checkpoint on.
    fn check(&mut self, lines: &[Value], found: &mut Found) {
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
fn finish(dir: &TestDir, courses: &mut [Course]) -> u64 {
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
