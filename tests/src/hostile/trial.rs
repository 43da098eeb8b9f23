//! A daemon under attack, with an honest trainer beside the attackers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay_client::Loader;
use serde_json::{Value, json};

use super::attack;
use crate::taken::take_epoch;
use crate::{Daemon, Taken, TestDir, wait_until};

/// Samples of the honest trainer's epochs.
const SAMPLES: u64 = 40;
/// The honest trainer's time between two epochs.
const PAUSE: Duration = Duration::from_millis(5);

/// Attacks a daemon of its own while an honest trainer iterates; gives what the attackers did, and what was left.
pub fn trial(operations: u64, seed: u64) -> Value {
    let dir = TestDir::new();
    let config = dir.stack_stream(SAMPLES, "");
    let few = ["--set", "stage.fetch.concurrency=2", "--set", "order.seed=5"];
    let mut daemon = Daemon::serve_with(&dir, &[&config], &few);
    // One session before the count: some descriptors are opened at first use.
    drop(take_epoch(&mut daemon.loader(0, 1).attach().unwrap()));
    wait_until("the session has ended", || daemon.mapped_segments() == 0);
    let descriptors = daemon.descriptors();
    let over = AtomicBool::new(false);
    let (tally, under_attack) = std::thread::scope(|scope| {
        let mut honest = daemon.loader(0, 1).attach().unwrap();
        let over = &over;
        let honest = scope.spawn(move || {
            let mut epochs = Vec::new();
            while !over.load(Ordering::Relaxed) {
                epochs.push(take_epoch(&mut honest));
                std::thread::sleep(PAUSE);
            }
            epochs
        });
        let tally = attack(&daemon.socket, operations, seed);
        over.store(true, Ordering::Relaxed);
        (tally, honest.join().unwrap())
    });
    assert!(daemon.is_running(), "the daemon died");
    wait_until("the sessions have ended", || daemon.mapped_segments() == 0);
    // Connections end a moment after their clients.
    let settled = || daemon.descriptors() <= descriptors;
    wait_until("the connections have ended", settled);
    compare(&mut daemon.loader(0, 1).attach().unwrap(), &under_attack);
    wait_until("the last session has ended", || daemon.mapped_segments() == 0 && settled());
    json!({
        "operations": tally.total(), "by_client": tally.operations, "cut_off": tally.cut_off,
        "honest_epochs_unharmed": under_attack.len(),
        "descriptors_left": daemon.descriptors().saturating_sub(descriptors),
        "segments_left": daemon.mapped_segments(),
    })
}

/// The same epochs in peace.
fn compare(loader: &mut Loader, under_attack: &[Vec<Taken>]) {
    for (epoch, taken) in under_attack.iter().enumerate() {
        assert!(!taken.is_empty(), "epoch {epoch} was empty");
        assert_eq!(&take_epoch(loader), taken, "epoch {epoch} differs under attack");
    }
}
