//! Formats whose files contain many samples each, and whose index contains their ranges.

use forebay_protocol::ids::SampleId;

use super::{Format, Opening};
use forebay_dataset::Defect;
use forebay_dataset::error::DatasetError;
use forebay_index::saved_index::{now_seconds, tell_missing};
use forebay_index::shards::{self, Extent, Origin, Pace, ScannedShard, ShardIndex};
use forebay_storage::Storage;
use forebay_storage::location::{ByteRange, FileId, Location, SampleBytes};

/// A format of files that contain many samples each.
pub(crate) trait ShardFormat: Format<Index = ShardIndex> {
    /// The form of a sample's name, for messages.
    const NAME_FORM: &'static str;

    /// The inputs of a scan.
    type Scan: Sync;
    /// Counts of a file besides its samples.
    type Counts: Send;

    /// Plans the scan from the files and the first samples.
    ///
    /// # Errors
    /// As [`make`](Format::make).
    fn plan(
        opening: &Opening<'_, Self>,
        warnings: &mut Vec<String>,
    ) -> Result<ShardPlan<Self::Scan>, DatasetError>;

    /// Finds the samples of a file, given by its index in the plan and its path.
    ///
    /// # Errors
    /// The file is broken or cannot be read, or the scan was stopped.
    fn scan(
        storage: &dyn Storage,
        scan: &Self::Scan,
        file: (usize, &[u8]),
        pace: &dyn Pace,
    ) -> Result<(ScannedShard, Self::Counts), DatasetError>;

    /// Adds warnings about the scan; returns the reason for the error if there are no samples.
    fn conclude(_: &Self::Scan, _: Vec<Self::Counts>, _warnings: &mut Vec<String>) -> String {
        format!("its {} files have no samples", Self::FORMAT.name)
    }
}

/// The inputs of scanning all files.
pub(crate) struct ShardPlan<S> {
    pub(crate) files: Vec<Vec<u8>>,
    /// The number of members per sample in the index.
    pub(crate) columns: usize,
    /// The field definition as text, for the index.
    pub(crate) rules: String,
    pub(crate) scan: S,
}

/// The [`make`](Format::make) of shard formats.
pub(crate) fn make_of_shards<F: ShardFormat>(
    opening: &Opening<'_, F>,
    warnings: &mut Vec<String>,
) -> Result<Vec<u8>, DatasetError> {
    let scan_started_seconds = now_seconds();
    let (request, storage) = (&opening.request, opening.storage);
    request.check_limit()?;
    let ShardPlan { files, columns, rules, scan } = F::plan(opening, warnings)?;
    let limit = request.config.limit.filter(|_| request.ids.is_none());
    let scan_shard =
        |place: usize, pace: &dyn Pace| F::scan(storage, &scan, (place, &files[place]), pace);
    let scanned = shards::scan(files.len(), limit, request.options.progress, &scan_shard);
    let (mut found, counts): (Vec<_>, Vec<_>) = scanned.map_err(tell_missing)?.into_iter().unzip();
    shards::select(request, &mut found, columns, F::NAME_FORM)?;
    let reason = F::conclude(&scan, counts, warnings);
    if found.iter().all(|shard| shard.samples() == 0) {
        return Err(request.no_samples(request.ids.as_ref().map_or(reason, |ids| ids.lists_none())));
    }
    let (identity, options) = (request.identity, request.digest);
    let origin = Origin { identity, options, scan_started_seconds, rules: &rules };
    Ok(ShardIndex::build(&found, columns, &origin))
}

/// The [`locate`](Format::locate) of a sample that is one range of a file.
pub(crate) fn locate_whole(index: &ShardIndex, id: SampleId, locations: &mut Vec<Location>) {
    let file = FileId(index.shard_of(id) as u64);
    let Extent { offset, bytes } = extent(index, id);
    let range = ByteRange { offset, length: Some(bytes) };
    locations.push(Location { range, ..Location::whole(file) });
}

/// The bytes of such a sample; `what` is the word for its file in messages.
///
/// # Errors
/// The number of bytes differs from that in the index.
pub(crate) fn whole_bytes<'a>(
    index: &ShardIndex,
    id: SampleId,
    bytes: SampleBytes<'a>,
    what: &str,
) -> Result<&'a [u8], Defect> {
    let (all, expected) = (bytes.all(), extent(index, id).bytes);
    match all.len() as u64 == expected {
        true => Ok(all),
        false => Err(Defect(format!(
            "{expected} bytes of its {what} were to be read, and {} were",
            all.len()
        ))),
    }
}

fn extent(index: &ShardIndex, id: SampleId) -> Extent {
    index.member(id, 0).unwrap_or(Extent { offset: 0, bytes: 0 })
}
