//! A receiver for the bytes of a location as they arrive.

use std::io;

/// Receives the bytes of a location as they arrive. Implemented for closures that take pieces.
pub trait BodySink {
    /// Takes the next piece; false: no more is accepted.
    fn take(&mut self, piece: &[u8]) -> bool;

    /// Passes the memory for the next bytes to `read`, which copies available bytes there without waiting, or fails.
    fn lend(&mut self, read: &mut dyn FnMut(&mut [u8]) -> io::Result<usize>) -> Lent {
        let _ = read;
        Lent::NoBuffer
    }
}

/// The result of [`BodySink::lend`].
#[derive(Debug)]
pub enum Lent {
    /// The sink has no memory to lend: the next piece is passed to [`BodySink::take`].
    NoBuffer,
    /// The result of `read`; its bytes count as taken.
    Read(io::Result<usize>),
    /// No more is accepted.
    Unwanted,
}

/// Where the bytes of a location go.
pub enum Target<'a> {
    /// Appended to a buffer that has room for them.
    Buffer(&'a mut Vec<u8>),
    /// Passed on piece by piece.
    Pieces(&'a mut dyn BodySink),
}

impl Target<'_> {
    /// Takes the next piece; false: no more is accepted.
    pub fn take(&mut self, piece: &[u8]) -> bool {
        match self {
            Self::Buffer(buffer) => {
                buffer.extend_from_slice(piece);
                true
            }
            Self::Pieces(sink) => sink.take(piece),
        }
    }
}

impl<F: FnMut(&[u8]) -> bool> BodySink for F {
    fn take(&mut self, piece: &[u8]) -> bool {
        self(piece)
    }
}
