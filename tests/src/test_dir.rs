//! A folder of a test's own, and the environment in which its processes run.

use std::path::{Path, PathBuf};
use std::process::Command;

use forebay_client::{Builder, Loader, Target};
use tempfile::TempDir;

use crate::{DEADLINE, program};

/// What a launcher sets, and what would lead a process out of the test's folder.
const FOREIGN_VARIABLES: &[&str] = &[
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_STEP_TASKS_PER_NODE",
    "SLURM_NODEID",
    "FOREBAY_SOCKET",
    "FOREBAY_LOG",
    "FOREBAY_DATA",
];

/// A temporary folder that goes with the test.
#[derive(Debug)]
pub struct TestDir {
    folder: TempDir,
}

impl Default for TestDir {
    fn default() -> Self {
        Self::new()
    }
}

impl TestDir {
    /// A fresh folder.
    ///
    /// # Panics
    /// When there is no room for one.
    #[must_use]
    pub fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("forebay-test-").tempdir().unwrap();
        for name in ["run", "cache"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        Self { folder }
    }

    /// A path in the folder.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The folder of automatic sockets.
    #[must_use]
    pub fn runtime_folder(&self) -> PathBuf {
        self.path("run/forebay")
    }

    /// What lies in the folder of automatic sockets.
    #[must_use]
    pub fn runtime_files(&self) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.runtime_folder()) else {
            return Vec::new();
        };
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
    }

    /// Writes a configuration. Its index lies beside it, so that tests leave the user's cache alone; work threads run in
    /// the normal class, so that a busy machine does not starve them.
    ///
    /// # Panics
    /// When it cannot be written.
    #[must_use]
    pub fn config(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        let index = path.with_extension("index");
        let keys = format!("dataset.index = {:?}\ncpu.policy = \"normal\"\n", index.display());
        std::fs::write(&path, format!("{keys}{text}")).unwrap();
        path
    }

    /// A program in the test's environment: sockets and caches in the folder, no launcher.
    #[must_use]
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        for name in FOREIGN_VARIABLES {
            command.env_remove(name);
        }
        command
            .env("XDG_RUNTIME_DIR", self.path("run"))
            .env("XDG_CACHE_HOME", self.path("cache"))
            .env("FOREBAY_PROGRAM", program::forebay())
            // The tests look at their daemons from outside, also where they do not run as root.
            .env("FOREBAY_DUMPABLE", "1")
            .current_dir(self.folder.path());
        command
    }

    /// `forebay` with arguments, in the test's environment.
    #[must_use]
    pub fn forebay<I: AsRef<std::ffi::OsStr>>(&self, arguments: &[I]) -> Command {
        let mut command = self.command(program::forebay());
        command.args(arguments);
        command
    }
}

/// A loader to be attached as a rank, which gives up after [`DEADLINE`].
#[must_use]
pub fn loader(target: impl Into<Target>, rank: u32, world_size: u32) -> Builder {
    Loader::builder(target).rank(rank, world_size).timeout(DEADLINE).program(program::forebay())
}
