//! The lines of `forebay check` about the order, and about its cost in reads.

use super::classes;
use forebay_config::Shuffle;
use forebay_dataset::{PageBytes, SampleBlocks};
use forebay_engine::Stream;
use forebay_observe::format_bytes;
use forebay_order::Selection;
use forebay_protocol::counted::counted;

/// The number of unpacked bytes per used byte above which another order or a cache is advised.
const EXPENSIVE: f64 = 2.0;

/// Names and texts of the lines.
pub(super) fn lines(stream: &Stream, world_size: u32) -> Vec<(&'static str, String)> {
    let order = match stream.selection() {
        Selection::InBlocks(blocks) => {
            let (count, open) = (blocks.count(), blocks.open());
            format!(
                "{}, permuted; the samples of {open} of them are mixed, about {} of {}",
                counted(count, "block"),
                samples_of_group(stream),
                blocks.samples()
            )
        }
        Selection::Weighted(_) => "draws by weight".to_owned(),
        Selection::Balanced(_) | Selection::Grouped(_) => classes::order(stream),
        _ if stream.config().order.shuffle == Shuffle::Off => "the dataset's own".to_owned(),
        Selection::Mixture(_) => "an exact shuffle of each pass through a dataset".to_owned(),
        Selection::Once(_) => "an exact shuffle of all samples".to_owned(),
    };
    // Neighbours that share no pages have blocks in an order in blocks alone.
    let name = if stream.has_pages() { "compressed pages" } else { "neighbours" };
    let pages = stream.blocks().map(|found| (name, pages(stream, &found, world_size)));
    [("order", order)].into_iter().chain(classes::lines(stream)).chain(pages).collect()
}

/// The cost of reading and unpacking compressed pages, or of reading neighbours together.
fn pages(stream: &Stream, found: &SampleBlocks, world_size: u32) -> String {
    let of = |bytes: PageBytes| Factors::of(bytes, found.used_bytes);
    let (alone, together) = (of(found.alone), of(found.together));
    let has_cache = stream.config().dataset.cache.path.is_some();
    if let Selection::InBlocks(_) = stream.selection() {
        let open = format_bytes(stream.open_block_bytes());
        let ranks = ranks_of_group(stream, world_size);
        let shared = match (ranks, has_cache) {
            (1, _) => String::new(),
            (_, true) => "; the ranks of a host read each block once, through the cache".to_owned(),
            (_, false) => format!(
                "; up to {ranks} of {world_size} ranks need a block, and each of their daemons reads it: \
                 {} with all of them",
                together.times(ranks).words()
            ),
        };
        return format!(
            "{} where each block is read once, {} sample by sample; open blocks take up to {open}{shared}",
            together.words(),
            alone.words()
        );
    }
    let kept = if has_cache { "; the cache keeps the values alone, for later epochs" } else { "" };
    let is_shuffled = stream.config().order.shuffle == Shuffle::Exact;
    let is_expensive = alone.unpacked > EXPENSIVE && !has_cache && is_shuffled;
    let advice = match (is_expensive, stream.selection()) {
        (true, Selection::Once(_)) => format!(
            "; order.shuffle = \"blocks\" makes that {}, and a cache ([cache]) keeps the values alone",
            together.words()
        ),
        (true, _) => "; a cache ([cache]) keeps the values alone".to_owned(),
        (false, _) => String::new(),
    };
    format!("{}{kept}{advice}", alone.words())
}

/// Bytes per used byte.
struct Factors {
    read: f64,
    unpacked: f64,
}

impl Factors {
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    fn of(bytes: PageBytes, used: u64) -> Self {
        let factor = |bytes: u64| bytes as f64 / used.max(1) as f64;
        Self { read: factor(bytes.packed), unpacked: factor(bytes.unpacked) }
    }

    fn times(&self, ranks: u32) -> Self {
        let ranks = f64::from(ranks);
        Self { read: self.read * ranks, unpacked: self.unpacked * ranks }
    }

    fn words(&self) -> String {
        format!("{:.1} bytes read and {:.1} unpacked for each one used", self.read, self.unpacked)
    }
}

/// The mean number of samples that are mixed with each other.
fn samples_of_group(stream: &Stream) -> u64 {
    match stream.selection() {
        Selection::InBlocks(blocks) => {
            let groups = blocks.count().div_ceil(blocks.open()) as u64;
            blocks.samples().div_ceil(groups)
        }
        selection => selection.draws_per_epoch(),
    }
}

/// The maximum number of ranks with rows of one group of average size: a group is a range of positions, which the ranks
/// take in batches in turn.
fn ranks_of_group(stream: &Stream, world_size: u32) -> u32 {
    let batch = u64::from(stream.config().batch.size.get());
    let batches = 1 + samples_of_group(stream).saturating_sub(1).div_ceil(batch);
    u32::try_from(batches).unwrap_or(u32::MAX).min(world_size)
}

/// The same as JSON.
pub(super) fn as_json(stream: &Stream) -> serde_json::Value {
    let pages = stream.blocks().map(|found| {
        let bytes = |PageBytes { packed, unpacked }| {
            serde_json::json!({ "read_bytes": packed, "unpacked_bytes": unpacked })
        };
        serde_json::json!({
            "blocks": found.firsts.len(),
            "used_bytes": found.used_bytes,
            "sample_by_sample": bytes(found.alone),
            "in_blocks": bytes(found.together),
        })
    });
    let shuffle = stream.config().order.shuffle.word();
    let (pages, neighbours) = if stream.has_pages() { (pages, None) } else { (None, pages) };
    serde_json::json!({ "shuffle": shuffle, "compressed_pages": pages, "neighbours": neighbours })
}
