//! The lengths of samples for batches by length: where they come from, and what follows from those above the budget.
//!
//! Sizes that the index has are taken from it at each start. Others are learned once: the size of each file, or each
//! sample's value of a field, is read before the first batch and saved next to the index, for as long as that index is
//! used.

mod learned;

use std::sync::Arc;

use forebay_config::{Config, LengthSource, OnBadSample, OnUnreadable, TooLong};
use forebay_dataset::{Dataset, FieldKind, OpenOptions, Opened};
use forebay_keys::{ConfigError, nearest};
use forebay_order::{ByLength, Except, Selection};
use forebay_protocol::ids::SampleId;
use forebay_storage::location::{Location, Unit};

use self::learned::Learning;
use crate::ground::datasets::EpochDraws;
use crate::ground::stream_error::StreamError;

/// Hexadecimal digits of the lengths' digest in a saved state.
const DIGEST_DIGITS: usize = 16;

/// A sample of unknown length: it cannot be read, and is to be substituted.
const UNKNOWN: u32 = u32::MAX;
/// The longest length that is distinguished.
const LONGEST: u32 = u32::MAX - 1;

/// The batches by length of a configuration; `None`: batches have one size. Blocks while lengths are learned. Leaves out
/// of `draws` what is too long, if it is configured, and adds what the lengths are.
pub(super) fn batches_by_length(
    config: &Config,
    opened: &Opened,
    draws: &mut EpochDraws,
    options: OpenOptions<'_>,
) -> Result<Option<Arc<ByLength>>, StreamError> {
    let batch = &config.batch;
    let (Some(budget), Some(source)) = (batch.budget, batch.length_source()) else {
        return Ok(None);
    };
    let dataset = opened.dataset.as_ref();
    let mut lengths = match source {
        LengthSource::Bytes => match stored_sizes(config, dataset)? {
            Some(sizes) => sizes,
            None => learned::lengths(config, opened, Learning::FileSizes, options)?,
        },
        LengthSource::Field(name) => {
            let field = field_of_lengths(config, dataset, name)?;
            learned::lengths(config, opened, Learning::Field(field), options)?
        }
    };
    fill_in_unknown(&mut lengths);
    let multiple_of = batch.counted_multiple();
    let is_too_long =
        |length: u32| u64::from(length).next_multiple_of(multiple_of.into()) > budget.amount;
    let too_long: Vec<u64> =
        (0..).zip(&lengths).filter(|(_, length)| is_too_long(**length)).map(|(id, _)| id).collect();
    let mut hasher = blake3::Hasher::new();
    lengths.iter().for_each(|length| {
        hasher.update(&length.to_le_bytes());
    });
    let digest = hasher.finalize().to_hex();
    let source = match source {
        LengthSource::Bytes => "bytes",
        LengthSource::Field(name) => name,
    };
    let (pool, digest) = (config.pool(), &digest[..DIGEST_DIGITS]);
    let mut words = format!("by length ({source} {digest}) in pools of {pool}");
    if !too_long.is_empty() {
        let count = too_long.len();
        if batch.when_too_long() == TooLong::Error {
            return Err(refusal(config, opened, &lengths, &too_long).into());
        }
        tracing::warn!(
            stream = config.name,
            samples = count,
            "samples above batch.budget ({budget}) are left out, as batch.too_long says"
        );
        words.push_str(&format!(" without {count} above {}", budget.amount));
        let except = Except::new(lengths.len() as u64, too_long).map_err(|_| {
            let message =
                format!("every sample is longer than `batch.budget` ({budget}); raise it");
            ConfigError::new(&config.location(&["batch", "budget"]), message)
        })?;
        draws.selection = Selection::Except(Arc::new(except));
    }
    draws.add_words(&words);
    let max_rows = batch.size.get();
    let by_length = ByLength::new(lengths.into(), pool, budget.amount, multiple_of, max_rows);
    Ok(Some(Arc::new(by_length)))
}

/// The refusal of samples above the budget.
fn refusal(config: &Config, opened: &Opened, lengths: &[u32], too_long: &[u64]) -> ConfigError {
    let length = |id: u64| usize::try_from(id).ok().and_then(|id| lengths.get(id)).copied();
    let longest = too_long.iter().copied().max_by_key(|id| length(*id)).unwrap_or(0);
    let name = opened.dataset.full_name(opened.storage.as_ref(), SampleId(longest));
    let budget = config.batch.budget.map(|budget| budget.to_string()).unwrap_or_default();
    let message = format!(
        "{} of {} samples are longer than `batch.budget` ({budget}{}); the longest one, sample {longest} ({}), has {}: raise \
         the budget, leave such samples out of `dataset.ids`, or set `batch.too_long = \"drop\"`",
        too_long.len(),
        lengths.len(),
        match config.batch.counted_multiple() {
            1 => String::new(),
            multiple => format!(", lengths rounded up to multiples of {multiple}"),
        },
        name.display(),
        length(longest).unwrap_or(0),
    );
    ConfigError::new(&config.location(&["batch", "budget"]), message)
}

