//! `tfrecord`: TensorFlow's record files, each record a `tf.train.Example`.
//!
//! The heads of the records are read once ([`frame`]) for an index of their locations ([`ShardIndex`]); then a sample
//! is one range of its file, so the shuffle is exact. An Example is parsed when it is read ([`examples`](crate::examples)),
//! after its checksum is verified. [`names`] detects files.

mod frame;
mod fuzzed;
mod names;
mod scan;

use forebay_keys::{ConfigError, Section, keys};
use forebay_protocol::ids::SampleId;

use self::frame::Frames;
#[doc(hidden)]
pub(super) use self::fuzzed::{read_for_fuzzing, walk_for_fuzzing};
use crate::columns::parse_rules;
use crate::draft::{Draft, Seen};
use crate::examples::{Examples, rules};
use crate::fields::{FieldsTable, rules_text};
use crate::indexed::{
    Format, Opening, ShardFormat, ShardPlan, Take, fields_of, locate_whole, make_of_shards,
    whole_bytes,
};
use forebay_dataset::error::DatasetError;
use forebay_dataset::{Defect, Field};
use forebay_index::folder::scan::{FolderFormat, LooseFiles};
use forebay_index::saved_index::{SavedIndex, refuse_twice, tell_missing};
use forebay_index::shard_paths;
use forebay_index::shards::{Pace, ScannedShard, ShardIndex};
use forebay_index::stored_file::StoredFile;
use forebay_index::window::WindowSize;
use forebay_storage::Storage;
use forebay_storage::location::{Location, SampleBytes};

/// The number of records between two checks whether the scan was stopped.
const RECORDS_PER_CHECK: u64 = 4096;

keys! {
    /// The keys of TFRecords.
    pub(super) struct TfRecordKeys = "dataset", check check_keys {
        /// the fields and what each is made of; see [Fields](formats.md#fields)
        pub(super) fields: FieldsTable, "", absent("what the first samples have");
    }
}

fn check_keys(keys: &mut TfRecordKeys, _section: &Section) -> Result<(), ConfigError> {
    rules::read_rules(keys.fields.as_deref()).map(drop)
}

/// The fields of record files.
#[derive(Debug)]
pub(super) struct TfRecord(Examples);

impl Format for TfRecord {
    const FORMAT: FolderFormat = FolderFormat {
        name: "tfrecord",
        extensions: &names::EXTENSIONS,
        loose: LooseFiles::NoFolders,
    };
    const EXPECTED: &'static str = "a .tfrecord file, several by a pattern such as train-{00000..00099}-of-00100, or a folder of them";
    const UNPACKS: bool = true;
    const IS_LISTED: bool = true;

    type Keys = TfRecordKeys;
    type Index = ShardIndex;

    fn reads(name: &[u8]) -> bool {
        names::is_of_records(name)
    }

    /// Decodes images to one size, and keeps the other fields.
    fn draft(seen: &Seen) -> Draft {
        Draft::of_members(seen, false)
    }

    fn digested(keys: &TfRecordKeys) -> Result<String, ConfigError> {
        let rules = rules::read_rules(keys.fields.as_deref())?;
        Ok(rules.as_deref().map(rules_text).unwrap_or_default())
    }

    fn files(opening: &Opening<'_, Self>) -> Result<Vec<Vec<u8>>, DatasetError> {
        let Opening { request, pattern, storage, .. } = opening;
        let find = |is_one: &dyn Fn(&[u8]) -> bool| {
            shard_paths::find_named(*storage, &request.config.path, *pattern, is_one)
                .map_err(tell_missing)
        };
        let mut files = find(&names::is_record_file)?;
        if files.is_empty() && pattern.is_none() {
            // Files that the storage does not unpack are refused when they are read.
            files = find(&names::is_compressed)?;
        }
        if files.is_empty() {
            return Err(request.no_samples(
                "there is no .tfrecord file in it; name files of other names by a pattern that ends in .tfrecord or in \
                 -of-00100",
            ));
        }
        refuse_twice(*storage, &files)?;
        Ok(files)
    }

    fn make(
        opening: &Opening<'_, Self>,
        warnings: &mut Vec<String>,
    ) -> Result<Vec<u8>, DatasetError> {
        make_of_shards(opening, warnings)
    }

    fn of_index(index: &ShardIndex, _opening: &Opening<'_, Self>) -> Option<Self> {
        let rules = parse_rules(index.rules()).filter(|_| index.columns() == 1)?;
        Some(Self(Examples { rules }))
    }

    fn needs_first(&self) -> bool {
        self.0.needs_first()
    }

    fn fields(
        &self,
        index: &ShardIndex,
        first: Option<SampleBytes<'_>>,
    ) -> Result<Vec<Field>, Defect> {
        fields_of(self, index, first, self.0.rules.iter(), Examples::field)
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
        let data = frame::data(whole_bytes(index, id, bytes, "file")?);
        let data = data.map_err(|reason| Defect(reason.to_owned()))?;
        self.0.values(data, take)
    }

    fn unpacked_bytes(&self, bytes: SampleBytes<'_>) -> u64 {
        match self.needs_first() {
            true => frame::data(bytes.all()).map_or(0, |data| self.0.unpacked_bytes(data)),
            false => 0,
        }
    }

    fn field_rules(&self) -> String {
        self.0.table()
    }

    fn max_row_bytes(&self, index: &ShardIndex, _place: usize, field: &Field) -> Option<u64> {
        Examples::max_row_bytes(index, field)
    }

    fn classes(&self) -> &[String] {
        self.0.classes()
    }
}

impl ShardFormat for TfRecord {
    const NAME_FORM: &'static str = "a sample is named by its file, relative to the dataset's folder, and its number in it, as in train.tfrecord/17";

    type Scan = ();
    type Counts = ();

    fn plan(
        opening: &Opening<'_, Self>,
        warnings: &mut Vec<String>,
    ) -> Result<ShardPlan<()>, DatasetError> {
        let files = Self::files(opening)?;
        let rules = rules_text(&scan::settle(opening, &files, warnings)?);
        Ok(ShardPlan { files, columns: 1, rules, scan: () })
    }

    /// Reads the heads of a file's records.
    fn scan(
        storage: &dyn Storage,
        _scan: &(),
        (_place, path): (usize, &[u8]),
        pace: &dyn Pace,
    ) -> Result<(ScannedShard, ()), DatasetError> {
        let file = StoredFile::new(storage, path)?;
        let mut shard = ScannedShard::new(path, &file);
        let mut frames = Frames::new(&file, WindowSize::for_storage(storage));
        while let Some(extent) = frames.next(|compression| scan::remedy(path, compression))? {
            shard.push_numbered(extent, &file)?;
            if shard.samples() as u64 % RECORDS_PER_CHECK == 1
                && pace.is_stopped_at(extent.offset, file.stamp.bytes)
            {
                return Err(DatasetError::Cancelled);
            }
        }
        Ok((shard, ()))
    }
}

#[cfg(test)]
mod tests;
