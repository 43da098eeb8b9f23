//! `.nv-meta`: what Energon (`energon prepare`) keeps beside archives, and what of it is used here.
//!
//! `split.yaml` (or `split.json`) lists the archives of each part, in their order, and those that are excluded;
//! `dataset.yaml` maps fields to members. Its code (`sample_loader`) is never run. `.info.json` and `index.sqlite` repeat
//! what the archives have, and are not read. Both files are in the index as archives without samples, so a change of
//! them is noticed as one of an archive is.

use std::collections::HashSet;

use serde_json::Value;

use super::members::Members;
use super::names::{self, Name};
use super::{MAX_COLUMNS, WebDataset};
use crate::fields::{FieldRule, Form, Missing, name_fault};
use crate::indexed::Opening;
use crate::labels::yaml::Yaml;
use forebay_dataset::error::DatasetError;
use forebay_index::saved_index::{open_file, tell_missing};
use forebay_index::shard_paths::{expand, has_extension, is_below};
use forebay_index::stored_file::StoredFile;
use forebay_index::window::WindowSize;
use forebay_storage::Storage;

const FOLDER: &[u8] = b".nv-meta";
const SPLITS: [&str; 2] = [".nv-meta/split.yaml", ".nv-meta/split.json"];
const FIELDS: &str = ".nv-meta/dataset.yaml";
/// The part that is read if the configuration names none, as Energon's training dataset has it.
const USUAL_PART: &str = "train";
const MAX_METADATA_BYTES: u64 = 64 << 20;
/// The most bytes of a member that tells what a key of JSON holds.
const MAX_JSON_BYTES: u64 = 16 << 20;

/// Whether a file of the index is one of these, and not an archive.
pub(super) fn is_metadata(path: &[u8]) -> bool {
    SPLITS.into_iter().chain([FIELDS]).any(|name| path == name.as_bytes())
}

/// The metadata of a folder.
#[derive(Debug)]
pub(super) struct Energon {
    /// Relative to the folder, in the order of the split.
    pub(super) archives: Vec<Vec<u8>>,
    /// Samples that are left out, as `ARCHIVE/KEY`.
    pub(super) excluded: HashSet<Vec<u8>>,
    split: &'static str,
    has_fields: bool,
    part: String,
    /// The names of all parts, if the configuration does not name one.
    unnamed: Option<String>,
}

/// The archives of a part, and what is left out of them.
type Part = (Vec<Vec<u8>>, HashSet<Vec<u8>>);

/// A split as its file has it.
#[derive(Debug)]
struct Split {
    parts: Vec<(String, Vec<String>)>,
    exclude: Vec<String>,
}

impl Split {
    fn of(file: &Yaml) -> Result<Self, String> {
        let list = |value: &Yaml, name: &str| {
            let words = match value {
                Yaml::Word(word) if word.is_empty() => Some(Vec::new()),
                value => value.words(),
            };
            let words = words.ok_or_else(|| format!("{name} is no list of archives"))?;
            Ok::<Vec<String>, String>(words.into_iter().map(str::to_owned).collect())
        };
        let Some(Yaml::Map(parts)) = file.get("split_parts") else {
            return Err("it has no map split_parts".to_owned());
        };
        let part = |(name, value): &(String, Yaml)| {
            Ok::<_, String>((name.clone(), list(value, &format!("split_parts.{name}"))?))
        };
        let parts = parts.iter().map(part).collect::<Result<_, _>>()?;
        let exclude = match file.get("exclude") {
            Some(value) => list(value, "exclude")?,
            None => Vec::new(),
        };
        Ok(Self { parts, exclude })
    }

