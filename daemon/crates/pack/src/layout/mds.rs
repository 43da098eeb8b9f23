//! `mds`: shards and an `index.json` as MosaicML Streaming's `MDSWriter` writes them, without compression.
//!
//! A shard begins with the number of its samples and the places of all, so that they are known before the file can be
//! written: samples are collected in a file beside it.

use std::fs::{self, File};
use std::io::{self, BufWriter, Seek, Write};
use std::path::{Path, PathBuf};

use forebay_dataset::{Field, FieldKind};
use forebay_protocol::tensor::DType;
use serde_json::json;

use super::{Column, Layout, Shard, Stored, TableOf, columns_by_name, file_of, misfit};
use crate::folder::ShardRecord;
use crate::names::KEY;
use crate::sample::{Array, Sample, Value};

/// Places are u32, and the last sample begins before the end of a full shard.
const MAX_SHARD_BYTES: u64 = 2 << 30;

/// See the module's head.
#[derive(Debug)]
pub(super) struct Mds;

impl Layout for Mds {
    fn word(&self) -> &'static str {
        "mds"
    }

    fn format(&self) -> &'static str {
        "mds"
    }

    fn needs_keys(&self) -> bool {
        false
    }

    fn max_shard_bytes(&self) -> u64 {
        MAX_SHARD_BYTES
    }

    fn columns(&self, fields: &[Field]) -> Result<Vec<Column>, String> {
        columns_by_name(fields, |field, stored| {
            Ok(match (stored, &field.kind) {
                (Stored::Pictures, _) => {
                    return Err(format!(
                        "the field `{}` has lists of pictures, and MDS has no such column; use --to parquet, or leave the field \
                         out in dataset.fields",
                        field.name
                    ));
                }
                (Stored::Bool, _) => Stored::NumPy,
                (
                    Stored::Array,
                    FieldKind::Array { dtype, .. } | FieldKind::RaggedArray { dtype, .. },
                ) if code(*dtype).is_none() => Stored::NumPy,
                (Stored::Array, FieldKind::Array { shape, .. }) if shape.is_empty() => {
                    Stored::NumPy
                }
                (other, _) => other,
            })
        })
    }

    fn file_name(&self, shard: u64) -> String {
        format!("shard.{shard:05}.mds")
    }

    fn begin(&self, table: &TableOf, file: File, path: &Path) -> io::Result<Box<dyn Shard>> {
        let beside = path.with_extension("samples.tmp");
        let samples =
            File::options().read(true).write(true).create(true).truncate(true).open(&beside)?;
        Ok(Box::new(Records {
            columns: table.columns.clone(),
            has_names: table.has_names,
            file,
            samples: BufWriter::with_capacity(1 << 20, samples),
            beside,
            ends: Vec::new(),
            record: Vec::new(),
        }))
    }

    fn finish(&self, table: &TableOf, folder: &Path, shards: &[ShardRecord]) -> io::Result<()> {
        let names = table.columns.iter().map(|column| column.from[0].as_str());
        let names: Vec<_> = names.chain(table.has_names.then_some(KEY)).collect();
        let words = table.columns.iter().map(|column| encoding(column.stored));
        let words: Vec<_> = words.chain(table.has_names.then_some("str")).collect();
        let sizes = table.columns.iter().map(|column| fixed_bytes(column.stored));
        let sizes: Vec<_> = sizes.chain(table.has_names.then_some(None)).collect();
        let shards = shards.iter().map(|shard| {
            json!({
                "column_encodings": words,
                "column_names": names,
                "column_sizes": sizes,
                "compression": null,
                "format": "mds",
                "hashes": [],
                "raw_data": { "basename": shard.file, "bytes": shard.bytes, "hashes": {} },
                "samples": shard.samples,
                "size_limit": null,
                "version": 2,
                "zip_data": null,
            })
        });
        let index = json!({ "shards": shards.collect::<Vec<_>>(), "version": 2 });
        let mut file = File::create(folder.join("index.json"))?;
        file.write_all(index.to_string().as_bytes())?;
        file.sync_all()
    }
}

/// Streaming's word for a column. It opens pictures of any kind by their first bytes.
const fn encoding(stored: Stored) -> &'static str {
    match stored {
        Stored::Picture => "jpeg",
        Stored::Text => "str",
        Stored::Integer => "int",
        Stored::Float => "float64",
        Stored::Float32 => "float32",
        Stored::Array => "ndarray",
        _ => "bytes",
    }
}

/// The size of values that all have the same.
const fn fixed_bytes(stored: Stored) -> Option<u64> {
    match stored {
        Stored::Integer | Stored::Float => Some(8),
        Stored::Float32 => Some(4),
        _ => None,
    }
}

/// Streaming's number of a type; `None`: it does not have it.
const fn code(dtype: DType) -> Option<u8> {
    Some(match dtype {
        DType::U8 => 8,
        DType::I8 => 9,
        DType::U16 => 16,
        DType::I16 => 17,
        DType::F16 => 18,
        DType::U32 => 32,
        DType::I32 => 33,
        DType::F32 => 34,
        DType::U64 => 64,
        DType::I64 => 65,
        DType::F64 => 66,
        _ => return None,
    })
}

