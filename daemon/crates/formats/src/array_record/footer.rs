//! The list of chunks at the end of a file, as in array_record/cpp/array_record_writer.cc and layout.proto.
//!
//! The last block of 64 KiB begins with a chunk whose first record is the postscript; it has the offset of the footer, a
//! chunk whose first record describes the file, and whose other records are the file's chunks in their order:
//!
//! ```text
//! Postscript  1: offset of the footer   2: magic number
//! Chunk       1: offset                 2: bytes of its records   3: records
//! ```

use forebay_storage::riegeli::{self, ChunkHeader};

use super::CHUNK;
use crate::examples::{inner, numbers};
use forebay_dataset::error::DatasetError;
use forebay_index::shards::Extent;
use forebay_index::window::{Bytes, MAX_PART_BYTES, Window, WindowSize};

/// The magic number of the postscript.
const MAGIC: u64 = 0x7193_0e70_4fda_e05e;
/// What of the last block is read. The postscript is shorter.
const POSTSCRIPT_BYTES: u64 = 1 << 10;
/// The most bytes of a footer, stored or unpacked: those of fifty million chunks.
const MAX_FOOTER_BYTES: u64 = 1 << 30;
/// The most bytes of a chunk's entry in a footer, and of the footer's first record.
const MAX_ENTRY_BYTES: u64 = 64;
const MAX_DESCRIPTION_BYTES: u64 = 4 << 10;
/// The most records of a postscript.
const MAX_POSTSCRIPTS: u64 = 16;
/// The most records of a chunk: each has a place in memory while their sizes are read.
const MAX_RECORDS: u64 = 1 << 22;
/// What records that cannot be compressed grow by in a chunk: this share of them, this many bytes, and as many each.
const MAX_GROWTH_SHARE: u64 = 128;
const MAX_GROWTH_BYTES: u64 = 1 << 10;
const MAX_GROWTH_OF_EACH: u64 = 16;
/// What of a chunk has its header, with a block header in it.
const HEAD_BYTES: usize = 64;
/// What of a chunk is read first for the sizes of its records.
const SIZES_BYTES: u64 = 4 << 10;

/// A chunk of a file.
#[derive(Debug)]
pub(super) struct Chunk {
    /// The chunk, and what pads it.
    pub(super) place: Extent,
    pub(super) unpacked_bytes: u64,
    /// Its records, in its unpacked bytes.
    pub(super) records: Vec<Extent>,
}

impl Chunk {
    /// Replaces the buffer by the records, one after the other.
    ///
    /// # Errors
    /// The chunk is damaged, or of another kind.
    pub(super) fn unpack(&self, stored: &[u8], unpacked: &mut Vec<u8>) -> Result<(), String> {
        let at = self.place.offset;
        let head = &stored[..stored.len().min(HEAD_BYTES)];
        refuse_transposed(&riegeli::without_block_headers(head, at), at)?;
        let whole = usize::try_from(self.unpacked_bytes).unwrap_or(usize::MAX);
        match (CHUNK.codec)(self.place).unpack(stored, (whole, whole), unpacked) {
            true => Ok(()),
            false => Err(format!("its chunk at byte {at} is damaged; copy the file again")),
        }
    }
}

fn refuse_transposed(chunk: &[u8], at: u64) -> Result<(), String> {
    match ChunkHeader::read(chunk).is_some_and(|header| header.kind == riegeli::TRANSPOSED) {
        true => Err(format!(
            "its chunk at byte {at} is transposed, which is not read; write the file without the option \"transpose\""
        )),
        false => Ok(()),
    }
}

/// Records one after the other, and their sizes.
type Unpacked = (Vec<u8>, Vec<u64>);

/// The chunks of a file.
pub(super) struct Chunks<'f> {
    window: Window<'f>,
    /// The unpacked footer, and its records that are left.
    footer: Vec<u8>,
    records: std::vec::IntoIter<Extent>,
    /// Where the footer begins.
    end: u64,
    next: Option<Listed>,
    /// Whether a chunk of the file was compared with the list.
    is_compared: bool,
}

/// A chunk as the footer lists it.
#[derive(Debug, Clone, Copy)]
struct Listed {
    offset: u64,
    unpacked_bytes: u64,
    records: u64,
}

