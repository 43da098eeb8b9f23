//! The sockets at which this user's daemons listen, and whether they are alive.
//!
//! The socket of `serve` or `run` is a file with a lock file next to it; a private daemon's socket is an abstract name,
//! not a file. The crate `control` creates and removes them.

use std::fs;
use std::path::{Path, PathBuf};

use forebay_protocol::runtime_folder;
use forebay_protocol::socket::Connection;
use nix::sys::socket::{UnixCredentials, getsockopt, sockopt};

use crate::lock_file::LockFile;

/// Process, user and group of the peer, from the kernel.
///
/// # Errors
/// The kernel's error.
pub fn credentials(connection: &Connection) -> nix::Result<UnixCredentials> {
    getsockopt(connection, sockopt::PeerCredentials)
}

/// The lock file of a socket, which is locked while the daemon lives.
#[must_use]
pub fn lock_path(socket: &Path) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(".lock");
    PathBuf::from(path)
}

/// The automatic sockets of this user on which a daemon listens, including sockets of private daemons (`@…`).
#[must_use]
pub fn find_sockets() -> Vec<PathBuf> {
    let entries = fs::read_dir(runtime_folder::path());
    let mut sockets: Vec<PathBuf> = entries
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "sock"))
        .filter(|path| matches!(LockFile::try_take(&lock_path(path)), Ok(None)))
        .collect();
    let names = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let abstract_sockets =
        abstract_names(&names, &abstract_prefix()).into_iter().map(PathBuf::from);
    // Any user can bind an abstract name.
    sockets.extend(abstract_sockets.filter(|path| is_own(path)));
    sockets.sort();
    sockets
}

/// Whether the listener is a visible process of this user: 0 means one in a foreign PID namespace.
fn is_own(path: &Path) -> bool {
    let own = nix::unistd::Uid::effective().as_raw();
    let connection = Connection::connect(path).ok();
    connection
        .and_then(|connection| credentials(&connection).ok())
        .is_some_and(|peer| peer.uid() == own && peer.pid() > 0)
}

/// The prefix of the abstract names of this user's private daemons.
#[must_use]
pub fn abstract_prefix() -> String {
    format!("@forebay-{}/", nix::unistd::Uid::effective())
}

/// The names in /proc/net/unix that have a listener and begin with `prefix`.
fn abstract_names(table: &str, prefix: &str) -> Vec<String> {
    const LISTENING: &str = "00010000";
    let lines = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    lines
        .filter(|fields| fields.get(3) == Some(&LISTENING))
        .filter_map(|fields| Some((*fields.get(7)?).to_owned()))
        .filter(|name| name.starts_with(prefix))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_users_names_with_a_listener_are_found() {
        let table = "Num       RefCount Protocol Flags    Type St Inode Path\n\
                     0000000000000000: 00000002 00000000 00010000 0005 01 17 @forebay-7/12-train\n\
                     0000000000000000: 00000003 00000000 00000000 0005 03 18 @forebay-7/12-train\n\
                     0000000000000000: 00000002 00000000 00010000 0005 01 19 @forebay-77/13-train\n\
                     0000000000000000: 00000002 00000000 00010000 0001 01    20 @forebay-7/14-a\n\
                     0000000000000000: 00000002 00000000 00010000 0001 01 21\n";
        assert_eq!(
            abstract_names(table, "@forebay-7/"),
            ["@forebay-7/12-train", "@forebay-7/14-a"]
        );
    }
}
