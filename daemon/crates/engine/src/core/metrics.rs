//! The engine's report: every stream, every session, the CPU budget and the state of CPU isolation. Also requests for
//! replays.

use std::sync::Arc;

use forebay_protocol::huge_pages::HugePages;
use forebay_protocol::observing::{ReplayRequest, SessionSteps};

use super::Engine;
use crate::core::session::Session;
use crate::ground::datasets::DatasetShare;
use crate::ground::quarantine::Quarantine;
use crate::ground::stream::{BATCH_OPERATIONS, Stream};
use forebay_observe::{
    CacheMetrics, CpuBudgetReport, DaemonReport, DatasetReport, HistoryReport, HotSpotReport,
    Moment, OutageReport, PythonReport, SessionCounters, SessionReport, StageMetrics, StageReport,
    StreamCounters, StreamReport, Substitution, cpu_time,
};
use forebay_transform::FunctionFigures;

impl Engine {
    /// The progress of every session's client.
    pub fn steps(&self) -> Vec<SessionSteps> {
        // A client that asks for rows takes no steps.
        let ranks = self.sessions.values().filter(|session| !session.is_on_request());
        ranks.map(Session::steps).collect()
    }

    /// Carries out a request for a session's replay; `is_own`: from a process of the daemon's user in its namespaces.
    ///
    /// # Errors
    /// The reason for a refusal.
    pub fn request_replay(
        &mut self,
        request: &ReplayRequest,
        owner: u64,
        is_own: bool,
    ) -> Result<(), String> {
        let (ReplayRequest::Check { session: number, .. }
        | ReplayRequest::Arm { session: number, .. }
        | ReplayRequest::Commit { session: number }
        | ReplayRequest::Cancel { session: number }) = *request;
        let waker = Arc::clone(&self.waker);
        let Some(session) = self.sessions.get_mut(&number) else {
            return Err(format!("session {number} has ended"));
        };
        session.allows_replay(is_own)?;
        session.request_replay(request, owner, &waker)?;
        self.advance(number);
        Ok(())
    }

    /// The connection `owner`, which requested a replay, has closed.
    pub fn on_replay_disconnect(&mut self, number: u64, owner: u64) {
        if let Some(session) = self.sessions.get_mut(&number) {
            session.on_disconnect(owner);
        }
        self.advance(number);
    }

    /// All metrics, with a verdict on the last minute of every session.
    pub fn report(&self) -> DaemonReport {
        self.watch_stalls();
        let huge_pages = self
            .sessions
            .values()
            .map(|session| session.ring.memory.huge_pages)
            .fold(HugePages::default(), HugePages::and);
        let cpu_isolation =
            self.tick.quiet.report(&self.pool, self.tick.quota.as_ref(), huge_pages);
        self.history.report(DaemonReport { cpu_isolation, ..self.metrics() }, self.clock.now())
    }

    /// Adds the metrics to the history that verdicts use.
    pub(super) fn add_to_history(&mut self) {
        let moment = Moment::new(self.metrics(), self.clock.now());
        self.history.add(moment);
    }

    /// Called at each tick: updates the history and logs what trainers wait for.
    pub(super) fn watch_waits(&mut self) {
        for session in self.sessions.values_mut() {
            session.observe_client();
        }
        let now = self.clock.now();
        if self.history.is_due(now) {
            self.add_to_history();
        }
        if self.rates.iter().any(|rates| rates.is_due(now)) {
            self.observe_rates();
        }
        if self.wait_log.is_due(now) {
            let judgements = self.history.judge(&self.metrics(), now);
            self.wait_log.log(&judgements, now);
        }
    }

    /// Adds the rates since the last call to the history.
    pub(super) fn observe_rates(&mut self) {
        let now = self.clock.now();
        let streams = self.streams.iter().zip(&self.supplies);
        for ((stream, supply), rates) in streams.zip(&mut self.rates) {
            let made = stream.stages.last().map_or(&stream.fetch, |stage| &stage.figures).count();
            let samples = made + supply.as_ref().map_or(0, |supply| supply.supplied());
            let of_stream =
                self.sessions.values().filter(|session| session.stream.name() == stream.name());
            let sessions = of_stream.map(|session| {
                let (_, batches, waited) = session.counts();
                let waited_seconds = waited.as_secs_f64();
                SessionCounters { session: session.number, batches, waited_seconds }
            });
            rates.observe(now, StreamCounters { samples, sessions: sessions.collect() });
        }
    }

