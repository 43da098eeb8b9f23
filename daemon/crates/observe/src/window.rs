//! The difference of two reports of one daemon. Metrics are counted from the start; a user interface and the current
//! limit need the last seconds only.
//!
//! Means, rates and the percentiles of stages are those of the window. The percentiles of queues remain those since the
//! start, because a report does not contain their buckets.

use super::cache::CacheReport;
use super::histogram::{counts_since, percentile_of};
use super::queue::QueueReport;
use super::report::{DaemonReport, SessionReport, StageWindow, StreamReport, WindowReport};
use super::requests::RequestReport;
use super::stage::StageReport;
use super::verdict::{Judgement, judge, of_daemon};

impl DaemonReport {
    /// This report's metrics minus those of an earlier one of the same daemon. Sessions, streams and stages that are
    /// not in the earlier one are unchanged; states (slots, memory, stalls) are this report's. The verdicts are for the
    /// window.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut window = self.clone();
        // A daemon in a container often has the same process id as its predecessor.
        if earlier.pid != self.pid || earlier.cpu_seconds > self.cpu_seconds {
            return window;
        }
        window.subtract(earlier);
        subtract_stages(&mut window.stages, &earlier.stages);
        for session in &mut window.sessions {
            let same = |one: &&SessionReport| one.session == session.session;
            if let Some(before) = earlier.sessions.iter().find(same) {
                subtract_session(session, before);
            }
        }
        window.set_verdicts(window.sessions.iter().map(|one| judge(one, &window)).collect());
        window
    }

    /// Subtracts an earlier report's metrics of the process and of the same streams.
    pub(super) fn subtract(&mut self, earlier: &Self) {
        self.cpu_seconds = (self.cpu_seconds - earlier.cpu_seconds).max(0.0);
        self.python_cpu_seconds = (self.python_cpu_seconds - earlier.python_cpu_seconds).max(0.0);
        let held_back = &mut self.cpu_budget.held_back_seconds;
        *held_back = (*held_back - earlier.cpu_budget.held_back_seconds).max(0.0);
        for stream in &mut self.streams {
            if let Some(before) = earlier.streams.iter().find(|one| one.name == stream.name) {
                subtract_stages(&mut stream.stages, &before.stages);
                let decoders = stream.decoders_cpu_seconds - before.decoders_cpu_seconds;
                stream.decoders_cpu_seconds = decoders.max(0.0);
                let batch = before.batch_operations.as_slice();
                subtract_stages(stream.batch_operations.as_mut_slice(), batch);
                subtract_stages(&mut stream.batch_functions, &before.batch_functions);
                if let (Some(requests), Some(before)) = (&mut stream.requests, &before.requests) {
                    *requests = requests.since(before);
                }
                if let (Some(cache), Some(before)) = (&mut stream.cache, &before.cache) {
                    *cache = cache.since(before);
                }
            }
        }
    }

    /// Sets the daemon's verdict, and the sessions' verdicts and windows; `judgements` are in the sessions' order.
    #[expect(clippy::cast_precision_loss, reason = "metrics")]
    pub(super) fn set_verdicts(&mut self, judgements: Vec<Judgement>) {
        self.verdict = of_daemon(&judgements, &self.sessions);
        for (session, judgement) in self.sessions.iter_mut().zip(judgements) {
            if let Some(progress) = &mut session.progress {
                let rate = Some(judgement.window.batches_per_second).filter(|rate| *rate > 0.0);
                let left = progress.batches_left_of_epoch as f64;
                progress.epoch_seconds_left = rate.map(|rate| left / rate);
                progress.seconds_left =
                    rate.zip(progress.batches_left).map(|(rate, left)| left as f64 / rate);
            }
            session.verdict = Some(judgement.verdict);
            session.window = Some(judgement.window);
        }
    }
}

