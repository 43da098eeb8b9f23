//! The daemon that loaders of one host share: the place of its socket, and its start. docs/design/shared-daemon.md draws
//! the states.
//!
//! Loaders of the same user, release and configuration (with the environment variables that it names) find each other by
//! the name of the socket. A loader that finds no
//! daemon there starts one; a daemon that finds the socket's lock held says so and ends, so any number may be started at
//! once. The connection to a daemon that this process has started carries its configuration, or the state of the dead
//! daemon that it replaces. The session uses another one, as that of every loader does.

use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use forebay_protocol::frames::{ClientFrame, ConfigSource, DaemonFrame, Fault, FaultKind};
use forebay_protocol::runtime_folder;
use forebay_protocol::socket::{Connection, Incoming, SocketError};
use nix::sys::socket::{getsockopt, sockopt};

use crate::error::Error;
use crate::supervisor::greet;

/// See the module's documentation.
#[derive(Debug, Clone)]
pub(crate) struct SharedDaemon {
    /// Absolute: the working directory may change.
    program: PathBuf,
    socket: PathBuf,
}

/// The state of a daemon that this process has started.
#[derive(Debug)]
pub(crate) enum Starting {
    /// It opens the streams.
    Opening,
    /// It serves.
    Serving,
    /// Another daemon has the socket.
    Held,
    /// It cannot serve, for this reason.
    Refused(Fault),
    /// It ended without a reason.
    Gone,
}

impl SharedDaemon {
    /// The daemon of a configuration. `name` separates jobs with the same one.
    ///
    /// # Errors
    /// [`Error::Config`] if the configuration cannot be read.
    pub(crate) fn of(
        program: PathBuf,
        name: &str,
        config: &ConfigSource,
        overrides: &[(String, String)],
    ) -> Result<Self, Error> {
        let mut digest = Digest::default();
        let mut file_text = String::new();
        let release = env!("CARGO_PKG_VERSION");
        let label = match config {
            ConfigSource::File(path) => {
                let text = std::fs::read(path).map_err(|error| {
                    Error::Config(format!("the configuration `{path}`: {error}"))
                })?;
                let place = place_of(Path::new(path));
                let place = place.as_os_str().as_encoded_bytes();
                [b"file", place, &text].iter().for_each(|part| digest.add(part));
                file_text = String::from_utf8_lossy(&text).into_owned();
                Path::new(path).file_stem().map(|stem| stem.to_string_lossy().into_owned())
            }
            ConfigSource::Json { name, folder, text } => {
                let parts = ["json", name, folder, text];
                parts.iter().for_each(|part| digest.add(part.as_bytes()));
                None
            }
        };
        let texts = match config {
            ConfigSource::File(_) => String::new(),
            ConfigSource::Json { text, .. } => text.clone(),
        };
        let overridden = overrides.iter().map(|(_, value)| value.as_str());
        for text in [&*file_text, &*texts].into_iter().chain(overridden) {
            digest.add_variables(text);
        }
        [release, name].iter().for_each(|part| digest.add(part.as_bytes()));
        let calls_python = [&*file_text, &*texts]
            .into_iter()
            .chain(
                overrides
                    .iter()
                    .filter(|(key, _)| !is_of_python(key))
                    .flat_map(|(key, value)| [&**key, value]),
            )
            .any(|text| text.contains("python") || text.contains("call"));
        for (key, value) in overrides.iter().filter(|(key, _)| calls_python || !is_of_python(key)) {
            [key, value].iter().for_each(|part| digest.add(part.as_bytes()));
        }
        let is_plain = |letter: &char| letter.is_ascii_alphanumeric() || "-_.".contains(*letter);
        let label: String = label.unwrap_or_default().chars().filter(is_plain).take(24).collect();
        let file = format!("shared-{label}-{:016x}.sock", digest.0);
        let socket = runtime_folder::path().join(file);
        Ok(Self { program, socket })
    }

    /// The file of its log, which exists while it runs and after a death.
    pub(crate) fn log(&self) -> PathBuf {
        self.socket.with_extension("log")
    }

    /// Its socket.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Connects to it and sends `Hello`; `None`: no daemon listens.
    ///
    /// # Errors
    /// [`Error::Config`]: the socket is another user's.
    pub(crate) fn connect(&self) -> Result<Option<Connection>, Error> {
        let Ok(connection) = Connection::connect(&self.socket) else { return Ok(None) };
        let own = nix::unistd::Uid::effective().as_raw();
        let theirs = getsockopt(&connection, sockopt::PeerCredentials).map(|peer| peer.uid());
        if theirs == Ok(own) {
            return Ok(greet(&connection).is_ok().then_some(connection));
        }
        Err(Error::Config(format!(
            "the socket {} is not of this process's user ({own}): name another folder in XDG_RUNTIME_DIR",
            self.socket.display()
        )))
    }