    /// The archives of a part, and what is left out of them.
    ///
    /// # Errors
    /// There is no such part, it has no archives, or a name leads elsewhere.
    fn part(&self, name: &str) -> Result<Part, String> {
        let found = self.parts.iter().find(|(part, _)| part == name);
        let (_, patterns) = found.ok_or_else(|| {
            format!("it has no part {name:?}: set dataset.part to one of {}", self.names())
        })?;
        let mut excluded = HashSet::new();
        for pattern in &self.exclude {
            excluded.extend(expand(pattern)?.into_iter().map(String::into_bytes));
        }
        let mut archives = Vec::new();
        for pattern in patterns {
            for name in expand(pattern)? {
                if !is_below(&name) {
                    return Err(format!("{name:?} is no file below its folder"));
                }
                if !has_extension(name.as_bytes(), &[".tar"]) {
                    return Err(format!("{name:?} does not end in .tar; archives of tar are read"));
                }
                if !excluded.contains(name.as_bytes()) {
                    archives.push(name.into_bytes());
                }
            }
        }
        match archives.is_empty() {
            true => Err(format!("its part {name:?} has no archives")),
            false => Ok((archives, excluded)),
        }
    }

    fn names(&self) -> String {
        let names: Vec<_> = self.parts.iter().map(|(name, _)| format!("{name:?}")).collect();
        names.join(", ")
    }
}

/// A map of fields.
#[derive(Debug, Default)]
struct FieldMap {
    rules: Vec<FieldRule>,
    /// The fields whose type is that of a key of JSON in the first sample.
    open: Vec<usize>,
}

impl FieldMap {
    fn of(map: &[(String, Yaml)]) -> Result<Self, String> {
        let mut fields = Self::default();
        if map.len() > MAX_COLUMNS {
            return Err(format!("it has {} fields, and a batch has {MAX_COLUMNS}", map.len()));
        }
        for (name, value) in map {
            let refuse = |reason: String| {
                format!("field_map.{name} {reason}; define the fields in dataset.fields")
            };
            let text = value.word().ok_or_else(|| refuse("is no member's name".to_owned()))?;
            let from = text.split(',').map(|option| member_of(option.trim()));
            let from = from.collect::<Result<Vec<_>, _>>().map_err(refuse)?;
            if let Some(fault) = name_fault(name) {
                return Err(refuse(format!("cannot be a field: {fault}")));
            }
            let mut rule = FieldRule::new(name, from, Form::Bytes);
            rule.missing = Missing::Error;
            rule.set_members(None)
                .map_err(|(_, message)| refuse(format!("is {text:?}, which {message}")))?;
            if rule.key.is_some() {
                fields.open.push(fields.rules.len());
            }
            fields.rules.push(rule);
        }
        match fields.rules.is_empty() {
            true => Err("its field_map is empty".to_owned()),
            false => Ok(fields),
        }
    }
}

/// `jpg`, or `json[caption]` as `json:caption`.
fn member_of(text: &str) -> Result<String, String> {
    let Some((member, access)) = text.split_once('[') else {
        return match text.is_empty() {
            true => Err("names no member".to_owned()),
            false => Ok(text.to_owned()),
        };
    };
    match access.strip_suffix(']') {
        Some(key) if !key.contains(['[', ']']) && !key.is_empty() => Ok(format!("{member}:{key}")),
        _ => Err(format!("is {text:?}: one key of JSON is read, not one within another")),
    }
}

/// The form of a value of JSON; `None`: a list or a map, which no field is made of.
fn form_of(value: &Value) -> Option<Form> {
    match value {
        Value::String(_) | Value::Null => Some(Form::Text),
        Value::Bool(_) => Some(Form::Bool),
        Value::Number(number) if number.is_f64() => Some(Form::Float),
        Value::Number(_) => Some(Form::Integer),
        Value::Array(_) | Value::Object(_) => None,
    }
}

