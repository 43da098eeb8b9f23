//! Plans the memory of a stream's daemon, and checks it against the machine.

mod defaults;
mod machine;

use std::net::IpAddr;

use crate::ground::budgets::ByteBudgets;
use crate::ground::datasets::OpenBlocks;
use crate::ground::spare_buffers::MAX_KEPT_BYTES;
use crate::ground::stream::{Stage, Stream};
use forebay_config::{CpuPolicy, FeedersConfig};
use forebay_observe::format_bytes;
use forebay_order::Selection;
use forebay_storage::KEPT_PAGE_BYTES as KEPT_OF_PAGES;
use forebay_transform::{HelperPlan, KEPT_BYTES};
use machine::{Grant, Machine};

/// Bytes that a read may hold until its sample is processed, per concurrent read.
const FETCH_BYTES_PER_READ: u64 = 2 << 20;
/// The most bytes, and the fraction of the memory that is left (1/n), that are planned for further reads of blocks.
const MORE_BLOCK_BYTES: u64 = 128 << 20;
const MORE_BLOCK_SHARE: u64 = 4;
/// Minimal fetch budget.
const MIN_FETCH_BYTES: u64 = 8 << 20;
/// Memory for a fetch thread's stack.
const BYTES_PER_FETCH_THREAD: u64 = 64 << 10;
/// Memory that a sample may use in its work thread without bytes of the work budget: a photograph of ImageNet needs 1
/// MB, one of 12 megapixels 40 MB.
const COVERED_BYTES: u64 = 8 << 20;
/// The resulting maximal memory of a work thread's decoder, resizer and scratch buffers.
const SCRATCH_BYTES_PER_THREAD: u64 = KEPT_BYTES as u64 + COVERED_BYTES;
/// Bytes per thread that rows may hold between two stages, if there are several stages: some images of ImageNet.
const CARRIED_BYTES_PER_THREAD: u64 = 4 << 20;
/// The fraction of the fetch bytes (1/n) that spare buffers may take.
const SPARE_SHARE: u64 = 4;
/// Bytes of answers of all feeders that may wait to be read.
const FEEDER_BYTES: u64 = 128 << 20;
/// Bytes of the buffers that are kept for messages of feeders.
pub const FEEDER_BUFFER_BYTES: u64 = 16 << 20;
/// The most of one feeder.
const MAX_FEEDER_WINDOW: u64 = 16 << 20;
/// More threads per core hide no more sleep.
const MAX_THREADS_PER_CORE: u32 = 16;

/// The memory plan of one stream's daemon with one session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryPlan {
    /// The data, publish and return segments.
    pub ring_bytes: u64,
    /// Bookkeeping for the ring's rows, in addition to their data.
    pub rows_bytes: u64,
    /// Samples between fetch and work, and the open blocks of an order in blocks.
    pub fetch_bytes: u64,
    /// Decoders and scratch memory of all threads.
    pub scratch_bytes: u64,
    /// Minimal bytes that rows hold between two stages.
    pub carried_bytes: u64,
    /// Maximal private memory of the workers of Python stages, in addition to `ring.memory`: observed, not enforced.
    pub workers_bytes: u64,
    /// Maximal private memory of the processes that decode videos, in addition to `ring.memory`: enforced in each of
    /// them, for the largest picture that the limits allow. And what each keeps of the memory that it shares.
    pub decoders_bytes: u64,
    /// Memory for samples that need more than a thread's own: half of what remains of `ring.memory` after the rings of
    /// all sessions that may attach and the shared parts. The other half is for more threads.
    pub work_bytes: u64,
    /// Memory of the JPEG index's lookup table; 0 if `ring.memory` has no room for it: then nothing is learned.
    pub jpeg_index_bytes: u64,
    /// `share.window`: rows kept for other trainers of the stream; 0 unless configured.
    pub window_bytes: u64,
    /// Instead, if several sessions may attach: a ring's size, at most half of what remains of `ring.memory` as for
    /// `work_bytes`.
    pub open_window_bytes: u64,
    /// `ring.memory`, configured or chosen.
    pub ceiling_bytes: u64,
}

