//! How the workers of a function are started, by the configuration.

use std::path::PathBuf;
use std::time::Duration;

use forebay_config::{Config, CpuPolicy, Located, Value};
use forebay_workers::{CallFigures, HotSpot, Pool, PoolSpec, WorkerClass};

/// What the calls of a function cost so far.
#[derive(Debug)]
pub struct FunctionFigures<'p> {
    /// The stage's name, or the operation's place.
    pub place: &'p str,
    /// `module:function`.
    pub target: &'p str,
    /// The most of its worker processes.
    pub workers: u32,
    /// Over all of them.
    pub calls: CallFigures,
    /// Where in the function the time goes, where enough was seen to tell.
    pub hot_spot: Option<HotSpot>,
}

/// Of the function that these workers run.
pub(super) fn figures_of(pool: &Pool) -> FunctionFigures<'_> {
    let spec = pool.spec();
    FunctionFigures {
        place: &spec.stage,
        target: &spec.target,
        workers: spec.workers,
        calls: pool.figures(),
        hot_spot: pool.hot_spot(),
    }
}

/// A function and what the configuration says of its workers.
pub(super) struct CalledFunction<'c> {
    /// The stage's name, or the operation's place.
    pub(super) place: &'c str,
    pub(super) is_batch: bool,
    pub(super) target: &'c str,
    pub(super) arguments: &'c [(String, Located)],
    pub(super) workers: u32,
    pub(super) timeout: Duration,
    pub(super) memory_bytes: u64,
}

/// Starts what starts the workers: one in the foreground besides, and the others silent, where that is wanted.
pub(super) fn start_pool(
    config: &Config,
    called: CalledFunction<'_>,
    (has_foreground, is_silent): (bool, bool),
) -> Result<Pool, String> {
    let nice = config.cpu.nice;
    let spec = PoolSpec {
        stage: called.place.to_owned(),
        is_batch: called.is_batch,
        target: called.target.to_owned(),
        arguments: Value::Table(called.arguments.to_vec()).to_json().to_string(),
        interpreter: PathBuf::from(&config.python.interpreter),
        path: config.python.path.clone(),
        folder: config.python.folder.clone().unwrap_or_default(),
        main: config.python.main.clone(),
        workers: called.workers,
        timeout: called.timeout,
        memory_bytes: called.memory_bytes,
        class: match config.cpu.policy {
            CpuPolicy::Idle => WorkerClass::Idle,
            CpuPolicy::Batch => WorkerClass::Batch(nice),
            CpuPolicy::Normal => WorkerClass::Normal(nice),
        },
        has_foreground,
        is_silent,
    };
    Pool::start(spec)
        .map_err(|error| format!("the process that starts workers cannot be started: {error}"))
}
