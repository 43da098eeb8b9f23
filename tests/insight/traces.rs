//! A trace of a running daemon: whole, sound by the rules of its format, and on the trainer's clock.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use forebay_protocol::clock::monotonic_ns;
use forebay_protocol::frames::{ClientFrame, DaemonFrame, Fault, FaultKind};
use forebay_protocol::observing::Recording;
use forebay_tests::taken::take_epoch;
use forebay_tests::{Daemon, Raw, Taken, TestDir, names_in, program, wait_until};
use serde_json::Value;

/// Two stages that take 6 and 2 ms.
const STAGES: [(&str, u64); 2] = [("first", 6), ("second", 2)];
/// Shorter than what two threads need for a batch, so that the trainer waits.
const STEP: Duration = Duration::from_millis(5);

fn serve() -> (TestDir, Daemon) {
    let dir = TestDir::new();
    let stages = STAGES.map(|(name, milliseconds)| {
        format!(
            "{{ name = {name:?}, concurrency = 2, operations = [{{ op = \"delay\", milliseconds = {milliseconds} }}] }}"
        )
    });
    let daemon = Daemon::serve(&dir, &dir.staged_stream(400, "", &stages.join(", ")));
    (dir, daemon)
}

/// Spans and counters of a trace; times in nanoseconds since its base.
struct Trace {
    whole: Value,
    spans: Vec<Span>,
}

#[derive(Debug, Clone)]
struct Span {
    name: String,
    track: (u64, u64),
    track_name: String,
    start: u64,
    end: u64,
    arguments: Value,
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a time in microseconds with three decimals"
)]
fn nanoseconds(value: &Value) -> u64 {
    let microseconds = value.as_f64().unwrap_or_else(|| panic!("{value} is no time"));
    assert!(microseconds >= 0.0, "{microseconds}");
    (microseconds * 1000.0).round() as u64
}

impl Trace {
    /// Reads a trace and holds it against the rules of the format.
    fn read(text: &str) -> Self {
        let whole: Value = serde_json::from_str(text).unwrap();
        let events = whole["traceEvents"].as_array().unwrap();
        let track = |event: &Value| {
            let number =
                |key: &str| event[key].as_u64().unwrap_or_else(|| panic!("{key}: {event}"));
            (number("pid"), number("tid"))
        };
        let names: BTreeMap<(u64, u64), &str> = events
            .iter()
            .filter(|event| event["ph"] == "M" && event["name"] == "thread_name")
            .map(|event| (track(event), event["args"]["name"].as_str().unwrap()))
            .collect();
        let mut spans = Vec::new();
        for event in events {
            assert!(event["name"].is_string() && event["pid"].is_u64(), "{event}");
            match event["ph"].as_str().unwrap() {
                "X" => {
                    let start = nanoseconds(&event["ts"]);
                    spans.push(Span {
                        name: event["name"].as_str().unwrap().to_owned(),
                        track: track(event),
                        track_name: names[&track(event)].to_owned(),
                        start,
                        end: start + nanoseconds(&event["dur"]),
                        arguments: event["args"].clone(),
                    });
                }
                "C" => {
                    let counts = event["args"].as_object().unwrap();
                    assert!(counts.values().all(Value::is_u64), "{event}");
                }
                "M" => assert!(event["args"].is_object(), "{event}"),
                other => panic!("an event of kind {other}"),
            }
        }
        let trace = Self { whole, spans };
        trace.check_nesting();
        trace
    }

    /// Spans of one track lie within one another or apart. A double holds a time of three months to a nanosecond or two.
    fn check_nesting(&self) {
        let mut by_track: BTreeMap<(u64, u64), Vec<&Span>> = BTreeMap::new();
        for span in &self.spans {
            by_track.entry(span.track).or_default().push(span);
        }
        for spans in by_track.values_mut() {
            spans.sort_by_key(|span| (span.start, std::cmp::Reverse(span.end)));
            let mut open: Vec<&Span> = Vec::new();
            for span in spans {
                while open.last().is_some_and(|outer| outer.end <= span.start) {
                    open.pop();
                }
                if let Some(outer) = open.last() {
                    assert!(span.end <= outer.end + 4, "{outer:?} and {span:?} overlap");
                }
                open.push(span);
            }
        }
    }

    fn named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Span> {
        self.spans.iter().filter(move |span| span.name == name)
    }

