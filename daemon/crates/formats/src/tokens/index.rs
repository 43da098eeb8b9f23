//! The saved index of a dataset whose rows consist of documents: written once, read in place by all daemons of a host.
//!
//! All numbers are little endian. A header of [`HEADER_BYTES`], then the consecutive columns:
//!
//! ```text
//! header   0 magic [8]   8 version u32   12 kind u32: 1 concatenated, 2 packed   16 checksum [32]
//!         48 identity [32]   80 options [32]: the files and how they are cut   112 digest of the columns [32]
//!        144 documents u64   152 parts u64   160 rows u64   168 positions with labels u64   176 zero to 256
//! starts  u64 per part: the number of its first token
//! ends    concatenated: u64 per part, the cumulative number of tokens
//!         packed: u32 per part, its tokens, and in the highest bit whether its document continues; then u64 per row,
//!         the cumulative number of parts
//! ```
//! In the concatenated kind, a part is a document, and parts are in permuted order.

use super::keys::{Cut, TokenKeys};
use super::pack::Piece;
use super::rows::{Row, Segment};
use forebay_dataset::IndexBytes;
use forebay_index::folder::layout::{self, HEADER_BYTES, LayoutFault, u32_at, u64_at};

const MAGIC: [u8; 8] = *b"FOREBTOK";
const VERSION: u32 = 1;
const CONCATENATED: u32 = 1;
const PACKED: u32 = 2;
/// Flag of a packed part: its document continues after it.
const GOES_ON: u32 = 1 << 31;

/// An opened index.
#[derive(Debug)]
pub(super) struct TokenIndex {
    bytes: IndexBytes,
    keys: [[u8; 32]; 3],
    is_packed: bool,
    /// The number of documents with tokens.
    pub(super) documents: u64,
    parts: usize,
    pub(super) rows: u64,
    /// The number of positions with a label in all rows; only for packed rows.
    pub(super) labelled: u64,
}

/// The layout of a row.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowShape {
    pub(super) length: u64,
    pub(super) looks_ahead: bool,
    pub(super) has_segments: bool,
}

impl RowShape {
    pub(super) fn of(keys: &TokenKeys) -> Self {
        let (looks_ahead, has_segments) = (keys.looks_ahead(), keys.has_segments());
        Self { length: keys.length, looks_ahead, has_segments }
    }
}

impl TokenIndex {
    /// Validates the bytes and opens them.
    ///
    /// # Errors
    /// The bytes are not an intact index of this version.
    pub(super) fn open(bytes: IndexBytes) -> Result<Self, LayoutFault> {
        layout::check_header(&bytes, MAGIC, VERSION)?;
        let digest = |start: usize| bytes.get(start..)?.first_chunk::<32>().copied();
        let read = || {
            let is_packed = match u32_at(&bytes, 12)? {
                CONCATENATED => false,
                PACKED => true,
                _ => return None,
            };
            let parts = usize::try_from(u64_at(&bytes, 152)?).ok()?;
            let rows = u64_at(&bytes, 160)?;
            let columns = match is_packed {
                false => parts.checked_mul(16)?,
                true => parts
                    .checked_mul(12)?
                    .checked_add(usize::try_from(rows).ok()?.checked_mul(8)?)?,
            };
            (HEADER_BYTES.checked_add(columns)? == bytes.len()).then_some(())?;
            let keys = [digest(48)?, digest(80)?, digest(112)?];
            Some((keys, is_packed, parts, rows, u64_at(&bytes, 144)?, u64_at(&bytes, 168)?))
        };
        let (keys, is_packed, parts, rows, documents, labelled) =
            read().ok_or(LayoutFault::Damaged)?;
        Ok(Self { keys, is_packed, documents, parts, rows, labelled, bytes })
    }

    /// The digests of the dataset, and of its files and keys.
    pub(super) const fn keys(&self) -> [&[u8]; 2] {
        [&self.keys[0], &self.keys[1]]
    }

    /// The digest of the rows, independent of paths and times.
    pub(super) const fn digest(&self) -> &[u8; 32] {
        &self.keys[2]
    }

    pub(super) const fn bytes(&self) -> &IndexBytes {
        &self.bytes
    }

    fn start(&self, part: usize) -> Option<u64> {
        u64_at(&self.bytes, HEADER_BYTES + 8 * part)
    }

    fn column(&self, offset: usize) -> usize {
        HEADER_BYTES + 8 * self.parts + offset
    }

    /// The number of tokens in the concatenated parts before `part`.
    fn before(&self, part: usize) -> Option<u64> {
        part.checked_sub(1).map_or(Some(0), |last| u64_at(&self.bytes, self.column(8 * last)))
    }

    /// The number of packed parts before a row.
    fn parts_before(&self, row: u64) -> Option<usize> {
        let ends = self.column(4 * self.parts);
        let Some(last) = row.checked_sub(1) else { return Some(0) };
        usize::try_from(u64_at(&self.bytes, ends + 8 * usize::try_from(last).ok()?)?).ok()
    }

    /// The row with a number below [`rows`](Self::rows).
    pub(super) fn row(&self, number: u64, shape: RowShape) -> Row {
        let row = match self.is_packed {
            true => self.packed(number, shape),
            false => self.concatenated(number, shape),
        };
        // The checksum was correct, so this fails only for a deliberately malformed index.
        row.unwrap_or_else(|| Row { segments: Vec::new(), ahead: None })
    }

