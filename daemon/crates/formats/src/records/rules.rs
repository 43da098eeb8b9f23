//! The fields of records.

use std::borrow::Cow;
use std::path::Path;

use forebay_keys::{ConfigError, Located, Section};
use forebay_protocol::tensor::MAX_TENSORS;
use serde::{Deserialize, Serialize};

use super::forms::{can_be, kept_type, usual_form};
use crate::fields::{
    FieldRule, Form, FormWord, Missing, MissingWord, Names, RESERVED, name_fault, take_sound,
};
use crate::file_samples::array_field;
use crate::litdata::nested::json_text;
use forebay_columnar::{Column, Encoding, Number, check_length};
use forebay_dataset::{ArrayValue, Defect, Field, FieldKind, FieldValue};

/// The maximum number of names in a message, and the maximum characters of each.
const MAX_SHOWN_NAMES: usize = 20;
const MAX_SHOWN_CHARACTERS: usize = 100;

/// A field and the column that it is made of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RecordRule {
    rule: FieldRule,
    /// Whether the configuration sets the form.
    has_form: bool,
}

/// Reads `[dataset.fields]`. `may_lack`: whether records may lack a column's value.
///
/// # Errors
/// Names the key and the line.
pub(crate) fn read_rules(
    entries: &[(String, Located)],
    may_lack: bool,
) -> Result<Vec<RecordRule>, ConfigError> {
    entries.iter().map(|(name, located)| read_rule(name, located, may_lack)).collect()
}

fn read_rule(name: &str, located: &Located, may_lack: bool) -> Result<RecordRule, ConfigError> {
    let path = format!("dataset.fields.{name}");
    let mut section = Section::new(path, located.clone(), Path::new("/"))?;
    let from = section.require::<Names>("from")?;
    let form = section.take::<FormWord>("as")?;
    let missing = if may_lack { section.take::<MissingWord>("missing")? } else { None };
    let missing = missing.unwrap_or(Missing::Error);
    let sound = take_sound(&mut section, form)?;
    section.finish()?;
    if let Some(reason) = name_fault(name) {
        return Err(section.error(format!("`dataset.fields`: {reason}")));
    }
    if from.len() > 1 {
        let message =
            format!("`{}` is one column: each record has all columns", section.key_path("from"));
        return Err(section.error_at("from", message));
    }
    if missing == Missing::Empty && !matches!(form, Some(Form::Text | Form::Bytes)) {
        let message = format!(
            "`{}` can be \"empty\" for text and bytes alone, with `as`; use \"error\" or \"skip\"",
            section.key_path("missing")
        );
        return Err(section.error_at("missing", message));
    }
    let (name, has_form) = (name.to_owned(), form.is_some());
    let form = form.unwrap_or(Form::Bytes);
    let rule = FieldRule { name, from, key: None, form, missing, sound };
    Ok(RecordRule { rule, has_form })
}