/// A plan that does not fit; the message names the key to change.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The plan exceeds `ring.memory`.
    #[error(
        "{place}: the plan needs {} ({slots} slots of {}, {} for their rows, {} for fetching, {} for {threads} threads), but \
         ring.memory is {}; raise ring.memory, or lower {open_blocks}ring.slots or batch.size",
        format_bytes(plan.total_bytes()), format_bytes(*slot_bytes), format_bytes(plan.rows_bytes),
        format_bytes(plan.fetch_bytes), format_bytes(plan.scratch_bytes), format_bytes(plan.ceiling_bytes)
    )]
    Ceiling {
        /// The location of `ring.memory` in the configuration.
        place: String,
        /// The plan.
        plan: Box<MemoryPlan>,
        /// `ring.slots`.
        slots: u16,
        /// A slot's size, in bytes.
        slot_bytes: u64,
        /// Number of work threads.
        threads: u32,
        /// `order.blocks` and a comma, for an order in blocks.
        open_blocks: &'static str,
    },
    /// The plan exceeds the memory of the machine or the cgroup.
    #[error(
        "{place}: the plan of all streams and local ranks needs {}, but {grantor} grants {}; lower ring.slots or \
         batch.size, or give more memory",
        format_bytes(*needed_bytes), format_bytes(*granted_bytes)
    )]
    Machine {
        /// The location of `ring.memory` in the configuration.
        place: String,
        /// Sum over all streams and local ranks.
        needed_bytes: u64,
        /// `the machine` or the cgroup's file.
        grantor: String,
        /// Bytes left there.
        granted_bytes: u64,
    },
}

/// The bytes of answers that one of so many feeders may send ahead.
#[must_use]
pub fn feeder_window(feeders: usize) -> u64 {
    (FEEDER_BYTES / feeders.max(1) as u64).min(MAX_FEEDER_WINDOW)
}

/// The most feeders that a configuration leads to: a name may have any number of addresses.
#[must_use]
pub fn most_feeders(feeders: &FeedersConfig) -> usize {
    let spread = feeders.spread as usize;
    let is_name = |address: &String| {
        let host = address.rsplit_once(':').map_or("", |(host, _)| host);
        let is_address = |text: &str| text.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
        !is_address(address) && !is_address(host)
    };
    let is_open = feeders.file.is_some() || feeders.addresses.iter().any(is_name);
    if is_open { spread } else { spread.min(feeders.addresses.len()) }
}

/// The bytes of the answers of feeders that may wait to be read, and of the buffers that they are read into. Those that only the environment names are not planned.
fn feeder_bytes(feeders: &FeedersConfig) -> u64 {
    let count = most_feeders(feeders);
    let buffers = if count > 0 { FEEDER_BUFFER_BYTES } else { 0 };
    count as u64 * feeder_window(count) + buffers
}

impl MemoryPlan {
    /// Plans a stream for `threads` work threads.
    #[must_use]
    pub fn of(stream: &Stream, threads: u32) -> Self {
        let plan = Self::with_more_to_fetch(stream, threads, 0);
        // A read of a block holds all of it: reads that `"auto"` adds later need bytes besides those of the first ones.
        let (reads, most_reads) = stream.config.reads();
        let largest = stream.draws.open_blocks.largest;
        let blocks = u64::from(most_reads - reads).saturating_mul(largest);
        let left = plan.spare_bytes(stream);
        let most = blocks.min(MORE_BLOCK_BYTES).min(left / MORE_BLOCK_SHARE);
        // Pages also need memory for unpacking them, and no plan gives up the JPEG index for this.
        let fits = |roomier: &Self| {
            let more = roomier.total_bytes().checked_sub(plan.total_bytes());
            more.is_some_and(|more| more <= left / 2)
                && roomier.jpeg_index_bytes == plan.jpeg_index_bytes
        };
        let adds_reads = |more: &u64| {
            let bytes = u64::from(reads) * FETCH_BYTES_PER_READ + more;
            bytes.checked_div(largest).is_some_and(|count| count > u64::from(reads))
        };
        let amounts = [most, most / 2, most / 4, most / 8].into_iter().filter(adds_reads);
        let mut plans = amounts.map(|more| Self::with_more_to_fetch(stream, threads, more));
        plans.find(fits).unwrap_or(plan)
    }

