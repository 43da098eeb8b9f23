//! In place of the decoder where there is none for the processor.

use crate::request::{Index, Learned, Pixels, Region, Scale, Unsure};

/// There is none.
#[derive(Debug)]
pub enum Decoder {}

impl Decoder {
    /// Always `None`.
    #[must_use]
    pub const fn new() -> Option<Self> {
        None
    }

    /// Decodes a region of a file into `pixels`.
    ///
    /// # Errors
    /// Never called.
    pub fn decode(
        &mut self,
        _file: &[u8],
        _scale: Scale,
        _region: Region,
        _kind: Pixels,
        _index: Index<'_>,
        _pixels: &mut [u8],
    ) -> Result<Learned, Unsure> {
        match *self {}
    }

    /// The most scratch memory that decoding a file takes.
    #[must_use]
    pub const fn most_scratch_bytes(_file_bytes: u64, _width: u32, _height: u32) -> u64 {
        0
    }

    /// Bytes of scratch memory that it holds.
    #[must_use]
    pub fn scratch_bytes(&self) -> usize {
        match *self {}
    }

    /// Gives scratch memory back.
    pub fn trim(&mut self) {
        match *self {}
    }
}
