//! The listening socket: its path, removal of dead daemons' leftovers, and accepting clients.
//!
//! A private daemon gets its client's socket at its start. It also listens at an abstract name, for observers that
//! request metrics and cannot attach: an abstract name is not a file, so nothing remains however the daemon ends.
//!
//! Each socket file has a lock file next to it. The kernel releases its lock when the daemon dies, however it dies, so
//! a socket whose lock is free is a leftover and is removed at the next start.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use forebay_protocol::frames::{DaemonFrame, Fault, FaultKind};
use forebay_protocol::runtime_folder;
use forebay_protocol::socket::{Connection, Listener, SocketError};
use tokio::io::Interest;

use super::access::{AccessRules, may_be_unmapped};
use super::connection::serve_connection;
use super::fair_share::peer_of;
use super::host::Host;
use super::namespaces::{is_hidden_process, is_own_process};
use forebay_engine::watch;
use forebay_host::hidden;
use forebay_host::lock_file::LockFile;
use forebay_host::sockets::{abstract_prefix, credentials, lock_path};

/// Limit of clients that wait for a daemon to be ready.
const MAX_WAITING: usize = 256;

/// Why a daemon cannot listen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// Another daemon listens there.
    #[error("another daemon listens at {}; stop it or set listen.socket", .0.display())]
    Held(PathBuf),
    /// The path is another kind of file.
    #[error("{} exists and is not a socket; remove it or set listen.socket", .0.display())]
    NotASocket(PathBuf),
    /// A Unix socket's path has room for 107 bytes.
    #[error("the socket path {} is {} bytes long; at most 107 are possible: set listen.socket, or XDG_RUNTIME_DIR, to a shorter one", path.display(), path.as_os_str().len())]
    TooLong {
        /// The path.
        path: PathBuf,
    },
    /// The system refused.
    #[error("cannot listen at {}: {source}", path.display())]
    System {
        /// The path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// A listening socket and its lock. Both files are removed when it is dropped.
#[derive(Debug)]
pub struct SocketPlace {
    /// The socket's path.
    pub path: PathBuf,
    listener: Option<Listener>,
    /// Clients that connected before the streams were open; nothing is read from them yet.
    waiting: Vec<Connection>,
    // Released after the socket is removed.
    _lock: LockFile,
}

/// The folder of automatic sockets: `$XDG_RUNTIME_DIR/forebay`, else `/tmp/forebay-UID`; 0700.
pub(crate) fn runtime_folder() -> Result<PathBuf, ListenError> {
    let folder = runtime_folder::path();
    make_private(&folder)?;
    Ok(folder)
}

/// Creates a folder of sockets that no other user can write to.
fn make_private(folder: &Path) -> Result<(), ListenError> {
    let failed = |source| ListenError::System { path: folder.to_owned(), source };
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed)?;
    let status = fs::symlink_metadata(folder).map_err(failed)?;
    let own =
        std::os::unix::fs::MetadataExt::uid(&status) == nix::unistd::Uid::effective().as_raw();
    if !status.is_dir() || !own {
        return Err(failed(io::Error::other("it belongs to another user")));
    }
    fs::set_permissions(folder, fs::Permissions::from_mode(0o700)).map_err(failed)?;
    Ok(())
}

/// Listens for observers of a private daemon that serves the stream `name`.
pub fn listen_for_observers(name: &str) -> Result<(PathBuf, Listener), SocketError> {
    // The rest of the path is short.
    let name: String = name.chars().filter(|letter| letter.is_ascii_graphic()).take(60).collect();
    let path = PathBuf::from(format!("{}{}-{name}", abstract_prefix(), std::process::id()));
    Ok((path.clone(), Listener::bind(&path)?))
}

fn take_lock(socket: &Path) -> Result<LockFile, ListenError> {
    let path = lock_path(socket);
    match LockFile::try_take(&path) {
        Ok(Some(lock)) => Ok(lock),
        Ok(None) => Err(ListenError::Held(socket.to_owned())),
        Err(source) => Err(ListenError::System { path, source }),
    }
}

/// Whether nothing was written to a log for a day: that of a running daemon may be as old, and is named in its folder no
/// longer then.
fn is_old(log: &Path) -> bool {
    let changed = fs::symlink_metadata(log).and_then(|status| status.modified()).ok();
    let age = changed.and_then(|changed| changed.elapsed().ok());
    age.is_some_and(|age| age > Duration::from_secs(24 * 3600))
}

/// Removes leftovers of dead daemons from the run-time folder.
fn sweep(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        if path.extension().is_some_and(|extension| extension == "log") && is_old(&path) {
            let _ = fs::remove_file(&path);
        }
        if path.extension().is_none_or(|extension| extension != "lock") {
            continue;
        }
        // Held until the socket is removed: otherwise the next daemon's socket could be removed.
        if let Ok(Some(_lock)) = LockFile::try_take(&path) {
            let _ = fs::remove_file(path.with_extension(""));
        }
    }
}

impl SocketPlace {
    /// Listens at an explicit path, or at an automatic one in the run-time folder. The file's mode admits every user
    /// whom the rules may admit; the rules decide.
    pub fn bind(
        explicit: Option<&Path>,
        name: &str,
        rules: &AccessRules,
    ) -> Result<Self, ListenError> {
        match explicit {
            Some(path) => Self::bind_at(path.to_owned(), rules),
            None => {
                let folder = runtime_folder()?;
                sweep(&folder);
                Self::bind_at(folder.join(format!("{}-{name}.sock", std::process::id())), rules)
            }
        }
    }

