//! Decides for a sample whether it is used: where the values of a selection come from, and what is wrong with it.

use std::cell::Cell;

use forebay_config::DatasetConfig;
use forebay_dataset::error::DatasetError;
use forebay_dataset::{Dataset, Field, FieldKind, FileColumn, NoSize, stored_size};
use forebay_keys::{ConfigError, nearest};
use forebay_protocol::ids::SampleId;
use forebay_select::expression::Fault;
use forebay_select::{Condition, Expression, Mistake, Split, Type, Value};
use forebay_storage::Storage;
use forebay_storage::location::Location;

/// The key of the condition.
const WHERE: &str = "where";
/// The key of the split.
const SPLIT: &str = "split";
/// The most names that a message lists.
const MAX_NAMES: usize = 40;

/// Where a value comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// A column of the files, by its place among those that are visited.
    Column(usize),
    /// A field, by its place.
    Field(usize),
    Name,
    Label,
    Class,
    Size,
}

/// What the index says of every sample.
const BUILT_IN: [(&str, Origin, Type); 4] = [
    ("name", Origin::Name, Type::Text),
    ("label", Origin::Label, Type::Number),
    ("class", Origin::Class, Type::Text),
    ("size", Origin::Size, Type::Number),
];

/// A part of a split.
struct Part {
    split: Split,
    place: usize,
    /// The value that decides; `None`: the sample's key.
    by: Option<usize>,
}

/// A configuration's selection over a dataset.
pub(super) struct Judge<'a> {
    config: &'a DatasetConfig,
    dataset: &'a dyn Dataset,
    storage: &'a dyn Storage,
    condition: Option<(Expression, Condition)>,
    part: Option<Part>,
    /// The origin of each value: those of the condition's columns, then that of `by`.
    origins: Vec<Origin>,
    /// The columns of the files that are visited.
    columns: Vec<usize>,
}

/// Buffers for one sample after another.
#[derive(Default)]
pub(super) struct Scratch {
    name: Vec<u8>,
    key: Vec<u8>,
    locations: Vec<Location>,
    opened: Vec<forebay_storage::Opened>,
}

/// What may be named.
struct Known<'a> {
    columns: Option<Vec<FileColumn>>,
    fields: &'a [Field],
    has_labels: bool,
    has_classes: bool,
    visited: Vec<usize>,
}

impl Known<'_> {
    /// The origin and the type of a name; `None`: there is none. The error is why it cannot be used.
    fn find(&mut self, name: &str) -> Result<Option<(Origin, Type)>, String> {
        let column = self.columns.iter().flatten().position(|column| column.name == name);
        if let (Some(place), Some(columns)) = (column, &self.columns) {
            let found = columns[place].values.clone()?;
            let visited = self.visited.iter().position(|known| *known == place);
            let visited = visited.unwrap_or_else(|| {
                self.visited.push(place);
                self.visited.len() - 1
            });
            return Ok(Some((Origin::Column(visited), found)));
        }
        if let Some((_, origin, of)) = BUILT_IN.into_iter().find(|(known, ..)| *known == name)
            && self.has(origin)
        {
            return Ok(Some((origin, of)));
        }
        let field = match self.columns {
            Some(_) => None,
            None => self.fields.iter().position(|field| field.name == name),
        };
        field
            .map(|place| Ok((Origin::Field(place), type_of(&self.fields[place].kind)?)))
            .transpose()
    }

    const fn has(&self, origin: Origin) -> bool {
        match origin {
            Origin::Label => self.has_labels,
            Origin::Class => self.has_classes,
            _ => true,
        }
    }

    /// The names for a message, those that cannot be used left out.
    fn names(&self) -> Vec<String> {
        let columns = self.columns.iter().flatten();
        let columns = columns.filter(|column| column.values.is_ok()).map(|column| &column.name);
        let fields = self
            .fields
            .iter()
            .filter(|field| self.columns.is_none() && type_of(&field.kind).is_ok());
        let built_in = BUILT_IN.into_iter().filter(|(_, origin, _)| self.has(*origin));
        let all = columns.chain(fields.map(|field| &field.name)).map(String::as_str);
        let mut names: Vec<String> = Vec::new();
        for name in all.chain(built_in.map(|(name, ..)| name)) {
            if !names.iter().any(|known| known == name) {
                names.push(name.to_owned());
            }
        }
        names
    }

    /// What follows a name that does not exist.
    fn hint(&self, name: &str) -> String {
        let names = self.names();
        let near = nearest(name, names.iter().map(String::as_str));
        let near = near.map_or(".".to_owned(), |near| format!("; did you mean `{near}`?"));
        let more = match names.len().checked_sub(MAX_NAMES) {
            Some(more @ 1..) => format!(" and {more} more"),
            _ => String::new(),
        };
        let names: Vec<_> = names.iter().take(MAX_NAMES).map(String::as_str).collect();
        format!("{near} There are {}{more}", names.join(", "))
    }
}

