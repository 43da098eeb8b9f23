//! Rows of feeders: real processes on loopback. Whatever number of them serves, leaves or dies, a stream has one digest.

use std::path::Path;

use forebay_tests::feeding::Feeder;
use forebay_tests::{TestDir, program, wait_until};
use nix::sys::signal::Signal;
use serde_json::Value;

fn addresses(feeders: &[Feeder]) -> String {
    forebay_tests::feeding::addresses(feeders.iter().map(|feeder| feeder.address.as_str()))
}

/// Runs a stream and returns the report.
pub(crate) fn bench(dir: &TestDir, config: &Path, settings: &[&str]) -> Value {
    let mut command = dir.forebay(&["bench", "--json", "--digest"]);
    command.arg(config);
    for setting in settings {
        command.args(["--set", setting]);
    }
    program::run(&mut command).json()
}

pub(crate) fn digest(report: &Value) -> &str {
    report["digest"].as_str().unwrap()
}

pub(crate) fn supplied(report: &Value) -> u64 {
    report["supply"]["num_supplied"].as_u64().unwrap()
}

#[test]
fn rows_of_any_number_of_feeders_have_one_digest() {
    let dir = TestDir::new();
    let config = dir.image_stream(61, 4, "order.epochs = 6");
    let expected = bench(&dir, &config, &[]);
    for count in [1, 4] {
        let feeders: Vec<Feeder> = (0..count).map(|_| Feeder::start(&dir, &config, &[])).collect();
        let listed = addresses(&feeders);
        for local in ["also", "last", "never"] {
            let local = format!("feeders.local={local}");
            let report = bench(&dir, &config, &[&listed, &local]);
            assert_eq!(digest(&report), digest(&expected), "{count} feeders, {local}");
            if local.ends_with("never") {
                assert!(supplied(&report) >= 6 * 56, "{}", report["supply"]);
            }
        }
    }
}

#[test]
fn feeder_that_is_killed_or_drained_changes_no_digest() {
    let dir = TestDir::new();
    let delay = "{ op = \"delay\", milliseconds = 5 }";
    let stage = format!("{{ name = \"copy\", operations = [{delay}] }}");
    let config = dir.staged_stream(64, "order.epochs = 20", &stage);
    let expected = bench(&dir, &config, &[]);
    for signal in [Signal::SIGKILL, Signal::SIGTERM] {
        let feeders: Vec<Feeder> = (0..2).map(|_| Feeder::start(&dir, &config, &[])).collect();
        let listed = addresses(&feeders);
        let report = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(std::time::Duration::from_millis(1500));
                feeders[0].signal(signal);
            });
            bench(&dir, &config, &[&listed])
        });
        assert_eq!(digest(&report), digest(&expected), "{signal}");
        assert!(supplied(&report) > 0, "{}", report["supply"]);
        wait_until("the feeder has ended", || !forebay_tests::is_running(feeders[0].child.id()));
    }
}

#[test]
fn feeder_of_other_rows_is_refused_and_the_differences_are_named() {
    let dir = TestDir::new();
    let config = dir.image_stream(40, 4, "order.epochs = 2");
    let expected = bench(&dir, &config, &[]);
    let feeders = [Feeder::start(&dir, &config, &["order.seed=7"])];
    let report = bench(&dir, &config, &[&addresses(&feeders)]);
    assert_eq!(digest(&report), digest(&expected));
    assert_eq!(supplied(&report), 0);
    let state = report["supply"]["feeders"][0]["state"].as_str().unwrap();
    assert!(state.contains("order.seed is 7 here and 0 there"), "{state}");
    assert!(!state.contains("samples"), "{state}");
}

#[test]
fn feeder_that_other_hosts_could_reach_needs_certificates_or_leave() {
    let dir = TestDir::new();
    let config = dir.image_stream(8, 2, "");
    let mut command = dir.forebay(&["feed", "--listen", "0.0.0.0:0"]);
    let refused = program::run_to_end(command.arg(&config));
    assert!(refused.contains("feed.tls"), "{refused}");
}
