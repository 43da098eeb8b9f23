//! The command of a worker: interpreter, module and environment.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;
use std::process::Command;

/// Number of the descriptor from which a worker reads its specification; the worker removes the variable and closes the
/// descriptor.
const SPEC_VARIABLE: &str = "FOREBAY_WORKER";

/// Number of the descriptor of the trainer's Dataset object; the worker removes the variable.
pub(crate) const OBJECT_VARIABLE: &str = "FOREBAY_OBJECT";

/// Set if the worker imports in the class that it was started in; the worker removes the variable.
pub(crate) const NORMAL_IMPORT_VARIABLE: &str = "FOREBAY_NORMAL_IMPORT";

/// A worker's environment variables besides the daemon's: one native thread, and the same hashes in every process.
const ENVIRONMENT: [(&str, &str); 9] = [
    ("OMP_NUM_THREADS", "1"),
    ("MKL_NUM_THREADS", "1"),
    ("OPENBLAS_NUM_THREADS", "1"),
    ("NUMEXPR_NUM_THREADS", "1"),
    ("VECLIB_MAXIMUM_THREADS", "1"),
    ("TOKENIZERS_PARALLELISM", "false"),
    ("PYTHONHASHSEED", "0"),
    ("PYTHONUNBUFFERED", "1"),
    ("NO_ALBUMENTATIONS_UPDATE", "1"),
];

/// The command that starts a worker, which inherits `spec`.
pub(crate) fn command(interpreter: &Path, spec: BorrowedFd<'_>) -> Command {
    let mut command = Command::new(interpreter);
    command
        .args(["-m", "forebay.worker"])
        .envs(ENVIRONMENT)
        .env(SPEC_VARIABLE, spec.as_raw_fd().to_string());
    command
}
