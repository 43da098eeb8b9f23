//! Steps of the user's Python functions that have native equivalents, and the time that they take.

use std::time::Duration;

use super::equals::{Equal, Likeness, equal_of};
use super::finding::{Finding, Weight};
use forebay_engine::{FunctionTimes, Stream, time_functions};

/// The maximum number of calls of each function, and the number of samples in its batch.
const CALLS: u32 = 64;
/// A step with at least this share of the function's time is costly.
const MUCH: f64 = 0.2;

/// Calls each of the user's functions for up to `seconds` and reports steps with a native equivalent.
pub(super) fn findings(stream: &Stream, seconds: f64) -> Vec<Finding> {
    let limit = Duration::try_from_secs_f64(seconds).ok().filter(|limit| !limit.is_zero());
    let Some(limit) = limit else { return Vec::new() };
    let timed = time_functions(stream, CALLS, limit).into_iter();
    timed.flat_map(|times| times.map_or_else(not_timed, |times| of_function(&times))).collect()
}

fn not_timed((place, reason): (String, String)) -> Vec<Finding> {
    let reason = reason.lines().next().unwrap_or_default();
    vec![Finding::new(
        Weight::Minor,
        "python",
        format!("the function of `{place}` could not be timed: {reason}"),
        "forebay run-sample shows what its function does with one sample",
    )]
}

/// A finding for all steps together if there are several, then one for each step, the longest first.
fn of_function(times: &FunctionTimes) -> Vec<Finding> {
    let known = times.transforms.iter();
    let mut steps: Vec<(&Equal, Duration)> =
        known.filter_map(|(class, spent)| Some((equal_of(class)?, *spent))).collect();
    steps.sort_by_key(|(_, spent)| std::cmp::Reverse(*spent));
    let place = place(times);
    let timed = steps.iter().filter(|(equal, _)| equal.likeness != Likeness::List);
    let together: Duration = timed.clone().map(|(_, spent)| *spent).sum();
    let mut found = Vec::new();
    if timed.count() > 1 {
        let share = share(together, times);
        let moved = match times.batch {
            None => format!(
                "what the first steps do can move to a stage before `{}`, what the last ones do to one after it",
                times.place
            ),
            Some(_) => "what is done to single samples can move to a stage".to_owned(),
        };
        found.push(Finding::new(
            weight(together, times),
            "python",
            format!("steps of {place} that have a native equal take {share} together"),
            format!("{moved}; docs/guide/python-examples.md, Native equals"),
        ));
    }
    found.extend(steps.iter().map(|(equal, spent)| of_step(equal, *spent, times)));
    found
}

fn of_step(equal: &Equal, spent: Duration, times: &FunctionTimes) -> Finding {
    let (class, operation, place) = (equal.class, equal.operation(), place(times));
    let takes = format!("`{class}` in {place} takes {}", share(spent, times));
    let state = match equal.likeness {
        Likeness::Same => format!("{takes}; the native operation `{operation}` does the same"),
        Likeness::Close => format!("{takes}; the native operation `{operation}` is close to it"),
        Likeness::List => {
            format!("`{class}` in {place}: the native operation `{operation}` does the same")
        }
        Likeness::Unneeded => format!("{takes}; native stages need no such step"),
    };
    let weight = match equal.likeness {
        Likeness::List => Weight::Minor,
        _ => weight(spent, times),
    };
    let mut remedy = equal.entry.to_owned();
    if equal.likeness != Likeness::Unneeded {
        remedy.push_str(", with your arguments");
    }
    if !equal.note.is_empty() {
        remedy.push_str(&format!("; {}", equal.note));
    }
    Finding::new(weight, "python", state, remedy)
}

fn weight(spent: Duration, times: &FunctionTimes) -> Weight {
    let is_much = spent.as_secs_f64() >= MUCH * times.function.as_secs_f64();
    if is_much { Weight::Costly } else { Weight::Minor }
}

/// The stage or the function on batches.
fn place(times: &FunctionTimes) -> String {
    let kind = if times.batch.is_some() { "the function on batches" } else { "stage" };
    format!("{kind} `{}`", times.place)
}

