//! `webdataset`: samples in tar archives, as the package webdataset writes and reads them.
//!
//! Members whose names are equal up to their first dot, and that follow each other, are a sample; what follows the dot is
//! the field ([`names`]). The archives are walked over once, by their headers alone ([`members`], [`scan`]), for an index
//! that says where each member lies ([`shards`]), or taken from DALI's `.idx` files ([`dali_index`]); then a sample is a range
//! of its archive, so that the shuffle is exact. Each read begins at the header before the first member, and the headers that
//! it brings are checked: an archive that was replaced since gives a bad sample and not another one's bytes.

mod dali_index;
mod fuzzed;
mod header;
mod members;
mod names;
mod open;
mod request;
mod scan;

use std::ops::Range;

use forebay_config::{ConfigError, Located, Section, keys};
use forebay_protocol::ids::SampleId;

use self::header::BLOCK;
use super::draft::{Draft, Seen};
use super::fields::{FieldRule, FieldsTable, fields_table, read_rules};
use super::file_samples::check_type;
use super::folder::scan::FolderFormat;
use super::saved_index::SavedIndex;
use super::shards::{self, Extent, ShardIndex};
use super::{Dataset, Defect, Field, FieldKind, FieldValue, IndexBytes};
use crate::location::{ByteRange, FileId, FileTable, Location, ObjectStamp, SampleBytes};

#[doc(hidden)]
pub(super) use self::fuzzed::{check_index, check_list, walk_for_fuzzing};
pub(super) use self::open::open;
pub(super) use self::request::{has_saved_index, is_archive, root};

/// What is read.
pub(super) const FORMAT: FolderFormat =
    FolderFormat { name: "webdataset", extensions: &[".tar"], flat_is_valid: true };
/// Members that are further apart are read apart.
const MAX_GAP_BYTES: u64 = 64 << 10;
/// Columns that a configuration may have: as many as a batch has tensors.
const MAX_COLUMNS: usize = forebay_protocol::tensor::MAX_TENSORS;

keys! {
    /// The keys of formats whose samples are made of named members or columns.
    pub(super) struct WebDatasetKeys = "dataset", check check_keys {
        /// the fields and what each is made of; see [formats.md](formats.md#fields)
        pub(super) fields: FieldsTable, "", absent("what the first samples have");
    }
}

fn check_keys(keys: &mut WebDatasetKeys, _section: &Section) -> Result<(), ConfigError> {
    let entries: &[(String, Located)] = keys.fields.as_deref().unwrap_or_default();
    read_rules(entries).map(drop)
}

/// The images decoded to one size, the rest as it is.
pub(super) fn draft(seen: &Seen) -> Draft {
    Draft::of_members(seen)
}

/// Samples in archives.
#[derive(Debug)]
pub(super) struct TarSamples {
    index: ShardIndex,
    fields: Vec<Field>,
    /// By field.
    rules: Vec<FieldRule>,
    /// By field.
    columns: Vec<usize>,
}

/// The parts of a shard that hold a sample's members, each from the header before its first member on.
struct Spans {
    spans: [(u64, u64); MAX_COLUMNS],
    count: usize,
}

impl Spans {
    fn get(&self) -> &[(u64, u64)] {
        self.spans.get(..self.count).unwrap_or_default()
    }
}

impl TarSamples {
    fn spans(&self, id: SampleId) -> Spans {
        let mut spans = [(0, 0); MAX_COLUMNS];
        let mut count = 0;
        for column in 0..self.index.columns() {
            if let (Some(Extent { offset, bytes }), Some(span)) =
                (self.index.member(id, column), spans.get_mut(count))
            {
                // Lengths of an index that lies cannot overflow a read: the storage refuses what is no part of the file.
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
        Spans { spans, count: if count == 0 { 0 } else { merged + 1 } }
    }

    /// A member's header and data within the bytes that were read.
    fn header_and_data<'a>(
        spans: &Spans,
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
        let part = spans.get().iter().position(holds).ok_or_else(changed)?;
        let (start, end) = spans.get()[part];
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

    fn data<'a>(spans: &Spans, bytes: SampleBytes<'a>, member: Extent) -> Result<&'a [u8], Defect> {
        Self::header_and_data(spans, bytes, member).map(|(_, data)| data)
    }

    /// As [`data`](Self::data) of a member that only a list gave its name: its header has to be of that name.
    fn listed_data<'a>(
        spans: &Spans,
        bytes: SampleBytes<'a>,
        member: Extent,
        (key, fields): (&[u8], &[String]),
    ) -> Result<&'a [u8], Defect> {
        let (header, data) = Self::header_and_data(spans, bytes, member)?;
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

impl FileTable for TarSamples {
    fn append_path(&self, file: FileId, path: &mut Vec<u8>) {
        self.index.append_path(file, path);
    }

    fn stamp(&self, file: FileId) -> Option<ObjectStamp> {
        self.index.stamp(file)
    }
}

impl Dataset for TarSamples {
    fn sample_count(&self) -> u64 {
        self.index.samples()
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn locate(&self, id: SampleId, locations: &mut Vec<Location>) {
        let file = FileId(self.index.shard_of(id) as u64);
        for (start, end) in self.spans(id).get() {
            let range = ByteRange { offset: *start, length: Some(end - start) };
            locations.push(Location { range, ..Location::whole(file) });
        }
    }

    fn read<'a>(
        &'a self,
        id: SampleId,
        bytes: SampleBytes<'a>,
        values: &mut Vec<FieldValue<'a>>,
    ) -> Result<(), Defect> {
        let spans = self.spans(id);
        let shard = self.index.shard(self.index.shard_of(id));
        let key = shard.filter(|shard| shard.is_listed).map(|_| self.index.key(id));
        for ((rule, column), field) in self.rules.iter().zip(&self.columns).zip(&self.fields) {
            let member = self.index.member(id, *column);
            let data = member.map(|member| match key {
                Some(key) => Self::listed_data(&spans, bytes, member, (key, &rule.from)),
                None => Self::data(&spans, bytes, member),
            });
            let data = data.transpose()?;
            let value = rule.value(data)?;
            if let FieldValue::Array(array) = &value {
                check_type(field, array)?;
            }
            values.push(value);
        }
        Ok(())
    }

    fn fingerprint(&self) -> [u8; 32] {
        self.index.fingerprint()
    }

    fn index(&self) -> Option<&IndexBytes> {
        Some(self.index.bytes())
    }

    fn field_rules(&self) -> String {
        fields_table(self.rules.iter().map(|rule| (rule, String::new())))
    }

    fn append_name(&self, id: SampleId, name: &mut Vec<u8>) {
        shards::append_name(&self.index, id, name);
    }

    fn max_row_bytes(&self, field: usize) -> Option<u64> {
        let is_of_bytes =
            matches!(self.fields.get(field)?.kind, FieldKind::Bytes | FieldKind::Text);
        // A value of JSON is shorter than the JSON that it stands in.
        is_of_bytes
            .then(|| self.columns.get(field).map(|column| self.index.longest(*column).max(1)))?
    }
}

#[cfg(test)]
mod tests;
