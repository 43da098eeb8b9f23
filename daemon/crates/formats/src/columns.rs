//! The rules of fields for samples with named columns: the rows of a manifest, the features of records.

use std::path::Path;

use forebay_keys::{ConfigError, Kind, Located, Section, Value, kinds};
use forebay_protocol::tensor::MAX_TENSORS;
use serde::{Deserialize, Serialize};

use crate::fields::{
    FieldRule, Form, FormWord, Missing, MissingWord, Names, fields_table, name_fault, take_sound,
};
use crate::number_lists::ListForm;
use forebay_dataset::{Defect, FieldValue};

/// The word for classes that are collected from the data.
const SORTED: &str = "sorted";

kinds! {
    /// The key `classes`.
    [pub(super)] ClassWord as Classes: "an array of names in the order of their labels, or \"sorted\"";
    read(value) {
        match value {
            Value::String(word) if word == SORTED => {
                Some(Classes { names: Vec::new(), are_sorted: true })
            }
            Value::Array(names) if !names.is_empty() => {
                let name = |name: &Located| name.value.as_text().map(str::to_owned);
                let names = names.iter().map(name).collect::<Option<_>>()?;
                Some(Classes { names, are_sorted: false })
            }
            _ => None,
        }
    }
    write(out) {
        match out.are_sorted {
            true => Value::String(SORTED.to_owned()),
            false => {
                let names = out.names.iter().map(|name| Value::String(name.clone()).into());
                Value::Array(names.collect())
            }
        }
    }
    schema { "type": ["string", "array"] }
}

/// Names that are mapped to numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Classes {
    /// In the order of their labels.
    pub(super) names: Vec<String>,
    /// Whether they are collected from the data; then the names are known after the rows are read.
    pub(super) are_sorted: bool,
}

/// The rule of one field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ColumnRule {
    pub(super) rule: FieldRule,
    pub(super) classes: Option<Classes>,
    /// Whether the configuration sets the type.
    pub(super) has_form: bool,
    /// Of a column of JSON whose values are lists of numbers, which are arrays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) list: Option<ListForm>,
}

impl ColumnRule {
    /// Whether the column contains paths of files.
    pub(super) fn is_file(&self) -> bool {
        self.list.is_none() && (self.rule.form.is_of_bytes() || self.rule.form == Form::Bytes)
    }

    /// The value of a cell, or of the file that it refers to.
    ///
    /// # Errors
    /// A required value is missing or malformed.
    pub(super) fn value<'a>(
        &self,
        bytes: Option<&'a [u8]>,
        labels: &Labels,
    ) -> Result<FieldValue<'a>, Defect> {
        if let (Some(list), Some(text)) = (&self.list, bytes) {
            return list.value(&self.rule.name, text).map(FieldValue::Array);
        }
        match (&self.classes, bytes) {
            (Some(_), Some(name)) => labels.of(name).map(FieldValue::Integer).ok_or_else(|| {
                let name = String::from_utf8_lossy(name);
                Defect(format!("`{}` is none of its classes: {name:?}", self.rule.name))
            }),
            _ => self.rule.value(bytes),
        }
    }
}

/// Labels by name.
#[derive(Debug, Default, Clone)]
pub(super) struct Labels(Vec<(Vec<u8>, i64)>);

impl Labels {
    /// The labels of a rule's classes; empty without classes.
    pub(super) fn new(classes: Option<&Classes>) -> Self {
        let names = classes.iter().flat_map(|classes| &classes.names);
        let mut labels: Vec<_> = names.map(|name| name.as_bytes().to_vec()).zip(0_i64..).collect();
        labels.sort_unstable();
        Self(labels)
    }

    pub(super) fn of(&self, name: &[u8]) -> Option<i64> {
        let place = self.0.binary_search_by(|(other, _)| other.as_slice().cmp(name)).ok()?;
        self.0.get(place).map(|(_, label)| *label)
    }
}

/// Reads `[dataset.fields]`.
///
/// # Errors
/// The error has the key and the line.
pub(super) fn read_rules(entries: &[(String, Located)]) -> Result<Vec<ColumnRule>, ConfigError> {
    entries.iter().map(|(name, located)| read_rule(name, located)).collect()
}

fn read_rule(name: &str, located: &Located) -> Result<ColumnRule, ConfigError> {
    let path = format!("dataset.fields.{name}");
    let mut section = Section::new(path, located.clone(), Path::new("/"))?;
    let from = section.require::<Names>("from")?;
    let form = section.take::<FormWord>("as")?;
    let classes = section.take::<ClassWord>("classes")?;
    let missing = section.take::<MissingWord>("missing")?.unwrap_or(Missing::Error);
    let sound = take_sound(&mut section, form)?;
    section.finish()?;
    if let Some(reason) = name_fault(name) {
        return Err(section.error(format!("`dataset.fields`: {reason}")));
    }
    let fail = |key: &str, message: &str| {
        Err(section.error_at(key, format!("`{}` {message}", section.key_path(key))))
    };
    if missing == Missing::Empty && !matches!(form, Some(Form::Text | Form::Bytes)) {
        return fail(
            "missing",
            "can be \"empty\" for text and bytes alone, with `as`; use \"error\" or \"skip\"",
        );
    }
    if classes.is_some() && !matches!(form, None | Some(Form::Integer)) {
        return fail("classes", "are for integers: leave `as` out, or use \"integer\"");
    }
    if let Some(Classes { names, .. }) = &classes {
        let mut sorted: Vec<_> = names.iter().collect();
        sorted.sort_unstable();
        if let Some(twice) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            return fail("classes", &format!("name {:?} twice", twice[0]));
        }
    }
    let has_form = form.is_some() || classes.is_some();
    let form = form.unwrap_or(if classes.is_some() { Form::Integer } else { Form::Text });
    let rule = FieldRule { name: name.to_owned(), from, key: None, form, missing, sound };
    Ok(ColumnRule { rule, classes, has_form, list: None })
}

/// The rules in the syntax of the configuration.
pub(super) fn table(rules: &[ColumnRule]) -> String {
    fields_table(rules.iter().map(|rule| {
        let classes = rule.classes.as_ref().map(|classes| ClassWord::write(classes).to_toml());
        (&rule.rule, classes.map_or(String::new(), |classes| format!(", classes = {classes}")))
    }))
}

/// The rules as text, for the index.
pub(super) fn rules_text(rules: &[ColumnRule]) -> String {
    // Cannot fail: the rules contain only strings and words.
    serde_json::to_string(rules).unwrap_or_default()
}

/// Parses the text from [`rules_text`].
pub(super) fn parse_rules(text: &str) -> Option<Vec<ColumnRule>> {
    let rules: Vec<ColumnRule> = serde_json::from_str(text).ok()?;
    let is_sound = rules.iter().all(|rule| !rule.rule.from.is_empty());
    (is_sound && !rules.is_empty() && rules.len() <= MAX_TENSORS).then_some(rules)
}

/// The class names, if exactly one field has classes.
pub(super) fn classes(rules: &[ColumnRule]) -> &[String] {
    let mut all = rules.iter().filter_map(|rule| rule.classes.as_ref());
    match (all.next(), all.next()) {
        (Some(classes), None) => &classes.names,
        _ => &[],
    }
}
