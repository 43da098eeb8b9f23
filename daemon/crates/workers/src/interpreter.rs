//! The command of a worker: interpreter, module and environment, or this program as a decoder.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};

/// Number of the descriptor from which a worker reads its specification; the worker removes the variable and closes the
/// descriptor.
pub(crate) const SPEC_VARIABLE: &str = "FOREBAY_WORKER";

/// Number of the descriptor of the trainer's Dataset object; the worker removes the variable.
pub(crate) const OBJECT_VARIABLE: &str = "FOREBAY_OBJECT";

/// Set if the worker imports in the class that it was started in; the worker removes the variable.
pub(crate) const NORMAL_IMPORT_VARIABLE: &str = "FOREBAY_NORMAL_IMPORT";

/// The hidden command of this program that runs a foreign decoder.
const DECODER_COMMAND: &str = "decode-media";

/// The variables of the daemon's environment that a decoder gets.
const DECODER_ENVIRONMENT: [&str; 4] =
    ["PATH", "LD_LIBRARY_PATH", "FOREBAY_LIBAVCODEC", "RUST_BACKTRACE"];

/// What a spawner starts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Program {
    /// The user's Python, by an interpreter.
    Python(PathBuf),
    /// This program, as a foreign decoder.
    Decoder,
}

impl Program {
    /// The command that starts it, which inherits `spec`.
    pub(crate) fn command(&self, spec: BorrowedFd<'_>) -> Command {
        match self {
            Self::Python(interpreter) => command(interpreter, spec),
            Self::Decoder => {
                let mut command = crate::own_program::command();
                // None of the daemon's secrets: only what the loader of its libraries reads.
                let kept = DECODER_ENVIRONMENT
                    .iter()
                    .filter_map(|name| Some((name, std::env::var_os(name)?)));
                let kept: Vec<_> = kept.collect();
                command.env_clear().envs(kept).arg(DECODER_COMMAND);
                command.env(SPEC_VARIABLE, spec.as_raw_fd().to_string());
                command
            }
        }
    }
}

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
