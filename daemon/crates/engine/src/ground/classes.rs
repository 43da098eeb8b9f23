//! The classes of samples, for `order.balance` and `order.group`: the values of a field, and what draws by them are.
//!
//! Labels that the index has are taken from it at each start. Other values are learned once, as lengths are (see
//! [`lengths`](super::lengths)). Classes are numbered in the order of their values.

mod values;

use std::sync::Arc;

use forebay_config::Config;
use forebay_dataset::classes::shown;
use forebay_dataset::{Dataset, Field, FieldKind, OpenOptions, Opened};
use forebay_keys::{ConfigError, nearest};
use forebay_order::{Balanced, Classes, Grouped, OrderError, Selection};
use forebay_protocol::ids::SampleId;
use forebay_protocol::tensor::DType;

pub(crate) use self::values::{ClassValue, ClassValues};
use crate::ground::lengths::{learned_classes, not_known, substitutes};
use crate::ground::stream_error::StreamError;

/// Hexadecimal digits of the classes' digest in a saved state.
const DIGEST_DIGITS: usize = 16;
/// The classes that are named to a user.
const NAMED: usize = 20;
/// The characters of a class's name for a user.
const MOST_SHOWN: usize = 40;

/// What the classes are that a stream draws from, for a user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrawnClasses {
    /// The field whose values they are.
    pub field: String,
    /// The first ones in order: their names and numbers of samples.
    pub first: Vec<(String, u64)>,
    /// The number of samples without a class, which are never drawn: they cannot be read.
    pub without: u64,
}

/// What a draw by classes is.
pub(super) struct DrawsByClass {
    pub(super) selection: Selection,
    pub(super) words: String,
    pub(super) classes: DrawnClasses,
}

/// The samples of a dataset by their values of a field. Blocks while the values are learned.
struct ByField {
    classes: Arc<Classes>,
    drawn: DrawnClasses,
    digest: String,
}

/// The draws of `order.balance`.
pub(super) fn balanced(
    config: &Config,
    opened: &Opened,
    (samples_per_epoch, by): (Option<u64>, &str),
    options: OpenOptions<'_>,
) -> Result<DrawsByClass, StreamError> {
    let found = by_field(config, opened, "balance", by, options)?;
    let balanced = Balanced::new(found.classes, samples_per_epoch)
        .map_err(|error| refusal(config, "balance", &error))?;
    let words = format!("{} an epoch, alike by {by} {}", balanced.draws_per_epoch(), found.digest);
    let selection = Selection::Balanced(Arc::new(balanced));
    Ok(DrawsByClass { selection, words, classes: found.drawn })
}

/// The draws of `order.group`.
pub(super) fn grouped(
    config: &Config,
    opened: &Opened,
    (size, by): (u32, &str),
    options: OpenOptions<'_>,
) -> Result<DrawsByClass, StreamError> {
    let found = by_field(config, opened, "group", by, options)?;
    let batch_size = config.batch.size.get();
    let grouped = Grouped::new(found.classes, size, batch_size)
        .map_err(|error| refusal(config, "group", &error))?;
    let (groups, samples) = grouped.too_small();
    if groups > 0 {
        tracing::warn!(
            stream = config.name,
            groups,
            samples,
            "groups of fewer than {size} samples by order.group ({by}) are never drawn"
        );
    }
    let words = format!("{size} of each {by} {} in batches of {batch_size}", found.digest);
    let selection = Selection::Grouped(Arc::new(grouped));
    Ok(DrawsByClass { selection, words, classes: found.drawn })
}

fn refusal(config: &Config, key: &str, error: &OrderError) -> ConfigError {
    ConfigError::new(&config.location(&["order", key]), format!("`order.{key}`: {error}"))
}

fn by_field(
    config: &Config,
    opened: &Opened,
    key: &'static str,
    name: &str,
    options: OpenOptions<'_>,
) -> Result<ByField, StreamError> {
    let dataset = opened.dataset.as_ref();
    let field = field_of_classes(config, dataset, key, name)?;
    let known = labels_of_index(config, opened, key, field)?;
    let is_label = known.is_some();
    let (mut class_of, values) = match known {
        Some(known) => known,
        None => learned_classes(config, opened, ["order", key], field, options)?,
    };
    if let Some(kept) = dataset.kept() {
        // An order draws numbers of used samples.
        let class = |id| usize::try_from(id).ok().and_then(|id: usize| class_of.get(id)).copied();
        class_of = kept.ids().filter_map(class).collect();
    }
    let mut hasher = blake3::Hasher::new();
    class_of.iter().for_each(|class| {
        hasher.update(&class.to_le_bytes());
    });
    let digest = hasher.finalize().to_hex()[..DIGEST_DIGITS].to_owned();
    let without = class_of.iter().filter(|class| **class == Classes::NONE).count() as u64;
    if without > 0 {
        tracing::warn!(
            stream = config.name,
            samples = without,
            "samples whose `{name}` cannot be read are not drawn by order.{key}"
        );
    }
    let count = u32::try_from(values.len()).unwrap_or(u32::MAX);
    let classes =
        Arc::new(Classes::new(class_of, count).map_err(|error| refusal(config, key, &error))?);
    let names = if is_label { dataset.classes() } else { &[] };
    let first = (0..)
        .zip(&values)
        .take(NAMED)
        .map(|(class, value)| (name_of(value, names), classes.samples_of(class)))
        .collect();
    let drawn = DrawnClasses { field: name.to_owned(), first, without };
    Ok(ByField { classes, drawn, digest })
}

