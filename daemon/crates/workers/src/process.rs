//! The kernel's information about a worker's process.
//!
//! /proc may hide a process from the daemon: mounted with `hidepid`, it shows only processes that the reader may trace,
//! and a confined daemon may trace none. A file that is already open remains readable, and always belongs to the same
//! process: so the spawner, which is not confined, opens the files. If it cannot either, nothing is known about the
//! process; it does not count as dead then.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use rustix::io::Errno;

/// The files of a process that are read.
const FILES: [&str; 2] = ["stat", "schedstat"];
/// More than the size of either file.
const MAX_BYTES: usize = 4096;

/// Whether a process lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Life {
    Runs,
    /// Stopped by a signal or a debugger.
    IsStopped,
    /// A zombie, or reaped.
    HasEnded,
    /// The kernel does not report it.
    Unknown,
}

/// A snapshot of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Look {
    pub(crate) life: Life,
    /// Total time for which its main thread has waited for a core.
    pub(crate) waited_for_cores: Duration,
}

/// A process and its open files of /proc, if they could be opened.
#[derive(Debug)]
pub(crate) struct Process {
    number: u32,
    files: Option<[File; FILES.len()]>,
}

/// Opens the files that [`Process`] reads of a child that is not reaped; empty if /proc hides it.
pub(crate) fn open_files(child: u32) -> Vec<OwnedFd> {
    let open = |name: &&str| File::open(format!("/proc/{child}/{name}")).map(OwnedFd::from);
    FILES.iter().map(open).collect::<Result<_, _>>().unwrap_or_default()
}

impl Process {
    /// From the result of [`open_files`].
    pub(crate) fn new(number: u32, files: Vec<OwnedFd>) -> Self {
        let files = <[OwnedFd; FILES.len()]>::try_from(files).ok();
        Self { number, files: files.map(|files| files.map(File::from)) }
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    pub(crate) fn look(&self) -> Look {
        let stat = self.read(0);
        let life = match stat.map(|stat| state(&stat)) {
            Ok(Some('Z' | 'X' | 'x')) | Err(Errno::SRCH) => Life::HasEnded,
            Ok(Some('T' | 't')) => Life::IsStopped,
            Ok(Some(_)) => Life::Runs,
            Ok(None) | Err(_) => Life::Unknown,
        };
        let waited = self.read(1).ok();
        let waited = waited.and_then(|text| text.split_whitespace().nth(1)?.parse().ok());
        Look { life, waited_for_cores: Duration::from_nanos(waited.unwrap_or(0)) }
    }

    /// User and system time so far, including the children that it has waited for; `None` once it is reaped.
    pub(crate) fn cpu_time(&self) -> Option<Duration> {
        let stat = self.read(0).ok()?;
        let fields: Vec<&str> = after_name(&stat)?.split_whitespace().collect();
        let field = |place: usize| fields.get(place)?.parse::<u64>().ok();
        // utime, stime, cutime and cstime: fields 14 to 17 of proc(5); the first two fields are the number and the
        // name.
        let ticks = (11..15).map(field).sum::<Option<u64>>()?;
        let a_second = rustix::param::clock_ticks_per_second().max(1);
        let nanoseconds = u128::from(ticks) * 1_000_000_000 / u128::from(a_second);
        Some(Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX)))
    }

    fn read(&self, file: usize) -> Result<String, Errno> {
        let files = self.files.as_ref().ok_or(Errno::ACCESS)?;
        let mut bytes = [0; MAX_BYTES];
        let read = files[file].read_at(&mut bytes, 0);
        let count = read.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        Ok(String::from_utf8_lossy(&bytes[..count]).into_owned())
    }
}

/// The fields of /proc/PID/stat from the state on. The name before them, in parentheses, may contain anything.
pub(crate) fn after_name(stat: &str) -> Option<&str> {
    Some(stat.rsplit_once(") ")?.1)
}

fn state(stat: &str) -> Option<char> {
    after_name(stat)?.chars().next()
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use rustix::process::{Pid, Signal, kill_process};

    use super::*;

    fn started() -> (Child, Process) {
        let child = Command::new("sleep").arg("1000").spawn().unwrap();
        let process = Process::new(child.id(), open_files(child.id()));
        (child, process)
    }

    fn wait_for(process: &Process, life: Life) {
        while process.look().life != life {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn zombie_and_reaped_process_have_ended() {
        let (mut child, process) = started();
        wait_for(&process, Life::Runs);
        kill_process(Pid::from_child(&child), Signal::STOP).unwrap();
        wait_for(&process, Life::IsStopped);
        child.kill().unwrap();
        wait_for(&process, Life::HasEnded);
        assert!(process.cpu_time().is_some(), "a zombie's time is known");
        child.wait().unwrap();
        assert_eq!(process.look().life, Life::HasEnded);
        assert_eq!(process.cpu_time(), None);
    }

    #[test]
    fn hidden_process_does_not_count_as_dead() {
        let hidden = Process::new(std::process::id(), Vec::new());
        assert_eq!(hidden.look().life, Life::Unknown);
        assert_eq!(hidden.cpu_time(), None);
        assert!(open_files(u32::MAX).is_empty());
    }
}
