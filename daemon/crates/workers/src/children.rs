//! The spawner's children: its workers, and processes that they leave.
//!
//! The spawner is a subreaper: a process that a worker has started becomes the spawner's child when its parent ends,
//! whatever group or session it has entered. So all descendants of the spawner come from its workers. A descendant
//! belongs to a worker if it is below it, or if its environment has the worker's mark.
//!
//! States of a descendant, when its worker ends (left) or the spawner ends (right):
//! ```text
//!   Below the worker, or marked ──SIGKILL, before the worker is waited for──► Killed ◄── Below the spawner
//!            │                                                                 │ ▲
//!            │ hidden by /proc, or its environment was replaced                │ │ SIGKILL
//!            └──► its parent ends ──► Inherited, a child of the spawner ───────┼─┘
//!                                                                              ▼
//!                                                            Reaped, by its parent or by the spawner
//! ```
//! The signal comes before every wait because a killed worker may take seconds to end: it needs CPU time for that, and
//! its scheduling class may get none. Meanwhile nothing of it is inherited. A process with a pending SIGKILL starts no
//! other process. An inherited process without the mark of a live worker is killed if it was inherited at the end of a
//! worker, otherwise with the spawner.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use rustix::process::{PidfdFlags, kill_process, pidfd_open, pidfd_send_signal};

use crate::family::{MARK_VARIABLE, children_of, descendants_of, is_below, mark_of, memory_of};
use crate::process::open_files;

/// Maximum time for a killed worker and its descendants to end: a process in an uninterruptible call may take as long
/// as the call.
const END_LIMIT: Duration = Duration::from_secs(5);
/// The same at the spawner's own end, for all workers together.
const LAST_LIMIT: Duration = Duration::from_secs(2);
/// Polling period for a killed process.
const LOOK_PERIOD: Duration = Duration::from_millis(1);
/// The most times that the lists of children are read again; a family that never stops forking would hold the spawner.
const MAX_LISTS: u32 = 64;
/// An OOM score with which the kernel kills nearly every other process first when memory is short. Lowering it needs
/// privilege.
const SPARED: i32 = -900;

/// A started worker, with the open files of [`open_files`].
pub(crate) struct Started {
    pub(crate) process: u32,
    pub(crate) files: Vec<OwnedFd>,
}

/// The workers. Dropping it kills and reaps them, with all processes that they have started.
pub(crate) struct Workers {
    own: HashMap<u32, Worker>,
    started: u64,
    /// Processes that were inherited before the current request.
    known: HashSet<u32>,
    /// The original `oom_score_adj`, while it is lowered.
    score_before: Option<String>,
}

struct Worker {
    child: Child,
    mark: String,
}

impl Workers {
    pub(crate) fn new() -> Self {
        if let Err(error) = nix::sys::prctl::set_child_subreaper(true) {
            tracing::warn!(%error, "what workers start may outlive them");
        }
        Self { own: HashMap::new(), started: 0, known: HashSet::new(), score_before: spare() }
    }

