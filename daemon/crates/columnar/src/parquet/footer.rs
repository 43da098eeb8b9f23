//! The footer of a Parquet file: its columns and the locations of their parts.

use super::elements::{check_names, element};
use super::schema::{Schema, Written};
use super::thrift::{Broken, Reader};
use super::times::ARROW_SCHEMA;
use crate::{Features, HUGGINGFACE, MAX_COLUMNS};
use forebay_dataset::error::DatasetError;
use forebay_index::window::{Bytes, MAX_PART_BYTES, Window};

const MAGIC: &[u8; 4] = b"PAR1";
const ENCRYPTED: &[u8; 4] = b"PARE";
/// The maximum number of columns and their enclosing groups: a list has two groups.
const MAX_ELEMENTS: u64 = 4 * MAX_COLUMNS;
/// The maximum number of row groups.
const MAX_GROUPS: u64 = 1 << 20;
/// The maximum number of entries of the metadata.
const MAX_ENTRIES: u64 = 1 << 16;
/// The maximum rows of a row group, which are processed together.
const MAX_GROUP_ROWS: u64 = 8 << 20;
/// The maximum rows per byte, in a file of more rows than [`MAX_GROUP_ROWS`].
const MAX_ROWS_PER_BYTE: u64 = 64;

/// A column chunk: the pages of a row group.
#[derive(Debug, Clone, Default)]
pub(super) struct Chunk {
    pub(super) codec: i64,
    /// The number of its values, nulls and empty lists.
    pub(super) values: u64,
    pub(super) data: u64,
    pub(super) dictionary: Option<u64>,
    pub(super) bytes: u64,
    pub(super) unpacked: u64,
    /// Whether it is in another file, or encrypted.
    pub(super) is_elsewhere: bool,
    /// Whether pages are compressed although their headers deny it.
    pub(super) is_always_packed: bool,
}

#[derive(Debug, Default)]
pub(super) struct Group {
    pub(super) rows: u64,
    pub(super) chunks: Vec<Chunk>,
}

#[derive(Debug)]
pub(super) struct Footer {
    pub(super) schema: Schema,
    pub(super) groups: Vec<Group>,
}

impl Footer {
    /// # Errors
    /// Describes a fault of the file, or an unsupported feature.
    pub(super) fn read(window: &mut Window<'_>) -> Result<Self, DatasetError> {
        let file = window.file;
        let length = file.length();
        if length < 12 {
            return Err(file.fault(format!("it has {length} bytes, and is no Parquet file")));
        }
        let tail = window.get(length - 8, 8)?.to_vec();
        if tail.ends_with(ENCRYPTED) {
            return Err(file.fault("it is encrypted; write it without".to_owned()));
        }
        if !tail.ends_with(MAGIC) {
            return Err(
                file.fault("it does not end as a Parquet file does: it is cut off".to_owned())
            );
        }
        let size = tail.first_chunk().map_or(0, |bytes| u64::from(u32::from_le_bytes(*bytes)));
        let start = (length - 8).checked_sub(size).ok_or_else(|| {
            file.fault(format!("its footer is to have {size} bytes, and the file has {length}"))
        })?;
        if size > MAX_PART_BYTES {
            return Err(file.fault(format!(
                "its footer has {size} bytes, and at most {MAX_PART_BYTES} are read; write larger row groups, or several files"
            )));
        }
        let text = window.get(start, size)?.to_vec();
        let footer = Self::parse(&text).map_err(|_| file.fault("its footer is damaged".to_owned()));
        let footer = footer.and_then(|footer| footer.map_err(|reason| file.fault(reason)))?;
        footer.check(file, start)?;
        Ok(footer)
    }

