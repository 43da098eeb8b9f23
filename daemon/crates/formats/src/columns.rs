//! The reader of `[dataset.fields]` for all formats, and the rules of fields that are made of named columns: columns of
//! tables and features of records.

use std::path::Path;

use forebay_keys::{ConfigError, Kind, Located, Section, Value, kinds};
use forebay_protocol::tensor::{DType, MAX_TENSORS};
use serde::{Deserialize, Serialize};

use crate::fields::{
    FieldRule, Form, FormWord, Missing, MissingWord, Names, Refusal, SoundChannels, SoundRate,
    SoundTime, fields_table, name_fault,
};
use crate::file_samples::array_field;
use crate::number_lists::ListForm;
use crate::video_fields;
use forebay_dataset::{Defect, Field, FieldKind, FieldValue, SoundForm, SoundSpan};

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

/// What a format makes fields of. It determines the keys of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// Members of an archive; of several names, a sample has one. For `webdataset`.
    Members,
    /// A column with an encoding, of which each record has a value. For `mds` and `litdata`.
    Records,
    /// A column with an encoding, of which rows may lack values. For `arrow` and `parquet`.
    Tables,
    /// Named values without a declared type, which a sample may lack. For `manifest` and `tfrecord`.
    Names,
}

/// An entry that is there, null or not.
fn present<'de, D: serde::Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// The rule of one field of columns.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ColumnRule {
    pub(super) rule: FieldRule,
    /// `Some(None)`: the field has no classes. `None`: the format has no such key, and its index has no such entry.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub(super) classes: Option<Option<Classes>>,
    /// Whether the form is known; otherwise the format sets it when it sees the data.
    pub(super) has_form: bool,
    /// Of a column of JSON whose values are lists of numbers, which are arrays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) list: Option<ListForm>,
    /// Of a column with lists of pictures' paths: the length of the longest list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) longest_paths: Option<u64>,
    /// The labels of the classes, if their names are known.
    #[serde(skip)]
    pub(super) labels: Labels,
}

impl ColumnRule {
    /// A field of a column of this form.
    pub(super) fn new(source: Source, name: &str, column: &str, form: Form) -> Self {
        let rule = FieldRule::new(name, vec![column.to_owned()], form);
        let classes = (source == Source::Names).then_some(None);
        let labels = Labels::default();
        Self { rule, classes, has_form: true, list: None, longest_paths: None, labels }
    }

    pub(super) fn classes(&self) -> Option<&Classes> {
        self.classes.as_ref()?.as_ref()
    }

    /// The only column of a field, or the first one.
    pub(super) fn column(&self) -> &str {
        self.rule.from.first().map_or("", String::as_str)
    }

    /// Whether the column contains paths of files.
    pub(super) fn is_file(&self) -> bool {
        self.list.is_none() && (self.rule.form.is_of_bytes() || self.rule.form == Form::Bytes)
    }

    /// The most files that a row has of the field.
    pub(super) fn most_files(&self) -> u64 {
        self.longest_paths.unwrap_or(1)
    }

    /// The value of a cell, or of the file that it refers to.
    ///
    /// # Errors
    /// A required value is missing or malformed.
    pub(super) fn value<'a>(&self, bytes: Option<&'a [u8]>) -> Result<FieldValue<'a>, Defect> {
        if let (Some(list), Some(text)) = (&self.list, bytes) {
            return list.value(&self.rule.name, text).map(FieldValue::Array);
        }
        match (self.classes(), bytes) {
            (Some(_), Some(name)) => {
                self.labels.of(name).map(FieldValue::Integer).ok_or_else(|| {
                    let name = String::from_utf8_lossy(name);
                    Defect(format!("`{}` is none of its classes: {name:?}", self.rule.name))
                })
            }
            _ => self.rule.value(bytes),
        }
    }

    /// The field of the rule. `kept`: the type of a number that is not converted. `first`: the value of the first
    /// sample, which determines the type and shape of an array.
    ///
    /// # Errors
    /// The first sample does not have the array.
    pub(super) fn field(
        &self,
        kept: Option<DType>,
        first: Option<&FieldValue<'_>>,
    ) -> Result<Field, Defect> {
        let name = self.rule.name.clone();
        match (kept, first) {
            (Some(dtype), _) => {
                Ok(Field { name, kind: FieldKind::Array { dtype, shape: Vec::new() } })
            }
            (None, Some(FieldValue::Array(array))) => Ok(array_field(name, array)),
            _ => self.rule.field(None),
        }
    }

    /// Checks the keys of a configuration against each other.
    fn check(&self, source: Source) -> Result<(), Refusal> {
        let FieldRule { from, form, missing, .. } = &self.rule;
        let refuse = |key, message: &str| Err((key, message.to_owned()));
        if source != Source::Names && from.len() > 1 {
            return refuse("from", "is one column: each record has all columns");
        }
        if *missing == Missing::Empty && !(self.has_form && form.may_be_empty()) {
            return refuse(
                "missing",
                "can be \"empty\" for text and bytes alone, with `as`; use \"error\" or \"skip\"",
            );
        }
        let Some(Classes { names, .. }) = self.classes() else { return Ok(()) };
        if *form != Form::Integer {
            return refuse("classes", "are for integers: leave `as` out, or use \"integer\"");
        }
        let mut sorted: Vec<_> = names.iter().collect();
        sorted.sort_unstable();
        match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(twice) => Err(("classes", format!("name {:?} twice", twice[0]))),
            None => Ok(()),
        }
    }
}

