//! The engine thread's part of rows that others make: [`crate::actors::supply`] has the states.
//!
//! Feeders and fetch lanes take rows of one queue. A fetch lane would take all of them at once, as reading is quick and
//! work is not: while a feeder can be reached, rows that were taken here and are not finished are limited to what keeps
//! the work threads and the lanes busy.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::{Engine, SharedEngine};
use crate::actors::fetch::fail;
use crate::actors::followers::finish_copy;
use crate::actors::supply::{CHECKED_ONE_IN, EngineWaker, Supplier, Supply};
use crate::core::session::Session;
use crate::ground::row_cells::RowFailure;
use crate::ground::units::Wanted;
use crate::ground::work::{FetchJob, Sharing};
use forebay_config::LocalWork;
use forebay_observe::SupplyReport;
use forebay_storage::{RemoteFailure, Retries, RetryClass, RetryTerms, StorageError};

/// The most rows that are asked for in one request.
const MAX_ROWS: usize = 64;
/// Rows per work thread that are taken here while a feeder can be reached.
const ROWS_PER_THREAD: u64 = 4;
/// How often overdue rows are looked for.
const LOOK_PERIOD: Duration = Duration::from_millis(25);
/// How many batches after the oldest one are urgent.
const URGENT_BATCHES: u64 = 1;

impl Engine {
    /// The waker of this engine, for a supplier that is to be made.
    #[must_use]
    pub fn supply_waker(&self) -> EngineWaker {
        EngineWaker(Arc::clone(&self.waker))
    }

    /// Has rows of a stream made by a supplier too, from now on. Called inside the engine thread's `LocalSet`.
    pub fn set_supplier(engine: &SharedEngine, stream: usize, supplier: Arc<dyn Supplier>) {
        Self::set_supplier_checked(engine, stream, supplier, CHECKED_ONE_IN);
    }

    /// As [`set_supplier`](Self::set_supplier); one row in so many is made here too.
    pub(crate) fn set_supplier_checked(
        engine: &SharedEngine,
        stream: usize,
        supplier: Arc<dyn Supplier>,
        check_one_in: u64,
    ) {
        let supply = {
            let mut engine = engine.borrow_mut();
            let local = engine.streams[stream].config.feeders.local;
            let shared = Arc::clone(&engine.pool.shared);
            // Lanes that wait for rows to be finished here are to get the next ones at once.
            engine.streams[stream].wake_by_rows();
            let may_make_here = local != LocalWork::Never;
            let supply = Arc::new(Supply::new(supplier, may_make_here, check_one_in, shared));
            engine.supplies[stream] = Some(Arc::clone(&supply));
            supply
        };
        let (engine, supply) = (std::rc::Rc::downgrade(engine), Arc::downgrade(&supply));
        tokio::task::spawn_local(async move {
            loop {
                tokio::time::sleep(LOOK_PERIOD).await;
                let (Some(engine), Some(supply)) = (engine.upgrade(), supply.upgrade()) else {
                    return;
                };
                if supply.outstanding() > 0 {
                    let now = engine.borrow().clock.now();
                    supply.hedge(now);
                    engine.borrow_mut().admit_returned(stream);
                }
            }
        });
    }

    /// Asks the suppliers for rows, as far as they have room.
    pub(super) fn ask_suppliers(&mut self) {
        for stream in 0..self.supplies.len() {
            self.admit_returned(stream);
            self.ask_supplier(stream);
        }
    }

    pub(super) fn ask_supplier(&mut self, stream: usize) {
        let Some(supply) = self.supplies[stream].clone() else { return };
        if !supply.supplier.is_reachable() {
            return;
        }
        loop {
            let room = supply.supplier.room().min(MAX_ROWS);
            let next = self.next_to_fetch(|session| session.stream_number == stream);
            let Some((_, number)) = next.filter(|_| room > 0) else { return };
            let Some(session) = self.sessions.get_mut(&number) else { return };
            let jobs = session.take_admissions(room);
            let mut asked = Vec::with_capacity(jobs.len());
            for job in self.share_rows(number, jobs) {
                asked.extend(self.prepare(job));
            }
            if asked.is_empty() {
                continue;
            }
            let distance = asked.iter().map(distance_to_oldest).min().unwrap_or(0);
            supply.ask(asked, distance <= URGENT_BATCHES);
        }
    }

