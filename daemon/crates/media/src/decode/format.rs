//! The interface of image formats to the decoders, and the forms of their pixels.

use crate::size::Size;
use forebay_dataset::Defect;

/// Reads a file's size and, if requested, its orientation (1 to 8).
pub(super) type ReadHeader = fn(&[u8], bool) -> Result<(Size, u8), Defect>;
/// Decodes a file of that size into the last buffer; the one before it is scratch memory.
pub(super) type Decode = fn(&[u8], Size, Form, &mut Vec<u8>, &mut Vec<u8>) -> Result<(), Defect>;

/// A format whose files are decoded in full.
pub(super) struct Format {
    /// Whether a file is of it, by its first bytes.
    pub(super) begins: fn(&[u8]) -> bool,
    /// Whether its levels may have 16 bits.
    pub(super) may_be_wide: bool,
    pub(super) read_header: ReadHeader,
    /// The maximal memory for decoding besides the pixels.
    pub(super) bytes_beside_pixels: fn(&[u8], Size, Form) -> u64,
    pub(super) decode: Decode,
}

/// The requested content of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// Its colours, as bytes.
    Colours,
    /// The indices instead of the palette's colours. A file without a palette must be grey.
    Indices,
    /// Levels of 16 bits, in native order.
    Wide,
}

impl Content {
    /// Bytes of a channel.
    pub(crate) const fn element_bytes(self) -> usize {
        if matches!(self, Self::Wide) { 2 } else { 1 }
    }
}

/// The form that an image is decoded to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Form {
    /// 1, 3 or 4.
    pub(super) channels: u8,
    pub(super) content: Content,
}
