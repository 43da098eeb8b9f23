//! The layouts of a result. Each is one file and one line in [`LAYOUTS`].
//!
//! A layout says how it stores each field ([`Layout::columns`]) and begins shards; a [`Shard`] takes samples in the order of
//! ids. When a shard is full is the same for all layouts, and so are the names of files.

mod mds;
mod parquet;
mod tar;
mod thrift;

use std::fs::File;
use std::io;
use std::path::Path;

use forebay_dataset::{Field, FieldKind, SoundForm};
use forebay_protocol::tensor::DType;

use crate::folder::ShardRecord;
use crate::sample::Sample;

/// All layouts, by the word of `--to`.
static LAYOUTS: [&dyn Layout; 3] = [&tar::Tar, &mds::Mds, &parquet::Parquet];

/// A layout, chosen by its word.
#[derive(Debug, Clone, Copy)]
pub struct LayoutChoice(pub(crate) &'static dyn Layout);

impl LayoutChoice {
    /// Finds a layout.
    #[must_use]
    pub fn find(word: &str) -> Option<Self> {
        LAYOUTS.into_iter().find(|layout| layout.word() == word).map(Self)
    }
}

/// The words of all layouts.
pub fn words() -> impl Iterator<Item = &'static str> {
    LAYOUTS.iter().map(|layout| layout.word())
}

/// One layout.
pub(crate) trait Layout: std::fmt::Debug + Sync {
    /// Its word.
    fn word(&self) -> &'static str;

    /// The `dataset.format` that reads it.
    fn format(&self) -> &'static str;

    /// Whether samples need keys, even if their names are dropped. Otherwise kept names are a column.
    fn needs_keys(&self) -> bool;

    /// The largest shard, in bytes.
    fn max_shard_bytes(&self) -> u64;

    /// The columns of a dataset's fields.
    ///
    /// # Errors
    /// A field that cannot be stored.
    fn columns(&self, fields: &[Field]) -> Result<Vec<Column>, String>;

    /// The name of the file of a shard.
    fn file_name(&self, shard: u64) -> String;

    /// Begins a shard in an empty file at `path`.
    ///
    /// # Errors
    /// The system's.
    fn begin(&self, table: &TableOf, file: File, path: &Path) -> io::Result<Box<dyn Shard>>;

    /// Writes what the folder has besides its shards.
    ///
    /// # Errors
    /// The system's.
    fn finish(&self, _table: &TableOf, _folder: &Path, _shards: &[ShardRecord]) -> io::Result<()> {
        Ok(())
    }
}

/// A shard that is being written.
pub(crate) trait Shard {
    /// Adds a sample.
    ///
    /// # Errors
    /// The system's, or the sample does not fit into the layout.
    fn add(&mut self, sample: &Sample) -> io::Result<()>;

    /// The bytes so far, in the file or before it.
    fn bytes(&self) -> u64;

    /// Writes the rest, and gives the file.
    ///
    /// # Errors
    /// The system's.
    fn close(self: Box<Self>) -> io::Result<File>;
}

/// What all shards of a result have in common.
#[derive(Debug)]
pub(crate) struct TableOf {
    /// One per field.
    pub(crate) columns: Vec<Column>,
    /// Whether names are a column of their own.
    pub(crate) has_names: bool,
    /// The names of the classes of the field `label`; empty if there are none.
    pub(crate) classes: Vec<String>,
}

/// How a field is stored.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Column {
    pub(crate) field: Field,
    /// The column, or the members of which a sample has one.
    pub(crate) from: Vec<String>,
    pub(crate) stored: Stored,
}

/// Whether a field has the numbers of the dataset's classes.
pub(crate) fn is_class(field: &Field) -> bool {
    field.name == "label" && field.kind == FieldKind::Integer
}

/// The form of a column's values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Stored {
    /// A picture's file.
    Picture,
    /// The files of several pictures.
    Pictures,
    /// A sound's file, and what it is decoded to.
    Sound(SoundForm),
    Text,
    Bytes,
    Integer,
    Float,
    /// A float of 32 bits.
    Float32,
    Bool,
    /// An array in the layout's own form.
    Array,
    /// An array as a `.npy` file.
    NumPy,
}

