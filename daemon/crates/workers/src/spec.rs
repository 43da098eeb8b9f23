//! What is known of a Python function before its workers start.

use std::path::PathBuf;
use std::time::Duration;

/// The scheduling class of the workers: that of the work threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerClass {
    /// SCHED_IDLE.
    Idle,
    /// SCHED_BATCH with a nice level.
    Batch(u8),
    /// SCHED_OTHER with a nice level.
    Normal(u8),
}

/// A function and how its workers are started.
#[derive(Debug, Clone)]
pub struct PoolSpec {
    /// The stage's name, or the place of an operation on complete batches in the configuration.
    pub stage: String,
    /// Whether it is called with complete batches.
    pub is_batch: bool,
    /// `module:function` or `module:Class`.
    pub target: String,
    /// A JSON object: the arguments.
    pub arguments: String,
    /// The interpreter; a name without `/` is looked up on PATH.
    pub interpreter: PathBuf,
    /// What `sys.path` becomes; empty: what it is.
    pub path: Vec<String>,
    /// What `sys.path` has at its end besides.
    pub folder: PathBuf,
    /// The script or `-m` module that `__main__` means.
    pub main: Option<String>,
    /// Processes at most.
    pub workers: u32,
    /// How long one call may run.
    pub timeout: Duration,
    /// What a worker may hold, resident.
    pub memory_bytes: u64,
    /// The workers' scheduling class.
    pub class: WorkerClass,
    /// One worker more is started in the foreground, by the caller.
    pub has_foreground: bool,
    /// What workers print is dropped, and breakpoints pass. Not in the foreground.
    pub is_silent: bool,
}

impl PoolSpec {
    /// What messages call it.
    #[must_use]
    pub fn place(&self) -> String {
        if self.is_batch { format!("`{}`", self.stage) } else { format!("stage `{}`", self.stage) }
    }

    /// What a worker is told, as JSON. `descriptors`: of the socket and the arena of a worker in the foreground, whose
    /// standard input and output are the terminal's.
    pub(crate) fn to_json(&self, descriptors: Option<[i32; 2]>) -> String {
        let arguments: serde_json::Value =
            serde_json::from_str(&self.arguments).unwrap_or(serde_json::Value::Null);
        let (policy, nice) = match self.class {
            WorkerClass::Idle => ("idle", 0),
            WorkerClass::Batch(nice) => ("batch", nice),
            WorkerClass::Normal(nice) => ("normal", nice),
        };
        serde_json::json!({
            "stage": self.stage,
            "place": self.place(),
            "batch": self.is_batch,
            "python": self.target,
            "arguments": arguments,
            "path": self.path,
            "folder": self.folder.to_string_lossy(),
            "main": self.main,
            "policy": policy,
            "nice": nice,
            "foreground": descriptors,
            "breakpoints": !self.is_silent,
        })
        .to_string()
    }
}
