//! The pages of a column: what each row has.
//!
//! A page is a header and its bytes: the levels, which say which rows have a value, then the values. Of pages that are
//! neither compressed nor encoded by a dictionary, bytes and text stay where they lie. Of compressed ones, bytes that are
//! long stay in their page; all other values are kept ([`Cell`]).

use super::footer::{BOOLEAN, BYTE_ARRAY, Chunk, Leaf};
use super::hybrid;
use super::thrift::{Broken, Reader};
use crate::codec::Codec;
use crate::dataset::error::DatasetError;
use crate::dataset::records::Encoding;
use crate::dataset::tables::{Cell, MAX_PART_BYTES, PackedCell, Window};
use crate::location::Packed;

const UNCOMPRESSED: i64 = 0;
/// The names of ways to compress, by Parquet's numbers.
const CODECS: [&str; 8] = ["NONE", "SNAPPY", "GZIP", "LZO", "BROTLI", "LZ4", "ZSTD", "LZ4_RAW"];
const PLAIN: i64 = 0;
const PLAIN_DICTIONARY: i64 = 2;
const RLE: i64 = 3;
const RLE_DICTIONARY: i64 = 8;
/// What is read of a page's header at first, and at most: statistics of long values make it long.
const HEADER_BYTES: [u64; 3] = [256, 64 << 10, 16 << 20];
/// Values of no more bytes are kept rather than looked for in a compressed page, which is read for each sample anew.
pub(super) const KEPT_VALUE_BYTES: usize = 256;
/// Values of more bytes are read one by one, not in pieces of the file.
const LONG_VALUE_BYTES: u64 = 4 << 10;

/// A page's header.
#[derive(Debug, Default)]
struct Header {
    kind: i64,
    unpacked: u64,
    bytes: u64,
    values: u64,
    encoding: i64,
    /// Of the second version: the bytes of the levels, which stand uncompressed in front, and whether the rest is packed.
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
                            // A truth value is its type.
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

/// A part of a column while it is read.
pub(super) struct Pages<'p, 'f> {
    pub(super) leaf: &'p Leaf,
    pub(super) chunk: &'p Chunk,
    pub(super) window: &'p mut Window<'f>,
    /// Of small pieces, for values that lie far apart.
    pub(super) values: &'p mut Window<'f>,
    /// How many bytes of packed texts may still be kept of the file.
    pub(super) budget: &'p mut u64,
}

/// A page's values: in the file from one byte to before another, or in memory.
pub(super) enum Source {
    File(u64, u64),
    Memory(Vec<u8>, Option<Place>),
}

/// Where bytes in memory lie: in what a part of the file unpacks to.
#[derive(Clone, Copy)]
pub(super) struct Place {
    offset: u64,
    bytes: u64,
    codec: Codec,
    unpacked_bytes: u32,
    /// Of the first of the bytes.
    start: u32,
}

impl Place {
    /// A value's cell, by its first byte and its length in the bytes.
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

    /// What the rows of a group have.
    ///
    /// # Errors
    /// Pages that are broken or not read, or as the storage has it.
    pub(super) fn read(&mut self, rows: u64) -> Result<Vec<Cell>, DatasetError> {
        let mut cells = Vec::new();
        if matches!(self.leaf.column.column.encoding, Encoding::Unread(_)) {
            cells.resize(usize::try_from(rows).unwrap_or(0), Cell::Null);
            return Ok(cells);
        }
        let mut dictionary = None;
        let (mut at, end) = (self.chunk.start(), self.chunk.start() + self.chunk.bytes);
        while (cells.len() as u64) < rows {
            let (header, length) = self.header(at, end)?;
            let start = at + length;
            at = start.checked_add(header.bytes).filter(|next| *next <= end).ok_or_else(|| {
                self.fault(format!(
                    "its page at byte {at} has {} bytes, and leads out of it",
                    header.bytes
                ))
            })?;
            match header.kind {
                2 => {
                    if header.values > header.unpacked.saturating_mul(8) {
                        return Err(self.fault("its dictionary is damaged".to_owned()));
                    }
                    let source = self.unpack(&header, start, at)?;
                    let count = usize::try_from(header.values).unwrap_or(usize::MAX);
                    dictionary = Some(self.plain(&source, count, self.is_bytes())?);
                }
                0 | 3 => {
                    let left = rows - cells.len() as u64;
                    if header.values > left {
                        return Err(self.fault(format!(
                            "a page has {} rows, and {left} of its group are left",
                            header.values
                        )));
                    }
                    self.page(&header, start, at, dictionary.as_deref(), &mut cells)?;
                }
                _ => {}
            }
        }
        Ok(cells)
    }

    /// A page's header, and its bytes.
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

