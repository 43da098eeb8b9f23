//! A test format in which several samples share a block, as rows share the pages of a Parquet file.
//!
//! Each sample needs two blocks: one of four arrays, `array` (int64 `[4]`, four times the sample's number), and one of
//! sixteen labels, `label` (the number times ten). A mark before each array distinguishes good arrays from bad ones.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use forebay_config::DatasetConfig;
use forebay_protocol::ids::SampleId;
use forebay_protocol::tensor::DType;

use forebay_dataset::error::DatasetError;
use forebay_dataset::opening::{IndexReport, OpenOptions, OpenedFormat};
use forebay_dataset::{
    ArrayValue, Dataset, Defect, Field, FieldKind, FieldValue, PageBytes, SampleBlocks,
};
use forebay_index::folder::scan::{FolderFormat, LooseFiles};
use forebay_storage::Storage;
use forebay_storage::location::{
    ByteRange, FileId, FileTable, Location, SampleBytes, Transform, Unit,
};

/// The mark of a good array.
const MARK: &[u8; 8] = b"an array";
const ELEMENTS: usize = 4;
/// A mark and the elements.
const ARRAY_BYTES: u64 = 40;
const LABEL_BYTES: u64 = 8;

const ARRAYS: (FileId, &str) = (FileId(0), "arrays");
const LABELS: (FileId, &str) = (FileId(1), "labels");

/// The dataset; see the module's documentation.
#[derive(Debug)]
pub struct BlockFolder {
    /// The number of stored samples, which the blocks are computed from; `dataset.limit` may select fewer.
    stored: u64,
    samples: u64,
    fields: [Field; 2],
}

impl BlockFolder {
    /// Its name in the registry.
    pub const FORMAT: FolderFormat =
        FolderFormat { name: "test-blocks", extensions: &[], loose: LooseFiles::NoFolders };
    /// The number of arrays per block.
    pub const ARRAYS_IN_BLOCK: u64 = 4;
    /// The number of labels per block.
    pub const LABELS_IN_BLOCK: u64 = 16;
    /// The size of a full block of arrays.
    pub const ARRAY_BLOCK_BYTES: u64 = Self::ARRAYS_IN_BLOCK * ARRAY_BYTES;
    /// The size of a full block of labels.
    pub const LABEL_BLOCK_BYTES: u64 = Self::LABELS_IN_BLOCK * LABEL_BYTES;

    /// Writes `samples` samples into a folder.
    pub fn write(folder: &Path, samples: u64, is_bad: impl Fn(u64) -> bool) {
        let (mut arrays, mut labels) = (Vec::new(), Vec::new());
        for sample in 0..samples {
            arrays.extend_from_slice(if is_bad(sample) { b"no array" } else { MARK });
            arrays.extend((0..ELEMENTS).flat_map(|_| sample.to_le_bytes()));
            labels.extend((10 * sample).to_le_bytes());
        }
        fs::create_dir_all(folder).unwrap();
        fs::write(folder.join(ARRAYS.1), arrays).unwrap();
        fs::write(folder.join(LABELS.1), labels).unwrap();
    }

    /// The block of a file that contains a sample with a size of `sample_bytes`.
    fn block(&self, file: FileId, id: SampleId, in_block: u64, sample_bytes: u64) -> Location {
        let first = id.0 / in_block * in_block;
        let samples = in_block.min(self.stored - first);
        let range =
            ByteRange { offset: first * sample_bytes, length: Some(samples * sample_bytes) };
        Location { file, range, unit: Unit::Block(Transform::None) }
    }
}

/// A sample's part of a block.
fn part(
    block: Option<&[u8]>,
    id: SampleId,
    in_block: u64,
    sample_bytes: u64,
) -> Result<&[u8], Defect> {
    let short = || Defect(format!("the block ends before sample {}", id.0));
    let block = block.ok_or_else(short)?;
    if !(block.len() as u64).is_multiple_of(sample_bytes) {
        return Err(Defect("the block is no whole number of samples".to_owned()));
    }
    let length = usize::try_from(sample_bytes).unwrap();
    let start = usize::try_from(id.0 % in_block).unwrap() * length;
    block.get(start..start + length).ok_or_else(short)
}

impl FileTable for BlockFolder {
    fn append_path(&self, file: FileId, path: &mut Vec<u8>) {
        let name = if file == ARRAYS.0 { ARRAYS.1 } else { LABELS.1 };
        path.extend_from_slice(name.as_bytes());
    }
}

