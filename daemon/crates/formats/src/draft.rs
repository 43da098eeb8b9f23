//! Proposes a format's part of a first configuration, from a few samples.
//!
//! Each format provides one function, `draft`, in its line of `registry`; formats of arrays share [`Draft::of_arrays`].

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::PathBuf;

use forebay_config::DatasetConfig;
use forebay_keys::toml_key;
use forebay_protocol::ids::SampleId;
use forebay_protocol::tensor::DType;

use crate::fields::begins_as_picture;
use crate::tokens::Width;
use crate::video_folder::is_video_path;
use forebay_dataset::error::DatasetError;
use forebay_dataset::opening::read_sample;
use forebay_dataset::progress::{ProgressCallback, ScanProgress};
use forebay_dataset::{Dataset, Field, FieldKind, FieldValue, Sound, SoundForm, SoundHeader};
use forebay_storage::Storage;
use forebay_storage::location::SampleBytes;
use forebay_video::{Failure, Refused};

/// The maximum number of samples to read, unless all must be measured.
const MAX_READ: u64 = 64;
/// The number of bytes after which no further sample is read.
const MAX_READ_BYTES: u64 = 256 << 20;
/// The maximum numbers of samples and bytes of a local dataset that is read completely, if only this determines the
/// lengths of its rows.
const MAX_WHOLE: (u64, u64) = (1 << 16, 1 << 30);
/// The maximum number of defective samples to remember.
const MAX_DEFECTS: usize = 3;

/// A format's part of a configuration: TOML with comments, in whole lines.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Draft {
    /// Lines before the first table.
    pub head: String,
    /// Further lines of `[dataset]`.
    pub dataset: String,
    /// The usual number of epochs for such data.
    pub epochs: Epochs,
    /// Tables after the tables of every configuration.
    pub tables: String,
}

/// The usual number of epochs of a first training, by the kind of data.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Epochs {
    /// Tokens.
    One,
    /// Tables, arrays and sounds.
    #[default]
    Few,
    /// Images.
    Many,
}

impl Epochs {
    /// The line of `[order]`.
    pub const fn line(self) -> &'static str {
        match self {
            Self::One => "epochs = 1           # usual for tokens; left out: endless",
            Self::Few => "epochs = 10          # set it to the training's own; left out: endless",
            Self::Many => "epochs = 90          # usual for pictures; left out: endless",
        }
    }
}

/// Properties of a dataset, from a few samples.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// The number of samples that were read.
    pub(super) samples: u64,
    /// Whether all samples were read, or measured.
    is_all: bool,
    /// The number of samples in the dataset.
    all: u64,
    /// The fields of arrays, in order, and of sounds.
    pub(super) arrays: Vec<SeenArray>,
    /// All fields.
    pub(super) fields: Vec<Field>,
    /// The definition of the fields in the syntax of `[dataset.fields]`; empty if the format does not use this table.
    pub(super) rules: String,
    /// Tables of `[output]` that the data's own statistics propose.
    pub(super) output: String,
    /// The number of unusable samples, and the first ones' files and reasons.
    pub(super) defects: (u64, Vec<(PathBuf, String)>),
    /// Text fields with the name of a class.
    classes: Vec<SeenNames>,
    /// Fields of bytes of which every value that was read begins as a picture.
    pictures: BTreeSet<String>,
    /// Fields whose every value may be a video (of bytes) or the path of one (of texts), with the number of values that
    /// can be read.
    videos: BTreeMap<String, u64>,
    /// Values of `videos` that cannot be read: the field, the sample and the reason.
    damaged: Vec<(String, SampleId, String)>,
    /// Fields that some rows do not have.
    lacking: Vec<String>,
    /// The type of tokens, if it is inferred.
    pub(super) width: Option<Width>,
    /// The type of tokens, if it is configured.
    pub(super) given_dtype: Option<DType>,
}

/// A text field that may contain class names.
#[derive(Debug)]
struct SeenNames {
    field: String,
    values: u64,
    names: BTreeSet<String>,
}

/// Names of columns that usually contain a class.
const CLASS_COLUMNS: [&str; 5] = ["label", "class", "species", "category", "target"];
/// The maximum length of a class name.
const MAX_CLASS_BYTES: usize = 64;

