//! Fields that are video files within samples: members of archives, values of tables, files that a manifest names.
//!
//! A format reads such a field as bytes. This layer makes clips of them. Which frames they are is a function of the
//! file's table of packets and of the sample's draw, as in folders of videos; but a file is read whole, and its table is
//! read from the bytes each time.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use forebay_protocol::ids::SampleId;
use forebay_protocol::tensor::DType;
use forebay_storage::location::{FileId, FileTable, SampleBytes};
use forebay_storage::version::ObjectStamp;
use forebay_video::choose::{Sampling, Start};
use forebay_video::clip::Clip;
use forebay_video::{Failure, Refused};

use crate::layer::Layer;
use crate::{ArrayValue, Dataset, Defect, Description, Field, FieldKind, FieldValue};

/// How clips are made of a field of bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct VideoField {
    /// The name of the field.
    pub name: String,
    /// Which frames of a video are taken.
    pub sampling: Sampling,
    /// The name of the field with the time at which clips begin, in seconds after the first frame.
    pub start_field: Option<String>,
    /// The name of a further field: when each frame is shown.
    pub times: Option<String>,
}

/// A dataset with fields of bytes, of which some are videos.
#[derive(Debug)]
pub struct WithVideos {
    inner: Arc<dyn Dataset>,
    /// The fields of the inner dataset, then the times of videos.
    fields: Vec<Field>,
    videos: Vec<PlacedVideo>,
    fingerprint: [u8; 32],
}

/// A video and the places of its fields.
#[derive(Debug)]
struct PlacedVideo {
    video: VideoField,
    place: usize,
    start_place: Option<usize>,
}

impl WithVideos {
    /// Makes fields of bytes videos.
    ///
    /// # Errors
    /// A field does not exist, is of another kind, or has a name twice: the video's name, the key and the reason.
    pub fn new(
        inner: Arc<dyn Dataset>,
        videos: Vec<VideoField>,
    ) -> Result<Self, (String, &'static str, String)> {
        let mut fields = inner.fields().to_vec();
        let mut placed: Vec<PlacedVideo> = Vec::with_capacity(videos.len());
        let mut hasher = blake3::Hasher::new_derive_key("forebay dataset with videos in fields");
        hasher.update(&inner.fingerprint());
        for video in videos {
            for name in [Some(&video.name), video.start_field.as_ref(), video.times.as_ref()] {
                let name = name.map_or("", String::as_str);
                hasher.update(&(name.len() as u64).to_le_bytes());
                hasher.update(name.as_bytes());
            }
            hasher.update(&video.sampling.identity());
            let found = PlacedVideo::find(&video, &fields);
            let (place, start_place) =
                found.map_err(|(key, why)| (video.name.clone(), key, why))?;
            let (video_kind, times_kind) = video_kinds(&video.sampling);
            fields[place].kind = video_kind;
            if let Some(name) = video.times.clone() {
                fields.push(Field { name, kind: times_kind });
            }
            placed.push(PlacedVideo { video, place, start_place });
        }
        let fingerprint = *hasher.finalize().as_bytes();
        Ok(Self { inner, fields, videos: placed, fingerprint })
    }

    /// Replaces the bytes of videos by clips, and appends their times.
    fn make_clips<'a>(&self, draw: u64, values: &mut Vec<FieldValue<'a>>) -> Result<(), Defect> {
        let mut further = Vec::new();
        for placed in &self.videos {
            let VideoField { name, times, .. } = &placed.video;
            let in_field = |Defect(reason)| Defect(format!("`{name}`: {reason}"));
            let clip = placed.clip(draw, values).map_err(in_field)?;
            if times.is_some() {
                further.push(FieldValue::Array(times_of(&clip, &placed.video.sampling)));
            }
            values[placed.place] = FieldValue::Video(Box::new(clip));
        }
        values.append(&mut further);
        Ok(())
    }
}

impl PlacedVideo {
    /// The places of a video and of the field with its start.
    ///
    /// # Errors
    /// A key names no such field, or the name of another one: the key and the reason.
    fn find(
        video: &VideoField,
        fields: &[Field],
    ) -> Result<(usize, Option<usize>), (&'static str, String)> {
        let place_of = |name: &str| fields.iter().position(|field| field.name == name);
        let place = place_of(&video.name).filter(|place| fields[*place].kind == FieldKind::Bytes);
        let place = place.ok_or_else(|| ("from", "is no file".to_owned()))?;
        if let Some(times) = video.times.as_deref().filter(|times| place_of(times).is_some()) {
            let reason = format!("is {times:?}, the name of another field; choose another one");
            return Err(("times", reason));
        }
        let Some(name) = &video.start_field else { return Ok((place, None)) };
        match place_of(name) {
            Some(start) if is_number(&fields[start].kind) => Ok((place, Some(start))),
            Some(_) => {
                let reason = "which is not a number; give that field as = \"float\"";
                Err(("start_field", format!("is {name:?}, {reason}")))
            }
            None => {
                let add = format!("{name} = {{ from = …, as = \"float\" }}");
                let reason =
                    format!("is {name:?}, and no field has this name; add {add} to dataset.fields");
                Err(("start_field", reason))
            }
        }
    }

    fn clip<'a>(&self, draw: u64, values: &mut [FieldValue<'a>]) -> Result<Clip<'a>, Defect> {
        let mut sampling = self.video.sampling;
        if let Some(start) = self.start_place.and_then(|place| values.get(place)) {
            sampling.start = Start::Seconds(seconds(start)?);
        }
        let value = values.get_mut(self.place);
        let Some(FieldValue::Bytes(file)) = value else {
            return Err(Defect("it is no file".to_owned()));
        };
        clip_of(std::mem::take(file), &sampling, draw)
    }
}

