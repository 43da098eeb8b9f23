//! Groups the members of an archive into samples.

use super::dali_index::{self, List};
use super::energon;
use super::members::{End, Members};
use super::names::{self, Name};
use std::collections::HashSet;

use forebay_dataset::error::DatasetError;
use forebay_index::shards::{Extent, Pace, ScannedShard};
use forebay_index::stored_file::StoredFile;
use forebay_index::window::WindowSize;
use forebay_storage::Storage;
use forebay_storage::version::FileStamp;

/// The members that a column reads.
#[derive(Debug)]
pub(super) struct Column {
    /// Extensions; the first one that a sample has is used.
    pub(super) from: Vec<String>,
    /// Whether a sample without it is removed from the dataset.
    pub(super) skips: bool,
}

/// Counts of ignored members and samples, for warnings.
#[derive(Debug, Default, Clone)]
pub(crate) struct Counts {
    /// Members whose names do not belong to a sample.
    pub(super) nameless: u64,
    /// Hidden files, such as macOS adds.
    pub(super) hidden: u64,
    /// Samples without a required column.
    pub(super) skipped: u64,
    /// Samples without any column.
    pub(super) foreign: u64,
    /// Samples that Energon's split excludes.
    pub(super) excluded: u64,
    /// Hard links without data.
    pub(super) links: u64,
    /// Archives without an end mark, which may be truncated.
    pub(super) unmarked: u64,
    /// Why `.idx` files were not used, one entry per archive.
    pub(super) distrusted: Vec<String>,
    /// Per column: the number of samples without it.
    pub(super) missing: Vec<u64>,
}

impl Counts {
    pub(super) fn add(&mut self, other: &Self) {
        self.nameless += other.nameless;
        self.hidden += other.hidden;
        self.skipped += other.skipped;
        self.foreign += other.foreign;
        self.excluded += other.excluded;
        self.links += other.links;
        self.unmarked += other.unmarked;
        self.distrusted.extend_from_slice(&other.distrusted);
        self.missing.resize(other.missing.len().max(self.missing.len()), 0);
        self.missing.iter_mut().zip(&other.missing).for_each(|(sum, more)| *sum += more);
    }
}

/// The number of members between two progress reports of a thread.
const MEMBERS_PER_CHECK: u64 = 256;

/// Scans one archive.
///
/// # Errors
/// The archive is broken or cannot be read, or the scan was stopped.
pub(super) fn scan_shard(
    storage: &dyn Storage,
    path: &[u8],
    (columns, excluded): (&[Column], &HashSet<Vec<u8>>),
    pace: &dyn Pace,
) -> Result<(ScannedShard, Counts), DatasetError> {
    let archive = StoredFile::new(storage, path)?;
    if energon::is_metadata(path) {
        // It has no samples: it is in the index so that a change of it is noticed.
        let (path, stamp) = (path.to_vec(), archive.stamp);
        return Ok((ScannedShard { path, stamp, ..ScannedShard::default() }, Counts::default()));
    }
    let leave_out = Excluded { archive: path, samples: excluded };
    let mut distrusted = None;
    match dali_index::read(storage, path, &archive)? {
        Some(Ok(list)) => match group_list(&list, path, &archive, (columns, leave_out)) {
            Ok(found) => return Ok(found),
            Err(reason) => distrusted = Some(reason),
        },
        Some(Err(reason)) => distrusted = Some(reason),
        None => {}
    }
    let window = WindowSize::for_storage(storage);
    let mut grouping = Grouping::new(columns, leave_out);
    grouping.counts.distrusted = distrusted.into_iter().collect();
    let mut members = Members::new(&archive, window);
    let mut walked = 0;
    while let Some(member) = members.next()? {
        let extent = Extent { offset: member.offset, bytes: member.size };
        grouping.add(member.name, extent).map_err(|reason| archive.fault(reason))?;
        walked += 1;
        if walked % MEMBERS_PER_CHECK == 1 && pace.is_stopped_at(extent.offset, archive.stamp.bytes)
        {
            return Err(DatasetError::Cancelled);
        }
    }
    grouping.counts.links = members.links();
    grouping.counts.unmarked = u64::from(members.end() == Some(End::Unmarked));
    grouping.finish(path.to_vec(), archive.stamp).map_err(|reason| archive.fault(reason))
}

