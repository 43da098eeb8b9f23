//! The command of a worker: interpreter, module and environment.

use std::path::Path;
use std::process::Command;

/// Where a worker finds what it is told; it removes the variable.
const SPEC_VARIABLE: &str = "FOREBAY_WORKER";

/// What a worker's environment has besides the daemon's: one native thread, and the same hashes in every process.
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

/// The command that starts a worker.
pub(crate) fn command(interpreter: &Path, spec: &str) -> Command {
    let mut command = Command::new(interpreter);
    command.args(["-m", "forebay.worker"]).envs(ENVIRONMENT).env(SPEC_VARIABLE, spec);
    command
}
