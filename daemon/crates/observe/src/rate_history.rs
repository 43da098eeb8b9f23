//! Rates of a stream over time: the last hour by second and the last day by minute, in fixed memory (80 KiB).
//!
//! The engine observes the counters about once per second while it works, and when work begins and ends. An idle daemon
//! observes nothing and so is not woken. Amounts between two observations are spread evenly over the time between them.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// The minimum time between two observations.
const INTERVAL: Duration = Duration::from_secs(1);
const SECONDS: usize = 3600;
const MINUTES: usize = 1440;

/// A stream's counters since the daemon's start.
#[derive(Debug, Clone, Default)]
pub struct StreamCounters {
    /// Samples that have left the last stage.
    pub samples: u64,
    /// The attached sessions.
    pub sessions: Vec<SessionCounters>,
}

/// A session's counters since it attached.
#[derive(Debug, Clone, Copy, Default)]
pub struct SessionCounters {
    /// The session's number.
    pub session: u64,
    /// Batches taken by the client.
    pub batches: u64,
    /// The client's total wait for batches.
    pub waited_seconds: f64,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct RateHistory {
    start: Instant,
    last_at: f64,
    last: StreamCounters,
    seconds: Steps,
    minutes: Steps,
}

/// Rates by step, for complete steps only. Steps are numbered from the daemon's start.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RateReport {
    /// The number of the first step.
    pub first: u64,
    /// Samples that left the last stage, per second.
    pub samples: Vec<f32>,
    /// Batches taken by clients, per second.
    pub batches: Vec<f32>,
    /// The share of the time for which a client waited, the maximum over clients; `None` if no client is attached.
    pub waited: Vec<Option<f32>>,
}

/// A stream's rates.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StreamHistory {
    /// The stream.
    pub name: String,
    /// By second.
    pub seconds: RateReport,
    /// By minute.
    pub minutes: RateReport,
}

/// The rates of all streams: `/history.json`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct HistoryReport {
    /// The process id.
    pub pid: u32,
    /// The time since the daemon's start, at which step 0 begins.
    pub uptime_seconds: f64,
    /// All streams.
    pub streams: Vec<StreamHistory>,
}

impl RateHistory {
    /// Starts at `now`.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            start: now,
            last_at: 0.0,
            last: StreamCounters::default(),
            seconds: Steps::new(1.0, SECONDS),
            minutes: Steps::new(60.0, MINUTES),
        }
    }

    /// Whether the last observation is old enough for another one.
    #[must_use]
    pub fn is_due(&self, now: Instant) -> bool {
        self.at(now) - self.last_at >= INTERVAL.as_secs_f64()
    }

    fn at(&self, now: Instant) -> f64 {
        now.saturating_duration_since(self.start).as_secs_f64()
    }

    /// Adds the amounts since the last observation.
    #[expect(clippy::cast_precision_loss, reason = "metrics")]
    pub fn observe(&mut self, now: Instant, counters: StreamCounters) {
        let at = self.at(now);
        let seconds = at - self.last_at;
        if seconds <= 0.0 {
            return;
        }
        let mut amounts = Amounts {
            samples: counters.samples.saturating_sub(self.last.samples) as f64,
            attached: if counters.sessions.is_empty() { 0.0 } else { seconds },
            ..Amounts::default()
        };
        for session in &counters.sessions {
            let before = self.last.sessions.iter().find(|one| one.session == session.session);
            let before = before.copied().unwrap_or_default();
            amounts.batches += session.batches.saturating_sub(before.batches) as f64;
            let waited = session.waited_seconds - before.waited_seconds;
            amounts.waited = amounts.waited.max(waited.clamp(0.0, seconds));
        }
        for steps in [&mut self.seconds, &mut self.minutes] {
            steps.add(self.last_at, at, amounts);
        }
        (self.last_at, self.last) = (at, counters);
    }

    /// The rates up to the last observation.
    #[must_use]
    pub fn report(&self, name: &str) -> StreamHistory {
        StreamHistory {
            name: name.to_owned(),
            seconds: self.seconds.report(self.last_at),
            minutes: self.minutes.report(self.last_at),
        }
    }
}