    /// The history of every stream's rates.
    pub fn rate_history(&mut self) -> HistoryReport {
        self.observe_rates();
        let streams = self.streams.iter().zip(&self.rates);
        HistoryReport {
            pid: std::process::id(),
            uptime_seconds: self.clock.elapsed(self.started).as_secs_f64(),
            streams: streams.map(|(stream, rates)| rates.report(stream.name())).collect(),
        }
    }

    /// The engine's own metrics, without CPU isolation.
    fn metrics(&self) -> DaemonReport {
        let streams: Vec<StreamReport> = self
            .streams
            .iter()
            .enumerate()
            .map(|(number, stream)| self.report_stream(number, stream))
            .collect();
        let python_cpu_seconds = streams
            .iter()
            .flat_map(StreamReport::python)
            .fold(0.0, |sum, function| sum + function.cpu_seconds);
        let sessions = self.sessions.values().map(report_session).collect();
        let budget = &self.pool.shared.budget;
        let mut report = DaemonReport {
            uptime_seconds: self.clock.elapsed(self.started).as_secs_f64(),
            python_cpu_seconds,
            streams,
            sessions,
            threads: self.pool.threads(),
            fallback_pool: self.pool.shared.is_fallback_active(),
            fetch_budget_bytes: self.gates.fetch.budget(),
            fetch_in_use_bytes: self.gates.fetch.in_use(),
            cpu_budget: CpuBudgetReport {
                cores: budget.cores(),
                held_back_seconds: budget.held_back_in_all().as_secs_f64(),
                granted_cores: self.pool.options.granted_cores,
                is_quota: self.pool.options.is_under_quota(),
                spare_cores: self.pool.options.spare_cores,
            },
            stalls: self.stalls.borrow().stalls.clone(),
            metrics: self.metrics_address.map(|address| address.to_string()),
            ..DaemonReport::default()
        };
        report.cpu_seconds = cpu_time().as_secs_f64() + report.decoders_cpu_seconds();
        report
    }

    fn report_stream(&self, number: usize, stream: &Stream) -> StreamReport {
        let lanes = u32::try_from(self.fetch_threads[number].lanes()).unwrap_or(u32::MAX);
        let mut fetch = stream.fetch.report("fetch", lanes);
        fetch.concurrency_reason = self.tick.why_fetch(number).to_owned();
        let mut stages = vec![fetch];
        for (stage_number, stage) in stream.stages.iter().enumerate() {
            if let Some(before) = stages.last_mut() {
                before.queue = Some(stage.input.report());
            }
            let threads = stage.gate.limit();
            let at_once = stage.workers.unwrap_or(threads);
            let mut report = stage.figures.report(&stage.name, at_once);
            let figures = stream.plan.python_figures(stage_number);
            report.python = figures.map(|figures| report_python(figures, threads));
            let cost = stage.cost.total();
            report.measured_tasks = cost.rows;
            report.cpu_seconds = cost.cpu.as_secs_f64();
            report.asleep_seconds = cost.asleep.as_secs_f64();
            report.concurrency_reason = self.tick.why(number, stage_number).to_owned();
            stages.push(report);
        }
        let mut batch_functions = report_batch_functions(stream);
        let session = self.sessions.values().find(|session| session.stream.name() == stream.name());
        let last = batch_functions.last_mut().or(stages.last_mut());
        if let (Some(last), Some(session)) = (last, session) {
            last.queue = Some(session.ring.report());
        }
        let batch_operations = stream.has_batch_operations().then(|| {
            let together = stream.batch_figures.report(BATCH_OPERATIONS, self.pool.threads());
            StageReport { is_of_batches: true, ..together }
        });
        let quarantine = stream.quarantine.get().map(Quarantine::report);
        let outage = stream.outages.current().map(|outage| OutageReport {
            seconds: outage.lasts.as_secs_f64(),
            reads: outage.reads,
            path: outage.path.display().to_string(),
            sentence: outage.sentence,
        });
        StreamReport {
            outage,
            outage_timeout_seconds: stream.config.dataset.outage_timeout.as_secs_f64(),
            name: stream.name().to_owned(),
            // With batches by length about so many.
            batch_size: match stream.by_length() {
                None => stream.config.batch.size.get(),
                Some(by_length) => by_length.usual_rows(),
            },
            memory_budget_bytes: stream.memory_bytes(),
            stages,
            decoders_cpu_seconds: stream.plan.decoders_cpu_time().as_secs_f64(),
            batch_operations,
            batch_functions,
            requests: stream.requests(),
            cache: stream.storage.properties().cache.map(CacheMetrics::report),
            sharing: self.shared_rows[number].report(),
            feeding: None,
            supply: self.supplies[number].as_ref().map(|supply| supply.report()),
            quarantine,
            jpeg_index: stream.jpeg_index.report(),
            datasets: stream.datasets().iter().map(report_dataset).collect(),
        }
    }
}