impl SeenNames {
    fn of(field: &Field) -> Option<Self> {
        let name = field.name.to_ascii_lowercase();
        let is_of_class = name
            .split(['_', '.', '-', ' '])
            .next_back()
            .is_some_and(|last| CLASS_COLUMNS.contains(&last));
        let is_text = field.kind == FieldKind::Text;
        (is_text && is_of_class).then(|| Self {
            field: field.name.clone(),
            values: 0,
            names: BTreeSet::new(),
        })
    }

    /// Whether there are few different names: free text rarely repeats. Lists and objects of JSON are not names.
    fn are_classes(&self) -> bool {
        let is_name = |name: &String| {
            !name.is_empty() && name.len() <= MAX_CLASS_BYTES && !name.starts_with(['[', '{'])
        };
        self.values >= 4
            && self.names.len() as u64 * 4 <= self.values * 3
            && self.names.iter().all(is_name)
    }
}

fn names_of(fields: &[Field], kinds: &[FieldKind]) -> BTreeSet<String> {
    let found = fields.iter().filter(|field| kinds.contains(&field.kind));
    found.map(|field| field.name.clone()).collect()
}

/// Whether a value may be a video, or the path of one; also if it is damaged.
fn may_be_video(value: &FieldValue<'_>) -> bool {
    match value {
        FieldValue::Bytes(file) => file.is_empty() || forebay_video::begins(file),
        FieldValue::Text(path) => is_video_path(path.as_bytes()),
        _ => false,
    }
}

/// Why a value that may be a video is none that can be read.
fn video_defect(value: &FieldValue<'_>) -> Option<String> {
    let FieldValue::Bytes(file) = value else { return None };
    match forebay_video::read(&**file) {
        Ok(table) => table.into_video().err().map(|Refused(reason)| reason),
        Err(Failure::Refused(Refused(reason))) => Some(reason),
        Err(Failure::Read(never)) => match never {},
    }
}

/// One array field in the samples that were read.
#[derive(Debug)]
pub(super) struct SeenArray {
    name: String,
    /// Whether it is decoded to an array: then it is always ragged.
    is_sound: bool,
    dtype: DType,
    /// The first sample's shape.
    shape: Vec<u64>,
    /// The minimum and maximum size of the first dimension.
    rows: (u64, u64),
    /// A shape that differs from the first one in more than the first dimension.
    misfit: Option<Vec<u64>>,
    /// The maximum number of bytes in a sample.
    max_bytes: u64,
    /// An upper bound on the bytes of a row, if the dataset has it.
    known: Option<u64>,
    /// Whether rows differ in length, if the dataset has this.
    differs: Option<bool>,
}

impl SeenArray {
    /// A field of bytes may contain sounds.
    fn of(dataset: &dyn Dataset, place: usize) -> Option<Self> {
        let field = dataset.fields().get(place)?;
        let is_sound = !matches!(field.kind, FieldKind::Array { .. });
        let (dtype, shape) = match &field.kind {
            FieldKind::Array { dtype, shape } => (*dtype, shape.clone()),
            FieldKind::Sound { row_shape, .. } => (DType::F32, [&[0], &row_shape[..]].concat()),
            FieldKind::Bytes => (DType::F32, vec![0]),
            _ => return None,
        };
        let rows = shape.first().map_or((0, 0), |rows| (*rows, *rows));
        let rows = if is_sound { (u64::MAX, 0) } else { rows };
        let name = field.name.clone();
        let known = if is_sound { None } else { dataset.max_row_bytes(place) };
        let differs = if is_sound { None } else { dataset.rows_differ(place) };
        Some(Self {
            name,
            is_sound,
            dtype,
            shape,
            rows,
            misfit: None,
            max_bytes: 0,
            known,
            differs,
        })
    }

    /// Adds a sound by its header; returns false if it is not a sound.
    fn add_sound(&mut self, sound: &Sound<'_>) -> bool {
        let Ok(header) = SoundHeader::read(sound.file) else { return false };
        // A FLAC file may omit the number of frames: then it is estimated with a compression to half of the bytes.
        let unsaid = || sound.file.len() as u64 / u64::from(header.channels.max(1));
        let frames = header.frames.unwrap_or_else(unsaid);
        let span = sound.form.span.unwrap_or_default();
        let frames = span.frames(frames, header.rate).map_or(0, |part| part.end - part.start);
        let rate = u64::from(sound.form.rate.unwrap_or(header.rate));
        let frames =
            (u128::from(frames) * u128::from(rate)).div_ceil(u128::from(header.rate.max(1)));
        let frames = u64::try_from(frames).unwrap_or(u64::MAX);
        let channels = u64::from(sound.form.channels.unwrap_or(1));
        self.rows = (self.rows.0.min(frames), self.rows.1.max(frames));
        let bytes = frames.saturating_mul(channels).saturating_mul(4);
        self.max_bytes = self.max_bytes.max(bytes);
        true
    }