impl HistoryReport {
    /// Only the steps from a second on: a page already has the earlier ones.
    #[must_use]
    pub fn since(&self, second: u64) -> Self {
        let streams = self.streams.iter().map(|stream| StreamHistory {
            name: stream.name.clone(),
            seconds: stream.seconds.since(second),
            minutes: stream.minutes.since(second / 60),
        });
        Self { streams: streams.collect(), ..*self }
    }
}

impl RateReport {
    fn since(&self, step: u64) -> Self {
        let known = step.saturating_sub(self.first);
        let known = usize::try_from(known).unwrap_or(usize::MAX).min(self.samples.len());
        Self {
            first: self.first + known as u64,
            samples: self.samples[known..].to_vec(),
            batches: self.batches[known..].to_vec(),
            waited: self.waited[known..].to_vec(),
        }
    }
}

/// Counts, and seconds attached and waited.
#[derive(Debug, Clone, Copy, Default)]
struct Amounts {
    samples: f64,
    batches: f64,
    attached: f64,
    waited: f64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Step {
    samples: f32,
    batches: f32,
    attached: f32,
    waited: f32,
}

/// The latest steps of one length.
#[derive(Debug)]
struct Steps {
    seconds: f64,
    most: usize,
    first: u64,
    steps: VecDeque<Step>,
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "numbers of steps are small, rates are metrics"
)]
impl Steps {
    fn new(seconds: f64, most: usize) -> Self {
        Self { seconds, most, first: 0, steps: VecDeque::with_capacity(most) }
    }

    /// Spreads amounts over the time from `from` to `to`.
    fn add(&mut self, from: f64, to: f64, amounts: Amounts) {
        let last = (to / self.seconds) as u64;
        let oldest = (last + 1).saturating_sub(self.most as u64);
        if self.first + (self.steps.len() as u64) < oldest {
            self.steps.clear();
            self.first = oldest;
        }
        while self.first + self.steps.len() as u64 <= last {
            if self.steps.len() == self.most {
                self.steps.pop_front();
                self.first += 1;
            }
            self.steps.push_back(Step::default());
        }
        let begin = ((from / self.seconds) as u64).max(self.first);
        for (number, step) in
            (self.first..).zip(&mut self.steps).skip((begin - self.first) as usize)
        {
            let start = number as f64 * self.seconds;
            let part = (to.min(start + self.seconds) - from.max(start)).max(0.0) / (to - from);
            step.samples += (amounts.samples * part) as f32;
            step.batches += (amounts.batches * part) as f32;
            step.attached += (amounts.attached * part) as f32;
            step.waited += (amounts.waited * part) as f32;
        }
    }

    fn report(&self, now: f64) -> RateReport {
        let whole = ((now / self.seconds) as u64).saturating_sub(self.first);
        let steps = || self.steps.iter().take(whole as usize);
        let rate = |amount: f32| tidy(amount / self.seconds as f32);
        let share = |step: &Step| {
            (step.attached > 0.0).then(|| tidy((step.waited / step.attached).min(1.0)))
        };
        RateReport {
            first: self.first,
            samples: steps().map(|step| rate(step.samples)).collect(),
            batches: steps().map(|step| rate(step.batches)).collect(),
            waited: steps().map(share).collect(),
        }
    }
}