    /// The bytes of a page behind its levels, unpacked.
    fn unpack(&mut self, header: &Header, start: u64, end: u64) -> Result<Source, DatasetError> {
        let is_packed = self.chunk.codec != UNCOMPRESSED && header.is_packed;
        if !is_packed {
            return Ok(Source::File(start, end));
        }
        let levels = header.levels.map_or(0, |(one, other)| one.saturating_add(other));
        let unpacked = header.unpacked.checked_sub(levels).filter(|bytes| *bytes <= MAX_PART_BYTES);
        let unpacked = unpacked.and_then(|bytes| usize::try_from(bytes).ok()).ok_or_else(|| {
            self.fault(format!(
                "a page unpacks to {} bytes, and at most {MAX_PART_BYTES} are read",
                header.unpacked
            ))
        })?;
        let Some(codec) = codec_of(self.chunk.codec) else {
            let codec = usize::try_from(self.chunk.codec).ok().and_then(|codec| CODECS.get(codec));
            return Err(self.fault(format!(
                "its pages are compressed by {}, and SNAPPY, GZIP, BROTLI, ZSTD and LZ4_RAW are read; {}",
                codec.unwrap_or(&"a codec that is not known here"),
                remedy(&self.leaf.column.column.name)
            )));
        };
        let packed = self.window.get(start, end - start)?;
        let mut bytes = Vec::new();
        if !codec.unpack(packed, (unpacked, unpacked), &mut bytes) {
            return Err(self.fault("a page cannot be unpacked: it is damaged".to_owned()));
        }
        let unpacked_bytes = narrow(unpacked);
        let place = Place { offset: start, bytes: end - start, codec, unpacked_bytes, start: 0 };
        Ok(Source::Memory(bytes, Some(place)))
    }

    /// Whether its values are bytes, which may be long, and not texts.
    pub(super) fn is_bytes(&self) -> bool {
        matches!(self.leaf.column.column.encoding, Encoding::Bytes | Encoding::Image)
    }

    /// Appends what the rows of a page have.
    fn page(
        &mut self,
        header: &Header,
        start: u64,
        end: u64,
        dictionary: Option<&[Cell]>,
        cells: &mut Vec<Cell>,
    ) -> Result<(), DatasetError> {
        let count = usize::try_from(header.values).unwrap_or(usize::MAX);
        let (levels, source) = match header.levels {
            Some((repetition, definition)) => {
                let first = start.checked_add(repetition);
                let values = first.and_then(|first| first.checked_add(definition));
                let (first, values) =
                    first.zip(values).filter(|(_, values)| *values <= end).ok_or_else(|| {
                        self.fault("a page's levels are longer than the page".to_owned())
                    })?;
                let levels = self.window.get(first, definition)?.to_vec();
                (levels, self.unpack(header, values, end)?)
            }
            None => {
                let source = self.unpack(header, start, end)?;
                self.take_levels(source)?
            }
        };
        let is_there: Vec<bool> = match self.leaf.level {
            0 => vec![true; count],
            level => {
                let width = u32::BITS - level.leading_zeros();
                let numbers = hybrid::read(&levels, width, count);
                let numbers = numbers.map_err(|reason| self.fault(reason.to_owned()))?;
                numbers.into_iter().map(|number| number == level).collect()
            }
        };
        let there = is_there.iter().filter(|is| **is).count();
        let values = match header.encoding {
            PLAIN => self.plain(&source, there, true)?,
            RLE if self.leaf.stored == BOOLEAN => {
                let bytes = self.bytes(&source, 4, u64::MAX)?;
                let numbers = hybrid::read(&bytes, 1, there);
                let numbers = numbers.map_err(|reason| self.fault(reason.to_owned()))?;
                let cell = |number: u32| Cell::number(&[u8::from(number > 0)]);
                numbers.into_iter().map(cell).collect()
            }
            PLAIN_DICTIONARY | RLE_DICTIONARY => {
                let dictionary = dictionary.unwrap_or_default();
                let bytes = self.bytes(&source, 0, u64::MAX)?;
                let (width, rest) = bytes.split_first().unwrap_or((&0, &[]));
                let places = hybrid::read(rest, u32::from(*width), there);
                let places = places.map_err(|reason| self.fault(reason.to_owned()))?;
                let found = || places.iter().map(|place| dictionary.get(*place as usize));
                // Before they are copied: a few bytes can ask for the same long text a million times.
                self.keep(found().flatten().map(kept_bytes).sum())?;
                let found: Option<Vec<Cell>> = found().map(|cell| cell.cloned()).collect();
                found.ok_or_else(|| {
                    self.fault(format!(
                        "a value is not among the {} of its dictionary",
                        dictionary.len()
                    ))
                })?
            }
            encoding if self.is_by_differences(encoding) => {
                self.by_differences(encoding, &source, there)?
            }
            other => {
                return Err(self.fault(format!(
                    "its values have the encoding {other} of Parquet, which is not read for their type; {}",
                    remedy(&self.leaf.column.column.name)
                )));
            }
        };
        let mut values = values.into_iter();
        cells.extend(is_there.into_iter().map(|is_there| match is_there {
            true => values.next().unwrap_or(Cell::Null),
            false => Cell::Null,
        }));
        Ok(())
    }

