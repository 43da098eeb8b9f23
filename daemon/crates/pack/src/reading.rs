//! Reads the samples of the source: what a writer gets of each, and its digest.

use std::ops::Range;

use forebay_dataset::mask::is_mask;
use forebay_dataset::{Dataset, Field, FieldKind, FieldValue, SoundForm};
use forebay_formats::in_order::Give;
use forebay_formats::sample_reader::SampleReader;
use forebay_index::index_file::contents_digest;
use forebay_protocol::ids::SampleId;
use forebay_protocol::tensor::DType;
use forebay_storage::location::Location;
use forebay_storage::version::FileStatus;
use forebay_storage::{Storage, StorageError};

use crate::Request;
use crate::error::PackError;
use crate::names::{self, Names};
use crate::pictures::Recoder;
use crate::sample::{Sample, Samples, Value};

/// The bytes of samples from which on they are given to the writer.
const PIECE_BYTES: usize = 1 << 20;

/// The source, and what becomes of its samples.
#[derive(Debug)]
pub(crate) struct Reading<'a> {
    pub(crate) request: &'a Request<'a>,
    storage: &'a dyn Storage,
    /// The place of the field that is re-encoded.
    recoded: Option<usize>,
}

impl<'a> Reading<'a> {
    /// # Errors
    /// The options name no field of pictures, or several are there, or a field is in pixels of the stored pictures.
    pub(crate) fn new(
        request: &'a Request<'a>,
        storage: &'a dyn Storage,
    ) -> Result<Self, PackError> {
        let fields = request.source.dataset.fields();
        let is_picture = |place: &usize| fields[*place].kind == FieldKind::EncodedImage;
        let pictures: Vec<_> = (0..fields.len()).filter(is_picture).collect();
        let names = || {
            let names = pictures.iter().map(|place| format!("`{}`", fields[*place].name));
            names.collect::<Vec<_>>().join(", ")
        };
        let refuse = |message: String| Err(PackError::Refused(message));
        let recoded = match (request.recoding.changes(), request.picture, &pictures[..]) {
            (false, None, _) => None,
            (false, Some(_), _) => {
                return refuse(
                    "--picture names what is re-encoded; give --resize-shorter or --jpeg-quality, too".to_owned(),
                );
            }
            (true, _, []) => {
                return refuse(
                    "--resize-shorter and --jpeg-quality are for pictures, and the dataset has no field of single pictures"
                        .to_owned(),
                );
            }
            (true, Some(name), _) => match pictures.iter().find(|it| fields[**it].name == name) {
                Some(place) => Some(*place),
                None => {
                    return refuse(format!(
                        "--picture {name} is no field of pictures; those are {}",
                        names()
                    ));
                }
            },
            (true, None, [place]) => Some(*place),
            (true, None, _) => {
                return refuse(format!(
                    "the dataset has several fields of pictures ({}), and masks are ruined by JPEG; name the one to re-encode with --picture",
                    names()
                ));
            }
        };
        if let Some(recoded) = recoded {
            let resizes = request.recoding.shorter.is_some();
            let mut others = fields.iter().enumerate().filter(|(place, _)| *place != recoded);
            if let Some(reason) = others.find_map(|(_, field)| misfit(field, resizes)) {
                let options = if resizes { "--resize-shorter" } else { "--jpeg-quality" };
                return refuse(format!(
                    "{options} changes the pictures of `{}`, and {reason}; pack without it and resize in a stage, or leave the field \
                     out in dataset.fields, where the format has that table",
                    fields[recoded].name
                ));
            }
        }
        Ok(Self { request, storage, recoded })
    }