impl Dataset for BlockFolder {
    fn sample_count(&self) -> u64 {
        self.samples
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn locate(&self, id: SampleId, locations: &mut Vec<Location>) {
        assert!(id.0 < self.samples);
        locations.push(self.block(ARRAYS.0, id, Self::ARRAYS_IN_BLOCK, ARRAY_BYTES));
        locations.push(self.block(LABELS.0, id, Self::LABELS_IN_BLOCK, LABEL_BYTES));
    }

    fn shares_units(&self) -> bool {
        true
    }

    /// The blocks of arrays.
    fn blocks(&self) -> Option<SampleBlocks> {
        let firsts = (0..self.samples).step_by(usize::try_from(Self::ARRAYS_IN_BLOCK).unwrap());
        let bytes = |each: u64| PageBytes { packed: each, unpacked: each };
        Some(SampleBlocks {
            firsts: firsts.collect(),
            most_bytes: Self::ARRAY_BLOCK_BYTES + Self::LABEL_BLOCK_BYTES,
            scratch_per_thousand: 0,
            used_bytes: self.samples * (ARRAY_BYTES + LABEL_BYTES),
            alone: bytes(self.samples * (Self::ARRAY_BLOCK_BYTES + Self::LABEL_BLOCK_BYTES)),
            together: bytes(self.samples * (ARRAY_BYTES + 4 * LABEL_BYTES)),
        })
    }

    fn read<'a>(
        &'a self,
        id: SampleId,
        bytes: SampleBytes<'a>,
        values: &mut Vec<FieldValue<'a>>,
    ) -> Result<(), Defect> {
        let array = part(bytes.part(0), id, Self::ARRAYS_IN_BLOCK, ARRAY_BYTES)?;
        let label = part(bytes.part(1), id, Self::LABELS_IN_BLOCK, LABEL_BYTES)?;
        let elements = array
            .strip_prefix(MARK)
            .ok_or_else(|| Defect("its array is marked as bad".to_owned()))?;
        values.push(FieldValue::Array(ArrayValue::new(DType::I64, &[ELEMENTS as u64], elements)));
        let label = label.first_chunk().ok_or_else(|| Defect("a short label".to_owned()))?;
        values.push(FieldValue::Integer(i64::from_le_bytes(*label)));
        Ok(())
    }

    fn fingerprint(&self) -> [u8; 32] {
        *blake3::hash(&self.samples.to_le_bytes()).as_bytes()
    }
}

/// Opens a folder that [`BlockFolder::write`] has written.
pub(crate) fn open(
    config: &DatasetConfig,
    storage: &dyn Storage,
    _options: OpenOptions<'_>,
) -> OpenedFormat {
    if config.path.is_file() {
        return Err(DatasetError::WrongKind {
            path: config.path.clone(),
            found: "a file",
            format: BlockFolder::FORMAT.name,
            expected: "a folder of blocks",
        });
    }
    if config.ids.is_some() {
        let reason = "dataset.ids names files; blocks have none".to_owned();
        return Err(DatasetError::ArrayFile { path: config.path.clone(), reason });
    }
    let array = FieldKind::Array { dtype: DType::I64, shape: vec![ELEMENTS as u64] };
    let fields = [("array", array), ("label", FieldKind::Integer)]
        .map(|(name, kind)| Field { name: name.to_owned(), kind });
    let mut dataset = BlockFolder { stored: 0, samples: 0, fields };
    dataset.stored = storage.status(&dataset, LABELS.0)?.bytes / LABEL_BYTES;
    dataset.samples = config.limit.map_or(dataset.stored, |limit| limit.min(dataset.stored));
    if dataset.samples == 0 {
        let reason = "dataset.limit is 0".to_owned();
        return Err(DatasetError::NoSamples { path: config.path.clone(), reason });
    }
    let report = IndexReport { samples: dataset.samples, ..IndexReport::default() };
    Ok((Arc::new(dataset), report))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::{self, Format};

    #[test]
    fn blocks_are_a_dataset() {
        conformance::run(&Format {
            open: crate::open,
            name: BlockFolder::FORMAT.name,
            make: |folder, samples| {
                BlockFolder::write(folder, samples as u64, |_| false);
                folder.to_owned()
            },
            has_names: false,
            refuses_cuts: true,
        });
    }
}
