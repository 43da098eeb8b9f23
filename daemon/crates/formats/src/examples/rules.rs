//! The rules of fields of Examples: from `[dataset.fields]`, or inferred from the first records.

use std::borrow::Cow;
use std::collections::BTreeMap;

use forebay_keys::{ConfigError, Located};
use forebay_protocol::tensor::DType;

use super::message::{Fault, Feature, Kind, features};
use crate::columns::{self, ColumnRule, Source};
use crate::fields::{Form, Missing, begins_as_picture, is_free};
use forebay_dataset::{ArrayValue, Defect, FieldValue};

/// Reads `[dataset.fields]`.
///
/// # Errors
/// The error has the key and the line.
pub(crate) fn read_rules(
    fields: Option<&[(String, Located)]>,
) -> Result<Option<Vec<ColumnRule>>, ConfigError> {
    let rules = columns::read_rules(fields, Source::Names)?;
    for (rule, (name, located)) in rules.iter().flatten().zip(fields.into_iter().flatten()) {
        let fail = |key: &str, message: &str| {
            let message = format!("`dataset.fields.{name}.{key}` {message}");
            Err(ConfigError::new(&located.location, message))
        };
        if rule.rule.missing == Missing::Skip {
            return fail(
                "missing",
                "cannot be \"skip\": all records would have to be read for it; use \"error\" or \"empty\"",
            );
        }
        if rule.classes().is_some_and(|classes| classes.are_sorted) {
            return fail(
                "classes",
                "cannot be \"sorted\": all records would have to be read for it; list the names",
            );
        }
    }
    Ok(rules)
}

/// A key in the first records.
#[derive(Debug)]
struct Seen {
    kind: Option<Kind>,
    is_mixed: bool,
    /// The number of records with the key.
    records: usize,
    /// The minimum and maximum number of values.
    counts: (usize, usize),
    are_pictures: bool,
    are_texts: bool,
    are_empty: bool,
}

/// The keys of the first records.
#[derive(Debug, Default)]
pub(crate) struct SeenKeys {
    keys: BTreeMap<String, Seen>,
    records: usize,
}

impl SeenKeys {
    /// Adds an Example.
    ///
    /// # Errors
    /// The record is not an Example.
    pub(crate) fn add(&mut self, example: &[u8]) -> Result<(), Fault> {
        self.records += 1;
        // If a key occurs twice, the last one counts.
        let mut last = BTreeMap::new();
        features(example, |key, feature| {
            last.insert(key, feature);
        })?;
        for (key, feature) in last {
            let Ok(key) = std::str::from_utf8(key) else { continue };
            self.note(key, feature.kind, feature.count, feature.bytes());
        }
        Ok(())
    }

    /// Adds a record that is one value, as the value of a key.
    pub(crate) fn add_whole(&mut self, key: &str, record: &[u8]) {
        self.records += 1;
        self.note(key, Some(Kind::Bytes), 1, Some(record));
    }

    fn note(&mut self, key: &str, kind: Option<Kind>, count: usize, bytes: Option<&[u8]>) {
        let new = Seen {
            kind: None,
            is_mixed: false,
            records: 0,
            counts: (usize::MAX, 0),
            are_pictures: true,
            are_texts: true,
            are_empty: true,
        };
        let seen = self.keys.entry(key.to_owned()).or_insert(new);
        let before = seen.kind;
        seen.kind = kind.or(before);
        seen.is_mixed |= before.is_some() && seen.kind != before;
        seen.records += 1;
        seen.counts = (seen.counts.0.min(count), seen.counts.1.max(count));
        if let Some(bytes) = bytes {
            seen.are_pictures &= begins_as_picture(bytes);
            seen.are_texts &= is_text(bytes);
            seen.are_empty &= bytes.is_empty();
        }
    }