    pub(crate) fn start(
        &mut self,
        mut command: Command,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Started, String> {
        self.reap();
        let Ok([socket, arena]) = <[OwnedFd; 2]>::try_from(descriptors) else {
            return Err("two descriptors are needed".to_owned());
        };
        self.started += 1;
        let mark = format!("{}-{}", std::process::id(), self.started);
        command.env(MARK_VARIABLE, &mark);
        command.stdin(Stdio::from(socket)).stdout(Stdio::from(arena)).process_group(0);
        // Workers keep the original score: they use the memory.
        let score = self.score_before.as_deref();
        let is_as_before = score.is_none_or(|before| write_score(before).is_ok());
        let spawned = if is_as_before { command.spawn() } else { Err(Errno::EACCES.into()) };
        self.score_before = if score.is_some() { spare() } else { None };
        match spawned {
            Ok(child) => {
                let process = child.id();
                self.own.insert(process, Worker { child, mark });
                Ok(Started { process, files: open_files(process) })
            }
            Err(error) => Err(format!(
                "the interpreter `{}` cannot be started: {error}",
                command.get_program().display()
            )),
        }
    }

    /// Kills a worker and the processes that it has started; returns how the worker ended, if it has ended.
    pub(crate) fn end(&mut self, process: u32) -> Option<(Option<i32>, Option<i32>)> {
        let end = Instant::now() + END_LIMIT;
        let mut worker = self.own.remove(&process)?;
        // A worker that has exited keeps its status until it is reaped. The processes that it has started are killed in
        // any case.
        kill_worker(&mut worker);
        kill_below(process, end, |_| true);
        kill_below(std::process::id(), end, |it| mark_of(it).as_ref() == Some(&worker.mark));
        let Some(status) = wait_until(&mut worker.child, end) else {
            self.own.insert(process, worker);
            return None;
        };
        let is_of_worker = |child: u32| {
            let mark = mark_of(child);
            let is_of = |worker: &Worker| mark.as_ref() == Some(&worker.mark);
            is_of(&worker) || !(self.known.contains(&child) || self.own.values().any(is_of))
        };
        self.end_inherited(is_of_worker, end);
        self.reap();
        Some((status.signal(), status.code()))
    }

    /// The bytes that a worker holds; `None` if unknown.
    pub(crate) fn memory(&mut self, process: u32, arena_bytes: u64, limit: u64) -> Option<u64> {
        self.reap();
        self.own.get(&process).and_then(|_| memory_of(process, arena_bytes, limit))
    }

    /// Kills all workers and all their descendants, and reaps those that end within the limit.
    fn end_all(&mut self, limit: Duration) {
        let end = Instant::now() + limit;
        self.own.drain().for_each(|(_, mut worker)| kill_worker(&mut worker));
        kill_below(std::process::id(), end, |_| true);
        // The workers are children like any other now.
        self.end_inherited(|_| true, end);
    }

    /// Kills inherited processes that `is_meant` selects, and processes inherited from them, until none is left.
    fn end_inherited(&self, is_meant: impl Fn(u32) -> bool, end: Instant) {
        loop {
            let meant: Vec<u32> = self.inherited().into_iter().filter(|it| is_meant(*it)).collect();
            if meant.is_empty() {
                return;
            }
            for process in meant {
                send(process, |process| kill(process, Signal::SIGKILL));
            }
            if Instant::now() > end {
                return;
            }
            std::thread::sleep(LOOK_PERIOD);
        }
    }

    /// Live children other than workers; ended ones are reaped. The children of a child that ends between the reads of
    /// two threads' lists move from one to the other unseen, so lists with a child that was reaped are read again.
    fn inherited(&self) -> Vec<u32> {
        let mut found = Vec::new();
        for _ in 0..MAX_LISTS {
            found = children_of(std::process::id());
            found.retain(|child| !self.own.contains_key(child));
            let mut has_reaped = false;
            found.retain(|child| {
                let state = reap(*child);
                has_reaped |= state == Reaping::Reaped;
                state == Reaping::Lives
            });
            if !has_reaped {
                break;
            }
        }
        found
    }

    fn reap(&mut self) {
        self.known = self.inherited().into_iter().collect();
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.end_all(LAST_LIMIT);
    }
}

/// A worker is the leader of a process group, and may have left it.
fn kill_worker(worker: &mut Worker) {
    // Until it is reaped, no other process or group has its number.
    send(worker.child.id(), |group| killpg(group, Signal::SIGKILL));
    let _ = worker.child.kill();
}

/// Kills the selected descendants of a process of this family, which itself stays. It does not wait for their ends.
/// Every descendant gets a signal; after `end`, not all of those that start others without end.
fn kill_below(process: u32, end: Instant, is_meant: impl Fn(u32) -> bool) {
    let mut killed = HashSet::new();
    let mut was_empty = false;
    for lists in 1.. {
        let mut found = descendants_of(process);
        found.retain(|it| is_meant(*it) && killed.insert(*it));
        // Lists miss the children of a process that ends while they are read, as killed ones do; and until they are
        // killed, processes may start others.
        if found.is_empty() && was_empty {
            return;
        }
        was_empty = found.is_empty();
        found.into_iter().for_each(kill_descendant);
        if Instant::now() > end && lists >= MAX_LISTS {
            return;
        }
    }
}

/// Kills a descendant, whose parent may reap it at any time: another process may get its number.
fn kill_descendant(process: u32) {
    let Some(pid) = i32::try_from(process).ok().and_then(rustix::process::Pid::from_raw) else {
        return;
    };
    let opened = pidfd_open(pid, PidfdFlags::empty());
    if !is_below(process, std::process::id()) {
        return;
    }
    // An error of the signal: it has ended, or has changed its user.
    let _ = match opened {
        Ok(pidfd) => pidfd_send_signal(pidfd, rustix::process::Signal::KILL),
        Err(rustix::io::Errno::SRCH) => Ok(()),
        // A sandbox may refuse the call.
        Err(_) => kill_process(pid, rustix::process::Signal::KILL),
    };
}

/// How a child ended, if it ends before `end`.
pub(crate) fn wait_until(child: &mut Child, end: Instant) -> Option<ExitStatus> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < end => std::thread::sleep(LOOK_PERIOD),
            _ => return None,
        }
    }
}

/// What became of a listed process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reaping {
    Lives,
    Reaped,
    /// Reaped before, or listed by the /proc of another PID namespace.
    NoChild,
}

/// Reaps a child if it has ended.
fn reap(child: u32) -> Reaping {
    let Ok(number) = i32::try_from(child) else { return Reaping::NoChild };
    match waitpid(Pid::from_raw(number), Some(WaitPidFlag::WNOHANG)) {
        Ok(WaitStatus::StillAlive) | Err(Errno::EINTR) => Reaping::Lives,
        Ok(_) => Reaping::Reaped,
        Err(_) => Reaping::NoChild,
    }
}

