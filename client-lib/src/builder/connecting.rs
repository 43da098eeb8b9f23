//! The session of a new loader: with its private daemon, with one that it shares, or with a running one.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_protocol::frames::{Attach, Attached, ClientFrame, ConfigSource, Start};
use forebay_protocol::socket::{Connection, SocketError};

use super::{Builder, SOCKET_VARIABLE};
use crate::error::Error;
use crate::link::{Interrupt, Link};
use crate::patience::Patience;
use crate::program::find_program;
use crate::rank::Placement;
use crate::ring::Segments;
use crate::shared_daemon::{SharedDaemon, Starting, read_start};
use crate::supervisor::{LaunchSpec, Revival, Supervisor, greet};
use crate::target::Target;

/// The interval between looks for a shared daemon that starts.
const RETRY_INTERVAL: Duration = Duration::from_millis(10);
/// The delay after a daemon has ended, or has found another one that ends.
const PAUSE: Duration = Duration::from_millis(100);
/// How many daemons in a row may end at their start without a reason.
const MAX_LOST: u32 = 3;

/// What a new client asks for.
pub(super) enum Wanted {
    /// The batches of a rank; `named`: over named segments, unless the daemon is private.
    Order { attach: Attach, named: bool },
    /// Rows on request.
    Rows,
}

/// An open session.
pub(super) struct Connected {
    pub(super) link: Link,
    pub(super) terms: Box<Attached>,
    pub(super) segments: Segments,
    /// The requested stream.
    pub(super) stream: Option<String>,
    /// The daemon's socket, unless it is private.
    pub(super) path: Option<PathBuf>,
    /// How this client starts the next daemon, if it shares one.
    pub(super) revival: Option<Revival>,
}

/// A session's terms and memory.
type Opened = (Box<Attached>, Segments);

impl Wanted {
    /// Opens the session over a connection on which `Hello` was sent.
    fn open(
        &self,
        link: &mut Link,
        stream: Option<&String>,
        may_be_named: bool,
    ) -> Result<Opened, Error> {
        link.expect_welcome()?;
        let stream = stream.cloned();
        let request = match self {
            Self::Order { attach, named } => {
                let attach = Attach { stream, ..attach.clone() };
                match *named && may_be_named {
                    true => ClientFrame::AttachNamed(attach),
                    false => ClientFrame::Attach(attach),
                }
            }
            Self::Rows => ClientFrame::AttachRows { stream },
        };
        link.send(&request, &[])?;
        link.expect_attached()
    }
}

impl Builder {
    /// Connects and opens the session.
    pub(super) fn connect(
        &mut self,
        placement: &Placement,
        wanted: &Wanted,
    ) -> Result<Connected, Error> {
        let target = std::mem::replace(&mut self.target, Target::Stream(None));
        let is_of_several = !self.trainer.is_empty() && matches!(target, Target::Config(_));
        let shared = self.shared.take().or_else(|| is_of_several.then(String::new));
        if shared.is_some() && !matches!(target, Target::Config(_)) {
            return Err(Error::Config(
                "`shared` is for a configuration; a running daemon is shared by all that attach to it".into(),
            ));
        }
        match (target, shared) {
            (Target::Config(config), Some(name)) => self.share(config, &name, placement, wanted),
            (Target::Config(config), None) => self.start_private(config, placement, wanted),
            (Target::Socket(path, stream), _) => self.connect_to(path, stream, wanted),
            (Target::Stream(stream), _) => {
                let socket = std::env::var_os(SOCKET_VARIABLE).filter(|path| !path.is_empty());
                let Some(socket) = socket else {
                    return Err(no_socket(stream.as_deref()));
                };
                self.connect_to(PathBuf::from(socket), stream, wanted)
            }
        }
    }

    /// Connects to a running daemon.
    fn connect_to(
        &mut self,
        path: PathBuf,
        stream: Option<String>,
        wanted: &Wanted,
    ) -> Result<Connected, Error> {
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
        let (terms, segments) = wanted.open(&mut link, stream.as_ref(), true)?;
        Ok(Connected { link, terms, segments, stream, path: Some(path), revival: None })
    }

    fn start_private(
        &mut self,
        config: ConfigSource,
        placement: &Placement,
        wanted: &Wanted,
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
        // A private daemon is a child with a socketpair: it always passes descriptors.
        let (terms, segments) = wanted.open(&mut link, None, false)?;
        Ok(Connected { link, terms, segments, stream: None, path: None, revival: None })
    }

    /// Connects to the daemon that the loaders of this configuration and name share, and starts it if there is none.
    fn share(
        &mut self,
        config: ConfigSource,
        name: &str,
        placement: &Placement,
        wanted: &Wanted,
    ) -> Result<Connected, Error> {
        if self.object.is_some() {
            return Err(Error::Config(
                "a Dataset object needs a daemon of its loader alone; leave `shared` out".into(),
            ));
        }
        let program = self.program_for(&config)?;
        let daemon = SharedDaemon::of(program, name, &config, &self.overrides)?;
        let start_frame = self.start_frame(config, placement);
        let (link, (terms, segments)) = self.reach(&daemon, &start_frame, wanted)?;
        let path = Some(daemon.socket().to_owned());
        let revival = Revival {
            daemon,
            local_world_size: placement.local_world_size,
            local_rank: placement.local_rank,
            budget: self.timeout,
        };
        Ok(Connected { link, terms, segments, stream: None, path, revival: Some(revival) })
    }

    /// Opens a session with a shared daemon. As long as none listens, starts one; as long as the one there opens its
    /// streams, waits for it; if it dies before it has answered, starts the next one.
    fn reach(
        &mut self,
        daemon: &SharedDaemon,
        start_frame: &ClientFrame,
        wanted: &Wanted,
    ) -> Result<(Link, Opened), Error> {
        let mut interrupt: Option<Interrupt> = self.interrupt.take();
        let mut patience = Patience::begin(Instant::now());
        let (mut started, mut lost) = (None, 0);
        loop {
            let mut pause = RETRY_INTERVAL;
            if let Some(connection) = daemon.connect()? {
                let mut link = Link::new(connection, None, interrupt.take(), self.timeout)?;
                match wanted.open(&mut link, None, true) {
                    Ok(opened) => return Ok((link, opened)),
                    // It ended, or could not open the streams; then the next one says why.
                    Err(Error::DaemonLost(_)) => interrupt = link.take_interrupt(),
                    Err(Error::Taken(reason)) => {
                        return Err(Error::Taken(format!(
                            "{reason}; if it is of another job with this configuration, give the jobs different names \
                             (`shared`)"
                        )));
                    }
                    Err(error) => return Err(error),
                }
                pause = PAUSE;
            }
            match started.as_ref().map(read_start) {
                None => started = Some(daemon.start(start_frame, &[])?),
                Some(Starting::Held) => (started, pause) = (None, PAUSE),
                Some(Starting::Refused(fault)) => return Err(fault.into()),
                Some(Starting::Opening | Starting::Serving) => {}
                Some(Starting::Gone) => {
                    (started, pause, lost) = (None, PAUSE, lost + 1);
                    if lost == MAX_LOST {
                        return Err(Error::DaemonLost(format!(
                            "{lost} daemons have ended at their start without a reason; their log is {}",
                            daemon.log().display()
                        )));
                    }
                }
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
            std::thread::sleep(pause);
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
