//! Writes into everything that a client may write, and tries what it may not.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

use forebay_protocol::frames::{Attached, PROTOCOL_VERSION};
use forebay_protocol::ids::{Generation, SlotIndex};
use forebay_protocol::returns::ReturnWord;
use forebay_protocol::segment::{Access, open_segment};
use forebay_protocol::socket::Connection;
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, FcntlArg, OFlag, SealFlag, fallocate, fcntl};

use super::conversation::{Answer, Tally, attach, hear, hear_out};
use crate::kills::Random;
use crate::raw::{connect, hello};

const NAME: &str = "scribbler";
/// Writes in one session, if it is not cut off before.
const WRITES_PER_SESSION: u64 = 20_000;
/// Writes between two looks at the socket.
const WRITES_PER_LOOK: u64 = 50;

pub(super) fn run(socket: &Path, operations: u64, mut noise: Random) -> Tally {
    let mut tally = Tally::default();
    let mut done = 0;
    while done < operations {
        let connection = connect(socket);
        let _ = connection.send(&hello(PROTOCOL_VERSION), &[]);
        let _ = connection.send(&attach(&mut noise), &[]);
        done += 3;
        let Answer::Attached(terms, segments) = hear_out(&connection) else {
            continue;
        };
        let Ok([data, publish, returns]) = <[_; 3]>::try_from(segments) else {
            panic!("a session has three segments");
        };
        let shared = [data, publish, returns].map(File::from);
        change_flags(&connection, &shared);
        let [data, publish, returns] = shared;
        let session = Session {
            connection,
            terms,
            data: opened_again(&data),
            publish,
            returns: opened_again(&returns),
            _shared: [data, returns],
        };
        session.try_what_is_forbidden();
        if tally.cut_off.is_empty() {
            session.return_a_slot_that_is_not_there(&mut tally);
            continue;
        }
        // One session in four behaves well but for single words, so that it lives long.
        let patient = noise.below(4) == 0;
        done += session.scribble(&mut noise, patient, &mut tally);
    }
    tally.count(NAME, done);
    tally
}

struct Session {
    connection: Connection,
    terms: Box<Attached>,
    data: File,
    publish: File,
    returns: File,
    /// As they came, with their flags changed, as long as the session lives.
    _shared: [File; 2],
}

/// Changes the flags that both sides see, as they are of the open file and not of the descriptor, and those of the
/// client's end of the connection. They stay so: the daemon must do without all of them.
fn change_flags(connection: &Connection, shared: &[File; 3]) {
    for file in shared {
        let flags = OFlag::O_NONBLOCK | OFlag::O_APPEND;
        fcntl(file.as_fd(), FcntlArg::F_SETFL(flags)).unwrap();
        let set = fcntl(file.as_fd(), FcntlArg::F_GETFL).map(OFlag::from_bits_retain);
        assert!(set.is_ok_and(|set| set.contains(flags)), "{set:?}");
    }
    fcntl(connection.as_fd(), FcntlArg::F_SETFL(OFlag::O_APPEND)).unwrap();
}

/// With flags of its own: writing at a place is appending where the shared ones say so.
fn opened_again(file: &File) -> File {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    File::options().read(true).write(true).open(path).unwrap()
}

impl Session {
    /// What the seals forbid stays forbidden.
    fn try_what_is_forbidden(&self) {
        for file in [&self.data, &self.publish, &self.returns] {
            let bytes = file.metadata().unwrap().len();
            assert!(file.set_len(bytes / 2).is_err(), "a segment was shrunk by its client");
            assert!(file.set_len(bytes * 2).is_err(), "a segment was grown by its client");
            let more = fcntl(file.as_fd(), FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_WRITE));
            assert_eq!(more, Err(Errno::EPERM), "a client sealed a segment further");
        }
        assert!(self.publish.write_at(&[1], 0).is_err(), "a client wrote to the publish segment");
        let bytes = self.terms.publish_bytes;
        let mapped = open_segment(self.publish.as_fd(), "publish", bytes, Access::ReadWrite);
        assert!(mapped.is_err(), "a client mapped the publish segment for writing");
        // A descriptor of its own, past whatever mode the one that it was given has.
        let again = format!("/proc/self/fd/{}", self.publish.as_raw_fd());
        if let Ok(again) = File::options().read(true).write(true).open(again) {
            assert!(again.write_at(&[1], 0).is_err(), "a client wrote through a second descriptor");
            assert!(again.set_len(0).is_err(), "a client cut through a second descriptor");
        }
        let hole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        assert!(
            fallocate(&self.publish, hole, 0, 4096).is_err(),
            "a client punched a hole into the publish segment"
        );
    }

    /// The offence that chance commits the least often: the first session is for it.
    fn return_a_slot_that_is_not_there(&self, tally: &mut Tally) {
        let slot = SlotIndex(self.terms.slots);
        let word = ReturnWord { slot, generation: Generation(1) }.encode();
        // Wherever the first return stands; then the count, in the first word.
        for at in (8..self.terms.return_bytes).step_by(8) {
            self.returns.write_at(&word.to_le_bytes(), at).unwrap();
        }
        self.returns.write_at(&1u64.to_le_bytes(), 0).unwrap();
        let _ = self.connection.ring();
        if let Answer::Over(reason) = hear_out(&self.connection) {
            tally.cut(&reason);
        }
    }

    /// Writes until the session ends or enough is written; returns the operations.
    fn scribble(&self, noise: &mut Random, patient: bool, tally: &mut Tally) -> u64 {
        for written in 0..WRITES_PER_SESSION {
            self.write_once(noise, patient);
            if written % WRITES_PER_LOOK == 0 {
                if noise.below(4) == 0 {
                    let _ = self.connection.ring();
                }
                if let Answer::Over(reason) = hear(&self.connection) {
                    tally.cut(&reason);
                    return written + 1;
                }
            }
        }
        WRITES_PER_SESSION
    }

    fn write_once(&self, noise: &mut Random, patient: bool) {
        let hole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        match noise.below(2000) {
            0 => {
                let _ = fallocate(&self.data, hole, 0, 1 << noise.below(20));
            }
            1 => {
                let _ = fallocate(&self.returns, hole, 0, 4096);
            }
            2..600 => {
                let at = noise.below(self.terms.slot_bytes * u64::from(self.terms.slots));
                let _ = self.data.write_at(&noise.next().to_le_bytes(), at);
            }
            _ => {
                let words = self.terms.return_bytes / 8;
                // The first word counts the returns: whatever stands there decides what the daemon reads.
                let word = if patient { 1 + noise.below(words - 1) } else { noise.below(words) };
                let value = self.word(noise);
                let _ = self.returns.write_at(&value.to_le_bytes(), word * 8);
            }
        }
    }

    /// Random, a small number, or a return that might be right.
    fn word(&self, noise: &mut Random) -> u64 {
        match noise.below(3) {
            0 => noise.next(),
            1 => noise.below(2 * u64::from(self.terms.slots)),
            _ => {
                let slot = u16::try_from(noise.below(u64::from(self.terms.slots) + 1)).unwrap_or(0);
                let generation = Generation(noise.below(4));
                ReturnWord { slot: SlotIndex(slot), generation }.encode()
            }
        }
    }
}
