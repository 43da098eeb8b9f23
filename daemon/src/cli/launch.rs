//! Starts an engine from configurations, for `serve`, `run` and a private daemon.

use std::fs::File;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use forebay_protocol::frames::{Fault, FaultKind};
use forebay_protocol::segment::named;

use super::confine::confine;
use super::feeders;
use super::logging;
use super::opening_watch::{OpeningProgress, OpeningWatch};
use super::scan_notice::{left, per_second};
use forebay_affinity::{LocalRank, PoolOptions, core_share, cores_item, plan_cpu_isolation};
use forebay_config::Config;
use forebay_dataset::{OpenOptions, ScanProgress};
use forebay_engine::{
    Engine, MemoryError, MemoryPlan, SharedEngine, Stream, WorkPage, run_on_wake,
};
use forebay_inspect::http::MetricsListener;
use forebay_inspect::question::Question;
use forebay_observe::{Clock, IsolationItem, format_bytes};
use forebay_workers::WorkerStart;

/// Opened and checked streams, ready to start.
#[derive(Debug)]
pub(super) struct Launch {
    pub(super) streams: Vec<Arc<Stream>>,
    pub(super) plans: Vec<MemoryPlan>,
    pool: PoolOptions,
    pub(super) cores: Vec<u32>,
    /// Whether its streams' feeders are connected.
    pub(super) may_have_feeders: bool,
}

/// Whether the rings are created or exist.
#[derive(Debug)]
pub(super) enum Rings {
    /// The rings are created: the machine must have enough memory.
    New,
    /// The rings exist in memory that a client kept from the previous daemon, perhaps with its index: they are not
    /// counted twice.
    Kept(Option<File>),
}

impl Launch {
    /// Opens every stream and checks its memory. Blocks; logs the progress of long scans. `opening` determines how long
    /// to wait for the streams' storage, `workers` when the workers of Python stages are started.
    pub(super) fn prepare(
        configs: Vec<Config>,
        local: LocalRank,
        rings: Rings,
        workers: WorkerStart,
        opening: &OpeningWatch,
        on_progress: impl FnMut(OpeningProgress),
    ) -> Result<Self, Fault> {
        let shared = opening.clone();
        opening.watched(move || Self::open(configs, local, rings, workers, &shared), on_progress)
    }

