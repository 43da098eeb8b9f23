//! The times at which a trainer took its batches, measured from outside, and the step times of a stretch.

use forebay_protocol::observing::SessionSteps;

/// Blocks per stretch: as few as in `forebay.headspace` in Python, so that a block is longer than a burst.
const BLOCKS: u64 = 5;

/// One poll.
#[derive(Debug, Clone, Copy)]
struct Poll {
    /// Batches taken.
    taken: u64,
    /// The time of the last take.
    at_ns: u64,
    /// The total wait so far.
    waited_ns: u64,
    /// The number of ready batches.
    ready: u64,
}

/// The polls of one trainer. Times are those of the takes, not of the polls, so they are exact at any interval.
#[derive(Debug, Default)]
pub(super) struct Series {
    polls: Vec<Poll>,
}

/// The steps of a stretch, in blocks.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Stretch {
    /// Seconds per step, for each block.
    pub step_means: Vec<f64>,
    /// Seconds of wait per step, for each block.
    pub wait_means: Vec<f64>,
    pub steps: u64,
}

impl Series {
    pub(super) fn add(&mut self, seen: &SessionSteps) {
        let poll = Poll {
            taken: seen.taken,
            at_ns: seen.taken_at_ns,
            waited_ns: seen.waited_ns,
            ready: seen.published.saturating_sub(seen.taken),
        };
        let is_new = self.polls.last().is_none_or(|last| last.taken < poll.taken);
        if poll.taken > 0 && is_new {
            self.polls.push(poll);
        }
    }

    /// The mean number of ready batches at the polls within a stretch.
    #[expect(clippy::cast_precision_loss, reason = "a figure")]
    pub(super) fn mean_ready(&self, first: u64, last: u64) -> f64 {
        let within = self.within(first, last);
        let total: u64 = within.iter().map(|poll| poll.ready).sum();
        total as f64 / within.len().max(1) as f64
    }

    /// The ready batches at the poll right after a take, if there is one.
    pub(super) fn seen_at(&self, taken: u64) -> Option<u64> {
        let place = self.polls.binary_search_by_key(&taken, |poll| poll.taken).ok()?;
        Some(self.polls[place].ready)
    }

    fn within(&self, first: u64, last: u64) -> &[Poll] {
        let begin = self.polls.partition_point(|poll| poll.taken < first);
        let end = self.polls.partition_point(|poll| poll.taken <= last);
        &self.polls[begin..end.max(begin)]
    }

    /// The steps between the polls with `first` and `last` taken batches.
    #[expect(clippy::cast_precision_loss, reason = "figures")]
    pub(super) fn stretch(&self, first: u64, last: u64) -> Stretch {
        let polls = self.within(first, last);
        let mut stretch = Stretch::default();
        let [begin, .., end] = polls else { return stretch };
        let steps = end.taken - begin.taken;
        stretch.steps = steps;
        let mut from = begin;
        for block in 1..=BLOCKS {
            let until = begin.taken + steps * block / BLOCKS;
            let Some(to) = polls.iter().find(|poll| poll.taken >= until) else { break };
            let count = to.taken.saturating_sub(from.taken);
            if count == 0 {
                continue;
            }
            let mean = |from_ns: u64, to_ns: u64| {
                to_ns.saturating_sub(from_ns) as f64 / 1e9 / count as f64
            };
            stretch.step_means.push(mean(from.at_ns, to.at_ns));
            stretch.wait_means.push(mean(from.waited_ns, to.waited_ns));
            from = to;
        }
        stretch
    }
}

impl Stretch {
    pub(super) fn joined(&self, other: &Self) -> Self {
        Self {
            step_means: [&self.step_means[..], &other.step_means].concat(),
            wait_means: [&self.wait_means[..], &other.wait_means].concat(),
            steps: self.steps + other.steps,
        }
    }

    pub(super) fn step_seconds(&self) -> f64 {
        middle_mean(&self.step_means)
    }

    pub(super) fn wait_seconds(&self) -> f64 {
        middle_mean(&self.wait_means)
    }

    /// Half of the interquartile range of the blocks, divided by their mean.
    pub(super) fn relative_spread(&self) -> f64 {
        let ordered = ordered(&self.step_means);
        let quarter = ordered.len() / 4;
        let span = match ordered.len() {
            0 => 0.0,
            length => ordered[length - 1 - quarter] - ordered[quarter],
        };
        span / 2.0 / middle_mean(&ordered).max(1e-12)
    }
}

fn ordered(values: &[f64]) -> Vec<f64> {
    let mut ordered = values.to_vec();
    ordered.sort_by(f64::total_cmp);
    ordered
}

/// The mean of the middle half, which excludes outliers; 0 without values.
#[expect(clippy::cast_precision_loss, reason = "a figure")]
fn middle_mean(values: &[f64]) -> f64 {
    let ordered = ordered(values);
    let quarter = ordered.len() / 4;
    let middle = &ordered[quarter..ordered.len() - quarter];
    if middle.is_empty() { 0.0 } else { middle.iter().sum::<f64>() / middle.len() as f64 }
}

#[cfg(test)]
mod tests {
    use forebay_protocol::ids::Position;
    use forebay_protocol::observing::ReplayState;

    use super::*;

    fn poll(taken: u64, at_ms: u64, waited_ms: u64) -> SessionSteps {
        SessionSteps {
            session: 1,
            stream: String::new(),
            rank: 0,
            world_size: 1,
            published: taken + 2,
            taken,
            taken_at_ns: at_ms * 1_000_000,
            waited_ns: waited_ms * 1_000_000,
            position: Position::default(),
            batches_left: 0,
            batches_per_epoch: 0,
            epochs: None,
            slots: 8,
            hold: 6,
            replay: ReplayState::Idle,
        }
    }

    #[test]
    fn step_times_are_exact_at_any_polling_interval() {
        let mut series = Series::default();
        for taken in (10..=110).filter(|taken| taken % 3 == 1) {
            // 20 ms per step, 5 of them waiting; one hiccup of a second.
            let hiccup = if taken > 50 { 1000 } else { 0 };
            series.add(&poll(taken, taken * 20 + hiccup, taken * 5));
            series.add(&poll(taken, taken * 20 + hiccup, taken * 5 + 3));
        }
        let stretch = series.stretch(10, 110);
        assert_eq!((stretch.steps, stretch.step_means.len()), (99, 5));
        assert!((stretch.step_seconds() - 0.020).abs() < 1e-9, "{stretch:?}");
        assert!((stretch.wait_seconds() - 0.005).abs() < 2e-4, "{stretch:?}");
        assert!(stretch.relative_spread() < 1e-6);
        assert!((series.mean_ready(10, 110) - 2.0).abs() < 1e-9);
        assert_eq!(series.stretch(200, 300), Stretch::default());
    }
}
