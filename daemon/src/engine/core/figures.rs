//! What the engine tells of itself: every stream, every session, the CPU budget, and what keeps the daemon quiet.

use std::sync::Arc;
use std::time::Instant;

use forebay_protocol::huge_pages::HugePages;
use forebay_protocol::observing::{ReplayRequest, SessionSteps};

use super::Engine;
use crate::engine::quarantine::Quarantine;
use crate::engine::session::Session;
use crate::engine::stream::Stream;
use crate::observe::{
    CpuBudgetReport, DaemonReport, EngineFigures, Moment, SessionReport, StreamReport,
    Substitution, cpu_time,
};

impl Engine {
    /// How far every session's client is.
    pub(crate) fn steps(&self) -> Vec<SessionSteps> {
        self.sessions.values().map(Session::steps).collect()
    }

    /// Does what is asked about a session's replay; the reason where it cannot be done.
    pub(crate) fn ask_replay(&mut self, request: &ReplayRequest, owner: u64) -> Result<(), String> {
        let (ReplayRequest::Check { session: number, .. }
        | ReplayRequest::Arm { session: number, .. }
        | ReplayRequest::Commit { session: number }
        | ReplayRequest::Cancel { session: number }) = *request;
        let bell = Arc::clone(&self.bell);
        let Some(session) = self.sessions.get_mut(&number) else {
            return Err(format!("session {number} has ended"));
        };
        session.ask_replay(request, owner, &bell)?;
        self.advance(number);
        Ok(())
    }

    /// The connection `owner` is gone, which had asked for a replay.
    pub(crate) fn disarm_replay(&mut self, number: u64, owner: u64) {
        if let Some(session) = self.sessions.get_mut(&number) {
            session.disarm_replay(owner);
        }
        self.advance(number);
    }

    /// All figures; every session judged by its last minute.
    pub(crate) fn report(&self) -> DaemonReport {
        self.watch_stalls();
        let huge_pages = self
            .sessions
            .values()
            .map(|session| session.huge_pages)
            .fold(HugePages::default(), HugePages::and);
        let quiet = self.upkeep.quiet.report(&self.pool, self.upkeep.quota.as_ref(), huge_pages);
        DaemonReport::new(EngineFigures { quiet, ..self.figures() }, &self.history)
    }

    /// Remembers where the figures stand, for verdicts to come.
    pub(super) fn note_moment(&mut self) {
        let moment = Moment::new(self.figures(), cpu_time().as_secs_f64(), Instant::now());
        self.history.add(moment);
    }

    /// What is done by the clock: moments, and what trainers wait for into the log.
    pub(super) fn watch_waits(&mut self) {
        for session in self.sessions.values_mut() {
            session.look_at_client();
        }
        let now = Instant::now();
        if self.history.is_due(now) {
            self.note_moment();
        }
        if self.wait_log.is_due(now) {
            let judgements = self.history.judge(&self.figures(), cpu_time().as_secs_f64(), now);
            self.wait_log.look(&judgements, now);
        }
    }

    /// The figures but for what keeps the daemon quiet.
    fn figures(&self) -> EngineFigures {
        let streams = self
            .streams
            .iter()
            .enumerate()
            .map(|(number, stream)| self.report_stream(number, stream))
            .collect();
        let sessions = self.sessions.values().map(report_session).collect();
        let budget = &self.pool.shared.budget;
        EngineFigures {
            streams,
            sessions,
            threads: self.pool.threads(),
            rescue: self.pool.shared.rescue_is_on(),
            fetch_budget_bytes: self.gate.budget(),
            fetch_in_use_bytes: self.gate.in_use(),
            cpu_budget: CpuBudgetReport {
                cores: budget.cores(),
                held_back_seconds: budget.held_back_in_all().as_secs_f64(),
                granted_cores: self.pool.options.granted_cores,
                is_quota: self.pool.options.is_under_quota(),
            },
            stalls: self.stalls.borrow().stalls.clone(),
            metrics: self.metrics_address.map(|address| address.to_string()),
            quiet: Vec::new(),
        }
    }

    fn report_stream(&self, number: usize, stream: &Stream) -> StreamReport {
        let mut stages = vec![stream.fetch.report("fetch", stream.config.fetch.concurrency.get())];
        for (stage_number, stage) in stream.stages.iter().enumerate() {
            if let Some(before) = stages.last_mut() {
                before.queue = Some(stage.input.report());
            }
            let mut report = stage.figures.report(&stage.name, stage.gate.limit());
            let cost = stage.cost.total();
            report.measured_tasks = cost.rows;
            report.cpu_seconds = cost.cpu.as_secs_f64();
            report.asleep_seconds = cost.asleep.as_secs_f64();
            report.concurrency_reason = self.upkeep.why(number, stage_number).to_owned();
            stages.push(report);
        }
        let session = self.sessions.values().find(|session| session.stream.name() == stream.name());
        if let (Some(last), Some(session)) = (stages.last_mut(), session) {
            last.queue = Some(session.ring_report());
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
        put_wait_seconds: session.put_wait().as_secs_f64(),
        ring: Some(session.ring_report()),
        verdict: None,
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
