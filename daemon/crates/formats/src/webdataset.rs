//! `webdataset`: samples in tar archives, as written and read by the package webdataset.
//!
//! Consecutive members whose names are equal up to their first dot are a sample; the rest of the name is the field
//! ([`names`]). The headers of the archives are read once ([`members`], [`scan`]) for an index of the members'
//! locations ([`ShardIndex`]), or the locations are read from DALI's `.idx` files ([`dali_index`]); then a sample is a
//! range of its archive, so the shuffle is exact. Each read begins at the header before the first member, and the
//! headers in it are checked: an archive that was replaced since gives a bad sample, not the bytes of another one. A
//! folder that Energon has prepared also has a list of its archives by part, and a map of its fields ([`energon`]).

mod dali_index;
mod energon;
mod fuzzed;
mod header;
mod members;
mod names;
mod plan;
mod scan;

use std::ops::Range;

use forebay_keys::{ConfigError, Section, keys};
use forebay_protocol::ids::SampleId;

use self::energon::Energon;
#[doc(hidden)]
pub(super) use self::energon::check_metadata;
#[doc(hidden)]
pub(super) use self::fuzzed::{check_index, check_list, walk_for_fuzzing};
use self::header::BLOCK;
use self::plan::TarScan;
use self::scan::Counts;
use crate::columns::read_members;
use crate::draft::{Draft, Seen};
use crate::fields::{FieldRule, FieldsTable, Form, fields_table, parse_rules, rules_text};
use crate::indexed::{Format, Opening, ShardFormat, ShardPlan, Take, make_of_shards};
use forebay_dataset::error::DatasetError;
use forebay_dataset::{Defect, Field};
use forebay_index::folder::scan::{FolderFormat, LooseFiles};
use forebay_index::saved_index::{SavedIndex, refuse_twice, tell_missing};
use forebay_index::shard_paths::{self, has_extension};
use forebay_index::shards::{Extent, Pace, ScannedShard, ShardIndex};
use forebay_storage::Storage;
use forebay_storage::location::{ByteRange, FileId, Location, SampleBytes};

/// Compressed archives, detected by name for a specific error.
const COMPRESSED: [&str; 10] = [
    ".tar.gz", ".tgz", ".tar.zst", ".tzst", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.lz4",
    ".tar.z",
];
/// The maximum gap between members that are read together.
const MAX_GAP_BYTES: u64 = 64 << 10;
/// The maximum number of columns of a configuration: the maximum number of tensors in a batch.
const MAX_COLUMNS: usize = forebay_protocol::tensor::MAX_TENSORS;

keys! {
    /// The keys of formats whose samples are made of named members or columns.
    pub(super) struct WebDatasetKeys = "dataset", check check_keys {
        /// the fields and what each is made of; see [Fields](formats.md#fields)
        pub(super) fields: FieldsTable, "", absent("what the first samples have");
        /// of a folder with Energon's `.nv-meta`: the part of its split
        pub(super) part: String, "", absent("`\"train\"`; without `.nv-meta`, all archives");
    }
}

fn check_keys(keys: &mut WebDatasetKeys, _section: &Section) -> Result<(), ConfigError> {
    read_members(keys.fields.as_deref()).map(drop)
}

/// The fields of archives.
#[derive(Debug)]
pub(super) struct WebDataset {
    /// One per field.
    rules: Vec<FieldRule>,
    /// One per field.
    columns: Vec<usize>,
}

/// The ranges of a shard that contain a sample's members, each starting at the header before its first member.
struct Spans {
    spans: [(u64, u64); MAX_COLUMNS],
    count: usize,
}

impl Spans {
    fn get(&self) -> &[(u64, u64)] {
        self.spans.get(..self.count).unwrap_or_default()
    }

    /// The ranges of a sample.
    fn of(index: &ShardIndex, id: SampleId) -> Self {
        let mut spans = [(0, 0); MAX_COLUMNS];
        let mut count = 0;
        for column in 0..index.columns() {
            if let (Some(Extent { offset, bytes }), Some(span)) =
                (index.member(id, column), spans.get_mut(count))
            {
                // Saturates, because the index may be corrupt; the storage refuses ranges outside the file.
                *span = (offset.saturating_sub(BLOCK as u64), offset.saturating_add(bytes));
                count += 1;
            }
        }
        spans[..count].sort_unstable();
        let mut merged = 0;
        for place in 1..count {
            if spans[place].0.saturating_sub(spans[merged].1) <= MAX_GAP_BYTES {
                spans[merged].1 = spans[merged].1.max(spans[place].1);
            } else {
                merged += 1;
                spans[merged] = spans[place];
            }
        }
        Self { spans, count: if count == 0 { 0 } else { merged + 1 } }
    }

