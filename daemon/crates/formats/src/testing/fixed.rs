//! An example format: `.bin` files of fixed-size records, each an array. docs/design/architecture.md explains it; only tests
//! have it in their registry.

use forebay_keys::{AtLeastOne, ConfigError, keys};
use forebay_protocol::ids::SampleId;
use forebay_protocol::tensor::DType;

use crate::draft::{Draft, Seen};
use crate::indexed::{
    Format, Opening, ShardFormat, ShardPlan, Take, locate_whole, make_of_shards, whole_bytes,
};
use forebay_dataset::{ArrayValue, DatasetError, Defect, Field, FieldKind, FieldValue};
use forebay_index::folder::scan::{FolderFormat, LooseFiles};
use forebay_index::saved_index::SavedIndex;
use forebay_index::shards::{Extent, Pace, ScannedShard, ShardIndex};
use forebay_index::stored_file::StoredFile;
use forebay_storage::Storage;
use forebay_storage::location::{Location, SampleBytes};

keys! {
    /// The record size.
    pub(crate) struct FixedKeys = "dataset" {
        /// its length
        pub(crate) record_bytes: AtLeastOne, "bytes", default(16);
    }
}

/// The length of a record, in bytes.
#[derive(Debug)]
pub(crate) struct Fixed(u64);

impl Format for Fixed {
    const FORMAT: FolderFormat =
        FolderFormat { name: "test-fixed", extensions: &[".bin"], loose: LooseFiles::NoFolders };
    const EXPECTED: &'static str = "a .bin file, several by a pattern, or a folder of them";
    const IS_LISTED: bool = true;

    type Keys = FixedKeys;
    type Index = ShardIndex;

    fn draft(seen: &Seen) -> Draft {
        Draft::of_arrays("copy", seen)
    }

    fn digested(keys: &FixedKeys) -> Result<String, ConfigError> {
        Ok(keys.record_bytes.to_string())
    }

    fn make(
        opening: &Opening<'_, Self>,
        warnings: &mut Vec<String>,
    ) -> Result<Vec<u8>, DatasetError> {
        make_of_shards(opening, warnings)
    }

    fn of_index(index: &ShardIndex, _: &Opening<'_, Self>) -> Option<Self> {
        index.rules().parse().ok().map(Self)
    }

    fn fields(&self, _: &ShardIndex, _: Option<SampleBytes<'_>>) -> Result<Vec<Field>, Defect> {
        let kind = FieldKind::Array { dtype: DType::U8, shape: vec![self.0] };
        Ok(vec![Field { name: "array".to_owned(), kind }])
    }

    fn locate(&self, index: &ShardIndex, id: SampleId, locations: &mut Vec<Location>) {
        locate_whole(index, id, locations);
    }

    fn values<'a>(
        &'a self,
        index: &'a ShardIndex,
        id: SampleId,
        bytes: SampleBytes<'a>,
        take: Take<'_, 'a>,
    ) -> Result<(), Defect> {
        let bytes = whole_bytes(index, id, bytes, "file")?;
        take(FieldValue::Array(ArrayValue::new(DType::U8, vec![self.0], bytes)))
    }
}

impl ShardFormat for Fixed {
    const NAME_FORM: &'static str = "a sample is named by file and number, as in a.bin/17";

    type Scan = u64;
    type Counts = ();

    fn plan(
        opening: &Opening<'_, Self>,
        _warnings: &mut Vec<String>,
    ) -> Result<ShardPlan<u64>, DatasetError> {
        let (files, rules) = (Self::files(opening)?, Self::digested(&opening.keys)?);
        let scan = opening.keys.record_bytes;
        Ok(ShardPlan { files, columns: 1, rules, scan })
    }

    fn scan(
        storage: &dyn Storage,
        record_bytes: &u64,
        (_, path): (usize, &[u8]),
        _pace: &dyn Pace,
    ) -> Result<(ScannedShard, ()), DatasetError> {
        let file = StoredFile::new(storage, path)?;
        let mut shard = ScannedShard::new(path, &file);
        let (bytes, length) = (*record_bytes, file.stamp.bytes);
        if !length.is_multiple_of(bytes) {
            return Err(file.fault(format!("its {length} bytes are not records of {bytes} bytes")));
        }
        for number in 0..length / bytes {
            shard.push_numbered(Extent { offset: number * bytes, bytes }, &file)?;
        }
        Ok((shard, ()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance;
    use crate::testing::{EVERYWHERE, config_for, own_keys, write_aged};
    use forebay_dataset::OpenOptions;

    #[test]
    fn records_of_one_size_conform() {
        for open in EVERYWHERE {
            conformance::run(&conformance::Format {
                open,
                name: Fixed::FORMAT.name,
                make: |root, count| {
                    let records: Vec<u8> = (0..count as u128).flat_map(u128::to_le_bytes).collect();
                    write_aged(&root.join("a.bin"), &records[..16]);
                    write_aged(&root.join("b/c.bin"), &records[16..]);
                    root.to_owned()
                },
                has_names: true,
                refuses_cuts: true,
            });
        }
    }

    #[test]
    fn an_unfinished_record_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        write_aged(&folder.path().join("a.bin"), &[7; 12]);
        let mut config = config_for(Fixed::FORMAT.name, folder.path());
        config.own = own_keys("dataset.record_bytes = 5");
        let refused = crate::open(&config, OpenOptions::default()).unwrap_err().to_string();
        assert!(refused.contains("its 12 bytes are not records of 5 bytes"), "{refused}");
    }
}
