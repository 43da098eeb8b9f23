//! The lengths of samples for batches by length: where they come from, and what follows from those above the budget.
//!
//! Sizes that the index has are taken from it at each start. Others are learned once: the size of each file, or each
//! sample's value of a field or the header of its sound or picture, is read before the first batch and saved next to the
//! index, for as long as that index is used. Batches of one shape ([`shapes`]) have the sizes of pictures in place of
//! lengths.

mod learned;
mod shapes;
mod value;

pub(crate) use shapes::buckets_of_sample;

use std::sync::Arc;

use forebay_config::{Config, LengthSource, LengthUnit, OnBadSample, OnUnreadable, TooLong};
use forebay_dataset::{Dataset, Field, FieldKind, NoSize, OpenOptions, Opened, stored_size};
use forebay_keys::{ConfigError, nearest};
use forebay_order::{ByLength, Selection};
use forebay_protocol::ids::SampleId;
use forebay_select::Subset;
use forebay_storage::location::Location;

use self::learned::Learning;
pub(super) use self::learned::{classes as learned_classes, not_known};
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
    if batch.buckets.is_some() {
        return shapes::batches_by_shape(config, opened, draws, options).map(Some);
    }
    let (Some(budget), Some(source)) = (batch.budget, batch.length_source()) else {
        return Ok(None);
    };
    let dataset = opened.dataset.as_ref();
    let field = match source {
        LengthSource::Bytes => None,
        LengthSource::Field(name) => Some(field_of_lengths(config, dataset, name, budget.unit)?),
        LengthSource::OnlyField => Some(only_field(config, dataset, budget.unit)?),
    };
    let mut lengths = match field {
        Some(field) => {
            learned::lengths(config, opened, Learning::Field(field, budget.unit), options)?
        }
        None => match stored_sizes(config, dataset)? {
            Some(mut sizes) => {
                if let Some(kept) = dataset.kept() {
                    // The length of a sample that is not used counts nowhere.
                    let others = (0..).zip(&mut sizes).filter(|(id, _)| !kept.contains(*id));
                    others.for_each(|(_, size)| *size = UNKNOWN);
                }
                sizes
            }
            None => learned::lengths(config, opened, Learning::FileSizes, options)?,
        },
    };
    fill_in_unknown(&mut lengths);
    let multiple_of = batch.counted_multiple();
    let is_too_long =
        |length: u32| u64::from(length).next_multiple_of(multiple_of.into()) > budget.amount;
    let is_used = |id: &u64| dataset.kept().is_none_or(|kept| kept.contains(*id));
    let too_long = (0..).zip(&lengths).filter(|(_, length)| is_too_long(**length));
    let too_long: Vec<u64> = too_long.map(|(id, _)| id).filter(is_used).collect();
    let mut hasher = blake3::Hasher::new();
    lengths.iter().for_each(|length| {
        hasher.update(&length.to_le_bytes());
    });
    let digest = hasher.finalize().to_hex();
    let source = field.map_or("bytes", |field| dataset.fields()[field].name.as_str());
    let (pool, digest) = (config.pool(), &digest[..DIGEST_DIGITS]);
    let mut words = format!("by length ({source} {digest}) in pools of {pool}");
    if !too_long.is_empty() {
        let count = too_long.len();
        let what_becomes = match batch.when_too_long() {
            TooLong::Error => return Err(refusal(config, opened, &lengths, &too_long).into()),
            TooLong::Truncate => {
                let kept = batch.truncated_to().unwrap_or(budget.amount);
                let cut = as_length(kept);
                lengths.iter_mut().for_each(|length| *length = cut.min(*length));
                words.push_str(&format!(" with {count} cut to {kept}"));
                "cut"
            }
            TooLong::Drop => {
                words.push_str(&format!(" without {count} above {}", budget.amount));
                let all = Subset::all(dataset.sample_count());
                let kept = dataset.kept().map_or(&all, AsRef::as_ref).without(too_long);
                if kept.kept() == 0 {
                    let message =
                        format!("every sample is longer than `batch.budget` ({budget}); raise it");
                    let location = config.location(&["batch", "budget"]);
                    return Err(ConfigError::new(&location, message).into());
                }
                draws.too_long = count as u64;
                draws.selection = Selection::Once(kept.kept());
                draws.kept = Some(Arc::new(kept));
                "left out"
            }
        };
        tracing::warn!(
            stream = config.name,
            samples = count,
            "samples above batch.budget ({budget}) are {what_becomes}, as batch.too_long says"
        );
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
    let unit = config.batch.budget.map_or(LengthUnit::Bytes, |budget| budget.unit);
    let budget = config.batch.budget.map(|budget| budget.to_string()).unwrap_or_default();
    let message = format!(
        "{} of {} samples are longer than `batch.budget` ({budget}{}); the longest one, sample {longest} ({}), has {}: raise \
         the budget, leave such samples out of `dataset.ids`, or set `batch.too_long` to \"drop\"{}",
        too_long.len(),
        lengths.len(),
        match config.batch.counted_multiple() {
            1 => String::new(),
            multiple => {
                format!(", lengths rounded up to multiples of {}", unit.length(multiple.into()))
            }
        },
        name.display(),
        unit.length(length(longest).unwrap_or(0).into()),
        if unit == LengthUnit::Tokens { " or \"truncate\"" } else { "" },
    );
    ConfigError::new(&config.location(&["batch", "budget"]), message)
}