/// The samples of an archive that has a list of its members.
///
/// # Errors
/// The members do not form samples; a scan of the archive gives a better reason.
fn group_list(
    list: &List,
    path: &[u8],
    archive: &StoredFile<'_>,
    (columns, leave_out): (&[Column], Excluded<'_>),
) -> Result<(ScannedShard, Counts), String> {
    let mut grouping = Grouping::new(columns, leave_out);
    for member in list.members() {
        let extent = Extent { offset: member.offset, bytes: member.size };
        grouping.add(member.name, extent)?;
    }
    grouping.counts.unmarked = u64::from(list.end == End::Unmarked);
    let (shard, counts) = grouping.finish(path.to_vec(), archive.stamp)?;
    Ok((ScannedShard { is_listed: true, ..shard }, counts))
}

/// The samples of an archive that are left out by name, as `ARCHIVE/KEY`.
#[derive(Debug, Clone, Copy)]
struct Excluded<'a> {
    archive: &'a [u8],
    samples: &'a HashSet<Vec<u8>>,
}

impl Excluded<'_> {
    fn has(&self, key: &[u8]) -> bool {
        !self.samples.is_empty() && self.samples.contains(&[self.archive, key].join(&b'/'))
    }
}

/// Groups the members of one shard into samples.
struct Grouping<'a> {
    columns: &'a [Column],
    leave_out: Excluded<'a>,
    key: Vec<u8>,
    /// The current sample: per column the member, and the index of its extension in the column's list.
    row: Vec<Option<(Extent, usize)>>,
    is_open: bool,
    shard: ScannedShard,
    counts: Counts,
}

impl<'a> Grouping<'a> {
    fn new(columns: &'a [Column], leave_out: Excluded<'a>) -> Self {
        let counts = Counts { missing: vec![0; columns.len()], ..Counts::default() };
        let row = vec![None; columns.len()];
        let shard = ScannedShard::default();
        Self { columns, leave_out, key: Vec::new(), row, is_open: false, shard, counts }
    }

    fn add(&mut self, name: &[u8], extent: Extent) -> Result<(), String> {
        let (key, field) = match names::split(name) {
            Name::Field { key, field } => (key, field),
            Name::None => {
                self.counts.nameless += 1;
                return Ok(());
            }
            Name::Hidden => {
                self.counts.hidden += 1;
                return Ok(());
            }
        };
        if !self.is_open || key != self.key {
            self.close()?;
            self.key.clear();
            self.key.extend_from_slice(key);
            self.is_open = true;
        }
        for (column, found) in self.columns.iter().zip(&mut self.row) {
            let is_named = |from: &String| from.as_bytes().eq_ignore_ascii_case(field);
            let Some(rank) = column.from.iter().position(is_named) else { continue };
            match found {
                Some((_, other)) if *other == rank => {
                    return Err(format!(
                        "the sample {:?} has two members {:?}; webdataset refuses such a sample, too: give each member a \
                         key or an extension of its own",
                        String::from_utf8_lossy(key),
                        column.from[rank]
                    ));
                }
                Some((_, other)) if *other < rank => {}
                _ => *found = Some((extent, rank)),
            }
        }
        Ok(())
    }

    fn close(&mut self) -> Result<(), String> {
        if !std::mem::take(&mut self.is_open) {
            return Ok(());
        }
        let is_foreign = self.row.iter().all(Option::is_none);
        let mut pairs = self.columns.iter().zip(&self.row);
        if self.leave_out.has(&self.key) {
            self.counts.excluded += 1;
        } else if is_foreign {
            self.counts.foreign += 1;
        } else if pairs.any(|(column, found)| column.skips && found.is_none()) {
            self.counts.skipped += 1;
        } else {
            for (found, missing) in self.row.iter().zip(&mut self.counts.missing) {
                *missing += u64::from(found.is_none());
            }
            self.shard.members.extend(self.row.iter().map(|found| found.map(|(extent, _)| extent)));
            self.shard.names.extend_from_slice(&self.key);
            let end = u32::try_from(self.shard.names.len());
            let end =
                end.map_err(|_| "its samples' keys have more than 4 GiB; split it".to_owned())?;
            self.shard.name_ends.push(end);
        }
        self.row.fill(None);
        Ok(())
    }

    fn finish(mut self, path: Vec<u8>, stamp: FileStamp) -> Result<(ScannedShard, Counts), String> {
        self.close()?;
        Ok((ScannedShard { path, stamp, ..self.shard }, self.counts))
    }
}
