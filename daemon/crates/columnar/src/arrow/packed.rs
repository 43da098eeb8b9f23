//! Buffers of a compressed batch. Each begins with its unpacked size, followed by a zstd frame, or with -1, followed by
//! the plain bytes. Offsets, bits and numbers are unpacked when the rows are read for an index; a longer value is a
//! range of its unpacked buffer.

use std::cell::{Cell as Counter, RefCell};
use std::rc::Rc;

use crate::{Cell, PackedCell};
use forebay_dataset::error::DatasetError;
use forebay_index::window::{Bytes, MAX_PART_BYTES, Window};
use forebay_storage::codec::Codec;
use forebay_storage::location::Packed;

const CODEC: Codec = Codec::Zstd;
/// The number before a buffer.
const PREFIX_BYTES: u64 = 8;
/// Values up to this length are kept in the index: a read and a frame for each cost more.
const KEPT_VALUE_BYTES: u64 = 256;
/// The budget of kept values: this many bytes, and this many per byte of the file; others stay in the file.
const KEPT_BYTES: (u64, u64) = (256 << 20, 64);
/// The maximum number of a file's values: this many, and this many per byte of the file. Compressed rows may take
/// almost no bytes.
const VALUES: (u64, u64) = (1 << 24, 64);

/// The budget of a file with compressed rows or lists of bytes.
#[derive(Debug)]
pub(super) struct Budget {
    kept_bytes: Counter<u64>,
    values: Counter<u64>,
}

impl Budget {
    pub(super) fn of(file: &dyn Bytes) -> Self {
        let of_each = |(least, each): (u64, u64)| least.max(file.length().saturating_mul(each));
        Self {
            kept_bytes: Counter::new(of_each(KEPT_BYTES)),
            values: Counter::new(of_each(VALUES)),
        }
    }

    /// Subtracts values from the budget.
    ///
    /// # Errors
    /// The budget is exceeded.
    pub(super) fn count(&self, values: u64) -> Result<(), String> {
        let left = self.values.get().checked_sub(values).ok_or_else(|| {
            "its compressed rows or lists have more values than are read of a file of its size; name fewer columns in \
             dataset.fields, or write it without compression"
                .to_owned()
        })?;
        self.values.set(left);
        Ok(())
    }

    /// Takes bytes of kept values from the budget, if it has them.
    pub(super) fn keeps(&self, bytes: u64) -> bool {
        let left = self.kept_bytes.get().checked_sub(bytes);
        left.inspect(|left| self.kept_bytes.set(*left)).is_some()
    }
}

/// A buffer of a batch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Buffer {
    /// The offset in the file.
    start: u64,
    /// The unpacked length.
    pub(super) length: u64,
    /// The compressed length, if it is compressed.
    packed: Option<u64>,
}

impl Buffer {
    pub(super) const fn plain((start, length): (u64, u64)) -> Self {
        Self { start, length, packed: None }
    }

    /// Parses the number before a buffer.
    pub(super) fn packed(
        window: &mut Window<'_>,
        (start, length): (u64, u64),
    ) -> Result<Self, DatasetError> {
        if length == 0 {
            return Ok(Self::plain((start, 0)));
        }
        let file = window.file;
        let Some(bytes) = length.checked_sub(PREFIX_BYTES) else {
            return Err(file.fault(format!(
                "a compressed buffer has {length} bytes, and the number before it takes {PREFIX_BYTES}"
            )));
        };
        let prefix = window.get(start, PREFIX_BYTES)?.first_chunk();
        let unpacked = prefix.map_or(0, |bytes| i64::from_le_bytes(*bytes));
        let start = start + PREFIX_BYTES;
        match u64::try_from(unpacked) {
            Err(_) if unpacked == -1 => Ok(Self::plain((start, bytes))),
            Ok(length) if length <= MAX_PART_BYTES && bytes <= MAX_PART_BYTES => {
                Ok(Self { start, length, packed: Some(bytes) })
            }
            _ => Err(file.fault(format!(
                "a buffer of {bytes} bytes at byte {start} unpacks to {unpacked}, and at most {MAX_PART_BYTES} are read; write \
                 fewer rows in a batch"
            ))),
        }
    }

    /// A part of the unpacked buffer.
    ///
    /// # Errors
    /// It cannot be unpacked, or as [`Window::get`].
    pub(super) fn part(
        &self,
        window: &mut Window<'_>,
        kept: &RefCell<Unpacked>,
        (from, length): (u64, u64),
    ) -> Result<Vec<u8>, DatasetError> {
        if self.packed.is_none() {
            return window.get(self.start + from, length).map(<[u8]>::to_vec);
        }
        let whole = kept.borrow_mut().get(window, self)?;
        let part = usize::try_from(from).ok().zip(usize::try_from(length).ok());
        let part = part.and_then(|(from, length)| whole.get(from..)?.get(..length));
        part.map(<[u8]>::to_vec).ok_or_else(|| {
            window.file.fault(format!("a buffer at byte {} is shorter than its values", self.start))
        })
    }

    /// The cell of a value in the buffer.
    pub(super) fn cell(
        &self,
        window: &mut Window<'_>,
        kept: &RefCell<Unpacked>,
        budget: &Budget,
        (from, length): (u64, u64),
    ) -> Result<Cell, DatasetError> {
        let Some(bytes) = self.packed else {
            return Ok(Cell::At { offset: self.start + from, length });
        };
        if length <= KEPT_VALUE_BYTES && budget.keeps(length) {
            return self.part(window, kept, (from, length)).map(Cell::Value);
        }
        // A buffer is at most as long as a part may be.
        let narrow = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        let (unpacked_bytes, start, length) = (narrow(self.length), narrow(from), narrow(length));
        let part = Packed { codec: CODEC, unpacked_bytes, start, length };
        Ok(Cell::Packed(PackedCell { offset: self.start, bytes, part }))
    }
}

/// A cache of the buffers of a batch that were unpacked last, by offset.
#[derive(Debug, Default)]
pub(super) struct Unpacked {
    buffers: Vec<(u64, Rc<Vec<u8>>)>,
    bytes: u64,
}

impl Unpacked {
    fn get(
        &mut self,
        window: &mut Window<'_>,
        buffer: &Buffer,
    ) -> Result<Rc<Vec<u8>>, DatasetError> {
        if let Some((_, found)) = self.buffers.iter().find(|(start, _)| *start == buffer.start) {
            return Ok(Rc::clone(found));
        }
        let packed = window.get(buffer.start, buffer.packed.unwrap_or(0))?;
        let mut unpacked = Vec::new();
        let whole = usize::try_from(buffer.length).unwrap_or(usize::MAX);
        if !CODEC.unpack(packed, (whole, whole), &mut unpacked) {
            return Err(window.file.fault(format!(
                "its buffer at byte {} does not unpack to {whole} bytes: it is damaged",
                buffer.start
            )));
        }
        if self.bytes + buffer.length > MAX_PART_BYTES {
            *self = Self::default();
        }
        let unpacked = Rc::new(unpacked);
        self.bytes += buffer.length;
        self.buffers.push((buffer.start, Rc::clone(&unpacked)));
        Ok(unpacked)
    }
}
