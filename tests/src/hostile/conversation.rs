//! What hostile clients share: how they count, attach and read the daemon's answers.

use std::collections::BTreeMap;
use std::thread;

use forebay_protocol::frames::{Attach, Attached, ClientFrame, DaemonFrame};
use forebay_protocol::ids::Position;
use forebay_protocol::socket::{Connection, Incoming};

use crate::DEADLINE;
use crate::kills::Random;

/// What the hostile clients did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    /// By client: writes, sends, connections and calls.
    pub operations: BTreeMap<&'static str, u64>,
    /// How often one was cut off, by the first three words of the daemon's reason; `closed` without one.
    pub cut_off: BTreeMap<String, u64>,
}

impl Tally {
    pub(super) fn count(&mut self, client: &'static str, operations: u64) {
        *self.operations.entry(client).or_default() += operations;
    }

    pub(super) fn cut(&mut self, reason: &str) {
        // Without a number at the front, up to the first number or name of the attacker's own choice.
        let is_word = |word: &&str| word.bytes().all(|byte| byte.is_ascii_alphabetic());
        let words: Vec<&str> = reason
            .split_whitespace()
            .skip_while(|word| !is_word(word))
            .take_while(is_word)
            .take(3)
            .collect();
        *self.cut_off.entry(words.join(" ")).or_default() += 1;
    }

    pub(super) fn add(&mut self, other: Self) {
        for (client, operations) in other.operations {
            self.count(client, operations);
        }
        for (reason, times) in other.cut_off {
            *self.cut_off.entry(reason).or_default() += times;
        }
    }

    /// Over all clients.
    pub fn total(&self) -> u64 {
        self.operations.values().sum()
    }
}

/// An attach that does not collide with the honest one, whose world has one rank; it may with a hostile one.
pub(super) fn attach(noise: &mut Random) -> ClientFrame {
    let world_size = 2 + u32::try_from(noise.below(8)).unwrap_or(0);
    ClientFrame::Attach(Attach {
        stream: None,
        rank: u32::try_from(noise.below(u64::from(world_size))).unwrap_or(0),
        world_size,
        position: Position { epoch: noise.below(3), samples: 0 },
        substitutes: 0,
        trainer: String::new(),
        batch_size: None,
        cuts: Vec::new(),
    })
}

/// How a conversation went on.
pub(super) enum Answer {
    Attached(Box<Attached>, Vec<std::os::fd::OwnedFd>),
    /// Another frame, a doorbell, or nothing yet.
    Other,
    Nothing,
    Over(String),
}

pub(super) fn hear(connection: &Connection) -> Answer {
    match connection.receive::<DaemonFrame>() {
        Ok(Incoming::Frame(DaemonFrame::Attached(terms), descriptors)) => {
            Answer::Attached(terms, descriptors)
        }
        Ok(Incoming::Frame(DaemonFrame::Fault(fault), _)) => Answer::Over(fault.message),
        Ok(Incoming::Empty) => Answer::Nothing,
        Ok(_) => Answer::Other,
        Err(_) => Answer::Over("closed".to_owned()),
    }
}

/// Waits for what ends a conversation, or the terms of a session.
pub(super) fn hear_out(connection: &Connection) -> Answer {
    let begin = std::time::Instant::now();
    loop {
        match hear(connection) {
            Answer::Other => {}
            Answer::Nothing => {
                assert!(begin.elapsed() < DEADLINE, "no answer for {DEADLINE:?}");
                thread::sleep(std::time::Duration::from_micros(50));
            }
            answer => return answer,
        }
    }
}
