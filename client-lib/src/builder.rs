//! Where, as whom and from where on to attach.

use std::path::PathBuf;
use std::time::Duration;

use forebay_protocol::frames::{Attach, Attached, ClientFrame, ConfigSource, Revival, Start};
use forebay_protocol::ids::Position;
use forebay_protocol::socket::Connection;

use crate::error::Error;
use crate::keeper::{Keeper, PrivateStart, ServedPlace, greet};
use crate::link::{Interrupt, Link};
use crate::loader::Loader;
use crate::program::find_program;
use crate::rank::{Placement, find_placement};
use crate::state::State;
use crate::target::Target;

/// The variable that names the daemon's socket, as `forebay run` sets it.
pub const SOCKET_VARIABLE: &str = "FOREBAY_SOCKET";

/// What a loader is made of. Every setting has a default.
pub struct Builder {
    target: Target,
    rank: Option<(u32, u32)>,
    distributed: Option<(u32, u32)>,
    state: Option<State>,
    force: bool,
    position: Position,
    timeout: Duration,
    overrides: Vec<(String, String)>,
    program: Option<PathBuf>,
    unfinished: bool,
    interrupt: Option<Interrupt>,
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Builder")
            .field("target", &self.target)
            .field("rank", &self.rank)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

impl Builder {
    pub(crate) fn new(target: Target) -> Self {
        Self {
            target,
            rank: None,
            distributed: None,
            state: None,
            force: false,
            position: Position::default(),
            timeout: Duration::from_secs(300),
            overrides: Vec::new(),
            program: None,
            unfinished: false,
            interrupt: None,
        }
    }

    /// This process's rank and the world size; default: what the launcher says ([`crate::rank`]).
    #[must_use]
    pub fn rank(mut self, rank: u32, world_size: u32) -> Self {
        self.rank = Some((rank, world_size));
        self
    }

    /// What an initialised `torch.distributed` says, for the order of sources in [`crate::rank`].
    #[must_use]
    pub fn distributed(mut self, rank: u32, world_size: u32) -> Self {
        self.distributed = Some((rank, world_size));
        self
    }

    /// Goes on where a saved state stands; default: epoch 0, sample 0. `force`: also when it belongs to another stream.
    #[must_use]
    pub fn state(mut self, state: State, force: bool) -> Self {
        self.state = Some(state);
        self.force = force;
        self
    }

    /// Begins at a position, whatever stream it came from; a state given besides holds instead. Default: the start.
    #[must_use]
    pub fn position(mut self, position: Position) -> Self {
        self.position = position;
        self
    }

    /// The longest time without any progress anywhere; default 300 s.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Overrides a key of a private daemon's configuration: a dotted key and its value as JSON text.
    #[must_use]
    pub fn override_key(mut self, key: impl Into<String>, json: impl Into<String>) -> Self {
        self.overrides.push((key.into(), json.into()));
        self
    }

    /// Where a private daemon's program is looked for after FOREBAY_PROGRAM and before this executable's folder.
    #[must_use]
    pub fn program(mut self, path: impl Into<PathBuf>) -> Self {
        self.program = Some(path.into());
        self
    }

    /// Takes fields that the configuration leaves to a GPU (`output.FIELD.on = "gpu"`) as they lie in the ring: uint8,
    /// height × width × channels. Their [`TensorSpec::finish`](forebay_protocol::tensor::TensorSpec::finish) says what is
    /// left to be done, and [`crate::finish`] does it. Default: such a stream is refused at the attach.
    #[must_use]
    pub fn unfinished(mut self, unfinished: bool) -> Self {
        self.unfinished = unfinished;
        self
    }

    /// Asked about every 50 ms while waiting; true ends the wait with [`Error::Interrupted`], and the loader stays usable.
    #[must_use]
    pub fn interrupt(mut self, asked: impl FnMut() -> bool + Send + 'static) -> Self {
        self.interrupt = Some(Box::new(asked));
        self
    }

