//! Samples whose work ends the daemon: found, named and treated as bad samples, whoever starts the daemon again.
//!
//! What ends it is a thread of the test, which looks at the daemon's page of the samples under work and sends SIGABRT, as
//! a defective decoder's `abort` would, whenever a certain sample is on it. Processing a sample takes 600 ms.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forebay_protocol::socket::Connection;
use forebay_tests::taken::{take, take_epoch};
use forebay_tests::{Taken, TestDir, program, skipped, test_dir, wait_until};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::Value;

const TRAINER: &str = env!("CARGO_BIN_EXE_forebay-test-trainer");
const SAMPLES: usize = 40;
/// Several threads, so that innocent samples are under work beside.
const STAGE: &str =
    "{ name = \"decode\", concurrency = 8, operations = [{ op = \"delay\", milliseconds = 600 }] }";
/// By group of threads: where its first cell lies in the page. A cell has a stream, an epoch and a sample.
const CELLS_AT: [u64; 2] = [(8 + 256 * 4) * 8, (8 + 256 * 4 + 512 * 8) * 8];
const CELL_BYTES: usize = 64;
const CELLS: usize = 16;

/// A sample in an epoch.
type Key = (u64, i64);

fn config(dir: &TestDir, on_bad_sample: &str) -> PathBuf {
    let keys = format!(
        "order.epochs = 2\nring.slots = 3\nerrors.on_bad_sample = {on_bad_sample:?}\nerrors.budget = 10\n\
         errors.quarantine = {:?}\n",
        dir.path("bad.jsonl")
    );
    dir.staged_stream(SAMPLES as u64, &keys, STAGE)
}

/// Two epochs that nothing disturbs, and the state after four batches.
fn undisturbed(config: &Path) -> (Vec<Taken>, String) {
    let mut loader = test_dir::loader(config, 0, 1).attach().unwrap();
    let mut batches = take(&mut loader, 4);
    let state = loader.state(0).unwrap().to_json();
    batches.extend((0..2).flat_map(|_| take_epoch(&mut loader)));
    (batches, state)
}

/// Three samples: the first row of the second batch after the state, the last row of the epoch, and one of the next.
fn killers(batches: &[Taken]) -> BTreeSet<Key> {
    BTreeSet::from([(0, batches[5].ids[0]), (0, batches[9].ids[3]), (1, batches[13].ids[2])])
}

/// Daemons of a test's folder, by process, with their pages.
struct Daemons<'a> {
    dir: &'a TestDir,
    seen: BTreeMap<u32, (OwnedFd, File)>,
    killed: BTreeSet<u32>,
    /// The daemon after one that SIGKILL ended is not ended so: each that is would leave the next one later to start, until the
    /// loader gives up.
    spared: BTreeSet<u32>,
    spares_next: bool,
}

impl Daemons<'_> {
    fn find(&mut self) {
        let found: BTreeSet<u32> =
            self.dir.processes().iter().filter_map(|name| name.parse().ok()).collect();
        self.seen.retain(|pid, _| found.contains(pid));
        for pid in found {
            if self.killed.contains(&pid) {
                continue;
            }
            let Some(page) = self.page_of(pid) else { continue };
            // While it starts, a daemon has its predecessor's page open.
            if let Some((_, seen)) = self.seen.get_mut(&pid) {
                *seen = page;
            } else if let Some(raw) = Pid::from_raw(i32::try_from(pid).unwrap())
                && let Ok(process) = pidfd_open(raw, PidfdFlags::empty())
            {
                self.seen.insert(pid, (process, page));
                if std::mem::take(&mut self.spares_next) {
                    self.spared.insert(pid);
                }
            }
        }
    }

    /// The page, as the daemon has it open: in memory, or in a file of the folder.
    fn page_of(&self, pid: u32) -> Option<File> {
        let is_page = |path: &Path| {
            let name = path.to_string_lossy();
            name.contains("memfd:forebay-work") || name.ends_with(".work")
        };
        let open = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
        // The trainer keeps it, too, and does not work.
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let command = String::from_utf8_lossy(&command).into_owned();
        if !command.contains("private") && !command.contains("serve") {
            return None;
        }
        let path = open
            .flatten()
            .map(|entry| entry.path())
            .find(|path| std::fs::read_link(path).is_ok_and(|target| is_page(&target)))?;
        File::open(path).ok()
    }

    fn kill(&mut self, signal: Signal, is_meant: impl Fn(&[Key]) -> bool) -> usize {
        let mut killed = Vec::new();
        for (pid, (process, page)) in &self.seen {
            if signal == Signal::KILL && self.spared.contains(pid) {
                continue;
            }
            let mut bytes = [0; CELLS_AT.len() * CELLS * CELL_BYTES];
            let mut groups = bytes.chunks_mut(CELLS * CELL_BYTES).zip(CELLS_AT);
            if !groups.all(|(cells, at)| page.read_exact_at(cells, at).is_ok()) {
                continue;
            }
            let word = |cell: &[u8], word: usize| {
                u64::from_ne_bytes(cell[word * 8..word * 8 + 8].try_into().unwrap())
            };
            let keys: Vec<Key> = bytes
                .chunks(CELL_BYTES)
                .filter(|cell| word(cell, 0) != 0)
                .map(|cell| (word(cell, 1), i64::try_from(word(cell, 2)).unwrap()))
                .collect();
            if is_meant(&keys) {
                // It may have ended meanwhile.
                let _ = pidfd_send_signal(process, signal);
                killed.push(*pid);
            }
        }
        self.seen.retain(|pid, _| !killed.contains(pid));
        let count = killed.len();
        self.spares_next |= signal == Signal::KILL && count > 0;
        // A process that is dying is seen for a while.
        self.killed.extend(killed);
        count
    }
}