/// Applies the configuration's rules to the columns.
///
/// # Errors
/// A column is missing or not supported, or cannot be read in the requested form.
pub(crate) fn settle(rules: &mut [RecordRule], columns: &[Column]) -> Result<(), String> {
    for RecordRule { rule, has_form } in rules {
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
        if !*has_form {
            let usual = usual_form(&column.encoding).unwrap_or(Form::Bytes);
            rule.form = if key.is_some() { Form::Text } else { usual };
        }
        if !can_be(&column.encoding, rule.form, key.is_some()) {
            return Err(format!(
                "the column {} of {path} is {:?}, which is no such value; leave `as` out, or choose another",
                column.name, column.encoding
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
pub(crate) fn infer(columns: &[Column]) -> (Vec<RecordRule>, Vec<String>) {
    let (mut rules, mut left_out) = (Vec::<RecordRule>::new(), Vec::new());
    for column in columns {
        let is_taken = rules.iter().any(|rule| rule.rule.name == column.name);
        let is_full = rules.len() + RESERVED.len() >= MAX_TENSORS;
        match &column.encoding {
            Encoding::Unread(why) => left_out.push(with_reason(&column.name, why)),
            _ if name_fault(&column.name).is_some() || is_taken || is_full => {
                left_out.push(shown(&column.name));
            }
            encoding => rules.push(RecordRule::of(&column.name, encoding)),
        }
    }
    (rules, left_out)
}

impl RecordRule {
    /// A column under its own name.
    pub(crate) fn of(name: &str, encoding: &Encoding) -> Self {
        let form = usual_form(encoding).unwrap_or(Form::Bytes);
        let (name, from) = (name.to_owned(), vec![name.to_owned()]);
        let rule = FieldRule { name, from, key: None, form, missing: Missing::Error, sound: None };
        Self { rule, has_form: true }
    }

    pub(crate) fn rule(&self) -> &FieldRule {
        &self.rule
    }

    pub(crate) fn rename(&mut self, name: &str) {
        name.clone_into(&mut self.rule.name);
    }

    pub(crate) fn column(&self) -> &str {
        self.rule.from.first().map_or("", String::as_str)
    }

    pub(crate) fn is_sound(&self) -> bool {
        self.rule.from.len() == 1
    }

    pub(crate) fn is_array(&self) -> bool {
        self.rule.form == Form::Array
    }

    /// The field of a column; the type and shape of an array come from the first sample.
    pub(crate) fn field(
        &self,
        encoding: &Encoding,
        first: Option<&FieldValue<'_>>,
    ) -> Result<Field, Defect> {
        match (kept_type(encoding, self.rule.form), first) {
            (Some(dtype), _) => {
                let kind = FieldKind::Array { dtype, shape: Vec::new() };
                Ok(Field { name: self.rule.name.clone(), kind })
            }
            (None, Some(FieldValue::Array(array))) => {
                Ok(array_field(self.rule.name.clone(), array))
            }
            _ => self.rule.field(None),
        }
    }

    /// The value in a column's bytes.
    ///
    /// # Errors
    /// The bytes are not a value of the encoding and form.
    pub(crate) fn value<'a>(
        &self,
        encoding: &Encoding,
        bytes: &'a [u8],
    ) -> Result<FieldValue<'a>, Defect> {
        let named = |reason: String| Defect(format!("`{}` {reason}", self.rule.name));
        if let Some(dtype) = kept_type(encoding, self.rule.form) {
            check_length(dtype, bytes).map_err(named)?;
            return Ok(FieldValue::Array(ArrayValue::scalar(dtype, bytes)));
        }
        match encoding {
            Encoding::Number(name) => {
                Ok(match (Encoding::number(name, bytes).map_err(named)?, self.rule.form) {
                    (Number::Integer(value), Form::Integer) => FieldValue::Integer(value),
                    #[expect(clippy::cast_precision_loss, reason = "the configuration says float")]
                    (Number::Integer(value), _) => FieldValue::Float(value as f64),
                    (Number::Float(value), _) => FieldValue::Float(value),
                })
            }
            Encoding::Array(form) => form
                .read(bytes)
                .map(FieldValue::Array)
                .map_err(|defect| Defect(format!("`{}`: {}", self.rule.name, defect.0))),
            Encoding::Nested => match json_text(bytes).map_err(|defect| named(defect.0))? {
                Cow::Borrowed(text) => self.rule.value(Some(text)),
                Cow::Owned(text) => match self.rule.value(Some(&text))? {
                    FieldValue::Text(text) => Ok(FieldValue::Text(text.into_owned().into())),
                    FieldValue::Bytes(bytes) => Ok(FieldValue::Bytes(bytes.into_owned().into())),
                    FieldValue::Integer(value) => Ok(FieldValue::Integer(value)),
                    FieldValue::Float(value) => Ok(FieldValue::Float(value)),
                    _ => Err(named("is neither text nor a number".to_owned())),
                },
            },
            _ => self.rule.value(Some(bytes)),
        }
    }
}
