//! The format of a call in a side of an arena: the inputs of a bundle of rows. Offsets are from the side's start.
//!
//! ```text
//!   0       in the first side: u64 the row being called, written by the worker; all ones between calls
//!   64 KiB  the inputs' bytes, each aligned to 64
//!   …       the header: u32 rows, u32 names' bytes, u32 flags, 4 bytes unused, names (JSON), then for each row
//!             6 × u64 id, epoch, four words of seed, and for each input a record:
//!               u8 kind, u8 dtype, u8 dimensions, 5 bytes unused, u64 offset or number, u64 bytes, dimensions × u64
//! ```
//! Little-endian. The reply has the same records ([`super::reply`]).

use forebay_protocol::tensor::DType;

/// Where inputs begin: they share no page with the word of the row being called, which the worker may always write.
pub(crate) const INPUTS_AT: u64 = 64 << 10;
/// A row's id, epoch and words.
const ROW_HEAD_BYTES: usize = 6 * 8;
/// Alignment of the inputs' bytes.
const ALIGNMENT: usize = 64;

pub(crate) const KIND_ARRAY: u8 = 1;
pub(crate) const KIND_BYTES: u8 = 2;
pub(crate) const KIND_TEXT: u8 = 3;
pub(crate) const KIND_INTEGER: u8 = 4;
pub(crate) const KIND_FLOAT: u8 = 5;

/// A call that only asks for the result's fields.
pub(crate) const FLAG_PROBE: u32 = 1;
/// Additionally measures the time in the function, and in transforms of known packages.
pub(crate) const FLAG_TIMED: u32 = 2;

/// A scalar.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Number {
    /// An integer.
    Integer(i64),
    /// A floating-point number.
    Float(f64),
}

/// A row's sample and the seed words for its randomness.
#[derive(Debug, Clone, Copy)]
pub struct RowSeed {
    /// The sample's id.
    pub id: u64,
    /// Its epoch.
    pub epoch: u64,
    /// The seed words of this stage's draws for this sample.
    pub words: [u64; 4],
}

/// The rows of a call. Reused: its memory only grows.
#[derive(Debug, Default)]
pub struct CallBuffer {
    rows: Vec<Vec<u8>>,
    used_rows: usize,
    inputs: Vec<u8>,
    used_bytes: usize,
}

impl CallBuffer {
    /// Removes all rows.
    pub fn clear(&mut self) {
        self.used_rows = 0;
        self.used_bytes = 0;
    }

    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.used_rows
    }

    /// Bytes of all rows' inputs.
    #[must_use]
    pub fn input_bytes(&self) -> usize {
        self.used_bytes
    }

    /// Releases the memory of unusually large rows.
    pub fn trim(&mut self, kept_bytes: usize) {
        if self.inputs.capacity() > kept_bytes {
            self.inputs = Vec::new();
            self.used_bytes = 0;
        }
    }

    /// Begins a row; its inputs follow in the order of the names.
    pub fn begin_row(&mut self, seed: RowSeed) {
        if self.used_rows == self.rows.len() {
            self.rows.push(Vec::new());
        }
        let row = &mut self.rows[self.used_rows];
        self.used_rows += 1;
        row.clear();
        for word in [seed.id, seed.epoch].iter().chain(&seed.words) {
            row.extend_from_slice(&word.to_le_bytes());
        }
    }

    /// Identifies the only row: its id, epoch and words. Empty if there are several.
    pub(crate) fn only_row(&self) -> &[u8] {
        match &self.rows[..self.used_rows] {
            [row] => &row[..ROW_HEAD_BYTES],
            _ => &[],
        }
    }

    /// Removes the last row.
    pub fn abandon_row(&mut self) {
        self.used_rows = self.used_rows.saturating_sub(1);
    }

    /// Adds an array of `bytes` bytes and returns its memory.
    pub fn array(&mut self, dtype: DType, shape: &[u64], bytes: usize) -> &mut [u8] {
        self.record(KIND_ARRAY, dtype as u8, shape, bytes)
    }

    /// Adds bytes.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.record(KIND_BYTES, 0, &[], bytes.len()).copy_from_slice(bytes);
    }

    /// Adds text, in UTF-8.
    pub fn text(&mut self, text: &[u8]) {
        self.record(KIND_TEXT, 0, &[], text.len()).copy_from_slice(text);
    }

    /// Adds a scalar.
    pub fn number(&mut self, number: Number) {
        let (kind, bits) = match number {
            Number::Integer(value) => (KIND_INTEGER, value.to_le_bytes()),
            Number::Float(value) => (KIND_FLOAT, value.to_le_bytes()),
        };
        let Some(row) = self.rows[..self.used_rows].last_mut() else { return };
        row.extend_from_slice(&[kind, 0, 0, 0, 0, 0, 0, 0]);
        row.extend_from_slice(&bits);
        row.extend_from_slice(&0_u64.to_le_bytes());
    }

    fn record(&mut self, kind: u8, dtype: u8, shape: &[u64], bytes: usize) -> &mut [u8] {
        let start = self.used_bytes.next_multiple_of(ALIGNMENT);
        let end = start + bytes;
        if self.inputs.len() < end {
            self.inputs.resize(end, 0);
        }
        self.used_bytes = end;
        if let Some(row) = self.rows[..self.used_rows].last_mut() {
            let dimensions = u8::try_from(shape.len()).unwrap_or(u8::MAX);
            row.extend_from_slice(&[kind, dtype, dimensions, 0, 0, 0, 0, 0]);
            row.extend_from_slice(&(INPUTS_AT + start as u64).to_le_bytes());
            row.extend_from_slice(&(bytes as u64).to_le_bytes());
            for side in shape {
                row.extend_from_slice(&side.to_le_bytes());
            }
        }
        &mut self.inputs[start..end]
    }

    /// The inputs of all rows.
    pub(crate) fn inputs(&self) -> &[u8] {
        &self.inputs[..self.used_bytes]
    }

    /// The header of a call with some of the rows.
    pub(crate) fn header(&self, rows: &[usize], names: &str, flags: u32) -> Vec<u8> {
        let word = |count: usize| u32::try_from(count).unwrap_or(u32::MAX).to_le_bytes();
        let mut header = Vec::with_capacity(256);
        header.extend_from_slice(&word(rows.len()));
        header.extend_from_slice(&word(names.len()));
        header.extend_from_slice(&flags.to_le_bytes());
        header.extend_from_slice(&[0; 4]);
        header.extend_from_slice(names.as_bytes());
        for row in rows {
            header.extend_from_slice(&self.rows[*row]);
        }
        header
    }
}