    /// Listens at a path for clients of this user, in a folder that is made for this user alone.
    ///
    /// # Errors
    /// [`ListenError::Held`] if another daemon listens there; the system refused.
    pub fn bind_private(path: &Path) -> Result<Self, ListenError> {
        let folder = path.parent().unwrap_or(Path::new("/"));
        make_private(folder)?;
        sweep(folder);
        Self::bind_at(path.to_owned(), &AccessRules::default())
    }

    fn bind_at(path: PathBuf, rules: &AccessRules) -> Result<Self, ListenError> {
        if path.as_os_str().len() > 107 {
            return Err(ListenError::TooLong { path });
        }
        let lock = take_lock(&path)?;
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
        Ok(Self { path, listener: Some(listener), waiting: Vec::new(), _lock: lock })
    }

    /// Accepts clients while the daemon is not ready, and reports progress to waiting ones, if there is any. Does not
    /// block.
    pub fn keep_waiting(&mut self, has_progress: bool) {
        let Some(listener) = &self.listener else { return };
        while self.waiting.len() < MAX_WAITING {
            // A client that cannot be accepted waits in the queue.
            let Ok(Some(connection)) = listener.accept() else { break };
            self.waiting.push(connection);
        }
        if has_progress {
            self.waiting.retain(|connection| connection.ring().is_ok());
        }
    }

    /// Tells the waiting clients why the daemon will not be ready.
    pub fn refuse_waiting(&mut self, fault: &Fault) {
        self.keep_waiting(false);
        for connection in self.waiting.drain(..) {
            // Best effort: the client may be gone.
            let _ = connection.send(&DaemonFrame::Fault(fault.clone()), &[]);
        }
    }

    /// The listener and the waiting clients, once; this keeps the files.
    pub fn take_listener(&mut self) -> Option<(Listener, Vec<Connection>)> {
        Some((self.listener.take()?, std::mem::take(&mut self.waiting)))
    }
}

impl Drop for SocketPlace {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Serves a client if the rules admit it.
fn admit(connection: Connection, rules: &AccessRules, host: &Rc<Host>) {
    let credentials = match credentials(&connection) {
        Ok(credentials) => credentials,
        Err(error) => return tracing::warn!(%error, "refused a client without credentials"),
    };
    let (uid, pid) = (credentials.uid(), credentials.pid());
    let message = if let Err(reason) = rules.admit(&credentials) {
        tracing::warn!(uid, pid, "refused a user that is not allowed");
        reason
    } else if rules.own_processes_only && !is_own_process(&connection) {
        refusal_of_other_process(&connection, uid, pid)
    } else if may_be_unmapped(uid) && !is_own_process(&connection) {
        tracing::warn!(uid, pid, "refused a process that may be of any user");
        format!(
            "user {uid} may be any user that the daemon's namespace does not map, so it is admitted from the daemon's \
             own user and PID namespaces only; run the daemon in the client's container, or both as another user"
        )
    } else {
        tokio::task::spawn_local(serve_connection(connection, Rc::clone(host)));
        return;
    };
    let fault = Fault { kind: FaultKind::Config, message };
    // Best effort: the peer may not read it.
    let _ = connection.send(&DaemonFrame::Fault(fault), &[]);
}

/// Why a private daemon refuses a process that is not known to be in its namespaces.
fn refusal_of_other_process(connection: &Connection, uid: u32, pid: i32) -> String {
    if is_hidden_process(connection) {
        tracing::warn!(uid, pid, "refused a process that /proc hides from this daemon");
        return format!(
            "/proc hides process {pid} from the private daemon, which cannot tell whether it runs in its own user and PID \
             namespaces, and answers none but those; {}, or set security.confine = \"off\"",
            hidden::REMEDY
        );
    }
    tracing::warn!(uid, pid, "refused a process of another user or PID namespace");
    "a private daemon is observed only from its own user and PID namespaces; run the command in the trainer's container"
        .to_owned()
}

/// Accepts clients for ever, after the waiting ones.
pub async fn accept_clients(
    listener: Listener,
    waiting: Vec<Connection>,
    rules: AccessRules,
    host: Rc<Host>,
) -> io::Result<()> {
    waiting.into_iter().for_each(|connection| admit(connection, &rules, &host));
    let listener = watch(listener, Interest::READABLE)?;
    loop {
        let mut guard = listener.readable().await?;
        loop {
            match listener.get_ref().accept() {
                Ok(Some(connection)) => {
                    let peer = peer_of(&connection);
                    admit(connection, &rules, &host);
                    // Endless connecting must not block the engine.
                    match host.shares.listener_pause(peer, Instant::now()) {
                        Some(pause) => tokio::time::sleep(pause).await,
                        None => tokio::task::yield_now().await,
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    // Probably out of descriptors: the client waits in the queue until some are free.
                    tracing::error!(%error, "cannot accept a client; raise the limit of open files (ulimit -n)");
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
            }
        }
        guard.clear_ready();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_host::sockets::find_sockets;

    #[test]
    fn private_daemons_name_is_found_and_disappears_with_its_listener() {
        let (path, listener) = listen_for_observers("tr ain\n").unwrap();
        assert!(path.to_string_lossy().ends_with("-train"), "{}", path.display());
        assert!(find_sockets().contains(&path));
        drop(listener);
        // A process that another test starts holds the listener open until it executes its program.
        let begun = Instant::now();
        while find_sockets().contains(&path) {
            assert!(begun.elapsed() < Duration::from_secs(60), "{} is still there", path.display());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
