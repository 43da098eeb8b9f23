//! The pages are well-formed, hold every plot, and nothing of what they tell becomes markup.

use super::testing::report;
use super::*;
use crate::cli::bench::{BenchReport, WaitSeconds};

/// Walks the tags: each is closed by its own kind, attributes are quoted, entities are XML's. Gives the names in order.
fn tags(page: &str) -> Vec<String> {
    let page = page.strip_prefix("<!DOCTYPE html>\n").unwrap();
    let (mut open, mut names) = (Vec::new(), Vec::new());
    for (number, part) in page.split('<').enumerate() {
        for entity in part.split('&').skip(1) {
            assert!(
                ["amp;", "lt;", "gt;", "quot;", "#39;"]
                    .iter()
                    .any(|known| entity.starts_with(known)),
                "&{entity}"
            );
        }
        assert!(part.chars().all(|one| one == '\n' || !one.is_control()), "{part}");
        if number == 0 {
            continue;
        }
        let (tag, _) = part.split_once('>').unwrap();
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(name), "near <{part}");
            continue;
        }
        let name = tag.split([' ', '/']).next().unwrap().to_owned();
        assert!(tag.matches('"').count() % 2 == 0 && !tag.contains(" on"), "<{tag}>");
        names.push(name.clone());
        if !tag.ends_with('/') {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "{open:?}");
    names
}

fn page_of(sentence: &str, config: &str) -> String {
    let recorder = Recorder::made_up(report(), 60);
    let mut last = report();
    last.verdict.sentence = sentence.to_owned();
    let report = BenchReport {
        samples: 6400,
        batches: 100,
        seconds: 10.0,
        samples_per_second: 640.0,
        cpu_seconds_per_1000_samples: 2.34,
        time_to_first_batch_seconds: 0.2,
        peak_memory_bytes: 600 << 20,
        wait_seconds: WaitSeconds { p50: 0.0001, p99: 0.02 },
        digest: Some("abc".to_owned()),
        stages: last.stages,
        verdict: last.verdict,
    };
    let command_line = "forebay bench train.toml --report out.html";
    let what =
        BenchPage { name: "train", report: &report, recorder: &recorder, config, command_line };
    bench_page(&what)
}

fn write_for_a_look(name: &str, page: &str) {
    if let Some(folder) = std::env::var_os("FOREBAY_WRITE_PAGES") {
        std::fs::write(std::path::Path::new(&folder).join(name), page).unwrap();
    }
}

#[test]
fn the_page_of_a_run_is_well_formed_and_has_every_plot() {
    let page = page_of("the stage `preprocess` is the limit: 11 ms", "[batch]\nsize = 64\n");
    write_for_a_look("bench.html", &page);
    let names = tags(&page);
    for heading in [
        "Pipeline",
        "Throughput",
        "Wait",
        "Occupancy of the queues",
        "Processor time of the daemon",
        "Times of fetch",
        "Times of preprocess",
        "Stages",
        "Configuration",
        "Machine and run",
    ] {
        assert!(page.contains(&format!("<h2>{heading}</h2>")), "{heading}");
    }
    // Five lines over time: throughput, wait, two queues, processor time.
    assert_eq!(names.iter().filter(|name| *name == "polyline").count(), 5);
    assert_eq!(page.matches("class=\"plot\"").count(), 7);
    for words in [
        "The stage `preprocess` is the limit",
        "size = 64",
        "forebay bench train.toml",
        "640",
        "2.34",
        "kernel",
        "class=\"box limit\"",
    ] {
        assert!(page.contains(words), "{words}");
    }
    assert!(
        !names
            .iter()
            .any(|name| ["script", "link", "img", "iframe", "object"].contains(&name.as_str()))
    );
    let addresses = page.matches("http").count();
    assert_eq!(
        addresses,
        page.matches("http://www.w3.org/").count() + page.matches("http-equiv").count()
    );
}

#[test]
fn what_a_page_tells_never_becomes_markup() {
    let hostile = "</pre></p><script>alert(1)</script>\" onload='x' & <b> \u{1b}[2J";
    let page = page_of(hostile, &format!("[dataset]\npath = \"{hostile}\"\n"));
    let names = tags(&page);
    assert!(!names.iter().any(|name| name == "script" || name == "b" && page.contains("<b> ")));
    assert!(
        page.contains("&lt;script&gt;alert(1)&lt;/script&gt;") && page.contains("\\x1b[2J"),
        "{page}"
    );
    let bars = HeadspaceBars {
        sentence: hostile.to_owned(),
        blocks: vec![(hostile.to_owned(), 1.0)],
        details: vec![(hostile.to_owned(), hostile.to_owned())],
        ..HeadspaceBars::default()
    };
    assert!(!tags(&headspace_page(&bars)).iter().any(|name| name == "script"));
}

#[test]
fn a_run_too_short_to_have_a_course_still_has_a_page() {
    let mut page = page_of("too few batches so far", "");
    tags(&page);
    let recorder = Recorder::default();
    let report = BenchReport {
        samples: 0,
        batches: 0,
        seconds: 0.0,
        samples_per_second: 0.0,
        cpu_seconds_per_1000_samples: 0.0,
        time_to_first_batch_seconds: 0.0,
        peak_memory_bytes: 0,
        wait_seconds: WaitSeconds { p50: 0.0, p99: 0.0 },
        digest: None,
        stages: Vec::new(),
        verdict: report().verdict,
    };
    let what =
        BenchPage { name: "t", report: &report, recorder: &recorder, config: "", command_line: "" };
    page = bench_page(&what);
    tags(&page);
    assert!(!page.contains("NaN") && !page.contains("inf,"), "{page}");
}

#[test]
fn the_page_of_a_headspace_has_its_bars_and_step_times() {
    let block = |phase: &str, step: f64| (phase.to_owned(), step);
    let mut blocks: Vec<_> =
        (0..10u8).map(|number| block("before", 0.250 + f64::from(number % 3) * 0.004)).collect();
    blocks.extend((0..20u8).map(|number| block("during", 0.215 + f64::from(number % 4) * 0.002)));
    blocks.extend((0..10u8).map(|number| block("after", 0.252 + f64::from(number % 3) * 0.003)));
    let bars = HeadspaceBars {
        step_seconds: 0.253,
        step_seconds_without_loading: 0.218,
        waiting_seconds: 0.026,
        disturbing_seconds: 0.0085,
        blocks,
        sentence: "data loading takes 13.7 % of the step: 5.2 of the 38 hours left could be saved; worth the work".to_owned(),
        details: vec![("stream".to_owned(), "train <a&b>".to_owned()), ("steps replayed".to_owned(), "200".to_owned())],
    };
    let page = headspace_page(&bars);
    write_for_a_look("headspace.html", &page);
    let names = tags(&page);
    assert_eq!(page.matches("class=\"plot\"").count(), 2);
    assert!(names.iter().filter(|name| *name == "rect").count() > 44);
    for words in
        ["Data loading takes 13.7 %", "train &lt;a&amp;b&gt;", "253 ms", "218 ms", "during it"]
    {
        assert!(page.contains(words), "{words}");
    }
}