    /// Prepares a row that is asked for; `None`: it is finished, as it is a copy of a row that is kept.
    fn prepare(&self, mut job: FetchJob) -> Option<FetchJob> {
        if let Sharing::Copies(kept) = &job.sharing {
            let kept = Arc::clone(kept);
            finish_copy(&job, &self.pool.shared, |cell| kept.write_to(cell));
            return None;
        }
        // Its bytes are not read here.
        Wanted::let_go(&mut job.units);
        Some(job)
    }

    /// Admits rows again that came back from a supplier.
    fn admit_returned(&mut self, stream: usize) {
        let Some(supply) = &self.supplies[stream] else { return };
        let returned = supply.take_returned();
        for mut job in returned.anywhere {
            job.units = job.session.want_units(job.id, job.draw());
            self.admit_again_or_end(job);
        }
        let now = self.clock.now();
        for mut job in returned.here {
            if job.session.slots[job.slot].is_cancelled() {
                job.session.slots[job.slot].finish_row(job.row, false);
                continue;
            }
            job.units = job.session.want_units(job.id, job.draw());
            // Only fetch lanes take rows that are due.
            self.retries[stream].push(job, now);
            self.retries_wanted.notify_one();
        }
        if self.has_fetch_jobs(stream) {
            self.fetch_notify[stream].notify_waiters();
        }
    }

    /// At each tick: announces that no feeder can be reached, where nobody else makes the rows, and gives up after
    /// `dataset.outage_timeout`.
    pub(super) fn watch_feeders(&mut self) {
        for stream in 0..self.supplies.len() {
            let Some(supply) = &self.supplies[stream] else { continue };
            let is_out = !supply.may_make_here && !supply.supplier.is_reachable();
            let of_stream = |session: &&Session| session.stream_number == stream;
            let waits =
                self.sessions.values().filter(of_stream).any(|one| one.admissions_left() > 0);
            if !(is_out && waits) {
                if let Some(outage) = self.feeder_outages[stream].take() {
                    outage.succeed();
                }
                continue;
            }
            let before = self.feeder_outages[stream].take();
            let terms = RetryTerms { outages: &self.streams[stream].outages, key: stream as u64 };
            match Retries::after(before, &no_feeder(&supply.report()), terms) {
                Ok(outage) => self.feeder_outages[stream] = Some(outage),
                Err(sentence) => self.fail_unfed(stream, &sentence),
            }
        }
    }

    /// Fails the rows of a stream that no feeder will make.
    fn fail_unfed(&mut self, stream: usize, sentence: &str) {
        let sessions = self.sessions.values_mut().filter(|one| one.stream_number == stream);
        let jobs: Vec<FetchJob> = sessions
            .flat_map(|session| session.take_admissions(session.admissions_left()))
            .collect();
        for mut job in jobs {
            fail(&mut job, RowFailure::Storage(sentence.to_owned()), &self.pool.shared);
        }
    }

    /// The rows that fetch lanes of a stream may take now, due retries aside; `None`: any number.
    pub(super) fn room_here(&self, stream: usize) -> Option<usize> {
        let supply = self.supplies[stream].as_ref()?;
        let local = self.streams[stream].config.feeders.local;
        if !supply.supplier.is_reachable() {
            return (local == LocalWork::Never).then_some(0);
        }
        let has_room = || supply.supplier.room() > 0;
        if local == LocalWork::Never || (local == LocalWork::Last && has_room()) {
            return Some(0);
        }
        let sessions = self.sessions.values().filter(|one| one.stream_number == stream);
        let under_way: u64 = sessions.map(|session| session.rows_under_way()).sum();
        let here = under_way.saturating_sub(supply.outstanding());
        let threads = u64::from(self.pool.threads());
        let most = (threads * ROWS_PER_THREAD).max(self.fetch_threads[stream].lanes() as u64);
        usize::try_from(most.saturating_sub(here)).ok()
    }
}

/// What rows wait for that only feeders make.
fn no_feeder(supply: &SupplyReport) -> StorageError {
    let states: Vec<String> =
        supply.feeders.iter().map(|one| format!("{}: {}", one.address, one.state)).collect();
    let known = if states.is_empty() { "none is listed".to_owned() } else { states.join("; ") };
    let what = format!("{known}; start `forebay feed` there, or set feeders.local = \"also\"");
    StorageError::Remote {
        path: PathBuf::from("feeders"),
        failure: Box::new(RemoteFailure {
            action: "reaching",
            what,
            class: RetryClass::Outage,
            retry_after: None,
        }),
    }
}

fn distance_to_oldest(job: &FetchJob) -> u64 {
    let next = job.session.next_to_publish.load(forebay_protocol::sync::Ordering::Relaxed);
    job.order.saturating_sub(next)
}
