//! Videos in a plan: the helper processes that decode them (and AAC), and operations on each of their pictures.
//!
//! A decoded video is a list of images. An operation on images runs on each of them with a copy of the same draws, so that
//! a flip or a crop is that of all pictures. It works on the video alone: what changes several fields together is refused
//! when the plan is compiled.

mod decoding;
mod served;

use std::borrow::Cow;
use std::fmt::{self, Debug};
use std::sync::Arc;
use std::time::Duration;

use forebay_config::{Config, CpuPolicy, Limits};
use forebay_dataset::{Defect, FieldKind};
use forebay_decoders::{MAX_VIDEO_PIXELS, most_working_bytes};
use forebay_media::size::Size;
use forebay_order::Draws;
use forebay_video::clip::Clip;
use forebay_workers::{ForeignPool, ForeignSpec, MAX_KEPT_BYTES, WorkerClass};

use crate::contract::{FieldPlan, FieldType, FieldTypes, Operation, Sample};
use crate::field::FieldInProgress;
use crate::image::{ImageFormat, ImageTools, PendingImage};

pub(crate) use decoding::{Decoding, KIND_SOUND};
pub use served::{host_decoders, serve_decoders};

/// The most time for which a decoder may run for one sample.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Operations that work on single images, of which they make one image of the same field.
const ON_EACH_PICTURE: [&str; 26] = [
    "resize",
    "center-crop",
    "random-crop",
    "random-resized-crop",
    "random-horizontal-flip",
    "random-vertical-flip",
    "pad",
    "rotate",
    "affine",
    "perspective",
    "color-jitter",
    "grayscale",
    "random-grayscale",
    "gaussian-blur",
    "adjust-sharpness",
    "invert",
    "posterize",
    "solarize",
    "equalize",
    "autocontrast",
    "random-erasing",
    "rand-augment",
    "trivial-augment-wide",
    "auto-augment",
    "aug-mix",
    "normalize",
];

/// How a work thread learns that it must end.
#[derive(Clone, Default)]
pub(crate) struct Ending(Option<Arc<dyn Fn() -> bool + Send + Sync>>);

impl Ending {
    pub(crate) fn new(is_ending: Arc<dyn Fn() -> bool + Send + Sync>) -> Self {
        Self(Some(is_ending))
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.0.as_ref().is_some_and(|is_ending| is_ending())
    }
}

impl Debug for Ending {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Ending")
    }
}

/// The helper processes of a plan, for its memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HelperPlan {
    /// The most processes.
    pub helpers: u32,
    /// The most private memory of each, in bytes.
    pub memory_bytes: u64,
    /// The most pixels of a picture.
    pub most_pixels: u64,
    /// The library and its decoders, as `libavcodec 61.3.100 (h264, hevc, …)`.
    pub decoders: String,
}

impl HelperPlan {
    /// The memory of all processes together, in bytes: private, and what each keeps of the memory that it shares with the
    /// daemon. What a large sample takes of the latter counts as that sample's own.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.memory_bytes.saturating_add(MAX_KEPT_BYTES).saturating_mul(self.helpers.into())
    }
}

/// The helpers that a plan will have, started when the first operation needs them.
#[derive(Debug)]
pub(crate) struct PlannedDecoders {
    spec: ForeignSpec,
    most_pixels: u64,
    pool: Option<Arc<ForeignPool>>,
    /// What the helpers say of themselves, if videos are decoded.
    introduction: Option<String>,
    /// What decides their samples, if there may be AAC.
    sounds: Option<String>,
}

/// The helpers of a plan, if any were started.
#[derive(Debug, Clone, Default)]
pub(crate) struct StartedDecoders {
    pub(crate) pool: Option<Arc<ForeignPool>>,
    /// Their memory, if they decode videos; for sounds it is that of each sample.
    pub(crate) plan: Option<HelperPlan>,
    /// What decides the samples of AAC, if there may be some.
    pub(crate) sounds: Option<String>,
}

impl PlannedDecoders {
    /// For a stream whose stages have at most so many threads each, unless the configuration says how many.
    pub(crate) fn new(config: &Config, threads: u32) -> Self {
        let configured = config.stages.iter().map(|stage| match stage.threads() {
            forebay_config::Concurrency::Auto => threads,
            forebay_config::Concurrency::Threads(threads) => threads.get(),
        });
        let nice = config.cpu.nice;
        let spec = ForeignSpec {
            place: "decoders".to_owned(),
            helpers: configured.max().unwrap_or(threads).max(1),
            timeout: TIMEOUT,
            memory_bytes: most_working_bytes(most_pixels(&config.dataset.limits))
                .saturating_add(config.dataset.limits.sample_bytes.saturating_mul(2)),
            class: match config.cpu.policy {
                CpuPolicy::Idle => WorkerClass::Idle,
                CpuPolicy::Batch => WorkerClass::Batch(nice),
                CpuPolicy::Normal => WorkerClass::Normal(nice),
            },
            withheld: &["HF_TOKEN"],
        };
        let most_pixels = most_pixels(&config.dataset.limits);
        Self { spec, most_pixels, pool: None, introduction: None, sounds: None }
    }

    /// Starts the spawner of the helpers; none of them is started.
    ///
    /// # Errors
    /// It cannot be started.
    fn start(&mut self) -> Result<Arc<ForeignPool>, String> {
        if let Some(pool) = &self.pool {
            return Ok(Arc::clone(pool));
        }
        let pool = ForeignPool::start(self.spec.clone()).map_err(|error| {
            format!("the process that starts decoders cannot be started: {error}")
        })?;
        let pool = Arc::new(pool);
        self.pool = Some(Arc::clone(&pool));
        Ok(pool)
    }