impl<'f> Chunks<'f> {
    /// Reads the footer.
    ///
    /// # Errors
    /// The file cannot be read, is cut off, damaged or of another kind.
    pub(super) fn of(file: &'f dyn Bytes, size: WindowSize) -> Result<Self, DatasetError> {
        const OTHER: &str =
            "it is no ArrayRecord file, was not closed by its writer, or is cut off";
        let length = file.length();
        let last = length.checked_sub(riegeli::BLOCK_BYTES).filter(|last| *last > 0);
        let last = last.filter(|last| last.is_multiple_of(riegeli::BLOCK_BYTES));
        let last = last.ok_or_else(|| {
            file.fault(format!(
                "it has {length} bytes, and such a file has whole blocks of 64 KiB, two at least: {OTHER}"
            ))
        })?;
        let mut stored = Vec::new();
        file.read(last, POSTSCRIPT_BYTES, &mut stored)?;
        let end = postscript(&stored, last)
            .ok_or_else(|| file.fault(format!("its last block has no postscript: {OTHER}")))?;
        let footer = read_footer(file, (end, last), &mut stored)?;
        let (footer, sizes) = footer.ok_or_else(|| {
            let reason =
                format!("its list of chunks at byte {end} is damaged; copy the file again");
            file.fault(reason)
        })?;
        let mut records = extents(&sizes).into_iter();
        let described = records.next().and_then(|first| described(slice(&footer, first)?));
        if described.is_some_and(|chunks| chunks != records.len() as u64) {
            return Err(file.fault(format!(
                "its list at byte {end} has {} chunks, and says that it has {}: it is damaged; copy the file again",
                records.len(),
                described.unwrap_or(0)
            )));
        }
        let window = Window::new(file, size);
        let mut chunks = Self { window, footer, records, end, next: None, is_compared: false };
        chunks.next = chunks.listed()?;
        Ok(chunks)
    }

    /// The next chunk with records; `None`: the file has no more.
    ///
    /// # Errors
    /// The list is malformed, or the sizes of the records cannot be read.
    pub(super) fn next(&mut self) -> Result<Option<Chunk>, DatasetError> {
        while let Some(listed) = self.next {
            self.next = self.listed()?;
            let end = self.next.map_or(self.end, |next| next.offset);
            if listed.offset >= end || end > self.end {
                let reason = "a chunk is not before the next one of the list, or not before the list: it is damaged; copy the \
                              file again";
                return Err(self.window.fault(listed.offset, reason));
            }
            let place = Extent { offset: listed.offset, bytes: end - listed.offset };
            if listed.records > 0 {
                return self.chunk(listed, place).map(Some);
            }
        }
        Ok(None)
    }

    /// The next chunk of the list.
    fn listed(&mut self) -> Result<Option<Listed>, DatasetError> {
        let Some(record) = self.records.next() else { return Ok(None) };
        match slice(&self.footer, record).and_then(numbers) {
            Some([offset, unpacked_bytes, records]) => {
                Ok(Some(Listed { offset, unpacked_bytes, records }))
            }
            None => Err(self.window.fault(self.end, "the list of chunks is malformed")),
        }
    }

    fn chunk(&mut self, listed: Listed, place: Extent) -> Result<Chunk, DatasetError> {
        let Listed { offset, unpacked_bytes, records } = listed;
        if unpacked_bytes > MAX_PART_BYTES || records > MAX_RECORDS {
            let reason = format!(
                "a chunk has {records} records of {unpacked_bytes} bytes together, and at most {MAX_RECORDS} of \
                 {MAX_PART_BYTES} are read; write it with a smaller group_size"
            );
            return Err(self.window.fault(offset, &reason));
        }
        let growth = unpacked_bytes / MAX_GROWTH_SHARE + MAX_GROWTH_BYTES;
        let plausible =
            (unpacked_bytes + growth).saturating_add(records.saturating_mul(MAX_GROWTH_OF_EACH));
        // What pads it to the end of a block is a chunk, which can fill the next block.
        let plausible = riegeli::stored_bytes(offset, plausible);
        let most = plausible.saturating_add(2 * riegeli::BLOCK_BYTES);
        // A chunk has a byte for each record at least.
        if place.bytes > most || place.bytes < records {
            let reason = format!(
                "a chunk of {records} records of {unpacked_bytes} bytes together has {} in the file: the list of chunks is \
                 damaged; copy the file again",
                place.bytes
            );
            return Err(self.window.fault(offset, &reason));
        }
        // In a file of single records one is compared, in any other all are.
        let records = match records {
            1 if self.is_compared => vec![Extent { offset: 0, bytes: unpacked_bytes }],
            _ => extents(&self.sizes(listed, place)?),
        };
        self.is_compared = true;
        Ok(Chunk { place, unpacked_bytes, records })
    }