/// The field whose values are the lengths.
fn field_of_lengths(
    config: &Config,
    dataset: &dyn Dataset,
    name: &str,
    unit: LengthUnit,
) -> Result<usize, ConfigError> {
    let fail =
        |message: String| Err(ConfigError::new(&config.location(&["batch", "length"]), message));
    let fields = dataset.fields();
    let Some(place) = fields.iter().position(|field| field.name == name) else {
        let hint = nearest(name, fields.iter().map(|field| field.name.as_str()))
            .map(|near| format!("; did you mean `{near}`?"))
            .unwrap_or_else(|| ".".to_owned());
        return fail(format!(
            "`batch.length`: the samples have no field `{name}`{hint} They have {}, before any stage",
            names(fields)
        ));
    };
    let reason = match (unit, &fields[place].kind) {
        (LengthUnit::Tokens | LengthUnit::Bytes, FieldKind::Float) => {
            "is a float; a length is a whole number, or counted. A float can be a budget of seconds"
        }
        (LengthUnit::Tokens | LengthUnit::Bytes, FieldKind::Sound { .. }) => {
            "is a sound, whose length is in seconds: give the budget as { seconds = … }"
        }
        (LengthUnit::Tokens | LengthUnit::Bytes, FieldKind::EncodedImage) => {
            "is a picture, whose length is in pixels: give the budget as { pixels = … }"
        }
        (LengthUnit::Tokens | LengthUnit::Bytes, FieldKind::EncodedImages) => {
            "is a list of pictures, whose length is not known before they are decoded; use a budget of bytes, or a field of \
             integers"
        }
        (LengthUnit::Seconds, kind) if !is_number(kind) && !is_sound(kind) => {
            "is neither a sound nor a number, so it has no seconds"
        }
        (LengthUnit::Pixels, kind)
            if *kind == FieldKind::Float || !is_number(kind) && !is_picture(kind) =>
        {
            "is neither a picture nor a whole number, so it has no pixels"
        }
        _ => return Ok(place),
    };
    fail(format!("`batch.length`: `{name}` {reason}"))
}

/// The only sound or picture of the samples.
fn only_field(
    config: &Config,
    dataset: &dyn Dataset,
    unit: LengthUnit,
) -> Result<usize, ConfigError> {
    let (is_of_unit, word): (fn(&FieldKind) -> bool, _) = match unit {
        LengthUnit::Pixels => (is_picture, "picture"),
        _ => (is_sound, "sound"),
    };
    let fields = dataset.fields();
    let mut found = (0..fields.len()).filter(|place| is_of_unit(&fields[*place].kind));
    match (found.next(), found.next()) {
        (Some(place), None) => Ok(place),
        (first, _) => {
            let message = format!(
                "`batch.budget` of {}: the samples have {} {word}; set `batch.length` to the field that is or says the length, \
                 one of {}",
                unit.word(),
                if first.is_some() { "more than one" } else { "no" },
                names(fields)
            );
            Err(ConfigError::new(&config.location(&["batch", "budget"]), message))
        }
    }
}

fn names(fields: &[Field]) -> String {
    fields.iter().map(|field| field.name.as_str()).collect::<Vec<_>>().join(", ")
}

const fn is_sound(kind: &FieldKind) -> bool {
    matches!(kind, FieldKind::Sound { .. })
}

const fn is_picture(kind: &FieldKind) -> bool {
    matches!(kind, FieldKind::EncodedImage)
}

/// Whether values are single numbers.
fn is_number(kind: &FieldKind) -> bool {
    match kind {
        FieldKind::Integer | FieldKind::Float => true,
        FieldKind::Array { shape, .. } => shape.is_empty(),
        _ => false,
    }
}

/// The sizes of the samples as the index has them; `None`: it does not have all of them.
fn stored_sizes(config: &Config, dataset: &dyn Dataset) -> Result<Option<Vec<u32>>, ConfigError> {
    let mut locations: Vec<Location> = Vec::new();
    let mut sizes = Vec::with_capacity(usize::try_from(dataset.sample_count()).unwrap_or(0));
    for id in 0..dataset.sample_count() {
        match stored_size(dataset, SampleId(id), &mut locations) {
            Ok(Some(size)) => sizes.push(as_length(size)),
            Ok(None) => return Ok(None),
            Err(NoSize) => {
                let message = format!(
                    "`batch.budget` of bytes: samples of {} ({}) share blocks of bytes, so none has a size; set \
                     `batch.length` to a field, with a budget of tokens, seconds or pixels",
                    config.dataset.path.display(),
                    config.dataset.format
                );
                return Err(ConfigError::new(&config.location(&["batch", "budget"]), message));
            }
        }
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
pub(super) fn substitutes(config: &Config) -> (bool, bool) {
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