    /// A member's header and data in the bytes that were read.
    fn header_and_data<'a>(
        &self,
        bytes: SampleBytes<'a>,
        member: Extent,
    ) -> Result<(&'a [u8; BLOCK], &'a [u8]), Defect> {
        let changed = || {
            Defect(format!(
                "there is no member of {} bytes at byte {} of its archive any more: the archive was changed after it was \
                 indexed; leave archives as they are while they are read, and begin a new run",
                member.bytes, member.offset
            ))
        };
        let header = member.offset.checked_sub(BLOCK as u64).ok_or_else(changed)?;
        let holds =
            |(start, end): &(u64, u64)| *start <= header && member.offset + member.bytes <= *end;
        let part = self.get().iter().position(holds).ok_or_else(changed)?;
        let (start, end) = self.get()[part];
        let read = bytes.part(part).filter(|read| read.len() as u64 == end - start);
        let read = read.ok_or_else(|| {
            Defect(format!("{} bytes of its archive were to be read, and others were", end - start))
        })?;
        let place = |offset: u64| usize::try_from(offset - start).unwrap_or(usize::MAX);
        let data: Range<usize> = place(member.offset)..place(member.offset + member.bytes);
        let block = read.get(place(header)..).and_then(<[u8]>::first_chunk);
        let block = block.filter(|block| members::is_header_of(block, member.bytes));
        Ok((block.ok_or_else(changed)?, read.get(data).ok_or_else(changed)?))
    }

    fn data<'a>(&self, bytes: SampleBytes<'a>, member: Extent) -> Result<&'a [u8], Defect> {
        self.header_and_data(bytes, member).map(|(_, data)| data)
    }

    /// As [`data`](Self::data), for a member whose name comes only from a list: its header must have that name.
    fn listed_data<'a>(
        &self,
        bytes: SampleBytes<'a>,
        member: Extent,
        (key, fields): (&[u8], &[String]),
    ) -> Result<&'a [u8], Defect> {
        let (header, data) = self.header_and_data(bytes, member)?;
        let mut name = Vec::new();
        header::append_name(header, &mut name);
        let field = name.strip_prefix(key).and_then(|rest| rest.strip_prefix(b"."));
        let is_one = |known: &String| {
            field.is_some_and(|field| field.eq_ignore_ascii_case(known.as_bytes()))
        };
        if fields.iter().any(is_one) {
            return Ok(data);
        }
        Err(Defect(format!(
            "its archive has the member {:?} at byte {}, where the .idx beside it has another one of the sample; remove the \
             .idx, or make it again with DALI's wds2idx, and index the dataset anew",
            String::from_utf8_lossy(&name),
            member.offset
        )))
    }
}

impl Format for WebDataset {
    const FORMAT: FolderFormat =
        FolderFormat { name: "webdataset", extensions: &[".tar"], loose: LooseFiles::NoFolders };
    const OTHER_FILE: &'static str = "a file that does not end in .tar";
    const EXPECTED: &'static str =
        "a .tar file, several by a pattern such as {000..099}.tar, or a folder of them";
    const UNPACKS: bool = true;
    const IS_LISTED: bool = true;

    type Keys = WebDatasetKeys;
    type Index = ShardIndex;

    /// Compressed or not.
    fn reads(name: &[u8]) -> bool {
        has_extension(name, Self::FORMAT.extensions) || has_extension(name, &COMPRESSED)
    }

    /// Decodes images to one size, and keeps the other fields.
    fn draft(seen: &Seen) -> Draft {
        Draft::of_members(seen, false)
    }

    fn digested(keys: &WebDatasetKeys) -> Result<String, ConfigError> {
        let rules = read_members(keys.fields.as_deref())?;
        let part = keys.part.as_ref().map(|part| format!("\0part={part}")).unwrap_or_default();
        Ok(rules.as_deref().map(rules_text).unwrap_or_default() + &part)
    }

