//! `[dataset.windows]`: a sample is a window of rows. Its table is part of the configuration of formats of rows.

use forebay_config::DatasetConfig;
use forebay_keys::{AtLeastOne, ConfigError, Keys, Located, Section, Table, Value, keys, kinds};

use crate::fields::name_fault;
use crate::registry::AUTO;
use forebay_dataset::error::DatasetError;

/// The name of the table within `[dataset]`.
pub(crate) const TABLE: &str = "windows";
/// The most rows of a window, and from a window's start to a field's.
const MAX_ROWS: i64 = 1 << 32;

/// What a window has beyond the ends of its episode.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Pad {
    /// There are no such windows.
    None,
    /// The episode's first or last row.
    Repeat,
    /// A number.
    Number(f64),
}

kinds! {
    /// The key `pad`.
    [pub(crate)] PadWord as Pad: "\"none\", \"repeat\" or a number", type "a word or a number";
    read(value) {
        match value {
            Value::String(word) if word == "none" => Some(Pad::None),
            Value::String(word) if word == "repeat" => Some(Pad::Repeat),
            other => <f64 as forebay_keys::Kind>::read(other).map(Pad::Number),
        }
    }
    write(out) {
        match out {
            Pad::None => Value::String("none".to_owned()),
            Pad::Repeat => Value::String("repeat".to_owned()),
            Pad::Number(number) => Value::Float(*number),
        }
    }
    schema { "anyOf": [{ "enum": ["none", "repeat"] }, { "type": "number" }] }

    /// A number of rows from the start of a window, which may be negative.
    [pub(crate)] Offset as i64: "a whole number", type "a whole number";
    read(value) {
        match value {
            Value::Integer(rows) if (-MAX_ROWS..=MAX_ROWS).contains(rows) => Some(*rows),
            _ => None,
        }
    }
    write(out) { Value::Integer(*out) }
    schema { "type": "integer", "minimum": (-MAX_ROWS), "maximum": MAX_ROWS }

    /// The unparsed table of fields.
    [pub(crate)] WindowFields as Vec<(String, Located)>: "a table of fields, each `{ from = \"…\", start = 0, length = 1 }`", type "table";
    read(value) {
        match value {
            Value::Table(entries) if !entries.is_empty() => Some(entries.clone()),
            _ => None,
        }
    }
    write(out) { Value::Table(out.clone()) }
    schema { "type": "object" }
}

keys! {
    /// How windows are cut from rows; see [Windows](../how-to/windows.md).
    pub(crate) struct WindowKeys = "dataset.windows", check check {
        /// how long each window is
        pub(crate) length: AtLeastOne, "rows", required;
        /// from the start of a window to the start of the next one in its episode
        pub(crate) stride: AtLeastOne, "rows", absent("`length`");
        /// what a window has beyond the ends of its episode: its first or last row, or a number; `"none"`: there are no
        /// such windows. With padding, a window starts at each `stride` rows of an episode, and a field `mask` has which
        /// rows exist
        pub(crate) pad: PadWord, "", default(Pad::None);
        /// the column or the array in which rows of an episode have one value, and neighbours of another episode another
        pub(crate) by: String, "", absent("each file is an episode");
        /// the fields: `from`, a column or an array, by default the field's name; `start`, its first row relative to the
        /// window's, by default 0; `length`, its rows
        pub(crate) fields: WindowFields, "", absent("all columns or arrays of numbers");
    }
}

/// The rows of a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FieldRows {
    pub(crate) name: String,
    /// The column or the array.
    pub(crate) from: String,
    /// The first row, relative to the window's.
    pub(crate) start: i64,
    pub(crate) length: u64,
}

impl FieldRows {
    /// A field of a column, of all rows of a window.
    pub(crate) fn all_of(column: &str, length: u64) -> Self {
        Self { name: column.to_owned(), from: column.to_owned(), start: 0, length }
    }

    /// As the configuration has it, after its name.
    pub(crate) fn to_value(&self) -> Value {
        let keys = FieldKeys {
            from: Some(self.from.clone()),
            start: self.start,
            length: Some(self.length),
        };
        let entries = keys.entries().into_iter();
        Value::Table(entries.map(|(key, value)| (key.to_owned(), value.into())).collect())
    }
}

keys! {
    /// A field of a window.
    struct FieldKeys = "dataset.windows.fields" {
        /// the column or the array
        from: String, "", absent("the field's name");
        /// its first row, relative to the window's
        start: Offset, "rows", default(0);
        /// its rows
        length: AtLeastOne, "rows", absent("`dataset.windows.length`");
    }
}

