//! The settings of a loader, and the attach.

mod connecting;

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use forebay_protocol::frames::{Attach, Attached, RestartPolicy};
use forebay_protocol::ids::Position;
use forebay_protocol::launcher::Environment;

use self::connecting::{Connected, Wanted};
use crate::error::Error;
use crate::job;
use crate::link::{Interrupt, Link};
use crate::loader::Loader;
use crate::rank::{RankSource, find_placement};
use crate::rows::Rows;
use crate::state::State;
use crate::supervisor::{Revival, Supervisor};
use crate::target::Target;

/// The environment variable with the daemon's socket, which `forebay run` sets.
pub const SOCKET_VARIABLE: &str = "FOREBAY_SOCKET";

/// The environment variable that chooses [`Builder::named_segments`].
const NAMED_SEGMENTS_VARIABLE: &str = "FOREBAY_NAMED_SEGMENTS";

/// The settings of a loader. Each has a default.
pub struct Builder {
    target: Target,
    rank: Option<(u32, u32)>,
    frameworks: Vec<(RankSource, (u32, u32))>,
    state: Option<State>,
    force: bool,
    position: Position,
    timeout: Duration,
    overrides: Vec<(String, String)>,
    object: Option<OwnedFd>,
    program: Option<PathBuf>,
    unfinished: bool,
    named_segments: Option<bool>,
    shared: Option<String>,
    trainer: String,
    batch_size: Option<u32>,
    group: Option<String>,
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
            frameworks: Vec::new(),
            state: None,
            force: false,
            position: Position::default(),
            timeout: Duration::from_secs(300),
            overrides: Vec::new(),
            object: None,
            program: None,
            unfinished: false,
            named_segments: None,
            shared: None,
            trainer: String::new(),
            batch_size: None,
            group: Some(String::new()),
            interrupt: None,
        }
    }

    /// This process's rank and the world size; default: from the launcher ([`crate::rank`]).
    #[must_use]
    pub fn rank(mut self, rank: u32, world_size: u32) -> Self {
        self.rank = Some((rank, world_size));
        self
    }

    /// Rank and world size of an initialised `torch.distributed`; [`crate::rank`] has the precedence of the sources.
    #[must_use]
    pub fn distributed(mut self, rank: u32, world_size: u32) -> Self {
        self.frameworks.push((RankSource::TorchDistributed, (rank, world_size)));
        self
    }

    /// Rank and world size of a worker of Ray Train; `torch.distributed` takes precedence.
    #[must_use]
    pub fn ray_train(mut self, rank: u32, world_size: u32) -> Self {
        self.frameworks.push((RankSource::RayTrain, (rank, world_size)));
        self.frameworks.sort_by_key(|(source, _)| *source == RankSource::RayTrain);
        self
    }

    /// Resumes from a saved state; default: epoch 0, sample 0. `force`: also when it belongs to another stream.
    #[must_use]
    pub fn state(mut self, state: State, force: bool) -> Self {
        self.state = Some(state);
        self.force = force;
        self
    }

    /// Begins at a position, without a check of the stream. A saved state has precedence. Default: the start.
    #[must_use]
    pub fn position(mut self, position: Position) -> Self {
        self.position = position;
        self
    }

    /// The maximum time without any progress; default 300 s.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Overrides a key of a private daemon's configuration: a dotted key, and its value as JSON text.
    #[must_use]
    pub fn override_key(mut self, key: impl Into<String>, json: impl Into<String>) -> Self {
        self.overrides.push((key.into(), json.into()));
        self
    }

    /// The sealed memory of a Dataset object for a configuration with `dataset.format = "python"`. It is sent to the
    /// private daemon, which passes it to the workers that call the object, and is returned with the state for a
    /// restart.
    #[must_use]
    pub fn object(mut self, memory: OwnedFd) -> Self {
        self.object = Some(memory);
        self
    }

    /// The private daemon's program, which is tried after FOREBAY_PROGRAM and before this executable's folder.
    #[must_use]
    pub fn program(mut self, path: impl Into<PathBuf>) -> Self {
        self.program = Some(path.into());
        self
    }

    /// Accepts fields that the configuration leaves to a GPU (`output.FIELD.on = "gpu"`) as they are in the ring: uint8,
    /// height × width × channels. Their [`TensorSpec::finish`](forebay_protocol::tensor::TensorSpec::finish) describes the
    /// remaining conversion, and [`crate::finish`] implements it. Default: the attach refuses such a stream.
    #[must_use]
    pub fn unfinished(mut self, unfinished: bool) -> Self {
        self.unfinished = unfinished;
        self
    }

    /// Maps the ring by names in /dev/shm, for a process that cannot receive descriptors, from a daemon of `forebay serve` or
    /// `run` with `listen.named_segments = true`. Such a loader raises [`Error::DaemonLost`] when its daemon dies, and any
    /// process of the user can open the ring while it attaches (docs/design/protocol-memory.md, "Named segments"). Default: whether the
    /// environment variable FOREBAY_NAMED_SEGMENTS is `1`.
    #[must_use]
    pub fn named_segments(mut self, named: bool) -> Self {
        self.named_segments = Some(named);
        self
    }

    /// Shares one daemon with the loaders of this user and host that have the same configuration and this name, which
    /// separates jobs; empty for one job. The first of them starts the daemon, and it ends a second after the last one.
    /// Default: the loader's daemon is private.
    #[must_use]
    pub fn shared(mut self, name: &str) -> Self {
        self.shared = Some(name.to_owned());
        self
    }

    /// The name of this trainer among several that read the same stream from one daemon: each has its own ranks,
    /// position and speed, and a row that several want is made once. Of a configuration they share the daemon, as with
    /// [`shared`](Self::shared). Default: the trainer without a name.
    #[must_use]
    pub fn trainer(mut self, name: &str) -> Self {
        self.trainer = name.to_owned();
        self
    }

    /// The number of samples in a batch of this loader, in place of the configured one. It changes no sample, only how
    /// many are in a batch.
    #[must_use]
    pub fn batch_size(mut self, samples: u32) -> Self {
        self.batch_size = Some(samples);
        self
    }

    /// The group of ranks that this loader's rank is compared with ([`crate::job`]); `None` skips the comparison. Default:
    /// the group without a name.
    #[must_use]
    pub fn compare_ranks(mut self, group: Option<&str>) -> Self {
        self.group = group.map(str::to_owned);
        self
    }

    /// Called about every 50 ms while waiting; true ends the wait with [`Error::Interrupted`], and the loader stays usable.
    #[must_use]
    pub fn interrupt(mut self, interrupt: impl FnMut() -> bool + Send + 'static) -> Self {
        self.interrupt = Some(Box::new(interrupt));
        self
    }

    /// Attaches to the target for rows on request: their samples are named, and no order, rank, state or job applies.
    ///
    /// # Errors
    /// As [`attach`](Self::attach).
    pub fn attach_rows(mut self) -> Result<Rows, Error> {
        let environment = Environment::of_process();
        let placement = find_placement(self.rank, &self.frameworks, &environment)?;
        let Connected { mut link, stream, path, revival, terms, segments } =
            self.connect(&placement, &Wanted::Rows)?;
        if !self.unfinished {
            refuse_unfinished(&terms)?;
        }
        supervise(&mut link, &terms, path, revival)?;
        Rows::new(link, *terms, segments, stream)
    }

    /// Attaches to the target.
    ///
    /// # Errors
    /// [`Error::Config`] for the target, the rank, the configuration or ranks that differ; [`Error::StateMismatch`];
    /// [`Error::DaemonLost`] and [`Error::Timeout`] when no daemon answers; the daemon's error when it refuses.
    pub fn attach(mut self) -> Result<Loader, Error> {
        let environment = Environment::of_process();
        let placement = find_placement(self.rank, &self.frameworks, &environment)?;
        let position = self.state.as_ref().map_or(self.position, |state| state.position);
        let attach = Attach {
            // Set when the target is known.
            stream: None,
            rank: placement.rank,
            world_size: placement.world_size,
            position,
            substitutes: self.state.as_ref().map_or(0, |state| state.substitutes),
            trainer: self.trainer.clone(),
            batch_size: self.batch_size,
            cuts: self.state.as_ref().map_or(Vec::new(), |state| state.cuts.clone()),
        };
        let named = self
            .named_segments
            .unwrap_or_else(|| environment.get(NAMED_SEGMENTS_VARIABLE) == Some("1"));
        let Connected { mut link, stream, path, revival, terms, segments } =
            self.connect(&placement, &Wanted::Order { attach: attach.clone(), named })?;
        if !self.unfinished {
            refuse_unfinished(&terms)?;
        }
        if let Some(state) = &self.state
            && !self.force
            && let Some(differences) = state.differences(&terms)
        {
            return Err(Error::StateMismatch(differences));
        }
        if let Some(state) = &self.state {
            state.warn_of_changed_sources(&terms, "the state was saved");
        }
        // The ranks of a trainer are compared with each other.
        let group = self.group.map(|group| match self.trainer.as_str() {
            "" => group,
            trainer => format!("{group}.{trainer}"),
        });
        let (state, group) = (self.state.as_ref(), group.as_deref());
        job::check(&terms, &placement, state, group, &environment, &mut link)?;
        supervise(&mut link, &terms, path, revival)?;
        let substitutes = self.state.map_or(0, |state| state.substitutes);
        let request = Attach { stream, ..attach };
        Loader::new(link, *terms, segments, request, placement, substitutes)
    }
}

impl Loader {
    /// Attaches with default settings: see [`Loader::builder`].
    ///
    /// # Errors
    /// As [`Builder::attach`].
    pub fn attach(target: impl Into<Target>) -> Result<Self, Error> {
        Self::builder(target).attach()
    }

    /// A builder for a loader that attaches to `target`.
    #[must_use]
    pub fn builder(target: impl Into<Target>) -> Builder {
        Builder::new(target.into())
    }
}

/// Starts the supervision of a daemon at a socket, if it is restarted.
fn supervise(
    link: &mut Link,
    terms: &Attached,
    path: Option<PathBuf>,
    revival: Option<Revival>,
) -> Result<(), Error> {
    let returns =
        matches!(terms.restart_policy, RestartPolicy::BySupervisor | RestartPolicy::ByClients);
    if let (Some(path), true) = (path, returns) {
        let socket = std::path::absolute(&path).unwrap_or(path);
        link.set_supervisor(Supervisor::served(socket, link.connection(), revival)?);
    }
    Ok(())
}

/// Refuses a stream that leaves a field to a GPU, for a loader without one.
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
