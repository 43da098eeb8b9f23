//! How the workers of a function are started, by the configuration.

use std::path::PathBuf;
use std::time::Duration;

use forebay_config::{Config, CpuPolicy, Located, Value};
use forebay_workers::{Pool, PoolSpec, WorkerClass};

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