fn send(process: u32, signal: impl Fn(Pid) -> nix::Result<()>) {
    if let Ok(process) = i32::try_from(process) {
        // A process that has ended, or has changed its user, cannot be killed.
        let _ = signal(Pid::from_raw(process));
    }
}

/// Makes the kernel spare this small process when memory is short: without it no worker can be started. Returns the
/// previous score, if the change is permitted.
fn spare() -> Option<String> {
    let before = fs::read_to_string(SCORE).ok()?.trim().to_owned();
    let is_higher = before.parse::<i32>().is_ok_and(|score| score > SPARED);
    (is_higher && write_score(&SPARED.to_string()).is_ok()).then_some(before)
}

const SCORE: &str = "/proc/self/oom_score_adj";

fn write_score(score: &str) -> std::io::Result<()> {
    fs::write(SCORE, score)
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;

    /// Set in a test's process that is a spawner: a spawner kills all children of its process, so it has its own.
    const ROLE: &str = "FOREBAY_TEST_SPAWNER";
    /// A worker: below it a process in a session of its own, below that one another, and so on. The last replaces its
    /// environment. Each writes its number.
    const CHAIN: &str = "
import os, sys
folder, length = sys.argv[1], int(sys.argv[2])
note = lambda: open(os.path.join(folder, str(os.getpid())), 'w').close()
note()
for left in reversed(range(length)):
    if os.fork() > 0:
        break
    os.setsid()
    note()
    if left == 0:
        os.execve('/bin/sleep', ['sleep', '1000'], {})
os.execv('/bin/sleep', ['sleep', '1000'])
";
    const LENGTH: usize = 5;

    fn start_chain(workers: &mut Workers, folder: &Path) -> u32 {
        std::fs::create_dir(folder).unwrap();
        let mut command = Command::new("python3");
        command.args(["-c", CHAIN]).arg(folder).arg(LENGTH.to_string());
        let files = (0..2).map(|_| fs::File::open("/dev/null").unwrap().into()).collect();
        let process = workers.start(command, files).unwrap().process;
        wait_for("the chain to start", || {
            chain(folder).iter().filter(|it| sleeps(**it)).count() > LENGTH
        });
        process
    }

    /// The processes of a chain, which may have ended.
    fn chain(folder: &Path) -> Vec<u32> {
        let entries = fs::read_dir(folder).unwrap().flatten();
        entries.map(|entry| entry.file_name().to_str().unwrap().parse().unwrap()).collect()
    }

    fn sleeps(process: u32) -> bool {
        let command = fs::read(format!("/proc/{process}/cmdline"));
        command.is_ok_and(|command| command.starts_with(b"sleep\0"))
    }

    fn wait_for(what: &str, condition: impl Fn() -> bool) {
        let end = Instant::now() + Duration::from_secs(60);
        while !condition() {
            assert!(Instant::now() < end, "{what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Runs `spawner` in another process, by running the test of this name again there.
    fn in_a_process(
        test: &str,
        spawner: impl Fn(&mut Workers, &Path),
    ) -> Option<tempfile::TempDir> {
        if let Some(folder) = std::env::var_os(ROLE).map(PathBuf::from) {
            let mut workers = Workers::new();
            spawner(&mut workers, &folder);
            std::mem::forget(workers);
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &format!("children::tests::{test}")])
            .env(ROLE, folder.path())
            // Survivors would keep a pipe open.
            .stderr(Stdio::null())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        Some(folder)
    }

    #[test]
    fn all_descendants_are_killed_without_waiting_for_their_parents_to_end() {
        let folder = in_a_process(
            "all_descendants_are_killed_without_waiting_for_their_parents_to_end",
            |workers, folder| {
                start_chain(workers, &folder.join("0"));
                start_chain(workers, &folder.join("1"));
                workers.end_all(Duration::ZERO);
            },
        );
        let Some(folder) = folder else { return };
        for name in ["0", "1"] {
            let started = chain(&folder.path().join(name));
            assert_eq!(started.len(), LENGTH + 1);
            wait_for("descendants survive", || !started.iter().any(|it| sleeps(*it)));
        }
    }

    #[test]
    fn end_of_a_worker_spares_the_descendants_of_another() {
        let folder =
            in_a_process("end_of_a_worker_spares_the_descendants_of_another", |workers, folder| {
                let [ended, other] = ["0", "1"].map(|name| folder.join(name));
                let process = start_chain(workers, &ended);
                start_chain(workers, &other);
                assert_eq!(workers.end(process), Some((Some(9), None)));
                wait_for("descendants survive", || !chain(&ended).iter().any(|it| sleeps(*it)));
                std::thread::sleep(Duration::from_millis(50));
                assert!(chain(&other).iter().all(|it| sleeps(*it)));
                workers.end_all(Duration::from_secs(30));
                assert!(children_of(std::process::id()).is_empty());
            });
        let Some(folder) = folder else { return };
        assert!(!chain(&folder.path().join("1")).iter().any(|it| sleeps(*it)));
    }
}