    fn files(opening: &Opening<'_, Self>) -> Result<Vec<Vec<u8>>, DatasetError> {
        let Opening { request, pattern, storage, .. } = opening;
        if let Some(energon) = Energon::find(opening)? {
            return Ok(energon.files());
        }
        let find = |extensions| {
            shard_paths::find(*storage, &request.config.path, *pattern, extensions)
                .map_err(tell_missing)
        };
        let mut files = find(Self::FORMAT.extensions)?;
        if files.is_empty() && pattern.is_none() {
            files = find(&COMPRESSED)?;
        }
        let is_refused =
            |name: &&Vec<u8>| has_extension(name, &COMPRESSED) && !storage.unpacks(name);
        if let Some(name) = files.iter().find(is_refused) {
            return Err(DatasetError::BrokenFile {
                path: storage.full_path(name),
                reason: "a compressed archive cannot be read at a place of its own; decompress it (gunzip, unzstd), which \
                         costs little: pictures hardly compress. Or name a folder in cache.path, where archives of gzip and \
                         zstd are unpacked once"
                    .to_owned(),
            });
        }
        if files.is_empty() {
            return Err(request.no_samples("there is no .tar file in it"));
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
        let rules = parse_rules(index.rules())?;
        let of = plan::columns(&rules);
        let column_of =
            |rule: &FieldRule| of.iter().position(|column| column.from == rule.from).unwrap_or(0);
        let columns = rules.iter().map(column_of).collect();
        Some(Self { rules, columns })
    }

    fn needs_first(&self) -> bool {
        self.rules.iter().any(|rule| rule.form == Form::Array)
    }

    /// Reads only the array members of the first sample.
    fn fields(
        &self,
        index: &ShardIndex,
        first: Option<SampleBytes<'_>>,
    ) -> Result<Vec<Field>, Defect> {
        let id = SampleId(0);
        let spans = Spans::of(index, id);
        let field = |(rule, column): (&FieldRule, &usize)| {
            let member = index.member(id, *column).filter(|_| rule.form == Form::Array);
            let data = first.zip(member).map(|(read, member)| spans.data(read, member));
            rule.field(data.transpose()?)
        };
        self.rules.iter().zip(&self.columns).map(field).collect()
    }

    fn locate(&self, index: &ShardIndex, id: SampleId, locations: &mut Vec<Location>) {
        let file = FileId(index.shard_of(id) as u64);
        for (start, end) in Spans::of(index, id).get() {
            let range = ByteRange { offset: *start, length: Some(end - start) };
            locations.push(Location { range, ..Location::whole(file) });
        }
    }

    fn values<'a>(
        &'a self,
        index: &'a ShardIndex,
        id: SampleId,
        bytes: SampleBytes<'a>,
        take: Take<'_, 'a>,
    ) -> Result<(), Defect> {
        let spans = Spans::of(index, id);
        let shard = index.shard(index.shard_of(id));
        let key = shard.filter(|shard| shard.is_listed).map(|_| index.key(id));
        for (rule, column) in self.rules.iter().zip(&self.columns) {
            let data = index.member(id, *column).map(|member| match key {
                Some(key) => spans.listed_data(bytes, member, (key, &rule.from)),
                None => spans.data(bytes, member),
            });
            take(rule.value(data.transpose()?)?)?;
        }
        Ok(())
    }

    fn append_key(&self, index: &ShardIndex, id: SampleId, key: &mut Vec<u8>) -> bool {
        key.extend_from_slice(index.key(id));
        true
    }

    fn field_rules(&self) -> String {
        fields_table(self.rules.iter().map(|rule| (rule, String::new())))
    }

    fn max_row_bytes(&self, index: &ShardIndex, place: usize, field: &Field) -> Option<u64> {
        // A value of a JSON member is shorter than the JSON, and an array is shorter than its file.
        let column = self.columns.get(place)?;
        field.kind.is_of_any_length().then(|| index.longest(*column).max(1))
    }
}

impl ShardFormat for WebDataset {
    const NAME_FORM: &'static str = "a sample is named by its archive, relative to the dataset's folder, and its key, as in train-000.tar/KEY";

    type Scan = TarScan;
    type Counts = Counts;

    fn plan(
        opening: &Opening<'_, Self>,
        warnings: &mut Vec<String>,
    ) -> Result<ShardPlan<TarScan>, DatasetError> {
        let energon = Energon::find(opening)?;
        let files = match &energon {
            Some(energon) => energon.files(),
            None => Self::files(opening)?,
        };
        let archives = energon.as_ref().map_or(&files[..], |energon| &energon.archives);
        let given = read_members(opening.keys.fields.as_deref())?;
        let mapped = match (&energon, &given) {
            (Some(energon), None) => energon.rules(opening.storage, warnings)?,
            _ => None,
        };
        let rules = match given.or(mapped) {
            Some(rules) => rules,
            None => plan::infer(opening, archives, warnings)?,
        };
        let columns = plan::columns(&rules);
        let text = rules_text(&rules);
        warnings.extend(energon.as_ref().and_then(Energon::unnamed_part));
        let excluded = energon.map(|energon| energon.excluded).unwrap_or_default();
        let scan = TarScan { rules, columns, excluded };
        Ok(ShardPlan { files, columns: scan.columns.len(), rules: text, scan })
    }

    fn scan(
        storage: &dyn Storage,
        scan: &TarScan,
        (_place, path): (usize, &[u8]),
        pace: &dyn Pace,
    ) -> Result<(ScannedShard, Counts), DatasetError> {
        scan::scan_shard(storage, path, (&scan.columns, &scan.excluded), pace)
    }

    fn conclude(scan: &TarScan, counts: Vec<Counts>, warnings: &mut Vec<String>) -> String {
        let mut sum = Counts::default();
        counts.iter().for_each(|more| sum.add(more));
        warnings.extend(scan.sentences(&sum));
        let left = sum.skipped + sum.foreign;
        let names: Vec<_> = scan.columns.iter().map(|column| column.from.join("|")).collect();
        format!("none of its {left} samples has what dataset.fields names ({})", names.join(", "))
    }
}

#[cfg(test)]
mod energon_tests;
#[cfg(test)]
mod tests;
