//! A daemon under attack, with an honest trainer beside the attackers. It has two datasets, of which one has a selection, so
//! that the rows that attackers ask for may be of either one, and used or not.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay_client::Loader;
use forebay_synth::ArrayContainer;
use serde_json::{Value, json};

use super::attack;
use crate::taken::take_epoch;
use crate::{Daemon, Taken, TestDir, data, wait_until};

/// Samples of each dataset. The honest trainer has no last class of the second one.
const SAMPLES: u64 = 20;
/// The honest trainer's time between two epochs.
const PAUSE: Duration = Duration::from_millis(5);

/// Attacks a daemon of its own while an honest trainer iterates; gives what the attackers did, and what was left.
pub fn trial(operations: u64, seed: u64) -> Value {
    let dir = TestDir::new();
    let config = config(&dir);
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

/// A configuration of two datasets of the same files in four classes.
fn config(dir: &TestDir) -> PathBuf {
    data::arrays(&dir.path("data"), ArrayContainer::NpyFiles, SAMPLES);
    let dataset = |name: &str, keys: &str| {
        format!(
            "[[dataset]]\nname = {name:?}\nformat = \"npy\"\npath = {:?}\nindex = {:?}\n{keys}\n",
            dir.path("data").display(),
            dir.path(&format!("{name}.index")).display(),
        )
    };
    let text = format!(
        "cpu.policy = \"normal\"\nbatch.size = 4\n\
         stage = [{{ name = \"copy\", concurrency = 2, operations = [] }}]\n{}{}",
        dataset("all", ""),
        dataset("some", "where = \"label != 3\""),
    );
    let path = dir.path("train.toml");
    std::fs::write(&path, text).unwrap();
    path
}

/// The same epochs in peace.
fn compare(loader: &mut Loader, under_attack: &[Vec<Taken>]) {
    for (epoch, taken) in under_attack.iter().enumerate() {
        assert!(!taken.is_empty(), "epoch {epoch} was empty");
        assert_eq!(&take_epoch(loader), taken, "epoch {epoch} differs under attack");
    }
}