/// An array as Streaming's `ndarray`: its type, the number and the width of its sides, the sides, and the elements.
fn array_bytes(column: &Column, Array { dtype, shape, bytes }: &Array) -> io::Result<Vec<u8>> {
    let code = code(*dtype).ok_or_else(|| misfit(column))?;
    let count = u8::try_from(shape.len()).ok().filter(|count| *count < 64);
    let count = count.ok_or_else(|| misfit(column))?;
    let longest = shape.iter().copied().max().unwrap_or(0);
    let (word, width) = match longest {
        0..=0xff => (0, 1),
        0x100..=0xffff => (1, 2),
        0x1_0000..=0xffff_ffff => (2, 4),
        _ => (3, 8),
    };
    let sides = shape.iter().flat_map(|side| side.to_le_bytes().into_iter().take(width));
    Ok([code, count << 2 | word].into_iter().chain(sides).chain(bytes.iter().copied()).collect())
}

/// A shard.
struct Records {
    columns: Vec<Column>,
    has_names: bool,
    file: File,
    samples: BufWriter<File>,
    beside: PathBuf,
    /// The end of each record among the samples.
    ends: Vec<u32>,
    record: Vec<u8>,
}

impl Records {
    fn end(&self) -> u32 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// The bytes before the samples.
    fn head_bytes(&self) -> u64 {
        4 * (self.ends.len() as u64 + 2)
    }
}

impl Shard for Records {
    fn add(&mut self, sample: &Sample) -> io::Result<()> {
        let (mut sizes, mut values) = (Vec::new(), Vec::with_capacity(self.columns.len() + 1));
        for (column, value) in self.columns.iter().zip(&sample.values) {
            values.push(match (column.stored, value) {
                (Stored::Integer, Value::Integer(value)) => value.to_le_bytes().to_vec().into(),
                (Stored::Float, Value::Float(value)) => value.to_le_bytes().to_vec().into(),
                (Stored::Float32, Value::Array(array)) => array.bytes.as_slice().into(),
                (Stored::Array, Value::Array(array)) => array_bytes(column, array)?.into(),
                _ => file_of(column, value)?,
            });
        }
        if self.has_names {
            values.push(sample.key.as_bytes().into());
        }
        let too_large = || io::Error::other("a sample of 4 GiB does not fit into an MDS shard");
        let fixed = self.columns.iter().map(|column| fixed_bytes(column.stored));
        for (value, fixed) in values.iter().zip(fixed.chain([None])) {
            if fixed.is_none() {
                let size = u32::try_from(value.len()).map_err(|_| too_large())?;
                sizes.extend_from_slice(&size.to_le_bytes());
            }
        }
        self.record.clear();
        self.record.extend_from_slice(&sizes);
        values.iter().for_each(|value| self.record.extend_from_slice(value));
        let length = u32::try_from(self.record.len()).map_err(|_| too_large())?;
        let end = self.end().checked_add(length).ok_or_else(too_large)?;
        // All places are counted from the start of the file.
        let last = u64::from(end) + self.head_bytes() + 4;
        u32::try_from(last).map_err(|_| too_large())?;
        self.ends.push(end);
        self.samples.write_all(&self.record)
    }

    fn bytes(&self) -> u64 {
        self.head_bytes() + u64::from(self.end())
    }

    fn close(self: Box<Self>) -> io::Result<File> {
        let head = u32::try_from(self.head_bytes()).unwrap_or(u32::MAX);
        let Self { mut file, samples, beside, ends, .. } = *self;
        let mut samples = samples.into_inner().map_err(io::IntoInnerError::into_error)?;
        let count = u32::try_from(ends.len()).unwrap_or(u32::MAX);
        let places = [count, head].into_iter().chain(ends.iter().map(|end| head + end));
        let places: Vec<u8> = places.flat_map(u32::to_le_bytes).collect();
        file.write_all(&places)?;
        samples.rewind()?;
        io::copy(&mut samples, &mut file)?;
        fs::remove_file(beside)?;
        Ok(file)
    }
}

#[cfg(test)]
mod tests {
    use forebay_columnar::ArrayForm;

    use super::*;

    #[test]
    fn arrays_are_read_back_in_the_narrowest_width_of_sides() {
        let column = Column {
            field: Field { name: "a".to_owned(), kind: FieldKind::Bytes },
            from: vec!["a".to_owned()],
            stored: Stored::Array,
        };
        for (shape, head) in [(vec![2, 3], 4), (vec![300], 4), (vec![70_000, 1], 10), (vec![0], 3)]
        {
            let bytes = vec![7; usize::try_from(shape.iter().product::<u64>()).unwrap()];
            let array = Array { dtype: DType::U8, shape, bytes };
            let stored = array_bytes(&column, &array).unwrap();
            assert_eq!(stored.len() - array.bytes.len(), head);
            let read = ArrayForm::Mosaic(None).read(&stored).unwrap();
            assert_eq!((&*read.shape, &*read.bytes), (&array.shape[..], &array.bytes[..]));
        }
    }
}
