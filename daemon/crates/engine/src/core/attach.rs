//! Attaching a client: finds its stream, refuses requests that do not fit, opens its session.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use forebay_protocol::frames::{
    Attach, DaemonFrame, Fault, FaultKind, Leased, MAX_TRAINER_BYTES, RestartPolicy, RowsRequest,
};
use forebay_protocol::socket::Connection;
use tokio::sync::mpsc;

use super::Engine;
use crate::core::feeding::Feed;
use crate::core::memory::MemoryPlan;
use crate::core::session::{Session, SessionFault, SessionTerms, Takeover};
use forebay_affinity::on_cores;
use forebay_observe::format_bytes;

/// State that a client kept from the previous daemon.
#[derive(Debug)]
pub struct ReattachState {
    /// The data segment; exactly one descriptor according to the protocol.
    pub data: Vec<OwnedFd>,
    /// The serial of its last seek.
    pub serial: u64,
    /// The slots that the client claims to hold.
    pub leased: Vec<Leased>,
}

/// The memory of a new session.
#[derive(Debug)]
pub enum SessionMemory {
    /// Sealed memory without a name, passed as descriptors.
    Sealed,
    /// Named segments in /dev/shm.
    Named,
    /// The memory that the client kept from the previous daemon.
    Reattached(ReattachState),
}

/// What the batches of a new session are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionKind {
    /// Those of a rank, in the stream's order.
    Order,
    /// The rows that the client asks for.
    Rows,
    /// The rows that other daemons ask for ([`Engine::open_feed`]).
    Feed,
}

/// Checks a trainer's name: it is printed, and part of a table.
fn check_name(trainer: &str) -> Result<(), String> {
    if trainer.len() <= MAX_TRAINER_BYTES && !trainer.chars().any(char::is_control) {
        return Ok(());
    }
    Err(format!("a trainer's name has at most {MAX_TRAINER_BYTES} bytes and no control characters"))
}

