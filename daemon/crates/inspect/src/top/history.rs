//! The recent reports of one daemon: the metrics of the last seconds, and their time series over the last minutes.
//!
//! Contains data only; [`super::watch`] requests the reports, [`super::snapshot`] presents them.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use forebay_observe::{DaemonReport, SessionReport};

/// The period of the current values: a few steps of most trainers.
const WINDOW: Duration = Duration::from_secs(4);
/// The maximum number of points of a time series: five minutes at two per second.
const MAX_POINTS: usize = 600;
/// The maximum number of reports, if they come faster than expected.
const MAX_REPORTS: usize = 128;

/// The time series of a session: one point per report.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Course {
    /// Samples per second that the trainer took.
    pub samples_per_second: VecDeque<f64>,
    /// The share of the time for which it waited, 0 to 1.
    pub wait_share: VecDeque<f64>,
}

/// The metrics of the last seconds.
#[derive(Debug, Clone)]
pub(super) struct Window {
    /// Counts are differences over the window, states are of its end.
    pub figures: DaemonReport,
    /// The length of the window in seconds.
    pub seconds: f64,
}

/// The recent reports of one daemon.
#[derive(Debug, Default)]
pub(super) struct History {
    reports: VecDeque<(Duration, DaemonReport)>,
    courses: BTreeMap<u64, Course>,
}

impl History {
    /// Adds a report with its time on a clock of any origin. A report of another process restarts the history.
    pub(super) fn add(&mut self, at: Duration, report: DaemonReport) {
        let is_another = |(before, earlier): &(Duration, DaemonReport)| {
            earlier.pid != report.pid || earlier.cpu_seconds > report.cpu_seconds || *before > at
        };
        if self.reports.back().is_some_and(is_another) {
            *self = Self::default();
        }
        self.reports.push_back((at, report));
        // Keeps one report older than the window, as the window's start.
        while self.reports.len() > MAX_REPORTS
            || self.reports.get(1).is_some_and(|(second, _)| at.saturating_sub(*second) >= WINDOW)
        {
            self.reports.pop_front();
        }
        if let Some(window) = self.window().filter(|_| self.reports.len() > 1) {
            self.courses.retain(|number, _| {
                window.figures.sessions.iter().any(|session| session.session == *number)
            });
            for session in &window.figures.sessions {
                let course = self.courses.entry(session.session).or_default();
                push(&mut course.samples_per_second, samples_per_second(&window.figures, session));
                push(&mut course.wait_share, wait_share(session));
            }
        }
    }

    /// The metrics of the last seconds; with one report, since the daemon's start. `None` without reports.
    pub(super) fn window(&self) -> Option<Window> {
        let (at, last) = self.reports.back()?;
        let (begin, first) = self.reports.front()?;
        if at == begin {
            let queue = last.stages.first().and_then(|stage| stage.queue.as_ref());
            let seconds = queue.map_or(0.0, |queue| queue.elapsed);
            return Some(Window { figures: last.clone(), seconds });
        }
        let seconds = at.saturating_sub(*begin).as_secs_f64();
        let mut figures = last.since(first);
        // The daemon's verdicts cover the last minute, which is more reliable than these seconds.
        figures.verdict = last.verdict.clone();
        for (session, last) in figures.sessions.iter_mut().zip(&last.sessions) {
            session.verdict.clone_from(&last.verdict);
            session.window.clone_from(&last.window);
            session.progress.clone_from(&last.progress);
        }
        Some(Window { figures, seconds })
    }

    /// The time series of a session.
    pub(super) fn course(&self, session: u64) -> Option<&Course> {
        self.courses.get(&session)
    }
}

fn push(points: &mut VecDeque<f64>, point: f64) {
    if points.len() >= MAX_POINTS {
        points.pop_front();
    }
    points.push_back(point);
}

/// The rate at which a session's trainer takes samples; its batches are assumed to be full.
#[expect(clippy::cast_precision_loss, reason = "figures")]
pub(super) fn samples_per_second(figures: &DaemonReport, session: &SessionReport) -> f64 {
    let stream = figures.streams.iter().find(|stream| stream.name == session.stream);
    let batch_size = stream.map_or(0, |stream| stream.batch_size);
    if session.seconds <= 0.0 {
        return 0.0;
    }
    session.batches_taken as f64 * f64::from(batch_size) / session.seconds
}

/// The share of the time for which a session's trainer waited.
pub(super) fn wait_share(session: &SessionReport) -> f64 {
    if session.seconds <= 0.0 {
        return 0.0;
    }
    (session.wait_seconds / session.seconds).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use super::super::testing::Script;
    use super::*;

    #[test]
    fn current_values_cover_the_last_seconds_only() {
        let mut history = History::default();
        // Ten seconds at 100 batches per second, then ten at 10.
        for tick in 0..=40u32 {
            let batches =
                if tick <= 20 { 50 * u64::from(tick) } else { 1000 + 5 * u64::from(tick - 20) };
            let script = Script { seconds: f64::from(tick) / 2.0, batches, ..Script::default() };
            history.add(Duration::from_millis(500 * u64::from(tick)), script.report());
        }
        let window = history.window().unwrap();
        assert!((window.seconds - 4.0).abs() < 1e-9, "{}", window.seconds);
        let rate = samples_per_second(&window.figures, &window.figures.sessions[0]);
        assert!((rate - 10.0 * 64.0).abs() < 1e-6, "{rate}");
        let course = history.course(1).unwrap();
        assert_eq!(course.samples_per_second.len(), 40);
        assert!((course.samples_per_second[10] - 6400.0).abs() < 1e-6);
    }

    #[test]
    fn another_process_at_the_socket_restarts_the_history() {
        let mut history = History::default();
        for tick in 0..3u32 {
            let script = Script { seconds: f64::from(tick), batches: 10, ..Script::default() };
            history.add(Duration::from_secs(u64::from(tick)), script.report());
        }
        let script = Script { pid: 77, seconds: 1.0, batches: 3, ..Script::default() };
        history.add(Duration::from_secs(4), script.report());
        assert_eq!(history.window().unwrap().figures.sessions[0].batches_taken, 3);
        assert!(history.course(1).is_none());
    }
}
