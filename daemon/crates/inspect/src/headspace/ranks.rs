//! The measured sessions: one, or one per rank of a job.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use forebay_protocol::observing::{ReplayRequest, ReplayState, SessionSteps};

use super::series::Series;
use crate::observer::Observer;

/// The polling interval: a response costs the daemon a few microseconds.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// The polling interval if several batches are taken per normal interval.
const LOOK_OFTEN: Duration = Duration::from_millis(2);
/// The maximum time without a take.
const PATIENCE: Duration = Duration::from_secs(120);

/// One rank's session and its measurements.
#[derive(Debug)]
pub(super) struct Rank {
    observer: Observer,
    pub series: Series,
    pub now: SessionSteps,
    /// The number of batches taken when the measurement began.
    pub begin: u64,
    /// The first replayed batch.
    pub replay_at: u64,
}

/// All ranks, sorted by rank.
#[derive(Debug)]
pub(super) struct Ranks {
    pub all: Vec<Rank>,
}

impl Ranks {
    /// Finds the sessions of a stream at each socket; without a name, of the only stream there.
    pub(super) fn find(sockets: &[PathBuf], stream: Option<&str>) -> anyhow::Result<Self> {
        let mut all = Vec::new();
        for socket in sockets {
            let mut sessions = Observer::connect(socket)?.steps()?;
            sessions.retain(|session| stream.is_none_or(|name| session.stream == name));
            let Some(first) = sessions.first() else {
                let of = stream.map_or_else(String::new, |name| format!(" stream `{name}` of"));
                bail!("no trainer is attached to{of} the daemon at {}", socket.display());
            };
            if let Some(other) = sessions.iter().find(|one| one.stream != first.stream) {
                bail!(
                    "trainers are attached to the streams `{}` and `{}` at {}; name one with --stream",
                    first.stream,
                    other.stream,
                    socket.display()
                );
            }
            for now in sessions {
                // One connection per session: the daemon closes a connection whose request it refuses.
                let observer = Observer::connect(socket)?;
                let series = Series::default();
                all.push(Rank { observer, series, now, begin: 0, replay_at: 0 });
            }
        }
        all.sort_by_key(|rank| rank.now.rank);
        Ok(Self { all })
    }

    /// Refuses a job with missing ranks: every rank must replay the same number of batches.
    pub(super) fn are_whole_job(&self) -> anyhow::Result<()> {
        let world_size = self.first().world_size;
        if let Some(other) = self.all.iter().find(|rank| {
            rank.now.world_size != world_size || rank.now.stream != self.first().stream
        }) {
            bail!(
                "the sockets belong to different jobs: stream `{}` of {world_size} ranks and stream `{}` of {}",
                self.first().stream,
                other.now.stream,
                other.now.world_size
            );
        }
        let here: Vec<u32> = self.all.iter().map(|rank| rank.now.rank).collect();
        let missing: Vec<String> = (0..world_size)
            .filter(|rank| !here.contains(rank))
            .map(|rank| rank.to_string())
            .collect();
        if !missing.is_empty() {
            bail!(
                "the job has {world_size} ranks and rank {} is not among the sockets given; a replay has to show every \
                 rank the same number of batches, else collectives hang: name the sockets of all ranks (or --all), and \
                 where ranks run on other hosts, run this on each host with the same --at-batch and --elsewhere",
                missing.join(", ")
            );
        }
        Ok(())
    }

    pub(super) fn first(&self) -> &SessionSteps {
        &self.all[0].now
    }

    /// Requests the state of every trainer.
    pub(super) fn poll(&mut self) -> anyhow::Result<()> {
        for rank in &mut self.all {
            let seen = rank.observer.steps()?;
            rank.take(seen)?;
        }
        Ok(())
    }

    /// Polls until a condition holds. `show` prints the progress.
    pub(super) fn poll_until(
        &mut self,
        is_so: impl Fn(&Rank) -> bool,
        mut show: impl FnMut(&SessionSteps),
    ) -> anyhow::Result<()> {
        let mut moved = (0, Instant::now());
        loop {
            self.poll()?;
            show(self.first());
            if self.all.iter().all(&is_so) {
                return Ok(());
            }
            let taken: u64 = self.all.iter().map(|rank| rank.now.taken).sum();
            let is_fast = taken > moved.0 + 2 * self.all.len() as u64;
            if taken != moved.0 {
                moved = (taken, Instant::now());
            } else if moved.1.elapsed() >= PATIENCE {
                bail!("the trainer has taken no batch for {} s", PATIENCE.as_secs());
            }
            std::thread::sleep(if is_fast { LOOK_OFTEN } else { LOOK_EVERY });
        }
    }

    /// Sends the same request for every rank.
    pub(super) fn ask(&mut self, request: impl Fn(&Rank) -> ReplayRequest) -> anyhow::Result<()> {
        for rank in &mut self.all {
            let answer = rank.observer.replay(request(rank));
            let seen = answer.with_context(|| format!("rank {}", rank.now.rank))?;
            rank.take(seen)?;
        }
        Ok(())
    }

    /// Cancels the replay on every rank and ignores errors.
    pub(super) fn cancel(&self) {
        for rank in &self.all {
            let _ = rank.observer.replay(ReplayRequest::Cancel { session: rank.now.session });
        }
    }

    /// Fails with the reason if a rank's replay was refused.
    pub(super) fn check_refusal(&self) -> anyhow::Result<()> {
        for rank in &self.all {
            if let ReplayState::Refused { reason } = &rank.now.replay {
                bail!("rank {}: {reason}", rank.now.rank);
            }
        }
        Ok(())
    }
}

impl Rank {
    fn take(&mut self, seen: Vec<SessionSteps>) -> anyhow::Result<()> {
        let found = seen.into_iter().find(|one| one.session == self.now.session);
        let Some(found) = found else {
            bail!("the trainer of rank {} has left", self.now.rank);
        };
        self.series.add(&found);
        self.now = found;
        Ok(())
    }
}