/// The field whose values are the lengths.
fn field_of_lengths(
    config: &Config,
    dataset: &dyn Dataset,
    name: &str,
) -> Result<usize, ConfigError> {
    let fail =
        |message: String| Err(ConfigError::new(&config.location(&["batch", "length"]), message));
    let fields = dataset.fields();
    let Some(place) = fields.iter().position(|field| field.name == name) else {
        let names: Vec<&str> = fields.iter().map(|field| field.name.as_str()).collect();
        let hint = nearest(name, names.iter().copied())
            .map(|near| format!("; did you mean `{near}`?"))
            .unwrap_or_default();
        return fail(format!(
            "`batch.length`: the samples have no field `{name}`{hint} They have {}, before any stage",
            names.join(", ")
        ));
    };
    match fields[place].kind {
        FieldKind::Float => fail(format!(
            "`batch.length`: `{name}` is a float; a length is a whole number, or counted"
        )),
        FieldKind::Sound { .. } | FieldKind::EncodedImage | FieldKind::EncodedImages => {
            fail(format!(
                "`batch.length`: the length of `{name}` is not known before it is decoded; use a budget of bytes, or a field of \
             integers"
            ))
        }
        _ => Ok(place),
    }
}

/// The sizes of the samples as the index has them; `None`: it does not have all of them.
fn stored_sizes(config: &Config, dataset: &dyn Dataset) -> Result<Option<Vec<u32>>, ConfigError> {
    let mut locations: Vec<Location> = Vec::new();
    let mut sizes = Vec::with_capacity(usize::try_from(dataset.sample_count()).unwrap_or(0));
    for id in 0..dataset.sample_count() {
        locations.clear();
        dataset.locate(SampleId(id), &mut locations);
        let mut size = 0_u64;
        for location in &locations {
            let length = match location.unit {
                Unit::Sample => location.range.length.or_else(|| {
                    let stamp = dataset.stamp(location.file)?;
                    stamp.bytes.checked_sub(location.range.offset)
                }),
                Unit::Packed(part) => Some(part.length.into()),
                Unit::Block(_) => {
                    let message = format!(
                        "`batch.budget` of bytes: samples of {} ({}) share blocks of bytes, so none has a size; set \
                         `batch.length` to a field, with a budget of tokens",
                        config.dataset.path.display(),
                        config.dataset.format
                    );
                    return Err(ConfigError::new(&config.location(&["batch", "budget"]), message));
                }
            };
            let Some(length) = length else { return Ok(None) };
            size = size.saturating_add(length);
        }
        sizes.push(as_length(size));
    }
    Ok(Some(sizes))
}

fn as_length(length: u64) -> u32 {
    u32::try_from(length).unwrap_or(LONGEST).min(LONGEST)
}

/// Gives samples that cannot be read the mean length of the others.
fn fill_in_unknown(lengths: &mut [u32]) {
    let known = || lengths.iter().filter(|length| **length != UNKNOWN);
    let count = known().count() as u64;
    if count == lengths.len() as u64 {
        return;
    }
    let sum: u64 = known().map(|length| u64::from(*length)).sum();
    let mean = as_length(sum / count.max(1));
    lengths.iter_mut().filter(|length| **length == UNKNOWN).for_each(|length| *length = mean);
}

/// Whether samples that cannot be read are substituted: those with defective bytes, and those whose file is gone.
fn substitutes(config: &Config) -> (bool, bool) {
    let errors = &config.errors;
    (
        errors.on_bad_sample == OnBadSample::Substitute,
        errors.on_unreadable == OnUnreadable::Substitute,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_without_a_length_get_the_mean_of_the_others() {
        let mut lengths = [4, UNKNOWN, 8, UNKNOWN];
        fill_in_unknown(&mut lengths);
        assert_eq!(lengths, [4, 6, 8, 6]);
        let mut none = [UNKNOWN; 2];
        fill_in_unknown(&mut none);
        assert_eq!(none, [0, 0]);
        assert_eq!((as_length(7), as_length(u64::MAX)), (7, LONGEST));
    }
}
