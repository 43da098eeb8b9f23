//! Checks the text against the rules of the trace event format.

use super::*;
use crate::recorder::{Sizes, What, worker_place};

fn scene() -> Scene {
    Scene {
        pid: 77,
        unix_offset_ns: 1_790_000_000_000_000_000,
        seconds: 0.5,
        streams: vec![StreamNames {
            name: "tr\"ain".to_owned(),
            stages: vec!["de\"code\n".to_owned(), "crop".to_owned()],
            functions: vec!["batch.operations[1]".to_owned()],
            operations: vec![String::new(); 2],
        }],
        work_threads: BTreeMap::new(),
        sessions: BTreeMap::from([(1, SessionNames { stream: 0, rank: 0, world_size: 2 })]),
    }
}

fn recording() -> Recording {
    Recording::allocate(Sizes { work: [1, 0], lanes: vec![1] })
}

fn text_of(recording: &Recording, max_bytes: u64) -> (String, Value) {
    let (scene, mut text) = (scene(), Vec::new());
    Writer::new(&scene, &mut text, max_bytes).write(recording).unwrap();
    let text = String::from_utf8(text).unwrap();
    let value = serde_json::from_str(&text).unwrap();
    (text, value)
}

#[test]
fn every_kind_of_event_is_valid_and_has_its_numbers() {
    let recording = recording();
    let begun = recording.begun_ns();
    for kind in Kind::ALL {
        let detail = if kind == Kind::Ring { 1 | 2 << 16 | 3 << 32 | 4 << 48 } else { 42 };
        let what = What { kind, session: 1, batch: 7, place: 1, row: 5, detail };
        recording.push(Track::Work(0, 0), begun + 1_234_567, begun + 2_234_568, what);
    }
    let (text, value) = text_of(&recording, MAX_TEXT_BYTES);
    assert!(text.contains("\"crop\""), "{text}");
    let base = value["baseTimeNanoseconds"].as_u64().unwrap();
    assert_eq!(base % BASE_PERIOD_NS, 0);
    let events = value["traceEvents"].as_array().unwrap();
    let of = |ph: &str| events.iter().filter(|event| event["ph"] == ph).collect::<Vec<_>>();
    assert_eq!((of("X").len(), of("C").len()), (Kind::ALL.len() - 1, 1));
    for event in of("X") {
        assert_eq!(event["dur"], 999.999);
        // As exact as a double of this magnitude.
        let ns = base as f64 + event["ts"].as_f64().unwrap() * 1000.0;
        let expected = (scene().unix_offset_ns + begun + 1_234_567) as f64;
        assert!((ns - expected).abs() < 1000.0, "{ns} and {expected}");
    }
    assert_eq!(of("C")[0]["args"], json!({"free": 1, "filling": 2, "ready": 3, "leased": 4}));
    let named = |name: &str| of("X").into_iter().filter(|event| event["name"] == name).count();
    assert_eq!(named("de\"code\n (Python)"), 2, "a row and a batch: {text}");
    let stage = of("X")[0];
    assert_eq!(stage["args"], json!({"sample": 42, "batch": 7, "row": 5, "session": 1}));
    assert_eq!(value["otherData"]["events"], Kind::ALL.len());
    assert_eq!(value["otherData"]["events_dropped"], 0);
    // Every track has a name.
    let key = |event: &Value| (event["pid"].to_string(), event["tid"].to_string());
    let named: BTreeSet<_> =
        of("M").into_iter().filter(|event| event["name"] == "thread_name").map(key).collect();
    assert!(of("X").into_iter().all(|event| named.contains(&key(event))), "{text}");
}

#[test]
fn consecutive_steps_do_not_overlap_by_a_nanosecond() {
    let recording = recording();
    let mut start = recording.begun_ns();
    for number in 0..200 {
        let end = start + 54_321_987 + 7 * number;
        recording.push(Track::Engine, start, end, What { session: 1, ..What::of(Kind::Step) });
        start = end;
    }
    let (_, value) = text_of(&recording, MAX_TEXT_BYTES);
    let events = value["traceEvents"].as_array().unwrap();
    // As Perfetto parses microseconds.
    let nanoseconds = |value: &Value| (value.as_f64().unwrap() * 1000.0).trunc();
    let steps: Vec<(f64, f64)> = events
        .iter()
        .filter(|event| event["ph"] == "X")
        .map(|event| {
            let start = nanoseconds(&event["ts"]);
            (start, start + nanoseconds(&event["dur"]))
        })
        .collect();
    assert_eq!(steps.len(), 200);
    assert!(steps.windows(2).all(|pair| pair[0].1 <= pair[1].0));
}

