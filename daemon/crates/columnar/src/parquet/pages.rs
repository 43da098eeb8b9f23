//! The pages of a column, read as a cell per row.
//!
//! A page is a header and its bytes: the levels, which mark the rows with a value, then the values. In pages that are
//! neither compressed nor dictionary-encoded, bytes and texts stay in the file. In compressed pages, only long bytes
//! do. All other values are kept in the index ([`Cell`]).

use super::footer::Chunk;
use super::hybrid;
use super::runs::{Full, Runs};
use super::schema::{BOOLEAN, BYTE_ARRAY, Leaf};
use super::thrift::{Broken, Reader};
use crate::Encoding;
use crate::{Cell, PackedCell};
use forebay_dataset::error::DatasetError;
use forebay_index::window::{MAX_PART_BYTES, Window};
use forebay_storage::codec::Codec;
use forebay_storage::location::Packed;

const UNCOMPRESSED: i64 = 0;
/// The names of codecs, by Parquet's numbers.
const CODECS: [&str; 8] = ["NONE", "SNAPPY", "GZIP", "LZO", "BROTLI", "LZ4", "ZSTD", "LZ4_RAW"];
/// The names of encodings, by Parquet's numbers.
const ENCODINGS: [&str; 10] = [
    "PLAIN",
    "GROUP_VAR_INT",
    "PLAIN_DICTIONARY",
    "RLE",
    "BIT_PACKED",
    "DELTA_BINARY_PACKED",
    "DELTA_LENGTH_BYTE_ARRAY",
    "DELTA_BYTE_ARRAY",
    "RLE_DICTIONARY",
    "BYTE_STREAM_SPLIT",
];
pub(super) const PLAIN: i64 = 0;
const PLAIN_DICTIONARY: i64 = 2;
const RLE: i64 = 3;
const RLE_DICTIONARY: i64 = 8;
/// The read sizes for a page's header, tried in turn: statistics of long values make it long.
const HEADER_BYTES: [u64; 3] = [256, 64 << 10, 16 << 20];
/// Values up to this length are kept in the index, because reading one from a compressed page unpacks the page.
pub(super) const KEPT_VALUE_BYTES: usize = 256;
/// Pages whose values are longer on average are scanned with small reads of the lengths only.
const LONG_VALUE_BYTES: u64 = 4 << 10;

/// A page's header.
#[derive(Debug, Default)]
pub(super) struct Header {
    kind: i64,
    unpacked: u64,
    bytes: u64,
    /// The number of its values, nulls and empty lists.
    pub(super) values: u64,
    pub(super) encoding: i64,
    /// In version 2 pages: the bytes of the uncompressed levels, and whether the values are compressed.
    levels: Option<(u64, u64)>,
    is_packed: bool,
}

