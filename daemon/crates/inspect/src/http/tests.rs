//! Tests of the server over real sockets, with a simulated engine; and of its names against docs/reference/metrics.md.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::json;

use super::metrics::families;
use super::*;
use forebay_observe::{
    DaemonReport, FeedingReport, HistoryReport, RateReport, StreamHistory, SupplyReport,
};

/// A report with samples in each family.
fn report() -> DaemonReport {
    let queue = json!({
        "elapsed": 10.0, "num_items": 20, "qps": 2.0, "occupancy_rate": 0.5, "ave_put_time": 0.1, "p90_put_time": 0.1,
        "p99_put_time": 0.1, "ave_get_time": 0.2, "p90_get_time": 0.2, "p99_get_time": 0.2,
    });
    let stage = |name: &str| {
        json!({
            "name": name, "concurrency": 2, "num_tasks": 7, "num_failures": 1, "ave_time": 0.1, "p90_time": 0.2,
            "p99_time": 0.3, "busy_seconds": 0.6, "times": [[0.000_016_383, 1], [0.1, 4], [200.0, 1]], "queue": queue,
        })
    };
    let stream = json!({
        "name": "train", "supply": SupplyReport::default(), "feeding": FeedingReport::default(),
        "memory_budget_bytes": 5, "stages": [stage("fetch"), stage("work")],
        "batch_functions": [{
            "name": "batch.operations[0]", "concurrency": 2, "num_tasks": 5, "num_failures": 0, "ave_time": 0.1,
            "p90_time": 0.2, "p99_time": 0.3, "busy_seconds": 0.5, "is_of_batches": true, "queue": null,
            "python": {
                "place": "batch.operations[0]", "workers": 2, "cpu_seconds": 3.5,
                "hot_spot": { "name": "own.Blur", "share": 0.75 },
            },
        }],
        "quarantine": { "path": "/q", "samples_lost": 2 },
        "cache": {
            "limit_bytes": 9, "num_hits": 1, "hit_bytes": 2, "num_misses": 3, "num_kept": 4, "kept_bytes": 5,
            "num_full": 6, "num_damaged": 7, "num_faults": 8,
        },
        "sharing": {
            "num_made": 5, "num_copied": 9, "num_copied_later": 2, "window_in_use_bytes": 64, "window_bytes": 128,
        },
        "datasets": [{ "name": "web", "samples": 9, "draws_per_epoch": 9, "rows_published": 5 }],
        "jpeg_index": {
            "path": "/i", "images": 9, "known": 4, "bytes": 800, "limit_bytes": 900, "decodes_with": 6,
            "decodes_without": 3, "dropped": 1, "off": null,
        },
        "requests": {
            "elapsed": 10.0, "num_requests": 30, "num_failures": 3, "num_refused": 2, "in_flight": 4, "bytes": 500,
            "first_byte_seconds": 0.5, "p50_first_byte": 0.01, "p99_first_byte": 0.1, "first_bytes": [[0.02, 25]],
            "num_whole": 20, "whole_seconds": 0.9,
        },
    });
    let session = json!({
        "session": 1, "stream": "train", "rank": 3, "world_size": 4, "seconds": 5.0,
        "position": { "epoch": 1, "samples": 64 }, "batches_published": 9, "batches_taken": 8, "wait_seconds": 0.5,
        "slots_free": 1, "slots_filling": 2, "slots_ready": 3, "slots_leased": 2, "ring_bytes": 4,
        "samples_substituted": 1, "substituted": [],
    });
    serde_json::from_value(json!({
        "release": "1.2.3", "pid": 1, "cpu_seconds": 1.5, "resident_bytes": 9, "private_bytes": 8, "threads": 2,
        "fallback_pool": false, "fetch_budget_bytes": 7, "fetch_in_use_bytes": 6,
        "cpu_budget": { "cores": 0.5, "held_back_seconds": 0.25 },
        "quiet": [{ "name": "class", "in_force": true, "state": "idle" }],
        "stages": [], "verdict": { "limit": "storage", "sentence": "storage is the limit" },
        "stalls": [{
            "session": 1, "stream": "train", "stage": "fetch", "sample": 3, "path": "/a", "seconds": 31.0,
            "sentence": "a read of /a has not moved for 31 s",
        }],
        "streams": [stream],
        "sessions": [session],
    }))
    .unwrap()
}