    fn form(&self, seen: &Seen) -> Option<Form> {
        let is_one = seen.counts == (1, 1);
        Some(match seen.kind? {
            _ if seen.is_mixed => return None,
            Kind::Bytes if !is_one => return None,
            Kind::Bytes if seen.are_pictures => Form::Image,
            Kind::Bytes if seen.are_texts && !seen.are_empty => Form::Text,
            Kind::Bytes => Form::Bytes,
            Kind::Integers if is_one => Form::Integer,
            Kind::Floats if is_one => Form::Float,
            Kind::Integers | Kind::Floats => Form::Array,
        })
    }

    /// Determines the types of fields that the configuration does not set.
    ///
    /// # Errors
    /// No record has the keys of a field, or their values are unsupported.
    pub(crate) fn settle(&self, rules: &mut [ColumnRule]) -> Result<(), String> {
        for ColumnRule { rule, has_form, .. } in rules {
            let found = rule.from.iter().find_map(|key| self.keys.get(key));
            let Some(seen) = found else {
                if *has_form {
                    continue;
                }
                let names: Vec<_> = self.keys.keys().map(String::as_str).collect();
                return Err(format!(
                    "its first {} records have no {} for dataset.fields.{}; they have {}",
                    self.records,
                    rule.from.join(" or "),
                    rule.name,
                    names.join(", ")
                ));
            };
            if !*has_form {
                rule.form = self.form(seen).ok_or_else(|| {
                    format!(
                        "the values of {} for dataset.fields.{} are lists of bytes, of several kinds or empty, and of a \
                         list of bytes one value is read; set `as` if the first ones are not like the others",
                        rule.from.join(" or "),
                        rule.name
                    )
                })?;
                *has_form = true;
            }
        }
        Ok(())
    }

    /// Infers a field for each key: a single key with images is `image`, a single integer whose key ends in `label` is
    /// `label`, others keep their keys. Also returns the keys without a field.
    pub(crate) fn infer(&self) -> (Vec<ColumnRule>, Vec<String>) {
        let form = |key: &str| self.keys.get(key).and_then(|seen| self.form(seen));
        let single = |name: &str, test: &dyn Fn(&str) -> bool| -> Option<&String> {
            let mut all = self.keys.keys().filter(|key| test(key));
            let (first, second) = (all.next()?, all.next());
            (second.is_none() && (first == name || !self.keys.contains_key(name))).then_some(first)
        };
        let image = single("image", &|key| form(key) == Some(Form::Image));
        let is_label = |key: &str| key.rsplit('/').next() == Some("label");
        let label = single("label", &|key| is_label(key) && form(key) == Some(Form::Integer));
        let (mut rules, mut left_out) = (Vec::<ColumnRule>::new(), Vec::new());
        for (key, seen) in &self.keys {
            let name = match key {
                key if Some(key) == image => "image",
                key if Some(key) == label => "label",
                key => key,
            };
            let (is_everywhere, form) = (seen.records == self.records, self.form(seen));
            let Some(form) = form.filter(|form| {
                is_free(name, rules.iter().map(|rule| &rule.rule))
                    && (is_everywhere || form.may_be_empty())
            }) else {
                left_out.push(key.clone());
                continue;
            };
            let mut rule = ColumnRule::new(Source::Names, name, key, form);
            if !is_everywhere {
                rule.rule.missing = Missing::Empty;
            }
            rules.push(rule);
        }
        (rules, left_out)
    }
}

fn is_text(bytes: &[u8]) -> bool {
    let is_plain = |character: char| !character.is_control() || "\n\r\t".contains(character);
    std::str::from_utf8(bytes).is_ok_and(|text| text.chars().all(is_plain))
}

