//! The body of an answer, and where it goes.

use std::io;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;

use super::lines::Line;
use super::stores::Store;
use super::trace::Trace;
use super::wire::Answered;
use crate::storage::{Lent, Taker};

/// An answer's body.
pub(super) enum Body {
    /// Still on its connection.
    OnWire(Answered),
    /// As a client brings it.
    Stream(BoxStream<'static, object_store::Result<Bytes>>),
}

/// Where a body goes.
pub(super) enum Target<'a> {
    /// To a buffer's end, which has room for it.
    Buffer(&'a mut Vec<u8>),
    /// A piece after another to who takes it.
    Pieces(&'a mut dyn Taker),
}

/// Why a body was not taken to its end.
pub(super) enum Stopped {
    /// The connection failed.
    Broken(Box<Trace>),
    TooLong,
    /// So many bytes are missing.
    TooShort(u64),
    /// Who takes it wants no more.
    Unwanted,
}

impl Body {
    /// Takes a body of so many bytes, on the line that it comes over.
    pub(super) fn take(
        self,
        line: &Line,
        length_bytes: u64,
        target: Target<'_>,
    ) -> Result<(), Stopped> {
        let mut stream = match self {
            Self::OnWire(answered) => return take_off_wire(answered, length_bytes, target),
            Self::Stream(stream) => stream,
        };
        let mut missing = length_bytes;
        let (taken, trace) = line.run(u64::MAX, async |_: &Store| {
            let mut target = target;
            while let Some(chunk) = stream.next().await {
                let Ok(chunk) = chunk else { return Ok(false) };
                missing = missing.checked_sub(chunk.len() as u64).ok_or(Stopped::TooLong)?;
                target.take(&chunk)?;
            }
            Ok(true)
        });
        match taken? {
            false => Err(Stopped::Broken(Box::new(trace))),
            true if missing > 0 => Err(Stopped::TooShort(missing)),
            true => Ok(()),
        }
    }
}

fn take_off_wire(
    mut answered: Answered,
    length_bytes: u64,
    target: Target<'_>,
) -> Result<(), Stopped> {
    if answered.left_bytes() > length_bytes {
        return Err(Stopped::TooLong);
    }
    let missing = length_bytes - answered.left_bytes();
    if missing > 0 {
        return Err(Stopped::TooShort(missing));
    }
    let host = answered.host().to_owned();
    let host = host.as_str();
    let broken = |error: io::Error| {
        let (host, transport) = (host.to_owned(), Some(error.to_string()));
        Stopped::Broken(Box::new(Trace { host, transport, ..Trace::default() }))
    };
    match target {
        Target::Buffer(buffer) => while answered.read(buffer).map_err(broken)? > 0 {},
        Target::Pieces(taker) => take_pieces(&mut answered, taker, broken)?,
    }
    match answered.left_bytes() {
        0 => {
            answered.end();
            Ok(())
        }
        missing => Err(Stopped::TooShort(missing)),
    }
}

fn take_pieces(
    answered: &mut Answered,
    taker: &mut dyn Taker,
    broken: impl Fn(io::Error) -> Stopped + Copy,
) -> Result<(), Stopped> {
    while answered.left_bytes() > 0 {
        match taker.lend(&mut |place| answered.read_now(place)) {
            Lent::Read(Ok(0)) => break,
            Lent::Read(Ok(_)) => {}
            Lent::Read(Err(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                answered.wait().map_err(broken)?;
            }
            Lent::Read(Err(error)) => return Err(broken(error)),
            Lent::Unwanted => return Err(Stopped::Unwanted),
            Lent::Nowhere => {
                let Some(piece) = answered.piece().map_err(broken)? else { break };
                if !taker.take(piece) {
                    return Err(Stopped::Unwanted);
                }
            }
        }
    }
    Ok(())
}

impl Target<'_> {
    fn take(&mut self, piece: &[u8]) -> Result<(), Stopped> {
        match self {
            Self::Buffer(buffer) => {
                buffer.extend_from_slice(piece);
                Ok(())
            }
            Self::Pieces(taker) => taker.take(piece).then_some(()).ok_or(Stopped::Unwanted),
        }
    }
}

#[cfg(test)]
mod tests;
