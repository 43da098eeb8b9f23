//! Estimates the share of the step time that could be saved, from steps with and without data, as numbers and as a
//! sentence. `forebay.headspace` in Python has the same numbers, names and bounds.

use serde::Serialize;

use super::series::Stretch;
use crate::table::{span, time};

/// Below this share a faster loader is not worth the work; the verdict does not name a limit either.
const NOT_WORTH_BELOW: f64 = forebay_observe::WAIT_SHARE_THAT_MATTERS;
/// Above this share a faster loader is worth the work.
const WORTH_ABOVE: f64 = 0.10;
/// A difference of the step times before and after the replay that the result must mention.
const DRIFT: f64 = 0.05;

/// The value that `--json` prints. Times are in seconds per step.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Headspace {
    pub step_seconds: f64,
    pub step_seconds_without_loading: f64,
    /// The share of the step that free data would save, 0 to 1.
    pub headspace: f64,
    /// For the remaining epochs; `None` if the stream is unlimited.
    pub hours_saved: Option<f64>,
    pub hours_remaining: Option<f64>,
    /// The same for one epoch.
    pub hours_saved_per_epoch: f64,
    /// The headspace for the shorter of the step times before and after, minus the uncertainty.
    pub headspace_at_least: f64,
    /// The headspace for the longer one, plus the uncertainty.
    pub headspace_at_most: f64,
    /// `no` below 5 %, `yes` above 10 %, otherwise `maybe`.
    pub worth: &'static str,
    /// Whether the minimum and the maximum headspace give the same answer, if the step times vary enough to matter.
    pub clear: bool,
    /// The part of the difference that is waiting for a batch.
    pub wait_seconds: f64,
    /// The rest of the difference: the step is slower while the loader works.
    pub disturbance_seconds: f64,
    pub step_seconds_before: f64,
    pub step_seconds_after: Option<f64>,
    /// The uncertainty of the headspace, as a share.
    pub uncertainty: f64,
    pub steps_measured: StepsMeasured,
    /// Whether batches were replayed; otherwise the numbers are what is visible from outside.
    pub replayed: bool,
    pub notes: Vec<String>,
    pub sentence: String,
    /// For the report: each block of steps with its phase (`before`, `during` or `after`) and its seconds per step.
    #[serde(skip)]
    pub blocks: Vec<(String, f64)>,
}

/// The numbers of counted steps, without warm-up.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct StepsMeasured {
    pub with_data: u64,
    pub replayed: u64,
}

/// The rest of the run, in steps.
#[derive(Debug, Clone, Copy)]
pub(super) struct Remaining {
    /// `None`: unlimited.
    pub steps: Option<u64>,
    pub steps_per_epoch: u64,
}

#[expect(clippy::cast_precision_loss, reason = "figures")]
fn hours(seconds_per_step: f64, steps: u64) -> f64 {
    seconds_per_step * steps as f64 / 3600.0
}

impl Headspace {
    /// The result of a replay between two stretches with data.
    pub(super) fn of_replay(
        before: &Stretch,
        free: &Stretch,
        after: &Stretch,
        remaining: Remaining,
    ) -> Self {
        let with_data = before.joined(after);
        let step_seconds = with_data.step_seconds();
        let free_seconds = free.step_seconds();
        let saved = (step_seconds - free_seconds).max(0.0);
        // Counts only the wait that the step saves: a wait while the GPU works costs nothing.
        let waiting = (with_data.wait_seconds() - free.wait_seconds()).clamp(0.0, saved);
        let before_seconds = before.step_seconds();
        // The run may have ended during the replay.
        let after_seconds = (!after.step_means.is_empty()).then(|| after.step_seconds());
        let uncertainty = with_data.relative_spread().max(free.relative_spread());
        let with_data_ends = [before_seconds, after_seconds.unwrap_or(before_seconds)];
        let drifts = (with_data_ends[0] - with_data_ends[1]).abs() > DRIFT * step_seconds;
        let share = |step: f64| ((step - free_seconds) / step.max(1e-12)).max(0.0);
        let [least, most] = [f64::min, f64::max]
            .map(|end| share(with_data_ends.into_iter().fold(step_seconds, end)));
        let (least, most) = ((least - uncertainty).max(0.0), (most + uncertainty).min(1.0));
        let varies = uncertainty > DRIFT;
        let clear = !(drifts || varies) || worth(least) == worth(most);
        let mut notes = Vec::new();
        if drifts {
            notes.push(format!(
                "the step with data took {} before the replay and {} after it: another change affected the measurement; {}",
                time(with_data_ends[0]),
                time(with_data_ends[1]),
                if clear { "the result holds for both" } else { "measure again, or longer" }
            ));
        }
        if varies && !clear {
            notes.push(format!(
                "step times vary by {}, too much for a clear result: raise --after and --steps, or stop other work on the machine",
                percent(uncertainty)
            ));
        }
        let measured = StepsMeasured { with_data: with_data.steps, replayed: free.steps };
        let mut found = Self {
            step_seconds_before: before_seconds,
            step_seconds_after: after_seconds,
            uncertainty,
            headspace_at_least: least,
            headspace_at_most: most,
            clear,
            replayed: true,
            blocks: blocks_of(&[("before", before), ("during", free), ("after", after)]),
            notes,
            ..Self::new(step_seconds, saved, waiting, remaining, measured)
        };
        found.sentence = found.say_replayed(drifts || varies);
        found
    }

