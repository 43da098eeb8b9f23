//! Starts the workers of a function, as configured.

use std::path::PathBuf;
use std::time::Duration;

use forebay_config::{Concurrency, Config, CpuPolicy, DatasetObject, OBJECT_TARGET};
use forebay_keys::{ConfigError, Located, Value};
use forebay_workers::{CallFigures, HotSpot, Pool, PoolSpec, WorkerClass};

use crate::batch::BatchFunction;
use crate::plan::PythonStart;

/// The cost of a function's calls so far.
#[derive(Debug)]
pub struct FunctionFigures<'p> {
    /// The stage's name, or the operation's path.
    pub place: &'p str,
    /// `module:function`.
    pub target: &'p str,
    /// Maximal number of its worker processes.
    pub workers: u32,
    /// Totals over all workers.
    pub calls: CallFigures,
    /// The function's hot spot, if there are enough samples.
    pub hot_spot: Option<HotSpot>,
}

/// The figures of the function that these workers run.
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

/// A function and the configuration of its workers.
struct CalledFunction<'c> {
    /// The stage's name, or the operation's path.
    place: &'c str,
    is_batch: bool,
    target: &'c str,
    arguments: &'c [(String, Located)],
    workers: u32,
    timeout: Duration,
    memory_bytes: u64,
}

/// The workers of a stream's functions, until its stages and operations on batches take them.
///
/// All are started before the first is taken, so that with an early start of workers the imports of all functions run
/// concurrently. Workers that are not taken end when this is dropped.
pub(crate) struct Pools(Vec<Pool>);

impl Pools {
    /// Starts the spawner of each function, and the workers that start with it.
    pub(crate) fn start<'f>(
        config: &Config,
        functions: impl Iterator<Item = &'f BatchFunction>,
        start: PythonStart<'_>,
    ) -> Result<Self, ConfigError> {
        let mut pools = Vec::new();
        for (number, stage) in config.stages.iter().enumerate() {
            let Some(target) = stage.python.as_deref() else { continue };
            let is_shown =
                start.foreground.is_some_and(|of| of.stage.is_none_or(|one| one == number));
            let called = CalledFunction {
                place: &stage.name,
                is_batch: false,
                target,
                arguments: stage.arguments.as_deref().unwrap_or_default(),
                workers: workers_of(stage.threads(), start),
                timeout: stage.call_timeout(),
                memory_bytes: stage.worker_bytes(),
            };
            let pool = start_pool(config, called, start, (is_shown, start.foreground.is_some()));
            let at = config.location(&["stage"]);
            pools.push(pool.map_err(|reason| ConfigError::new(&at, reason))?);
        }
        for function in functions {
            let called = CalledFunction {
                place: &function.path,
                is_batch: true,
                target: &function.target,
                arguments: &function.arguments,
                // Concurrent batches are in slots.
                workers: workers_of(function.workers, start).min(config.ring.slots.into()),
                timeout: function.timeout,
                memory_bytes: function.memory_bytes,
            };
            let pool = start_pool(config, called, start, (false, false));
            pools.push(pool.map_err(|reason| ConfigError::new(&function.location, reason))?);
        }
        Ok(Self(pools))
    }

    /// The workers of a stage, by its name, or of a function on batches, by its path.
    pub(crate) fn take(&mut self, place: &str) -> Result<Pool, String> {
        let found = self.0.iter().position(|pool| pool.spec().stage == place);
        found
            .map(|number| self.0.swap_remove(number))
            .ok_or_else(|| format!("`{place}` has no workers"))
    }
}

fn workers_of(configured: Concurrency, start: PythonStart<'_>) -> u32 {
    match configured {
        Concurrency::Auto => start.workers,
        Concurrency::Threads(workers) => workers.get(),
    }
}

/// Whether this process has the hub's token for the stream's data.
fn reads_hub(config: &Config) -> bool {
    config.datasets().any(|dataset| dataset.path.starts_with("hf:"))
}

fn start_pool(
    config: &Config,
    called: CalledFunction<'_>,
    start: PythonStart<'_>,
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
        start: start.start,
        cores: start.cores.to_vec(),
        object: match called.target {
            OBJECT_TARGET => config.dataset.object.as_ref().map(DatasetObject::descriptor),
            _ => None,
        },
        has_foreground,
        withheld: if reads_hub(config) { &["HF_TOKEN"] } else { &[] },
        is_silent,
    };
    Pool::start(spec)
        .map_err(|error| format!("the process that starts workers cannot be started: {error}"))
}