    fn with_more_to_fetch(stream: &Stream, threads: u32, more: u64) -> Self {
        let ring_bytes = stream.ring_bytes(&stream.layout).iter().sum();
        let rows_bytes = stream.rows_bytes(stream.config.batch.size.get());
        let ceiling_bytes = stream.memory_bytes();
        // Reads that `"auto"` adds later share these bytes, and `more`.
        let (reads, most_reads) = stream.config.reads();
        let wanted = u64::from(reads) * FETCH_BYTES_PER_READ;
        // At least one thread of the fallback pool, if there is one; further ones use the remaining memory.
        let fallback_threads = u32::from(stream.config.cpu.policy == CpuPolicy::Idle);
        let room = ceiling_bytes.saturating_sub(ring_bytes + rows_bytes) / 2;
        let fetch_bytes = (wanted.min(room).max(MIN_FETCH_BYTES) + more)
            .saturating_add(stream.draws.open_blocks.bytes);
        // Rows prepared for a call of a Python stage.
        let calls = |stage: &&Stage| stage.workers.is_some();
        let callers: u32 = stream.stages.iter().filter(calls).map(|stage| stage.gate.limit()).sum();
        let order_bytes = match stream.selection() {
            Selection::InBlocks(blocks) => {
                // A session has the order of its epoch, and of the previous one until its last batch is made.
                blocks.memory_bytes(2 * u64::from(stream.config.listen.max_sessions))
            }
            Selection::Balanced(balanced) => balanced.classes().memory_bytes(),
            Selection::Grouped(grouped) => {
                // As blocks.
                grouped.memory_bytes(2 * u64::from(stream.config.listen.max_sessions))
            }
            _ => 0,
        };
        let kept = stream.draws.kept.as_ref().map_or(0, |kept| kept.memory_bytes());
        let order_bytes = order_bytes
            + kept
            + stream.by_length().map_or(0, |by_length| {
                by_length.memory_bytes(stream.selection().draws_per_epoch())
            });
        let batch_size = stream.config.batch.size.get();
        let batch_workers = || stream.plan.batch_workers(batch_size);
        let mut plan = Self {
            ring_bytes,
            rows_bytes,
            fetch_bytes,
            scratch_bytes: u64::from(threads + fallback_threads) * SCRATCH_BYTES_PER_THREAD
                + u64::from(most_reads) * BYTES_PER_FETCH_THREAD
                + bytes_of_reads(
                    (most_reads.into(), stream.storage.properties().bytes_per_read),
                    stream.dataset.page_bytes().unwrap_or(0),
                    stream.draws.open_blocks,
                    fetch_bytes,
                )
                + u64::from(callers) * KEPT_BYTES as u64
                + feeder_bytes(&stream.config.feeders)
                + order_bytes
                + batch_workers()
                    .map(|(workers, _, batch_bytes)| batch_bytes.saturating_mul(workers.into()))
                    .fold(0, u64::saturating_add),
            carried_bytes: match stream.stages.len() {
                0 | 1 if callers == 0 => 0,
                _ => u64::from(threads) * CARRIED_BYTES_PER_THREAD,
            },
            workers_bytes: stream.python_stages().fold(0, |sum: u64, (stage, workers)| {
                sum.saturating_add(stage.worker_bytes().saturating_mul(workers.into()))
            }) + batch_workers()
                .map(|(workers, worker_bytes, _)| worker_bytes.saturating_mul(workers.into()))
                .fold(0, u64::saturating_add),
            decoders_bytes: stream.plan.helpers().map_or(0, HelperPlan::total_bytes),
            work_bytes: 0,
            jpeg_index_bytes: 0,
            window_bytes: stream.config.share.window.unwrap_or(0),
            open_window_bytes: 0,
            ceiling_bytes,
        };
        let index_bytes = stream.jpeg_index.memory_bytes();
        if plan.total_bytes().saturating_add(index_bytes) <= ceiling_bytes {
            plan.jpeg_index_bytes = index_bytes;
        }
        plan.open_window_bytes = match stream.config.listen.max_sessions {
            1 => 0,
            _ if plan.window_bytes > 0 => 0,
            // As much as is left for large samples and further threads.
            _ => ring_bytes.min(plan.spare_bytes(stream) / 2),
        };
        plan.work_bytes = plan.spare_bytes(stream) / 2;
        plan
    }

    /// Bytes shared by all sessions of the daemon.
    pub(crate) fn shared_bytes(&self) -> u64 {
        [self.scratch_bytes, self.carried_bytes, self.jpeg_index_bytes, self.window_bytes]
            .into_iter()
            .fold(self.fetch_bytes, u64::saturating_add)
    }

    /// `ring.memory` minus the rings of all sessions that may attach and the shared parts.
    fn spare_bytes(&self, stream: &Stream) -> u64 {
        let sessions = u64::from(stream.config.listen.max_sessions);
        let taken =
            self.session_bytes().saturating_mul(sessions).saturating_add(self.shared_bytes());
        self.ceiling_bytes.saturating_sub(taken.saturating_add(self.open_window_bytes))
    }

