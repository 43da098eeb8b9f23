//! Entry points of fuzzers for the parsers of tokens: the starts of files, and the saved index.

use super::files::{bin, npy};
use super::index::{RowShape, TokenIndex};
use super::megatron::IndexHeader;
use crate::fuzzing::sealed;
use forebay_dataset::IndexBytes;
use forebay_protocol::tensor::DType;

/// Parses the start of a file of any kind, as the whole file and as the start of a larger one.
///
/// # Panics
/// The parsed header does not fit the file.
pub(crate) fn start(bytes: &[u8]) {
    let size = bytes.len() as u64;
    for size in [size, size.saturating_mul(1 << 20)] {
        for layout in [bin(bytes, size, DType::U16), bin(bytes, size, DType::U32), npy(bytes, size)]
        {
            let Ok(layout) = layout else { continue };
            assert!(layout.data_start + layout.tokens <= size, "{layout:?}");
        }
        if let Ok(header) = IndexHeader::parse(bytes, size) {
            assert!(
                header.sequences <= size / 12 && header.document_ends <= size / 8,
                "{header:?}"
            );
        }
    }
}

/// Opens a saved index.
///
/// # Errors
/// The bytes are not an intact index of this version.
#[cfg(test)]
pub(crate) fn open(bytes: IndexBytes) -> Result<(), forebay_index::index_file::LayoutFault> {
    TokenIndex::open(bytes).map(|_| ())
}

/// Opens a saved index, with its checksum corrected too.
///
/// # Panics
/// A row has more tokens than its length.
pub(crate) fn index(bytes: &[u8]) {
    let _ = TokenIndex::open(IndexBytes::Owned(bytes.to_vec()));
    let Ok(index) = TokenIndex::open(IndexBytes::Owned(sealed(bytes))) else { return };
    for (length, has_segments) in [(1, false), (7, true), (2048, true)] {
        let shape = RowShape { length, looks_ahead: true, has_segments };
        for number in (0..32.min(index.rows)).chain(index.rows.checked_sub(1)) {
            let row = index.row(number, shape);
            let tokens: u64 = row.segments.iter().map(|segment| segment.tokens).sum();
            assert!(tokens <= length, "{row:?}");
        }
    }
}