/// Rounds to a plot's precision, to keep the text short.
fn tidy(value: f32) -> f32 {
    if value >= 100.0 { value.round() } else { (value * 1000.0).round() / 1000.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(samples: u64, batches: u64, waited_seconds: f64) -> StreamCounters {
        let session = SessionCounters { session: 1, batches, waited_seconds };
        StreamCounters { samples, sessions: vec![session] }
    }

    /// A history, and a function from milliseconds after its start to an instant.
    fn history() -> (RateHistory, impl Fn(u64) -> Instant) {
        let start = Instant::now();
        (RateHistory::new(start), move |milliseconds| start + Duration::from_millis(milliseconds))
    }

    #[test]
    fn hour_by_second_and_day_by_minute_fit_in_fixed_memory() {
        let (mut history, time) = history();
        // Two days with a tick every 1.25 s: 64 samples and half a batch per second, a quarter of the time waiting.
        for tick in 0..138_240_u64 {
            if history.is_due(time(tick * 1250)) {
                let seconds = u32::try_from(tick).map(f64::from).unwrap() * 1.25;
                history
                    .observe(time(tick * 1250), counters(tick * 80, tick * 5 / 8, seconds / 4.0));
            }
        }
        let report = history.report("train");
        assert_eq!((report.seconds.samples.len(), report.minutes.samples.len()), (3599, 1439));
        assert_eq!(report.seconds.first + 3599, 172_798);
        for steps in [&report.seconds, &report.minutes] {
            assert!(steps.samples.iter().all(|rate| (rate - 64.0).abs() < 0.1), "{steps:?}");
            assert!(steps.waited.iter().all(|share| (share.unwrap() - 0.25).abs() < 0.01));
        }
        assert!((report.minutes.batches[7] - 0.5).abs() < 0.02, "{}", report.minutes.batches[7]);
        assert!(history.seconds.steps.capacity() <= 2 * SECONDS);
        // Steps that a page has are not sent again.
        let report = HistoryReport { streams: vec![report], ..HistoryReport::default() };
        let newest = report.since(172_790).streams.remove(0);
        assert_eq!((newest.seconds.first, newest.seconds.samples.len()), (172_790, 8));
        assert_eq!((newest.minutes.first, newest.minutes.samples.len()), (2879, 0));
        assert_eq!(report.since(u64::MAX).streams[0].seconds.samples.len(), 0);
        assert_eq!(report.since(5), report);
    }

    #[test]
    fn amounts_are_spread_over_the_time_between_observations() {
        let (mut history, time) = history();
        history.observe(time(1500), counters(150, 3, 0.0));
        // A wait is counted as a whole when it ends.
        history.observe(time(6500), counters(150, 3, 5.0));
        history.observe(time(9000), StreamCounters { samples: 150, sessions: Vec::new() });
        let seconds = history.report("train").seconds;
        assert_eq!(seconds.samples, [100.0, 50.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
        assert_eq!(seconds.batches[..2], [2.0, 1.0]);
        let shares = [Some(0.0), Some(0.5), Some(1.0), Some(1.0), Some(1.0), Some(1.0), Some(1.0)];
        assert_eq!(seconds.waited, [&shares[..], &[None, None]].concat());
    }

    #[test]
    fn hour_is_idle_after_a_pause_of_more_than_an_hour() {
        let (mut history, time) = history();
        history.observe(time(1000), counters(1000, 1, 0.0));
        history.observe(time(7_201_000), counters(1000, 1, 0.0));
        let report = history.report("train");
        assert_eq!((report.seconds.first, report.seconds.samples.len()), (3602, 3599));
        assert!(report.seconds.samples.iter().all(|rate| *rate == 0.0));
        assert!((report.minutes.samples[0] - 1000.0 / 60.0).abs() < 0.01);
    }

    #[test]
    fn longest_wait_of_several_clients_is_reported() {
        let (mut history, time) = history();
        let session =
            |session, waited_seconds| SessionCounters { session, batches: 5, waited_seconds };
        let sessions = vec![session(1, 0.25), session(2, 0.75)];
        history.observe(time(1000), StreamCounters { samples: 0, sessions });
        let seconds = history.report("train").seconds;
        assert_eq!((seconds.batches[0], seconds.waited[0]), (10.0, Some(0.75)));
    }
}