    /// A time of this process's monotonic clock.
    fn time(&self, monotonic_ns: u64) -> u64 {
        let base = self.whole["baseTimeNanoseconds"].as_u64().unwrap();
        let offset = self.whole["otherData"]["monotonic_to_unix_ns"].as_u64().unwrap();
        monotonic_ns + offset - base
    }
}

fn number(span: &Span, key: &str) -> u64 {
    span.arguments[key].as_u64().unwrap_or_else(|| panic!("{key}: {span:?}"))
}

#[test]
fn a_trace_has_each_sample_in_each_stage_and_the_trainers_steps_on_its_clock() {
    let (dir, daemon) = serve();
    let mut loader = daemon.loader(0, 1).attach().unwrap();
    let output = dir.path("trace.json");
    let child = dir
        .forebay(&["trace", "--seconds", "0.8", "-o"])
        .arg(&output)
        .arg(&daemon.socket)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Each batch, and between which times it was taken.
    let mut taken: BTreeMap<u64, (Taken, u64, u64)> = BTreeMap::new();
    let mut child = Some(child);
    let finished = loop {
        let before = monotonic_ns();
        let batch = loader.next_batch().unwrap();
        let after = monotonic_ns();
        if let Some(batch) = batch {
            taken.insert(batch.number(), (Taken::of(&batch), before, after));
        }
        std::thread::sleep(STEP);
        if let Some(mut process) = child.take() {
            if process.try_wait().unwrap().is_some() {
                break program::finish(process);
            }
            child = Some(process);
        }
    };
    assert!(finished.status.success(), "{finished:?}");
    assert!(finished.stdout.contains("perfetto"), "{finished:?}");
    let trace = Trace::read(&std::fs::read_to_string(&output).unwrap());
    assert_eq!(trace.whole["otherData"]["events_dropped"], 0);

    // Batches that were opened while it ran: each row was fetched and went through each stage, after one another.
    let began =
        trace.time(trace.whole["otherData"]["began_monotonic_ns"].as_u64().unwrap()) + 1_000;
    let batches: Vec<&Span> = trace
        .spans
        .iter()
        .filter(|span| span.name.starts_with("batch ") && span.start > began)
        .collect();
    assert!(batches.len() >= 5, "{}", trace.spans.len());
    let of_row = |name: &'static str, batch: u64, row: u64| {
        let found: Vec<&Span> = trace
            .named(name)
            .filter(|span| number(span, "batch") == batch && number(span, "row") == row)
            .collect();
        assert_eq!(found.len(), 1, "{name} of row {row} of batch {batch}: {found:?}");
        found[0].clone()
    };
    let mut compared = 0;
    for batch in batches {
        assert!(batch.track_name.starts_with("slot "), "{batch:?}");
        let order = number(batch, "batch");
        let ids = taken.get(&number(batch, "published_as")).map(|(taken, ..)| &taken.ids);
        assert_eq!(number(batch, "rows"), 4);
        for row in 0..4 {
            let fetch = of_row("fetch", order, row);
            assert!(fetch.track_name.starts_with("fetch "), "{fetch:?}");
            let mut before = fetch.end;
            for (stage, milliseconds) in STAGES {
                let span = of_row(stage, order, row);
                assert!(span.track_name.starts_with("work "), "{span:?}");
                assert!(span.end - span.start >= milliseconds * 1_000_000, "{span:?}");
                assert!(span.start >= before && span.end <= batch.end, "{span:?} in {batch:?}");
                assert_eq!(number(&span, "sample"), number(&fetch, "sample"));
                before = span.end;
            }
            assert!(fetch.start >= batch.start, "{fetch:?} in {batch:?}");
            if let Some(ids) = ids {
                let id = ids[usize::try_from(row).unwrap()];
                assert_eq!(number(&fetch, "sample"), u64::try_from(id).unwrap());
                compared += 1;
            }
        }
    }
    assert!(compared >= 20, "{compared} rows were compared with what came");

    // The trainer's steps end when it says it took a batch, and a wait lies within its step.
    let steps: Vec<&Span> = trace.named("step").collect();
    assert!(steps.len() >= 5, "{steps:?}");
    for step in &steps {
        let (_, before, after) = &taken[&number(step, "taken")];
        let (before, after) = (trace.time(*before), trace.time(*after));
        assert!(before <= step.end && step.end <= after, "{step:?}: {before} to {after}");
        assert!(number(step, "batches") > 1 || step.end - step.start >= 5_000_000, "{step:?}");
    }
    let waits: Vec<&Span> = trace.named("wait").collect();
    assert!(!waits.is_empty(), "the stages are slower than the trainer");
    for wait in waits {
        assert!(wait.track_name.contains("waits"), "{wait:?}");
        // The trace may begin in the middle of a step.
        let within = |step: &&&Span| step.start <= wait.start && wait.end <= step.end + 4;
        assert!(
            steps.iter().find(within).is_some() || wait.end <= steps[0].start + 4,
            "{wait:?} in none of {steps:?}"
        );
    }
    let rings = trace.whole["traceEvents"].as_array().unwrap();
    let rings: Vec<&Value> = rings.iter().filter(|event| event["ph"] == "C").collect();
    assert!(rings.len() > 5);
    for ring in rings {
        let slots: u64 = ring["args"].as_object().unwrap().values().filter_map(Value::as_u64).sum();
        assert_eq!(slots, 8, "{ring}");
    }
    let engine: BTreeSet<&str> = trace
        .spans
        .iter()
        .filter(|span| span.track_name == "engine")
        .map(|span| span.name.as_str())
        .collect();
    assert_eq!(engine, BTreeSet::from(["advance session"]));
}

