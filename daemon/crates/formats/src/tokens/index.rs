//! The saved index of a dataset whose rows consist of documents: written once, read in place by all daemons of a host.
//!
//! The sections of the [file](forebay_index::index_file):
//!
//! ```text
//! numbers   documents, positions with labels, 1 if the documents are packed
//! starts    u64 per part: the number of its first token
//! ends      concatenated: u64 per part, the cumulative number of tokens
//!           packed: u32 per part, its tokens, and in the highest bit whether its document continues
//! row ends  packed: u64 per row, the cumulative number of parts
//! ```
//! In the concatenated kind, a part is a document, and parts are in permuted order. A sample is a row.

use super::keys::TokenKeys;
use super::pack::Piece;
use super::rows::{Row, Segment};
use forebay_dataset::IndexBytes;
use forebay_index::index_file::{IndexDraft, IndexFile, Kind, LayoutFault};

const STARTS: usize = 0;
const ENDS: usize = 1;
const ROW_ENDS: usize = 2;
/// Flag of a packed part: its document continues after it.
const GOES_ON: u32 = 1 << 31;

/// An opened index.
#[derive(Debug)]
pub(super) struct TokenIndex {
    file: IndexFile,
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
        let file = IndexFile::open(bytes, Kind::TOKENS)?;
        let [documents, labelled, packed] = [0, 1, 2].map(|place| file.number(place));
        let (is_packed, rows) = (packed == 1, file.samples());
        let count = || {
            let parts = file.records(STARTS, 8)?;
            let ends = file.records(ENDS, if is_packed { 4 } else { 8 })?;
            let row_ends = file.records(ROW_ENDS, 8)? as u64;
            let is_whole = ends == parts && row_ends == if is_packed { rows } else { 0 };
            (is_whole && packed <= 1).then_some(parts)
        };
        let parts = count().ok_or(LayoutFault::Damaged)?;
        Ok(Self { file, is_packed, documents, parts, rows, labelled })
    }

    /// The file of the index. Its fingerprint is that of the rows, independent of paths and times.
    pub(super) const fn file(&self) -> &IndexFile {
        &self.file
    }

    fn start(&self, part: usize) -> Option<u64> {
        self.file.u64(STARTS, part)
    }

    /// The number of tokens in the concatenated parts before `part`.
    fn before(&self, part: usize) -> Option<u64> {
        part.checked_sub(1).map_or(Some(0), |last| self.file.u64(ENDS, last))
    }

    /// The number of packed parts before a row.
    fn parts_before(&self, row: u64) -> Option<usize> {
        let Some(last) = row.checked_sub(1) else { return Some(0) };
        usize::try_from(self.file.u64(ROW_ENDS, usize::try_from(last).ok()?)?).ok()
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
            let tokens = self.file.u32(ENDS, part)?;
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
    let mut draft = begin(origin, documents.len() * 16);
    draft.push_all(documents.iter().map(|document| document.start));
    draft.end_section();
    let mut end = 0;
    draft.push_all(documents.iter().map(|document| {
        end += document.tokens;
        end
    }));
    draft.end_section();
    seal(draft, rows, [documents.len() as u64, 0, 0])
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
        let labelled = self.labelled(shape.looks_ahead);
        let mut draft = begin(origin, self.pieces.len() * 12 + self.ends.len() * 8);
        draft.push_all(self.pieces.iter().map(|piece| piece.start));
        draft.end_section();
        for piece in &self.pieces {
            let tokens = piece.tokens | if piece.goes_on { GOES_ON } else { 0 };
            draft.push(&tokens.to_le_bytes());
        }
        draft.end_section();
        draft.push_all(self.ends.iter().copied());
        draft.end_section();
        seal(draft, self.ends.len() as u64, [documents, labelled, 1])
    }
}

fn begin(origin: Origin, expected_bytes: usize) -> IndexDraft {
    IndexDraft::new(Kind::TOKENS, [&origin.identity, &origin.options], expected_bytes)
}

fn seal(draft: IndexDraft, rows: u64, numbers: [u64; 3]) -> Vec<u8> {
    let fingerprint = draft.digest();
    draft.seal(rows, 0, &numbers, fingerprint)
}
