//! What the fields of records are made of.

use std::path::Path;

use forebay_config::{ConfigError, Located, Section};
use forebay_protocol::tensor::MAX_TENSORS;
use serde::{Deserialize, Serialize};

use super::description::Column;
use super::encoding::{Encoding, Number};
use crate::dataset::fields::{
    FieldRule, Form, FormWord, Missing, MissingWord, Names, RESERVED, name_fault, take_sound,
};
use crate::dataset::file_samples::array_field;
use crate::dataset::{Defect, Field, FieldValue};

/// What one field is made of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::dataset) struct RecordRule {
    rule: FieldRule,
    /// Whether the configuration says what it is read as.
    has_form: bool,
}

/// Reads `[dataset.fields]`. `may_lack`: whether a record may have no value of a column.
///
/// # Errors
/// Names the key and the line.
pub(in crate::dataset) fn read_rules(
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

/// The rules of the configuration over the columns that there are.
///
/// # Errors
/// A column that is not there, is not read, or is no such value.
pub(in crate::dataset) fn settle(
    rules: &mut [RecordRule],
    columns: &[Column],
) -> Result<(), String> {
    for RecordRule { rule, has_form } in rules {
        let from = rule.from.first().cloned().unwrap_or_default();
        let find = |name: &str| columns.iter().find(|column| column.name == name);
        let found = find(&from).map(|column| (column, None)).or_else(|| {
            let (column, key) = from.split_once(':')?;
            Some((find(column)?, Some(key.to_owned())))
        });
        let path = format!("dataset.fields.{}", rule.name);
        let Some((column, key)) = found else {
            let names: Vec<_> = columns.iter().map(|column| column.name.as_str()).collect();
            return Err(format!("it has no column {from} for {path}; it has {}", names.join(", ")));
        };
        if let Encoding::Unread(why) = &column.encoding {
            return Err(format!("the column {} of {path} is not read: {why}", column.name));
        }
        if !*has_form {
            let usual = column.encoding.usual_form().unwrap_or(Form::Bytes);
            rule.form = if key.is_some() { Form::Text } else { usual };
        }
        if !column.encoding.can_be(rule.form, key.is_some()) {
            return Err(format!(
                "the column {} of {path} is {:?}, which is no such value; leave `as` out, or choose another",
                column.name, column.encoding
            ));
        }
        (rule.from, rule.key, *has_form) = (vec![column.name.clone()], key, true);
    }
    Ok(())
}

/// A field for each column that is read, under its name. Gives the columns that are left out, too.
pub(in crate::dataset) fn infer(columns: &[Column]) -> (Vec<RecordRule>, Vec<String>) {
    let (mut rules, mut left_out) = (Vec::<RecordRule>::new(), Vec::new());
    for column in columns {
        let is_taken = rules.iter().any(|rule| rule.rule.name == column.name);
        let is_full = rules.len() + RESERVED.len() >= MAX_TENSORS;
        match &column.encoding {
            Encoding::Unread(why) => left_out.push(format!("{} ({why})", column.name)),
            _ if name_fault(&column.name).is_some() || is_taken || is_full => {
                left_out.push(column.name.clone());
            }
            encoding => rules.push(RecordRule::of(&column.name, encoding)),
        }
    }
    (rules, left_out)
}

impl RecordRule {
    /// A column under its own name.
    pub(in crate::dataset) fn of(name: &str, encoding: &Encoding) -> Self {
        let form = encoding.usual_form().unwrap_or(Form::Bytes);
        let (name, from) = (name.to_owned(), vec![name.to_owned()]);
        let rule = FieldRule { name, from, key: None, form, missing: Missing::Error, sound: None };
        Self { rule, has_form: true }
    }

    pub(in crate::dataset) fn rule(&self) -> &FieldRule {
        &self.rule
    }

    pub(in crate::dataset) fn rename(&mut self, name: &str) {
        name.clone_into(&mut self.rule.name);
    }

    pub(in crate::dataset) fn column(&self) -> &str {
        self.rule.from.first().map_or("", String::as_str)
    }

    pub(in crate::dataset) fn is_sound(&self) -> bool {
        self.rule.from.len() == 1
    }

    pub(in crate::dataset) fn is_array(&self) -> bool {
        self.rule.form == Form::Array
    }

    /// The field; of an array the first sample's value says it.
    pub(in crate::dataset) fn field(
        &self,
        first: Option<&FieldValue<'_>>,
    ) -> Result<Field, Defect> {
        match first {
            Some(FieldValue::Array(array)) => Ok(array_field(self.rule.name.clone(), array)),
            _ => self.rule.field(None),
        }
    }

    /// The value that a column's bytes are.
    ///
    /// # Errors
    /// They are no such value.
    pub(in crate::dataset) fn value<'a>(
        &self,
        encoding: &Encoding,
        bytes: &'a [u8],
    ) -> Result<FieldValue<'a>, Defect> {
        let named = |reason: String| Defect(format!("`{}` {reason}", self.rule.name));
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
            _ => self.rule.value(Some(bytes)),
        }
    }
}
