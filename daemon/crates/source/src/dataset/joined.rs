//! Several datasets as one: samples and files are numbered over all of them, one dataset after the other.
//!
//! A file's number holds that of its dataset in its upper bits, so that [`JoinedFiles`] knows
//! whose storage has it. Paths are relative to the root of the file's own dataset.

use std::path::PathBuf;
use std::sync::Arc;

use forebay_protocol::ids::SampleId;
use forebay_protocol::tensor::DType;

use super::opening::{IndexReport, Opened};
use super::{Dataset, Defect, DirectRead, Field, FieldKind, FieldValue, path_beside};
use crate::location::{ByteRange, FileId, FileTable, Location, ObjectStamp, SampleBytes};
use crate::storage::{JoinedFiles, Storage};

/// Why datasets cannot be joined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disagreement {
    /// The place of the dataset that differs from the first.
    pub place: usize,
    /// What differs, with both datasets and the field.
    pub message: String,
}

/// Several datasets as one. Made by [`join`].
#[derive(Debug)]
struct Joined {
    parts: Vec<Part>,
    /// The first dataset's, with the longest rows of all.
    fields: Vec<Field>,
    direct_read: Option<DirectRead>,
    classes: Vec<String>,
    left_out: Option<String>,
}

#[derive(Debug)]
struct Part {
    name: String,
    dataset: Arc<dyn Dataset>,
    storage: Arc<dyn Storage>,
    first_sample: u64,
    /// For each of the first dataset's fields its place among this one's; empty where the places are the same.
    places: Vec<usize>,
}

impl Part {
    fn place_of(&self, field: usize) -> usize {
        self.places.get(field).copied().unwrap_or(field)
    }
}

/// Joins open datasets, each with its name. Of one dataset that dataset is given back. The report's warnings are those of
/// several datasets together.
///
/// # Errors
/// Two datasets that differ in a field.
pub fn join(all: Vec<(String, Opened)>) -> Result<Opened, Disagreement> {
    let mut all = all;
    if all.len() == 1
        && let Some((_, opened)) = all.pop()
    {
        return Ok(opened);
    }
    if all.len() > JoinedFiles::MOST {
        let message = format!("a mixture has at most {} datasets", JoinedFiles::MOST);
        return Err(Disagreement { place: JoinedFiles::MOST, message });
    }
    let mut report = IndexReport { reused: true, ..IndexReport::default() };
    let mut parts: Vec<Part> = Vec::new();
    let mut digest = blake3::Hasher::new_derive_key("forebay several datasets as one");
    for (place, (name, opened)) in all.into_iter().enumerate() {
        let Opened { dataset, storage, report: of } = opened;
        digest.update(&(name.len() as u64).to_le_bytes());
        digest.update(name.as_bytes());
        digest.update(&dataset.fingerprint());
        report.path = report.path.filter(|_| place > 0).or(of.path.filter(|_| place == 0));
        report.classes = report.classes.max(of.classes);
        report.bytes += of.bytes;
        report.seconds += of.seconds;
        report.reused &= of.reused;
        let places = match parts.first() {
            Some(first) => matching(first, &name, dataset.as_ref())
                .map_err(|message| Disagreement { place, message })?,
            None => Vec::new(),
        };
        let first_sample = report.samples;
        report.samples += dataset.sample_count();
        parts.push(Part { name, dataset, storage, first_sample, places });
    }
    // What is kept beside an index is of all datasets, in a file of this mixture.
    let suffix = digest.finalize().to_hex();
    report.path = report.path.map(|path| path_beside(&path, &format!(".with-{}", &suffix[..16])));
    let storage = JoinedFiles::new(parts.iter().map(|part| Arc::clone(&part.storage)).collect());
    let joined = Joined::of(parts, &mut report);
    Ok(Opened { dataset: Arc::new(joined), storage: Arc::new(storage), report })
}

