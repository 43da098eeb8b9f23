//! A made-up run, for the tests.

use serde_json::json;

use crate::observe::DaemonReport;

fn stage(name: &str, seconds: f64) -> serde_json::Value {
    json!({
        "name": name, "concurrency": 4, "num_tasks": 1000, "num_failures": 1, "ave_time": seconds,
        "p90_time": seconds * 1.5, "p99_time": seconds * 8.0, "busy_seconds": 1000.0 * seconds,
        "times": [[seconds * 0.7, 200], [seconds, 600], [seconds * 1.4, 150], [seconds * 8.0, 50]],
        "queue": { "elapsed": 10.0, "num_items": 1000, "qps": 100.0, "ave_put_time": 0.0, "p90_put_time": 0.0,
            "p99_put_time": 0.0, "ave_get_time": 0.001, "p90_get_time": 0.001, "p99_get_time": 0.002,
            "occupancy_rate": 0.9 },
    })
}

/// A daemon's report: two stages, one session that waited a quarter of ten seconds.
pub(super) fn report() -> DaemonReport {
    let stages = json!([stage("fetch", 0.0005), stage("preprocess", 0.011)]);
    serde_json::from_value(json!({
        "release": "0.1.0", "pid": 1, "cpu_seconds": 15.0, "resident_bytes": 1, "private_bytes": 1, "threads": 4,
        "rescue": false, "fetch_budget_bytes": 1, "fetch_in_use_bytes": 0,
        "cpu_budget": { "cores": null, "held_back_seconds": 0.0 }, "quiet": [], "stages": stages,
        "verdict": { "limit": "preprocess", "sentence": "the stage `preprocess` is the limit" },
        "stalls": [], "streams": [], "sessions": [{
            "session": 1, "stream": "train", "rank": 0, "world_size": 1, "seconds": 10.0,
            "position": { "epoch": 0, "samples": 0 }, "batches_published": 100, "batches_taken": 98,
            "wait_seconds": 2.5, "slots_free": 1, "slots_filling": 1, "slots_ready": 5, "slots_leased": 1,
            "ring_bytes": 1, "substituted": [],
        }],
    }))
    .unwrap()
}
