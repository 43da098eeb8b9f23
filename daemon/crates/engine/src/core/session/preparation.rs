//! What takes long before a session begins or moves, if its batches are by length: the plans of its first pools, and the
//! steps of its epoch. A thread makes them before the engine thread uses them, and they stay kept with the stream.
//!
//! Without a preparation, or if its results are no longer kept, the engine thread makes them itself.

use std::sync::Arc;

use forebay_protocol::cuts::Cut;
use forebay_protocol::frames::Attach;
use forebay_protocol::ids::Position;
use tokio::sync::{Semaphore, oneshot};

use super::Seek;
use super::order_cursor::WakesAtEnd;
use crate::ground::stream::Stream;
use crate::ground::waker::Waker;
use forebay_order::{OrderError, Schedule};

/// So many preparations run at a time; others wait.
const AT_ONCE: usize = 2;

/// See the module's head.
#[derive(Debug)]
pub struct Preparation {
    schedule: Schedule,
    position: Position,
    cuts: Vec<Cut>,
    turns: Arc<Semaphore>,
    waker: Arc<Waker>,
}

/// Whose turn it is to prepare.
#[derive(Debug, Clone)]
pub(crate) struct PreparationTurns {
    turns: Arc<Semaphore>,
    waker: Arc<Waker>,
}

impl PreparationTurns {
    /// `waker`: the engine's. A session that runs may need a pool that a preparation plans.
    pub(crate) fn new(waker: Arc<Waker>) -> Self {
        Self { turns: Arc::new(Semaphore::new(AT_ONCE)), waker }
    }

    /// What an attach needs; `None` if it does not take long.
    pub(crate) fn of_attach(&self, stream: &Stream, request: &Attach) -> Option<Preparation> {
        let shape = stream.batch_shape(request.batch_size).ok()?;
        // An error is that of the attach.
        let schedule = schedule_of(stream, request, shape.size).ok()?;
        self.of(&schedule, request.position, &request.cuts)
    }

    /// What the last seek needs.
    pub(super) fn of_seeks(&self, schedule: &Schedule, seeks: &[Seek]) -> Option<Preparation> {
        let last = seeks.last()?;
        self.of(schedule, last.position, &last.cuts)
    }

    fn of(&self, schedule: &Schedule, position: Position, cuts: &[Cut]) -> Option<Preparation> {
        schedule.pools()?;
        let (schedule, cuts) = (schedule.clone(), cuts.to_vec());
        let (turns, waker) = (Arc::clone(&self.turns), Arc::clone(&self.waker));
        Some(Preparation { schedule, position, cuts, turns, waker })
    }
}

impl Preparation {
    /// Prepares on a thread, which ends its work also if nobody waits any longer.
    pub async fn run(self) {
        let Self { schedule, position, cuts, turns, waker } = self;
        // The semaphore is never closed.
        let Ok(turn) = turns.acquire_owned().await else { return };
        let (done, is_done) = oneshot::channel();
        let prepare = move || {
            let _wakes = WakesAtEnd(waker);
            schedule.prepare(position, &cuts);
            drop(turn);
            // The client may have left.
            let _ = done.send(());
        };
        if let Err(error) =
            std::thread::Builder::new().name("forebay-plan".to_owned()).spawn(prepare)
        {
            tracing::debug!(%error, "no thread plans a session's first batches");
        }
        // An error: the thread has panicked or does not exist.
        let _ = is_done.await;
    }
}

/// The order of a rank.
pub(super) fn schedule_of(
    stream: &Stream,
    request: &Attach,
    batch_size: u32,
) -> Result<Schedule, OrderError> {
    let mut dealing = stream.dealing();
    dealing.batch_size = batch_size;
    stream.schedule(dealing, request.rank, request.world_size)
}