fn type_of(kind: &FieldKind) -> Result<Type, String> {
    use forebay_protocol::tensor::DType;
    match kind {
        FieldKind::Integer | FieldKind::Float => Ok(Type::Number),
        FieldKind::Text => Ok(Type::Text),
        FieldKind::Array { dtype: DType::Bool, shape } if shape.is_empty() => Ok(Type::Boolean),
        FieldKind::Array { shape, .. } if shape.is_empty() => Ok(Type::Number),
        FieldKind::EncodedImage | FieldKind::EncodedImages => {
            Err("its values are pictures".to_owned())
        }
        FieldKind::Sound { .. } => Err("its values are sounds".to_owned()),
        FieldKind::Video { .. } => Err("its values are videos".to_owned()),
        FieldKind::Bytes => {
            Err("its values are bytes; if they are text, `as = \"text\"` in dataset.fields makes them comparable; samples \
                 without it are left out by missing = \"skip\""
                .to_owned())
        }
        FieldKind::Array { .. } | FieldKind::RaggedArray { .. } => {
            Err("its values are arrays".to_owned())
        }
    }
}

impl<'a> Judge<'a> {
    /// The selection of a configuration, which has one. Reads the columns that the dataset's files have.
    ///
    /// # Errors
    /// The condition or the split does not fit the dataset, or a file cannot be read.
    pub(super) fn new(
        config: &'a DatasetConfig,
        dataset: &'a dyn Dataset,
        storage: &'a dyn Storage,
    ) -> Result<Self, DatasetError> {
        let samples = dataset.sample_count();
        let first = (samples > 0).then_some(SampleId(0));
        let has_labels = first.is_some_and(|first| dataset.label(first).is_some());
        let mut known = Known {
            columns: dataset.columns(storage)?,
            fields: dataset.fields(),
            has_labels,
            has_classes: has_labels && !dataset.classes().is_empty(),
            visited: Vec::new(),
        };
        let mut origins = Vec::new();
        let condition = match &config.condition {
            None => None,
            Some(text) => Some(condition(config, text, &mut known, &mut origins)?),
        };
        let part = match &config.split {
            None => None,
            Some(keys) => {
                let fail = |message: String| {
                    config.own.error_at(SPLIT, format!("`{}`{message}", config.own.key_path(SPLIT)))
                };
                let split = keys.split().map_err(|_| fail(".fractions are unusable".to_owned()))?;
                let place = split.place_of(&keys.part).unwrap_or_default();
                let by = match &keys.by {
                    None => {
                        let mut key = Vec::new();
                        let lacks_key = |id| !dataset.append_key(SampleId(id), &mut key);
                        if samples > 0 && (0..samples).all(lacks_key) {
                            return Err(fail(format!(
                                " is by the samples' names, and samples of {} ({}) have only numbers, which change with the \
                                 data; set `by` to a column with a name or a group{}",
                                config.path.display(),
                                config.format,
                                known.hint("")
                            ))
                            .into());
                        }
                        None
                    }
                    Some(name) => {
                        let found = known
                            .find(name)
                            .map_err(|why| fail(format!(".by: `{name}`: {why}")))?;
                        let (origin, _) = found.ok_or_else(|| {
                            fail(format!(".by: there is no column `{name}`{}", known.hint(name)))
                        })?;
                        origins.push(origin);
                        Some(origins.len() - 1)
                    }
                };
                Some(Part { split, place, by })
            }
        };
        Ok(Self { config, dataset, storage, condition, part, origins, columns: known.visited })
    }