    /// The helpers, one of which has been started and can decode videos.
    ///
    /// # Errors
    /// It cannot be started, or this host has no decoder.
    pub(crate) fn of_videos(&mut self) -> Result<Arc<ForeignPool>, String> {
        let pool = self.start()?;
        if self.introduction.is_none() {
            self.introduction = Some(served::decoders_of(&pool.introduction()?)?);
        }
        Ok(pool)
    }

    /// Starts the spawner, and asks a helper what it decodes sounds with. A host that decodes none is not refused: the
    /// sounds may be of another coding.
    ///
    /// # Errors
    /// It cannot be started.
    pub(crate) fn start_for_sounds(&mut self) -> Result<(), String> {
        let pool = self.start()?;
        if self.sounds.is_none() {
            self.sounds = Some(served::sounds_of(&pool.introduction()?));
        }
        Ok(())
    }

    pub(crate) fn started(&self) -> StartedDecoders {
        let of_videos = self.introduction.clone().map(|decoders| HelperPlan {
            helpers: self.spec.helpers,
            memory_bytes: self.spec.memory_bytes,
            most_pixels: self.most_pixels,
            decoders,
        });
        StartedDecoders { pool: self.pool.clone(), plan: of_videos, sounds: self.sounds.clone() }
    }
}

/// The name of a field that is a video, if there is one.
pub(crate) fn any_of(fields: &FieldTypes) -> Option<&str> {
    let is_video = |(number, field): &(usize, &FieldPlan)| {
        fields.is_video(*number) || matches!(field.kind, FieldType::Raw(FieldKind::Video { .. }))
    };
    fields.present().find(is_video).map(|(_, field)| field.name.as_str())
}

/// The most pixels of a picture of a video.
pub(crate) fn most_pixels(limits: &Limits) -> u64 {
    limits.pixels.min(MAX_VIDEO_PIXELS)
}

/// Refuses a video whose file announces larger pictures, before any packet is decoded.
pub(crate) fn check_size(clip: &Clip<'_>, most_pixels: u64) -> Result<(), Defect> {
    let pixels = u64::from(clip.width) * u64::from(clip.height);
    if pixels > most_pixels {
        return Err(Defect(format!(
            "its pictures have {}×{} pixels, more than {most_pixels}; raise limits.pixels (at most {MAX_VIDEO_PIXELS} for a video)",
            clip.width, clip.height
        )));
    }
    Ok(())
}

/// The bytes of the planes of one picture, at most.
pub(crate) fn frame_bytes(clip: &Clip<'_>) -> u64 {
    forebay_decoders::frame_bytes(clip.width, clip.height, clip.color.bits)
}

/// The decoded video on which an operation works; `is_video` says of each field before it whether it is one.
///
/// # Errors
/// The operation works on no videos, or on other fields, too.
pub(crate) fn worked_on(
    operation: &str,
    found: &[usize],
    is_video: &[bool],
) -> Result<Option<usize>, String> {
    let Some(video) = found.iter().find(|field| is_video.get(**field).is_some_and(|is| *is)) else {
        return Ok(None);
    };
    if !ON_EACH_PICTURE.contains(&operation) {
        return Err(format!("`{operation}` does not work on videos"));
    }
    if found.iter().any(|field| field != video) {
        return Err(format!("`{operation}` works on a video alone, without other fields"));
    }
    Ok(Some(*video))
}

/// Runs an operation on each picture of a video, with the same draws.
pub(crate) fn run_on_each(
    operation: &dyn Operation,
    field: usize,
    sample: &mut Sample<'_, '_>,
    draws: impl Fn() -> Draws,
) -> Result<(), Defect> {
    let FieldInProgress::Video(mut pictures) =
        std::mem::replace(&mut sample.fields[field], FieldInProgress::Absent)
    else {
        return Err(Defect("an operation found no decoded video".to_owned()));
    };
    for picture in &mut pictures {
        let image = std::mem::replace(picture, PendingImage::from_pixels(Vec::new(), NOTHING, 3));
        sample.fields[field] = FieldInProgress::Image(image);
        operation.run(sample, &mut draws())?;
        if let FieldInProgress::Image(image) =
            std::mem::replace(&mut sample.fields[field], FieldInProgress::Absent)
        {
            *picture = image;
        }
    }
    sample.fields[field] = FieldInProgress::Video(pictures);
    Ok(())
}

const NOTHING: Size = Size { width: 0, height: 0 };

/// Writes the pictures of a video, one after another.
pub(crate) fn write(
    name: &str,
    pictures: &[PendingImage<'_>],
    format: &ImageFormat,
    row: &mut [u8],
    tools: &mut ImageTools,
) -> Result<(), Defect> {
    let bytes = row.len() / pictures.len().max(1);
    if pictures.is_empty() || bytes * pictures.len() != row.len() {
        return Err(Defect(format!("`{name}` has another number of pictures than expected")));
    }
    for (picture, row) in pictures.iter().zip(row.chunks_exact_mut(bytes)) {
        picture.write(format, row, tools)?;
    }
    Ok(())
}

/// The bytes of memory of a clip that [`owned`] has copied.
pub(crate) fn held_bytes(clip: &Clip<'_>) -> usize {
    clip.data.len()
        + clip.configuration.len()
        + size_of_val(clip.packets.as_slice())
        + size_of_val(clip.wanted.as_slice())
}

/// The clip with its own bytes.
pub(crate) fn owned(clip: Clip<'_>) -> Clip<'static> {
    Clip {
        codec: clip.codec,
        configuration: Cow::Owned(clip.configuration.into_owned()),
        width: clip.width,
        height: clip.height,
        color: clip.color,
        rotation: clip.rotation,
        time_base: clip.time_base,
        packets: clip.packets,
        wanted: clip.wanted,
        data: Cow::Owned(clip.data.into_owned()),
    }
}