/// The places of the first dataset's fields among another one's; empty where they are the same.
fn matching(first: &Part, name: &str, other: &dyn Dataset) -> Result<Vec<usize>, String> {
    let (fields, others) = (first.dataset.fields(), other.fields());
    let names = |fields: &[Field]| -> String {
        fields.iter().map(|field| field.name.as_str()).collect::<Vec<_>>().join(", ")
    };
    let lacks = |of: &str, by: &str, field: &Field, has: &[Field]| {
        format!(
            "dataset `{by}` has a field `{}` and dataset `{of}` has not (it has {}): the datasets of a mixture have the \
             same fields; [dataset.fields] says what they are made of",
            field.name,
            names(has)
        )
    };
    let mut places = Vec::with_capacity(fields.len());
    for (number, field) in fields.iter().enumerate() {
        let Some(place) = others.iter().position(|other| other.name == field.name) else {
            return Err(lacks(name, &first.name, field, others));
        };
        let type_of = |dataset: &dyn Dataset, place: usize| {
            described(&dataset.fields()[place].kind, dataset.output_dtype(place))
        };
        let (expected, found) = (type_of(first.dataset.as_ref(), number), type_of(other, place));
        if expected != found {
            return Err(format!(
                "field `{}` is {expected} in dataset `{}` and {found} in dataset `{name}`: the datasets of a mixture have \
                 fields of the same types",
                field.name, first.name
            ));
        }
        places.push(place);
    }
    if let Some(more) =
        others.iter().find(|other| fields.iter().all(|field| field.name != other.name))
    {
        return Err(lacks(&first.name, name, more, fields));
    }
    if places.iter().copied().eq(0..fields.len()) {
        places.clear();
    }
    Ok(places)
}

/// What has to be the same of a field, in words. The sizes of arrays are the samples' own matter.
fn described(kind: &FieldKind, output: Option<DType>) -> String {
    let as_output = |dtype: &DType| output.unwrap_or(*dtype).name();
    match kind {
        FieldKind::EncodedImage => "an image".to_owned(),
        FieldKind::Bytes => "bytes".to_owned(),
        FieldKind::Text => "text".to_owned(),
        FieldKind::Array { dtype, shape } => {
            format!("an array of {} with {} dimensions", as_output(dtype), shape.len())
        }
        FieldKind::RaggedArray { dtype, row_shape } => {
            format!("an array of {} of any length, with rows {row_shape:?}", as_output(dtype))
        }
        FieldKind::Sound { row_shape } => format!("a sound with rows {row_shape:?}"),
        FieldKind::Integer => "an integer".to_owned(),
        FieldKind::Float => "a float".to_owned(),
    }
}

impl Joined {
    fn of(parts: Vec<Part>, report: &mut IndexReport) -> Self {
        let first = &parts[0];
        let fields = first.dataset.fields().to_vec();
        let is_alike = |part: &Part| {
            part.places.is_empty() && part.dataset.direct_read() == first.dataset.direct_read()
        };
        let direct_read = parts.iter().all(is_alike).then(|| first.dataset.direct_read().cloned());
        let other_classes =
            parts.iter().find(|part| part.dataset.classes() != first.dataset.classes());
        let classes = match other_classes {
            Some(other) => {
                report.warnings.push(format!(
                    "the classes of datasets `{}` and `{}` differ: a label means another class in each (dataset.classes \
                     gives the datasets one list)",
                    first.name, other.name
                ));
                Vec::new()
            }
            None => first.dataset.classes().to_vec(),
        };
        let left_out = parts
            .iter()
            .filter_map(|part| Some(format!("{}: {}", part.name, part.dataset.left_out()?)));
        let left_out = left_out.collect::<Vec<_>>().join("; ");
        let left_out = (!left_out.is_empty()).then_some(left_out);
        Self { direct_read: direct_read.flatten(), fields, classes, left_out, parts }
    }

    /// The dataset of a sample, and the sample's number there.
    fn part(&self, id: SampleId) -> (&Part, SampleId) {
        // A dataset of no samples begins where the next one does.
        let place = self.parts.partition_point(|part| part.first_sample <= id.0) - 1;
        let part = &self.parts[place];
        (part, SampleId(id.0 - part.first_sample))
    }

    fn file(&self, file: FileId) -> (&Part, FileId) {
        let (place, file) = JoinedFiles::split(file);
        (&self.parts[place], file)
    }
}

impl FileTable for Joined {
    fn append_path(&self, file: FileId, path: &mut Vec<u8>) {
        let (part, file) = self.file(file);
        part.dataset.append_path(file, path);
    }

