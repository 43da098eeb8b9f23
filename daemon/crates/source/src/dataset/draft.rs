//! What a format writes into a first configuration, and the look at a few samples that tells it what to write.
//!
//! A format's own part is one function, `draft`, beside its line in `registry`; those of arrays share
//! [`Draft::of_arrays`].

use std::fmt::Write as _;
use std::path::PathBuf;

use forebay_config::{DatasetConfig, toml_key};
use forebay_protocol::ids::SampleId;
use forebay_protocol::tensor::DType;

use super::opening::read_sample;
use super::{Dataset, Field, FieldKind, FieldValue, Sound, SoundForm, SoundHeader};
use crate::location::SampleBytes;
use crate::storage::Storage;

/// Samples that are read, unless they are large.
const MAX_READ: u64 = 64;
/// Bytes after which no further sample is read.
const MAX_READ_BYTES: u64 = 256 << 20;
/// Defective samples that are remembered.
const MAX_DEFECTS: usize = 3;

/// A format's part of a configuration: TOML with comments, in whole lines.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Draft {
    /// What stands before the first table.
    pub head: String,
    /// The tables behind those that every configuration has.
    pub tables: String,
}

/// What a few samples of a dataset are.
#[derive(Debug)]
pub(super) struct Seen {
    /// How many were read.
    pub(super) samples: u64,
    /// Whether these are all that there are.
    pub(super) is_all: bool,
    /// Those of arrays, in order, and of sounds.
    pub(super) arrays: Vec<SeenArray>,
    /// All of them.
    pub(super) fields: Vec<Field>,
    /// What they are made of, as `[dataset.fields]` says it; empty where that table is not the format's.
    pub(super) rules: String,
    /// Of samples that cannot be used: how many, and the first ones' files and reasons.
    pub(super) defects: (u64, Vec<(PathBuf, String)>),
}

/// One field of arrays over the samples that were read.
#[derive(Debug)]
pub(super) struct SeenArray {
    name: String,
    /// Whether it is decoded to an array: it is ragged whatever was seen.
    is_sound: bool,
    dtype: DType,
    /// The first sample's shape.
    shape: Vec<u64>,
    /// The fewest and the most elements of the first dimension.
    rows: (u64, u64),
    /// A shape that differs from the first one's in more than the first dimension.
    misfit: Option<Vec<u64>>,
    /// The most bytes of a sample's.
    max_bytes: u64,
}

impl SeenArray {
    /// Of bytes it is not known yet whether they are sounds.
    fn of(field: &Field) -> Option<Self> {
        let is_sound = !matches!(field.kind, FieldKind::Array { .. });
        let (dtype, shape) = match &field.kind {
            FieldKind::Array { dtype, shape } => (*dtype, shape.clone()),
            FieldKind::Sound { row_shape } => (DType::F32, [&[0], &row_shape[..]].concat()),
            FieldKind::Bytes => (DType::F32, vec![0]),
            _ => return None,
        };
        let rows = shape.first().map_or((0, 0), |rows| (*rows, *rows));
        let rows = if is_sound { (u64::MAX, 0) } else { rows };
        let name = field.name.clone();
        Some(Self { name, is_sound, dtype, shape, rows, misfit: None, max_bytes: 0 })
    }

    /// Adds a sound by its header; false: it is none.
    fn add_sound(&mut self, sound: &Sound<'_>) -> bool {
        let Ok(header) = SoundHeader::read(sound.file) else { return false };
        // A FLAC file need not say how many there are: then as many as in a file that saves half of the bytes.
        let unsaid = || sound.file.len() as u64 / u64::from(header.channels.max(1));
        let frames = header.frames.unwrap_or_else(unsaid);
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
    /// Reads samples that lie evenly over the dataset. A sample that cannot be read or used is a warning, never an error.
    pub(super) fn read(
        dataset: &dyn Dataset,
        storage: &dyn Storage,
        config: &DatasetConfig,
    ) -> Self {
        let all = dataset.sample_count();
        let arrays = dataset.fields().iter().filter_map(SeenArray::of).collect();
        let mut seen = Self {
            samples: 0,
            is_all: false,
            arrays,
            fields: dataset.fields().to_vec(),
            rules: dataset.field_rules(),
            defects: (0, Vec::new()),
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
                seen.defects.0 += 1;
                if seen.defects.1.len() < MAX_DEFECTS {
                    let mut name = Vec::new();
                    dataset.append_name(id, &mut name);
                    seen.defects.1.push((storage.full_path(&name), reason));
                }
            }
            read_bytes += bytes.len() as u64;
            if read_bytes >= MAX_READ_BYTES {
                break;
            }
        }
        seen.is_all = seen.samples == all;
        seen.arrays.retain(|array| array.rows.0 <= array.rows.1);
        seen
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
        Ok(())
    }