impl Energon {
    /// The metadata of the dataset's folder, if it has them.
    ///
    /// # Errors
    /// They are malformed, or do not have the part that the configuration names.
    pub(super) fn find(opening: &Opening<'_, WebDataset>) -> Result<Option<Self>, DatasetError> {
        let (storage, given) = (opening.storage, opening.keys.part.as_deref());
        let refuse = |reason: &str| DatasetError::BrokenFile {
            path: opening.request.config.path.clone(),
            reason: reason.to_owned(),
        };
        if opening.pattern.is_some() {
            return match given {
                Some(_) => Err(refuse(
                    "dataset.part is of a folder with .nv-meta, and dataset.path names archives; set it to their folder",
                )),
                None => Ok(None),
            };
        }
        let splits = if has_folder(storage)? { &SPLITS[..] } else { &[] };
        for split in splits.iter().copied() {
            let Some(file) = StoredFile::if_there(storage, split.as_bytes())? else { continue };
            let read = read(&file, split)?;
            let found = Split::of(&read).map_err(|reason| file.fault(reason))?;
            let part = given.unwrap_or(USUAL_PART);
            let (archives, excluded) = found.part(part).map_err(|reason| file.fault(reason))?;
            let has_fields = StoredFile::if_there(storage, FIELDS.as_bytes())?.is_some();
            let unnamed = given.is_none().then(|| found.names());
            let part = part.to_owned();
            return Ok(Some(Self { archives, excluded, split, has_fields, part, unnamed }));
        }
        match given {
            Some(_) => Err(refuse(
                "dataset.part is set, and the folder has no .nv-meta/split.yaml; run energon prepare, or leave it out",
            )),
            None => Ok(None),
        }
    }

    /// The metadata, then the archives: the last files of a dataset with a limit are not in its index.
    pub(super) fn files(&self) -> Vec<Vec<u8>> {
        let fields = self.has_fields.then_some(FIELDS);
        let metadata = [self.split].into_iter().chain(fields);
        let metadata = metadata.map(|name| name.as_bytes().to_vec());
        metadata.chain(self.archives.iter().cloned()).collect()
    }

    /// Says which part is read, if the configuration does not.
    pub(super) fn unnamed_part(&self) -> Option<String> {
        let names = self.unnamed.as_ref()?;
        Some(format!(
            "the part {:?} of {} is read; dataset.part names one of {names}",
            self.part, self.split
        ))
    }

    /// The fields of the map; `None`: there is none.
    ///
    /// # Errors
    /// It is malformed, or has fields that cannot be made.
    pub(super) fn rules(
        &self,
        storage: &dyn Storage,
        warnings: &mut Vec<String>,
    ) -> Result<Option<Vec<FieldRule>>, DatasetError> {
        if !self.has_fields {
            return Ok(None);
        }
        let file = open_file(storage, FIELDS.as_bytes())?;
        let read = read(&file, FIELDS)?;
        let map = match read.get("field_map") {
            Some(Yaml::Map(map)) => map,
            _ => {
                if read.get("sample_loader").is_some() {
                    warnings.push(format!(
                        "{FIELDS} names code (sample_loader), which is never run: the fields are those of the first samples; \
                         define others in dataset.fields"
                    ));
                }
                return Ok(None);
            }
        };
        let mut map = FieldMap::of(map).map_err(|reason| file.fault(reason))?;
        if !map.open.is_empty() {
            self.settle(storage, &mut map).map_err(|error| match error {
                Unsettled::Storage(error) => error,
                Unsettled::Field(reason) => file.fault(reason),
            })?;
        }
        Ok(Some(map.rules))
    }