/// Set also when a test panics, so that the threads beside it end.
struct SetWhenDropped<'a>(&'a AtomicBool);

impl Drop for SetWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Does something while daemons end whenever a killer is under work, and some by SIGKILL, at intervals. Gives what it gave,
/// and how many deaths killers caused.
fn among<T>(
    dir: &TestDir,
    killers: &BTreeSet<Key>,
    mut sigkills: usize,
    run: impl FnOnce() -> T,
) -> (T, usize) {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let deaths = scope.spawn(|| {
            let mut daemons = Daemons {
                dir,
                seen: BTreeMap::new(),
                killed: BTreeSet::new(),
                spared: BTreeSet::new(),
                spares_next: false,
            };
            let (mut deaths, mut looked, mut killed) = (0, None::<Instant>, Instant::now());
            while !is_over.load(Ordering::Relaxed) {
                if looked.is_none_or(|looked| looked.elapsed() > Duration::from_millis(20)) {
                    daemons.find();
                    looked = Some(Instant::now());
                }
                deaths += daemons
                    .kill(Signal::ABORT, |keys| keys.iter().any(|key| killers.contains(key)));
                if sigkills > 0 && killed.elapsed() > Duration::from_millis(900) {
                    // Also with a suspect alone under work.
                    sigkills -= daemons.kill(Signal::KILL, |keys| !keys.is_empty()).min(sigkills);
                    killed = Instant::now();
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            deaths
        });
        let end = SetWhenDropped(&is_over);
        let result = run();
        drop(end);
        (result, deaths.join().unwrap())
    })
}

/// A trainer's lines: batches with ids and digests, and an error.
fn trainer(dir: &TestDir, steps: &[&str]) -> (Vec<Value>, Option<String>) {
    // A dozen deaths, and the samples of each one alone. Each death without a batch doubles the delay of the next start: on a
    // busy machine half a dozen of them take longer than a loader's usual patience.
    let within = Duration::from_secs(600);
    let mut command = dir.command(Path::new(TRAINER));
    command.arg("timeout=500").args(steps);
    let finished = program::run_within(&mut command, within);
    let lines = finished.json_lines();
    let error = lines.iter().find_map(|line| line["error"].as_str()).map(str::to_owned);
    assert_eq!(error.is_none(), finished.status.success(), "{finished:?}");
    (lines.into_iter().filter(|line| line["digest"].is_string()).collect(), error)
}

/// The samples that are listed; each ends the daemon.
fn listed(dir: &TestDir, how: &str) -> BTreeSet<Key> {
    let text = std::fs::read_to_string(dir.path("bad.jsonl")).unwrap();
    let key = |line: &str| {
        let line: Value = serde_json::from_str(line).unwrap();
        let reason = line["reason"].as_str().unwrap();
        assert!(reason.starts_with(&format!("ends the daemon{how}")), "{line}");
        assert!(line["path"].as_str().unwrap().ends_with("samples.npy"), "{line}");
        (line["epoch"].as_u64().unwrap(), line["sample"].as_i64().unwrap())
    };
    text.lines().map(key).collect()
}

/// The same rows as without deaths, but for the killers.
fn check(found: &[Value], expected: &[Taken], killers: &BTreeSet<Key>) {
    assert_eq!(found.len(), expected.len());
    for (line, batch) in found.iter().zip(expected) {
        for (place, id) in batch.ids.iter().enumerate() {
            let is_same = line["ids"][place].as_i64() == Some(*id);
            assert_eq!(is_same, !killers.contains(&(batch.epoch, *id)), "{line}, {batch:?}");
        }
    }
}