impl WindowReport {
    /// The window of a session's and the daemon's metrics.
    #[expect(clippy::cast_precision_loss, reason = "metrics")]
    pub(super) fn of(session: &SessionReport, report: &DaemonReport, wait_share: f64) -> Self {
        let seconds = session.seconds;
        let per_second = |amount: f64| if seconds > 0.0 { amount / seconds } else { 0.0 };
        let stream = report.streams.iter().find(|stream| stream.name == session.stream);
        let mut stages: Vec<StageWindow> = stream
            .into_iter()
            .flat_map(StreamReport::stages_and_functions)
            .map(|stage| StageWindow {
                name: stage.name.clone(),
                busy: per_second(stage.worked_seconds()).min(f64::from(stage.concurrency)),
                concurrency: stage.concurrency,
                tasks_per_second: per_second(
                    stage.num_tasks.saturating_sub(stage.num_failures) as f64
                ),
                is_of_batches: stage.is_of_batches,
                mean_seconds: stage.ave_time,
                occupancy: stage.queue.as_ref().map(|queue| queue.occupancy_rate),
                python: stage.python.as_ref().map(|one| one.hot_words().unwrap_or_default()),
            })
            .collect();
        if let (Some(last), Some(ring)) = (stages.last_mut(), &session.ring) {
            last.occupancy = Some(ring.occupancy_rate);
        }
        Self {
            seconds,
            wait_share,
            batches_per_second: per_second(session.batches_taken as f64),
            samples_per_second: stages
                .iter()
                .rfind(|stage| !stage.is_of_batches)
                .map_or(0.0, |stage| stage.tasks_per_second),
            work_threads: per_second(session.work_seconds),
            cpu_cores: per_second(report.cpu_seconds),
            python_cores: per_second(report.python_cpu_seconds),
            stages,
            requests: stream.and_then(|stream| stream.requests.as_ref()).map(RequestReport::line),
            cache: stream.and_then(|stream| stream.cache.as_ref()).map(CacheReport::line),
        }
    }
}

/// Subtracts an earlier report's metrics of the same session.
pub(super) fn subtract_session(session: &mut SessionReport, before: &SessionReport) {
    session.seconds -= before.seconds;
    session.wait_seconds = (session.wait_seconds - before.wait_seconds).max(0.0);
    session.work_seconds = (session.work_seconds - before.work_seconds).max(0.0);
    session.put_wait_seconds = (session.put_wait_seconds - before.put_wait_seconds).max(0.0);
    session.batches_published -= before.batches_published.min(session.batches_published);
    session.batches_taken -= before.batches_taken.min(session.batches_taken);
    if let (Some(ring), Some(earlier)) = (&mut session.ring, &before.ring) {
        *ring = ring.since(earlier);
    }
}

fn subtract_stages(stages: &mut [StageReport], earlier: &[StageReport]) {
    for stage in stages {
        if let Some(before) = earlier.iter().find(|one| one.name == stage.name) {
            *stage = stage.since(before);
        }
    }
}

impl StageReport {
    #[expect(clippy::cast_precision_loss, reason = "metrics")]
    fn since(&self, earlier: &Self) -> Self {
        let times = counts_since(&self.times, &earlier.times);
        let count: u64 = times.iter().map(|(_, count)| count).sum();
        let busy_seconds = (self.busy_seconds - earlier.busy_seconds).max(0.0);
        let queue = match (&self.queue, &earlier.queue) {
            (Some(queue), Some(before)) => Some(queue.since(before)),
            (queue, _) => queue.clone(),
        };
        let python = match (&self.python, &earlier.python) {
            (Some(python), Some(before)) => Some(python.since(before)),
            (python, _) => python.clone(),
        };
        Self {
            num_tasks: self.num_tasks.saturating_sub(earlier.num_tasks),
            num_failures: self.num_failures.saturating_sub(earlier.num_failures),
            ave_time: if count == 0 { 0.0 } else { busy_seconds / count as f64 },
            p90_time: percentile_of(&times, 0.9),
            p99_time: percentile_of(&times, 0.99),
            busy_seconds,
            times,
            measured_tasks: self.measured_tasks.saturating_sub(earlier.measured_tasks),
            cpu_seconds: (self.cpu_seconds - earlier.cpu_seconds).max(0.0),
            asleep_seconds: (self.asleep_seconds - earlier.asleep_seconds).max(0.0),
            queue,
            python,
            ..self.clone()
        }
    }
}

