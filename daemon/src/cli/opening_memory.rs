//! The memory that the opening of a stream's datasets takes, and its limit.
//!
//! It is observed and not planned: an index, a listing and what a format unpacks while it is read are known only
//! afterwards.

use std::fs;

use forebay_config::Config;
use forebay_engine::machine_memory_left;
use forebay_observe::format_bytes;
use forebay_protocol::frames::{Fault, FaultKind};

/// The smallest default of the limit: if less is left, the plan of the stream says what does not fit.
const LEAST_DEFAULT: u64 = 256 << 20;

/// The opening of one stream.
#[derive(Debug, Clone)]
pub(super) struct OpeningMemory {
    stream: String,
    /// The private memory of this process when the opening began.
    before: u64,
    /// The most that the opening may take; `None`: no limit.
    limit: Option<u64>,
    /// The most that it was seen to take.
    most: u64,
}

impl OpeningMemory {
    /// Begins to observe; `own_memory`: the private memory of this process. `ranks`: the ranks of this machine, of which
    /// each has a daemon; `None`: a restart, which takes what its predecessor took.
    pub(super) fn begin(config: &Config, ranks: Option<u32>, own_memory: u64) -> Self {
        // The other half of the machine's memory is for the rings and rows that follow.
        let share = |ranks: u32| {
            let left = machine_memory_left()? / 2 / u64::from(ranks.max(1));
            Some(left.max(LEAST_DEFAULT))
        };
        let limit = config.dataset.opening_memory.or_else(|| share(ranks?));
        Self { stream: config.name.clone(), before: own_memory, limit, most: 0 }
    }

    /// Compares what the process has with the limit.
    ///
    /// # Errors
    /// The opening takes more.
    pub(super) fn look(&mut self, own_memory: u64) -> Result<(), Fault> {
        let taken = own_memory.saturating_sub(self.before);
        self.most = self.most.max(taken);
        let Some(limit) = self.limit.filter(|limit| taken > *limit) else { return Ok(()) };
        let message = format!(
            "opening the dataset of stream {} takes {}, more than the {} of dataset.opening_memory (by default half of what the \
             machine has left, divided among its ranks); raise it, or read fewer files or columns (dataset.limit, dataset.fields)",
            self.stream,
            format_bytes(taken),
            format_bytes(limit)
        );
        // A smaller ring would not help.
        Err(Fault { kind: FaultKind::Config, message })
    }

    /// What `forebay check` says of it.
    pub(super) fn line(&self) -> String {
        let limit = self.limit.map_or("any amount".to_owned(), format_bytes);
        format!(
            "{} at most while the dataset was opened, before the rest, of {limit} (dataset.opening_memory)",
            format_bytes(self.most)
        )
    }
}

/// The private memory of this process; 0: `/proc` does not say.
pub(super) fn own_memory() -> u64 {
    fs::read_to_string("/proc/self/statm").ok().and_then(|text| private_bytes(&text)).unwrap_or(0)
}

/// Of a line of `statm`: resident pages without those of files and shared memory.
fn private_bytes(statm: &str) -> Option<u64> {
    let mut pages = statm.split_whitespace().skip(1).map(str::parse::<u64>);
    let (resident, shared) = (pages.next()?.ok()?, pages.next()?.ok()?);
    let page = rustix::param::page_size() as u64;
    Some(resident.saturating_sub(shared).saturating_mul(page))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_pages_are_those_that_are_resident_and_not_shared() {
        let page = rustix::param::page_size() as u64;
        assert_eq!(private_bytes("900 700 300 1 0 50 0\n"), Some(400 * page));
        assert_eq!(private_bytes("900"), None);
        let before = own_memory();
        let held = std::hint::black_box(vec![1_u8; 64 << 20]);
        assert!(own_memory() >= before + (32 << 20), "{}", held.len());
    }

    #[test]
    fn opening_above_its_limit_ends_with_the_remedy() {
        let mut opening = OpeningMemory {
            stream: "train".to_owned(),
            before: 1 << 20,
            limit: Some(8 << 20),
            most: 0,
        };
        opening.look(9 << 20).unwrap();
        // Memory that was free before may be used.
        opening.look(0).unwrap();
        let fault = opening.look((9 << 20) + 1).unwrap_err();
        assert_eq!(fault.kind, FaultKind::Config);
        assert!(fault.message.contains("dataset.opening_memory"), "{}", fault.message);
        assert!(opening.line().starts_with("8 MiB"), "{}", opening.line());
    }
}