    /// Whether samples that were not read may change the proposal.
    fn needs_all(&self) -> bool {
        self.is_sound || (self.differs.is_none() && !self.shape.is_empty())
    }

    /// Whether its `max_bytes` is measured from samples.
    fn is_measured(&self) -> bool {
        self.known.is_none() && (self.is_sound || self.is_ragged())
    }

    /// Whether a value was read.
    const fn is_seen(&self) -> bool {
        self.rows.0 <= self.rows.1
    }

    fn is_ragged(&self) -> bool {
        self.differs.unwrap_or(self.rows.0 < self.rows.1)
    }

    fn add(&mut self, shape: &[u64], bytes: usize) {
        self.max_bytes = self.max_bytes.max(bytes as u64);
        match (shape.split_first(), self.shape.split_first()) {
            (Some((rows, others)), Some((_, first_others))) if others == first_others => {
                self.rows = (self.rows.0.min(*rows), self.rows.1.max(*rows));
            }
            (None, None) => {}
            _ => self.misfit = Some(shape.to_vec()),
        }
    }
}

impl Seen {
    /// Reads samples spread evenly over the dataset; reads all samples if only they determine the lengths of rows and
    /// this takes little time. A sample that is unreadable or unusable is a warning, never an error.
    ///
    /// # Errors
    /// The callback requested a stop.
    pub(super) fn read(
        dataset: &dyn Dataset,
        storage: &dyn Storage,
        config: &DatasetConfig,
        progress: ProgressCallback<'_>,
    ) -> Result<Self, DatasetError> {
        let all = dataset.sample_count();
        let places = 0..dataset.fields().len();
        let arrays = places.filter_map(|place| SeenArray::of(dataset, place)).collect();
        let description = dataset.description();
        let mut seen = Self {
            samples: 0,
            is_all: false,
            all,
            arrays,
            fields: dataset.fields().to_vec(),
            rules: description.field_rules,
            output: description.output,
            classes: dataset.fields().iter().filter_map(SeenNames::of).collect(),
            pictures: names_of(dataset.fields(), &[FieldKind::Bytes]),
            videos: names_of(dataset.fields(), &[FieldKind::Bytes, FieldKind::Text])
                .into_iter()
                .map(|name| (name, 0))
                .collect(),
            ..Self::default()
        };
        let (mut bytes, mut ends) = (Vec::new(), Vec::new());
        let mut read_bytes = 0;
        let step = all.div_ceil(MAX_READ).max(1);
        for id in (0..all).step_by(usize::try_from(step).unwrap_or(usize::MAX)).map(SampleId) {
            bytes.clear();
            let limit = config.limits.sample_bytes;
            let read = read_sample(storage, dataset, id, limit, &mut bytes, &mut ends)
                .map_err(|error| error.to_string())
                .and_then(|()| seen.add(dataset, id, SampleBytes::new(&bytes, &ends)));
            seen.samples += 1;
            if let Err(reason) = read {
                let mut name = Vec::new();
                dataset.append_name(id, &mut name);
                seen.add_defect(storage.full_path(&name), reason);
            }
            read_bytes += bytes.len() as u64;
            if read_bytes >= MAX_READ_BYTES {
                break;
            }
        }
        seen.settle_media();
        for (_, id, reason) in std::mem::take(&mut seen.damaged) {
            let mut name = Vec::new();
            dataset.append_name(id, &mut name);
            seen.add_defect(storage.full_path(&name), reason);
        }
        seen.is_all = seen.samples == all;
        seen.arrays.retain(SeenArray::is_seen);
        let probable_bytes = (read_bytes / seen.samples.max(1)).saturating_mul(all);
        let is_small = all <= MAX_WHOLE.0 && probable_bytes <= MAX_WHOLE.1;
        let needs_all = seen.arrays.iter().any(SeenArray::needs_all);
        if needs_all && !seen.is_all && is_small && storage.remote_root().is_none() {
            for id in (0..all).map(SampleId) {
                if progress(ScanProgress { samples: id.0, ..ScanProgress::default() }).is_break() {
                    return Err(DatasetError::Cancelled);
                }
                bytes.clear();
                let limit = config.limits.sample_bytes;
                let mut values = Vec::new();
                // An unusable sample has no length.
                if read_sample(storage, dataset, id, limit, &mut bytes, &mut ends).is_ok()
                    && dataset.read(id, SampleBytes::new(&bytes, &ends), &mut values).is_ok()
                {
                    seen.measure(dataset, &values);
                }
            }
            seen.is_all = true;
        }
        Ok(seen)
    }

