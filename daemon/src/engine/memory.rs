//! What a stream's daemon holds in memory, and whether the machine grants it.

use std::fs;
use std::path::Path;

use super::session::ring_bytes;
use super::stream::Stream;
use crate::config::CpuPolicy;

/// What a read may hold until its sample is worked, for each read that may be under way.
const FETCH_BYTES_PER_READ: u64 = 2 << 20;
/// The least that a fetch budget may be.
const LEAST_FETCH_BYTES: u64 = 8 << 20;
/// What a work thread's decoder, resizer and scratch memory are reckoned with: a decoded photograph of 12 megapixels
/// is 36 MB, one of ImageNet's half a megabyte.
const SCRATCH_BYTES_PER_THREAD: u64 = 16 << 20;
/// More threads than so many for each core hide no more sleep than these do.
const MOST_THREADS_PER_CORE: u32 = 16;

/// The budget of one stream's daemon with one session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryPlan {
    /// The data, publish and return segments.
    pub ring_bytes: u64,
    /// Samples between fetch and work.
    pub fetch_bytes: u64,
    /// Decoders and scratch memory of all threads.
    pub scratch_bytes: u64,
    /// `ring.memory`.
    pub ceiling_bytes: u64,
}

/// A plan that does not fit. Names the key to change.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// Beyond `ring.memory`.
    #[error(
        "{place}: the plan needs {} ({slots} slots of {}, {} for fetching, {} for {threads} threads), but ring.memory \
         is {}; raise ring.memory, or lower ring.slots or batch.size",
        in_words(plan.total_bytes()), in_words(*slot_bytes), in_words(plan.fetch_bytes), in_words(plan.scratch_bytes),
        in_words(plan.ceiling_bytes)
    )]
    Ceiling {
        /// Where `ring.memory` stands.
        place: String,
        /// The figures.
        plan: MemoryPlan,
        /// `ring.slots`.
        slots: u16,
        /// A slot's size.
        slot_bytes: u64,
        /// The work threads.
        threads: u32,
    },
    /// Beyond what the machine or the cgroup has.
    #[error(
        "{place}: the plan needs {}, but {grantor} grants {}; lower ring.slots or batch.size, or give more memory",
        in_words(*needed_bytes), in_words(*granted_bytes)
    )]
    Machine {
        /// Where `ring.memory` stands.
        place: String,
        /// All together, over all local ranks.
        needed_bytes: u64,
        /// `the machine` or the cgroup's file.
        grantor: String,
        /// What is left there.
        granted_bytes: u64,
    },
}

impl MemoryPlan {
    /// Plans a stream for so many work threads.
    #[must_use]
    pub fn of(stream: &Stream, threads: u32) -> Self {
        let ring_bytes = ring_bytes(stream).iter().sum();
        let ceiling_bytes = stream.config.ring.memory_bytes;
        let wanted = u64::from(stream.config.fetch.concurrency.get()) * FETCH_BYTES_PER_READ;
        // One thread of the second group at least, where there is one; the further ones take what is left over.
        let second_group = u32::from(stream.config.cpu.policy == CpuPolicy::Idle);
        let room = ceiling_bytes.saturating_sub(ring_bytes) / 2;
        Self {
            ring_bytes,
            fetch_bytes: wanted.min(room).max(LEAST_FETCH_BYTES),
            scratch_bytes: u64::from(threads + second_group) * SCRATCH_BYTES_PER_THREAD,
            ceiling_bytes,
        }
    }

    /// Threads of the second group and of the lowered one at most, for so many at the start: as many as `ring.memory`
    /// leaves room for beside the rings of all sessions that may attach.
    pub(crate) fn thread_bounds(&self, stream: &Stream, threads: u32, cores: u32) -> (u32, u32) {
        let sessions = u64::from(stream.config.listen.max_sessions);
        let taken = self
            .ring_bytes
            .saturating_mul(sessions)
            .saturating_add(self.fetch_bytes)
            .saturating_add(self.scratch_bytes);
        let spare = self.ceiling_bytes.saturating_sub(taken) / SCRATCH_BYTES_PER_THREAD;
        let spare = u32::try_from(spare).unwrap_or(u32::MAX);
        let rescue = threads.min(spare.saturating_add(1));
        let further = spare.saturating_sub(rescue - 1);
        let is_auto = stream.stages.iter().any(|stage| stage.is_auto);
        let most = cores.saturating_mul(MOST_THREADS_PER_CORE).max(threads);
        (rescue, if is_auto { most.min(threads.saturating_add(further)) } else { threads })
    }

    /// All together.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.ring_bytes.saturating_add(self.fetch_bytes).saturating_add(self.scratch_bytes)
    }

    /// Holds the plan against `ring.memory`, the cgroup and the machine, for `local_ranks` such daemons together.
    ///
    /// # Errors
    /// When it does not fit: with the figures and the key to change.
    pub fn check(
        &self,
        stream: &Stream,
        threads: u32,
        local_ranks: u32,
    ) -> Result<(), MemoryError> {
        let ring = &stream.config.ring;
        let place = ring.memory_place.to_string();
        if self.total_bytes() > self.ceiling_bytes {
            return Err(MemoryError::Ceiling {
                place,
                plan: *self,
                slots: ring.slots,
                slot_bytes: stream.layout.slot_bytes(),
                threads,
            });
        }
        let needed_bytes = self.total_bytes().saturating_mul(local_ranks.into());
        for (grantor, granted_bytes) in grants() {
            if needed_bytes > granted_bytes {
                return Err(MemoryError::Machine { place, needed_bytes, grantor, granted_bytes });
            }
        }
        Ok(())
    }
}

/// What is free, by who says so.
fn grants() -> Vec<(String, u64)> {
    let mut grants = Vec::new();
    let free = fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
        line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib * 1024)
    });
    grants.extend(free.map(|bytes| ("the machine".to_owned(), bytes)));
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let path = own.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/");
    let root = Path::new("/sys/fs/cgroup");
    for folder in root
        .join(path.trim_start_matches('/'))
        .ancestors()
        .take_while(|folder| folder.starts_with(root))
    {
        let number =
            |name: &str| fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
        if let (Some(limit), Some(used)) = (number("memory.max"), number("memory.current")) {
            // Page cache is given back under pressure.
            let cache = fs::read_to_string(folder.join("memory.stat")).ok().and_then(|text| {
                text.lines().find_map(|line| {
                    line.strip_prefix("inactive_file ")?.trim().parse::<u64>().ok()
                })
            });
            let left = limit.saturating_sub(used.saturating_sub(cache.unwrap_or(0)));
            grants.push((folder.join("memory.max").display().to_string(), left));
        }
    }
    grants
}

/// A size for a person, such as `1.2 GiB`.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "for a person")]
pub(crate) fn in_words(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 {
        format!("{bytes} B")
    } else {
        format!("{value:.1} {}", units[unit]).replace(".0 ", " ")
    }
}