#[test]
fn a_trace_of_a_daemon_with_nothing_to_do_is_sound_too() {
    let (dir, daemon) = serve();
    let output = dir.path("trace.json");
    let mut command = dir.forebay(&["trace", "--seconds", "0.05", "-o"]);
    let finished = program::run(command.arg(&output).arg(&daemon.socket));
    assert!(finished.status.success(), "{finished:?}");
    let trace = Trace::read(&std::fs::read_to_string(&output).unwrap());
    assert!(trace.spans.is_empty(), "{:?}", trace.spans);
}

fn ask(daemon: &Daemon, recording: Recording) -> Raw {
    let raw = Raw::connect(daemon);
    raw.send(&ClientFrame::Record(recording), &[]);
    raw
}

/// The answer to a request: descriptors, or a fault.
fn answer(raw: &Raw) -> Result<usize, Fault> {
    match raw.answer() {
        Some((DaemonFrame::Recorded, descriptors)) => Ok(descriptors.len()),
        Some((DaemonFrame::Fault(fault), _)) => Err(fault),
        other => panic!("{other:?}"),
    }
}

#[test]
fn recordings_that_are_too_long_or_a_second_one_are_refused_in_words() {
    let (_place, daemon) = serve();
    for (recording, words) in [
        (Recording::Profile { milliseconds: 1, hertz: 1001 }, "1000"),
        (Recording::Trace { milliseconds: 0 }, "60 s"),
        (Recording::Trace { milliseconds: 60_001 }, "60 s"),
    ] {
        let fault = answer(&ask(&daemon, recording)).unwrap_err();
        assert!(fault.kind == FaultKind::Config && fault.message.contains(words), "{fault:?}");
    }
    let first = ask(&daemon, Recording::Trace { milliseconds: 3_000 });
    // Asked for in this order, on connections of which each is read in turn.
    std::thread::sleep(Duration::from_millis(50));
    let fault = answer(&ask(&daemon, Recording::Trace { milliseconds: 1 })).unwrap_err();
    assert_eq!(fault.kind, FaultKind::Taken);
    assert!(fault.message.contains("another recording"), "{fault:?}");
    assert_eq!(answer(&first).unwrap(), 1);
}

#[test]
fn whoever_hangs_up_ends_the_recording_and_harms_nobody() {
    let (_place, mut daemon) = serve();
    let mut loader = daemon.loader(0, 1).attach().unwrap();
    for _ in 0..3 {
        drop(ask(&daemon, Recording::Trace { milliseconds: 60_000 }));
        // Another one is possible once the first has ended, long before its time.
        wait_until("the recording has ended", || {
            answer(&ask(&daemon, Recording::Trace { milliseconds: 1 })).is_ok()
        });
    }
    assert_eq!(take_epoch(&mut loader).len(), 100);
    assert!(daemon.is_running());
    // Its memory and its thread are gone.
    wait_until("no thread records", || {
        let threads = format!("/proc/{}/task", daemon.pid());
        let name = |thread: &String| std::fs::read_to_string(format!("{threads}/{thread}/comm"));
        let mut names = names_in(Path::new(&threads)).into_iter();
        names.all(|thread| name(&thread).unwrap_or_default().trim() != "forebay-record")
    });
}
