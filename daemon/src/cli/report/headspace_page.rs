//! The page of a measured headspace: `forebay headspace --report`.

use super::chart::{self, Bar};
use super::machine::machine;
use super::markup::short_time;
use super::page::{color, facts, grid, page, section};

/// What a headspace came to. Times in seconds a step.
#[derive(Debug, Clone, Default)]
pub(in crate::cli) struct HeadspaceBars {
    /// A step with data.
    pub(in crate::cli) step_seconds: f64,
    /// A step if data were free.
    pub(in crate::cli) step_seconds_without_loading: f64,
    /// Of the difference: the trainer waits.
    pub(in crate::cli) waiting_seconds: f64,
    /// Of the difference: the loader slows the trainer down.
    pub(in crate::cli) disturbing_seconds: f64,
    /// In order: `before`, `during` or `after` the replay, and a step's time in each block of steps.
    pub(in crate::cli) blocks: Vec<(String, f64)>,
    /// For a person: the headline.
    pub(in crate::cli) sentence: String,
    /// What else is to be told: names and values.
    pub(in crate::cli) details: Vec<(String, String)>,
}

/// Makes the page.
pub(in crate::cli) fn headspace_page(bars: &HeadspaceBars) -> String {
    let part = |name: &str, seconds: f64, color| {
        (format!("{name}: {}", short_time(seconds)), seconds.max(0.0), color)
    };
    let works = part("the trainer works", bars.step_seconds_without_loading, color::TRAINER);
    let shown = [
        Bar {
            name: "a step with data".to_owned(),
            parts: vec![
                works.clone(),
                part("waits for data", bars.waiting_seconds, color::WAIT),
                part("is disturbed by loading", bars.disturbing_seconds, color::DISTURB),
            ],
            value: short_time(bars.step_seconds),
        },
        Bar {
            name: "if data were free".to_owned(),
            parts: vec![works],
            value: short_time(bars.step_seconds_without_loading),
        },
    ];
    let sum = bars.step_seconds_without_loading.max(0.0)
        + bars.waiting_seconds.max(0.0)
        + bars.disturbing_seconds.max(0.0);
    let mut steps =
        chart::bars("a step with data, and if data were free", &shown, sum.max(bars.step_seconds));
    let names = [
        ("the trainer works", color::TRAINER),
        ("it waits for data", color::WAIT),
        ("loading disturbs it", color::DISTURB),
    ];
    steps.push_str(&chart::legend(names.into_iter()));
    let columns: Vec<(String, f64, &str)> = bars
        .blocks
        .iter()
        .map(|(phase, seconds)| (phase.clone(), seconds * 1e3, phase_color(phase)))
        .collect();
    let label = "blocks of steps, in order";
    let mut blocks = chart::columns(
        "a step's time before, during and after the replay",
        "ms a step",
        label,
        &columns,
    );
    let phases = [("before", "before the replay"), ("during", "during it"), ("after", "after it")];
    blocks.push_str(&chart::legend(phases.iter().map(|(phase, name)| (*name, phase_color(phase)))));
    let machine = machine();
    let all = bars.details.iter().chain(&machine);
    let body = grid(&[section("A step", "", &steps), section("Step times", "", &blocks)])
        + &grid(&[section(
            "What was measured",
            "",
            &facts(all.map(|(name, value)| (name.as_str(), value.as_str()))),
        )]);
    page("forebay headspace", &bars.sentence, &body)
}

fn phase_color(phase: &str) -> &'static str {
    match phase {
        "during" => "#009e73",
        "after" => "#56b4e9",
        _ => color::THROUGHPUT,
    }
}