    /// The byte budgets of a daemon with these streams.
    #[must_use]
    pub fn budgets(plans: &[Self]) -> ByteBudgets {
        let fetch_bytes = plans.iter().map(|plan| plan.fetch_bytes).max().unwrap_or(0);
        ByteBudgets {
            fetch_bytes: fetch_bytes - (fetch_bytes / SPARE_SHARE).min(MAX_KEPT_BYTES),
            work_bytes: plans
                .iter()
                .map(|plan| plan.work_bytes)
                .min()
                .unwrap_or(0)
                .saturating_add(plans.iter().map(|plan| plan.carried_bytes).max().unwrap_or(0)),
            covered_bytes: COVERED_BYTES,
        }
    }

    /// Maximal numbers of threads of the fallback pool and of the lowered group, for `threads` at the start: limited by
    /// what the rings of all sessions that may attach leave of `ring.memory`.
    pub fn thread_bounds(&self, stream: &Stream, threads: u32, cores: u32) -> (u32, u32) {
        let spare = self.spare_bytes(stream).saturating_sub(self.work_bytes);
        let spare = spare / SCRATCH_BYTES_PER_THREAD;
        let spare = u32::try_from(spare).unwrap_or(u32::MAX);
        let fallback = threads.min(spare.saturating_add(1));
        let further = spare.saturating_sub(fallback - 1);
        let is_auto = stream.stages.iter().any(|stage| stage.is_auto);
        let most = cores.saturating_mul(MAX_THREADS_PER_CORE).max(threads);
        (fallback, if is_auto { most.min(threads.saturating_add(further)) } else { threads })
    }

    /// Bytes per session.
    #[must_use]
    pub fn session_bytes(&self) -> u64 {
        self.ring_bytes.saturating_add(self.rows_bytes)
    }

    /// Sum of all parts.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.session_bytes().saturating_add(self.shared_bytes())
    }

    /// The plan of a daemon with these streams and one session of each: the sum of their rings, and the shared parts
    /// once. It has no ceiling.
    #[must_use]
    pub fn together(plans: &[Self]) -> Self {
        let greatest = |part: fn(&Self) -> u64| plans.iter().map(part).max().unwrap_or(0);
        let sum = |part: fn(&Self) -> u64| {
            plans.iter().fold(0, |sum: u64, plan| sum.saturating_add(part(plan)))
        };
        Self {
            ring_bytes: sum(|plan| plan.ring_bytes),
            rows_bytes: sum(|plan| plan.rows_bytes),
            fetch_bytes: greatest(|plan| plan.fetch_bytes),
            scratch_bytes: greatest(|plan| plan.scratch_bytes),
            carried_bytes: greatest(|plan| plan.carried_bytes),
            workers_bytes: sum(|plan| plan.workers_bytes),
            decoders_bytes: sum(|plan| plan.decoders_bytes),
            work_bytes: greatest(|plan| plan.work_bytes),
            jpeg_index_bytes: sum(|plan| plan.jpeg_index_bytes),
            window_bytes: sum(|plan| plan.window_bytes),
            open_window_bytes: sum(|plan| plan.open_window_bytes),
            ceiling_bytes: u64::MAX,
        }
    }

    /// Checks the plan against `ring.memory`.
    ///
    /// # Errors
    /// The plan does not fit; the message has the figures and the key to change.
    pub fn check_ceiling(&self, stream: &Stream, threads: u32) -> Result<(), MemoryError> {
        let ring = &stream.config.ring;
        if self.total_bytes() <= self.ceiling_bytes {
            return Ok(());
        }
        Err(MemoryError::Ceiling {
            place: memory_key(stream),
            plan: Box::new(*self),
            slots: ring.slots,
            slot_bytes: stream.layout.slot_bytes(),
            threads,
            open_blocks: if stream.draws.open_blocks.bytes > 0 { "order.blocks, " } else { "" },
        })
    }

    /// Checks the plan against the control group and the machine, for `local_ranks` such daemons; `stream` is the one
    /// whose configuration is named. Memory that running daemons of the other ranks already use is counted once.
    ///
    /// Returns the bytes left for each rank besides the plans.
    ///
    /// # Errors
    /// The plan does not fit; the message has the figures and the keys to change.
    pub fn check_machine(&self, stream: &Stream, local_ranks: u32) -> Result<u64, MemoryError> {
        self.check_on(memory_key(stream), local_ranks, &Machine::default())
    }

    fn check_on(
        &self,
        place: String,
        local_ranks: u32,
        machine: &Machine<'_>,
    ) -> Result<u64, MemoryError> {
        let needed_bytes = self.total_bytes().saturating_mul(local_ranks.into());
        let grants = machine.grants();
        let least = grants.iter().map(|grant| grant.left_bytes).min().unwrap_or(u64::MAX);
        if needed_bytes <= least {
            return Ok((least - needed_bytes) / u64::from(local_ranks.max(1)));
        }
        let others = machine.other_daemons();
        let beyond = grants.into_iter().find_map(|grant| {
            let granted_bytes =
                grant.left_bytes.saturating_add(self.taken(&grant, &others, local_ranks));
            (needed_bytes > granted_bytes).then_some((grant.by, granted_bytes))
        });
        match beyond {
            Some((grantor, granted_bytes)) => {
                Err(MemoryError::Machine { place, needed_bytes, grantor, granted_bytes })
            }
            None => Ok(0),
        }
    }

    /// Bytes of the ranks' plans that daemons of this host already use, including this one's predecessor, whose ring
    /// its client has kept: shared memory up to a ring per daemon, and each daemon's private memory. `others`: private
    /// memory by daemon.
    fn taken(&self, grant: &Grant, others: &[u64], local_ranks: u32) -> u64 {
        let ranks = local_ranks as usize;
        let rings = (others.len() + 1).min(ranks) as u64;
        let beside_rings = self.total_bytes() - self.ring_bytes;
        let private = others.iter().take(ranks - 1).map(|bytes| (*bytes).min(beside_rings));
        let shared = grant.shared_bytes.min(self.ring_bytes.saturating_mul(rings));
        private.fold(shared, u64::saturating_add)
    }

    /// Checks one more session, which needs so many bytes, against the memory that the control group and the machine have left now. The
    /// start has checked the other ranks' rings, and attached sessions already reduce what is left.
    ///
    /// # Errors
    /// The ring does not fit; the message has the figures and the key to change.
    pub(crate) fn check_attach(stream: &Stream, needed_bytes: u64) -> Result<(), MemoryError> {
        match Machine::default().refuses(needed_bytes) {
            Some(Grant { by: grantor, left_bytes: granted_bytes, .. }) => {
                let place = memory_key(stream);
                Err(MemoryError::Machine { place, needed_bytes, grantor, granted_bytes })
            }
            None => Ok(()),
        }
    }
}