/// Labels by name.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Labels(Vec<(Vec<u8>, i64)>);

impl Labels {
    /// The labels of a rule's classes; empty without classes.
    fn new(classes: Option<&Classes>) -> Self {
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

/// Reads `[dataset.fields]`, if the configuration has it.
///
/// # Errors
/// The error has the key and the line.
pub(super) fn read_rules(
    fields: Option<&[(String, Located)]>,
    source: Source,
) -> Result<Option<Vec<ColumnRule>>, ConfigError> {
    let read = |(name, located): &(String, Located)| read_rule(name, located, source);
    fields.map(|fields| fields.iter().map(read).collect()).transpose()
}

/// Whether a section has a key that was not taken.
fn has(section: &Section, key: &str) -> bool {
    section.entries().iter().any(|(name, _)| name == key)
}

fn read_rule(name: &str, located: &Located, source: Source) -> Result<ColumnRule, ConfigError> {
    let path = format!("dataset.fields.{name}");
    let mut section = Section::new(path, located.clone(), Path::new("/"))?;
    let from = section.require::<Names>("from")?;
    let form = section.take::<FormWord>("as")?;
    let classes = match source {
        Source::Names => Some(section.take::<ClassWord>("classes")?),
        _ => None,
    };
    let missing = match source {
        Source::Records => None,
        _ => section.take::<MissingWord>("missing")?,
    };
    let sound = match form {
        Some(Form::Audio) => {
            let channels = section.take::<SoundChannels>("channels")?.flatten();
            let rate = section.take::<SoundRate>("rate")?;
            let start = section.take::<SoundTime>("start")?;
            let span = SoundSpan::of_keys(start, section.take::<SoundTime>("seconds")?);
            Some(SoundForm { channels, rate, span })
        }
        _ => None,
    };
    if form == Some(Form::Video) {
        video_fields::take_keys(name, &mut section)?;
    } else if let Some(key) = video_fields::OWN_KEYS.into_iter().find(|key| has(&section, key)) {
        let path = section.key_path(key);
        let message = format!("`{path}` is a key of clips of videos: add as = \"video\"");
        return Err(section.error(message));
    }
    section.finish()?;
    if let Some(reason) = name_fault(name) {
        return Err(section.error(format!("`dataset.fields`: {reason}")));
    }
    let has_classes = matches!(classes, Some(Some(_)));
    let usual = match source {
        Source::Names if has_classes => Form::Integer,
        Source::Names => Form::Text,
        _ => Form::Bytes,
    };
    let rule = FieldRule::new(name, from, form.unwrap_or(usual));
    let rule = FieldRule { missing: missing.unwrap_or(Missing::Error), sound, ..rule };
    let has_form = form.is_some() || has_classes;
    let labels = Labels::new(classes.iter().flatten().next());
    let mut rule = ColumnRule { rule, classes, has_form, list: None, longest_paths: None, labels };
    let checked = match source {
        Source::Members => rule.rule.set_members(form),
        _ => rule.check(source),
    };
    checked.map_err(|(key, message)| {
        section.error_at(key, format!("`{}` {message}", section.key_path(key)))
    })?;
    Ok(rule)
}

/// Reads `[dataset.fields]` for the members of samples.
///
/// # Errors
/// As [`read_rules`].
pub(super) fn read_members(
    fields: Option<&[(String, Located)]>,
) -> Result<Option<Vec<FieldRule>>, ConfigError> {
    let rules = read_rules(fields, Source::Members)?;
    Ok(rules.map(|rules| rules.into_iter().map(|rule| rule.rule).collect()))
}

/// The rules in the syntax of the configuration.
pub(super) fn table<'r>(rules: impl IntoIterator<Item = &'r ColumnRule>) -> String {
    fields_table(rules.into_iter().map(|rule| {
        let classes = rule.classes().map(|classes| ClassWord::write(classes).to_toml());
        (&rule.rule, classes.map_or(String::new(), |classes| format!(", classes = {classes}")))
    }))
}

/// Parses the text of rules in an index.
pub(super) fn parse_rules(text: &str) -> Option<Vec<ColumnRule>> {
    let mut rules: Vec<ColumnRule> = serde_json::from_str(text).ok()?;
    for rule in &mut rules {
        rule.labels = Labels::new(rule.classes());
    }
    let is_sound = rules.iter().all(|rule| !rule.rule.from.is_empty());
    (is_sound && !rules.is_empty() && rules.len() <= MAX_TENSORS).then_some(rules)
}

/// The class names, if exactly one field has classes.
pub(super) fn classes(rules: &[ColumnRule]) -> &[String] {
    let mut all = rules.iter().filter_map(ColumnRule::classes);
    match (all.next(), all.next()) {
        (Some(classes), None) => &classes.names,
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::rules_text;

    #[test]
    fn text_of_rules_in_an_index_is_stable() {
        let field =
            r#""rule":{"name":"a","from":["b"],"key":null,"form":"text","missing":"error"}"#;
        for (source, classes) in
            [(Source::Records, ""), (Source::Tables, ""), (Source::Names, r#""classes":null,"#)]
        {
            let rules = [ColumnRule::new(source, "a", "b", Form::Text)];
            let text = rules_text(&rules);
            assert_eq!(text, format!("[{{{field},{classes}\"has_form\":true}}]"), "{source:?}");
            let parsed = parse_rules(&text).unwrap();
            assert_eq!((&parsed, rules_text(&parsed)), (&rules.to_vec(), text));
        }
    }
}
