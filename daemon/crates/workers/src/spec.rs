//! The specification of a Python function and its workers.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

/// The scheduling class of the workers, which is that of the work threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerClass {
    /// SCHED_IDLE.
    Idle,
    /// SCHED_BATCH with a nice level.
    Batch(u8),
    /// SCHED_OTHER with a nice level.
    Normal(u8),
}

impl WorkerClass {
    /// Its name in specifications, and the nice level.
    pub(crate) const fn name_and_nice(self) -> (&'static str, u8) {
        match self {
            Self::Idle => ("idle", 0),
            Self::Batch(nice) => ("batch", nice),
            Self::Normal(nice) => ("normal", nice),
        }
    }
}

/// A text in memory that no process can change.
pub(crate) fn sealed_memory(text: &str) -> io::Result<OwnedFd> {
    let memory = memfd_create("forebay-worker", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut file = File::from(memory);
    file.write_all(text.as_bytes())?;
    let all = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    fcntl_add_seals(&file, all)?;
    Ok(file.into())
}

/// When workers are started, and in which class they import. A replacement is always started when it is needed, in the
/// class of [`PoolSpec::class`]: a trainer may be running then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerStart {
    /// Each when it is first called.
    WhenCalled,
    /// All of them with the pool, so that their imports run concurrently.
    AtOnce,
    /// As [`AtOnce`](Self::AtOnce), and they import in the class of this process. Only if a trainer waits for the pool:
    /// it does nothing that the imports could disturb.
    AtOnceInNormalClass,
}

/// A function and the settings of its workers.
#[derive(Debug, Clone)]
pub struct PoolSpec {
    /// The stage's name, or the place of an operation on complete batches in the configuration.
    pub stage: String,
    /// Whether it is called with complete batches.
    pub is_batch: bool,
    /// `module:function` or `module:Class`.
    pub target: String,
    /// The arguments, as a JSON object.
    pub arguments: String,
    /// The interpreter; a name without `/` is looked up on PATH.
    pub interpreter: PathBuf,
    /// The new `sys.path`; empty: unchanged.
    pub path: Vec<String>,
    /// A folder that is appended to `sys.path`.
    pub folder: PathBuf,
    /// The script or `-m` module that `__main__` means.
    pub main: Option<String>,
    /// Maximum number of processes.
    pub workers: u32,
    /// Maximum duration of one call.
    pub timeout: Duration,
    /// Maximum resident memory of a worker, in bytes.
    pub memory_bytes: u64,
    /// The workers' scheduling class, once they are ready.
    pub class: WorkerClass,
    /// When they are started, and in which class they import. In a pool with a worker in the foreground they are
    /// started when they are called.
    pub start: WorkerStart,
    /// The cores of workers that are started with the pool; empty: the cores of the thread that starts it.
    pub cores: Vec<u32>,
    /// Whether the caller starts one more worker in the foreground.
    pub has_foreground: bool,
    /// Sealed memory inherited by its workers only: the trainer's Dataset object.
    pub object: Option<Arc<OwnedFd>>,
    /// Variables of this process's environment that workers do not get, since they are secrets.
    pub withheld: &'static [&'static str],
    /// Whether workers' output is dropped, and breakpoints are skipped. Not in the foreground.
    pub is_silent: bool,
}

impl PoolSpec {
    /// Its name in messages.
    #[must_use]
    pub fn place(&self) -> String {
        if self.is_batch { format!("`{}`", self.stage) } else { format!("stage `{}`", self.stage) }
    }

    /// The module that workers import, for the log.
    pub(crate) fn imported(&self) -> &str {
        match self.object {
            Some(_) => "the Dataset object's modules",
            None => self.target.split(':').next().unwrap_or_default(),
        }
    }

    /// A worker's specification, in memory that no process can change: arguments may be longer than a control frame or
    /// an environment variable. Workers inherit the descriptor. `descriptors`: the socket and the arena of a worker in
    /// the foreground, whose standard input and output are the terminal's.
    pub(crate) fn to_memory(&self, descriptors: Option<[i32; 2]>) -> io::Result<OwnedFd> {
        sealed_memory(&self.to_json(descriptors))
    }

    fn to_json(&self, descriptors: Option<[i32; 2]>) -> String {
        let arguments: serde_json::Value =
            serde_json::from_str(&self.arguments).unwrap_or(serde_json::Value::Null);
        let (policy, nice) = self.class.name_and_nice();
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn specification_may_be_long_and_is_sealed() {
        let arguments = format!("{{\"names\":\"{}\"}}", "x".repeat(1 << 20));
        let spec = PoolSpec {
            object: None,
            stage: "augment".to_owned(),
            is_batch: false,
            target: "module:function".to_owned(),
            arguments,
            interpreter: PathBuf::from("python3"),
            path: Vec::new(),
            folder: PathBuf::new(),
            main: None,
            workers: 1,
            timeout: Duration::from_secs(1),
            memory_bytes: 1 << 30,
            class: WorkerClass::Idle,
            start: WorkerStart::WhenCalled,
            cores: Vec::new(),
            has_foreground: false,
            withheld: &[],
            is_silent: false,
        };
        let memory = File::from(spec.to_memory(None).unwrap());
        let mut bytes = vec![0; usize::try_from(memory.metadata().unwrap().len()).unwrap()];
        memory.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(String::from_utf8(bytes).unwrap(), spec.to_json(None));
        assert!(memory.write_at(b"x", 0).is_err());
        assert!(memory.set_len(0).is_err() && memory.set_len(1 << 30).is_err());
    }
}
