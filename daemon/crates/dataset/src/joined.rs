//! Several datasets as one: samples and files are numbered consecutively over all datasets.
//!
//! The upper bits of a file's number are the number of its dataset, which selects the storage in [`JoinedFiles`]. Paths
//! are relative to the root of the file's dataset.

use std::path::PathBuf;
use std::sync::Arc;

use forebay_protocol::ids::SampleId;
use forebay_protocol::tensor::DType;
use forebay_select::Subset;
use forebay_storage::version::ObjectStamp;

use crate::opening::{IndexReport, Opened};
use crate::{Dataset, Defect, Description, DirectRead, Field, FieldKind, FieldValue, path_beside};
use forebay_storage::location::{ByteRange, FileId, FileTable, Location, SampleBytes};
use forebay_storage::{JoinedFiles, Storage};

/// Why datasets cannot be joined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disagreement {
    /// The index of the dataset that differs from the first.
    pub place: usize,
    /// The difference. It names the field, the first dataset and the dataset that differs.
    pub message: String,
}

/// Several datasets as one; created by [`join`].
#[derive(Debug)]
struct Joined {
    parts: Vec<Part>,
    /// The first dataset's fields, with the maximum row size of all datasets.
    fields: Vec<Field>,
    direct_read: Option<DirectRead>,
    classes: Vec<String>,
    /// The samples that are used, if one of the datasets has a selection.
    kept: Option<Arc<Subset>>,
}

#[derive(Debug)]
struct Part {
    name: String,
    dataset: Arc<dyn Dataset>,
    storage: Arc<dyn Storage>,
    first_sample: u64,
    /// For each field of the first dataset its index in this one; empty if the indices are equal.
    places: Vec<usize>,
}

impl Part {
    /// Sorts values in place: one that an earlier swap moved is found by following the swaps.
    fn sort(&self, values: &mut [FieldValue<'_>]) {
        for field in 0..self.places.len() {
            let mut from = self.places[field];
            while from < field {
                from = self.places[from];
            }
            values.swap(field, from);
        }
    }

    fn place_of(&self, field: usize) -> usize {
        self.places.get(field).copied().unwrap_or(field)
    }
}

/// Joins open datasets, each with its name. A single dataset is returned unchanged. The report's warnings are about the
/// combination of several datasets.
///
/// # Errors
/// Two datasets differ in a field, or there are too many datasets.
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
    // Files next to the index are about all datasets, so the mixture has its own.
    let suffix = digest.finalize().to_hex();
    report.path = report.path.map(|path| path_beside(&path, &format!(".with-{}", &suffix[..16])));
    let storage = JoinedFiles::new(parts.iter().map(|part| Arc::clone(&part.storage)).collect());
    let joined = Joined::of(parts, &mut report);
    Ok(Opened { dataset: Arc::new(joined), storage: Arc::new(storage), report })
}

/// For each field of the first dataset its index in the other one; empty if the indices are equal.
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

/// What must be equal for a field, as text. Array sizes may differ between samples.
fn described(kind: &FieldKind, output: Option<DType>) -> String {
    let as_output = |dtype: &DType| output.unwrap_or(*dtype).name();
    match kind {
        FieldKind::EncodedImage => "an image".to_owned(),
        FieldKind::EncodedImages => "a list of images".to_owned(),
        FieldKind::Bytes => "bytes".to_owned(),
        FieldKind::Text => "text".to_owned(),
        FieldKind::Array { dtype, shape } => {
            format!("an array of {} with {} dimensions", as_output(dtype), shape.len())
        }
        FieldKind::RaggedArray { dtype, row_shape } => {
            format!("an array of {} of any length, with rows {row_shape:?}", as_output(dtype))
        }
        FieldKind::Sound { row_shape, .. } => format!("a sound with rows {row_shape:?}"),
        FieldKind::Video { clips, frames } => {
            let count = |of: &Option<u64>| of.map_or("any number".to_owned(), |of| of.to_string());
            format!("a video: {} of clips, {} of frames", count(clips), count(frames))
        }
        FieldKind::Integer => "an integer".to_owned(),
        FieldKind::Float => "a float".to_owned(),
    }
}

