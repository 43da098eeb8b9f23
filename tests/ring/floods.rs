//! A client that sends one frame without end does not hold up another one. `scripts/prove` compares rates.

use std::path::Path;

use forebay_tests::flood::{KINDS, beside, daemon, take};
use serde_json::Value;

const FLOOD: &str = env!("CARGO_BIN_EXE_forebay-test-flood");
const BATCHES: u64 = 40;

/// The rows that went through the stage.
fn rows_worked(stats: &Value) -> u64 {
    stats["streams"][0]["stages"].as_array().unwrap().last().unwrap()["num_tasks"].as_u64().unwrap()
}

/// Time is not compared here: of the rows that the daemon works on, an honest client gets nearly all.
#[test]
fn of_the_daemons_work_a_client_that_seeks_without_end_gets_a_small_part() {
    for kind in ["seek", "seek-answered"] {
        let (dir, daemon) = daemon();
        let (flooder, mut loader) = beside(&dir, &daemon, Path::new(FLOOD), kind);
        // What it may throw away without being put off.
        take(&mut loader, BATCHES);
        let before = rows_worked(&daemon.stats(&dir));
        take(&mut loader, BATCHES);
        let worked = rows_worked(&daemon.stats(&dir)) - before;
        drop(flooder);
        let own = BATCHES * u64::from(loader.terms().batch_size);
        assert!(
            worked <= 2 * own,
            "{kind}: {worked} rows were worked on, {own} of them for the honest client"
        );
    }
}

#[test]
fn a_client_goes_on_beside_floods_of_every_frame() {
    let (dir, mut daemon) = daemon();
    for kind in KINDS {
        let (flooder, mut loader) = beside(&dir, &daemon, Path::new(FLOOD), kind);
        take(&mut loader, BATCHES / 4);
        drop((flooder, loader));
        forebay_tests::wait_until("the sessions have ended", || daemon.mapped_segments() == 0);
        assert!(daemon.is_running(), "{kind}");
    }
}
