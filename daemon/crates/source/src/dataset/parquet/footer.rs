//! What stands at the end of a Parquet file: its columns, and where the parts of each lie.

use super::thrift::{Broken, Reader};
use crate::dataset::error::DatasetError;
use crate::dataset::records::Encoding;
use crate::dataset::tables::{Bytes, Feature, Features, HUGGINGFACE, TableColumn, Window};

const MAGIC: &[u8; 4] = b"PAR1";
const ENCRYPTED: &[u8; 4] = b"PARE";
/// Groups within groups.
const MAX_DEPTH: usize = 32;
/// Rows that a group may have: they are looked at together.
const MAX_GROUP_ROWS: u64 = 8 << 20;
/// Rows that a byte may stand for, in a file of more than a group's rows.
const MAX_ROWS_PER_BYTE: u64 = 64;

/// A number's type, by Parquet's number for it.
pub(super) const BOOLEAN: i64 = 0;
pub(super) const BYTE_ARRAY: i64 = 6;

/// A column that is stored.
#[derive(Debug, Clone)]
pub(super) struct Leaf {
    pub(super) column: TableColumn,
    /// Its place among the columns of a group of rows.
    pub(super) place: usize,
    /// The type that values have in the file, and of bytes of a fixed length how many.
    pub(super) stored: i64,
    pub(super) length: u64,
    /// The level of a value that is there; 0: all are.
    pub(super) level: u32,
}

/// A part of a column: the pages of a group of rows.
#[derive(Debug, Clone, Default)]
pub(super) struct Chunk {
    pub(super) codec: i64,
    pub(super) data: u64,
    pub(super) dictionary: Option<u64>,
    pub(super) bytes: u64,
    pub(super) unpacked: u64,
    /// Whether it lies in another file, or is encrypted.
    is_elsewhere: bool,
}

#[derive(Debug, Default)]
pub(super) struct Group {
    pub(super) rows: u64,
    pub(super) chunks: Vec<Chunk>,
}

#[derive(Debug)]
pub(super) struct Footer {
    pub(super) leaves: Vec<Leaf>,
    pub(super) groups: Vec<Group>,
}

/// A column of the schema, or a group of them.
#[derive(Debug, Default)]
struct Element {
    stored: i64,
    length: u64,
    repetition: i64,
    name: String,
    children: usize,
    converted: Option<i64>,
    logical: i64,
}