    fn dataset(&self) -> &'a dyn Dataset {
        self.request.source.dataset.as_ref()
    }

    /// The name of the field that is re-encoded.
    pub(crate) fn picture(&self) -> Option<&'a str> {
        Some(self.dataset().fields().get(self.recoded?)?.name.as_str())
    }

    /// The digest of the index, which has the files' sizes and times where the format keeps them.
    pub(crate) fn index_digest(&self) -> [u8; 32] {
        self.dataset().index().map_or([0; 32], |index| contents_digest(index))
    }

    /// For each field, what the first sample's sound is decoded to.
    pub(crate) fn sounds(&self) -> Result<Vec<Option<SoundForm>>, PackError> {
        let fields = self.dataset().fields();
        if !fields.iter().any(|field| matches!(field.kind, FieldKind::Sound { .. })) {
            return Ok(vec![None; fields.len()]);
        }
        let form = |value: &FieldValue<'_>| match value {
            FieldValue::Sound(sound) => Some(sound.form),
            _ => None,
        };
        let first = self.dataset().kept_at(0);
        let forms = self.reader().read(first, |values| Ok(values.iter().map(form).collect()));
        forms?.map_err(|reason| self.bad(first, reason))
    }

    fn reader(&self) -> SampleReader<'a> {
        let limit = self.request.config.dataset.limits.sample_bytes;
        SampleReader::new(self.dataset(), self.storage, limit)
    }

    /// One thread's reader.
    pub(crate) fn thread(&self) -> Thread<'_, 'a> {
        Thread { reading: self, reader: self.reader(), recoder: Recoder::default() }
    }

    /// Whether names are a column of the result. A source may have such a column already, which is then copied.
    pub(crate) fn has_names(&self) -> bool {
        let mut fields = self.dataset().fields().iter();
        self.request.names == Names::Keep
            && !self.request.layout.0.needs_keys()
            && fields.all(|field| field.name != names::KEY)
    }

    /// The key of the sample with this number among those that are used, in the result.
    fn key(&self, number: u64) -> String {
        let name = |number| {
            let mut name = Vec::new();
            self.dataset().append_name(self.dataset().kept_at(number), &mut name);
            name
        };
        match (self.request.layout.0.needs_keys(), self.request.names) {
            (true, Names::Keep) => {
                let before = number.checked_sub(1).map(name);
                names::key(number, &name(number), before.as_deref())
            }
            (true, Names::Drop) => names::number(number),
            (false, _) if self.has_names() => names::text(&name(number)),
            (false, _) => String::new(),
        }
    }

    /// The states of a sample's files, if they are local and the index has none: that of a folder has no sizes, and a file
    /// that is written to meanwhile would be packed as it was at no time.
    fn states(&self, id: SampleId) -> Result<Vec<FileStatus>, StorageError> {
        if self.storage.remote_root().is_some() {
            return Ok(Vec::new());
        }
        let dataset = self.dataset();
        let mut locations = Vec::new();
        dataset.locate(id, &mut locations);
        let is_unknown =
            |place: &&Location| place.range.length.is_none() && dataset.stamp(place.file).is_none();
        let unknown = locations.iter().filter(is_unknown);
        unknown.map(|place| self.storage.status(dataset, place.file)).collect()
    }

    pub(crate) fn bad(&self, id: SampleId, reason: String) -> PackError {
        PackError::BadSample { path: self.dataset().full_name(self.storage, id), reason }
    }
}

/// Why a field no longer fits pictures of another size, or ones that were turned upright.
fn misfit(field: &Field, resizes: bool) -> Option<String> {
    let name = &field.name;
    // A shape of the source's rows, or of a whole array where the format does not say that it is ragged.
    let is_of_points = |kind: &FieldKind, shape: &[u64]| match kind {
        FieldKind::Array { .. } => matches!(shape, [_, 4] | [_, _, 3]),
        _ => matches!(shape, [4] | [_, 3]),
    };
    match &field.kind {
        FieldKind::RaggedArray { dtype: DType::F32, row_shape: row }
        | FieldKind::Array { dtype: DType::F32, shape: row }
            if is_of_points(&field.kind, row) =>
        {
            Some(format!("`{name}` may be boxes or keypoints in their pixels"))
        }
        _ if name == "orig_size" => Some(format!("`{name}` is their size")),
        FieldKind::EncodedImage | FieldKind::EncodedImages if resizes => {
            Some(format!("`{name}` has pictures, such as masks, that would keep their size"))
        }
        _ => None,
    }
}

/// See [`Reading::thread`].
pub(crate) struct Thread<'r, 'a> {
    reading: &'r Reading<'a>,
    reader: SampleReader<'a>,
    recoder: Recoder,
}

impl Thread<'_, '_> {
    /// Reads the sample with this number among those that are used.
    pub(crate) fn sample(&mut self, number: u64) -> Result<Sample, PackError> {
        let Self { reading, reader, recoder } = self;
        let id = reading.dataset().kept_at(number);
        let request = reading.request;
        let most_pixels = request.config.dataset.limits.pixels;
        let fields = reading.dataset().fields();
        let mut coded = None;
        let before = reading.states(id)?;
        let values = reader.read(id, |values| {
            let mut taken = Vec::with_capacity(values.len());
            for (place, value) in values.iter().enumerate() {
                taken.push(match value {
                    FieldValue::EncodedImage(file) if is_mask(file) => {
                        coded = fields.get(place);
                        return Ok(Vec::new());
                    }
                    FieldValue::EncodedImage(file) if reading.recoded == Some(place) => {
                        Value::File(recoder.recode(file, request.recoding, most_pixels)?)
                    }
                    value => Value::of(value)?,
                });
            }
            Ok(taken)
        });
        let values = values?;
        if reading.states(id)? != before {
            let path = reading.dataset().full_name(reading.storage, id);
            return Err(PackError::Changed { path });
        }
        let values = values.map_err(|reason| reading.bad(id, reason))?;
        if let Some(field) = coded {
            return Err(PackError::Refused(format!(
                "the field `{}` has masks of outlines, which only Forebay's formats of labels store; leave dataset.masks out, \
                 or the field in dataset.fields, where the format has that table",
                field.name
            )));
        }
        Ok(Sample { key: reading.key(number), values })
    }

    /// Reads some samples, and gives them in their order.
    pub(crate) fn run(
        &mut self,
        samples: Range<u64>,
        give: Give<'_, Samples>,
    ) -> Result<(), PackError> {
        let (mut made, mut bytes) = (Samples::default(), 0);
        for number in samples {
            let sample = self.sample(number)?;
            let digest = sample.digest();
            bytes += sample.bytes();
            made.0.push((sample, digest));
            if bytes >= PIECE_BYTES {
                bytes = 0;
                if give(std::mem::take(&mut made)).is_break() {
                    return Ok(());
                }
            }
        }
        // The pass ends in any case.
        let _ = give(made);
        Ok(())
    }
}
