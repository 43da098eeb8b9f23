//! The connection of a new loader: to its private daemon, to one that it shares, or to a running one.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_protocol::frames::{ClientFrame, ConfigSource, Start};
use forebay_protocol::socket::{Connection, SocketError};

use super::{Builder, SOCKET_VARIABLE};
use crate::error::Error;
use crate::link::{Interrupt, Link};
use crate::patience::Patience;
use crate::program::find_program;
use crate::rank::Placement;
use crate::shared_daemon::{SharedDaemon, Starting, read_start};
use crate::supervisor::{LaunchSpec, Revival, Supervisor, greet};
use crate::target::Target;

/// The interval between attempts to reach a shared daemon that starts.
const RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// A connection whose daemon has answered `Hello`.
pub(super) struct Connected {
    pub(super) link: Link,
    /// The requested stream.
    pub(super) stream: Option<String>,
    /// The daemon's socket, unless it is private.
    pub(super) path: Option<PathBuf>,
    /// How this client starts the next daemon, if it shares one.
    pub(super) revival: Option<Revival>,
}

impl Builder {
    /// Connects, and exchanges the frames before `Attach`.
    pub(super) fn connect(&mut self, placement: &Placement) -> Result<Connected, Error> {
        let target = std::mem::replace(&mut self.target, Target::Stream(None));
        let shared = self.shared.take();
        if shared.is_some() && !matches!(target, Target::Config(_)) {
            return Err(Error::Config(
                "`shared` is for a configuration; a running daemon is shared by all that attach to it".into(),
            ));
        }
        match (target, shared) {
            (Target::Config(config), Some(name)) => self.share(config, &name, placement),
            (Target::Config(config), None) => self.start_private(config, placement),
            (Target::Socket(path, stream), _) => self.connect_to(path, stream),
            (Target::Stream(stream), _) => {
                let socket = std::env::var_os(SOCKET_VARIABLE).filter(|path| !path.is_empty());
                let Some(socket) = socket else {
                    return Err(no_socket(stream.as_deref()));
                };
                self.connect_to(PathBuf::from(socket), stream)
            }
        }
    }

    /// Connects to a running daemon.
    fn connect_to(&mut self, path: PathBuf, stream: Option<String>) -> Result<Connected, Error> {
        if self.object.is_some() {
            return Err(Error::Config(
                "a Dataset object needs a daemon of its loader alone; a running daemon takes none"
                    .into(),
            ));
        }
        if !self.overrides.is_empty() {
            return Err(Error::Config(
                "overrides are for a configuration; a running daemon has read its own already (`--set` at its start)"
                    .into(),
            ));
        }
        if path.is_dir() {
            return Err(Error::Config(format!(
                "`{}` is a folder, not a socket or a configuration; set `dataset.path` to it in a configuration",
                path.display()
            )));
        }
        let connection = Connection::connect(&path).map_err(|error| {
            Error::DaemonLost(format!("no daemon answers at `{}`: {error}", path.display()))
        })?;
        match greet(&connection) {
            // A daemon that refuses this user may have closed already; its reason is in the socket and is read next.
            Ok(()) | Err(SocketError::Closed) => {}
            Err(error) => {
                return Err(Error::DaemonLost(format!(
                    "the daemon at `{}`: {error}",
                    path.display()
                )));
            }
        }
        let mut link = Link::new(connection, None, self.interrupt.take(), self.timeout)?;
        link.expect_welcome()?;
        Ok(Connected { link, stream, path: Some(path), revival: None })
    }

    fn start_private(
        &mut self,
        config: ConfigSource,
        placement: &Placement,
    ) -> Result<Connected, Error> {
        let program = self.program_for(&config)?;
        let launch = LaunchSpec {
            program,
            local_world_size: placement.local_world_size,
            local_rank: placement.local_rank,
            budget: self.timeout,
        };
        let start_frame = self.start_frame(config, placement);
        let (supervisor, connection) =
            Supervisor::private(launch, &start_frame, self.object.as_slice())?;
        let interrupt = self.interrupt.take();
        let mut link = Link::new(connection, Some(supervisor), interrupt, self.timeout)?;
        link.expect_welcome()?;
        Ok(Connected { link, stream: None, path: None, revival: None })
    }