impl Footer {
    /// # Errors
    /// What is wrong with it, or what is not read.
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
        let text = window.get(start, size)?.to_vec();
        let footer = Self::parse(&text).map_err(|_| file.fault("its footer is damaged".to_owned()));
        let footer = footer.and_then(|footer| footer.map_err(|reason| file.fault(reason)))?;
        footer.check(file, start)?;
        Ok(footer)
    }

    fn parse(text: &[u8]) -> Result<Result<Self, String>, Broken> {
        let (mut schema, mut groups, mut features) = (Vec::new(), Vec::new(), None);
        Reader { rest: text }.fields(|number, _, reader| {
            match number {
                2 => schema = reader.elements(element)?,
                4 => groups = reader.elements(group)?,
                5 => {
                    for (key, value) in reader.elements(key_value)? {
                        if key == HUGGINGFACE.as_bytes() {
                            let text = std::str::from_utf8(&value).ok();
                            features = text.and_then(Features::parse);
                        }
                    }
                }
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        let mut found = Found { elements: schema.into_iter(), leaves: Vec::new(), next: 0 };
        let root = found.elements.next().ok_or(Broken)?;
        let features = Features::new(features.as_ref());
        for _ in 0..root.children {
            found.add("", features, 0, 0, 0)?;
        }
        let (leaves, count) = (found.leaves, found.next);
        if groups.iter().any(|group| group.chunks.len() != count) {
            return Ok(Err(format!("a group of rows has not the {count} columns of its schema")));
        }
        Ok(Ok(Self { leaves, groups }))
    }

    /// Its parts must lie in the file, before the footer.
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
        for chunk in self.groups.iter().flat_map(|group| &group.chunks) {
            let end = chunk.start().checked_add(chunk.bytes);
            if end.is_none_or(|end| end > start) {
                return Err(file.fault(format!(
                    "a column's {} bytes are to be at byte {}, and its footer begins at {start}",
                    chunk.bytes,
                    chunk.start()
                )));
            }
            if chunk.is_elsewhere {
                return Err(file.fault("a column lies in another file, or is encrypted".to_owned()));
            }
        }
        Ok(())
    }
}

impl Chunk {
    /// Where its first page begins.
    pub(super) fn start(&self) -> u64 {
        self.dictionary.filter(|place| *place > 0).map_or(self.data, |place| place.min(self.data))
    }
}

fn size(reader: &mut Reader<'_>) -> Result<u64, Broken> {
    u64::try_from(reader.integer()?).map_err(|_| Broken)
}

fn element(reader: &mut Reader<'_>) -> Result<Element, Broken> {
    let mut element = Element { stored: -1, ..Element::default() };
    reader.fields(|number, _, reader| {
        match number {
            1 => element.stored = reader.integer()?,
            2 => element.length = size(reader)?,
            3 => element.repetition = reader.integer()?,
            4 => element.name = reader.text()?,
            5 => element.children = usize::try_from(size(reader)?).map_err(|_| Broken)?,
            6 => element.converted = Some(reader.integer()?),
            // A union, of which one field is there.
            10 => reader.fields(|number, _, _| {
                element.logical = number;
                Ok(false)
            })?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok(element)
}

fn key_value<'a>(reader: &mut Reader<'a>) -> Result<(&'a [u8], Vec<u8>), Broken> {
    let (mut key, mut value) = (&[][..], Vec::new());
    reader.fields(|number, _, reader| {
        match number {
            1 => key = reader.bytes()?,
            2 => value = reader.bytes()?.to_vec(),
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
            1 => group.chunks = reader.elements(chunk)?,
            3 => group.rows = size(reader)?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok(group)
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
    chunk.is_elsewhere |= !has_meta;
    Ok(chunk)
}

/// The columns of a schema, which lists each group before what is in it.
struct Found {
    elements: std::vec::IntoIter<Element>,
    leaves: Vec<Leaf>,
    /// The place of the next stored column.
    next: usize,
}

impl Found {
    /// Adds the next element and those in it: `level` is that of a value that is there, `lists` how many it lies in.
    fn add(
        &mut self,
        above: &str,
        features: Features<'_>,
        level: u32,
        lists: usize,
        depth: usize,
    ) -> Result<(), Broken> {
        let element = self.elements.next().ok_or(Broken)?;
        if depth == MAX_DEPTH {
            return Err(Broken);
        }
        let features = features.child(&element.name);
        let name = match above {
            "" => element.name.clone(),
            above => format!("{above}.{}", element.name),
        };
        let level = level + u32::from(element.repetition > 0);
        let lists = lists + usize::from(element.repetition == 2);
        if element.children == 0 {
            self.push(&element, name, &features.feature(), level, lists);
            return Ok(());
        }
        let (first, place) = (self.leaves.len(), self.next);
        for _ in 0..element.children {
            self.add(&name, features, level, lists, depth + 1)?;
        }
        let is_picture = |leaves: &[Leaf]| match leaves {
            [bytes, path] => {
                let names = (format!("{name}.bytes"), format!("{name}.path"));
                (&bytes.column.column.name, &path.column.column.name) == (&names.0, &names.1)
                    && bytes.column.column.encoding == Encoding::Bytes
            }
            _ => false,
        };
        if is_picture(&self.leaves[first..]) && self.next == place + 2 {
            self.leaves.truncate(first + 1);
            let is_image = features.feature() == Feature::Image;
            let leaf = &mut self.leaves[first].column;
            leaf.column.name = name;
            leaf.is_known = is_image;
            if is_image {
                leaf.column.encoding = Encoding::Image;
            }
        }
        Ok(())
    }

    fn push(
        &mut self,
        element: &Element,
        name: String,
        feature: &Feature,
        level: u32,
        lists: usize,
    ) {
        let number = |name: &str| Encoding::Number(name.to_owned());
        let unread = |why: &str| Encoding::Unread(why.to_owned());
        let is_decimal = element.converted == Some(5) || element.logical == 5;
        let encoding = match (element.stored, element.converted) {
            _ if lists > 0 => unread(
                "it is a list, which is not read of Parquet files; save it as Arrow: \
                 datasets.load_dataset(\"parquet\", data_files=…, split=\"train\").save_to_disk(…)",
            ),
            _ if is_decimal => unread("it is a decimal; write it as a float or as text"),
            (BOOLEAN, _) => number("uint8"),
            (1, Some(11..=13)) => number("uint32"),
            (1, _) => number("int32"),
            (2, Some(14)) => number("uint64"),
            (2, _) => number("int64"),
            (3, _) => unread("it is a time of 96 bits; write it as a timestamp of 64 bits"),
            (4, _) => number("float32"),
            (5, _) => number("float64"),
            (BYTE_ARRAY, Some(19)) => Encoding::Json,
            (BYTE_ARRAY, _) if element.logical == 12 => Encoding::Json,
            (BYTE_ARRAY, Some(0 | 4)) => Encoding::Text,
            (BYTE_ARRAY, _) if matches!(element.logical, 1 | 4) => Encoding::Text,
            (7, _) if element.logical == 15 && element.length == 2 => number("float16"),
            (BYTE_ARRAY | 7, _) => Encoding::Bytes,
            _ => unread("it is of a type that is not known here"),
        };
        let mut column = TableColumn::new(name.trim_end_matches(".list.element"), encoding);
        if let (Feature::Classes(names), 0) = (feature, lists) {
            column.classes.clone_from(names);
        }
        let (place, stored, length) = (self.next, element.stored, element.length);
        self.leaves.push(Leaf { column, place, stored, length, level });
        self.next += 1;
    }
}