impl Stored {
    /// The usual form of a field's values.
    ///
    /// # Errors
    /// No layout stores them.
    fn of(field: &Field) -> Result<Self, String> {
        Ok(match &field.kind {
            FieldKind::EncodedImage => Self::Picture,
            FieldKind::EncodedImages => Self::Pictures,
            FieldKind::Bytes => Self::Bytes,
            FieldKind::Video { .. } => {
                return Err(format!(
                    "the field `{}` is a video, for which there is no layout; where it is a member, a column or a file of a \
                     list, pack it as = \"bytes\", and read the result as = \"video\"",
                    field.name
                ));
            }
            FieldKind::Text => Self::Text,
            FieldKind::Integer => Self::Integer,
            FieldKind::Float => Self::Float,
            FieldKind::Sound { row_shape, .. } => {
                let channels = row_shape.first().and_then(|count| u16::try_from(*count).ok());
                Self::Sound(SoundForm { channels, rate: None, span: None })
            }
            FieldKind::Array { dtype: DType::F32, shape } if shape.is_empty() => Self::Float32,
            FieldKind::Array { dtype: DType::Bool, shape } if shape.is_empty() => Self::Bool,
            FieldKind::Array { dtype, .. } | FieldKind::RaggedArray { dtype, .. } => {
                if crate::npy::descr(*dtype).is_none() {
                    return Err(format!(
                        "the field `{}` has arrays of {}, which NumPy does not have; leave it out in dataset.fields",
                        field.name,
                        dtype.name()
                    ));
                }
                Self::Array
            }
        })
    }

    /// The form in `[dataset.fields]`, with further keys.
    pub(crate) fn rule(self) -> String {
        let word = match self {
            Self::Picture => "image",
            Self::Pictures => "images",
            Self::Sound(form) => return format!("as = \"audio\"{}", form.keys()),
            Self::Text => "text",
            Self::Bytes => "bytes",
            Self::Integer => "integer",
            Self::Float | Self::Float32 => "float",
            Self::Bool => "bool",
            Self::Array | Self::NumPy => "array",
        };
        format!("as = \"{word}\"")
    }
}

/// A table's columns, one per field with the field's name.
fn columns_by_name(
    fields: &[Field],
    form: impl Fn(&Field, Stored) -> Result<Stored, String>,
) -> Result<Vec<Column>, String> {
    let mut columns: Vec<Column> = Vec::with_capacity(fields.len());
    for field in fields {
        let stored = form(field, Stored::of(field)?)?;
        // A colon separates a column from a key within its JSON, and a dot the fields of structs.
        let name = field.name.replace([':', '.'], "_");
        let is_taken = |name: &String| {
            (name == crate::names::KEY && field.name != *name)
                || columns.iter().any(|column| column.from[0] == *name)
        };
        let name = distinct(name, is_taken);
        columns.push(Column { field: field.clone(), from: vec![name], stored });
    }
    Ok(columns)
}

/// The name, with a number if it is taken.
fn distinct(name: String, is_taken: impl Fn(&String) -> bool) -> String {
    if !is_taken(&name) {
        return name;
    }
    // Ends: there are fewer names than numbers.
    (2_u32..)
        .map(|number| format!("{name}_{number}"))
        .find(|name| !is_taken(name))
        .unwrap_or_default()
}

/// The error for a value that is not of its column's form: a reader gives the forms that it declares.
fn misfit(column: &Column) -> io::Error {
    io::Error::other(format!("`{}` is not what its field declares", column.field.name))
}

/// The file of a value that is stored as bytes: a picture, a sound, a text, bytes or a `.npy` file.
fn file_of<'a>(
    column: &Column,
    value: &'a crate::sample::Value,
) -> io::Result<std::borrow::Cow<'a, [u8]>> {
    use crate::sample::Value;
    Ok(match (column.stored, value) {
        (Stored::Picture | Stored::Sound(_), Value::File(bytes))
        | (Stored::Bytes, Value::Bytes(bytes)) => bytes.as_slice().into(),
        (Stored::Text, Value::Text(text)) => text.as_bytes().into(),
        (Stored::NumPy, Value::Array(array)) => {
            crate::npy::file(array).map_err(io::Error::other)?.into()
        }
        _ => return Err(misfit(column)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_have_different_names_that_are_no_paths() {
        let names = ["a.b", "a:b", "a_b", "__key__", "_.key__"];
        let field = |name: &str| Field { name: name.to_owned(), kind: FieldKind::Integer };
        let fields: Vec<_> = names.into_iter().map(field).collect();
        let columns = columns_by_name(&fields, |_, stored| Ok(stored)).unwrap();
        let names: Vec<_> = columns.iter().map(|column| column.from[0].as_str()).collect();
        assert_eq!(names, ["a_b", "a_b_2", "a_b_3", "__key__", "__key___2"]);
    }
}
