//! The row that each work thread runs, published for the stall watchdog. Reading it blocks no thread.

use std::time::Duration;

use forebay_protocol::ids::SampleId;
use forebay_protocol::sync::{AtomicU64, Ordering};

use crate::ground::work::{RowClaim, SessionWork};

/// The row that a work thread runs. Only that thread writes it; a read during a change may mix two rows, and then shows
/// a short age.
#[derive(Debug, Default)]
pub(crate) struct WorkerPlace {
    /// The start of the row by `Shared::ns_of`; 0: no row.
    since_ns: AtomicU64,
    /// The address of the [`SessionWork`], which outlives the row's work.
    session: AtomicU64,
    stage: AtomicU64,
    sample: AtomicU64,
}

impl WorkerPlace {
    /// Called when the thread starts a row.
    pub(crate) fn enter(
        &self,
        session: &SessionWork,
        claim: RowClaim,
        sample: SampleId,
        since_ns: u64,
    ) {
        // Relaxed, all of them: diagnostics; they order nothing.
        self.session.store(address(session), Ordering::Relaxed);
        self.stage.store(claim.stage as u64, Ordering::Relaxed);
        self.sample.store(sample.0, Ordering::Relaxed);
        self.since_ns.store(since_ns, Ordering::Relaxed);
    }

    /// Called when the thread starts to finish a complete batch.
    pub(crate) fn enter_batch(&self, session: &SessionWork, batch: u64, since_ns: u64) {
        let claim = RowClaim { slot: 0, row: 0, stage: session.stream.stages.len() };
        self.enter(session, claim, SampleId(batch), since_ns);
    }

    /// Called when the thread has finished the row.
    pub(crate) fn leave(&self) {
        self.since_ns.store(0, Ordering::Relaxed);
    }

    /// The age, stage and sample of the row, if the thread runs one of this session. After the last stage, the sample's
    /// number is the number of a batch that is being finished.
    pub(crate) fn running_row(
        &self,
        session: &SessionWork,
        now_ns: u64,
    ) -> Option<(Duration, usize, SampleId)> {
        let since = self.since_ns.load(Ordering::Relaxed);
        if since == 0 || self.session.load(Ordering::Relaxed) != address(session) {
            return None;
        }
        let age = Duration::from_nanos(now_ns.saturating_sub(since));
        let stage = usize::try_from(self.stage.load(Ordering::Relaxed)).unwrap_or(0);
        Some((age, stage, SampleId(self.sample.load(Ordering::Relaxed))))
    }
}

fn address(session: &SessionWork) -> u64 {
    std::ptr::from_ref(session).addr() as u64
}