/// The user's functions on complete batches, reported as stages.
fn report_batch_functions(stream: &Stream) -> Vec<StageReport> {
    let functions = stream.plan.batch_function_figures().zip(&stream.function_figures);
    let report = |(python, figures): (FunctionFigures<'_>, &StageMetrics)| {
        // A thread waits for each worker.
        let workers = python.workers;
        let python = report_python(python, workers);
        let whole = figures.report(&python.place, workers);
        StageReport { is_of_batches: true, python: Some(python), ..whole }
    };
    functions.map(report).collect()
}

fn report_dataset(dataset: &DatasetShare) -> DatasetReport {
    DatasetReport {
        name: dataset.name.clone(),
        samples: dataset.samples,
        draws_per_epoch: dataset.draws_per_epoch,
        changes: dataset.changes.clone(),
        rows_published: dataset.rows_published(),
    }
}

#[expect(clippy::cast_precision_loss, reason = "metrics")]
fn report_python(figures: FunctionFigures<'_>, threads: u32) -> PythonReport {
    let FunctionFigures { place, target, workers, calls, hot_spot } = figures;
    let function_seconds = calls.in_function.as_secs_f64();
    PythonReport {
        place: place.to_owned(),
        function: target.to_owned(),
        workers,
        threads,
        num_calls: calls.rows,
        ave_time: function_seconds / calls.rows.max(1) as f64,
        function_seconds,
        beside_seconds: calls.in_workers.saturating_sub(calls.in_function).as_secs_f64(),
        wait_seconds: calls.waiting.as_secs_f64(),
        copy_seconds: calls.copying.as_secs_f64(),
        num_timeouts: calls.timeouts,
        timeout_seconds: calls.in_timeouts.as_secs_f64(),
        num_starts: calls.starts,
        start_seconds: calls.starting.as_secs_f64(),
        cpu_seconds: calls.cpu.as_secs_f64(),
        hot_spot: hot_spot.map(|spot| HotSpotReport { name: spot.name, share: spot.share }),
    }
}

fn report_session(session: &Session) -> SessionReport {
    let [free, filling, ready, leased] = session.ring.slots_by_state();
    let (batches_published, batches_taken, waited) = session.counts();
    SessionReport {
        session: session.number,
        stream: session.stream.name().to_owned(),
        trainer: session.trainer.clone(),
        rank: session.rank,
        world_size: session.world_size,
        seconds: session.ring.elapsed().as_secs_f64(),
        position: session.position(),
        batches_published,
        batches_taken,
        wait_seconds: waited.as_secs_f64(),
        work_seconds: session.work.turn.worked().as_secs_f64(),
        slots_free: free,
        slots_filling: filling,
        slots_ready: ready,
        slots_leased: leased,
        ring_bytes: session.ring.memory.bytes,
        samples_substituted: session.substitutes.total,
        samples_unreadable: session.substitutes.unreadable,
        put_wait_seconds: session.ring.put_wait().as_secs_f64(),
        ring: Some(session.ring.report()),
        verdict: None,
        window: None,
        progress: Some(session.progress()),
        substituted: session
            .substitutes
            .listed
            .iter()
            .map(|one| Substitution {
                epoch: one.epoch,
                sample: one.bad.0,
                substitute: one.substitute.0,
                path: one.path.clone(),
                reason: one.reason.clone(),
                unreadable: one.is_unreadable,
            })
            .collect(),
    }
}
