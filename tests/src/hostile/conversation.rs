//! What hostile clients share: how they count, draw, connect and read the daemon's answers.

use std::collections::BTreeMap;
use std::path::Path;
use std::thread;

use forebay_protocol::frames::{Attach, Attached, ClientFrame, DaemonFrame, PROTOCOL_VERSION};
use forebay_protocol::ids::Position;
use forebay_protocol::socket::{Connection, Incoming, SocketError};

use crate::DEADLINE;

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
    #[must_use]
    pub fn total(&self) -> u64 {
        self.operations.values().sum()
    }
}

/// Numbers for nothing but noise: SplitMix64.
pub(super) struct Noise(pub(super) u64);

impl Noise {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub(super) fn bytes(&mut self, count: u64) -> Vec<u8> {
        (0..count).map(|_| self.next().to_le_bytes()[0]).collect()
    }
}

/// A connection, as soon as the daemon takes one.
pub(super) fn connect(socket: &Path) -> Connection {
    let begin = std::time::Instant::now();
    loop {
        match Connection::connect(socket) {
            Ok(connection) => return connection,
            // The queue of connections not yet accepted is full.
            Err(SocketError::Call { source, .. })
                if source.kind() == std::io::ErrorKind::WouldBlock =>
            {
                thread::yield_now();
            }
            Err(error) => panic!("the daemon takes no connection: {error}"),
        }
        assert!(begin.elapsed() < DEADLINE, "the daemon took no connection for {DEADLINE:?}");
    }
}

pub(super) fn hello() -> ClientFrame {
    ClientFrame::Hello { protocol: PROTOCOL_VERSION, release: "hostile".to_owned() }
}

/// An attach that does not collide with the honest one, whose world has one rank; it may with a hostile one.
pub(super) fn attach(noise: &mut Noise) -> ClientFrame {
    let world_size = 2 + u32::try_from(noise.below(8)).unwrap_or(0);
    ClientFrame::Attach(Attach {
        stream: None,
        rank: u32::try_from(noise.below(u64::from(world_size))).unwrap_or(0),
        world_size,
        position: Position { epoch: noise.below(3), samples: 0 },
        substitutes: 0,
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
