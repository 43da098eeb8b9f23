//! Batches of one shape: the bucket of each sample by the size of its picture.

use std::sync::Arc;

use forebay_config::Config;
use forebay_dataset::{Dataset, FieldKind, OpenOptions, Opened};
use forebay_keys::{ConfigError, Located, Value, nearest};
use forebay_media::decode::Decoders;
use forebay_order::ByLength;
use forebay_transform::{Buckets, SampleTask, bucket_sizes, nearest_bucket};

use super::learned::{self, Learning};
use super::{DIGEST_DIGITS, UNKNOWN, is_picture, names, value};
use crate::ground::datasets::EpochDraws;
use crate::ground::stream_error::StreamError;

/// The batches by shape of a configuration with buckets. Blocks while sizes are learned. Adds to `draws` what the shapes
/// are.
pub(super) fn batches_by_shape(
    config: &Config,
    opened: &Opened,
    draws: &mut EpochDraws,
    options: OpenOptions<'_>,
) -> Result<Arc<ByLength>, StreamError> {
    let sizes = bucket_sizes(config);
    let dataset = opened.dataset.as_ref();
    let field = field_of_shapes(config, dataset)?;
    let name = &dataset.fields()[field].name;
    let learning = Learning::Shapes(field, is_turned(config, name));
    let mut numbers = learned::lengths(config, opened, learning, options)?;
    let number = |packed: u32| match packed {
        UNKNOWN => UNKNOWN,
        packed => nearest_bucket(&sizes, value::picture_size(packed))
            .and_then(|number| u32::try_from(number).ok())
            .unwrap_or(UNKNOWN),
    };
    numbers.iter_mut().for_each(|packed| *packed = number(*packed));
    fill_in_unknown(&mut numbers, sizes.len());
    let mut hasher = blake3::Hasher::new();
    let sides = sizes.iter().flat_map(|size| [size.height, size.width]);
    sides.chain(numbers.iter().copied()).for_each(|number| {
        hasher.update(&number.to_le_bytes());
    });
    let digest = hasher.finalize().to_hex();
    let (pool, digest) = (config.pool(), &digest[..DIGEST_DIGITS]);
    draws.add_words(&format!(
        "of one of {} shapes ({name} {digest}) in pools of {pool}",
        sizes.len()
    ));
    Ok(Arc::new(ByLength::by_shape(numbers.into(), pool, config.batch.size.get())))
}

/// The buckets for a single sample that was read.
///
/// # Errors
/// There is no such field, or the picture's header cannot be read.
pub(crate) fn buckets_of_sample(
    config: &Config,
    dataset: &dyn Dataset,
    task: &SampleTask,
) -> Result<Option<Buckets>, String> {
    if config.batch.buckets.is_none() {
        return Ok(None);
    }
    let field = field_of_shapes(config, dataset).map_err(|error| error.to_string())?;
    let mut values = Vec::new();
    let fetched = forebay_storage::location::SampleBytes::new(&task.bytes, &task.part_ends);
    dataset
        .read_drawn(task.id, task.key.of_sample(), fetched, &mut values)
        .map_err(|defect| defect.0)?;
    let is_turned = is_turned(config, &dataset.fields()[field].name);
    let limits = (config.dataset.limits.pixels, is_turned);
    let packed = match values.get(field) {
        Some(value) => value::shape_of(value, limits, &mut Decoders::default())?,
        None => return Err("it has no such field".to_owned()),
    };
    let size = value::picture_size(u32::try_from(packed).unwrap_or(UNKNOWN));
    let sizes = bucket_sizes(config);
    let number = nearest_bucket(&sizes, size).unwrap_or(0);
    Ok(Some(Buckets::of_one(sizes, number)))
}

/// The field whose pictures decide.
fn field_of_shapes(config: &Config, dataset: &dyn Dataset) -> Result<usize, ConfigError> {
    let fields = dataset.fields();
    let fail = |key: &str, message: String| {
        Err(ConfigError::new(&config.location(&["batch", key]), message))
    };
    let Some(name) = &config.batch.shape else {
        let mut pictures = (0..fields.len()).filter(|place| is_picture(&fields[*place].kind));
        return match (pictures.next(), pictures.next()) {
            (Some(place), None) => Ok(place),
            (first, _) => fail(
                "buckets",
                format!(
                    "`batch.buckets`: the samples have {} picture; {} one of {}",
                    if first.is_some() { "more than one" } else { "no" },
                    if first.is_some() {
                        "set `batch.shape` to the field whose picture decides,"
                    } else {
                        "leave `batch.buckets` out, or make a picture of"
                    },
                    names(fields)
                ),
            ),
        };
    };
    match fields.iter().position(|field| field.name == *name) {
        Some(place) if fields[place].kind == FieldKind::EncodedImage => Ok(place),
        Some(_) => {
            fail("shape", format!("`batch.shape`: `{name}` is no picture, so it has no shape"))
        }
        None => {
            let hint = nearest(name, fields.iter().map(|field| field.name.as_str()))
                .map(|near| format!("; did you mean `{near}`?"))
                .unwrap_or_else(|| ".".to_owned());
            fail(
                "shape",
                format!(
                    "`batch.shape`: the samples have no field `{name}`{hint} They have {}, before any stage",
                    names(fields)
                ),
            )
        }
    }
}

/// Whether the operation that decodes the field turns pictures as their EXIF tags say.
fn is_turned(config: &Config, name: &str) -> bool {
    let is = |operation: &Located, key: &str, is_so: &dyn Fn(&Value) -> bool| {
        operation.get(key).is_some_and(|argument| is_so(&argument.value))
    };
    config.stages.iter().flat_map(|stage| &stage.operations).any(|operation| {
        let is_of_field =
            operation.get("field").is_none_or(|field| field.value.as_text() == Some(name));
        is(operation, "op", &|value| value.as_text() == Some("decode-image"))
            && is_of_field
            && is(operation, "orientation", &|value| *value == Value::Bool(true))
    })
}

/// Gives samples that cannot be read the bucket that most of the others have.
fn fill_in_unknown(numbers: &mut [u32], buckets: usize) {
    let mut counts = vec![0_u64; buckets];
    for number in numbers.iter() {
        if let Some(count) = usize::try_from(*number).ok().and_then(|place| counts.get_mut(place)) {
            *count += 1;
        }
    }
    // The first of equal ones.
    let most = (0_u32..).zip(&counts).min_by_key(|(_, count)| std::cmp::Reverse(**count));
    let most = most.map_or(0, |(number, _)| number);
    numbers.iter_mut().filter(|number| **number == UNKNOWN).for_each(|number| *number = most);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_without_a_size_get_the_usual_bucket() {
        let mut numbers = [3, UNKNOWN, 1, 3, 1, UNKNOWN];
        fill_in_unknown(&mut numbers, 4);
        assert_eq!(numbers, [3, 1, 1, 3, 1, 1]);
        let mut none = [UNKNOWN; 2];
        fill_in_unknown(&mut none, 4);
        assert_eq!(none, [0, 0]);
    }
}