impl Header {
    fn parse(reader: &mut Reader<'_>) -> Result<Self, Broken> {
        let size = |reader: &mut Reader<'_>| u64::try_from(reader.integer()?).map_err(|_| Broken);
        let mut header = Self { is_packed: true, ..Self::default() };
        let (mut repetition, mut definition) = (0, 0);
        let mut is_second = false;
        reader.fields(|number, _, reader| {
            match number {
                1 => header.kind = reader.integer()?,
                2 => header.unpacked = size(reader)?,
                3 => header.bytes = size(reader)?,
                5 | 7 => reader.fields(|number, _, reader| {
                    match number {
                        1 => header.values = size(reader)?,
                        2 => header.encoding = reader.integer()?,
                        _ => return Ok(false),
                    }
                    Ok(true)
                })?,
                8 => {
                    is_second = true;
                    reader.fields(|number, kind, reader| {
                        match number {
                            1 => header.values = size(reader)?,
                            4 => header.encoding = reader.integer()?,
                            5 => definition = size(reader)?,
                            6 => repetition = size(reader)?,
                            // A boolean's value is encoded in its type.
                            7 => header.is_packed = kind == super::thrift::TRUE,
                            _ => return Ok(false),
                        }
                        Ok(true)
                    })?;
                }
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        header.levels = is_second.then_some((repetition, definition));
        Ok(header)
    }
}

/// Reads a column chunk.
pub(super) struct Pages<'p, 'f> {
    pub(super) leaf: &'p Leaf,
    pub(super) chunk: &'p Chunk,
    pub(super) window: &'p mut Window<'f>,
    /// A window of small reads, for values that are far apart.
    pub(super) values: &'p mut Window<'f>,
    /// The remaining budget for the file's texts in the index, in bytes.
    pub(super) budget: &'p mut u64,
    /// The maximum number of values of the column in memory.
    pub(super) room: usize,
    /// The reason why its values are not supported; unset if they are damaged.
    pub(super) unread: Option<String>,
}

/// A position in a chunk.
#[derive(Debug)]
pub(super) struct Cursor {
    at: u64,
    end: u64,
    pub(super) dictionary: Option<Runs>,
}

impl Cursor {
    /// The number of values of its dictionary, which are in memory.
    pub(super) fn held(&self) -> usize {
        self.dictionary.as_ref().map_or(0, Runs::held)
    }
}

/// A page of values: its header, and its range in the file.
pub(super) struct Page {
    pub(super) header: Header,
    start: u64,
    end: u64,
}

/// The levels of a page.
pub(super) struct Levels {
    /// Empty if the column is in no list.
    pub(super) repetition: Vec<u8>,
    pub(super) definition: Vec<u8>,
}

/// A page's values: a range of the file, or bytes in memory.
pub(super) enum Source {
    File(u64, u64),
    Memory(Vec<u8>, Option<Place>),
}

/// The location of bytes in memory: in the unpacked bytes of a part of the file.
#[derive(Clone, Copy)]
pub(super) struct Place {
    offset: u64,
    bytes: u64,
    codec: Codec,
    unpacked_bytes: u32,
    /// Where the bytes begin in the unpacked part.
    start: u32,
}

impl Place {
    /// The cell of a value, by its offset and length in the bytes.
    pub(super) fn cell(&self, at: usize, length: usize) -> Cell {
        let &Self { offset, bytes, codec, unpacked_bytes, start } = self;
        let (start, length) = (start + narrow(at), narrow(length));
        let part = Packed { codec, unpacked_bytes, start, length };
        Cell::Packed(PackedCell { offset, bytes, part })
    }
}

impl Pages<'_, '_> {
    pub(super) fn fault(&self, reason: String) -> DatasetError {
        self.window.file.fault(format!("column {}: {reason}", self.leaf.column.column.name))
    }

    /// The error for a page with fewer values than its header says.
    pub(super) fn cut_off(&self) -> DatasetError {
        self.fault("a page ends before its values do".to_owned())
    }

    /// The error for unsupported values. If other columns can be read, the column is left out.
    pub(super) fn not_read(&mut self, reason: String) -> DatasetError {
        let error = self.fault(reason.clone());
        self.unread = Some(reason);
        error
    }

    /// Reads the values of a row group.
    ///
    /// # Errors
    /// A page is damaged, or the storage fails.
    pub(super) fn read(mut self, rows: u64) -> Result<Runs, DatasetError> {
        let alike = |cell: Cell, room: usize| {
            let mut cells = Runs::new(room.max(1));
            // A group has far fewer rows than `u32::MAX`.
            let added = cells.push(cell, u32::try_from(rows).unwrap_or(u32::MAX));
            added.map(|()| cells)
        };
        if matches!(self.leaf.column.column.encoding, Encoding::Unread(_)) {
            return alike(Cell::Null, self.room).map_err(|full| self.full(full));
        }
        let budget = *self.budget;
        let is_of_bytes = self.leaf.column.column.encoding.is_of_byte_lists();
        let read = match self.leaf.lists.is_empty() {
            true => self.read_values(rows),
            false if is_of_bytes => self.read_byte_lists(rows),
            false => self.read_lists(rows),
        };
        match (read, self.unread.take()) {
            (Err(_), Some(reason)) => {
                *self.budget = budget;
                alike(Cell::Unread(reason.into()), self.room).map_err(|full| self.full(full))
            }
            (read, _) => read,
        }
    }

    /// The start of the chunk.
    ///
    /// # Errors
    /// It cannot be read here.
    pub(super) fn cursor(&mut self) -> Result<Cursor, DatasetError> {
        if self.chunk.is_elsewhere {
            let reason = "it lies in another file, or is encrypted; write it into one file without encryption";
            return Err(self.not_read(reason.to_owned()));
        }
        let at = self.chunk.start();
        Ok(Cursor { at, end: at + self.chunk.bytes, dictionary: None })
    }

    /// The next page of values. Reads the dictionary before it.
    ///
    /// # Errors
    /// There is none, or it is damaged.
    pub(super) fn next_page(&mut self, cursor: &mut Cursor) -> Result<Page, DatasetError> {
        loop {
            let (at, end) = (cursor.at, cursor.end);
            let (header, length) = self.header(at, end)?;
            let start = at + length;
            let next = start.checked_add(header.bytes).filter(|next| *next <= end);
            let next = next.ok_or_else(|| {
                self.fault(format!(
                    "its page at byte {at} has {} bytes, and leads out of it",
                    header.bytes
                ))
            })?;
            cursor.at = next;
            match header.kind {
                2 => {
                    if header.values > header.unpacked.saturating_mul(8) {
                        return Err(self.fault("its dictionary is damaged".to_owned()));
                    }
                    let source = self.unpack(&header, start, next)?;
                    let count = usize::try_from(header.values).unwrap_or(usize::MAX);
                    let mut found = Runs::apart(self.room);
                    self.plain(&source, count, self.is_bytes(), &mut found)?;
                    cursor.dictionary = Some(found);
                }
                0 | 3 => return Ok(Page { header, start, end: next }),
                _ => {}
            }
        }
    }

    fn read_values(&mut self, rows: u64) -> Result<Runs, DatasetError> {
        let mut cells = Runs::new(self.room);
        let mut cursor = self.cursor()?;
        while cells.rows() < rows {
            let page = self.next_page(&mut cursor)?;
            let left = rows - cells.rows();
            if page.header.values > left {
                return Err(self.fault(format!(
                    "a page has {} rows, and {left} of its group are left",
                    page.header.values
                )));
            }
            self.page(&page, &cursor, &mut cells)?;
        }
        if let Some(scale) = self.leaf.scale {
            cells.change(|cell| {
                if let Cell::Number { bytes, length } = cell {
                    let scaled = scale.apply(*bytes, *length).ok_or_else(|| {
                        self.fault(
                            "a time does not fit into the unit that the metadata ARROW:schema has of it"
                                .to_owned(),
                        )
                    })?;
                    (*bytes, *length) = scaled;
                }
                Ok::<_, DatasetError>(())
            })?;
        }
        Ok(cells)
    }

    /// Reads a page's header, and gives its length.
    fn header(&mut self, at: u64, end: u64) -> Result<(Header, u64), DatasetError> {
        for most in HEADER_BYTES {
            let size = most.min(end.saturating_sub(at));
            let text = self.window.get(at, size)?;
            let mut reader = Reader { rest: text };
            if let Ok(header) = Header::parse(&mut reader) {
                return Ok((header, size - reader.rest.len() as u64));
            }
            if size < most {
                break;
            }
        }
        Err(self.fault(format!("its page at byte {at} is cut off or damaged")))
    }

    /// The bytes of a page after its levels, unpacked.
    fn unpack(&mut self, header: &Header, start: u64, end: u64) -> Result<Source, DatasetError> {
        let is_packed =
            self.chunk.codec != UNCOMPRESSED && (header.is_packed || self.chunk.is_always_packed);
        if !is_packed {
            return Ok(Source::File(start, end));
        }
        let levels = header.levels.map_or(0, |(one, other)| one.saturating_add(other));
        let unpacked = header.unpacked.checked_sub(levels).ok_or_else(|| self.cut_off())?;
        let most = unpacked.max(end - start);
        let unpacked = usize::try_from(unpacked).ok().filter(|_| most <= MAX_PART_BYTES);
        let unpacked = unpacked.ok_or_else(|| {
            self.not_read(format!(
                "a page of it has {most} bytes, and at most {MAX_PART_BYTES} are read at once; {REWRITE}"
            ))
        })?;
        let Some(codec) = codec_of(self.chunk.codec) else {
            let codec = usize::try_from(self.chunk.codec).ok().and_then(|codec| CODECS.get(codec));
            return Err(self.not_read(format!(
                "its pages are compressed by {}, and SNAPPY, GZIP, BROTLI, ZSTD and LZ4_RAW are read; {REWRITE}",
                codec.unwrap_or(&"a codec that is not known here"),
            )));
        };
        let packed = self.window.get(start, end - start)?;
        let mut bytes = Vec::new();
        // Some writers omit the compressed body of a page without values.
        if packed.is_empty() && unpacked == 0 {
            return Ok(Source::Memory(bytes, None));
        }
        if !codec.unpack(packed, (unpacked, unpacked), &mut bytes) {
            return Err(self.fault("a page cannot be unpacked: it is damaged".to_owned()));
        }
        let unpacked_bytes = narrow(unpacked);
        let place = Place { offset: start, bytes: end - start, codec, unpacked_bytes, start: 0 };
        Ok(Source::Memory(bytes, Some(place)))
    }

    /// Whether its values are bytes, which may be long, and not texts.
    pub(super) fn is_bytes(&self) -> bool {
        let encoding = &self.leaf.column.column.encoding;
        matches!(encoding, Encoding::Bytes | Encoding::Image) || encoding.is_of_byte_lists()
    }

    /// The levels of a page, and its values.
    pub(super) fn levels(&mut self, page: &Page) -> Result<(Levels, Source), DatasetError> {
        let Page { header, start, end } = page;
        let count = usize::try_from(header.values).unwrap_or(usize::MAX);
        let most = u32::try_from(self.leaf.lists.len()).unwrap_or(u32::MAX);
        let (repetition, definition, source) = match header.levels {
            Some((repetition, definition)) => {
                let first = start.checked_add(repetition);
                let values = first.and_then(|first| first.checked_add(definition));
                let (first, values) =
                    first.zip(values).filter(|(_, values)| values <= end).ok_or_else(|| {
                        self.fault("a page's levels are longer than the page".to_owned())
                    })?;
                let repetition = match most {
                    0 => Vec::new(),
                    _ => self.window.get(*start, repetition)?.to_vec(),
                };
                let definition = self.window.get(first, definition)?.to_vec();
                (repetition, definition, self.unpack(header, values, *end)?)
            }
            None => {
                let source = self.unpack(header, *start, *end)?;
                let (repetition, source) = self.take_levels(source, most > 0)?;
                let (definition, source) = self.take_levels(source, self.leaf.level > 0)?;
                (repetition, definition, source)
            }
        };
        let read = |bytes: &[u8], most| hybrid::read_levels(bytes, most, count);
        let repetition = if most == 0 { Ok(Vec::new()) } else { read(&repetition, most) };
        let levels = repetition.and_then(|repetition| {
            Ok(Levels { repetition, definition: read(&definition, self.leaf.level)? })
        });
        Ok((levels.map_err(|reason| self.fault(reason.to_owned()))?, source))
    }

    /// Appends the values of a page's rows.
    fn page(&mut self, page: &Page, cursor: &Cursor, cells: &mut Runs) -> Result<(), DatasetError> {
        let (Levels { definition, .. }, source) = self.levels(page)?;
        let level = u8::try_from(self.leaf.level).unwrap_or(u8::MAX);
        let is_there: Vec<bool> = definition.into_iter().map(|number| number == level).collect();
        let there = is_there.iter().filter(|is| **is).count();
        let values = self.page_values(page, cursor, &source, there)?;
        let mut values = values.into_rows();
        for alike in is_there.chunk_by(|one, next| one == next) {
            let mut left = u32::try_from(alike.len()).unwrap_or(u32::MAX);
            while left > 0 {
                let next = if alike[0] { values.take(left) } else { None };
                let (cell, rows) = next.unwrap_or((Cell::Null, left));
                cells.push(cell, rows).map_err(|full| self.full(full))?;
                left -= rows;
            }
        }
        Ok(())
    }

    /// The values of a page, `there` of them.
    pub(super) fn page_values(
        &mut self,
        page: &Page,
        cursor: &Cursor,
        source: &Source,
        there: usize,
    ) -> Result<Runs, DatasetError> {
        let dictionary = cursor.dictionary.as_ref();
        let mut values = Runs::new(self.room);
        match page.header.encoding {
            PLAIN => self.plain(source, there, true, &mut values)?,
            RLE if self.leaf.stored == BOOLEAN => {
                let bytes = self.bytes(source, 4, u64::MAX)?;
                let numbers = hybrid::read(&bytes, 1, there);
                let numbers = numbers.map_err(|reason| self.fault(reason.to_owned()))?;
                for number in numbers {
                    let cell = Cell::number(&[u8::from(number > 0)]);
                    values.push(cell, 1).map_err(|full| self.full(full))?;
                }
            }
            PLAIN_DICTIONARY | RLE_DICTIONARY => {
                let bytes = self.bytes(source, 0, u64::MAX)?;
                let (width, rest) = bytes.split_first().unwrap_or((&0, &[]));
                let places = hybrid::read(rest, u32::from(*width), there);
                let places = places.map_err(|reason| self.fault(reason.to_owned()))?;
                let cell = |place: &u32| dictionary.and_then(|dictionary| dictionary.get(*place));
                // Counted before the copies: a few bytes can refer to one long text a million times.
                self.keep(places.iter().filter_map(cell).map(kept_bytes).sum())?;
                for place in &places {
                    let cell = cell(place).ok_or_else(|| {
                        self.fault(format!(
                            "a value is not among the {} of its dictionary",
                            dictionary.map_or(0, Runs::rows)
                        ))
                    })?;
                    values.repeat(cell, 1).map_err(|full| self.full(full))?;
                }
            }
            encoding if self.is_by_differences(encoding) => {
                self.by_differences(encoding, source, there, &mut values)?;
            }
            other => {
                return Err(self.not_read(format!(
                    "it is {}, whose values have the encoding {} here, which is not read for this type; {REWRITE}",
                    self.leaf.type_name(),
                    encoding_name(other)
                )));
            }
        }
        Ok(values)
    }

    pub(super) fn full(&self, _: Full) -> DatasetError {
        let bytes = self.window.file.length();
        self.fault(format!(
            "a group of rows has more values that differ from the one before than are held together of a file of {bytes} \
             bytes; name fewer columns in dataset.fields, or write it with row_group_size=100000"
        ))
    }

    /// Subtracts texts from the budget of the index.
    pub(super) fn keep(&mut self, bytes: u64) -> Result<(), DatasetError> {
        *self.budget = self.budget.checked_sub(bytes).ok_or_else(|| {
            self.fault(format!(
                "its texts are compressed, and too long to be kept in the index; {}",
                remedy(&self.leaf.column.column.name)
            ))
        })?;
        Ok(())
    }

    /// Splits levels from a page's values, if it has them.
    fn take_levels(
        &mut self,
        source: Source,
        has_them: bool,
    ) -> Result<(Vec<u8>, Source), DatasetError> {
        if !has_them {
            return Ok((Vec::new(), source));
        }
        let size = self.bytes(&source, 0, 4)?;
        let size = size.first_chunk().map_or(u64::MAX, |size| u64::from(u32::from_le_bytes(*size)));
        let levels = self.bytes(&source, 4, size)?;
        if levels.len() as u64 != size {
            return Err(self.fault("a page's levels are longer than the page".to_owned()));
        }
        Ok((
            levels,
            match source {
                Source::File(start, end) => Source::File(start + 4 + size, end),
                Source::Memory(mut bytes, place) => {
                    let first = usize::try_from(4 + size).unwrap_or(usize::MAX).min(bytes.len());
                    bytes.drain(..first);
                    let start = |place: Place| place.start + narrow(first);
                    let place = place.map(|place| Place { start: start(place), ..place });
                    Source::Memory(bytes, place)
                }
            },
        ))
    }

    /// At most `most` bytes of a source, beginning at `from`.
    pub(super) fn bytes(
        &mut self,
        source: &Source,
        from: u64,
        most: u64,
    ) -> Result<Vec<u8>, DatasetError> {
        Ok(match source {
            Source::File(start, end) => {
                let first = start.saturating_add(from).min(*end);
                self.window.get(first, (end - first).min(most))?.to_vec()
            }
            Source::Memory(bytes, _) => {
                let rest =
                    bytes.get(usize::try_from(from).unwrap_or(usize::MAX)..).unwrap_or_default();
                rest[..rest.len().min(usize::try_from(most).unwrap_or(usize::MAX))].to_vec()
            }
        })
    }

    /// Adds contiguous values. `may_stay`: whether values of variable length may stay in the file.
    fn plain(
        &mut self,
        source: &Source,
        count: usize,
        may_stay: bool,
        values: &mut Runs,
    ) -> Result<(), DatasetError> {
        let width = match self.leaf.stored {
            BOOLEAN => {
                let bytes = self.bytes(source, 0, u64::MAX)?;
                let bit = |place: usize| Some(bytes.get(place / 8)? >> (place % 8) & 1);
                for place in 0..count {
                    let bit = bit(place).ok_or_else(|| self.cut_off())?;
                    values.push(Cell::number(&[bit]), 1).map_err(|full| self.full(full))?;
                }
                return Ok(());
            }
            1 | 4 => 4,
            2 | 5 => 8,
            BYTE_ARRAY => return self.chain(source, count, may_stay, values),
            _ => self.leaf.length,
        };
        let all = width.checked_mul(count as u64).ok_or_else(|| self.cut_off())?;
        if let (Source::File(start, end), true, 9..) = (source, may_stay, width) {
            if all > end - start {
                return Err(self.cut_off());
            }
            let at = |place: u64| Cell::At { offset: start + place * width, length: width };
            let mut all = (0..count as u64).map(at);
            return all.try_for_each(|cell| values.push(cell, 1)).map_err(|full| self.full(full));
        }
        if let (Source::Memory(bytes, Some(place)), true) = (source, may_stay) {
            let width = usize::try_from(width).unwrap_or(usize::MAX);
            if width > KEPT_VALUE_BYTES {
                if all > bytes.len() as u64 {
                    return Err(self.cut_off());
                }
                let mut all = (0..count).map(|value| place.cell(value * width, width));
                return all
                    .try_for_each(|cell| values.push(cell, 1))
                    .map_err(|full| self.full(full));
            }
        }
        let bytes = self.bytes(source, 0, all)?;
        if bytes.len() as u64 != all || width == 0 {
            return Err(self.cut_off());
        }
        let mut all = bytes.chunks_exact(usize::try_from(width).unwrap_or(1)).map(Cell::number);
        all.try_for_each(|cell| values.push(cell, 1)).map_err(|full| self.full(full))
    }

    /// Adds bytes or texts, each preceded by its length.
    fn chain(
        &mut self,
        source: &Source,
        count: usize,
        may_stay: bool,
        values: &mut Runs,
    ) -> Result<(), DatasetError> {
        match source {
            Source::File(start, end) if may_stay => {
                let is_long = (end - start) / (count as u64).max(1) > LONG_VALUE_BYTES;
                let mut at = *start;
                for _ in 0..count {
                    if end - at < 4 {
                        return Err(self.cut_off());
                    }
                    let window = if is_long { &mut *self.values } else { &mut *self.window };
                    let size = window.get(at, 4)?.first_chunk().copied().unwrap_or_default();
                    let length = u64::from(u32::from_le_bytes(size));
                    if length > end - at - 4 {
                        return Err(self.cut_off());
                    }
                    let cell = Cell::At { offset: at + 4, length };
                    values.push(cell, 1).map_err(|full| self.full(full))?;
                    at += 4 + length;
                }
            }
            _ => {
                let held;
                let (bytes, place) = match source {
                    Source::Memory(bytes, place) => (bytes.as_slice(), *place),
                    Source::File(..) => {
                        held = self.bytes(source, 0, u64::MAX)?;
                        (held.as_slice(), None)
                    }
                };
                let place = place.filter(|_| may_stay && self.is_bytes());
                let mut rest = bytes;
                for _ in 0..count {
                    let (size, behind) = rest.split_first_chunk().ok_or_else(|| self.cut_off())?;
                    let length = usize::try_from(u32::from_le_bytes(*size)).unwrap_or(usize::MAX);
                    let at = bytes.len() - behind.len();
                    let (value, behind) =
                        behind.split_at_checked(length).ok_or_else(|| self.cut_off())?;
                    rest = behind;
                    let cell = match place.filter(|_| length > KEPT_VALUE_BYTES) {
                        Some(place) => place.cell(at, length),
                        None => {
                            self.keep(length as u64 + 4)?;
                            Cell::Value(value.to_vec())
                        }
                    };
                    values.push(cell, 1).map_err(|full| self.full(full))?;
                }
            }
        }
        Ok(())
    }
}

/// Converts an offset in an unpacked page, which is far below the limit.
fn narrow(place: usize) -> u32 {
    u32::try_from(place).unwrap_or(u32::MAX)
}

fn kept_bytes(cell: &Cell) -> u64 {
    match cell {
        Cell::Value(value) => value.len() as u64,
        _ => 0,
    }
}

/// Finds a codec by Parquet's number.
fn codec_of(number: i64) -> Option<Codec> {
    Some(match number {
        1 => Codec::Snappy,
        2 => Codec::Gzip,
        4 => Codec::Brotli,
        6 => Codec::Zstd,
        7 => Codec::Lz4,
        _ => return None,
    })
}

/// Python lines that rewrite a file so that its values can be read alone.
pub(super) const REWRITE: &str = "write the file once more: table = pyarrow.parquet.read_table(\"a.parquet\"); \
     pyarrow.parquet.write_table(table, \"b.parquet\", compression=\"none\", use_dictionary=False)";

/// Suggests [`REWRITE`], or leaving out the column.
fn remedy(column: &str) -> String {
    format!("leave {column} out of dataset.fields, or {REWRITE}")
}

/// The name of an encoding by Parquet's number.
fn encoding_name(number: i64) -> String {
    let name = usize::try_from(number).ok().and_then(|number| ENCODINGS.get(number));
    name.map_or_else(|| format!("{number} of Parquet"), |name| (*name).to_owned())
}