/// The features for the fields of one record.
///
/// # Errors
/// The record is not an Example.
pub(crate) fn find<'a>(
    rules: &[ColumnRule],
    example: &'a [u8],
) -> Result<Vec<Option<Feature<'a>>>, Fault> {
    let mut found: Vec<Option<(usize, Feature<'a>)>> = vec![None; rules.len()];
    features(example, |key, feature| {
        for (ColumnRule { rule, .. }, found) in rules.iter().zip(&mut found) {
            let Some(rank) = rule.from.iter().position(|from| from.as_bytes() == key) else {
                continue;
            };
            // Of several keys, the first one in the record counts; of a repeated key, the last occurrence.
            if found.is_none_or(|(before, _)| rank <= before) {
                *found = Some((rank, feature));
            }
        }
    })?;
    Ok(found.into_iter().map(|found| found.map(|(_, feature)| feature)).collect())
}

/// A float, which has 32 bits in this format.
fn float(bytes: Cow<'_, [u8]>) -> FieldValue<'_> {
    FieldValue::Array(ArrayValue::scalar(DType::F32, bytes))
}

/// The value of a field of bytes.
///
/// # Errors
/// A required value is missing or malformed.
pub(crate) fn bytes_value<'a>(
    rule: &ColumnRule,
    bytes: Option<&'a [u8]>,
) -> Result<FieldValue<'a>, Defect> {
    match rule.value(bytes)? {
        #[expect(clippy::cast_possible_truncation, reason = "as TensorFlow has them")]
        FieldValue::Float(value) => Ok(float((value as f32).to_le_bytes().to_vec().into())),
        value => Ok(value),
    }
}

/// The value of a field.
///
/// # Errors
/// A required value is missing or malformed.
pub(crate) fn value<'a>(
    rule: &ColumnRule,
    feature: Option<Feature<'a>>,
) -> Result<FieldValue<'a>, Defect> {
    let refuse = |what: String| Err(Defect(format!("`{}` {what}", rule.rule.name)));
    let is_list = rule.rule.form == Form::Array
        && feature.is_some_and(|feature| feature.kind != Some(Kind::Bytes));
    // A single value that was written as an empty list is missing.
    let Some((feature, kind)) = feature
        .filter(|feature| is_list || feature.count > 0)
        .and_then(|feature| feature.kind.map(|kind| (feature, kind)))
    else {
        return rule.value(None);
    };
    if !is_list && feature.count > 1 {
        return refuse(format!("has {} values, and a single one is read", feature.count));
    }
    let array = |dtype, bytes: Cow<'a, [u8]>| {
        Ok(FieldValue::Array(ArrayValue::new(dtype, vec![feature.count as u64], bytes)))
    };
    match (kind, rule.rule.form) {
        (Kind::Bytes, _) => bytes_value(rule, feature.bytes()),
        (Kind::Floats, Form::Array) => array(DType::F32, feature.floats()),
        (Kind::Floats, Form::Float) => Ok(float(feature.floats())),
        (Kind::Integers, Form::Array | Form::Integer | Form::Float) => {
            let mut all = Vec::with_capacity(feature.count);
            if let Err(fault) = feature.integers(|number| all.push(number)) {
                return refuse(format!("cannot be read: {}", fault.words()));
            }
            let first = all.first().copied().unwrap_or(0);
            match (rule.rule.form, rule.classes()) {
                (Form::Array, _) => array(
                    DType::I64,
                    all.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>().into(),
                ),
                (Form::Integer, Some(classes))
                    if !usize::try_from(first).is_ok_and(|first| first < classes.names.len()) =>
                {
                    refuse(format!(
                        "is {first}, and its classes are 0 to {}",
                        classes.names.len() - 1
                    ))
                }
                (Form::Integer, _) => Ok(FieldValue::Integer(first)),
                #[expect(clippy::cast_precision_loss, reason = "the configuration says float")]
                _ => Ok(float((first as f32).to_le_bytes().to_vec().into())),
            }
        }
        (Kind::Floats, _) => refuse("is of floats; read it `as` a float or an array".to_owned()),
        (Kind::Integers, _) => {
            refuse("is of integers; read it `as` an integer, a float or an array".to_owned())
        }
    }
}
