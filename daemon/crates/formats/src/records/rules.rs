//! The fields of records.

use std::borrow::Cow;

use super::forms::{can_be, kept_type, usual_form};
use crate::columns::{ColumnRule, Source};
use crate::fields::{Form, is_free};
use crate::litdata::nested::json_text;
use forebay_columnar::{Column, Encoding, Number, check_length};
use forebay_dataset::{ArrayValue, Defect, FieldValue};

/// The maximum number of names in a message, and the maximum characters of each.
const MAX_SHOWN_NAMES: usize = 20;
const MAX_SHOWN_CHARACTERS: usize = 100;

/// Applies the configuration's rules to the columns.
///
/// # Errors
/// A column is missing or not supported, or cannot be read in the requested form.
pub(crate) fn settle(rules: &mut [ColumnRule], columns: &[Column]) -> Result<(), String> {
    for ColumnRule { rule, has_form, .. } in rules {
        let from = rule.from.first().cloned().unwrap_or_default();
        let find = |name: &str| columns.iter().find(|column| column.name == name);
        let found = find(&from).map(|column| (column, None)).or_else(|| {
            let (column, key) = from.split_once(':')?;
            Some((find(column)?, Some(key.to_owned())))
        });
        let path = format!("dataset.fields.{}", rule.name);
        let Some((column, key)) = found else {
            let names = first_names(columns.iter().map(|column| column.name.as_str()));
            return Err(format!("it has no column {from} for {path}; it has {names}"));
        };
        if let Encoding::Unread(why) = &column.encoding {
            return Err(format!("the column {} of {path} is not read: {why}", column.name));
        }
        if !*has_form && column.encoding == Encoding::ByteLists {
            return Err(format!(
                "the column {} of {path} is not read: it is a list of texts or bytes; if they are pictures, add as = \"images\"",
                column.name
            ));
        }
        if !*has_form {
            let usual = usual_form(&column.encoding).unwrap_or(Form::Bytes);
            rule.form = if key.is_some() { Form::Text } else { usual };
        }
        if !can_be(&column.encoding, rule.form, key.is_some()) {
            return Err(format!(
                "the column {} of {path} has {}, which cannot be what `as` says; leave `as` out, or choose another",
                column.name,
                column.encoding.words()
            ));
        }
        (rule.from, rule.key, *has_form) = (vec![column.name.clone()], key, true);
    }
    Ok(())
}

/// The first names for a message, truncated. A file may have 65,536 of up to 64 KiB.
pub(crate) fn first_names<'n>(names: impl Iterator<Item = &'n str>) -> String {
    first_of(names.map(shown))
}

/// A column without a field and the reason, for [`first_of`].
pub(crate) fn with_reason(name: &str, why: &str) -> String {
    format!("{} ({why})", shown(name))
}

/// The first items for a message.
pub(crate) fn first_of<T: AsRef<str>>(mut all: impl Iterator<Item = T>) -> String {
    let mut text = String::new();
    for one in all.by_ref().take(MAX_SHOWN_NAMES) {
        text.push_str(if text.is_empty() { "" } else { ", " });
        text.push_str(one.as_ref());
    }
    match all.count() {
        0 => text,
        more => format!("{text} and {more} more"),
    }
}

/// The beginning of a name.
fn shown(name: &str) -> String {
    match name.char_indices().nth(MAX_SHOWN_CHARACTERS) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    }
}

/// A field for each supported column, under its name. Also gives the columns that are left out, for [`first_of`].
pub(crate) fn infer(columns: &[Column]) -> (Vec<ColumnRule>, Vec<String>) {
    let (mut rules, mut left_out) = (Vec::<ColumnRule>::new(), Vec::new());
    for column in columns {
        match &column.encoding {
            Encoding::Unread(why) => left_out.push(with_reason(&column.name, why)),
            encoding if is_free(&column.name, rules.iter().map(|rule| &rule.rule)) => {
                rules.push(rule_of(&column.name, encoding));
            }
            _ => left_out.push(shown(&column.name)),
        }
    }
    (rules, left_out)
}

/// A column under its own name.
pub(super) fn rule_of(name: &str, encoding: &Encoding) -> ColumnRule {
    ColumnRule::new(Source::Records, name, name, usual_form(encoding).unwrap_or(Form::Bytes))
}

/// The value in a column's bytes.
///
/// # Errors
/// The bytes are not a value of the encoding and form.
pub(crate) fn value<'a>(
    ColumnRule { rule, .. }: &ColumnRule,
    encoding: &Encoding,
    bytes: &'a [u8],
) -> Result<FieldValue<'a>, Defect> {
    let named = |reason: String| Defect(format!("`{}` {reason}", rule.name));
    if let Some(dtype) = kept_type(encoding, rule.form) {
        check_length(dtype, bytes).map_err(named)?;
        return Ok(FieldValue::Array(ArrayValue::scalar(dtype, bytes)));
    }
    match encoding {
        Encoding::Number(name) => {
            Ok(match (Encoding::number(name, bytes).map_err(named)?, rule.form) {
                (Number::Integer(value), Form::Integer) => FieldValue::Integer(value),
                #[expect(clippy::cast_precision_loss, reason = "the configuration says float")]
                (Number::Integer(value), _) => FieldValue::Float(value as f64),
                (Number::Float(value), _) => FieldValue::Float(value),
            })
        }
        Encoding::Array(form) => form
            .read(bytes)
            .map(FieldValue::Array)
            .map_err(|defect| Defect(format!("`{}`: {}", rule.name, defect.0))),
        Encoding::Nested => match json_text(bytes).map_err(|defect| named(defect.0))? {
            Cow::Borrowed(text) => rule.value(Some(text)),
            Cow::Owned(text) => match rule.value(Some(&text))? {
                FieldValue::Text(text) => Ok(FieldValue::Text(text.into_owned().into())),
                FieldValue::Bytes(bytes) => Ok(FieldValue::Bytes(bytes.into_owned().into())),
                FieldValue::Integer(value) => Ok(FieldValue::Integer(value)),
                FieldValue::Float(value) => Ok(FieldValue::Float(value)),
                _ => Err(named("is neither text nor a number".to_owned())),
            },
        },
        _ => rule.value(Some(bytes)),
    }
}