    fn stamp(&self, file: FileId) -> Option<ObjectStamp> {
        let (part, file) = self.file(file);
        part.dataset.stamp(file)
    }
}

impl Dataset for Joined {
    fn sample_count(&self) -> u64 {
        let counts = self.parts.iter().map(|part| part.dataset.sample_count());
        counts.sum()
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn locate(&self, id: SampleId, locations: &mut Vec<Location>) {
        let place = self.parts.partition_point(|part| part.first_sample <= id.0) - 1;
        let (part, id) = self.part(id);
        let before = locations.len();
        part.dataset.locate(id, locations);
        for location in &mut locations[before..] {
            location.file = JoinedFiles::join(place, location.file);
        }
    }

    fn own_range(&self, id: SampleId) -> ByteRange {
        let (part, id) = self.part(id);
        part.dataset.own_range(id)
    }

    fn own_bytes(&self, id: SampleId, bytes: SampleBytes<'_>) -> u64 {
        let (part, id) = self.part(id);
        part.dataset.own_bytes(id, bytes)
    }

    fn shares_units(&self) -> bool {
        self.parts.iter().any(|part| part.dataset.shares_units())
    }

    fn read<'a>(
        &'a self,
        id: SampleId,
        bytes: SampleBytes<'a>,
        values: &mut Vec<FieldValue<'a>>,
    ) -> Result<(), Defect> {
        let (part, id) = self.part(id);
        let before = values.len();
        part.dataset.read(id, bytes, values)?;
        // Put in order without another list: what was at a place that is done is followed to where it is now.
        for field in 0..part.places.len() {
            let mut from = part.places[field];
            while from < field {
                from = part.places[from];
            }
            values.swap(before + field, before + from);
        }
        Ok(())
    }

    /// Whose bytes they are is not known: the most that any of the datasets would unpack.
    fn unpacked_bytes(&self, bytes: SampleBytes<'_>) -> u64 {
        self.parts.iter().map(|part| part.dataset.unpacked_bytes(bytes)).max().unwrap_or(0)
    }

    fn direct_read(&self) -> Option<&DirectRead> {
        self.direct_read.as_ref()
    }

    fn read_in_place<'a>(&'a self, id: SampleId, values: &mut Vec<FieldValue<'a>>) {
        let (part, id) = self.part(id);
        part.dataset.read_in_place(id, values);
    }

    fn output_dtype(&self, field: usize) -> Option<DType> {
        self.parts[0].dataset.output_dtype(field)
    }

    fn notes(&self) -> Vec<(&'static str, String)> {
        let of = |part: &Part| {
            let classes =
                part.dataset.class_summary().map(|classes| ("classes", classes.to_string()));
            let named = |(what, text): (_, String)| (what, format!("{}: {text}", part.name));
            classes.into_iter().chain(part.dataset.notes()).map(named).collect::<Vec<_>>()
        };
        self.parts.iter().flat_map(of).collect()
    }

    fn fingerprint(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_derive_key("forebay several datasets as one");
        for part in &self.parts {
            hasher.update(&(part.name.len() as u64).to_le_bytes());
            hasher.update(part.name.as_bytes());
            hasher.update(&part.dataset.fingerprint());
        }
        *hasher.finalize().as_bytes()
    }

    fn append_name(&self, id: SampleId, name: &mut Vec<u8>) {
        let (part, id) = self.part(id);
        part.dataset.append_name(id, name);
    }

    fn full_name(&self, _storage: &dyn Storage, id: SampleId) -> PathBuf {
        let (part, id) = self.part(id);
        part.dataset.full_name(part.storage.as_ref(), id)
    }

    fn max_row_bytes(&self, field: usize) -> Option<u64> {
        let of = |part: &Part| part.dataset.max_row_bytes(part.place_of(field));
        self.parts.iter().map(of).try_fold(0, |most, bytes| Some(bytes?.max(most)))
    }

    fn field_rules(&self) -> String {
        self.parts[0].dataset.field_rules()
    }

    fn left_out(&self) -> Option<&str> {
        self.left_out.as_deref()
    }

    fn classes(&self) -> &[String] {
        &self.classes
    }
}

#[cfg(test)]
mod tests;