fn check(keys: &mut WindowKeys, section: &Section) -> Result<(), ConfigError> {
    for (key, rows) in [("length", Some(keys.length)), ("stride", keys.stride)] {
        if rows.is_some_and(|rows| rows > MAX_ROWS.unsigned_abs()) {
            let message = format!("`{}` must be at most {MAX_ROWS}", section.key_path(key));
            return Err(section.error_at(key, message));
        }
    }
    keys.named_fields(section).map(drop)
}

impl WindowKeys {
    /// Rows from the start of a window to that of the next one.
    pub(crate) fn stride(&self) -> u64 {
        self.stride.unwrap_or(self.length)
    }

    /// The fields that the configuration names; `None`: all.
    fn named_fields(&self, section: &Section) -> Result<Option<Vec<FieldRows>>, ConfigError> {
        let Some(entries) = &self.fields else { return Ok(None) };
        let mut fields = Vec::with_capacity(entries.len());
        for (name, located) in entries {
            let mut own =
                section.nested(section.key_path("fields") + "." + name, located.clone())?;
            if let Some(fault) = name_fault(name) {
                return Err(own.error(fault));
            }
            let keys = FieldKeys::read(&mut own)?;
            let length = keys.length.unwrap_or(self.length);
            if length > MAX_ROWS.unsigned_abs() {
                let message = format!("`{}` must be at most {MAX_ROWS}", own.key_path("length"));
                return Err(own.error_at("length", message));
            }
            let from = keys.from.unwrap_or_else(|| name.clone());
            fields.push(FieldRows { name: name.clone(), from, start: keys.start, length });
        }
        Ok(Some(fields))
    }
}

/// The keys of `[dataset]` of a format of rows: only the table.
#[derive(Debug)]
pub(crate) struct OwnKeys {
    pub(crate) windows: WindowKeys,
    /// The fields that the configuration names; `None`: all.
    pub(crate) fields: Option<Vec<FieldRows>>,
}

impl Keys for OwnKeys {
    const TABLE: Table = WindowKeys::TABLE;

    fn take(section: &mut Section) -> Result<Self, ConfigError> {
        if section.entries().iter().any(|(key, _)| key == "fields") {
            let message = "`dataset.fields` is of samples that are rows; the fields of windows are in `dataset.windows.fields`";
            return Err(section.error_at("fields", message));
        }
        let mut section = section.take_section(TABLE)?;
        let windows = WindowKeys::read(&mut section)?;
        let fields = windows.named_fields(&section)?;
        Ok(Self { windows, fields })
    }

    fn entries(&self) -> Vec<(&'static str, Value)> {
        vec![(TABLE, self.to_value())]
    }

    fn check(&mut self, _section: &Section) -> Result<(), ConfigError> {
        Ok(())
    }
}

impl OwnKeys {
    fn to_value(&self) -> Value {
        let entries = self.windows.entries().into_iter();
        Value::Table(entries.map(|(key, value)| (key.to_owned(), value.into())).collect())
    }

    /// The keys as text, for the index.
    pub(crate) fn text(&self) -> String {
        self.to_value().to_json().to_string()
    }
}

fn has_table(config: &DatasetConfig) -> bool {
    config.own.entries().iter().any(|(key, _)| key == TABLE)
}

/// Refuses windows of a format that has no rows.
pub(crate) fn refuse_other(
    config: &DatasetConfig,
    mut formats: impl Iterator<Item = &'static str> + Clone,
) -> Result<(), DatasetError> {
    if !has_table(config) {
        return Ok(());
    }
    if config.format == AUTO || formats.clone().any(|format| format == config.format) {
        return Ok(());
    }
    let known = formats.by_ref().collect::<Vec<_>>().join(", ");
    let message = format!(
        "`dataset.windows` is of rows of {known}, and `dataset.format` is \"{}\"",
        config.format
    );
    Err(config.own.error(message).into())
}

/// Refuses to propose windows without a table of them, of formats that have no other samples.
///
/// # Errors
/// It is such a format.
pub(crate) fn ask_for_length(config: &DatasetConfig, formats: &[&str]) -> Result<(), DatasetError> {
    if has_table(config) || !formats.contains(&&config.format[..]) {
        return Ok(());
    }
    let reason = "its samples are windows of rows, whose length you choose; give it with `--set dataset.windows.length=16`, \
                  for example; the how-to \"Windows of rows\" has more";
    Err(DatasetError::ArrayFile { path: config.path.clone(), reason: reason.to_owned() })
}

/// Whether the samples of a configuration are windows.
pub(crate) fn of_windows(config: &DatasetConfig) -> bool {
    config.format != AUTO && has_table(config)
}