/// A simulated engine: answers every request with one report, and counts them.
struct StandIn {
    address: SocketAddr,
    asked: Arc<AtomicUsize>,
}

fn config(keys: serde_json::Value) -> Config {
    let dict = json!({
        "dataset": { "path": "/data", "format": "npy" }, "batch": { "size": 2 },
        "stage": [{ "name": "copy", "operations": [] }], "listen": keys,
    });
    Config::from_json("test", Path::new("/"), &dict, &[]).unwrap()
}

fn bind(keys: serde_json::Value) -> MetricsListener {
    MetricsListener::bind(&[config(keys)]).unwrap().unwrap()
}

fn serve(listener: MetricsListener, report: Option<DaemonReport>) -> StandIn {
    let (address, asked) = (listener.address(), Arc::new(AtomicUsize::new(0)));
    let mut questions = listener.start().unwrap();
    let counter = Arc::clone(&asked);
    std::thread::spawn(move || {
        let mut unanswered = Vec::new();
        while let Some(question) = questions.blocking_recv() {
            counter.fetch_add(1, Ordering::SeqCst);
            match &report {
                Some(report) => answer(question, report),
                None => unanswered.push(question),
            }
        }
    });
    StandIn { address, asked }
}

fn answer(question: Question, report: &DaemonReport) {
    match question {
        Question::Report(answer) => drop(answer.send(report.clone())),
        Question::History(answer) => {
            let steps = RateReport {
                samples: vec![1.0; 100],
                batches: vec![1.0; 100],
                waited: vec![None; 100],
                ..RateReport::default()
            };
            let stream = StreamHistory { seconds: steps, ..StreamHistory::default() };
            drop(answer.send(HistoryReport { streams: vec![stream], ..HistoryReport::default() }));
        }
    }
}

fn serve_loopback(report: Option<DaemonReport>) -> StandIn {
    serve(bind(json!({ "metrics": "127.0.0.1:0" })), report)
}

