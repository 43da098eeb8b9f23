//! The listening socket: where it lies, who swept what an earlier daemon left, and taking clients in.
//!
//! Beside each socket lies a lock file. The kernel releases its lock when the daemon dies, however it dies, so a socket
//! whose lock is free is a leftover and is removed at the next start.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use forebay_protocol::socket::{Listener, SocketError};
use nix::fcntl::{Flock, FlockArg};
use tokio::io::Interest;

use super::access::AccessRules;
use super::connection::serve_connection;
use super::host::Host;
use super::peer;
use crate::engine::watch;

/// Why a daemon cannot listen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// Another daemon is there.
    #[error("another daemon listens at {}; stop it or set listen.socket", .0.display())]
    Held(PathBuf),
    /// There is something else.
    #[error("{} exists and is no socket; remove it or set listen.socket", .0.display())]
    NotASocket(PathBuf),
    /// A Unix socket's path has room for 107 bytes.
    #[error("the socket path {} is {} bytes long; at most 107 are possible: set listen.socket to a shorter one", path.display(), path.as_os_str().len())]
    TooLong {
        /// The path.
        path: PathBuf,
    },
    /// The system refused.
    #[error("cannot listen at {}: {source}", path.display())]
    System {
        /// The path.
        path: PathBuf,
        /// Its reason.
        source: io::Error,
    },
}

/// A listening socket and its lock. Both files go when it is dropped.
#[derive(Debug)]
pub(crate) struct SocketPlace {
    pub(crate) path: PathBuf,
    lock_path: PathBuf,
    listener: Option<Listener>,
    _lock: Flock<File>,
}

/// The folder of automatic sockets: `$XDG_RUNTIME_DIR/forebay`, else `/tmp/forebay-UID`; 0700.
pub(crate) fn runtime_folder() -> Result<PathBuf, ListenError> {
    let folder = runtime_folder_path();
    let failed = |source| ListenError::System { path: folder.clone(), source };
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder).map_err(failed)?;
    let status = fs::symlink_metadata(&folder).map_err(failed)?;
    let own =
        std::os::unix::fs::MetadataExt::uid(&status) == nix::unistd::Uid::effective().as_raw();
    if !status.is_dir() || !own {
        return Err(failed(io::Error::other("it belongs to another user")));
    }
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).map_err(failed)?;
    Ok(folder)
}

fn runtime_folder_path() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(folder) if !folder.is_empty() => PathBuf::from(folder).join("forebay"),
        _ => std::env::temp_dir().join(format!("forebay-{}", nix::unistd::Uid::effective())),
    }
}

/// The automatic sockets of this user on which a daemon listens.
#[must_use]
pub fn find_sockets() -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(runtime_folder_path()) else {
        return Vec::new();
    };
    let mut sockets: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "sock"))
        .filter(|path| matches!(take_lock(&lock_path(path)), Err(ListenError::Held(_))))
        .collect();
    sockets.sort();
    sockets
}

fn lock_path(socket: &Path) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(".lock");
    PathBuf::from(path)
}

fn take_lock(path: &Path) -> Result<Flock<File>, ListenError> {
    let failed = |source| ListenError::System { path: path.to_owned(), source };
    loop {
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(path)
            .map_err(failed)?;
        let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock)
            .map_err(|_| ListenError::Held(path.with_extension("")))?;
        if is_still_at(&lock, path) {
            return Ok(lock);
        }
    }
}

/// Whether a file that was opened still lies there. Its owner removes it before it lets go: who had opened it before holds
/// a lock on a name that is gone, beside which another daemon may lock a new one.
fn is_still_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(held), Ok(named)) => (held.dev(), held.ino()) == (named.dev(), named.ino()),
        _ => false,
    }
}

/// Removes what dead daemons left in the run-time folder.
fn sweep(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        if path.extension().is_none_or(|extension| extension != "lock") {
            continue;
        }
        // Held until both files are gone: else the next daemon's could be the ones that are removed.
        if let Ok(_lock) = take_lock(&path) {
            let _ = fs::remove_file(path.with_extension(""));
            let _ = fs::remove_file(&path);
        }
    }
}