impl Engine {
    /// Opens a session for a client, which may supply the memory of its previous daemon.
    pub fn attach(
        &mut self,
        request: &Attach,
        kind: SessionKind,
        memory: SessionMemory,
        restart_policy: RestartPolicy,
        connection: Rc<Connection>,
        outbox: mpsc::Sender<DaemonFrame>,
    ) -> Result<(u64, SessionTerms), Fault> {
        let refuse = |kind, message: String| Err(Fault { kind, message });
        let names: Vec<&str> = self.streams.iter().map(|stream| stream.name()).collect();
        let found = match &request.stream {
            None => (!self.streams.is_empty()).then_some(0),
            Some(name) => names.iter().position(|known| known == name),
        };
        let Some(stream_number) = found else {
            let wanted = request.stream.as_deref().unwrap_or("");
            let message =
                format!("no stream `{wanted}` here; this daemon serves: {}", names.join(", "));
            return refuse(FaultKind::Config, message);
        };
        let stream = Arc::clone(&self.streams[stream_number]);
        let of_stream =
            || self.sessions.values().filter(|session| session.stream_number == stream_number);
        if let Err(reason) = check_name(&request.trainer) {
            return refuse(FaultKind::Config, reason);
        }
        let on_request = kind != SessionKind::Order;
        let same = of_stream().find(|session| {
            !session.is_on_request()
                && session.trainer == request.trainer
                && session.rank == request.rank
                && session.world_size == request.world_size
        });
        if let Some(session) = same.filter(|_| !on_request) {
            let of_trainer = match request.trainer.as_str() {
                "" => String::new(),
                name => format!(" of trainer `{name}`"),
            };
            let message = format!(
                "rank {} of {}{of_trainer} of stream `{}` is in use by another client (session {}); end that client first",
                request.rank,
                request.world_size,
                stream.name(),
                session.number
            );
            return refuse(FaultKind::Taken, message);
        }
        let is_client = kind == SessionKind::Rows;
        if is_client && stream.has_batch_operations() {
            let message = format!(
                "stream `{}` has batch.operations, which need whole batches of its order; rows are asked for without them: \
                 set batch.operations = []",
                stream.name()
            );
            return refuse(FaultKind::Config, message);
        }
        if is_client && stream.config.batch.buckets.is_some() {
            let message = format!(
                "stream `{}` has batch.buckets, whose batches have rows of one shape; rows that are asked for may have any: \
                 give them one size without batch.buckets",
                stream.name()
            );
            return refuse(FaultKind::Config, message);
        }
        let most = stream.config.listen.max_sessions;
        if of_stream().count() >= most as usize {
            let message = format!(
                "stream `{}` already has {most} sessions; raise listen.max_sessions",
                stream.name()
            );
            return refuse(FaultKind::Memory, message);
        }
        let wanted = stream.config.share.start_together.unwrap_or(1);
        if !request.trainer.is_empty() && wanted > u64::from(most) {
            let message = format!(
                "stream `{}` begins when {wanted} trainers have attached (share.start_together), and takes {most} sessions; raise \
                 listen.max_sessions",
                stream.name()
            );
            return refuse(FaultKind::Config, message);
        }
        let shape = match stream.batch_shape(request.batch_size) {
            Ok(shape) => shape,
            Err(reason) => return refuse(FaultKind::Config, reason),
        };
        let session_bytes = stream.session_bytes(&shape);
        let plan = MemoryPlan::of(&stream, self.pool.options.threads);
        let of_session = |one: &Session| one.ring.memory.bytes + stream.rows_bytes(one.shape.size);
        let rings: u64 = of_stream().map(of_session).sum();
        let needed = rings.saturating_add(session_bytes).saturating_add(plan.shared_bytes());
        if needed > plan.ceiling_bytes {
            let message = format!(
                "a new ring of {} plus existing rings ({}), fetch buffers ({}), scratch memory ({}) and share.window ({}) needs {}, but \
                 ring.memory is {}; raise it, or lower ring.slots or batch.size",
                format_bytes(session_bytes),
                format_bytes(rings),
                format_bytes(plan.fetch_bytes),
                format_bytes(plan.scratch_bytes),
                format_bytes(plan.window_bytes),
                format_bytes(needed),
                format_bytes(plan.ceiling_bytes)
            );
            return refuse(FaultKind::Memory, message);
        }
        let planned = plan.session_bytes().saturating_mul(most.into());
        if rings.saturating_add(session_bytes) > planned {
            let message = format!(
                "a batch of {} samples needs a ring of {}; with the existing rings ({}) this is more than the {} that are \
                 planned for listen.max_sessions = {most} with batch.size = {}; raise one of them",
                shape.size,
                format_bytes(session_bytes),
                format_bytes(rings),
                format_bytes(planned),
                stream.config.batch.size
            );
            return refuse(FaultKind::Memory, message);
        }
        if matches!(memory, SessionMemory::Named) && !stream.config.listen.named_segments {
            let message = format!(
                "the client asks for named segments, which stream `{}` does not offer; set listen.named_segments = true",
                stream.name()
            );
            return refuse(FaultKind::Config, message);
        }
        // A reattaching client's ring is allocated already.
        if !matches!(memory, SessionMemory::Reattached(_))
            && let Err(error) = MemoryPlan::check_attach(&stream, session_bytes)
        {
            return refuse(FaultKind::Memory, error.to_string());
        }
        let number = self.next_session;
        let ring_cores = &self.pool.options.ring_cores;
        let fresh = |named| {
            on_cores(ring_cores, || Takeover::fresh(&stream, &shape, named))
                .map_err(|SessionFault(fault)| fault)
        };
        // After a daemon's death its clients come one after another.
        if matches!(memory, SessionMemory::Reattached(_)) {
            self.has_begun[stream_number].set(true);
        }
        let takeover = match memory {
            SessionMemory::Sealed => fresh(false)?,
            SessionMemory::Named => fresh(true)?,
            SessionMemory::Reattached(ReattachState { data, serial, leased }) => {
                Takeover::of_client(&stream, &shape, data, serial, &leased)?
            }
        };
        let (session, terms) = Session::new(
            number,
            &stream,
            stream_number,
            (self.units[stream_number].clone(), Arc::clone(&self.shared_rows[stream_number])),
            request,
            shape,
            on_request,
            takeover,
            restart_policy,
            connection,
            outbox,
            Rc::clone(&self.rows_published),
            (kind == SessionKind::Feed).then(|| Feed::new(Arc::clone(&self.waker))),
        )
        .map_err(|SessionFault(fault)| fault)?;
        self.next_session += 1;
        self.pool.shared.turns.enter(&session.work.turn);
        // A feeder has no trainer beside it.
        if !session.is_feeding() {
            self.tick.on_attach(session.ring.client_pid(), &mut self.pool);
        }
        tracing::info!(
            session = number,
            stream = stream.name(),
            trainer = session.trainer,
            rank = session.rank,
            world_size = session.world_size,
            "client attached"
        );
        self.sessions.insert(number, session);
        self.note_wait_for_start(number);
        self.share_sessions();
        self.add_to_history();
        Ok((number, terms))
    }

    /// Has rows made for a session that asks for them.
    ///
    /// # Errors
    /// The reason for a refusal.
    pub fn ask(&mut self, number: u64, asked: &RowsRequest) -> Result<(), String> {
        if let Some(session) = self.sessions.get_mut(&number) {
            session.ask(asked)?;
        }
        self.advance(number);
        Ok(())
    }
}