    pub(super) fn scratch(&self) -> Scratch {
        Scratch::default()
    }

    /// The columns of the files to visit; `None`: no value comes from them.
    pub(super) fn file_columns(&self) -> Option<Vec<usize>> {
        (!self.columns.is_empty()).then(|| self.columns.clone())
    }

    /// Whether samples are read for their fields or sizes.
    pub(super) fn reads_samples(&self) -> bool {
        self.origins.iter().any(|origin| matches!(origin, Origin::Field(_) | Origin::Size))
    }

    /// Whether the values of fields are needed.
    pub(super) fn has_fields(&self) -> bool {
        self.origins.iter().any(|origin| matches!(origin, Origin::Field(_)))
    }

    /// Whether the value of a field is needed.
    pub(super) fn uses_field(&self, place: usize) -> bool {
        self.origins.contains(&Origin::Field(place))
    }

    /// Whether a sample is used. `given`: the values of the visited columns, or of all fields.
    ///
    /// # Errors
    /// A value is of another type, or the value or the key that decides the part is missing.
    pub(super) fn keeps(
        &self,
        id: SampleId,
        given: &[Value<'_>],
        scratch: &mut Scratch,
    ) -> Result<bool, DatasetError> {
        let Scratch { name, key, locations, opened } = scratch;
        let size = match self.origins.contains(&Origin::Size) {
            true => Some(self.size(id, locations, opened)?),
            false => None,
        };
        name.clear();
        if self.origins.contains(&Origin::Name) {
            self.dataset.append_name(id, name);
        }
        let name = String::from_utf8_lossy(name);
        let label =
            match self.origins.iter().any(|origin| matches!(origin, Origin::Label | Origin::Class))
            {
                true => self.dataset.label(id).and_then(Result::ok),
                false => None,
            };
        let value = |origin: &Origin| match origin {
            Origin::Column(place) | Origin::Field(place) => {
                given.get(*place).copied().unwrap_or(Value::Null)
            }
            Origin::Name => Value::Text(&name),
            Origin::Label => label.map_or(Value::Null, Value::Integer),
            Origin::Class => {
                let place = label.and_then(|label| usize::try_from(label).ok());
                let class = place.and_then(|place| self.dataset.classes().get(place));
                class.map_or(Value::Null, |class| Value::Text(class))
            }
            Origin::Size => {
                size.and_then(|size| i64::try_from(size).ok()).map_or(Value::Null, Value::Integer)
            }
        };
        // Most conditions have a few columns.
        let mut few = [Value::Null; 8];
        let many: Vec<_>;
        let values = match few.get_mut(..self.origins.len()) {
            Some(few) => {
                few.iter_mut()
                    .zip(&self.origins)
                    .for_each(|(place, origin)| *place = value(origin));
                &*few
            }
            None => {
                many = self.origins.iter().map(value).collect();
                &many[..]
            }
        };
        if let Some((expression, condition)) = &self.condition {
            match condition.holds(&values[..expression.columns().len()]) {
                Ok(Some(true)) => {}
                Ok(Some(false) | None) => return Ok(false),
                Err(fault) => return Err(self.fault(id, expression, &fault, values).into()),
            }
        }
        let Some(part) = &self.part else { return Ok(true) };
        key.clear();
        match part.by.and_then(|by| values.get(by)) {
            None => {
                if !self.dataset.append_key(id, key) {
                    return Err(self.lacks_key(id).into());
                }
            }
            Some(value) => {
                if !append_group(value, key) {
                    return Err(self.lacks_group(id).into());
                }
            }
        }
        Ok(part.split.part_of(key) == Some(part.place))
    }

    /// The bytes of a sample as they are stored.
    fn size(
        &self,
        id: SampleId,
        locations: &mut Vec<Location>,
        opened: &mut Vec<forebay_storage::Opened>,
    ) -> Result<u64, DatasetError> {
        match stored_size(self.dataset, id, locations) {
            Ok(Some(size)) => Ok(size),
            Ok(None) => Ok(self.storage.open_all(self.dataset, locations, u64::MAX, opened)?),
            Err(NoSize) => {
                let message = format!(
                    "`{}`: samples of {} share blocks of bytes with `order.shuffle = \"blocks\"`, so none has a `size`",
                    self.config.own.key_path(WHERE),
                    self.config.path.display()
                );
                Err(self.config.own.error_at(WHERE, message).into())
            }
        }
    }

    fn fault(
        &self,
        id: SampleId,
        expression: &Expression,
        fault: &Fault,
        values: &[Value<'_>],
    ) -> ConfigError {
        let text = match values.get(fault.column) {
            Some(Value::Text(text)) => text.chars().take(MAX_NAMES).collect(),
            _ => String::new(),
        };
        let name = self.dataset.full_name(self.storage, id);
        let message = format!(
            "`{}` of {} is {text:?}, not {}",
            expression.columns().get(fault.column).map_or("", String::as_str),
            name.display(),
            fault.wanted.word(),
        );
        let mistake = Mistake { span: fault.span.clone(), message, missing: None };
        pointed(self.config, expression.text(), &mistake, "")
    }

    /// The error for a sample that cannot be read.
    pub(super) fn unreadable(&self, id: SampleId, reason: &str) -> ConfigError {
        let name = self.dataset.full_name(self.storage, id);
        let own = &self.config.own;
        let key = first_key(self.config);
        let message = format!(
            "`{}`: the fields of {} are not known: {reason}; repair the sample, or leave it out of `dataset.ids`",
            own.key_path(key),
            name.display()
        );
        own.error_at(key, message)
    }

    /// What is read of a sample at most.
    pub(super) const fn limit_bytes(&self) -> u64 {
        self.config.limits.sample_bytes
    }

    /// The error for a row of a manifest that names no file.
    fn lacks_key(&self, id: SampleId) -> ConfigError {
        let name = self.dataset.full_name(self.storage, id);
        let own = &self.config.own;
        let message = format!(
            "`{}` is by the samples' files, and {} names none, so it is in no part; leave such samples out with \
             `dataset.where`, or set `by` to a column with a name or a group",
            own.key_path(SPLIT),
            name.display()
        );
        own.error_at(SPLIT, message)
    }

    fn lacks_group(&self, id: SampleId) -> ConfigError {
        let by =
            self.config.split.as_ref().and_then(|split| split.by.as_deref()).unwrap_or_default();
        let name = self.dataset.full_name(self.storage, id);
        let own = &self.config.own;
        let message = format!(
            "`{}.by`: `{by}` of {} is null, so it is in no part; leave such samples out with `dataset.where = \"{by} is not null\"`",
            own.key_path(SPLIT),
            name.display()
        );
        own.error_at(SPLIT, message)
    }
}

/// What selects the samples, for users.
pub(super) fn words(config: &DatasetConfig) -> String {
    let condition = config.condition.as_ref().map(|_| "dataset.where".to_owned());
    let split = config.split.as_ref().and_then(|keys| Some((keys, keys.split().ok()?)));
    let part = split.map(|(keys, split)| {
        let by = keys.by.as_ref().map_or(String::new(), |by| format!(" by {by}"));
        format!("dataset.split ({} of {}{by})", keys.part, split.words())
    });
    condition.into_iter().chain(part).collect::<Vec<_>>().join(" and ")
}

/// The error for a selection without samples.
pub(super) fn keeps_none(config: &DatasetConfig, samples: u64) -> ConfigError {
    let key = first_key(config);
    let part = match (&config.condition, &config.split) {
        (Some(_), Some(split)) => format!(" in the part \"{}\"", split.part),
        (None, Some(split)) => format!(": the part \"{}\" is empty", split.part),
        _ => String::new(),
    };
    let message = format!("`{}` keeps none of {samples} samples{part}", config.own.key_path(key));
    config.own.error_at(key, message)
}

/// The key of a selection that decides first.
const fn first_key(config: &DatasetConfig) -> &'static str {
    if config.condition.is_some() { WHERE } else { SPLIT }
}

/// Reads a condition, and finds its columns.
fn condition(
    config: &DatasetConfig,
    text: &str,
    known: &mut Known<'_>,
    origins: &mut Vec<Origin>,
) -> Result<(Expression, Condition), ConfigError> {
    let expression =
        Expression::parse(text).map_err(|mistake| pointed(config, text, &mistake, ""))?;
    let mut types = Vec::new();
    let unusable = Cell::new(None);
    for name in expression.columns() {
        match known.find(name) {
            Ok(found) => {
                origins.push(found.map_or(Origin::Name, |(origin, _)| origin));
                types.push(found.map(|(_, of)| of));
            }
            Err(why) => {
                origins.push(Origin::Name);
                types.push(None);
                unusable.set(Some((name.clone(), why)));
            }
        }
    }
    let unusable = unusable.into_inner();
    match expression.with_columns(&types) {
        Ok(condition) => Ok((expression, condition)),
        Err(mistake) => {
            let missing = mistake.missing.clone();
            let (mistake, hint) = match (missing, unusable) {
                (Some(name), Some((of, why))) if name == of => {
                    let message = format!("`{name}` cannot be used: {why}");
                    (Mistake { message, ..mistake }, String::new())
                }
                (Some(name), _) => (mistake, known.hint(&name)),
                (None, _) => (mistake, String::new()),
            };
            Err(pointed(config, text, &mistake, &hint))
        }
    }
}

/// An error that shows the place in the condition.
fn pointed(config: &DatasetConfig, text: &str, mistake: &Mistake, hint: &str) -> ConfigError {
    let own = &config.own;
    let path = own.key_path(WHERE);
    let message = format!("`{path}`: {}{hint}\n{}", mistake.message, mistake.pointed(text));
    own.error_at(WHERE, message)
}

/// Appends a value as text, which is equal for equal values of any type. False: null.
fn append_group(value: &Value<'_>, key: &mut Vec<u8>) -> bool {
    let text = match value {
        Value::Null => return false,
        Value::Text(text) => {
            key.extend_from_slice(text.as_bytes());
            return true;
        }
        Value::Boolean(value) => value.to_string(),
        Value::Integer(value) => value.to_string(),
        // −0 equals 0.
        Value::Float(value) => (value + 0.0).to_string(),
    };
    key.extend_from_slice(text.as_bytes());
    true
}

#[test]
fn groups_are_the_texts_of_values() {
    for (value, expected) in [
        (Value::Integer(-7), "-7"),
        (Value::Float(7.0), "7"),
        (Value::Float(-0.0), "0"),
        (Value::Float(0.5), "0.5"),
        (Value::Text("7"), "7"),
        (Value::Boolean(true), "true"),
    ] {
        let mut key = Vec::new();
        assert!(append_group(&value, &mut key));
        assert_eq!(key, expected.as_bytes());
    }
    assert!(!append_group(&Value::Null, &mut Vec::new()));
}
