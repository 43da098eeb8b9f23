//! The metrics of the last minute: the current limit, not the mean since the start.
//!
//! The engine adds a [`Moment`] every ten seconds while it works, and when a client attaches or takes its first batch.
//! An idle daemon adds none and so is not woken. A session is judged by the metrics since the moment nearest to one
//! minute ago. The start of a session, up to its first batch, is excluded once more batches have been taken.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::process::ProcessMetrics;
use super::report::{DaemonReport, SessionReport};
use super::supply::FeedingReport;
use super::verdict::{Judgement, judge};
use super::window::subtract_session;

/// The length of the period that a verdict judges.
pub(crate) const WINDOW: Duration = Duration::from_secs(60);
/// The time between two moments.
const STEP: Duration = Duration::from_secs(10);
/// The maximum number of moments: enough for a minute, and for some that clients add.
const MAX_MOMENTS: usize = 16;

/// The metrics at one moment.
#[derive(Debug)]
pub struct Moment {
    at: Instant,
    figures: DaemonReport,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct History {
    moments: VecDeque<Moment>,
}

impl Moment {
    /// The metrics as of `at`.
    pub fn new(mut figures: DaemonReport, at: Instant) -> Self {
        // These lists are for display; a moment is only for differences.
        figures.sessions.iter_mut().for_each(|session| session.substituted.clear());
        Self { at, figures }
    }

    fn session(&self, number: u64) -> Option<&SessionReport> {
        self.figures.sessions.iter().find(|session| session.session == number)
    }
}

impl History {
    /// Whether the last moment is old enough for another one.
    pub fn is_due(&self, now: Instant) -> bool {
        self.moments.back().is_none_or(|last| now.saturating_duration_since(last.at) >= STEP)
    }

    /// Adds a moment and removes old ones.
    pub fn add(&mut self, moment: Moment) {
        let age = |one: &Moment| moment.at.saturating_duration_since(one.at);
        while self.moments.len() >= MAX_MOMENTS
            || self.moments.get(1).is_some_and(|second| age(second) > WINDOW + STEP)
        {
            self.moments.pop_front();
        }
        self.moments.push_back(moment);
    }

    /// Judges each session by its last minute.
    pub fn judge(&self, now: &DaemonReport, at: Instant) -> Vec<Judgement> {
        let judge_session = |session: &SessionReport| {
            let mut session = session.clone();
            let mut window = DaemonReport {
                cpu_seconds: now.cpu_seconds,
                python_cpu_seconds: now.python_cpu_seconds,
                threads: now.threads,
                cpu_budget: now.cpu_budget,
                stalls: now.stalls.clone(),
                streams: now.streams.clone(),
                ..DaemonReport::default()
            };
            if let Some(base) = self.base(&session, at) {
                window.subtract(&base.figures);
                if let Some(before) = base.session(session.session) {
                    subtract_session(&mut session, before);
                }
            }
            judge(&session, &window)
        };
        now.sessions.iter().map(judge_session).collect()
    }

    /// Completes the engine's metrics as of `at`, and judges each session by its last minute.
    pub fn report(&self, mut report: DaemonReport, at: Instant) -> DaemonReport {
        let process = ProcessMetrics::now();
        env!("CARGO_PKG_VERSION").clone_into(&mut report.release);
        report.pid = std::process::id();
        report.cpu_seconds = process.cpu_seconds + report.decoders_cpu_seconds();
        report.resident_bytes = process.resident_bytes;
        report.private_bytes = process.resident_bytes.saturating_sub(process.shared_bytes);
        let shown = report.sessions.first().map(|session| session.stream.as_str());
        let stream = report.streams.iter().find(|stream| Some(stream.name.as_str()) == shown);
        let stages = stream
            .or(report.streams.first())
            .map(|stream| stream.stages_and_functions().cloned().collect());
        report.stages = stages.unwrap_or_default();
        report.set_verdicts(self.judge(&report, at));
        FeedingReport::add_to(&mut report);
        report
    }

    /// The moment at which the session's window begins.
    fn base(&self, now: &SessionReport, at: Instant) -> Option<&Moment> {
        let distance = |moment: &&Moment| at.saturating_duration_since(moment.at).abs_diff(WINDOW);
        let known = || self.moments.iter().filter(|moment| moment.session(now.session).is_some());
        let has_begun = |moment: &&Moment| {
            moment.session(now.session).is_some_and(|before| {
                before.batches_taken > 0 && before.batches_taken + 2 <= now.batches_taken
            })
        };
        known().filter(has_begun).min_by_key(distance).or_else(|| known().min_by_key(distance))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(batches_taken: u64, seconds: f64, waited: f64) -> DaemonReport {
        let session = SessionReport {
            session: 1,
            seconds,
            batches_published: batches_taken,
            batches_taken,
            wait_seconds: waited,
            slots_free: 8,
            ..SessionReport::default()
        };
        DaemonReport { sessions: vec![session], threads: 1, ..DaemonReport::default() }
    }

    /// A trainer that waits during its first ten seconds and takes ten batches per second afterwards.
    fn at(second: u32) -> DaemonReport {
        let taken = 1 + u64::from(second.saturating_sub(10)) * 10;
        figures(if second < 10 { 0 } else { taken }, second.into(), second.min(10).into())
    }

    #[test]
    fn verdict_judges_the_last_minute_without_the_start() {
        let start = Instant::now();
        let time = |second: u32| start + Duration::from_secs(second.into());
        let mut history = History::default();
        let mut judged = Vec::new();
        for second in 0..300 {
            if history.is_due(time(second)) {
                history.add(Moment::new(at(second), time(second)));
            }
            let judgement = history.judge(&at(second), time(second)).remove(0);
            judged.push((judgement.verdict.seconds, judgement.wait_share));
        }
        assert_eq!(judged[9].1, 1.0, "nothing but the start");
        assert_eq!(judged[12], (2.0, 0.0), "what came after it");
        assert!(
            judged[100..].iter().all(|(seconds, _)| (54.0..=66.0).contains(seconds)),
            "{judged:?}"
        );
        assert!(history.moments.len() <= 9, "{}", history.moments.len());
    }

    #[test]
    fn number_of_moments_is_bounded_if_clients_attach_often() {
        let mut history = History::default();
        let now = Instant::now();
        (0..100).for_each(|_| history.add(Moment::new(at(1), now)));
        assert_eq!(history.moments.len(), MAX_MOMENTS);
    }

    #[test]
    fn verdict_after_a_long_pause_covers_the_time_since() {
        let start = Instant::now();
        let time = |second: u64| start + Duration::from_secs(second);
        let mut history = History::default();
        history.add(Moment::new(figures(5, 5.0, 0.0), time(5)));
        history.add(Moment::new(figures(6, 1000.0, 0.0), time(1000)));
        let judgement = history.judge(&figures(40, 1004.0, 3.0), time(1004)).remove(0);
        assert_eq!((judgement.verdict.seconds, judgement.wait_share), (4.0, 0.75));
    }
}