/// Memory of concurrent reads in addition to the bytes that they deliver.
fn bytes_of_reads(
    (reads, of_each): (u64, u64),
    page_bytes: u64,
    open: OpenBlocks,
    fetch_bytes: u64,
) -> u64 {
    let each_the_largest = reads.saturating_mul(of_each);
    if open.bytes == 0 {
        return each_the_largest;
    }
    // The fetch budget grants bytes by pages' unpacked size; this bounds the sum over all pages that are unpacked at
    // once.
    let at_once = (fetch_bytes / 1000 + 1).saturating_mul(open.scratch_per_thousand);
    let beside = of_each.saturating_sub(page_bytes).saturating_add(page_bytes.min(KEPT_OF_PAGES));
    each_the_largest.min(at_once.saturating_add(reads.saturating_mul(beside)))
}

/// The memory that the machine and this process's control groups have left, if known.
pub fn machine_memory_left() -> Option<u64> {
    Machine::default().grants().iter().map(|grant| grant.left_bytes).min()
}

/// The location of `ring.memory` in the configuration.
fn memory_key(stream: &Stream) -> String {
    stream.config.location(&["ring", "memory"]).to_string()
}

/// Checks that a recording of the running daemon fits into what the plan of some stream leaves of `ring.memory`, and
/// into the memory that the control group and the machine have left now.
///
/// # Errors
/// The figures and the key to change.
pub(crate) fn check_recording(
    plans: impl Iterator<Item = MemoryPlan>,
    recording_bytes: u64,
) -> Result<(), String> {
    let left = |plan: &MemoryPlan| plan.ceiling_bytes.saturating_sub(plan.total_bytes());
    let roomiest = plans.max_by_key(left);
    if let Some(plan) = roomiest.filter(|plan| left(plan) < recording_bytes) {
        return Err(format!(
            "a recording takes up to {}; beside the {} that are planned, ring.memory ({}) leaves {}: raise it",
            format_bytes(recording_bytes),
            format_bytes(plan.total_bytes()),
            format_bytes(plan.ceiling_bytes),
            format_bytes(left(&plan)),
        ));
    }
    match Machine::default().refuses(recording_bytes) {
        Some(grant) => Err(format!(
            "a recording needs up to {}, but {} grants {}; raise that limit",
            format_bytes(recording_bytes),
            grant.by,
            format_bytes(grant.left_bytes)
        )),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