    /// Attaches.
    ///
    /// # Errors
    /// What the target, the daemon or the saved state are refused for.
    pub fn attach(mut self) -> Result<Loader, Error> {
        let variable = |name: &str| std::env::var(name).ok();
        let placement = find_placement(self.rank, self.distributed, &variable)?;
        let (mut link, stream, path) = self.connect(&placement)?;
        link.expect_welcome()?;
        let position = self.state.as_ref().map_or(self.position, |state| state.position);
        link.send(
            &ClientFrame::Attach(Attach {
                stream: stream.clone(),
                rank: placement.rank,
                world_size: placement.world_size,
                position,
                substitutes: self.state.as_ref().map_or(0, |state| state.substitutes),
            }),
            &[],
        )?;
        let (terms, descriptors) = link.expect_attached()?;
        if !self.unfinished {
            refuse_unfinished(&terms)?;
        }
        if let Some(state) = &self.state
            && !self.force
            && let Some(differences) = state.differences(&terms)
        {
            return Err(Error::StateMismatch(differences));
        }
        if let (Some(path), Revival::BySupervisor) = (path, terms.revival) {
            let place = ServedPlace { path: std::path::absolute(&path).unwrap_or(path) };
            link.set_keeper(Keeper::served(place, link.connection())?);
        }
        let substitutes = self.state.map_or(0, |state| state.substitutes);
        Loader::new(link, *terms, descriptors, stream, placement, substitutes)
    }

    /// Connects and queues everything up to, and without, the attach. Gives the stream and, for a daemon that is not this
    /// loader's own, its socket.
    fn connect(
        &mut self,
        placement: &Placement,
    ) -> Result<(Link, Option<String>, Option<PathBuf>), Error> {
        let interrupt = self.interrupt.take();
        let target = std::mem::replace(&mut self.target, Target::Stream(None));
        let (path, stream) = match target {
            Target::Config(config) => {
                return Ok((self.start_private(config, placement, interrupt)?, None, None));
            }
            Target::Socket(path, stream) => (path, stream),
            Target::Stream(stream) => {
                let socket = std::env::var_os(SOCKET_VARIABLE).filter(|path| !path.is_empty());
                let Some(socket) = socket else {
                    let what =
                        stream.map_or_else(|| "no target".into(), |name| format!("`{name}`"));
                    return Err(Error::Config(format!(
                        "{what} was given, which is no configuration file and no socket, so it would be a stream of \
                         `forebay run`, but {SOCKET_VARIABLE} is not set: start the program with `forebay run CONFIG -- \
                         COMMAND`, or give a `.toml` file"
                    )));
                };
                (PathBuf::from(socket), stream)
            }
        };
        if !self.overrides.is_empty() {
            return Err(Error::Config(
                "overrides are for a configuration; a running daemon has read its own already (`--set` at its start)"
                    .into(),
            ));
        }
        let connection = Connection::connect(&path).map_err(|error| {
            Error::DaemonLost(format!("no daemon answers at `{}`: {error}", path.display()))
        })?;
        greet(&connection).map_err(|error| {
            Error::DaemonLost(format!("the daemon at `{}`: {error}", path.display()))
        })?;
        Ok((Link::new(connection, None, interrupt, self.timeout)?, stream, Some(path)))
    }

    fn start_private(
        &mut self,
        config: ConfigSource,
        placement: &Placement,
        interrupt: Option<Interrupt>,
    ) -> Result<Link, Error> {
        if let ConfigSource::File(path) = &config
            && let Err(error) = std::fs::metadata(path)
        {
            return Err(Error::Config(format!("the configuration `{path}`: {error}")));
        }
        let program = find_program(self.program.as_deref())?;
        let start = PrivateStart {
            program: std::path::absolute(&program).unwrap_or(program),
            local_world_size: placement.local_world_size,
            local_rank: placement.local_rank,
        };
        let order = ClientFrame::Start(Start {
            config,
            overrides: std::mem::take(&mut self.overrides),
            local_world_size: placement.local_world_size,
            local_rank: placement.local_rank,
        });
        let (keeper, connection) = Keeper::private(start, &order)?;
        Link::new(connection, Some(keeper), interrupt, self.timeout)
    }
}

/// Refuses a stream that leaves a field to a GPU, for a client that would hand it out as it is.
fn refuse_unfinished(terms: &Attached) -> Result<(), Error> {
    let Some((spec, finish)) =
        terms.tensors.iter().find_map(|spec| Some((spec, spec.finish.as_ref()?)))
    else {
        return Ok(());
    };
    let name = &spec.name;
    Err(Error::Config(format!(
        "the configuration leaves `{name}` to a GPU, which makes {} {:?} of its {} {:?} (`output.{name}.on = \"gpu\"`), and \
         this loader has none: give it a GPU device, or set `output.{name}.on = \"cpu\"` in the configuration or as an \
         override",
        finish.dtype.name(),
        finish.row_shape,
        spec.dtype.name(),
        spec.row_shape
    )))
}