impl SocketPlace {
    /// Listens at an explicit path, or under a name of its own in the run-time folder. The file's mode lets reach it
    /// whomever the rules may admit; they are what decides.
    pub(crate) fn bind(
        explicit: Option<&Path>,
        name: &str,
        rules: &AccessRules,
    ) -> Result<Self, ListenError> {
        let path = match explicit {
            Some(path) => path.to_owned(),
            None => {
                let folder = runtime_folder()?;
                sweep(&folder);
                folder.join(format!("{}-{name}.sock", std::process::id()))
            }
        };
        if path.as_os_str().len() > 107 {
            return Err(ListenError::TooLong { path });
        }
        let lock_path = lock_path(&path);
        let lock = take_lock(&lock_path)?;
        let failed = |source| ListenError::System { path: path.clone(), source };
        match fs::symlink_metadata(&path) {
            Ok(status) if std::os::unix::fs::FileTypeExt::is_socket(&status.file_type()) => {
                fs::remove_file(&path).map_err(failed)?;
            }
            Ok(_) => return Err(ListenError::NotASocket(path)),
            Err(_) => {}
        }
        let listener = Listener::bind(&path).map_err(|error| match error {
            SocketError::Call { source, .. } => failed(source),
            other => failed(io::Error::other(other.to_string())),
        })?;
        let mode = match (rules.allow_uids.is_empty(), rules.group) {
            (true, None) => 0o600,
            (true, Some(_)) => 0o660,
            (false, _) => 0o666,
        };
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).map_err(failed)?;
        if rules.group.is_some() {
            std::os::unix::fs::chown(&path, None, rules.group).map_err(failed)?;
        }
        Ok(Self { path, lock_path, listener: Some(listener), _lock: lock })
    }

    /// Gives the listener to whoever accepts; the files stay this one's.
    pub(crate) fn take_listener(&mut self) -> Option<Listener> {
        self.listener.take()
    }
}

impl Drop for SocketPlace {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
        let _ = fs::remove_file(&self.lock_path);
    }
}

/// Takes clients in for ever.
pub(crate) async fn accept_clients(
    listener: Listener,
    rules: AccessRules,
    host: Rc<Host>,
) -> io::Result<()> {
    let listener = watch(listener, Interest::READABLE)?;
    loop {
        let mut guard = listener.readable().await?;
        loop {
            match listener.get_ref().accept() {
                Ok(Some(connection)) => {
                    match peer::credentials(&connection) {
                        Ok(credentials) if rules.admit(&credentials) => {
                            let served = serve_connection(connection, Rc::clone(&host));
                            tokio::task::spawn_local(served);
                        }
                        Ok(credentials) => {
                            tracing::warn!(
                                uid = credentials.uid(),
                                pid = credentials.pid(),
                                "refused a user that is not allowed"
                            );
                        }
                        Err(error) => {
                            tracing::warn!(%error, "refused a client without credentials");
                        }
                    }
                    // Whoever connects without end shall not keep the engine from its clients.
                    tokio::task::yield_now().await;
                }
                Ok(None) => break,
                Err(error) => {
                    // Most likely out of descriptors: the client waits in the queue until some are free.
                    tracing::error!(%error, "cannot take a client in; raise the limit of open files (ulimit -n)");
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
            }
        }
        guard.clear_ready();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn a_lock_counts_only_on_the_file_that_lies_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sock.lock");
        let lock = take_lock(&path).unwrap();
        assert!(is_still_at(&lock, &path));
        fs::remove_file(&path).unwrap();
        assert!(!is_still_at(&lock, &path));
        let next = take_lock(&path).unwrap();
        assert!(is_still_at(&next, &path) && !is_still_at(&lock, &path));
    }

    #[test]
    fn daemons_that_come_and_go_at_one_place_are_never_two() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sock.lock");
        let inside = AtomicU32::new(0);
        let come_and_go = || {
            for _ in 0..2000 {
                let Ok(lock) = take_lock(&path) else { continue };
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two hold the place");
                std::hint::spin_loop();
                inside.fetch_sub(1, Ordering::SeqCst);
                // As `SocketPlace` is dropped: the file first, then the lock.
                fs::remove_file(&path).unwrap();
                drop(lock);
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(come_and_go);
            }
        });
    }
}