/// A share of time, such as `2.1 of 3.4 ms a sample`.
fn share(spent: Duration, times: &FunctionTimes) -> String {
    let each = |time: Duration| {
        let millis = time.as_secs_f64() * 1e3 / f64::from(times.calls.max(1));
        let digits = match millis {
            100.0.. => 0,
            0.1.. => 1,
            0.01.. => 2,
            _ => 3,
        };
        format!("{millis:.digits$}")
    };
    let called = match times.batch {
        None => "a sample".to_owned(),
        Some(samples) => format!("a batch of {samples}"),
    };
    format!("{} of {} ms {called}", each(spent), each(times.function))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(transforms: &[(&str, u64)]) -> FunctionTimes {
        let spent =
            |(class, millis): &(&str, u64)| ((*class).to_owned(), Duration::from_millis(*millis));
        FunctionTimes {
            place: "augment".to_owned(),
            batch: None,
            calls: 10,
            function: Duration::from_millis(34),
            transforms: transforms.iter().map(spent).collect(),
        }
    }

    #[test]
    fn steps_are_listed_with_their_time_the_longest_first() {
        let found = of_function(&times(&[
            ("torchvision.Compose", 1),
            ("torchvision.ToTensor", 3),
            ("torchvision.RandomApply", 1),
            ("torchvision.ColorJitter", 21),
            ("torchvision.ElasticTransform", 5),
        ]));
        let told: Vec<&str> = found.iter().map(|finding| finding.state.as_str()).collect();
        assert_eq!(
            told,
            [
                "steps of stage `augment` that have a native equal take 2.4 of 3.4 ms a sample together",
                "`torchvision.ColorJitter` in stage `augment` takes 2.1 of 3.4 ms a sample; the native operation \
                 `color-jitter` does the same",
                "`torchvision.ToTensor` in stage `augment` takes 0.3 of 3.4 ms a sample; native stages need no such step",
                "`torchvision.RandomApply` in stage `augment`: the native operation `random-apply` does the same",
            ]
        );
        let weights = [Weight::Costly, Weight::Costly, Weight::Minor, Weight::Minor];
        assert!(found.iter().map(|finding| finding.weight).eq(weights));
        assert!(found[1].remedy.as_ref().unwrap().starts_with("{ op = \"color-jitter\""));
    }

    #[test]
    fn single_step_has_no_sum_and_unknown_steps_are_ignored() {
        let found = of_function(&times(&[("albumentations.CoarseDropout", 3)]));
        assert_eq!(found.len(), 1);
        assert!(found[0].state.contains("`random-erasing` is close to it"), "{found:?}");
        let unknown = [("torchvision.Compose", 3), ("albumentations.GridDistortion", 20)];
        assert!(of_function(&times(&unknown)).is_empty());
    }

    #[test]
    fn function_on_batches_is_named_with_its_place_and_time_per_batch() {
        let told = FunctionTimes {
            place: "batch.operations[1]".to_owned(),
            batch: Some(32),
            ..times(&[("torchvision.Normalize", 30), ("torchvision.GaussianBlur", 2)])
        };
        let found = of_function(&told);
        assert_eq!(
            found[0].state,
            "steps of the function on batches `batch.operations[1]` that have a native equal take 3.2 of 3.4 ms a batch \
             of 32 together"
        );
        assert!(found[0].remedy.as_ref().unwrap().contains("can move to a stage; docs"));
        assert!(found[1].state.starts_with(
            "`torchvision.Normalize` in the function on batches `batch.operations[1]` takes 3.0 of 3.4 ms a batch of 32; "
        ));
    }

    #[test]
    fn short_times_have_digits_and_zero_samples_are_handled() {
        let short = FunctionTimes { calls: 1000, ..times(&[]) };
        assert_eq!(share(Duration::from_millis(2), &short), "0.002 of 0.03 ms a sample");
        let none = FunctionTimes { calls: 0, ..short };
        assert_eq!(share(Duration::from_millis(21), &none), "21.0 of 34.0 ms a sample");
    }
}
