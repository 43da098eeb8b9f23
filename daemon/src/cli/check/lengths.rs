//! What `forebay check` says of batches by length and by shape.

use forebay_config::LengthUnit;
use forebay_engine::Stream;
use forebay_order::ByLength;
use forebay_protocol::counted::counted;

/// The batches of the first epoch, and the lengths.
pub(super) fn batches(
    stream: &Stream,
    lengths: &ByLength,
    batches: u64,
    world_size: u32,
) -> String {
    let config = stream.config();
    if let Some(buckets) = &config.batch.buckets {
        return format!(
            "{batches} in the first epoch and rank, over {}, of {} at most and one of {}; pools of {}",
            counted(world_size, "rank"),
            counted(config.batch.size, "sample"),
            counted(buckets.len(), "shape"),
            config.pool()
        );
    }
    let budget = config.batch.budget.map(|budget| budget.to_string()).unwrap_or_default();
    let rows = stream.selection().draws_per_epoch();
    let of_batch = mean(rows, batches.saturating_mul(world_size.into()));
    let unit = config.batch.budget.map_or(LengthUnit::Bytes, |budget| budget.unit);
    let multiple = match config.batch.counted_multiple() {
        1 => String::new(),
        multiple => {
            format!(", lengths rounded up to multiples of {}", unit.length(multiple.into()))
        }
    };
    format!(
        "{batches} in the first epoch and rank, over {}, of {of_batch:.1} samples on average, at most {} and \
         {budget}{multiple}; lengths {} on average, at most {}; pools of {}",
        counted(world_size, "rank"),
        config.batch.size,
        unit.length(lengths.mean()),
        unit.length(lengths.longest().into()),
        config.pool()
    )
}

/// The samples of each bucket, most first.
pub(super) fn buckets(stream: &Stream, by_length: &ByLength) -> String {
    let buckets = stream.config().batch.buckets.iter().flatten();
    let mut counts: Vec<_> = buckets.map(|bucket| (0_u64, *bucket)).collect();
    for id in (0..stream.kept_count()).map(|number| stream.kept_at(number)) {
        let number = usize::try_from(by_length.length(id.0)).unwrap_or(usize::MAX);
        if let Some((count, _)) = counts.get_mut(number) {
            *count += 1;
        }
    }
    counts.retain(|(count, _)| *count > 0);
    counts.sort_by_key(|(count, bucket)| (std::cmp::Reverse(*count), *bucket));
    let lines = counts.iter().map(|(count, bucket)| format!("{bucket}: {count}"));
    format!("samples of each [height x width]: {}", lines.collect::<Vec<_>>().join(", "))
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
fn mean(sum: u64, count: u64) -> f64 {
    sum as f64 / count.max(1) as f64
}