    fn parse(text: &[u8]) -> Result<Result<Self, String>, Broken> {
        let (mut schema, mut groups, mut features) = (Vec::new(), Vec::new(), None);
        let mut written = Written::default();
        let (mut elements, mut denies_compression) = (0, false);
        let (mut all_groups, mut entries) = (0, 0);
        Reader { rest: text }.fields(|number, _, reader| {
            match number {
                2 => {
                    elements = reader.count()? as u64;
                    if elements > MAX_ELEMENTS {
                        return Ok(false);
                    }
                    schema = reader.elements(element)?;
                }
                4 => {
                    all_groups = reader.count()? as u64;
                    if all_groups > MAX_GROUPS {
                        return Ok(false);
                    }
                    groups = reader.elements(group)?;
                }
                6 => denies_compression = is_of_old_arrow(reader.bytes()?),
                5 => {
                    entries = reader.count()? as u64;
                    if entries > MAX_ENTRIES {
                        return Ok(false);
                    }
                    for (key, value) in reader.elements(key_value)? {
                        if key == HUGGINGFACE.as_bytes() {
                            let text = std::str::from_utf8(value).ok();
                            features = text.and_then(Features::parse);
                        }
                        if key == ARROW_SCHEMA {
                            written = Written::parse(value);
                        }
                    }
                }
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        if elements > MAX_ELEMENTS {
            return Ok(Err(format!(
                "its schema has {elements} columns and groups of them, and at most {MAX_ELEMENTS} are read"
            )));
        }
        if all_groups > MAX_GROUPS {
            return Ok(Err(format!(
                "it has {all_groups} row groups, and at most {MAX_GROUPS} are read; write larger ones, or several files"
            )));
        }
        if entries > MAX_ENTRIES {
            return Ok(Err(format!(
                "its metadata has {entries} entries, and at most {MAX_ENTRIES} are read; write it without"
            )));
        }
        if let Err(reason) = check_names(&schema) {
            return Ok(Err(reason));
        }
        let schema = Schema::new(schema, Features::new(features.as_ref()), &written)?;
        let count = schema.stored;
        let chunks = groups.iter_mut().flat_map(|group: &mut Group| &mut group.chunks);
        chunks.for_each(|chunk| chunk.is_always_packed = denies_compression);
        if groups.iter().any(|group| group.chunks.len() != count) {
            return Ok(Err(format!("a group of rows has not the {count} columns of its schema")));
        }
        Ok(Ok(Self { schema, groups }))
    }

    /// Checks that its parts are in the file, before the footer.
    fn check(&self, file: &dyn Bytes, start: u64) -> Result<(), DatasetError> {
        let rows = self.groups.iter().try_fold(0_u64, |all, group| all.checked_add(group.rows));
        let most = start.saturating_mul(MAX_ROWS_PER_BYTE).max(MAX_GROUP_ROWS);
        if let Some(group) = self.groups.iter().find(|group| group.rows > MAX_GROUP_ROWS) {
            return Err(file.fault(format!(
                "a group has {} rows, and at most {MAX_GROUP_ROWS} are read; write it with row_group_size=1000000",
                group.rows
            )));
        }
        if rows.is_none_or(|rows| rows > most) {
            return Err(
                file.fault(format!("it has {start} bytes, and says that it has {rows:?} rows"))
            );
        }
        let chunks = self.groups.iter().flat_map(|group| &group.chunks);
        for chunk in chunks.filter(|chunk| !chunk.is_elsewhere) {
            let end = chunk.start().checked_add(chunk.bytes);
            if end.is_none_or(|end| end > start) {
                return Err(file.fault(format!(
                    "a column's {} bytes are to be at byte {}, and its footer begins at {start}",
                    chunk.bytes,
                    chunk.start()
                )));
            }
        }
        Ok(())
    }
}

impl Chunk {
    /// The offset of its first page.
    pub(super) fn start(&self) -> u64 {
        self.dictionary.filter(|place| *place > 0).map_or(self.data, |place| place.min(self.data))
    }
}

pub(super) fn size(reader: &mut Reader<'_>) -> Result<u64, Broken> {
    u64::try_from(reader.integer()?).map_err(|_| Broken)
}

fn key_value<'a>(reader: &mut Reader<'a>) -> Result<(&'a [u8], &'a [u8]), Broken> {
    let (mut key, mut value) = (&[][..], &[][..]);
    reader.fields(|number, _, reader| {
        match number {
            1 => key = reader.bytes()?,
            2 => value = reader.bytes()?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok((key, value))
}

fn group(reader: &mut Reader<'_>) -> Result<Group, Broken> {
    let mut group = Group::default();
    reader.fields(|number, _, reader| {
        match number {
            // A group with more chunks than a schema has columns is damaged.
            1 if reader.count()? as u64 > MAX_ELEMENTS => return Err(Broken),
            1 => group.chunks = reader.elements(chunk)?,
            3 => group.rows = size(reader)?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok(group)
}

/// Whether the writer is Arrow before version 3, which compressed version 2 pages but marked them as uncompressed.
fn is_of_old_arrow(created_by: &[u8]) -> bool {
    let version = ["parquet-cpp version ", "parquet-cpp-arrow version "]
        .iter()
        .find_map(|name| created_by.strip_prefix(name.as_bytes()));
    matches!(version, Some([b'0'..=b'2', b'.', ..]))
}

fn chunk(reader: &mut Reader<'_>) -> Result<Chunk, Broken> {
    let mut chunk = Chunk::default();
    let mut has_meta = false;
    reader.fields(|number, _, reader| {
        match number {
            1 => chunk.is_elsewhere |= !reader.bytes()?.is_empty(),
            3 => {
                has_meta = true;
                reader.fields(|number, _, reader| {
                    match number {
                        4 => chunk.codec = reader.integer()?,
                        5 => chunk.values = size(reader)?,
                        6 => chunk.unpacked = size(reader)?,
                        7 => chunk.bytes = size(reader)?,
                        9 => chunk.data = size(reader)?,
                        11 => chunk.dictionary = Some(size(reader)?),
                        _ => return Ok(false),
                    }
                    Ok(true)
                })?;
            }
            8 => {
                chunk.is_elsewhere = true;
                return Ok(false);
            }
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    if !has_meta && !chunk.is_elsewhere {
        return Err(Broken);
    }
    chunk.is_elsewhere |= !has_meta;
    Ok(chunk)
}
