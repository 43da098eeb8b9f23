//! The body of a response, and where it goes.

use std::io;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;

use super::client_pool::PooledClient;
use super::stores::Store;
use super::trace::Trace;
use super::wire::Answered;
use forebay_storage::{BodySink, Lent, Target};

/// A response's body.
pub(super) enum Body {
    /// Still on its connection.
    OnWire(Answered),
    /// A stream from the HTTP client.
    Stream(BoxStream<'static, object_store::Result<Bytes>>),
}

/// Why a body was not read to its end.
pub(super) enum Stopped {
    /// The connection failed.
    Broken(Box<Trace>),
    TooLong,
    /// This many bytes are missing.
    TooShort(u64),
    /// The receiver wants no more.
    Unwanted,
}

impl Body {
    /// Reads a body of this length with the client that received it.
    pub(super) fn take(
        self,
        client: &PooledClient,
        length_bytes: u64,
        target: Target<'_>,
    ) -> Result<(), Stopped> {
        let mut stream = match self {
            Self::OnWire(answered) => return take_off_wire(answered, length_bytes, target),
            Self::Stream(stream) => stream,
        };
        let mut missing = length_bytes;
        let (taken, trace) = client.run(u64::MAX, async |_: &Store| {
            let mut target = target;
            while let Some(chunk) = stream.next().await {
                let Ok(chunk) = chunk else { return Ok(false) };
                missing = missing.checked_sub(chunk.len() as u64).ok_or(Stopped::TooLong)?;
                if !target.take(&chunk) {
                    return Err(Stopped::Unwanted);
                }
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
        Target::Pieces(sink) => take_pieces(&mut answered, sink, broken)?,
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
    sink: &mut dyn BodySink,
    broken: impl Fn(io::Error) -> Stopped + Copy,
) -> Result<(), Stopped> {
    while answered.left_bytes() > 0 {
        match sink.lend(&mut |place| answered.read_now(place)) {
            Lent::Read(Ok(0)) => break,
            Lent::Read(Ok(_)) => {}
            Lent::Read(Err(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                answered.wait().map_err(broken)?;
            }
            Lent::Read(Err(error)) => return Err(broken(error)),
            Lent::Unwanted => return Err(Stopped::Unwanted),
            Lent::NoBuffer => {
                let Some(piece) = answered.piece().map_err(broken)? else { break };
                if !sink.take(piece) {
                    return Err(Stopped::Unwanted);
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
