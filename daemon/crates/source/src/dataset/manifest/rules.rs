//! What the fields of a manifest's rows are made of.

use std::path::Path;

use forebay_config::{ConfigError, Kind, Located, Section, Value, kinds};
use forebay_protocol::tensor::MAX_TENSORS;
use serde::{Deserialize, Serialize};

use crate::dataset::fields::{
    FieldRule, Form, FormWord, IMAGES, Missing, MissingWord, Names, RESERVED, fields_table,
    name_fault,
};
use crate::dataset::shard_paths::has_extension;
use crate::dataset::{Defect, FieldValue};

/// The word for classes that are found.
const SORTED: &str = "sorted";
/// Classes that a column may have.
const MAX_CLASSES: usize = 1 << 20;

kinds! {
    /// `classes`.
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

/// The names that stand for numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Classes {
    /// In the order of their labels.
    pub(super) names: Vec<String>,
    /// Whether they are those that occur; the names are known when the rows were read.
    pub(super) are_sorted: bool,
}

/// What one field is made of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ColumnRule {
    pub(super) rule: FieldRule,
    pub(super) classes: Option<Classes>,
    /// Whether the configuration says what it is read as.
    has_form: bool,
}

impl ColumnRule {
    /// Whether the column names files.
    pub(super) fn is_file(&self) -> bool {
        matches!(self.rule.form, Form::Image | Form::Bytes | Form::Array)
    }

    /// The value of a cell, or of the file that it names.
    ///
    /// # Errors
    /// There is none where one is needed, or it is no such value.
    pub(super) fn value<'a>(
        &self,
        bytes: Option<&'a [u8]>,
        labels: &Labels,
    ) -> Result<FieldValue<'a>, Defect> {
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
    /// Of a rule's classes; none where it has none.
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

/// Classes that are found while rows are read.
#[derive(Debug, Default)]
pub(super) struct FoundClasses(std::collections::BTreeSet<Vec<u8>>);

impl FoundClasses {
    /// # Errors
    /// What is wrong with the name, or that there are too many.
    pub(super) fn add(&mut self, name: &[u8]) -> Result<(), String> {
        if self.0.contains(name) {
            return Ok(());
        }
        if std::str::from_utf8(name).is_err() {
            return Err("is no UTF-8; save the file as UTF-8".to_owned());
        }
        if self.0.len() == MAX_CLASSES {
            return Err(format!(
                "has more than {MAX_CLASSES} values, and is hardly one of classes"
            ));
        }
        self.0.insert(name.to_vec());
        Ok(())
    }

    pub(super) fn into_names(self) -> Vec<String> {
        self.0.into_iter().map(|name| String::from_utf8_lossy(&name).into_owned()).collect()
    }
}

/// Reads `[dataset.fields]`.
///
/// # Errors
/// Names the key and the line.
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
    let rule = FieldRule { name: name.to_owned(), from, key: None, form, missing };
    Ok(ColumnRule { rule, classes, has_form })
}

/// A column as its first rows have it.
#[derive(Debug)]
pub(super) struct SeenColumn {
    pub(super) name: String,
    /// Those that are there.
    pub(super) values: Vec<Vec<u8>>,
}

impl SeenColumn {
    /// What its values are: pictures by their extensions, numbers, else text.
    fn form(&self) -> Form {
        let text = |value: &Vec<u8>| std::str::from_utf8(value).unwrap_or("?").trim().to_owned();
        let are = |test: &dyn Fn(&Vec<u8>) -> bool| {
            !self.values.is_empty() && self.values.iter().all(test)
        };
        let is_image = |value: &Vec<u8>| {
            let dot = value.iter().rposition(|byte| *byte == b'.');
            let last = dot.map(|dot| value[dot + 1..].to_ascii_lowercase());
            last.is_some_and(|last| IMAGES.iter().any(|image| image.as_bytes() == last))
        };
        if are(&is_image) {
            Form::Image
        } else if are(&|value| has_extension(value, &[".npy"])) {
            Form::Array
        } else if are(&|value| text(value).parse::<i64>().is_ok()) {
            Form::Integer
        } else if are(&|value| text(value).parse::<f64>().is_ok_and(f64::is_finite)) {
            Form::Float
        } else {
            Form::Text
        }
    }
}

/// Settles what each column is read as where the configuration does not say it.
pub(super) fn settle_forms(rules: &mut [ColumnRule], seen: &[SeenColumn]) {
    for rule in rules.iter_mut().filter(|rule| !rule.has_form) {
        let column = seen.iter().find(|column| rule.rule.from.contains(&column.name));
        rule.rule.form = column.map_or(Form::Text, SeenColumn::form);
        rule.has_form = true;
    }
}

/// The fields where the configuration names none: the columns under their own names, but for a single one of pictures,
/// which is `image`. Gives the columns that are left out, too.
pub(super) fn infer_rules(seen: &[SeenColumn]) -> (Vec<ColumnRule>, Vec<String>) {
    let forms: Vec<Form> = seen.iter().map(SeenColumn::form).collect();
    let images = forms.iter().filter(|form| **form == Form::Image).count();
    let (mut rules, mut left_out) = (Vec::<ColumnRule>::new(), Vec::new());
    let has_image = seen.iter().any(|column| column.name == "image");
    for (column, form) in seen.iter().zip(forms) {
        // As in Hugging Face's image folders: `file_name`, or `NAME_file_name` where there are several.
        let name = match column.name.strip_suffix("_file_name") {
            _ if form == Form::Image && images == 1 && !has_image => "image",
            Some(name) if form == Form::Image => name,
            _ => &column.name,
        };
        let is_taken = rules.iter().any(|rule| rule.rule.name == name);
        let is_full = rules.len() + RESERVED.len() >= MAX_TENSORS;
        if name_fault(name).is_some() || is_taken || is_full || column.values.is_empty() {
            left_out.push(column.name.clone());
            continue;
        }
        let (name, from) = (name.to_owned(), vec![column.name.clone()]);
        let rule = FieldRule { name, from, key: None, form, missing: Missing::Error };
        rules.push(ColumnRule { rule, classes: None, has_form: true });
    }
    (rules, left_out)
}

/// The rules as a configuration has them.
pub(super) fn table(rules: &[ColumnRule]) -> String {
    fields_table(rules.iter().map(|rule| {
        let classes = rule.classes.as_ref().map(|classes| ClassWord::write(classes).to_toml());
        (&rule.rule, classes.map_or(String::new(), |classes| format!(", classes = {classes}")))
    }))
}

/// The rules as the index keeps them.
pub(super) fn rules_text(rules: &[ColumnRule]) -> String {
    // Strings and words alone: writing them cannot fail.
    serde_json::to_string(rules).unwrap_or_default()
}

/// What [`rules_text`] has written.
pub(super) fn parse_rules(text: &str) -> Option<Vec<ColumnRule>> {
    let rules: Vec<ColumnRule> = serde_json::from_str(text).ok()?;
    let is_sound = rules.iter().all(|rule| !rule.rule.from.is_empty());
    (is_sound && !rules.is_empty() && rules.len() <= MAX_TENSORS).then_some(rules)
}
