//! A stub for processors that the decoder does not support.

use crate::request::{Index, Learned, Pixels, Region, Scale, Unsure};

/// Has no values.
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

    /// The maximal scratch memory for decoding a file.
    #[must_use]
    pub const fn most_scratch_bytes(_file_bytes: u64, _width: u32, _height: u32) -> u64 {
        0
    }

    /// Bytes of scratch memory.
    #[must_use]
    pub fn scratch_bytes(&self) -> usize {
        match *self {}
    }

    /// Frees scratch memory.
    pub fn trim(&mut self) {
        match *self {}
    }
}