/// Whether a sample has one number of the kind.
fn is_number(kind: &FieldKind) -> bool {
    match kind {
        FieldKind::Integer | FieldKind::Float => true,
        FieldKind::Array { dtype, shape } => shape.is_empty() && *dtype != DType::Bool,
        _ => false,
    }
}

/// The time at which a clip begins.
fn seconds(value: &FieldValue<'_>) -> Result<f64, Defect> {
    #[expect(clippy::cast_precision_loss, reason = "seconds of a video")]
    let seconds = match value {
        FieldValue::Integer(seconds) => Some(*seconds as f64),
        FieldValue::Float(seconds) => Some(*seconds),
        FieldValue::Array(array) => array.number(),
        _ => None,
    };
    let seconds = seconds.ok_or_else(|| Defect("its start is no number".to_owned()))?;
    if (0.0..1e9).contains(&seconds) {
        return Ok(seconds);
    }
    Err(Defect(format!("its start of {seconds} s is outside of a video")))
}

/// The clip of a video file.
fn clip_of<'a>(file: Cow<'a, [u8]>, sampling: &Sampling, draw: u64) -> Result<Clip<'a>, Defect> {
    let table = forebay_video::read(&*file).map_err(|failure| match failure {
        Failure::Refused(Refused(reason)) => Defect(reason),
        Failure::Read(never) => match never {},
    })?;
    let stream = table.into_video().map_err(|Refused(reason)| Defect(reason))?;
    let cut = stream.choose(sampling, draw).map_err(|Refused(reason)| Defect(reason))?;
    // Packets may overlap: the clip is no larger than the file, as its memory is planned.
    let lengths = cut.ranges.iter().map(|range| range.end.saturating_sub(range.start));
    let bytes = lengths.fold(0, u64::saturating_add);
    if bytes > file.len() as u64 {
        let all = file.len();
        return Err(Defect(format!(
            "its frames need {bytes} bytes of the {all} of the file: its packets overlap"
        )));
    }
    let data = data_of(file, &cut.ranges)
        .ok_or_else(|| Defect("its header names bytes that it does not have".to_owned()))?;
    stream.clip(&cut, data).map_err(|Refused(reason)| Defect(reason))
}

/// The bytes of ranges of a file, one after another; `None`: the file is shorter.
fn data_of<'a>(file: Cow<'a, [u8]>, ranges: &[Range<u64>]) -> Option<Cow<'a, [u8]>> {
    let place = |at: u64| usize::try_from(at).unwrap_or(usize::MAX);
    let places = ranges.iter().map(|range| place(range.start)..place(range.end));
    if let (Cow::Borrowed(file), [range]) = (&file, ranges) {
        return file.get(place(range.start)..place(range.end)).map(Cow::Borrowed);
    }
    let parts = places.map(|range| file.get(range)).collect::<Option<Vec<_>>>()?;
    Some(Cow::Owned(parts.concat()))
}

/// The kinds of a field of clips, and of one with their times.
pub fn video_kinds(sampling: &Sampling) -> (FieldKind, FieldKind) {
    let clips = (sampling.clips > 1).then_some(u64::from(sampling.clips));
    let video = FieldKind::Video { clips, frames: Some(u64::from(sampling.frames)) };
    (video, FieldKind::Array { dtype: DType::F64, shape: sampling.shape() })
}

/// When each frame is shown, in seconds.
pub fn times_of(clip: &Clip<'_>, sampling: &Sampling) -> ArrayValue<'static> {
    let seconds = clip.wanted.iter().map(|time| clip.time_base.seconds(*time));
    let bytes: Vec<u8> = seconds.flat_map(f64::to_le_bytes).collect();
    ArrayValue::new(DType::F64, sampling.shape(), bytes)
}

impl FileTable for WithVideos {
    fn append_path(&self, file: FileId, path: &mut Vec<u8>) {
        self.inner.append_path(file, path);
    }

    fn stamp(&self, file: FileId) -> Option<ObjectStamp> {
        self.inner.stamp(file)
    }
}

impl Layer for WithVideos {
    type Inner = dyn Dataset;

    fn inner(&self) -> &Self::Inner {
        self.inner.as_ref()
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// The bytes of a clip, which may be copied out of a file.
    fn unpacked_bytes(&self, bytes: SampleBytes<'_>) -> u64 {
        self.inner.unpacked_bytes(bytes).saturating_add(bytes.length_bytes())
    }

    fn read<'a>(
        &'a self,
        id: SampleId,
        bytes: SampleBytes<'a>,
        values: &mut Vec<FieldValue<'a>>,
    ) -> Result<(), Defect> {
        Layer::read_drawn(self, id, 0, bytes, values)
    }

    fn read_drawn<'a>(
        &'a self,
        id: SampleId,
        draw: u64,
        bytes: SampleBytes<'a>,
        values: &mut Vec<FieldValue<'a>>,
    ) -> Result<(), Defect> {
        let mut own = Vec::with_capacity(self.fields.len());
        self.inner.read_drawn(id, draw, bytes, &mut own)?;
        self.make_clips(draw, &mut own)?;
        values.append(&mut own);
        Ok(())
    }

    fn fingerprint(&self) -> [u8; 32] {
        self.fingerprint
    }

    fn description(&self) -> Description {
        let mut description = self.inner.description();
        for PlacedVideo { video: VideoField { name, sampling, start_field, .. }, .. } in
            &self.videos
        {
            let clips = sampling.words(start_field.as_deref());
            let text = format!("{clips} of each `{name}`, whose files are read whole");
            description.notes.push(("videos", text));
        }
        description
    }
}
