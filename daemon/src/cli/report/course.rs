//! How a measured run goes over time: the daemon's figures a few times a second, thinned out when it takes long.

use std::time::{Duration, Instant};

use forebay_client::Loader;

use crate::observe::DaemonReport;

/// Between two looks at first; it doubles each time the points are thinned out.
const INTERVAL: Duration = Duration::from_millis(200);
/// Points kept at most.
const MOST_POINTS: usize = 600;

/// Counts since the start, so that leaving points out loses nothing but detail.
#[derive(Debug, Clone, Default, PartialEq)]
pub(in crate::cli) struct Point {
    pub(super) seconds: f64,
    pub(super) samples: f64,
    pub(super) waited_seconds: f64,
    pub(super) cpu_seconds: f64,
    /// By queue: for how long it was not empty.
    pub(super) occupied_seconds: Vec<f64>,
}

/// Keeps points while a run is measured.
#[derive(Debug)]
pub(in crate::cli) struct Recorder {
    begun: Option<Instant>,
    interval: Duration,
    points: Vec<Point>,
    last: Option<DaemonReport>,
}

impl Default for Recorder {
    fn default() -> Self {
        Self { begun: None, interval: INTERVAL, points: Vec::new(), last: None }
    }
}

impl Recorder {
    /// To be called after each batch: asks the daemon when it is time to.
    pub(in crate::cli) fn look(&mut self, loader: &mut Loader, samples: u64, waited: Duration) {
        let begun = *self.begun.get_or_insert_with(Instant::now);
        let seconds = begun.elapsed().as_secs_f64();
        let last = self.points.last().map_or(f64::MIN, |point| point.seconds);
        if seconds - last < self.interval.as_secs_f64() {
            return;
        }
        // A daemon that was just started again has other figures next time.
        let report = loader.stats().ok().and_then(|text| serde_json::from_str(&text).ok());
        if let Some(report) = report {
            self.add(seconds, samples, waited, &report);
        }
    }

    /// The run's end.
    pub(in crate::cli) fn finish(&mut self, report: &DaemonReport, samples: u64, waited: Duration) {
        if let Some(begun) = self.begun {
            self.add(begun.elapsed().as_secs_f64(), samples, waited, report);
        }
        self.last = Some(report.clone());
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
        if self.points.len() > MOST_POINTS {
            let mut is_kept = false;
            self.points.retain(|_| {
                is_kept = !is_kept;
                is_kept
            });
            self.interval *= 2;
        }
    }

    /// The daemon's last report.
    pub(super) fn last(&self) -> Option<&DaemonReport> {
        self.last.as_ref()
    }

    /// What came between the points, a second: at the end of each.
    pub(super) fn rates(&self) -> Vec<Point> {
        let between =
            self.points.windows(2).filter(|pair| pair[1].seconds - pair[0].seconds > 0.02);
        between.map(|pair| pair[1].rates_since(&pair[0])).collect()
    }
}

impl Point {
    fn rates_since(&self, before: &Self) -> Self {
        let seconds = self.seconds - before.seconds;
        // Another daemon in its place counts anew.
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
impl Recorder {
    /// A recorder that has seen so many points of a made-up run.
    pub(super) fn made_up(report: DaemonReport, points: u32) -> Self {
        let mut recorder = Self::default();
        for number in 0..points {
            let seconds = f64::from(number) * 0.2;
            let mut report = report.clone();
            report.cpu_seconds = seconds * 1.5;
            for stage in &mut report.stages {
                stage.queue.iter_mut().for_each(|queue| queue.elapsed = seconds);
            }
            let waited = Duration::from_secs_f64(seconds * 0.25);
            recorder.add(seconds, u64::from(number) * 100, waited, &report);
        }
        recorder.last = Some(report);
        recorder
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::report;
    use super::*;

    #[test]
    fn rates_stay_right_when_points_are_thinned_out() {
        let recorder = Recorder::made_up(report(), 2000);
        let rates = recorder.rates();
        assert!((300..=MOST_POINTS).contains(&rates.len()), "{}", rates.len());
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
