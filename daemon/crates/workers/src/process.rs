//! What the kernel says of a worker's process, from /proc.

use std::fs;
use std::time::Duration;

/// A look at a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Look {
    /// It exists and is no zombie.
    pub(crate) is_alive: bool,
    /// It is stopped by a signal or a debugger.
    pub(crate) is_stopped: bool,
    /// How long its main thread has waited for a core so far.
    pub(crate) waited_for_cores: Duration,
}

/// Looks at a process.
pub(crate) fn look(process: u32) -> Look {
    let state = fs::read_to_string(format!("/proc/{process}/stat")).ok().and_then(|stat| {
        // Behind the name in parentheses, which may hold anything.
        stat.rsplit_once(") ")?.1.chars().next()
    });
    let waited = fs::read_to_string(format!("/proc/{process}/schedstat"))
        .ok()
        .and_then(|text| text.split_whitespace().nth(1)?.parse().ok())
        .unwrap_or(0);
    Look {
        is_alive: state.is_some_and(|state| !matches!(state, 'Z' | 'X' | 'x')),
        is_stopped: matches!(state, Some('T' | 't')),
        waited_for_cores: Duration::from_nanos(waited),
    }
}

/// The bytes that a process holds itself, resident: what no file and no arena backs.
pub(crate) fn resident_bytes(process: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{process}/statm")).ok()?;
    let mut pages = text.split_whitespace().skip(1).map(|pages| pages.parse::<u64>().ok());
    let (resident, shared) = (pages.next()??, pages.next()??);
    Some(resident.saturating_sub(shared).saturating_mul(rustix::param::page_size() as u64))
}
