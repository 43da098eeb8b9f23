//! The folder of a user's automatic sockets. A daemon creates it; its clients look for sockets there.

use std::path::PathBuf;

/// `$XDG_RUNTIME_DIR/forebay`, else `/tmp/forebay-UID`.
#[must_use]
pub fn path() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(folder) if !folder.is_empty() => PathBuf::from(folder).join("forebay"),
        _ => std::env::temp_dir().join(format!("forebay-{}", nix::unistd::Uid::effective())),
    }
}
