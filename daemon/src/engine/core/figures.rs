//! What the engine tells of itself: every stream, every session, the CPU budget, and what keeps the daemon quiet.

use std::sync::Arc;

use forebay_protocol::huge_pages::HugePages;
use forebay_protocol::observing::{ReplayRequest, SessionSteps};

use super::Engine;
use crate::engine::quarantine::Quarantine;
use crate::engine::session::Session;
use crate::engine::stream::Stream;
use crate::observe::{
    CpuBudgetReport, DaemonReport, EngineFigures, SessionReport, StreamReport, Substitution,
};

impl Engine {
    /// How far every session's client is.
    pub(crate) fn steps(&self) -> Vec<SessionSteps> {
        self.sessions.values().map(Session::steps).collect()
    }

    /// Does what is asked about a session's replay; the reason where it cannot be done.
    pub(crate) fn ask_replay(&mut self, request: &ReplayRequest) -> Result<(), String> {
        let (ReplayRequest::Check { session: number, .. }
        | ReplayRequest::Arm { session: number, .. }
        | ReplayRequest::Commit { session: number }
        | ReplayRequest::Cancel { session: number }) = *request;
        let bell = Arc::clone(&self.bell);
        let Some(session) = self.sessions.get_mut(&number) else {
            return Err(format!("session {number} has ended"));
        };
        session.ask_replay(request, &bell)?;
        self.advance(number);
        Ok(())
    }

    /// The connection is gone that had asked for a replay.
    pub(crate) fn disarm_replay(&mut self, number: u64) {
        if let Some(session) = self.sessions.get_mut(&number) {
            session.disarm_replay();
        }
        self.advance(number);
    }

    /// All figures.
    pub(crate) fn report(&self) -> DaemonReport {
        let streams = self
            .streams
            .iter()
            .enumerate()
            .map(|(number, stream)| self.report_stream(number, stream))
            .collect();
        let sessions = self.sessions.values().map(report_session).collect();
        let budget = &self.pool.shared.budget;
        self.watch_stalls();
        let stalls = self.stalls.borrow().stalls.clone();
        DaemonReport::new(EngineFigures {
            streams,
            sessions,
            threads: self.pool.threads(),
            rescue: self.pool.shared.rescue_is_on(),
            fetch_budget_bytes: self.gate.budget(),
            fetch_in_use_bytes: self.gate.in_use(),
            cpu_budget: CpuBudgetReport {
                cores: budget.cores(),
                held_back_seconds: budget.held_back_in_all().as_secs_f64(),
            },
            granted_cores: self.pool.options.granted_cores,
            stalls,
            metrics: self.metrics_address.map(|address| address.to_string()),
            quiet: self.upkeep.quiet.report(
                &self.pool,
                self.upkeep.quota.as_ref(),
                self.sessions
                    .values()
                    .map(|session| session.huge_pages)
                    .fold(HugePages::default(), HugePages::and),
            ),
        })
    }

    fn report_stream(&self, number: usize, stream: &Stream) -> StreamReport {
        let mut stages = vec![stream.fetch.report("fetch", stream.config.fetch.concurrency.get())];
        for (stage_number, stage) in stream.stages.iter().enumerate() {
            if let Some(before) = stages.last_mut() {
                before.queue = Some(stage.input.report());
            }
            let mut report = stage.figures.report(&stage.name, stage.gate.limit());
            report.concurrency_reason = self.upkeep.why(number, stage_number).to_owned();
            stages.push(report);
        }
        let session = self.sessions.values().find(|session| session.stream.name() == stream.name());
        if let (Some(last), Some(session)) = (stages.last_mut(), session) {
            last.queue =
                Some(session.figures.report(session.started.elapsed(), session.ring_empty_for()));
        }
        let quarantine = stream.quarantine.get().map(Quarantine::report);
        StreamReport {
            name: stream.name().to_owned(),
            batch_size: stream.config.batch.size.get(),
            memory_budget_bytes: stream.config.ring.memory_bytes,
            stages,
            quarantine,
        }
    }
}

fn report_session(session: &Session) -> SessionReport {
    let [free, filling, ready, leased] = session.slots_by_state();
    let (batches_published, batches_taken, waited) = session.counts();
    SessionReport {
        session: session.number,
        stream: session.stream.name().to_owned(),
        rank: session.rank,
        world_size: session.world_size,
        seconds: session.started.elapsed().as_secs_f64(),
        position: session.position(),
        batches_published,
        batches_taken,
        wait_seconds: waited.as_secs_f64(),
        slots_free: free,
        slots_filling: filling,
        slots_ready: ready,
        slots_leased: leased,
        ring_bytes: session.ring_bytes,
        samples_substituted: session.samples_substituted,
        substituted: session
            .substituted
            .iter()
            .map(|one| Substitution {
                epoch: one.epoch,
                sample: one.bad.0,
                substitute: one.substitute.0,
                path: one.path.clone(),
                reason: one.reason.clone(),
            })
            .collect(),
    }
}
