//! Batches on a GPU, over a stand-in for the driver's library (`stand_in_driver.c`, whose head says what that shows and
//! what it does not).
//!
//! The stand-in does queued work as late as it may, so each of these breaks the bytes when the rules of
//! `forebay_client::cuda` are broken: a slot that returns before its copy has completed, memory of a batch that is written
//! to before the work which reads it is done.

mod failures;
mod order;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use forebay_tests::TestDir;
use forebay_tests::program::{Finished, run};
use serde_json::Value;

const TRAINER: &str = env!("CARGO_BIN_EXE_forebay-test-device");

/// The folder that holds the stand-in as `libcuda.so`.
fn driver_folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("stand-in-driver");
        std::fs::create_dir_all(&folder).unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("gpu/stand_in_driver.c");
        let unfinished = folder.join(format!("libcuda.{}", std::process::id()));
        let built = Command::new("cc")
            .args([
                "-std=gnu11",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-O1",
                "-ffp-contract=off",
                "-fPIC",
            ])
            .args(["-shared", "-o"])
            .args([&unfinished, &source])
            .arg("-pthread")
            .status()
            .unwrap();
        assert!(built.success());
        // Whole at once: another test's process may be loading it.
        std::fs::rename(unfinished, folder.join("libcuda.so")).unwrap();
        folder
    })
}

/// A trainer's command, with the stand-in as the driver.
fn trainer(dir: &TestDir, arguments: &[&str]) -> Command {
    let mut command = without_driver(dir, arguments);
    command.env("LD_LIBRARY_PATH", driver_folder());
    command
}

/// A trainer's command on a machine without a driver.
fn without_driver(dir: &TestDir, arguments: &[&str]) -> Command {
    let mut command = dir.command(Path::new(TRAINER));
    command.args(arguments).env_remove("LD_LIBRARY_PATH");
    command
}

/// Runs a trainer that must end well; gives its lines.
fn lines(mut command: Command) -> Vec<Value> {
    let finished = run(&mut command);
    assert!(finished.status.success(), "{finished:?}");
    finished.json_lines()
}

/// Runs a trainer that must end with an error; gives that.
fn error(mut command: Command) -> (String, Finished) {
    let finished = run(&mut command);
    assert_eq!(finished.status.code(), Some(3), "{finished:?}");
    let last = finished.json_lines().pop().unwrap();
    (last["error"].as_str().unwrap().to_owned(), finished)
}

/// Only what batches held: number, epoch, rows, digest.
fn batches(lines: &[Value]) -> Vec<Value> {
    lines.iter().filter(|line| line["digest"].is_string()).cloned().collect()
}

/// A folder with pictures and a configuration over them: three slots, so that each is filled again soon, and a short batch
/// at the end of each epoch.
fn stream() -> (TestDir, String) {
    let dir = TestDir::new();
    let keys = "order.epochs = 3\nring.slots = 3\nring.hold = 1\nbatch.last = \"short\"";
    let config = dir.image_stream(90, 3, keys);
    let config = config.to_str().unwrap().to_owned();
    (dir, config)
}