    fn add_defect(&mut self, path: PathBuf, reason: String) {
        self.defects.0 += 1;
        if self.defects.1.len() < MAX_DEFECTS {
            self.defects.1.push((path, reason));
        }
    }

    fn add(
        &mut self,
        dataset: &dyn Dataset,
        id: SampleId,
        bytes: SampleBytes<'_>,
    ) -> Result<(), String> {
        let mut values = Vec::with_capacity(dataset.fields().len());
        dataset.read(id, bytes, &mut values).map_err(|defect| defect.0)?;
        for (field, value) in dataset.fields().iter().zip(&values) {
            let names = self.classes.iter_mut().find(|names| names.field == field.name);
            if let (Some(names), FieldValue::Text(text)) = (names, value) {
                names.values += 1;
                names.names.insert(text.to_string());
            }
            if let FieldValue::Bytes(bytes) = value
                && !begins_as_picture(bytes)
            {
                self.pictures.remove(&field.name);
            }
            let Some(good) = self.videos.get_mut(&field.name) else { continue };
            if !may_be_video(value) {
                self.videos.remove(&field.name);
                continue;
            }
            match video_defect(value) {
                None => *good += 1,
                Some(reason) => {
                    let reason = format!("`{}`: {reason}", field.name);
                    self.damaged.push((field.name.clone(), id, reason));
                }
            }
        }
        self.measure(dataset, &values);
        Ok(())
    }

