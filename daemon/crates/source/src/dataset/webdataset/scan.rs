//! From an archive to samples: its members are grouped as they come.

use super::dali_index::{self, List};
use super::members::{End, Members};
use super::names::{self, Name};
use crate::dataset::error::DatasetError;
use crate::dataset::shards::{Extent, Pace, ScannedShard};
use crate::dataset::stored_file::{FileStamp, StoredFile};
use crate::dataset::window::WindowSize;
use crate::storage::Storage;

/// What a column takes of a sample.
#[derive(Debug)]
pub(super) struct Column {
    /// The extensions, of which the first that a sample has is used.
    pub(super) from: Vec<String>,
    /// Whether a sample without it leaves the dataset.
    pub(super) skips: bool,
}

/// What was left out, and what the user should know.
#[derive(Debug, Default, Clone)]
pub(super) struct Counts {
    /// Members whose names are no sample's.
    pub(super) nameless: u64,
    /// Hidden files, as macOS adds them.
    pub(super) hidden: u64,
    /// Samples without a column that they need.
    pub(super) skipped: u64,
    /// Samples without any column.
    pub(super) foreign: u64,
    /// Archives without an end mark, which may be cut off.
    pub(super) unmarked: u64,
    /// Why `.idx` files were not used, one an archive.
    pub(super) distrusted: Vec<String>,
    /// By column: samples that have none.
    pub(super) missing: Vec<u64>,
}

impl Counts {
    pub(super) fn add(&mut self, other: &Self) {
        self.nameless += other.nameless;
        self.hidden += other.hidden;
        self.skipped += other.skipped;
        self.foreign += other.foreign;
        self.unmarked += other.unmarked;
        self.distrusted.extend_from_slice(&other.distrusted);
        self.missing.resize(other.missing.len().max(self.missing.len()), 0);
        self.missing.iter_mut().zip(&other.missing).for_each(|(sum, more)| *sum += more);
    }
}

/// Members after which a thread tells how far it is, and asks whether the scan was stopped.
const MEMBERS_PER_ASK: u64 = 256;

/// Walks over one archive.
///
/// # Errors
/// It is broken or cannot be read, or the scan was stopped.
pub(super) fn scan_shard(
    storage: &dyn Storage,
    path: &[u8],
    columns: &[Column],
    pace: &dyn Pace,
) -> Result<(ScannedShard, Counts), DatasetError> {
    let archive = StoredFile::new(storage, path)?;
    let mut distrusted = None;
    match dali_index::read(storage, path, &archive)? {
        Some(Ok(list)) => match group_list(&list, path, &archive, columns) {
            Ok(found) => return Ok(found),
            Err(reason) => distrusted = Some(reason),
        },
        Some(Err(reason)) => distrusted = Some(reason),
        None => {}
    }
    let window = WindowSize::for_storage(storage);
    let mut grouping = Grouping::new(columns);
    grouping.counts.distrusted = distrusted.into_iter().collect();
    let mut members = Members::new(&archive, archive.stamp.bytes, window);
    let mut walked = 0;
    while let Some(member) = members.next()? {
        let extent = Extent { offset: member.offset, bytes: member.size };
        grouping.add(member.name, extent).map_err(|reason| archive.fault(reason))?;
        walked += 1;
        if walked % MEMBERS_PER_ASK == 1 && pace.is_stopped_at(extent.offset, archive.stamp.bytes) {
            return Err(DatasetError::Cancelled);
        }
    }
    grouping.counts.unmarked = u64::from(members.end() == Some(End::Unmarked));
    grouping.finish(path.to_vec(), archive.stamp).map_err(|reason| archive.fault(reason))
}

/// The samples of an archive of whose members there is a list.
///
/// # Errors
/// They make no samples; the archive itself tells better why.
fn group_list(
    list: &List,
    path: &[u8],
    archive: &StoredFile<'_>,
    columns: &[Column],
) -> Result<(ScannedShard, Counts), String> {
    let mut grouping = Grouping::new(columns);
    for member in list.members() {
        let extent = Extent { offset: member.offset, bytes: member.size };
        grouping.add(member.name, extent)?;
    }
    grouping.counts.unmarked = u64::from(list.end == End::Unmarked);
    let (shard, counts) = grouping.finish(path.to_vec(), archive.stamp)?;
    Ok((ScannedShard { is_listed: true, ..shard }, counts))
}

/// The samples of one shard while its members come.
struct Grouping<'a> {
    columns: &'a [Column],
    key: Vec<u8>,
    /// Of the sample that is open: by column the member, and the place of its extension among the column's.
    row: Vec<Option<(Extent, usize)>>,
    is_open: bool,
    shard: ScannedShard,
    counts: Counts,
}

impl<'a> Grouping<'a> {
    fn new(columns: &'a [Column]) -> Self {
        let counts = Counts { missing: vec![0; columns.len()], ..Counts::default() };
        let row = vec![None; columns.len()];
        let shard = ScannedShard::default();
        Self { columns, key: Vec::new(), row, is_open: false, shard, counts }
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
        if is_foreign {
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
