//! A daemon under attack, with an honest trainer beside the attackers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay_client::Loader;

use super::{Tally, attack};
use crate::taken::take_epoch;
use crate::{Daemon, Taken, TestDir, data, wait_until};

/// What a trial showed.
#[derive(Debug, Clone)]
pub struct Trial {
    /// What the attackers did, and how they were cut off.
    pub tally: Tally,
    /// The honest trainer's epochs while they did, each compared with what it is in peace.
    pub epochs: usize,
    /// Descriptors of the daemon after the attack beyond those before it.
    pub descriptors_left: usize,
    /// Shared segments that it still has mapped.
    pub segments_left: usize,
}

/// Samples of the honest trainer's epochs.
const SAMPLES: u64 = 40;
/// The honest trainer's time between two epochs.
const PAUSE: Duration = Duration::from_millis(5);

/// Attacks a daemon of its own while an honest trainer iterates.
///
/// # Panics
/// When the daemon dies, the honest trainer gets an error or other bytes than in peace, or an attacker succeeds.
#[must_use]
pub fn trial(operations: u64, seed: u64) -> Trial {
    let dir = TestDir::new();
    data::stack(&dir.path("data"), SAMPLES);
    let config = dir.config("train.toml", &data::stack_config(&dir.path("data"), ""));
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
    wait_until("the last session has ended", || daemon.mapped_segments() == 0);
    Trial {
        tally,
        epochs: under_attack.len(),
        descriptors_left: daemon.descriptors().saturating_sub(descriptors),
        segments_left: daemon.mapped_segments(),
    }
}

/// The same epochs in peace.
fn compare(loader: &mut Loader, under_attack: &[Vec<Taken>]) {
    for (epoch, taken) in under_attack.iter().enumerate() {
        assert!(!taken.is_empty(), "epoch {epoch} was empty");
        assert_eq!(&take_epoch(loader), taken, "epoch {epoch} differs under attack");
    }
}
