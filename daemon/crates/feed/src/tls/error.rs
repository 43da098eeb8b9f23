//! Why TLS cannot be used with the configured files.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};

use super::TlsFiles;

/// See the module's head.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{}: {source}; `forebay keys DIR` makes such files, and the process's user must be able to read them", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A file has not what it must have.
    #[error("{}: {reason}; expected {expected} in PEM, as `forebay keys DIR` writes", .path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is in it instead.
        reason: String,
        /// What it must have.
        expected: &'static str,
    },
    /// The certificate is of no use to this side.
    #[error("{}: {reason}; {remedy}", .path.display())]
    Certificate {
        /// The certificate's file.
        path: PathBuf,
        /// Why not.
        reason: String,
        /// What to do.
        remedy: &'static str,
    },
    /// Certificate and key do not belong together.
    #[error("{}: {reason}; {} must be the certificate of this key, and both must be replaced together", .key.display(), .cert.display())]
    Pair {
        /// The certificate's file.
        cert: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// rustls's reason.
        reason: String,
    },
    /// A configured name cannot be in a certificate.
    #[error("{key}: {name:?} is neither a DNS name nor an IP address")]
    NotAName {
        /// The configuration's key.
        key: &'static str,
        /// The text.
        name: String,
    },
    /// An entry of `feed.allow` can match nothing.
    #[error(
        "feed.allow: {pattern:?} {reason}; expected a DNS name or a URI of a certificate, `*` for any characters"
    )]
    Pattern {
        /// The entry.
        pattern: String,
        /// Why it matches nothing.
        reason: &'static str,
    },
}

impl TlsError {
    pub(super) fn unusable(path: &Path, error: &dyn Error) -> Self {
        let remedy = "make the files anew, for example with `forebay keys DIR`";
        Self::Certificate { path: path.to_owned(), reason: error.to_string(), remedy }
    }

    pub(super) fn pair(files: &TlsFiles, error: &rustls::Error) -> Self {
        Self::Pair {
            cert: files.cert.clone(),
            key: files.key.clone(),
            reason: error.to_string().to_lowercase(),
        }
    }
}