    fn open(
        configs: Vec<Config>,
        local: LocalRank,
        rings: Rings,
        workers: WorkerStart,
        opening: &OpeningWatch,
    ) -> Result<Self, Fault> {
        let config_fault = |message: String| Fault { kind: FaultKind::Config, message };
        let memory_fault =
            |error: MemoryError| Fault { kind: FaultKind::Memory, message: error.to_string() };
        let Some(first) = configs.first() else {
            return Err(config_fault("no configuration".to_owned()));
        };
        let cpu = first.cpu.clone();
        let share = core_share(&cpu, local);
        let previous_index = match &rings {
            Rings::Kept(index) => index.as_ref(),
            Rings::New => None,
        };
        let mut streams = Vec::new();
        let mut plans = Vec::new();
        for config in configs {
            let progress = ScanNotice::new(&config.name);
            let patience =
                opening.begin(&config, matches!(rings, Rings::New).then_some(local.count));
            let options = OpenOptions {
                progress: &|seen| {
                    if seen.waiting_for_another {
                        patience.note_progress();
                    }
                    progress.show(seen)
                },
                previous_index,
                patience: Some(&*patience),
                ..OpenOptions::default()
            };
            let own_cores = if share.narrowed { &share.cores[..] } else { &[] };
            let workers = (workers, own_cores);
            let mut stream = Stream::open_to_run(
                config,
                forebay_formats::open_configured,
                share.threads,
                options,
                Clock::system(),
                workers,
            )
            .map_err(|error| Fault {
                kind: if error.is_outage() { FaultKind::Storage } else { FaultKind::Config },
                message: error.to_string(),
            })?;
            opening.end()?;
            stream.choose_defaults(local.count);
            let threads = stream.thread_count();
            let plan = MemoryPlan::of(&stream, threads);
            if matches!(rings, Rings::New) {
                plan.check_ceiling(&stream, threads).map_err(memory_fault)?;
                if local.rank == 0 {
                    log_dataset(&stream);
                }
            }
            streams.push(Arc::new(stream));
            plans.push(plan);
        }
        if let Some(first) = streams.first() {
            let needed = MemoryPlan::together(&plans);
            let left_bytes = match needed.check_machine(first, local.count) {
                Ok(bytes) => bytes,
                // The client has already allocated the memory.
                Err(_) if matches!(rings, Rings::Kept(_)) => 0,
                Err(error) => return Err(memory_fault(error)),
            };
            if needed.workers_bytes > left_bytes {
                tracing::warn!(
                    workers = %format_bytes(needed.workers_bytes),
                    left = %format_bytes(left_bytes),
                    "the workers of Python stages may hold more than is left beside the plan: lower a stage's `memory` or \
                     `workers`"
                );
            }
            for plan in &mut plans {
                plan.work_bytes = plan.work_bytes.min(left_bytes);
            }
        }
        let threads = streams.iter().map(|stream| stream.thread_count()).max().unwrap_or(1);
        let cores = u32::try_from(share.cores.len()).unwrap_or(u32::MAX);
        let bounds = streams
            .iter()
            .zip(&plans)
            .map(|(stream, plan)| plan.thread_bounds(stream, threads, cores));
        let (fallback_threads, max_threads) = bounds
            .reduce(|one, other| (one.0.min(other.0), one.1.min(other.1)))
            .unwrap_or((threads, threads));
        let pool = PoolOptions {
            threads,
            max_threads,
            fallback_threads,
            granted_cores: share.granted_cores,
            spare_cores: share.spare,
            limit_cores: cpu.limit.map(|share_of_cores| share_of_cores * share.granted_cores),
            policy: cpu.policy,
            nice: cpu.nice,
            cores: if share.narrowed { share.cores.clone() } else { Vec::new() },
            refused_cores: share.refused,
            ring_cores: share.ring_cores,
        };
        Ok(Self { streams, plans, pool, cores: share.cores, may_have_feeders: true })
    }

    /// The expected measures of CPU isolation, as far as they are known without a trainer.
    pub(super) fn quiet(&self) -> Vec<IsolationItem> {
        plan_cpu_isolation(&self.pool)
    }

    /// Leaves the rings' memory to the kernel: they are of ranks whose GPUs are on different NUMA nodes.
    pub(super) fn spread_rings(&mut self) {
        self.pool.ring_cores = Vec::new();
    }

    /// The number of work threads.
    pub(super) fn threads(&self) -> u32 {
        self.pool.threads
    }

    /// Drops unneeded rights except for the folder of the daemon's socket, and starts the engine. Called inside a
    /// `LocalSet`, on a thread that stays at normal priority. `metrics`: an HTTP listener for metrics; `page`: the page
    /// that records samples under work.
    pub(super) fn start(
        self,
        run_folder: Option<&Path>,
        metrics: Option<MetricsListener>,
        page: Option<WorkPage>,
    ) -> anyhow::Result<SharedEngine> {
        let configs: Vec<&Config> = self.streams.iter().map(|stream| stream.config()).collect();
        for stream in &self.streams {
            stream.open_quarantine()?;
        }
        if configs.iter().any(|config| config.listen.named_segments) {
            let swept = named::sweep();
            if swept > 0 {
                tracing::info!(swept, "removed named segments of dead daemons");
            }
        }
        let feeders = self.may_have_feeders.then(|| feeders::plan(&self.streams)).transpose()?;
        let confinement = confine(&configs, run_folder);
        tracing::info!(confinement, "file access");
        for (stream, plan) in self.streams.iter().zip(&self.plans) {
            stream.jpeg_index().start(plan.jpeg_index_bytes);
        }
        let budgets = MemoryPlan::budgets(&self.plans);
        log_refused_cores(&self.streams, &self.pool);
        let engine = Engine::start(self.streams, self.pool, budgets, Clock::system())
            .context("cannot start the engine")?;
        if let Some(page) = page {
            engine.borrow().note_work(page);
        }
        if let Some(plan) = feeders {
            feeders::connect(&engine, plan)?;
        }
        if let Some(listener) = metrics {
            serve_metrics(&engine, listener)
                .context("cannot start the thread for listen.metrics")?;
        }
        let shared = std::rc::Rc::clone(&engine);
        tokio::task::spawn_local(async move {
            if let Err(error) = run_on_wake(shared).await {
                tracing::error!(%error, "the engine's waker failed");
            }
        });
        Ok(engine)
    }
}