    /// Gives fields of keys of JSON the type that the first sample's values have.
    fn settle(&self, storage: &dyn Storage, map: &mut FieldMap) -> Result<(), Unsettled> {
        let mut json: Vec<(String, Value)> = Vec::new();
        'archives: for path in &self.archives {
            let archive = open_file(storage, path)?;
            let mut walk = Members::new(&archive, WindowSize::for_storage(storage));
            let mut first = None;
            while let Some(member) = walk.next()? {
                let Name::Field { key, field } = names::split(member.name) else { continue };
                if first.as_deref().is_some_and(|first| first != key) {
                    break;
                }
                first = Some(key.to_vec());
                let field = String::from_utf8_lossy(field).to_lowercase();
                let is_asked = map.open.iter().any(|place| map.rules[*place].from[0] == field);
                if is_asked && member.size <= MAX_JSON_BYTES {
                    let mut bytes = Vec::new();
                    archive.read(member.offset, member.size, &mut bytes)?;
                    json.extend(serde_json::from_slice(&bytes).ok().map(|value| (field, value)));
                }
            }
            if first.is_some() {
                break 'archives;
            }
        }
        for place in &map.open {
            let rule = &mut map.rules[*place];
            let value = json.iter().find(|(member, _)| *member == rule.from[0]);
            let value = value.and_then(|(_, value)| value.get(rule.key.as_deref()?));
            let Some(value) = value else { continue };
            rule.form = form_of(value).ok_or_else(|| {
                Unsettled::Field(format!(
                    "field_map.{} is a list or a map of JSON, which no field is made of; define the fields in \
                     dataset.fields, with {:?} as one of text",
                    rule.name, rule.from[0]
                ))
            })?;
        }
        Ok(())
    }
}

/// Whether there may be metadata. On this machine a file in a folder that is absent would be waited for, as in an outage.
fn has_folder(storage: &dyn Storage) -> Result<bool, DatasetError> {
    if storage.remote_root().is_some() {
        return Ok(true);
    }
    let mut is_there = false;
    storage
        .list(b"", &mut |name, _| is_there |= name == FOLDER)
        .map_err(|error| tell_missing(error.into()))?;
    Ok(is_there)
}

/// Why the types of fields are not found.
enum Unsettled {
    Storage(DatasetError),
    Field(String),
}

impl<E: Into<DatasetError>> From<E> for Unsettled {
    fn from(error: E) -> Self {
        Self::Storage(error.into())
    }
}

/// Reads a file of YAML or JSON.
fn read(file: &StoredFile<'_>, name: &str) -> Result<Yaml, DatasetError> {
    let bytes = file.read_whole(MAX_METADATA_BYTES)?;
    let text = std::str::from_utf8(&bytes).map_err(|_| file.fault("it is no UTF-8".to_owned()))?;
    if has_extension(name.as_bytes(), &[".json"]) {
        let json = serde_json::from_str(text).map_err(|error| file.fault(error.to_string()))?;
        return Ok(yaml_of(json));
    }
    Yaml::read(text).map_err(|(line, message)| file.fault_at(line, message))
}

fn yaml_of(value: Value) -> Yaml {
    match value {
        Value::Null => Yaml::Word(String::new()),
        Value::Bool(value) => Yaml::Word(value.to_string()),
        Value::Number(value) => Yaml::Word(value.to_string()),
        Value::String(value) => Yaml::Word(value),
        Value::Array(items) => Yaml::List(items.into_iter().map(yaml_of).collect()),
        Value::Object(map) => {
            Yaml::Map(map.into_iter().map(|(key, value)| (key, yaml_of(value))).collect())
        }
    }
}

/// Reads both files from memory; see `fuzzing`.
///
/// # Panics
/// A name leads out of the folder.
pub(crate) fn check_metadata(text: &str) {
    let json = serde_json::from_str(text).ok().map(yaml_of);
    for file in json.into_iter().chain(Yaml::read(text).ok()) {
        if let Some(Yaml::Map(map)) = file.get("field_map") {
            let _ = FieldMap::of(map);
        }
        let Ok(split) = Split::of(&file) else { continue };
        for (name, _) in &split.parts {
            let Ok((archives, _)) = split.part(name) else { continue };
            let is_inside = |name: &Vec<u8>| {
                !name.starts_with(b"/")
                    && !name.split(|byte| *byte == b'/').any(|part| part == b"..")
            };
            assert!(archives.iter().all(is_inside), "{archives:?}");
        }
    }
}
