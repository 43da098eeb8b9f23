//! Random, lies and crowds on the control socket.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_protocol::frames::{
    ClientFrame, ConfigSource, NamesOf, NamesRequest, PROTOCOL_VERSION, RowKey, RowsRequest, Start,
};
use forebay_protocol::ids::Position;
use forebay_protocol::observing::Recording;
use forebay_protocol::socket::Connection;
use forebay_protocol::wire::encode;
use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};

use super::conversation::{Answer, Tally, attach, hear, hear_out};
use crate::kills::Random;
use crate::raw::{connect, hello};

/// Connections that the crowd opens before it lets go.
const CROWD: usize = 1000;

/// What became of a datagram.
enum Sent {
    Taken,
    Full,
    Closed,
}

/// A datagram past the library: any bytes, any descriptors.
fn send_raw(connection: &Connection, bytes: &[u8], descriptors: &[RawFd]) -> Sent {
    let rights = [ControlMessage::ScmRights(descriptors)];
    let control: &[ControlMessage<'_>] = if descriptors.is_empty() { &[] } else { &rights };
    let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
    let slices = [std::io::IoSlice::new(bytes)];
    match sendmsg::<()>(connection.as_fd().as_raw_fd(), &slices, control, flags, None) {
        Ok(_) => Sent::Taken,
        Err(Errno::EPIPE | Errno::ECONNRESET | Errno::ENOTCONN) => Sent::Closed,
        // ETOOMANYREFS: more descriptors are under way than one user may have.
        Err(_) => Sent::Full,
    }
}

/// Sends noise of any length, and doorbells, until it is cut off; again and again.
pub(super) fn flood(socket: &Path, operations: u64, mut noise: Random) -> Tally {
    let mut tally = Tally::default();
    let mut done = 0;
    while done < operations {
        let connection = connect(socket);
        done += 1;
        // Some say hello first, so that they are not cut off at once: rings are no offence.
        let only_rings = noise.below(2) == 0;
        if only_rings {
            let _ = connection.send(&hello(PROTOCOL_VERSION), &[]);
        }
        for _ in 0..2000 {
            let bytes = if only_rings {
                vec![forebay_protocol::wire::DOORBELL]
            } else {
                let length = 1 + noise.below(300);
                noise.bytes(length)
            };
            done += 1;
            match send_raw(&connection, &bytes, &[]) {
                Sent::Taken => {}
                Sent::Full => std::thread::yield_now(),
                Sent::Closed => break,
            }
        }
        if let Answer::Over(reason) = hear(&connection) {
            tally.cut(&reason);
        }
    }
    tally.count("flooder", done);
    tally
}

/// Says what is not so.
pub(super) fn lie(socket: &Path, operations: u64, mut noise: Random) -> Tally {
    let mut tally = Tally::default();
    let mut done = 0;
    let null = File::open("/dev/null").unwrap();
    while done < operations {
        let connection = connect(socket);
        done += 1;
        let greets = noise.below(4) != 0;
        if greets {
            let _ = connection.send(&hello(PROTOCOL_VERSION), &[]);
            done += 1;
        }
        for _ in 0..1 + noise.below(6) {
            let frame = lie_of(&mut noise);
            let Ok(mut bytes) = encode(&frame) else { continue };
            if noise.below(2) == 0 {
                let at = usize::try_from(noise.below(bytes.len() as u64)).unwrap_or(0);
                bytes[at] ^= noise.next().to_le_bytes()[0];
            }
            let carried = [0, 0, 1, 3, 200][usize::try_from(noise.below(5)).unwrap_or(0)];
            let descriptors = vec![null.as_raw_fd(); carried];
            done += 1;
            if matches!(send_raw(&connection, &bytes, &descriptors), Sent::Closed) {
                break;
            }
        }
        // Half of them wait for the answer; the others hang up on it.
        if noise.below(2) == 0 {
            let _ = connection.send(&ClientFrame::Goodbye, &[]);
            if let Answer::Over(reason) = hear_out(&connection) {
                tally.cut(&reason);
            }
        }
    }
    tally.count("liar", done);
    tally
}

fn lie_of(noise: &mut Random) -> ClientFrame {
    let position = Position { epoch: noise.next(), samples: noise.next() };
    match noise.below(11) {
        0 => ClientFrame::Hello {
            protocol: PROTOCOL_VERSION.wrapping_sub(1 + u32::try_from(noise.below(3)).unwrap_or(0)),
            release: "x".repeat(usize::try_from(noise.below(60_000)).unwrap_or(0)),
        },
        1 => ClientFrame::Start(Start {
            config: ConfigSource::File("/etc/passwd".to_owned()),
            overrides: vec![("dataset.path".to_owned(), "/".to_owned()); 50],
            local_world_size: 0,
            local_rank: u32::MAX,
        }),
        2 => match attach(noise) {
            ClientFrame::Attach(request) => {
                let mut request = request;
                request.position = position;
                request.world_size = u32::MAX - u32::try_from(noise.below(3)).unwrap_or(0);
                request.stream = (noise.below(2) == 0).then(|| "no such stream".to_owned());
                request.trainer = "\n\u{1b}x".repeat(usize::from(noise.bytes(1)[0]));
                let sizes = [None, Some(0), Some(1), Some(u32::MAX)];
                request.batch_size = sizes[usize::from(noise.bytes(1)[0] % 4)];
                ClientFrame::Attach(request)
            }
            other => other,
        },
        3 => attach(noise),
        4 => ClientFrame::Seek {
            serial: noise.next(),
            position,
            substitutes: noise.next(),
            cuts: Vec::new(),
        },
        5 => ClientFrame::Stats,
        6 => ClientFrame::Record(Recording::Trace {
            milliseconds: u32::try_from(noise.below(1 << 32) >> noise.below(32))
                .unwrap_or(u32::MAX),
        }),
        7 => {
            let of = if noise.below(2) == 0 {
                NamesOf::Classes { from: noise.next() >> noise.below(64) }
            } else {
                NamesOf::Files { samples: vec![noise.next() >> noise.below(64); 8000] }
            };
            ClientFrame::Names(NamesRequest { request: noise.next(), of })
        }
        8 => ClientFrame::AttachRows {
            stream: (noise.below(4) == 0).then(|| "no such stream".to_owned()),
        },
        9 => {
            let count = [0, 1, 8, 4000][usize::try_from(noise.below(4)).unwrap_or(0)];
            let rows = (0..count).map(|_| RowKey {
                sample: noise.next() >> noise.below(64),
                pass: noise.next() >> noise.below(64),
            });
            let rows = rows.collect();
            ClientFrame::Ask(RowsRequest {
                request: noise.next(),
                rows,
                by_id: noise.below(2) == 0,
            })
        }
        _ => hello(PROTOCOL_VERSION),
    }
}

/// Opens connections by the thousand, some with sessions, and lets them go.
pub(super) fn crowd(socket: &Path, over: &AtomicBool, mut noise: Random) -> Tally {
    let mut tally = Tally::default();
    let mut done = 0;
    loop {
        let mut open = Vec::with_capacity(CROWD);
        for number in 0..CROWD {
            let connection = connect(socket);
            let _ = connection.send(&hello(PROTOCOL_VERSION), &[] as &[BorrowedFd<'_>]);
            if number % 10 == 0 {
                let _ = connection.send(&attach(&mut noise), &[]);
            }
            done += 2;
            open.push(connection);
            if over.load(Ordering::Relaxed) && done >= 2 * CROWD as u64 {
                break;
            }
        }
        for connection in &open {
            if let Answer::Over(reason) = hear(connection) {
                tally.cut(&reason);
            }
        }
        drop(open);
        if over.load(Ordering::Relaxed) {
            break;
        }
        // The others want connections too.
        std::thread::sleep(std::time::Duration::from_millis(500));
    }
    tally.count("crowd", done);
    tally
}