impl Joined {
    fn of(parts: Vec<Part>, report: &mut IndexReport) -> Self {
        let first = &parts[0];
        let mut fields = first.dataset.fields().to_vec();
        for (number, field) in fields.iter_mut().enumerate() {
            let sound_of = |part: &Part| match part.dataset.fields()[part.place_of(number)].kind {
                FieldKind::Sound { rate, may_be_aac, .. } => Some((rate, may_be_aac)),
                _ => None,
            };
            if let FieldKind::Sound { rate, may_be_aac, .. } = &mut field.kind {
                // Of several rates none is that of all sounds.
                *rate = rate.filter(|rate| {
                    parts.iter().filter_map(sound_of).all(|(other, _)| other == Some(*rate))
                });
                *may_be_aac = parts.iter().filter_map(sound_of).any(|(_, may_be)| may_be);
            }
        }
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
        let has_selection = parts.iter().any(|part| part.dataset.kept().is_some());
        let each = parts
            .iter()
            .map(|part| (part.dataset.sample_count(), part.dataset.kept().map(AsRef::as_ref)));
        let kept = has_selection.then(|| Arc::new(Subset::joined(each)));
        Self { direct_read: direct_read.flatten(), fields, classes, kept, parts }
    }

    /// The dataset of a sample, and the sample's number in it.
    fn part(&self, id: SampleId) -> (&Part, SampleId) {
        // A dataset without samples begins at the same number as the next one.
        let place = self.parts.partition_point(|part| part.first_sample <= id.0) - 1;
        let part = &self.parts[place];
        (part, SampleId(id.0 - part.first_sample))
    }

    /// Appends what `locate` appends, with the files' numbers here.
    fn locate_with(
        &self,
        id: SampleId,
        locations: &mut Vec<Location>,
        locate: impl FnOnce(&dyn Dataset, SampleId, &mut Vec<Location>),
    ) {
        let place = self.parts.partition_point(|part| part.first_sample <= id.0) - 1;
        let (part, id) = self.part(id);
        let before = locations.len();
        locate(part.dataset.as_ref(), id, locations);
        for location in &mut locations[before..] {
            location.file = JoinedFiles::join(place, location.file);
        }
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

    fn kept(&self) -> Option<&Arc<Subset>> {
        self.kept.as_ref()
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn locate(&self, id: SampleId, locations: &mut Vec<Location>) {
        self.locate_with(id, locations, |dataset, id, locations| dataset.locate(id, locations));
    }

    fn locate_drawn(&self, id: SampleId, draw: u64, locations: &mut Vec<Location>) {
        self.locate_with(id, locations, |dataset, id, locations| {
            dataset.locate_drawn(id, draw, locations);
        });
    }

    fn own_range(&self, id: SampleId) -> ByteRange {
        let (part, id) = self.part(id);
        part.dataset.own_range(id)
    }

    fn own_bytes(&self, id: SampleId, bytes: SampleBytes<'_>) -> u64 {
        let (part, id) = self.part(id);
        part.dataset.own_bytes(id, bytes)
    }

    fn label(&self, id: SampleId) -> Option<Result<i64, Defect>> {
        let (part, id) = self.part(id);
        part.dataset.label(id)
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
        part.sort(&mut values[before..]);
        Ok(())
    }

    fn read_drawn<'a>(
        &'a self,
        id: SampleId,
        draw: u64,
        bytes: SampleBytes<'a>,
        values: &mut Vec<FieldValue<'a>>,
    ) -> Result<(), Defect> {
        let (part, id) = self.part(id);
        let before = values.len();
        part.dataset.read_drawn(id, draw, bytes, values)?;
        part.sort(&mut values[before..]);
        Ok(())
    }

    /// The dataset of the bytes is unknown, so this is the maximum over all datasets.
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

    /// Classes and notes of each dataset are notes with its name; the fields are those of the first.
    fn description(&self) -> Description {
        let mut joined = Description::of_classes(&self.classes);
        let mut all_left_out = Vec::new();
        for (number, part) in self.parts.iter().enumerate() {
            let Description { classes, left_out, notes, field_rules, .. } =
                part.dataset.description();
            if number == 0 {
                joined.field_rules = field_rules;
            }
            let classes = classes.map(|classes| ("classes", classes.to_string()));
            let named = |(what, text): (_, String)| (what, format!("{}: {text}", part.name));
            joined.notes.extend(classes.into_iter().chain(notes).map(named));
            all_left_out.extend(left_out.map(|text| format!("{}: {text}", part.name)));
        }
        joined.left_out = (!all_left_out.is_empty()).then(|| all_left_out.join("; "));
        joined
    }

    fn classes(&self) -> &[String] {
        &self.classes
    }
}