/// Whether daemons can be looked into.
fn can_look() -> bool {
    let can = Path::new("/proc/self/fd").exists()
        && pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).is_ok();
    if !can {
        skipped("no /proc or no pidfds");
    }
    can
}

#[test]
fn a_sample_that_ends_the_daemon_is_substituted_and_kills_beside_it_change_no_batch() {
    if !can_look() {
        return;
    }
    let dir = TestDir::new();
    let config = config(&dir, "substitute");
    let (expected, state) = undisturbed(&config);
    let killers = killers(&expected);
    let target = format!("use={}", config.display());
    let whole = [&target, "epoch", "epoch"];
    let ((first, error), deaths) = among(&dir, &killers, 0, || trainer(&dir, &whole));
    assert_eq!(error, None);
    check(&first, &expected, &killers);
    assert_eq!(listed(&dir, " (signal 6)"), killers);
    // One that finds the suspects, and three alone.
    assert!(deaths >= 12, "{deaths} deaths for three samples");
    // A new process knows nothing of them and finds the same ones.
    let state = format!("state={state}");
    let rest = [&state, &target, "epoch=rest", "epoch"];
    let ((resumed, error), _) = among(&dir, &killers, 0, || trainer(&dir, &rest));
    assert_eq!((&resumed[..], error), (&first[4..], None));
    // Kills from outside, also while a suspect is alone, make no other sample bad.
    let ((killed, error), _) = among(&dir, &killers, 8, || trainer(&dir, &whole));
    assert_eq!((killed, error), (first, None));
    assert_eq!(listed(&dir, " (signal 6)"), killers);
}

#[test]
fn under_fail_the_trainer_gets_the_sample_that_ends_the_daemon_also_after_a_resume() {
    if !can_look() {
        return;
    }
    let dir = TestDir::new();
    let config = config(&dir, "fail");
    let (expected, state) = undisturbed(&config);
    let killers = killers(&expected);
    let target = format!("use={}", config.display());
    let ((before, error), _) =
        among(&dir, &killers, 0, || trainer(&dir, &[&target, "epoch", "epoch"]));
    check(&before, &expected[..5], &BTreeSet::new());
    let error = error.unwrap();
    let sample = format!("bad sample {} in epoch 0", expected[5].ids[0]);
    for part in [&sample, "ends the daemon (signal 6)", "samples.npy", "on_bad_sample"] {
        assert!(error.contains(part), "{error}");
    }
    let state = format!("state={state}");
    let ((rest, again), _) =
        among(&dir, &killers, 0, || trainer(&dir, &[&state, &target, "epoch=rest"]));
    check(&rest, &expected[4..5], &BTreeSet::new());
    assert_eq!(again, Some(error));
}

#[test]
fn under_serve_the_sample_is_found_by_the_daemons_that_a_service_manager_starts() {
    if !can_look() {
        return;
    }
    let dir = TestDir::new();
    let config = config(&dir, "substitute");
    let (expected, _) = undisturbed(&config);
    let killers = killers(&expected);
    let socket = dir.path("daemon.sock");
    let serve = || {
        let mut command = dir.forebay(&["serve".as_ref(), config.as_os_str()]);
        command.arg("--socket").arg(&socket).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().unwrap()
    };
    let is_over = AtomicBool::new(false);
    let mut daemon = serve();
    wait_until("the daemon listens", || Connection::connect(&socket).is_ok());
    let mut daemon = std::thread::scope(|scope| {
        // A service manager.
        let manager = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                if daemon.try_wait().unwrap().is_some() {
                    daemon = serve();
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            daemon
        });
        let end = SetWhenDropped(&is_over);
        let target = format!("use={}", socket.display());
        let ((found, error), _) =
            among(&dir, &killers, 0, || trainer(&dir, &[&target, "epoch", "epoch"]));
        assert_eq!(error, None);
        check(&found, &expected, &killers);
        drop(end);
        manager.join().unwrap()
    });
    assert_eq!(listed(&dir, ":"), killers);
    let has_page = || {
        let entries = std::fs::read_dir(dir.path("")).unwrap().flatten();
        entries.into_iter().any(|entry| entry.path().extension().is_some_and(|it| it == "work"))
    };
    assert!(has_page());
    forebay_tests::signal(daemon.id(), nix::sys::signal::Signal::SIGTERM);
    assert!(program::wait(&mut daemon).success());
    assert!(!has_page(), "a regular end removes the page");
}