/// Logs the dataset with its labels. A wrong `dataset.path` often has no other symptom.
fn log_dataset(stream: &Stream) {
    let classes =
        stream.description().classes.map_or("none".to_owned(), |classes| classes.to_string());
    tracing::info!(
        target: logging::DATASET,
        stream = stream.name(),
        samples = stream.kept_count(),
        classes,
        "dataset opened"
    );
}

/// Logs the configured cores that this process may not use.
fn log_refused_cores(streams: &[Arc<Stream>], pool: &PoolOptions) {
    let item = cores_item(pool);
    if let (false, Some(first)) = (item.in_force, streams.first()) {
        let location = first.config().location(&["cpu", "cores"]);
        tracing::warn!("{location}: {}; {}", item.state, item.remedy.unwrap_or_default());
    }
}

/// Serves metrics over HTTP from a thread with this one's remaining rights, and answers its requests here.
fn serve_metrics(engine: &SharedEngine, listener: MetricsListener) -> std::io::Result<()> {
    let address = listener.address();
    let mut questions = listener.start()?;
    engine.borrow_mut().metrics_address = Some(address);
    tracing::info!(target: logging::METRICS, "metrics at http://{address}/ and http://{address}/metrics");
    let engine = std::rc::Rc::clone(engine);
    tokio::task::spawn_local(async move {
        while let Some(question) = questions.recv().await {
            // The request may have timed out.
            if !question.is_closed() {
                let mut engine = engine.borrow_mut();
                // A client signals only after returning half of the slots: count the slots that it has returned by now.
                engine.advance_all();
                let _ = match question {
                    Question::Report(answer) => answer.send(engine.report()).is_ok(),
                    Question::History(answer) => answer.send(engine.rate_history()).is_ok(),
                };
            }
        }
    });
    Ok(())
}

/// The number of descriptors that a daemon needs for itself and a few clients; far more than a start needs.
const MIN_OPEN_FILES: u64 = 64;

/// Creates the runtime of a daemon: one thread for all control.
pub(super) fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    // Checked first: later failures for lack of descriptors have unclear messages, or panic (tokio's signals).
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    if let Some(limit) = limit.filter(|limit| *limit < MIN_OPEN_FILES) {
        anyhow::bail!(
            "the limit of open files is {limit}; a daemon needs at least {MIN_OPEN_FILES}; raise it (ulimit -n)"
        );
    }
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")
}

/// Logs the progress of a long scan about once per second.
struct ScanNotice {
    stream: String,
    start: Instant,
    last: std::sync::Mutex<Instant>,
}

impl ScanNotice {
    fn new(stream: &str) -> Self {
        let now = Instant::now();
        Self { stream: stream.to_owned(), start: now, last: std::sync::Mutex::new(now) }
    }

    fn show(&self, progress: ScanProgress) -> ControlFlow<()> {
        let mut last = self.last.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if last.elapsed() >= Duration::from_secs(1) {
            *last = Instant::now();
            let elapsed = self.start.elapsed();
            tracing::warn!(
                stream = self.stream,
                samples = progress.samples,
                folders = (progress.directories > 0 && progress.files.is_none())
                    .then_some(progress.directories),
                files = progress.files.map(|files| format!("{} of {}", files.done, files.all)),
                texts = progress.texts.map(|texts| format!("{} of {}", texts.done, texts.all)),
                per_second = per_second(progress, elapsed),
                seconds = elapsed.as_secs(),
                seconds_left = left(progress, elapsed).map(|left| left.as_secs()),
                "scanning the dataset; the next start reads the saved index"
            );
        }
        ControlFlow::Continue(())
    }
}