    /// Starts a daemon, and returns the connection that configures it with this frame.
    ///
    /// # Errors
    /// [`Error::Config`] if the program cannot be started, [`Error::Memory`] for lack of descriptors.
    pub(crate) fn start(
        &self,
        frame: &ClientFrame,
        descriptors: &[OwnedFd],
    ) -> Result<Connection, Error> {
        let (own, daemons) = Connection::pair()
            .map_err(|error| Error::Memory(format!("creating a socket pair failed: {error}")))?;
        let failed = |error: SocketError| {
            Error::Config(format!("sending the daemon's first frames: {error}"))
        };
        greet(&own).map_err(failed)?;
        let descriptors: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
        own.send(frame, &descriptors).map_err(failed)?;
        let mut starter = Command::new(&self.program)
            .arg("shared")
            .arg(&self.socket)
            .stdin(Stdio::from(daemons.into_descriptor()))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| {
                Error::Config(format!(
                    "the program `{}` could not be started: {error}",
                    self.program.display()
                ))
            })?;
        // It ends at once and leaves the daemon to the system. Another part of this program may have reaped it.
        match starter.wait() {
            Ok(status) if !status.success() => Err(Error::Config(format!(
                "the program `{}` starts no shared daemon ({status}); it must be of release {}",
                self.program.display(),
                env!("CARGO_PKG_VERSION")
            ))),
            _ => Ok(own),
        }
    }
}

/// Reads what a daemon that was started has sent.
pub(crate) fn read_start(starter: &Connection) -> Starting {
    loop {
        match starter.receive::<DaemonFrame>() {
            Ok(Incoming::Frame(DaemonFrame::Fault(fault), _)) => {
                return if fault.kind == FaultKind::Taken {
                    Starting::Held
                } else {
                    Starting::Refused(fault)
                };
            }
            Ok(Incoming::Frame(DaemonFrame::Kept, _)) => return Starting::Serving,
            Ok(Incoming::Frame(..) | Incoming::Doorbell) => {}
            Ok(Incoming::Empty) => return Starting::Opening,
            Err(_) => return Starting::Gone,
        }
    }
}

/// The file in its folder's one path: `../train.toml` is the same file. A link keeps its folder, where relative paths start.
fn place_of(path: &Path) -> PathBuf {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = std::fs::canonicalize(folder.unwrap_or(Path::new(".")));
    match (folder, path.file_name()) {
        (Ok(folder), Some(name)) => folder.join(name),
        _ => path.to_owned(),
    }
}

/// Whether a key says where the user's Python is: the script, the interpreter, its search path.
fn is_of_python(key: &str) -> bool {
    key.starts_with("python.")
}

/// FNV-1a of parts, each with its length: loaders with equal parts have the same number, on every machine.
#[derive(Debug)]
struct Digest(u64);

impl Default for Digest {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Digest {
    /// Adds the values of the environment variables that a text names (`${NAME}`, `${NAME:-default}`): they are part of
    /// the configuration.
    fn add_variables(&mut self, text: &str) {
        self.add_variables_of(text, &|name| std::env::var_os(name));
    }

    fn add_variables_of(&mut self, text: &str, value_of: &dyn Fn(&str) -> Option<OsString>) {
        for part in text.split("${").skip(1) {
            let is_of_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
            let name = part.split(|letter| !is_of_name(letter)).next().unwrap_or_default();
            self.add(name.as_bytes());
            match value_of(name) {
                Some(value) => self.add(value.as_encoded_bytes()),
                None => self.add(b"\0unset"),
            }
        }
    }

    fn add(&mut self, part: &[u8]) {
        let length = (part.len() as u64).to_le_bytes();
        for byte in length.iter().chain(part) {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loaders_with_the_same_configuration_and_name_have_one_socket() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("train.toml");
        std::fs::write(&path, "[batch]\nsize = 2\n").unwrap();
        let file = ConfigSource::File(path.display().to_string());
        let of = |name: &str, overrides: &[(&str, &str)]| {
            let overrides: Vec<_> =
                overrides.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
            let daemon = SharedDaemon::of("forebay".into(), name, &file, &overrides).unwrap();
            daemon.socket.file_name().unwrap().to_str().unwrap().to_owned()
        };
        let first = of("", &[]);
        assert!(first.starts_with("shared-train-"), "{first}");
        assert_eq!(of("", &[]), first);
        assert_ne!(of("other", &[]), first);
        assert_ne!(of("", &[("batch.size", "4")]), first);
        assert_ne!(of("", &[("batch.siz", "e4")]), of("", &[("batch.size", "4")]));
        let main = &[("python.main", "\"a.py\"")];
        assert_eq!(of("", main), first, "no Python function is called: another script shares it");
        let called = |script| of("", &[("stage.x.python", "\"m:f\""), ("python.main", script)]);
        assert_ne!(called("\"a.py\""), called("\"b.py\""));
        std::fs::create_dir(folder.path().join("sub")).unwrap();
        let around =
            ConfigSource::File(folder.path().join("sub/../train.toml").display().to_string());
        let around = SharedDaemon::of("forebay".into(), "", &around, &[]).unwrap();
        assert_eq!(around.socket.file_name().unwrap().to_str(), Some(&*first), "the same file");
        std::fs::write(&path, "[batch]\nsize = 3\n").unwrap();
        assert_ne!(of("", &[]), first, "another text is another configuration");
    }

    #[test]
    fn values_of_variables_are_part_of_the_configuration() {
        let digest = |text: &str, values: &[(&str, &str)]| {
            let mut digest = Digest::default();
            let of = |name: &str| {
                let found = values.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| value.into())
            };
            digest.add_variables_of(text, &of);
            digest.0
        };
        let text = "path = \"${DATA}/x/${PART:-a}\"\nother = \"$ { ${\"";
        let one = digest(text, &[("DATA", "/a")]);
        assert_ne!(one, digest(text, &[("DATA", "/b")]));
        assert_ne!(one, digest(text, &[]));
        assert_ne!(one, digest(text, &[("DATA", "/a"), ("PART", "b")]));
        assert_eq!(one, digest(text, &[("DATA", "/a"), ("OTHER", "b")]));
    }
}