    /// The result without a replay.
    pub(super) fn of_watching(seen: &Stretch, remaining: Remaining) -> Self {
        let step_seconds = seen.step_seconds();
        let waiting = seen.wait_seconds().clamp(0.0, step_seconds);
        let measured = StepsMeasured { with_data: seen.steps, replayed: 0 };
        let mut found = Self::new(step_seconds, waiting, waiting, remaining, measured);
        found.uncertainty = seen.relative_spread();
        found.blocks = blocks_of(&[("before", seen)]);
        found.notes.push(
            "measured from outside: excludes how much the loader slows the step, and GPU work during the wait; --replay measures both"
                .to_owned(),
        );
        found.sentence = format!(
            "{}: a step takes {}, and {} of it ({}) is waiting for the next batch, over the last {} steps in {}",
            match found.worth {
                "no" => "loading is not the limit, measured from outside",
                "maybe" => "faster loading might be worth the work",
                _ => "faster loading is likely to be worth the work",
            },
            time(step_seconds),
            time(waiting),
            percent(found.headspace),
            seen.steps,
            found.watched(),
        );
        found
    }

    /// The total time of the measured steps.
    #[expect(clippy::cast_precision_loss, reason = "a count of steps")]
    fn watched(&self) -> String {
        time(self.step_seconds * self.steps_measured.with_data as f64)
    }

    fn new(
        step_seconds: f64,
        saved: f64,
        waiting: f64,
        remaining: Remaining,
        steps_measured: StepsMeasured,
    ) -> Self {
        let headspace = saved / step_seconds.max(1e-12);
        Self {
            step_seconds,
            step_seconds_without_loading: step_seconds - saved,
            headspace,
            hours_saved: remaining.steps.map(|steps| hours(saved, steps)),
            hours_remaining: remaining.steps.map(|steps| hours(step_seconds, steps)),
            hours_saved_per_epoch: hours(saved, remaining.steps_per_epoch),
            headspace_at_least: headspace,
            headspace_at_most: headspace,
            worth: worth(headspace),
            clear: true,
            wait_seconds: waiting,
            disturbance_seconds: saved - waiting,
            step_seconds_before: step_seconds,
            step_seconds_after: None,
            uncertainty: 0.0,
            steps_measured,
            replayed: false,
            notes: Vec::new(),
            sentence: String::new(),
            blocks: Vec::new(),
        }
    }

    /// The sentence for a replay: without a claim if the result is not clear, and with the bound that supports the
    /// claim if step times vary.
    fn say_replayed(&self, varies: bool) -> String {
        let opening = match self.worth {
            _ if !self.clear => "no clear result, measure again",
            "no" => "making loading faster is not worth the work",
            "maybe" => "making loading faster may be worth the work",
            _ => "making loading faster is worth the work",
        };
        let mut text = format!(
            "{opening}: a step takes {} and would take {} if data were free, {} less (± {})",
            time(self.step_seconds),
            time(self.step_seconds_without_loading),
            percent(self.headspace),
            percent(self.uncertainty)
        );
        match self.worth {
            _ if !(self.clear && varies) => {}
            "no" => text += &format!(", at most {:.0} %", (self.headspace_at_most * 100.0).ceil()),
            _ => text += &format!(", at least {:.0} %", (self.headspace_at_least * 100.0).floor()),
        }
        if let (Some(saved), Some(all)) = (self.hours_saved, self.hours_remaining) {
            let (saved, all) = (span(saved * 3600.0), span(all * 3600.0));
            text.push_str(&format!(", {saved} of the remaining {all}"));
        }
        if self.worth != "no" && self.clear {
            let (wait, disturbance) = (self.wait_seconds, self.disturbance_seconds);
            let all = wait + disturbance;
            if disturbance < all / 100.0 {
                text += "; all of it is waiting for the next batch";
            } else if wait < all / 100.0 {
                text += "; all of it is the loader slowing the step down";
            } else {
                text += &format!(
                    "; of the {}, {} are waiting for the next batch and {} the loader slowing the step down",
                    time(all),
                    time(wait),
                    time(disturbance)
                );
            }
        }
        text
    }