/// The complete response to a request's head.
fn ask(address: SocketAddr, head: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let answer = ask(
        address,
        &format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"),
    );
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    (status, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
}

const PAGE: [&str; 7] =
    ["/", "/page.css", "/page.js", "/metrics.js", "/parts.js", "/chart.js", "/icon.svg"];

#[test]
fn every_path_has_the_security_headers() {
    let daemon = serve_loopback(Some(report()));
    for path in PAGE.into_iter().chain(["/metrics", "/stats.json", "/history.json", "/healthz"]) {
        let head = format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n");
        let answer = ask(daemon.address, &head);
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{path}: {answer}");
        for header in
            ["content-security-policy: default-src 'none'; ", "x-content-type-options: nosniff"]
        {
            assert!(answer.contains(header), "{path}: {answer}");
        }
        let (headers, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(!body.is_empty());
        let empty = ask(daemon.address, &head.replace("GET", "HEAD"));
        let length = |text: &str| {
            text.lines().find(|line| line.starts_with("content-length: ")).map(str::to_owned)
        };
        assert!(empty.ends_with("\r\n\r\n") && length(&empty) == length(headers), "{empty}");
        let posted = ask(daemon.address, &head.replace("GET", "POST"));
        assert!(posted.starts_with("HTTP/1.1 405 "), "{path}: {posted}");
    }
    let (status, text) = get(daemon.address, "/stats.json");
    let read: DaemonReport = serde_json::from_str(&text).unwrap();
    assert_eq!((status, read.sessions[0].rank), (200, 3));
    for (path, first) in [("/history.json?since=77", 77), ("/history.json?since=x", 0)] {
        let history: HistoryReport = serde_json::from_str(&get(daemon.address, path).1).unwrap();
        let seconds = &history.streams[0].seconds;
        assert_eq!((seconds.first, seconds.waited.len() as u64), (first, 100 - first));
    }
    assert_eq!(get(daemon.address, "/nothing").0, 404);
    assert_eq!(get(daemon.address, "/../etc/passwd").0, 404);
}

#[test]
fn page_loads_nothing_external_and_inserts_text_without_markup() {
    let daemon = serve_loopback(Some(report()));
    let forbidden = "http: https: url( @import innerHTML outerHTML insertAdjacentHTML eval(";
    for path in PAGE {
        let text = get(daemon.address, path).1.replace("http://www.w3.org/2000/svg", "");
        for forbidden in forbidden.split(' ') {
            assert!(!text.contains(forbidden), "{path} has {forbidden}");
        }
    }
}

#[test]
fn requests_with_a_foreign_host_are_refused_unless_the_address_is_public() {
    let by_name = |address, host: &str| {
        let head = format!("Host: {host}\r\nConnection: close\r\n\r\n");
        ask(address, &format!("GET /stats.json HTTP/1.1\r\n{head}"))
    };
    let daemon = serve_loopback(Some(report()));
    let refused = by_name(daemon.address, "example.org");
    assert!(refused.starts_with("HTTP/1.1 421 ") && !refused.contains("train"), "{refused}");
    assert!(by_name(daemon.address, "localhost:9").starts_with("HTTP/1.1 200 "));
    let twice = "localhost\r\nHost: example.org";
    assert!(!by_name(daemon.address, twice).starts_with("HTTP/1.1 200 "));
    let absolute = "GET http://example.org/stats.json HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    assert!(ask(daemon.address, absolute).starts_with("HTTP/1.1 421 "));
    let open = bind(json!({ "metrics": "127.0.0.1:0", "metrics_from": "anywhere" }));
    let daemon = serve(open, Some(report()));
    assert!(by_name(daemon.address, "node7.example.org:9464").starts_with("HTTP/1.1 200 "));
}

#[test]
fn probes_distinguish_stalled_daemon_stalled_trainer_and_dead_engine() {
    let mut stalled = report();
    let daemon = serve_loopback(Some(stalled.clone()));
    assert_eq!(get(daemon.address, "/healthz"), (200, "ok\n".to_owned()));
    let said = "a read of /a has not moved for 31 s\n".to_owned();
    assert_eq!(get(daemon.address, "/readyz"), (503, said));
    stalled.stalls[0].stage = "trainer".to_owned();
    assert_eq!(get(serve_loopback(Some(stalled)).address, "/readyz").0, 200);
    let hung = serve_loopback(None);
    for path in ["/healthz", "/readyz", "/metrics", "/stats.json"] {
        let answer = (503, "the engine did not answer within 1 s\n".to_owned());
        assert_eq!(get(hung.address, path), answer, "{path}");
    }
    // The page is part of the program, and says that no data arrive.
    assert_eq!(get(hung.address, "/").0, 200);
}

#[test]
fn concurrent_requests_cost_the_engine_one_report() {
    let daemon = serve_loopback(Some(report()));
    let request = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let last = request.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
    // One connection's requests are answered one after the other, without pauses.
    let answers = ask(daemon.address, &(request.repeat(200) + &last));
    assert_eq!(answers.matches("HTTP/1.1 200 OK").count(), 201);
    assert!(daemon.asked.load(Ordering::SeqCst) < 200);
}

#[test]
fn silent_or_oversized_clients_are_disconnected() {
    let mut listener = bind(json!({ "metrics": "127.0.0.1:0" }));
    listener.patience.head = Duration::from_millis(300);
    let daemon = serve(listener, Some(report()));
    let connect = || {
        let stream = TcpStream::connect(daemon.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    };
    let mut silent: Vec<TcpStream> = (0..MAX_CONNECTIONS).map(|_| connect()).collect();
    // Waits in the queue until one of these connections is closed.
    assert_eq!(get(daemon.address, "/healthz").0, 200);
    for stream in &mut silent {
        assert_eq!(stream.read(&mut [0; 64]).unwrap_or(0), 0, "it was closed");
    }
    let mut endless = connect();
    let head = format!("GET / HTTP/1.1\r\nHost: localhost\r\nX: {}", "x".repeat(1 << 20));
    let mut answer = Vec::new();
    // The connection may be closed before all of it is sent.
    let _ = endless.write_all(head.as_bytes());
    let _ = endless.read_to_end(&mut answer);
    assert!(!String::from_utf8_lossy(&answer).contains(" 200 "));
}

#[test]
fn connection_ends_after_its_time_if_the_client_does_not_read() {
    let mut listener = bind(json!({ "metrics": "127.0.0.1:0" }));
    listener.patience.life = Duration::from_millis(300);
    listener.patience.last_answer = Duration::from_millis(100);
    let daemon = serve(listener, Some(report()));
    let mut stream = TcpStream::connect(daemon.address).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(60))).unwrap();
    // Sends requests forever and reads nothing: the write fails after the server closes.
    let request = b"GET /page.js HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let begun = std::time::Instant::now();
    while stream.write_all(request).is_ok() {
        assert!(begun.elapsed() < Duration::from_secs(60), "the connection lives on");
    }
}

#[test]
fn port_in_use_and_conflicting_addresses_are_reported_with_a_remedy() {
    assert!(MetricsListener::bind(&[config(json!({}))]).unwrap().is_none());
    let first = bind(json!({ "metrics": "127.0.0.1:0" }));
    let taken = first.address().to_string();
    let error =
        MetricsListener::bind(&[config(json!({ "metrics": taken }))]).unwrap_err().to_string();
    assert!(error.contains(&taken) && error.contains("choose another port, or port 0"), "{error}");
    // As in docs/reference/metrics.md.
    let port = first.address().port() / 10;
    let of_ranks = format!("\"127.0.0.1:{port}${{LOCAL_RANK:-0}}\"");
    assert!(error.contains(&of_ranks), "{of_ranks} in {error}");
    let on = |address: &str| config(json!({ "metrics": address }));
    let none = config(json!({}));
    assert!(
        MetricsListener::bind(&[none, on("127.0.0.1:0"), on("127.0.0.1:0")]).unwrap().is_some()
    );
    let two = [on("127.0.0.1:0"), on("127.0.0.1:1")];
    let error = MetricsListener::bind(&two).unwrap_err().to_string();
    assert!(error.contains("127.0.0.1:0") && error.contains("127.0.0.1:1"), "{error}");
}

/// From a metric's name to its type and the names of its labels.
type Names = BTreeMap<String, (String, BTreeSet<String>)>;

fn documented() -> Names {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/reference/metrics.md");
    let text = std::fs::read_to_string(path).unwrap();
    let rows = text.lines().filter(|line| line.starts_with("| `forebay_"));
    rows.map(|row| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let labels = cells[3].split(',').map(|label| label.trim().trim_matches('`').to_owned());
        let labels = labels.filter(|label| !label.is_empty()).collect();
        (cells[1].trim_matches('`').to_owned(), (cells[2].to_owned(), labels))
    })
    .collect()
}

