//! What `forebay check` says of batches by length.

use forebay_config::LengthUnit;
use forebay_engine::Stream;
use forebay_order::ByLength;

/// The batches of the first epoch, and the lengths.
pub(super) fn batches(
    stream: &Stream,
    lengths: &ByLength,
    batches: u64,
    world_size: u32,
) -> String {
    let config = stream.config();
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
        "{batches} in the first epoch and rank, over {world_size} ranks, of {of_batch:.1} samples on average, at most {} and \
         {budget}{multiple}; lengths {} on average, at most {}; pools of {}",
        config.batch.size,
        unit.length(lengths.mean()),
        unit.length(lengths.longest().into()),
        config.pool()
    )
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
fn mean(sum: u64, count: u64) -> f64 {
    sum as f64 / count.max(1) as f64
}