    /// The result as text.
    pub(super) fn describe(&self) -> String {
        let mut lines = Vec::new();
        let mut line = |name: &str, value: String, note: &str| {
            lines.push(format!("{name:<25}{value:>9}{note}"));
        };
        let steps = self.steps_measured;
        let headspace = percent(self.headspace);
        let with_data = match self.replayed {
            true => format!("   ({} steps)", steps.with_data),
            false => format!("   ({} steps in {})", steps.with_data, self.watched()),
        };
        line("step time with data", time(self.step_seconds), &with_data);
        if self.replayed {
            let replayed = format!("   ({} steps, replayed)", steps.replayed);
            line("step time, data free", time(self.step_seconds_without_loading), &replayed);
            line("headspace", headspace, &format!("   (± {})", percent(self.uncertainty)));
            line("  waiting for batches", time(self.wait_seconds), "");
            line("  loader slows the step", time(self.disturbance_seconds), "");
        } else {
            line("  waiting for batches", time(self.wait_seconds), &format!("   ({headspace})"));
        }
        match (self.hours_saved, self.hours_remaining) {
            (Some(saved), Some(all)) => {
                let of = format!("   (of {})", span(all * 3600.0));
                line("time saved", span(saved * 3600.0), &of);
            }
            _ => line("time saved an epoch", span(self.hours_saved_per_epoch * 3600.0), ""),
        }
        lines.push(self.sentence.clone());
        lines.extend(self.notes.iter().map(|note| format!("note: {note}")));
        lines.join("\n")
    }
}

