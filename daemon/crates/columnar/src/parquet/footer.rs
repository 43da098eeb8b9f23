//! The footer of a Parquet file: its columns and the locations of their parts.

use std::collections::HashMap;

use super::thrift::{Broken, Reader, STRUCT};
use super::times::{self, ARROW_SCHEMA, Scale};
use crate::Encoding;
use crate::arrow::TimeUnit;
use crate::{Feature, Features, HUGGINGFACE, MAX_COLUMNS, NameSizes, SharedClasses, TableColumn};
use forebay_dataset::error::DatasetError;
use forebay_index::window::{Bytes, Window};

const MAGIC: &[u8; 4] = b"PAR1";
const ENCRYPTED: &[u8; 4] = b"PARE";
/// The maximum nesting of groups.
const MAX_DEPTH: usize = 32;
/// The maximum number of columns and their enclosing groups: a list has two groups.
const MAX_ELEMENTS: u64 = 4 * MAX_COLUMNS;
/// The maximum rows of a row group, which are processed together.
const MAX_GROUP_ROWS: u64 = 8 << 20;
/// The maximum rows per byte, in a file of more rows than [`MAX_GROUP_ROWS`].
const MAX_ROWS_PER_BYTE: u64 = 64;

/// Parquet's numbers of physical types.
pub(super) const BOOLEAN: i64 = 0;
pub(super) const BYTE_ARRAY: i64 = 6;
/// Bytes of a fixed length.
pub(super) const FIXED: i64 = 7;

/// The logical type of a column without values.
const NULL: i64 = 11;

/// A stored column.
#[derive(Debug, Clone)]
pub(super) struct Leaf {
    pub(super) column: TableColumn,
    /// Its index among the columns of a row group.
    pub(super) place: usize,
    /// The physical type, and the length of a fixed-length value.
    pub(super) stored: i64,
    pub(super) length: u64,
    /// The definition level of a value that is not null; 0: no value is null.
    pub(super) level: u32,
    /// The unit of a time.
    unit: Option<TimeUnit>,
    /// Converts to the writer's unit.
    pub(super) scale: Option<Scale>,
}

/// A column chunk: the pages of a row group.
#[derive(Debug, Clone, Default)]
pub(super) struct Chunk {
    pub(super) codec: i64,
    pub(super) data: u64,
    pub(super) dictionary: Option<u64>,
    pub(super) bytes: u64,
    pub(super) unpacked: u64,
    /// Whether it is in another file, or encrypted.
    pub(super) is_elsewhere: bool,
    /// Whether pages are compressed although their headers deny it.
    pub(super) is_always_packed: bool,
}

impl Leaf {
    /// Converts times to the writer's unit.
    fn take_unit(&mut self, units: &HashMap<String, TimeUnit>) {
        let column = &mut self.column.column;
        let Encoding::Number(name) = &mut column.encoding else { return };
        let meant = units.get(&column.name);
        self.scale =
            self.unit.zip(meant).and_then(|(stored, meant)| Scale::between(stored, *meant));
        if self.scale.is_some_and(|scale| scale.widens) {
            "int64".clone_into(name);
        }
    }