impl QueueReport {
    /// The difference, unless the queue was replaced by another session's.
    #[expect(clippy::cast_precision_loss, reason = "metrics")]
    fn since(&self, earlier: &Self) -> Self {
        if self.elapsed <= earlier.elapsed || self.num_items < earlier.num_items {
            return self.clone();
        }
        let elapsed = self.elapsed - earlier.elapsed;
        let items = self.num_items - earlier.num_items;
        let mean = |now: f64, before: f64| {
            let total = now * self.num_items as f64 - before * earlier.num_items as f64;
            if items == 0 { 0.0 } else { (total / items as f64).max(0.0) }
        };
        let occupied =
            self.occupancy_rate * self.elapsed - earlier.occupancy_rate * earlier.elapsed;
        Self {
            elapsed,
            num_items: items,
            qps: items as f64 / elapsed,
            ave_put_time: mean(self.ave_put_time, earlier.ave_put_time),
            ave_get_time: mean(self.ave_get_time, earlier.ave_get_time),
            occupancy_rate: (occupied / elapsed).clamp(0.0, 1.0),
            ..self.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::report::ProgressReport;
    use crate::stage::StageMetrics;

    #[test]
    fn window_has_the_difference_of_two_reports() {
        let metrics = StageMetrics::default();
        (0..50).for_each(|_| metrics.record(Duration::from_millis(1)));
        let before = metrics.report("decode", 2);
        (0..10).for_each(|_| metrics.record(Duration::from_millis(40)));
        metrics.record_failure();
        let window = metrics.report("decode", 2).since(&before);
        assert_eq!((window.num_tasks, window.num_failures), (11, 1));
        assert!((window.ave_time - 0.040).abs() < 1e-9, "{}", window.ave_time);
        assert!((window.p90_time / 0.040 - 1.0).abs() < 0.07, "{}", window.p90_time);
        assert!(window.times.len() == 1);
    }
    /// The report after `seconds`, of which a quarter was waiting: 5 batches, 40 samples and 1.5 CPU seconds per
    /// second.
    fn report(seconds: u32) -> DaemonReport {
        let at = f64::from(seconds);
        let queue = |occupancy_rate| {
            Some(QueueReport { elapsed: at, occupancy_rate, ..QueueReport::default() })
        };
        let work = StageReport {
            name: "work".to_owned(),
            concurrency: 4,
            num_tasks: u64::from(seconds) * 41,
            num_failures: u64::from(seconds),
            busy_seconds: at * 0.5,
            times: vec![(0.0125, u64::from(seconds) * 40)],
            queue: queue(0.1),
            ..StageReport::default()
        };
        let progress = ProgressReport {
            batches_left_of_epoch: 50,
            batches_left: Some(3000),
            ..ProgressReport::default()
        };
        let session = SessionReport {
            session: 1,
            stream: "train".to_owned(),
            seconds: at,
            batches_published: u64::from(seconds) * 5,
            batches_taken: u64::from(seconds) * 5,
            wait_seconds: at / 4.0,
            ring: queue(0.75),
            progress: Some(progress),
            ..SessionReport::default()
        };
        let stream = StreamReport {
            name: "train".to_owned(),
            stages: vec![work],
            ..StreamReport::default()
        };
        DaemonReport {
            cpu_seconds: at * 1.5,
            streams: vec![stream],
            sessions: vec![session],
            ..DaemonReport::default()
        }
    }

    #[test]
    fn window_of_a_session_has_the_metrics_that_its_verdict_judges() {
        let session = report(70).since(&report(10)).sessions.remove(0);
        let window = session.window.unwrap();
        let verdict = session.verdict.unwrap();
        assert_eq!((window.seconds, verdict.seconds), (60.0, 60.0));
        assert!(verdict.sentence.contains("waits 25 % of the last minute"), "{verdict:?}");
        assert_eq!((window.wait_share, window.batches_per_second), (0.25, 5.0));
        assert_eq!((window.samples_per_second, window.cpu_cores), (40.0, 1.5));
        let [stage] = window.stages.as_slice() else { panic!("{window:?}") };
        assert_eq!((stage.busy, stage.concurrency, stage.tasks_per_second), (0.5, 4, 40.0));
        assert_eq!((stage.mean_seconds, stage.occupancy), (0.0125, Some(0.75)), "of the ring");
        let progress = session.progress.unwrap();
        assert_eq!((progress.epoch_seconds_left, progress.seconds_left), (Some(10.0), Some(600.0)));
    }
}