    /// Connects to the daemon that the loaders of this configuration and name share, and starts it if there is none.
    fn share(
        &mut self,
        config: ConfigSource,
        name: &str,
        placement: &Placement,
    ) -> Result<Connected, Error> {
        if self.object.is_some() {
            return Err(Error::Config(
                "a Dataset object needs a daemon of its loader alone; leave `shared` out".into(),
            ));
        }
        let program = self.program_for(&config)?;
        let daemon = SharedDaemon::of(program, name, &config, &self.overrides)?;
        let start_frame = self.start_frame(config, placement);
        let link = self.reach(&daemon, &start_frame)?;
        let path = Some(daemon.socket().to_owned());
        let revival = Revival {
            daemon,
            local_world_size: placement.local_world_size,
            local_rank: placement.local_rank,
            budget: self.timeout,
        };
        Ok(Connected { link, stream: None, path, revival: Some(revival) })
    }

    /// Connects to a shared daemon. As long as none listens, starts one; as long as the one there opens its streams, waits
    /// for it.
    fn reach(&mut self, daemon: &SharedDaemon, start_frame: &ClientFrame) -> Result<Link, Error> {
        let mut interrupt: Option<Interrupt> = self.interrupt.take();
        let mut patience = Patience::begin(Instant::now());
        let mut started = None;
        loop {
            if let Some(connection) = daemon.connect()? {
                let mut link = Link::new(connection, None, interrupt.take(), self.timeout)?;
                match link.expect_welcome() {
                    Ok(()) => return Ok(link),
                    // It ended, or could not open the streams; then the next one says why.
                    Err(Error::DaemonLost(_)) => interrupt = link.take_interrupt(),
                    Err(error) => return Err(error),
                }
            }
            match started.as_ref().map(read_start) {
                None | Some(Starting::Gone) => started = Some(daemon.start(start_frame, &[])?),
                Some(Starting::Held) => started = None,
                Some(Starting::Refused(fault)) => return Err(fault.into()),
                Some(Starting::Opening | Starting::Serving) => {}
            }
            let waited = patience.look(Instant::now());
            if waited >= self.timeout {
                return Err(Error::DaemonLost(format!(
                    "no daemon listens at {} after {:.0} s; its log is {}",
                    daemon.socket().display(),
                    waited.as_secs_f64(),
                    daemon.log().display()
                )));
            }
            if interrupt.as_mut().is_some_and(|interrupt| interrupt()) {
                return Err(Error::Interrupted("the shared daemon".to_owned()));
            }
            std::thread::sleep(RETRY_INTERVAL);
        }
    }

    /// The program for a daemon of this configuration.
    fn program_for(&self, config: &ConfigSource) -> Result<PathBuf, Error> {
        if let ConfigSource::File(path) = config
            && let Err(error) = std::fs::metadata(path)
        {
            return Err(Error::Config(format!("the configuration `{path}`: {error}")));
        }
        let program = find_program(self.program.as_deref())?;
        Ok(std::path::absolute(&program).unwrap_or(program))
    }

    fn start_frame(&mut self, config: ConfigSource, placement: &Placement) -> ClientFrame {
        ClientFrame::Start(Start {
            config,
            overrides: std::mem::take(&mut self.overrides),
            local_world_size: placement.local_world_size,
            local_rank: placement.local_rank,
        })
    }
}

/// The error for a bare word if there is no running daemon.
fn no_socket(word: Option<&str>) -> Error {
    if let Some(folder) = word.filter(|word| Path::new(word).is_dir()) {
        return Error::Config(format!(
            "`{folder}` is a folder here, but a word without a `/` is a stream of `forebay run`: did you mean `./{folder}`?"
        ));
    }
    let what = word.map_or_else(|| "no target".into(), |word| format!("`{word}`"));
    Error::Config(format!(
        "{what} was given, which is no configuration file and no socket, so it would be a stream of `forebay run`, but \
         {SOCKET_VARIABLE} is not set: start the program with `forebay run CONFIG -- COMMAND`, or give a `.toml` file"
    ))
}
