//! The daemon's counters over a measured run, five times per second; a long run is thinned out.

use std::time::{Duration, Instant};

use forebay_client::Loader;
use forebay_observe::DaemonReport;
use serde::Serialize;

/// The initial interval of points; doubles each time the points are thinned out.
const INTERVAL: Duration = Duration::from_millis(200);
/// The maximum number of points.
const MAX_POINTS: usize = 600;

/// Counters since the start, so that removing a point loses only detail. [`TimeSeries::rates`] converts them to rates.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct Point {
    seconds: f64,
    samples: f64,
    waited_seconds: f64,
    cpu_seconds: f64,
    /// For each stage, the total time in which the queue after it was not empty.
    occupied_seconds: Vec<f64>,
}

/// The points of a run.
#[derive(Debug)]
pub struct TimeSeries {
    start: Option<Instant>,
    interval: Duration,
    points: Vec<Point>,
}

impl Default for TimeSeries {
    fn default() -> Self {
        Self { start: None, interval: INTERVAL, points: Vec::new() }
    }
}

impl TimeSeries {
    /// Adds a point if one is due. Call it after each batch.
    pub fn sample(&mut self, loader: &mut Loader, samples: u64, waited: Duration) {
        let start = *self.start.get_or_insert_with(Instant::now);
        let seconds = start.elapsed().as_secs_f64();
        let last = self.points.last().map_or(f64::MIN, |point| point.seconds);
        if seconds - last < self.interval.as_secs_f64() {
            return;
        }
        // A daemon that restarts responds at a later point.
        let report = loader.stats().ok().and_then(|text| serde_json::from_str(&text).ok());
        if let Some(report) = report {
            self.add(seconds, samples, waited, &report);
        }
    }

    /// Adds the last point.
    pub fn finish(&mut self, report: &DaemonReport, samples: u64, waited: Duration) {
        if let Some(start) = self.start {
            self.add(start.elapsed().as_secs_f64(), samples, waited, report);
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "figures")]
    fn add(&mut self, seconds: f64, samples: u64, waited: Duration, report: &DaemonReport) {
        let occupied = report.stages.iter().map(|stage| {
            stage.queue.as_ref().map_or(0.0, |queue| queue.occupancy_rate * queue.elapsed)
        });
        self.points.push(Point {
            seconds,
            samples: samples as f64,
            waited_seconds: waited.as_secs_f64(),
            cpu_seconds: report.cpu_seconds,
            occupied_seconds: occupied.collect(),
        });
        if self.points.len() > MAX_POINTS {
            let mut is_kept = false;
            self.points.retain(|_| {
                is_kept = !is_kept;
                is_kept
            });
            self.interval *= 2;
        }
    }

    /// The change per second between two points, at the time of the second one.
    pub(super) fn rates(&self) -> Vec<Point> {
        let between =
            self.points.windows(2).filter(|pair| pair[1].seconds - pair[0].seconds > 0.02);
        between.map(|pair| pair[1].rates_since(&pair[0])).collect()
    }
}

impl Point {
    fn rates_since(&self, before: &Self) -> Self {
        let seconds = self.seconds - before.seconds;
        // A restarted daemon counts from 0.
        let rate = |now: f64, before: f64| ((now - before) / seconds).max(0.0);
        let queues = self.occupied_seconds.iter().zip(&before.occupied_seconds);
        Self {
            seconds: self.seconds,
            samples: rate(self.samples, before.samples),
            waited_seconds: rate(self.waited_seconds, before.waited_seconds).min(1.0),
            cpu_seconds: rate(self.cpu_seconds, before.cpu_seconds),
            occupied_seconds: queues.map(|(now, before)| rate(*now, *before).min(1.0)).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_observe::{QueueReport, StageReport};

    use super::*;

    #[test]
    fn rates_are_unchanged_if_points_are_thinned_out() {
        let queue = QueueReport { occupancy_rate: 0.9, ..QueueReport::default() };
        let fetch = StageReport { queue: Some(queue), ..StageReport::default() };
        let mut report = DaemonReport { stages: vec![fetch], ..DaemonReport::default() };
        let mut series = TimeSeries::default();
        for number in 0..2000_u32 {
            let seconds = f64::from(number) * 0.2;
            report.cpu_seconds = seconds * 1.5;
            report.stages[0].queue.as_mut().unwrap().elapsed = seconds;
            let waited = Duration::from_secs_f64(seconds * 0.25);
            series.add(seconds, u64::from(number) * 100, waited, &report);
        }
        let rates = series.rates();
        assert!((300..=MAX_POINTS).contains(&rates.len()), "{}", rates.len());
        for rate in rates {
            assert!(
                (rate.samples - 500.0).abs() < 1e-3 && (rate.waited_seconds - 0.25).abs() < 1e-6,
                "{rate:?}"
            );
            assert!((rate.cpu_seconds - 1.5).abs() < 1e-6, "{rate:?}");
            assert!((rate.occupied_seconds[0] - 0.9).abs() < 1e-6, "{rate:?}");
        }
    }
}