    /// The rules, where fields of bytes that were sounds are read as such.
    fn rules_with_sounds(&self) -> String {
        let mut text = String::new();
        for line in self.rules.split_inclusive('\n') {
            let is_sound = |array: &&SeenArray| {
                array.is_sound && line.starts_with(&format!("{} = {{", toml_key(&array.name)))
            };
            match self.arrays.iter().find(is_sound) {
                Some(_) => text.push_str(&line.replacen("as = \"bytes\"", "as = \"audio\"", 1)),
                None => text.push_str(line),
            }
        }
        text
    }

    /// What the user should know, a sentence each.
    pub(super) fn warnings(&self) -> impl Iterator<Item = String> {
        let (count, named) = &self.defects;
        let named: Vec<_> =
            named.iter().map(|(path, reason)| format!("{}: {reason}", path.display())).collect();
        let defects = (*count > 0).then(|| {
            format!(
                "{count} of the {} samples that were read cannot be used ({}); mend or remove them, or set \
                 errors.on_bad_sample = \"substitute\"",
                self.samples,
                named.join("; ")
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
        defects.into_iter().chain(misfits.collect::<Vec<_>>())
    }
}

impl Draft {
    /// Arrays as they are, through one stage without operations. A field whose samples differ in length is ragged.
    pub(super) fn of_arrays(stage: &str, seen: &Seen) -> Self {
        let mut tables = format!(
            "[[stage]]\nname = \"{stage}\"\noperations = []      # operations are for images; arrays come as they are\n"
        );
        let mut lines = String::new();
        for array in &seen.arrays {
            let key = toml_key(&array.name);
            let (fewest, most) = array.rows;
            // Writing to a String cannot fail.
            let _ = if array.is_sound {
                let bytes = size(if seen.is_all { array.max_bytes } else { 2 * array.max_bytes });
                writeln!(
                    lines,
                    "{key} = {{ ragged = true, max_bytes = \"{bytes}\" }}  # floats: {fewest} to {most} frames were seen; \
                     a longer one is a bad sample"
                )
            } else if fewest != most {
                let bytes = size(if seen.is_all { array.max_bytes } else { 2 * array.max_bytes });
                let samples =
                    if seen.is_all { "all samples" } else { "the samples that were read" };
                writeln!(
                    lines,
                    "{key} = {{ ragged = true, max_bytes = \"{bytes}\" }}  # {fewest} to {most} rows in {samples}; a longer \
                     one is a bad sample"
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
        Self { head: String::new(), tables }
    }
}

impl Draft {
    /// Members of a container: one image is decoded and cropped, several are left to the user, the rest stays as it is.
    pub(super) fn of_members(seen: &Seen) -> Self {
        let mut images = seen.fields.iter().filter(|field| field.kind == FieldKind::EncodedImage);
        let rules = &seen.rules_with_sounds();
        let (first, second) = (images.next(), images.next());
        let has_sounds = seen.arrays.iter().any(|array| array.is_sound);
        if first.is_some() && second.is_none() && !has_sounds {
            let head = "preset = \"imagenet-train\"  # decode, random-resized-crop 224, flip; for validation: \"imagenet-eval\"\n";
            return Self { head: head.to_owned(), tables: rules.clone() };
        }
        let mut operations = String::new();
        for image in seen.fields.iter().filter(|field| field.kind == FieldKind::EncodedImage) {
            for operation in ["decode-image\"", "resize\", size = [224, 224]"] {
                // Writing to a String cannot fail.
                let _ = writeln!(
                    operations,
                    "    {{ op = \"{operation}, field = \"{}\" }},",
                    image.name
                );
            }
        }
        let operations =
            if operations.is_empty() { "[]".to_owned() } else { format!("[\n{operations}]") };
        let arrays = Self::of_arrays("unpack", seen);
        let output = arrays
            .tables
            .split_once("\n[output]")
            .map_or(String::new(), |(_, rest)| format!("\n[output]{rest}"));
        let tables =
            format!("{rules}\n[[stage]]\nname = \"unpack\"\noperations = {operations}\n{output}");
        Self { head: String::new(), tables }
    }
}

/// At least so many bytes, as a power of two with its unit.
fn size(bytes: u64) -> String {
    match bytes.max(64).next_power_of_two() {
        bytes if bytes >= 1 << 20 => format!("{}MiB", bytes >> 20),
        bytes if bytes >= 1 << 10 => format!("{}KiB", bytes >> 10),
        bytes => format!("{bytes}B"),
    }
}
