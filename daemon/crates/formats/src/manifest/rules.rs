//! Infers the types of a manifest's columns from its first rows.

use crate::columns::{ColumnRule, Source};
use crate::fields::{Form, IMAGES, is_free};
use crate::number_lists::ListForm;
use forebay_index::shard_paths::has_extension;

/// The maximum number of classes of a column.
const MAX_CLASSES: usize = 1 << 20;

/// Class names that are collected while rows are read.
#[derive(Debug, Default)]
pub(super) struct FoundClasses(std::collections::BTreeSet<Vec<u8>>);

impl FoundClasses {
    /// # Errors
    /// The name is invalid, or there are too many.
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

/// A column in the first rows.
#[derive(Debug)]
pub(super) struct SeenColumn {
    pub(super) name: String,
    /// The values that are not missing.
    pub(super) values: Vec<Vec<u8>>,
    /// The number of values that are JSON lists.
    pub(super) lists: usize,
}

impl SeenColumn {
    /// Whether its values are lists of numbers that are arrays.
    fn is_numbers(&self) -> bool {
        let mut form = ListForm::default();
        self.lists > 0
            && self.lists == self.values.len()
            && self.values.iter().all(|value| form.add(value))
            && form.is_known()
    }

    /// Whether its values are paths of pictures.
    pub(super) fn names_pictures(&self) -> bool {
        self.form() == Form::Image
    }

    /// Whether its values are lists of pictures' paths, of which one is not empty.
    pub(super) fn lists_pictures(&self) -> bool {
        let parsed = |value: &Vec<u8>| serde_json::from_slice::<Vec<String>>(value).ok();
        let Some(lists) = self.values.iter().map(parsed).collect::<Option<Vec<_>>>() else {
            return false;
        };
        let mut paths = lists.iter().flatten().peekable();
        self.lists > 0 && paths.peek().is_some() && paths.all(|path| is_picture(path.as_bytes()))
    }

    /// The form of its values: images by file extension, numbers, lists of numbers, else text.
    fn form(&self) -> Form {
        let text = |value: &Vec<u8>| std::str::from_utf8(value).unwrap_or("?").trim().to_owned();
        let are = |test: &dyn Fn(&Vec<u8>) -> bool| {
            !self.values.is_empty() && self.values.iter().all(test)
        };
        if are(&|value| is_picture(value)) {
            Form::Image
        } else if self.is_numbers() || are(&|value| has_extension(value, &[".npy"])) {
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

/// Whether a path has the extension of a picture.
fn is_picture(path: &[u8]) -> bool {
    let dot = path.iter().rposition(|byte| *byte == b'.');
    let last = dot.map(|dot| path[dot + 1..].to_ascii_lowercase());
    last.is_some_and(|last| IMAGES.iter().any(|image| image.as_bytes() == last))
}

/// Sets the form of columns for which the configuration sets none.
pub(super) fn settle_forms(rules: &mut [ColumnRule], seen: &[SeenColumn]) {
    for rule in rules.iter_mut().filter(|rule| !rule.has_form) {
        let column = seen.iter().find(|column| rule.rule.from.contains(&column.name));
        rule.rule.form = column.map_or(Form::Text, SeenColumn::form);
        rule.has_form = true;
    }
    for rule in rules.iter_mut().filter(|rule| rule.rule.form == Form::Images) {
        rule.longest_paths = Some(0);
    }
    for rule in rules.iter_mut().filter(|rule| rule.rule.form == Form::Array) {
        let is_numbers =
            |column: &SeenColumn| rule.rule.from.contains(&column.name) && column.is_numbers();
        rule.list = seen.iter().any(is_numbers).then(ListForm::default);
    }
}

/// The fields if the configuration names none: the columns under their own names, but a single column of pictures
/// becomes `image`. Also gives the columns that are left out.
pub(super) fn infer_rules(seen: &[SeenColumn]) -> (Vec<ColumnRule>, Vec<String>) {
    let forms: Vec<Form> = seen.iter().map(SeenColumn::form).collect();
    let images = forms.iter().filter(|form| **form == Form::Image).count();
    let (mut rules, mut left_out) = (Vec::<ColumnRule>::new(), Vec::new());
    let has_image = seen.iter().any(|column| column.name == "image");
    for (column, form) in seen.iter().zip(forms) {
        // As in Hugging Face's image folders: `file_name`, or `NAME_file_name` if there are several.
        let name = match column.name.strip_suffix("_file_name") {
            _ if form == Form::Image && images == 1 && !has_image => "image",
            Some(name) if form == Form::Image => name,
            _ => &column.name,
        };
        if column.values.is_empty() || !is_free(name, rules.iter().map(|rule| &rule.rule)) {
            left_out.push(column.name.clone());
            continue;
        }
        let list = (form == Form::Array && column.is_numbers()).then(ListForm::default);
        let rule = ColumnRule::new(Source::Names, name, &column.name, form);
        rules.push(ColumnRule { list, ..rule });
    }
    (rules, left_out)
}
