//! The limits of a storage that serves requests.

use super::*;

#[test]
fn requests_are_limited_by_latency_bandwidth_or_refusals() {
    let fetch = stage("fetch", 16, &[(0.16, 1000)], ASLEEP, 0.0);
    let mut pipeline =
        Pipeline::of(vec![fetch, stage("work", 4, &[(0.0001, 1000)], ON_A_CORE, 0.0)]);
    let requests = |first_byte: f64, refused: u64| RequestReport {
        elapsed: SECONDS,
        num_requests: 1000,
        num_failures: refused,
        num_refused: refused,
        bytes: 1000 << 20,
        first_byte_seconds: first_byte * 1000.0,
        first_bytes: vec![(first_byte, 1000)],
        num_whole: 1000,
        whole_seconds: 160.0,
        ..RequestReport::default()
    };
    pipeline.requests = Some(requests(0.15, 0));
    pipeline.is_limited_by(
        "storage",
        &[
            "by its latency: a read takes 160.00 ms (150.00 ms of it to the first byte)",
            "raise `concurrency`",
        ],
    );
    pipeline.requests = Some(requests(0.02, 0));
    pipeline.is_limited_by(
        "storage",
        &[
            "by its bandwidth: a read takes 160.00 ms (20.00 ms",
            "100 MiB/s come",
            "more reads at once hardly help",
        ],
    );
    pipeline.requests = Some(requests(0.15, 50));
    pipeline.is_limited_by(
        "storage",
        &["it refuses requests", "5 % of the requests are refused", "more prefixes"],
    );
    assert_eq!(pipeline.judge().verdict.what, "storage is the limit: it refuses requests");
}
