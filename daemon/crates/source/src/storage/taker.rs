//! Who takes the bytes of a location as they come.

use std::io;

/// See the module's head. Closures that take pieces are some.
pub trait Taker {
    /// Takes the next piece; false: no more is wanted.
    fn take(&mut self, piece: &[u8]) -> bool;

    /// Lends the place where the next bytes belong to `read`, which does not wait, and puts some there or fails.
    fn lend(&mut self, read: &mut dyn FnMut(&mut [u8]) -> io::Result<usize>) -> Lent {
        let _ = read;
        Lent::Nowhere
    }
}

/// What became of a place.
#[derive(Debug)]
pub enum Lent {
    /// There is none: a piece is taken.
    Nowhere,
    /// What was read into it, and counts as taken.
    Read(io::Result<usize>),
    /// No more is wanted.
    Unwanted,
}

impl<F: FnMut(&[u8]) -> bool> Taker for F {
    fn take(&mut self, piece: &[u8]) -> bool {
        self(piece)
    }
}
