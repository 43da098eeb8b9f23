//! A folder of a test's own, and the environment in which its processes run.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use forebay_client::{Builder, Loader, Target};
use forebay_protocol::launcher;
use tempfile::TempDir;

use crate::{DEADLINE, data, program};

/// What would lead a process out of the test's folder.
const FOREIGN_VARIABLES: &[&str] =
    &["FOREBAY_SOCKET", "FOREBAY_LOG", "FOREBAY_DATA", "FOREBAY_EXPECT", "FOREBAY_RANKS_FOLDER"];

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

impl Drop for TestDir {
    /// A test that fails leaves processes running, which would hold the output of the tests' runner open.
    fn drop(&mut self) {
        // More than once: one of them may be about to start another.
        for _ in 0..if std::thread::panicking() { 3 } else { 0 } {
            for process in self.processes().iter().filter_map(|number| number.parse().ok()) {
                crate::signal(process, nix::sys::signal::Signal::SIGKILL);
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

impl TestDir {
    /// A fresh folder.
    pub fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("forebay-test-").tempdir().unwrap();
        for name in ["run", "cache"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        Self { folder }
    }

    /// A path in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The folder of automatic sockets.
    pub fn runtime_folder(&self) -> PathBuf {
        self.path("run/forebay")
    }

    /// What lies in the folder of automatic sockets.
    pub fn runtime_files(&self) -> BTreeSet<String> {
        crate::names_in(&self.runtime_folder())
    }

    /// The processes that were started in this folder, except this one.
    pub fn processes(&self) -> BTreeSet<String> {
        let needle = self.path("run").display().to_string();
        let is_ours = |name: &String| {
            let environment = std::fs::read(format!("/proc/{name}/environ")).unwrap_or_default();
            String::from_utf8_lossy(&environment).contains(&needle)
        };
        let mut found = crate::names_in(Path::new("/proc"));
        found.remove(&std::process::id().to_string());
        found.retain(is_ours);
        found
    }

    /// The shared daemons that were started in this folder, those included that end since another one has the socket.
    pub fn shared_daemons(&self) -> Vec<u32> {
        let is_daemon = |process: &u32| {
            let line = std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains("shared\0--detached")
        };
        self.processes().iter().filter_map(|name| name.parse().ok()).filter(is_daemon).collect()
    }

    /// Writes a configuration. Its index lies beside it, so that tests leave the user's cache alone; work threads run in
    /// the normal class, so that a busy machine does not starve them.
    pub fn config(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        let index = path.with_extension("index");
        let keys = format!("dataset.index = {:?}\ncpu.policy = \"normal\"\n", index.display());
        std::fs::write(&path, format!("{keys}{text}")).unwrap();
        path
    }

    /// The configuration `train.toml` over so many arrays, as [`data::stack_config`] has it.
    pub fn stack_stream(&self, samples: u64, keys: &str) -> PathBuf {
        data::stack(&self.path("data"), samples);
        self.config("train.toml", &data::stack_config(&self.path("data"), keys))
    }

    /// As [`stack_stream`](Self::stack_stream), through other stages.
    pub fn staged_stream(&self, samples: u64, keys: &str, stages: &str) -> PathBuf {
        data::stack(&self.path("data"), samples);
        self.config("train.toml", &data::staged_config(&self.path("data"), keys, stages))
    }

    /// The configuration `train.toml` over so many images in class folders, as [`data::image_config`] has it.
    pub fn image_stream(&self, samples: u64, classes: u32, keys: &str) -> PathBuf {
        data::images(&self.path("images"), samples, classes);
        self.config("train.toml", &data::image_config(&self.path("images"), keys))
    }

    /// A program in the test's environment: sockets and caches in the folder, no launcher.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        for name in FOREIGN_VARIABLES.iter().copied().chain(launcher::variables()) {
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
    pub fn forebay<I: AsRef<std::ffi::OsStr>>(&self, arguments: &[I]) -> Command {
        let mut command = self.command(program::forebay());
        command.args(arguments);
        command
    }

    /// As [`forebay`](Self::forebay), where it finds no private daemon of this machine: abstract sockets are those of a
    /// network namespace. It finds all of them where none can be made.
    pub fn forebay_alone(&self, arguments: &[&str]) -> Command {
        let alone = ["--map-root-user", "--net"];
        let mut tried = self.command(Path::new("unshare"));
        if !tried.args(alone).arg("true").output().is_ok_and(|tried| tried.status.success()) {
            return self.forebay(arguments);
        }
        let mut command = self.command(Path::new("unshare"));
        command.args(alone).arg(program::forebay()).args(arguments);
        command
    }
}

/// A loader to be attached as a rank, which gives up after [`DEADLINE`].
pub fn loader(target: impl Into<Target>, rank: u32, world_size: u32) -> Builder {
    Loader::builder(target).rank(rank, world_size).timeout(DEADLINE).program(program::forebay())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_test_leaves_no_process() {
        let mut child = None;
        let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let dir = TestDir::new();
            child = Some(dir.command(Path::new("sleep")).arg("600").spawn().unwrap());
            panic!("as a failed test does");
        }));
        assert!(failed.is_err());
        assert!(!program::wait(&mut child.unwrap()).success());
    }
}