fn blocks_of(parts: &[(&str, &Stretch)]) -> Vec<(String, f64)> {
    let of_part = |(name, stretch): &(&str, &Stretch)| {
        let blocks = stretch.step_means.iter();
        blocks.map(|seconds| ((*name).to_owned(), *seconds)).collect::<Vec<_>>()
    };
    parts.iter().flat_map(of_part).collect()
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn worth(headspace: f64) -> &'static str {
    match headspace {
        share if share < NOT_WORTH_BELOW => "no",
        share if share > WORTH_ABOVE => "yes",
        _ => "maybe",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stretch(step: f64, wait: f64) -> Stretch {
        Stretch { step_means: vec![step; 5], wait_means: vec![wait; 5], steps: 100 }
    }

    const REMAINING: Remaining = Remaining { steps: Some(36_000), steps_per_epoch: 3600 };

    #[test]
    fn sum_of_one_part_is_not_divided() {
        for (step, wait, part) in [
            (0.2, 0.05, "; all of it is waiting for the next batch"),
            (0.25, 0.0, "; all of it is the loader slowing the step down"),
        ] {
            let (with_data, free) = (stretch(step + wait, wait), stretch(0.2, 0.0));
            let found = Headspace::of_replay(&with_data, &free, &with_data, REMAINING);
            assert!(found.sentence.ends_with(part), "{}", found.sentence);
        }
    }

    #[test]
    fn example_of_the_guide_is_worth_the_work() {
        let (before, free) = (stretch(0.2067, 0.020), stretch(0.1759, 0.0));
        let found = Headspace::of_replay(&before, &free, &stretch(0.2067, 0.020), REMAINING);
        assert!((found.headspace - 0.149).abs() < 1e-3, "{}", found.headspace);
        assert_eq!(found.worth, "yes");
        assert!((found.wait_seconds - 0.020).abs() < 1e-9);
        assert!((found.disturbance_seconds - 0.0108).abs() < 1e-9);
        assert!((found.hours_saved.unwrap() - 0.308).abs() < 1e-6);
        let words = "14.9 % less (± 0.0 %), 18 min of the remaining 2.1 h; of the";
        assert!(found.sentence.contains(words), "{}", found.sentence);
        let parts =
            "; of the 30.80 ms, 20.00 ms are waiting for the next batch and 10.80 ms the loader";
        assert!(found.sentence.contains(parts), "{}", found.sentence);
        assert!(found.notes.is_empty());
    }

    #[test]
    fn headspace_is_zero_without_a_gain_and_drift_is_noted() {
        let found = Headspace::of_replay(
            &stretch(0.10, 0.0),
            &stretch(0.11, 0.0),
            &stretch(0.12, 0.0),
            REMAINING,
        );
        assert_eq!((found.headspace, found.worth), (0.0, "no"));
        assert!(found.notes[0].contains("another change affected"), "{:?}", found.notes);
        assert!(
            found.sentence.starts_with("no clear result, measure again: "),
            "{}",
            found.sentence
        );
    }

    #[test]
    fn varying_steps_matter_if_they_change_the_result() {
        let varied = |mean: f64| Stretch {
            step_means: [0.84, 0.84, 1.0, 1.16, 1.16].map(|part| part * mean).to_vec(),
            ..stretch(mean, 0.0)
        };
        let free = |free: f64| {
            let none = Stretch::default();
            Headspace::of_replay(&varied(0.1), &stretch(free, 0.0), &none, REMAINING)
        };
        let near = free(0.09);
        assert!(near.notes[0].contains("too much for a clear result"), "{:?}", near.notes);
        assert!(near.sentence.starts_with("no clear result, measure again: "), "{}", near.sentence);
        let far = free(0.05);
        assert!(far.uncertainty > DRIFT && far.notes.is_empty(), "{:?}", far.notes);
        assert!(far.sentence.starts_with("making loading faster is worth"), "{}", far.sentence);
    }

    /// Measured values: 128 ms before the replay, 119 ms after it and 24 ms without loading, ± 4.8 %.
    #[test]
    fn result_that_holds_at_the_pessimistic_bound_is_stated_with_it() {
        let varied = |mean: f64, by: f64| Stretch {
            step_means: [1.0 - by, 1.0 - by, 1.0, 1.0 + by, 1.0 + by]
                .map(|part| part * mean)
                .to_vec(),
            ..stretch(mean, 0.0)
        };
        let free = varied(0.024, 0.048);
        let found =
            Headspace::of_replay(&stretch(0.128, 0.0), &free, &stretch(0.119, 0.0), REMAINING);
        assert!(found.clear && found.worth == "yes", "{found:?}");
        assert!((found.headspace_at_least - 0.750).abs() < 2e-3, "{found:?}");
        let words = ["making loading faster is worth the work: ", "(± 4.8 %), at least 75 %"];
        assert!(words.iter().all(|words| found.sentence.contains(words)), "{}", found.sentence);
        assert!(found.notes[0].ends_with("the result holds for both"), "{:?}", found.notes);
        // The pessimistic bound is not worth the work.
        let near = Headspace::of_replay(
            &stretch(0.128, 0.0),
            &varied(0.115, 0.048),
            &stretch(0.119, 0.0),
            REMAINING,
        );
        assert!(!near.clear && near.sentence.starts_with("no clear result"), "{}", near.sentence);
        // No gain, also at the optimistic bound.
        let none = Headspace::of_replay(
            &stretch(0.100, 0.0),
            &stretch(0.106, 0.0),
            &stretch(0.107, 0.0),
            REMAINING,
        );
        assert!(none.clear && none.worth == "no", "{none:?}");
        assert!(none.sentence.contains("(± 3.4 %), at most 5 %"), "{}", none.sentence);
    }

    #[test]
    fn bounds_are_the_same_in_rust_python_and_docs() {
        let python = include_str!("../../../../../client-lib/python/python/forebay/_headspace.py");
        let design = include_str!("../../../../../docs/design/measurements.md");
        let tuning = include_str!("../../../../../docs/guide/headspace.md");
        for (text, words) in [
            (
                python,
                format!("NOT_WORTH_BELOW = {NOT_WORTH_BELOW:.2}\nWORTH_ABOVE = {WORTH_ABOVE:.2}\n"),
            ),
            (
                design,
                format!(
                    "The client waits less than {:.0} % of the time: `trainer`",
                    NOT_WORTH_BELOW * 100.0
                ),
            ),
            (tuning, format!("Below {:.0} % a faster loader", NOT_WORTH_BELOW * 100.0)),
        ] {
            assert!(text.contains(&words), "{words}");
        }
    }

    #[test]
    fn result_without_replay_names_its_limitation() {
        let found = Headspace::of_watching(&stretch(0.1, 0.03), REMAINING);
        assert!((found.headspace - 0.3).abs() < 1e-9 && !found.replayed);
        assert!(found.notes[0].contains("--replay"));
        assert!(found.describe().contains("30.0 %"), "{}", found.describe());
        assert!(
            found.sentence.ends_with("over the last 100 steps in 10.00 s"),
            "{}",
            found.sentence
        );
    }
}