    /// The sizes of a chunk's records.
    fn sizes(&mut self, listed: Listed, place: Extent) -> Result<Vec<u64>, DatasetError> {
        let Extent { offset, bytes } = place;
        let head = self.window.get(offset, bytes.min(SIZES_BYTES))?;
        let head = riegeli::without_block_headers(head, offset);
        let is_listed = ChunkHeader::read(&head).is_some_and(|header| {
            header.records == listed.records && header.unpacked_bytes == listed.unpacked_bytes
        });
        let refused = refuse_transposed(&head, offset);
        let end = riegeli::sizes_end(&head).filter(|_| is_listed);
        let end = end.map(|end| riegeli::stored_bytes(offset, end));
        refused.map_err(|reason| self.window.file.fault(reason))?;
        let found = match end.filter(|end| *end <= bytes.min(MAX_PART_BYTES)) {
            Some(end) => {
                let head = self.window.get(offset, end)?;
                riegeli::record_sizes(&riegeli::without_block_headers(head, offset))
            }
            None => None,
        };
        let reason = "the sizes of a chunk's records are damaged; copy the file again";
        found.ok_or_else(|| self.window.fault(offset, reason))
    }
}

/// The offset of the footer, by the last block; `None`: it is not one of `ArrayRecord`.
fn postscript(stored: &[u8], last: u64) -> Option<u64> {
    let header = ChunkHeader::read(&riegeli::without_block_headers(stored, last))?;
    let is_small = header.unpacked_bytes <= POSTSCRIPT_BYTES && header.records <= MAX_POSTSCRIPTS;
    // It is stored several times.
    let (records, sizes) = is_small.then(|| read_chunk(stored, last, header)).flatten()?;
    let [offset, magic] = numbers(slice(&records, *extents(&sizes).first()?)?)?;
    (magic == MAGIC).then_some(offset)
}

/// The records of the footer, which is between two offsets, and their sizes; `None`: it is damaged.
///
/// # Errors
/// The file cannot be read.
fn read_footer(
    file: &dyn Bytes,
    (start, end): (u64, u64),
    stored: &mut Vec<u8>,
) -> Result<Option<Unpacked>, DatasetError> {
    let Some(most) = end.checked_sub(start) else { return Ok(None) };
    file.read(start, most.min(SIZES_BYTES), stored)?;
    let header = ChunkHeader::read(&riegeli::without_block_headers(stored, start));
    let is_plausible = |header: &ChunkHeader| {
        // A chunk that is listed has a header in the file.
        let entries = header.records.saturating_mul(MAX_ENTRY_BYTES);
        header.records <= start / riegeli::HEADER_BYTES as u64 + 1
            && header.unpacked_bytes <= entries.saturating_add(MAX_DESCRIPTION_BYTES)
            && header.unpacked_bytes <= MAX_FOOTER_BYTES
    };
    let Some(header) = header.filter(is_plausible) else { return Ok(None) };
    let bytes = header.data_bytes.saturating_add(riegeli::HEADER_BYTES as u64);
    let bytes = riegeli::stored_bytes(start, bytes);
    if bytes > most.min(MAX_FOOTER_BYTES) {
        return Ok(None);
    }
    file.read(start, bytes, stored)?;
    Ok(read_chunk(stored, start, header))
}

/// The records of a chunk, and their sizes.
fn read_chunk(stored: &[u8], offset: u64, header: ChunkHeader) -> Option<Unpacked> {
    let (mut records, place) = (Vec::new(), Extent { offset, bytes: stored.len() as u64 });
    let whole = usize::try_from(header.unpacked_bytes).ok()?;
    let is_whole = (CHUNK.codec)(place).unpack(stored, (whole, whole), &mut records);
    let sizes = riegeli::record_sizes(&riegeli::without_block_headers(stored, offset))?;
    is_whole.then_some((records, sizes))
}

/// The chunks of a file, by the record that describes it; `None`: it does not say.
fn described(record: &[u8]) -> Option<u64> {
    let [_version, chunks] = numbers(inner(record, 1)?)?;
    Some(chunks)
}

/// The bytes of a record.
pub(super) fn slice(records: &[u8], at: Extent) -> Option<&[u8]> {
    let [offset, bytes] = [at.offset, at.bytes].map(|number| usize::try_from(number).ok());
    records.get(offset?..)?.get(..bytes?)
}

/// Records one after the other.
fn extents(sizes: &[u64]) -> Vec<Extent> {
    let mut offset = 0;
    let extent = |bytes: &u64| {
        offset += bytes;
        Extent { offset: offset - bytes, bytes: *bytes }
    };
    sizes.iter().map(extent).collect()
}
