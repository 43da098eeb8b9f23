//! Clients that break every rule that a client of the daemon's own user can break, many million times.
//!
//! Four of them work at once ([`attack`]); each counts its operations, and how often the daemon cut it off and why:
//!
//! - the **scribbler** attaches and writes random and nearly right words into the memory that it may write, rings, punches
//!   holes into it, and tries to shrink, grow, unseal and write what it may not ([`scribbler`]);
//! - the **flooder** fills sockets with noise as fast as they take it;
//! - the **liar** sends frames of old versions, frames damaged in one place, frames out of turn and descriptors that
//!   nobody asked for;
//! - the **crowd** opens a thousand connections, attaches with them and lets them go.
//!
//! What they do is drawn from a seed; what they hit depends on timing. Whether anyone else was harmed is for the caller
//! to see.

mod conversation;
mod frames;
mod scribbler;
mod trial;

pub use conversation::Tally;
pub use trial::trial;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::kills::Random;

/// Attacks the daemon until `operations` are done; the larger part are writes into shared memory.
pub fn attack(socket: &Path, operations: u64, seed: u64) -> Tally {
    let over = AtomicBool::new(false);
    let share = |percent: u64| operations * percent / 100;
    thread::scope(|scope| {
        let over = &over;
        let counted = [
            scope.spawn(move || scribbler::run(socket, share(80), Random::new(seed))),
            scope.spawn(move || frames::flood(socket, share(10), Random::new(seed ^ 1))),
            scope.spawn(move || frames::lie(socket, share(10), Random::new(seed ^ 2))),
        ];
        // The crowd takes the connections that the others want too, so it comes and goes beside them.
        let crowd = scope.spawn(move || frames::crowd(socket, over, Random::new(seed ^ 3)));
        let mut tally = Tally::default();
        for client in counted {
            tally.add(client.join().unwrap());
        }
        over.store(true, Ordering::Relaxed);
        tally.add(crowd.join().unwrap());
        tally
    })
}