#[test]
fn names_are_quoted_and_unknown_ones_replaced() {
    let recording = recording();
    for (session, place) in [(1, 0), (1, 9), (8, 0)] {
        let what = What { session, place, ..What::of(Kind::Stage) };
        recording.push(Track::Work(0, 0), 0, 0, what);
    }
    let (_, value) = text_of(&recording, MAX_TEXT_BYTES);
    let events = value["traceEvents"].as_array().unwrap();
    let names: Vec<&Value> =
        events.iter().filter(|event| event["ph"] == "X").map(|event| &event["name"]).collect();
    assert_eq!(names, ["de\"code\n", "stage 9", "stage 0"]);
}

#[test]
fn row_in_a_worker_is_on_the_workers_track() {
    let recording = Recording::allocate(Sizes { work: [2, 0], lanes: vec![1] });
    for (thread, session, worker) in [(0, 1, 3), (1, 1, 3), (0, 1, 4), (0, 9, 3)] {
        let place = worker_place(1, worker);
        let what = What { session, place, ..What::of(Kind::Python) };
        recording.push(Track::Work(0, thread), 0, 1000, what);
    }
    let (_, value) = text_of(&recording, MAX_TEXT_BYTES);
    let events = value["traceEvents"].as_array().unwrap();
    let track = |event: &Value| {
        let is_name = |other: &&Value| {
            (&other["tid"], &other["name"]) == (&event["tid"], &json!("thread_name"))
        };
        let name = events.iter().filter(|other| other["pid"] == event["pid"]).find(is_name);
        name.unwrap()["args"]["name"].as_str().unwrap().to_owned()
    };
    let spans: Vec<&Value> = events.iter().filter(|event| event["ph"] == "X").collect();
    let mut found: Vec<(String, &Value)> =
        spans.into_iter().map(|span| (track(span), &span["name"])).collect();
    found.sort_by(|one, other| one.0.cmp(&other.0));
    let (third, fourth) = ("crop 3 (Python, tr\"ain)", "crop 4 (Python, tr\"ain)");
    // The stage and the track of an ended session are unknown.
    let expected = [(third, "crop"), (third, "crop"), (fourth, "crop"), ("work 0", "stage 1")]
        .map(|(track, stage)| (track.to_owned(), json!(format!("{stage} (Python)"))));
    assert_eq!(found.len(), 4);
    assert!(
        found.iter().zip(&expected).all(|(one, other)| (&one.0, one.1) == (&other.0, &other.1)),
        "{found:?}"
    );
}

#[test]
fn batch_in_a_worker_has_a_track_after_the_stages_and_no_sample() {
    let recording = Recording::allocate(Sizes { work: [1, 0], lanes: vec![1] });
    let place = worker_place(2, 1);
    let what = What { session: 1, batch: 7, place, ..What::of(Kind::PythonBatch) };
    recording.push(Track::Work(0, 0), 0, 1000, what);
    let (_, value) = text_of(&recording, MAX_TEXT_BYTES);
    let events = value["traceEvents"].as_array().unwrap();
    let span = events.iter().find(|event| event["ph"] == "X").unwrap();
    assert_eq!(span["name"], "batch.operations[1] (Python)");
    assert_eq!(span["args"], json!({ "batch": 7, "session": 1 }));
    let names: Vec<&Value> = events
        .iter()
        .filter(|event| event["name"] == "thread_name" && event["tid"] == span["tid"])
        .map(|event| &event["args"]["name"])
        .collect();
    assert_eq!(names, ["batch.operations[1] 1 (Python, tr\"ain)"]);
}

#[test]
fn too_long_text_is_truncated_with_a_note() {
    let recording = recording();
    for row in 0..10_000 {
        recording.push(Track::Engine, 1, 2, What { row, ..What::of(Kind::Stage) });
    }
    let (text, value) = text_of(&recording, END_BYTES + 100_000);
    assert!(text.len() < 110_000);
    let other = &value["otherData"];
    let (written, dropped) = (&other["events"], &other["events_dropped"]);
    assert!(written.as_u64().unwrap() > 500, "{other}");
    assert_eq!(written.as_u64().unwrap() + dropped.as_u64().unwrap(), 10_000);
}