    /// Counts texts that are kept.
    pub(super) fn keep(&mut self, bytes: u64) -> Result<(), DatasetError> {
        *self.budget = self.budget.checked_sub(bytes).ok_or_else(|| {
            self.fault(format!(
                "its texts are compressed, and too long to be kept in the index; {}",
                remedy(&self.leaf.column.column.name)
            ))
        })?;
        Ok(())
    }

    /// The levels in front of a page's values, and the values.
    fn take_levels(&mut self, source: Source) -> Result<(Vec<u8>, Source), DatasetError> {
        if self.leaf.level == 0 {
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

    /// Bytes of a source from a place on, at most so many.
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

    /// Values one behind the other. `may_stay`: whether those of any length may stay where they lie.
    fn plain(
        &mut self,
        source: &Source,
        count: usize,
        may_stay: bool,
    ) -> Result<Vec<Cell>, DatasetError> {
        let cut = |pages: &Self| pages.fault("a page ends before its values do".to_owned());
        let width = match self.leaf.stored {
            BOOLEAN => {
                let bytes = self.bytes(source, 0, u64::MAX)?;
                let bit = |place: usize| Some(bytes.get(place / 8)? >> (place % 8) & 1);
                let cells = (0..count).map(|place| bit(place).map(|bit| Cell::number(&[bit])));
                return cells.collect::<Option<_>>().ok_or_else(|| cut(self));
            }
            1 | 4 => 4,
            2 | 5 => 8,
            BYTE_ARRAY => return self.chain(source, count, may_stay),
            _ => self.leaf.length,
        };
        let all = width.checked_mul(count as u64).ok_or_else(|| cut(self))?;
        if let (Source::File(start, end), true, 9..) = (source, may_stay, width) {
            if all > end - start {
                return Err(cut(self));
            }
            let at = |place: u64| Cell::At { offset: start + place * width, length: width };
            return Ok((0..count as u64).map(at).collect());
        }
        if let (Source::Memory(bytes, Some(place)), true) = (source, may_stay) {
            let width = usize::try_from(width).unwrap_or(usize::MAX);
            if width > KEPT_VALUE_BYTES {
                if all > bytes.len() as u64 {
                    return Err(cut(self));
                }
                return Ok((0..count).map(|value| place.cell(value * width, width)).collect());
            }
        }
        let bytes = self.bytes(source, 0, all)?;
        if bytes.len() as u64 != all || width == 0 {
            return Err(cut(self));
        }
        Ok(bytes.chunks_exact(usize::try_from(width).unwrap_or(1)).map(Cell::number).collect())
    }

    /// Bytes or texts, each behind its length.
    fn chain(
        &mut self,
        source: &Source,
        count: usize,
        may_stay: bool,
    ) -> Result<Vec<Cell>, DatasetError> {
        let cut = |pages: &Self| pages.fault("a page ends before its values do".to_owned());
        let mut cells = Vec::new();
        match source {
            Source::File(start, end) if may_stay => {
                let is_long = (end - start) / (count as u64).max(1) > LONG_VALUE_BYTES;
                let mut at = *start;
                for _ in 0..count {
                    if end - at < 4 {
                        return Err(cut(self));
                    }
                    let window = if is_long { &mut *self.values } else { &mut *self.window };
                    let size = window.get(at, 4)?.first_chunk().copied().unwrap_or_default();
                    let length = u64::from(u32::from_le_bytes(size));
                    if length > end - at - 4 {
                        return Err(cut(self));
                    }
                    cells.push(Cell::At { offset: at + 4, length });
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
                    let (size, behind) = rest.split_first_chunk().ok_or_else(|| cut(self))?;
                    let length = usize::try_from(u32::from_le_bytes(*size)).unwrap_or(usize::MAX);
                    let at = bytes.len() - behind.len();
                    let (value, behind) =
                        behind.split_at_checked(length).ok_or_else(|| cut(self))?;
                    rest = behind;
                    cells.push(match place.filter(|_| length > KEPT_VALUE_BYTES) {
                        Some(place) => place.cell(at, length),
                        None => {
                            self.keep(length as u64 + 4)?;
                            Cell::Value(value.to_vec())
                        }
                    });
                }
            }
        }
        Ok(cells)
    }
}

/// A place in what a page unpacks to, which is far smaller.
fn narrow(place: usize) -> u32 {
    u32::try_from(place).unwrap_or(u32::MAX)
}

fn kept_bytes(cell: &Cell) -> u64 {
    match cell {
        Cell::Value(value) => value.len() as u64,
        _ => 0,
    }
}

/// By Parquet's number.
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

/// The lines that write a file so that its values can be read alone.
pub(super) fn remedy(column: &str) -> String {
    format!(
        "leave {column} out of dataset.fields, or write the file once more: table = pyarrow.parquet.read_table(\"a.parquet\"); \
         pyarrow.parquet.write_table(table, \"b.parquet\", compression=\"none\", use_dictionary=False)"
    )
}