    /// The type of its values, for messages.
    pub(super) fn type_name(&self) -> String {
        match (&self.column.column.encoding, self.stored) {
            (Encoding::Number(name), _) => format!("of {name}"),
            (Encoding::Text | Encoding::Json, _) => "of text".to_owned(),
            (_, FIXED) => format!("of bytes of the fixed length {}", self.length),
            _ => "of bytes".to_owned(),
        }
    }
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

/// A column of the schema, or a group of columns.
#[derive(Debug, Default)]
struct Element<'a> {
    stored: i64,
    length: u64,
    repetition: i64,
    name: &'a str,
    children: usize,
    converted: Option<i64>,
    logical: i64,
    /// The unit of a logical type.
    unit: Option<TimeUnit>,
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
        let text = window.get(start, size)?.to_vec();
        let footer = Self::parse(&text).map_err(|_| file.fault("its footer is damaged".to_owned()));
        let footer = footer.and_then(|footer| footer.map_err(|reason| file.fault(reason)))?;
        footer.check(file, start)?;
        Ok(footer)
    }

    fn parse(text: &[u8]) -> Result<Result<Self, String>, Broken> {
        let (mut schema, mut groups, mut features) = (Vec::new(), Vec::new(), None);
        let mut units = Vec::new();
        let (mut elements, mut denies_compression) = (0, false);
        Reader { rest: text }.fields(|number, _, reader| {
            match number {
                2 => {
                    elements = reader.count()? as u64;
                    if elements > MAX_ELEMENTS {
                        return Ok(false);
                    }
                    schema = reader.elements(element)?;
                }
                4 => groups = reader.elements(group)?,
                6 => denies_compression = is_of_old_arrow(reader.bytes()?),
                5 => {
                    for (key, value) in reader.elements(key_value)? {
                        if key == HUGGINGFACE.as_bytes() {
                            let text = std::str::from_utf8(value).ok();
                            features = text.and_then(Features::parse);
                        }
                        if key == ARROW_SCHEMA {
                            units = times::units(value);
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
        if let Err(reason) = check_names(&schema) {
            return Ok(Err(reason));
        }
        let mut found = Found {
            elements: schema.into_iter(),
            leaves: Vec::new(),
            paths: Vec::new(),
            next: 0,
            classes: SharedClasses::default(),
        };
        let root = found.elements.next().ok_or(Broken)?;
        let features = Features::new(features.as_ref());
        for _ in 0..root.children {
            found.add("", features, 0, 0, 0)?;
        }
        let (mut leaves, count) = ([found.leaves, found.paths].concat(), found.next);
        let units: HashMap<_, _> = units.into_iter().collect();
        leaves.iter_mut().for_each(|leaf| leaf.take_unit(&units));
        let chunks = groups.iter_mut().flat_map(|group: &mut Group| &mut group.chunks);
        chunks.for_each(|chunk| chunk.is_always_packed = denies_compression);
        if groups.iter().any(|group| group.chunks.len() != count) {
            return Ok(Err(format!("a group of rows has not the {count} columns of its schema")));
        }
        Ok(Ok(Self { leaves, groups }))
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

fn size(reader: &mut Reader<'_>) -> Result<u64, Broken> {
    u64::try_from(reader.integer()?).map_err(|_| Broken)
}

fn element<'a>(reader: &mut Reader<'a>) -> Result<Element<'a>, Broken> {
    let mut element = Element { stored: -1, ..Element::default() };
    reader.fields(|number, _, reader| {
        match number {
            1 => element.stored = reader.integer()?,
            2 => element.length = size(reader)?,
            3 => element.repetition = reader.integer()?,
            4 => element.name = reader.text()?,
            5 => element.children = usize::try_from(size(reader)?).map_err(|_| Broken)?,
            6 => element.converted = Some(reader.integer()?),
            // A union, with one field set.
            10 => reader.fields(|number, kind, reader| {
                element.logical = number;
                if kind != STRUCT {
                    return Ok(false);
                }
                element.unit = times::logical_unit(number, reader)?;
                Ok(true)
            })?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok(element)
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

/// Checks the lengths of the columns' names. A truncated schema is checked up to its end.
fn check_names(schema: &[Element<'_>]) -> Result<(), String> {
    let mut sizes = NameSizes::default();
    // For each enclosing group: the length of its name, and the number of its remaining elements.
    let mut above: Vec<(u64, usize)> = Vec::new();
    for element in schema.iter().skip(1) {
        while above.pop_if(|(_, left)| *left == 0).is_some() {}
        let around = above.last_mut().map_or(0, |(bytes, left)| {
            *left -= 1;
            *bytes
        });
        let bytes = NameSizes::below(around, element.name);
        match element.children {
            0 => sizes.add(bytes)?,
            children => above.push((bytes, children)),
        }
    }
    sizes.check()
}

/// The columns of a schema, which lists each group before its members.
struct Found<'e> {
    elements: std::vec::IntoIter<Element<'e>>,
    leaves: Vec<Leaf>,
    /// Columns of picture paths, which come last.
    paths: Vec<Leaf>,
    /// The index of the next stored column.
    next: usize,
    classes: SharedClasses,
}

impl Found<'_> {
    /// Adds the next element and its members. `level`: the definition level of a value that is not null; `lists`: the
    /// number of enclosing lists.
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
        let features = features.child(element.name);
        let name = match above {
            "" => element.name.to_owned(),
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
            let path = self.leaves.drain(first + 1..);
            self.paths.extend(path.map(|mut path| {
                path.column.is_path = true;
                path
            }));
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
        element: &Element<'_>,
        name: String,
        feature: &Feature<'_>,
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
            _ if element.logical == NULL => unread("it has no values (its type is null)"),
            (BOOLEAN, _) => number("bool"),
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
            column.classes = self.classes.of(names);
        }
        let (place, stored, length) = (self.next, element.stored, element.length);
        let unit = element.unit.or_else(|| times::converted_unit(element.converted?));
        self.leaves.push(Leaf { column, place, stored, length, level, unit, scale: None });
        self.next += 1;
    }
}