    /// Records the lengths of arrays and sounds.
    fn measure(&mut self, dataset: &dyn Dataset, values: &[FieldValue<'_>]) {
        for (field, value) in dataset.fields().iter().zip(values) {
            let place = self.arrays.iter().position(|array| array.name == field.name);
            let Some(place) = place else { continue };
            let array = &mut self.arrays[place];
            let is_one = match value {
                FieldValue::Array(value) => {
                    array.add(&value.shape, value.bytes.len());
                    true
                }
                FieldValue::Sound(sound) => array.add_sound(sound),
                FieldValue::Bytes(file) => {
                    array.add_sound(&Sound { file, form: SoundForm::default() })
                }
                _ => true,
            };
            if !is_one && field.kind == FieldKind::Bytes {
                self.arrays.remove(place);
            }
        }
    }

    /// Whether all samples that were read are unusable.
    pub(super) fn is_all_bad(&self) -> bool {
        self.samples > 0 && self.defects.0 == self.samples
    }

    /// The number of rows, if there is one sample and its arrays have equally many of them.
    pub(super) fn rows_of_single_sample(&self) -> Option<u64> {
        let rows = *self.arrays.first()?.shape.first()?;
        let all_have = self.arrays.iter().all(|array| array.shape.first() == Some(&rows));
        (self.all == 1 && rows > 1 && all_have).then_some(rows)
    }

    /// Marks the fields that rows do not have, which the warnings of the opening name.
    pub(super) fn mark_lacking(&mut self, warnings: &[String]) {
        let is_named = |name: &&Field| {
            let key = format!("dataset.fields.{}.missing", name.name);
            warnings.iter().any(|warning| warning.contains(&key))
        };
        self.lacking =
            self.fields.iter().filter(is_named).map(|field| field.name.clone()).collect();
    }

    /// Converts text fields with class names to numbers, or adds a comment that they stay text; `numbers`: whether the
    /// format supports the conversion.
    fn settle_classes(&self, text: &str, numbers: bool) -> String {
        let mut settled = String::new();
        for line in text.split_inclusive('\n') {
            let begins = |name: &String| line.starts_with(&format!("{} = {{", toml_key(name)));
            let names =
                self.classes.iter().find(|names| begins(&names.field) && names.are_classes());
            let end = line.trim_end();
            let mut comments = Vec::new();
            let mut line = end.to_owned();
            if let Some(SeenNames { values, names, .. }) = names {
                let mut seen = format!("{} different in {values} rows", names.len());
                if names.len() == 1 {
                    seen += ": every label is 0";
                }
                if numbers {
                    line = line.replacen("as = \"text\"", "classes = \"sorted\"", 1);
                    comments.push(format!(
                        "numbers of the sorted names ({seen}); as = \"text\" instead: the names"
                    ));
                } else {
                    comments.push(format!(
                        "names of classes as text ({seen}); a Python stage makes numbers of them"
                    ));
                }
            }
            if self.lacking.iter().any(begins) && !end.contains("missing =") {
                comments.push("missing = \"skip\" leaves out the rows without it".to_owned());
            }
            settled += &line;
            if !comments.is_empty() {
                settled += &format!("  # {}", comments.join("; "));
            }
            settled.push('\n');
        }
        settled
    }

    /// Makes fields of bytes that contain pictures fields of pictures.
    fn settle_media(&mut self) {
        if self.defects.0 == self.samples {
            self.pictures.clear();
            self.videos.clear();
        }
        let is_sound = |name: &str| {
            self.arrays.iter().any(|array| array.name == name && array.is_sound && array.is_seen())
        };
        self.videos.retain(|name, good| *good > 0 && !is_sound(name));
        let Self { videos, damaged, .. } = self;
        damaged.retain(|(name, ..)| videos.contains_key(name));
        for field in &mut self.fields {
            if self.pictures.contains(&field.name) {
                field.kind = FieldKind::EncodedImage;
            }
        }
    }

    /// The videos of a format that takes paths of files, or does not.
    fn videos(&self, takes_paths: bool) -> impl Iterator<Item = &Field> {
        let is_taken = move |field: &&Field| takes_paths || field.kind == FieldKind::Bytes;
        self.fields.iter().filter(is_taken).filter(|field| self.videos.contains_key(&field.name))
    }

    /// The rules, with fields of bytes that contain pictures, sounds or videos changed to those.
    fn rules_with_media(&self, takes_paths: bool) -> String {
        const VIDEO: &str = "as = \"video\", frames = 16, stride = 4, start = \"random\"";
        let videos = self.videos(takes_paths).map(|field| (&field.name, VIDEO));
        let sounds = self.arrays.iter().filter(|array| array.is_sound);
        let sounds = sounds.map(|array| (&array.name, "as = \"audio\""));
        let pictures = self.pictures.iter().map(|name| (name, "as = \"image\""));
        let media: Vec<_> = sounds.chain(pictures).chain(videos).collect();
        let mut text = String::new();
        for line in self.rules.split_inclusive('\n') {
            let is_of = |name: &String| line.starts_with(&format!("{} = {{", toml_key(name)));
            match media.iter().find(|(name, _)| is_of(name)) {
                Some((_, word)) => {
                    let line = line.replacen("as = \"bytes\"", word, 1);
                    text.push_str(&line.replacen("as = \"text\"", word, 1));
                }
                None => text.push_str(line),
            }
        }
        text
    }

    /// The first unusable samples, and why.
    pub(super) fn named_defects(&self) -> String {
        let named = self.defects.1.iter();
        let named: Vec<_> =
            named.map(|(path, reason)| format!("{}: {reason}", path.display())).collect();
        named.join("; ")
    }

    /// Warnings for the user, one sentence each.
    pub(super) fn warnings(&self) -> impl Iterator<Item = String> {
        let (count, _) = &self.defects;
        let defects = (*count > 0 && *count < self.samples).then(|| {
            format!(
                "{count} of the {} samples that were read cannot be used ({}); mend or remove them, or set \
                 errors.on_bad_sample = \"substitute\"",
                self.samples,
                self.named_defects()
            )
        });
        let misfits = self.arrays.iter().filter_map(|array| {
            let misfit = array.misfit.as_ref()?;
            Some(format!(
                "{} has the shape {:?} in the first sample and {misfit:?} in another: only the first dimension may differ; \
                 pad the arrays, or save them as rows of one shape",
                array.name, array.shape
            ))
        });
        let guessed = self.arrays.iter().filter(|array| !self.is_all && array.is_measured());
        let guesses = guessed.map(|array| {
            format!(
                "output.{0}.max_bytes is a guess: the {1} samples that were read, of {2}, have rows of up to {3} bytes, and it \
                 is twice that; a longer row is a bad sample whose message has the length that is needed",
                array.name, self.samples, self.all, array.max_bytes
            )
        });
        defects.into_iter().chain(misfits.chain(guesses).collect::<Vec<_>>())
    }
}

impl Draft {
    /// Copies arrays without changes, through one stage without operations. A field whose samples differ in length is
    /// ragged.
    pub(super) fn of_arrays(stage: &str, seen: &Seen) -> Self {
        let mut tables = format!(
            "[[stage]]\nname = \"{stage}\"\noperations = []      # operations are for images; arrays come as they are\n"
        );
        let mut lines = String::new();
        for array in &seen.arrays {
            let key = toml_key(&array.name);
            let (fewest, most) = array.rows;
            let bytes = size(if seen.is_all { array.max_bytes } else { 2 * array.max_bytes });
            let origin = match seen.is_all {
                true => "; a longer one is a bad sample".to_owned(),
                false => format!(
                    " of {} samples of {}, and max_bytes is a guess; a longer one is a bad sample",
                    seen.samples, seen.all
                ),
            };
            // Writing to a String cannot fail.
            let _ = if array.is_sound {
                writeln!(
                    lines,
                    "{key} = {{ ragged = true, max_bytes = \"{bytes}\" }}  # floats: {fewest} to {most} frames{origin}"
                )
            } else if array.is_ragged() && array.known.is_some() {
                writeln!(
                    lines,
                    "{key} = {{ ragged = true }}  # rows differ in length; max_bytes = \"…\" sets the longest, left out: the \
                     dataset's"
                )
            } else if array.is_ragged() {
                writeln!(
                    lines,
                    "{key} = {{ ragged = true, max_bytes = \"{bytes}\" }}  # {fewest} to {most} rows{origin}"
                )
            } else if array.dtype == DType::F64 {
                writeln!(lines, "# {key} = {{ dtype = \"float32\" }}  # float64 in the files")
            } else {
                Ok(())
            };
        }
        if !lines.is_empty() {
            let _ = write!(
                tables,
                "\n[output]             # fields that are not named keep their dtype\n{lines}"
            );
        }
        Self { tables, ..Self::default() }
    }
}

impl Draft {
    /// Members of a container: a single image is decoded and cropped, several are decoded and resized, other members
    /// are not changed. `is_manifest`: whether the format makes numbers of class names, and reads the files of paths.
    pub(super) fn of_members(seen: &Seen, is_manifest: bool) -> Self {
        let mut images = seen.fields.iter().filter(|field| field.kind == FieldKind::EncodedImage);
        let rules = &seen.settle_classes(&seen.rules_with_media(is_manifest), is_manifest);
        let (first, second) = (images.next(), images.next());
        let has_sounds = seen.arrays.iter().any(|array| array.is_sound);
        let arrays = Self::of_arrays("unpack", seen);
        let output = arrays
            .tables
            .split_once("\n[output]")
            .map_or(String::new(), |(_, rest)| format!("\n[output]{rest}"));
        let has_videos = seen.videos(is_manifest).next().is_some();
        if first.is_some() && second.is_none() && !has_sounds && !has_videos {
            let head = "preset = \"imagenet-train\"  # decode, random-resized-crop 224, flip; for validation: \"imagenet-eval\"\n";
            let epochs = Epochs::Many;
            return Self {
                head: head.to_owned(),
                tables: format!("{rules}{output}"),
                epochs,
                ..Self::default()
            };
        }
        let mut operations = String::new();
        let images = seen.fields.iter().filter(|field| field.kind == FieldKind::EncodedImage);
        let images = images.map(|field| ("decode-image", field));
        for (decode, field) in
            images.chain(seen.videos(is_manifest).map(|field| ("decode-video", field)))
        {
            for operation in [format!("{decode}\""), "resize\", size = [224, 224]".to_owned()] {
                // Writing to a String cannot fail.
                let _ = writeln!(
                    operations,
                    "    {{ op = \"{operation}, field = \"{}\" }},",
                    field.name
                );
            }
        }
        let operations =
            if operations.is_empty() { "[]".to_owned() } else { format!("[\n{operations}]") };
        let tables =
            format!("{rules}\n[[stage]]\nname = \"unpack\"\noperations = {operations}\n{output}");
        let has_images = seen.fields.iter().any(|field| field.kind == FieldKind::EncodedImage);
        let epochs = if has_images || has_videos { Epochs::Many } else { Epochs::Few };
        Self { tables, epochs, ..Self::default() }
    }
}

/// The next power of two of the bytes (at least 64), with its unit.
fn size(bytes: u64) -> String {
    match bytes.max(64).next_power_of_two() {
        bytes if bytes >= 1 << 20 => format!("{}MiB", bytes >> 20),
        bytes if bytes >= 1 << 10 => format!("{}KiB", bytes >> 10),
        bytes => format!("{bytes}B"),
    }
}

#[cfg(test)]
mod tests;
