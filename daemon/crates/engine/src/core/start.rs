//! Starts the engine: its threads, its fetch lanes and the loop that advances it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use tokio::io::Interest;
use tokio::sync::Notify;

use super::lane::run_lane;
use super::retrying::run_retries;
use super::{Engine, SharedEngine};
use crate::actors::fetch::fetch_rows;
use crate::actors::fetch_threads::{FetchThreads, Run};
use crate::actors::pool::Pool;
use crate::actors::retry_queue::RetryQueue;
use crate::core::memory::MemoryPlan;
use crate::core::session::PreparationTurns;
use crate::core::tick::{self, Tick};
use crate::ground::budgets::{ByteBudgets, Gates};
use crate::ground::shared_rows::SharedRows;
use crate::ground::stream::Stream;
use crate::ground::units::Units;
use crate::ground::waker::Waker;
use crate::ground::watch::watch;
use crate::ground::work_page::WorkPage;
use forebay_affinity::PoolOptions;
use forebay_observe::{Clock, History, RateHistory, WaitLog};

impl Engine {
    /// Starts the work threads and the fetch lanes; `clock` is the clock of the streams. Called inside the engine
    /// thread's `LocalSet`.
    pub fn start(
        streams: Vec<Arc<Stream>>,
        pool: PoolOptions,
        budgets: ByteBudgets,
        clock: Clock,
    ) -> io::Result<SharedEngine> {
        let waker = Arc::new(Waker::new()?);
        let lanes: Vec<(u32, u32)> = streams.iter().map(|stream| stream.config.reads()).collect();
        let units: Vec<_> = streams
            .iter()
            .map(|stream| stream.shares_units.then(|| Arc::new(Units::new(Arc::clone(&waker)))))
            .collect();
        let keeps_units = units.iter().any(Option::is_some);
        let cores = (pool.granted_cores, pool.limit_cores);
        let tick = Tick::new(streams.len(), cores, budgets.fetch_bytes, clock.now());
        let retries = streams.iter().map(|_| RetryQueue::default()).collect();
        let shared_rows = streams.iter().map(|stream| {
            let plan = MemoryPlan::of(stream, pool.threads);
            Arc::new(SharedRows::new(
                plan.window_bytes.max(plan.open_window_bytes),
                Arc::clone(&waker),
            ))
        });
        let shared_rows = shared_rows.collect();
        let supplies = vec![None; streams.len()];
        let feeder_outages = streams.iter().map(|_| None).collect();
        let has_begun = streams.iter().map(|_| Cell::default()).collect();
        let gates = Gates::new(budgets, &waker, keeps_units);
        let pool = Pool::start(pool, Arc::clone(&waker), clock.clone())?;
        let fetch_threads = lanes.iter().enumerate().map(|(stream, (lanes, _))| {
            let (gates, shared) = (gates.clone(), Arc::clone(&pool.shared));
            let run: Run =
                Arc::new(move |reading, lane| fetch_rows(reading, &gates, &shared, (stream, lane)));
            FetchThreads::start(*lanes as usize, run)
        });
        let fetch_threads = fetch_threads.collect::<io::Result<_>>()?;
        let started = clock.now();
        let rates = streams.iter().map(|_| RateHistory::new(started)).collect();
        let engine = Rc::new(RefCell::new(Self {
            fetch_notify: streams.iter().map(|_| Rc::new(Notify::new())).collect(),
            more_lanes: Rc::default(),
            streams,
            sessions: BTreeMap::new(),
            ending: Vec::new(),
            next_session: 1,
            preparation_turns: PreparationTurns::new(Arc::clone(&waker)),
            advances: 0,
            rows_published: Rc::default(),
            units,
            shared_rows,
            feeder_outages,
            supplies,
            has_begun,
            gates,
            pool,
            waker,
            tick,
            ticks: false,
            ticks_wanted: Rc::default(),
            fetch_threads,
            retries,
            retries_wanted: Rc::default(),
            readings: lanes.iter().map(|(_, most)| vec![None; *most as usize]).collect(),
            stalls: RefCell::default(),
            metrics_address: None,
            started,
            history: History::default(),
            rates,
            wait_log: WaitLog::new(started),
            clock,
        }));
        {
            let engine = engine.borrow();
            // The limit applies from the first row on.
            engine.pool.shared.budget.set_cores(engine.pool.options.limit_cores);
            engine.share_recorder();
        }
        for (stream, (_, most)) in lanes.into_iter().enumerate() {
            for lane in 0..most as usize {
                tokio::task::spawn_local(run_lane(Rc::clone(&engine), stream, lane));
            }
        }
        tokio::task::spawn_local(run_retries(Rc::clone(&engine)));
        Ok(engine)
    }
}

impl Engine {
    /// Records the samples under work in this page from now on. Called before the first session.
    pub fn note_work(&self, page: WorkPage) {
        let _ = self.pool.shared.work_page.set(page);
    }
}

/// Advances the engine whenever its waker is woken, and four times a second while work is in progress: for the periodic
/// work, and so that waiting clients see progress.
pub async fn run_on_wake(engine: SharedEngine) -> io::Result<()> {
    let waker = Arc::clone(&engine.borrow().waker);
    let readable = watch(WakerDescriptor(Arc::clone(&waker)), Interest::READABLE)?;
    let wanted = Rc::clone(&engine.borrow().ticks_wanted);
    let mut clock = tokio::time::interval(tick::PERIOD);
    clock.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut ran = false;
    loop {
        let runs = engine.borrow_mut().set_ticks();
        if runs && !ran {
            clock.reset();
        }
        ran = runs;
        if !runs {
            // The last check before ticks stop.
            engine.borrow().watch_stalls();
        }
        let next_check = engine.borrow().next_trainer_check().filter(|_| !runs);
        let check = tokio::time::sleep(next_check.unwrap_or_default());
        tokio::select! {
            guard = readable.readable() => {
                waker.drain();
                guard?.clear_ready();
            }
            () = wanted.notified(), if !runs => continue,
            _ = clock.tick(), if runs => {
                engine.borrow_mut().on_tick();
                engine.borrow().watch_stalls();
            }
            // Slots returned without a doorbell are taken below and are not a stall.
            () = check, if next_check.is_some() => {}
        }
        engine.borrow_mut().advance_all();
    }
}

struct WakerDescriptor(Arc<Waker>);

impl std::os::fd::AsRawFd for WakerDescriptor {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        std::os::fd::AsFd::as_fd(&self.0).as_raw_fd()
    }
}

impl std::os::fd::AsFd for WakerDescriptor {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}