/// The name of a class for a user.
fn name_of(value: &ClassValue, names: &[String]) -> String {
    let name = match value {
        ClassValue::Number(number) => {
            let named = usize::try_from(*number).ok().and_then(|number| names.get(number));
            named.map_or_else(|| number.to_string(), |name| shown(name))
        }
        ClassValue::Text(text) => shown(text),
    };
    match name.char_indices().nth(MOST_SHOWN) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name,
    }
}

/// The field whose values are the classes.
fn field_of_classes(
    config: &Config,
    dataset: &dyn Dataset,
    key: &str,
    name: &str,
) -> Result<usize, ConfigError> {
    let fail = |message: String| {
        let location = config.location(&["order", key]);
        Err(ConfigError::new(&location, format!("`order.{key}`: {message}")))
    };
    let fields = dataset.fields();
    let names = || fields.iter().map(|field| field.name.as_str());
    let Some(place) = names().position(|field| field == name) else {
        let hint = nearest(name, names())
            .map(|near| format!("; did you mean `{near}`?"))
            .unwrap_or_else(|| ".".to_owned());
        let known = names().collect::<Vec<_>>().join(", ");
        return fail(format!(
            "the samples have no field `{name}`{hint} They have {known}, before any stage"
        ));
    };
    if is_class(&fields[place].kind) {
        return Ok(place);
    }
    let others: Vec<&str> = fields
        .iter()
        .filter(|field| is_class(&field.kind))
        .map(|field| field.name.as_str())
        .collect();
    let others = match others[..] {
        [] => "this dataset has none".to_owned(),
        _ => format!("this dataset has {}", others.join(", ")),
    };
    fail(format!(
        "`{name}` is no class: classes are the values of a field of whole numbers or text; {others}"
    ))
}

/// Whether values of this kind can be classes.
fn is_class(kind: &FieldKind) -> bool {
    match kind {
        FieldKind::Integer | FieldKind::Text => true,
        FieldKind::Array { dtype, shape } => {
            shape.is_empty() && !matches!(dtype, DType::F16 | DType::BF16 | DType::F32 | DType::F64)
        }
        _ => false,
    }
}

/// By sample its class; and the value of each class.
pub(super) type Found = (Vec<u32>, Vec<ClassValue>);

/// The labels that the index has; `None`: the field is not the label, or the index has none.
fn labels_of_index(
    config: &Config,
    opened: &Opened,
    key: &str,
    field: usize,
) -> Result<Option<Found>, ConfigError> {
    let dataset = opened.dataset.as_ref();
    let is_integer = |field: &Field| field.kind == FieldKind::Integer;
    if dataset.fields().iter().position(is_integer) != Some(field) {
        return Ok(None);
    }
    let bad_is_substituted = substitutes(config).0;
    let values = ClassValues::default();
    let mut class_of = Vec::with_capacity(usize::try_from(dataset.sample_count()).unwrap_or(0));
    for id in (0..dataset.sample_count()).map(SampleId) {
        if dataset.kept().is_some_and(|kept| !kept.contains(id.0)) {
            class_of.push(Classes::NONE);
            continue;
        }
        let class = match dataset.label(id) {
            None => return Ok(None),
            Some(Ok(label)) => values.number_of(ClassValue::Number(label)),
            Some(Err(_)) if bad_is_substituted => Ok(Classes::NONE),
            Some(Err(defect)) => Err(defect.to_string()),
        };
        class_of.push(class.map_err(|reason| {
            let message = not_known(opened, "class", id, &reason);
            ConfigError::new(&config.location(&["order", key]), message)
        })?);
    }
    Ok(Some(values.in_order(class_of)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_named_by_the_dataset_or_by_their_values() {
        let names = ["cat".to_owned(), "d\"g".to_owned()];
        let text = |text: &str| ClassValue::Text(text.into());
        for (value, name) in [
            (ClassValue::Number(0), "cat"),
            (ClassValue::Number(1), "d\\\"g"),
            (ClassValue::Number(2), "2"),
            (ClassValue::Number(-1), "-1"),
            (text("a\nb"), "a\\nb"),
        ] {
            assert_eq!(name_of(&value, &names), name);
        }
        assert_eq!(name_of(&text(&"é".repeat(50)), &[]), format!("{}…", "é".repeat(40)));
    }

    #[test]
    fn whole_numbers_and_text_are_classes() {
        let scalar = |dtype| FieldKind::Array { dtype, shape: Vec::new() };
        for kind in [FieldKind::Integer, FieldKind::Text, scalar(DType::U8), scalar(DType::Bool)] {
            assert!(is_class(&kind), "{kind:?}");
        }
        let list = FieldKind::Array { dtype: DType::I64, shape: vec![1] };
        for kind in [FieldKind::Float, FieldKind::EncodedImage, scalar(DType::F32), list] {
            assert!(!is_class(&kind), "{kind:?}");
        }
    }
}