    fn concatenated(&self, number: u64, shape: RowShape) -> Option<Row> {
        let first = number.checked_mul(shape.length)?;
        let (mut low, mut high) = (0, self.parts);
        while low < high {
            let middle = low.midpoint(high);
            match self.before(middle + 1)? <= first {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        let mut part = low;
        let mut skipped = first.checked_sub(self.before(part)?)?;
        let (mut segments, mut left) = (Vec::new(), shape.length);
        loop {
            let whole = self.before(part + 1)?.checked_sub(self.before(part)?)?;
            let tokens = whole.checked_sub(skipped)?.min(left);
            let start = self.start(part)?.checked_add(skipped)?;
            if tokens > 0 {
                segments.push(Segment { start, tokens });
            }
            left -= tokens;
            let goes_on = skipped + tokens < whole;
            if left == 0 {
                let ahead = match (goes_on, shape.has_segments) {
                    (true, _) => start.checked_add(tokens),
                    (false, true) => None,
                    (false, false) if part + 1 < self.parts => self.start(part + 1),
                    (false, false) => None,
                };
                return Some(Row { segments, ahead: ahead.filter(|_| shape.looks_ahead) });
            }
            part += 1;
            (part < self.parts).then_some(())?;
            skipped = 0;
        }
    }

    fn packed(&self, number: u64, shape: RowShape) -> Option<Row> {
        let [first, end] = [self.parts_before(number)?, self.parts_before(number + 1)?];
        (first < end && end <= self.parts).then_some(())?;
        let (mut segments, mut left, mut ahead) = (Vec::new(), shape.length, None);
        for part in first..end {
            let start = self.start(part)?;
            let tokens = u32_at(&self.bytes, self.column(4 * part))?;
            let own = u64::from(tokens & !GOES_ON).min(left);
            if own == 0 {
                break;
            }
            left -= own;
            segments.push(Segment { start, tokens: own });
            ahead = (tokens & GOES_ON != 0 && left == 0).then(|| start.checked_add(own)).flatten();
        }
        Some(Row { segments, ahead: ahead.filter(|_| shape.looks_ahead) })
    }
}

/// The digests of the dataset, and of its files and keys.
#[derive(Debug, Clone, Copy)]
pub(super) struct Origin {
    pub(super) identity: [u8; 32],
    pub(super) options: [u8; 32],
}

/// Lays out an index of documents that are concatenated in this order.
pub(super) fn lay_out_concatenated(
    documents: &[Segment],
    shape: RowShape,
    origin: Origin,
) -> Vec<u8> {
    let tokens: u64 = documents.iter().map(|document| document.tokens).sum();
    let rows = tokens.saturating_sub(u64::from(shape.looks_ahead)) / shape.length;
    let parts = documents.len() as u64;
    let mut bytes = header(Cut::Concatenate, origin, [parts, parts, rows, 0]);
    bytes.extend(documents.iter().flat_map(|document| document.start.to_le_bytes()));
    let mut end = 0;
    bytes.extend(documents.iter().flat_map(|document| {
        end += document.tokens;
        end.to_le_bytes()
    }));
    sealed(bytes)
}

/// The packed rows.
#[derive(Debug, Default)]
pub(super) struct PackedRows {
    pieces: Vec<Piece>,
    ends: Vec<u64>,
}

impl PackedRows {
    pub(super) fn add(&mut self, pieces: &[Piece]) {
        self.pieces.extend_from_slice(pieces);
        self.ends.push(self.pieces.len() as u64);
    }

    /// The number of positions with labels: one per document is less than its tokens.
    fn labelled(&self, looks_ahead: bool) -> u64 {
        let labels =
            |piece: &Piece| u64::from(piece.tokens) - u64::from(!(piece.goes_on && looks_ahead));
        self.pieces.iter().map(labels).sum()
    }

    pub(super) fn lay_out(&self, documents: u64, shape: RowShape, origin: Origin) -> Vec<u8> {
        let [parts, rows] = [self.pieces.len() as u64, self.ends.len() as u64];
        let labelled = self.labelled(shape.looks_ahead);
        let mut bytes = header(Cut::Pack, origin, [documents, parts, rows, labelled]);
        bytes.extend(self.pieces.iter().flat_map(|piece| piece.start.to_le_bytes()));
        let tokens =
            |piece: &Piece| (piece.tokens | if piece.goes_on { GOES_ON } else { 0 }).to_le_bytes();
        bytes.extend(self.pieces.iter().flat_map(tokens));
        bytes.extend(self.ends.iter().flat_map(|end| end.to_le_bytes()));
        sealed(bytes)
    }
}

fn header(cut: Cut, origin: Origin, numbers: [u64; 4]) -> Vec<u8> {
    let mut bytes = Vec::new();
    layout::begin(&mut bytes, MAGIC, VERSION, [&origin.identity, &origin.options]);
    let kind: u32 = if cut == Cut::Pack { PACKED } else { CONCATENATED };
    bytes[12..16].copy_from_slice(&kind.to_le_bytes());
    layout::set_numbers(&mut bytes, &numbers);
    bytes
}

fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let digest = *blake3::hash(&bytes[HEADER_BYTES..]).as_bytes();
    layout::seal(&mut bytes, digest);
    bytes
}