#[test]
fn reference_lists_exactly_the_exported_names() {
    let report = report();
    let families = families(&report);
    let exported: Names = families
        .iter()
        .map(|family| {
            let labels = family.label_names().filter(|label| *label != "le").map(str::to_owned);
            (family.name.to_owned(), (family.kind.word().to_owned(), labels.collect()))
        })
        .collect();
    assert_eq!(exported.len(), families.len(), "a name stands twice");
    assert_eq!(exported, documented());
}

#[test]
fn buckets_are_cumulative_and_end_with_the_count() {
    let daemon = serve_loopback(Some(report()));
    let (status, text) = get(daemon.address, "/metrics");
    assert_eq!(status, 200);
    let bucket = |bound: &str| {
        let name = "forebay_stage_task_seconds_bucket{stream=\"train\",stage=\"work\",le=\"";
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name}{bound}\"}} ")));
        line.unwrap_or_else(|| panic!("no bucket {bound} in {text}")).parse::<u64>().unwrap()
    };
    let bounds = ["0.000016384", "0.067108864", "0.134217728", "68.719476736", "+Inf"];
    assert_eq!(bounds.map(bucket), [1, 1, 5, 5, 6]);
    for line in [
        "forebay_stage_task_seconds_count{stream=\"train\",stage=\"work\"} 6\n",
        "forebay_queue_occupied_seconds_total{stream=\"train\",stage=\"fetch\",session=\"\"} 5\n",
        "forebay_storage_requests_total{stream=\"train\"} 30\n",
        "forebay_storage_first_byte_seconds_sum{stream=\"train\"} 0.5\n",
        "forebay_session_slots{stream=\"train\",session=\"1\",rank=\"3\",state=\"ready\"} 3\n",
    ] {
        assert!(text.contains(line), "{line} is not in {text}");
    }
}
