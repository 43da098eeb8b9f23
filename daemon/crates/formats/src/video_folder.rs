//! `video-folder`: video files, with or without class folders, with the fields `video`, `times` and, with class folders,
//! `label`.
//!
//! A sample is some clips of one file. Where the file's packets are is learned when the folder is opened
//! ([`tables`]), so that a clip is read by the ranges that its frames need; a helper process decodes them. Which frames
//! they are is a function of the file's table and of the sample's draw.

mod keys;
mod tables;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use forebay_config::DatasetConfig;
use forebay_protocol::ids::SampleId;
use forebay_select::SubsetBuilder;
use forebay_video::choose::{Sampling, Short};
use forebay_video::table::Stream;
use forebay_video::{Cut, Refused};

use crate::draft::{Draft, Epochs, Seen};
pub(super) use keys::{ClipStart, FrameCount, FrameRate, SAME_CLIPS, ShortVideo, VideoFolderKeys};

use forebay_dataset::error::DatasetError;
use forebay_dataset::opening::{OpenOptions, OpenedFormat};
use forebay_dataset::{
    Dataset, Defect, Description, Field, FieldKind, FieldValue, IndexBytes, Selected, times_of,
    video_kinds,
};
use forebay_index::folder::classes::class_summary;
use forebay_index::folder::index::FolderIndex;
use forebay_index::folder::names::split_extension;
use forebay_index::folder::scan::{FolderFormat, LooseFiles};
use forebay_index::folder::{self, open_folder};
use forebay_storage::Storage;
use forebay_storage::location::{ByteRange, FileId, FileTable, Location, SampleBytes, Unit};
use forebay_storage::version::ObjectStamp;
use tables::Tables;

/// The extensions, and where files may be.
pub(super) const FORMAT: FolderFormat = FolderFormat {
    name: "video-folder",
    // Indexes contain the position of an extension in this list: append new ones at the end.
    extensions: &[".mp4", ".mov", ".m4v", ".webm", ".mkv"],
    loose: LooseFiles::NoFolders,
};

/// Whether a path has the extension of a video.
pub(super) fn is_video_path(path: &[u8]) -> bool {
    split_extension(path, FORMAT.extensions).is_some()
}

/// Opens a folder of videos.
pub(super) fn open(
    config: &DatasetConfig,
    storage: &dyn Storage,
    options: OpenOptions<'_>,
) -> OpenedFormat {
    let (sampling, config) = keys::split(config)?;
    let (index, mut report) = open_folder(&config, storage, FORMAT, options)?;
    let saved = tables::Saved::new(&config, &index, report.path.as_deref());
    let tables = tables::learn(&index, storage, saved.as_ref(), options)?;
    report.warnings.extend(tables.warning(&index));
    let videos = Arc::new(Videos::new(index, tables, sampling));
    if sampling.short != Short::Drop {
        return Ok((videos, report));
    }
    let mut kept = SubsetBuilder::default();
    let mut dropped = 0_u64;
    for id in 0..videos.sample_count() {
        let is_kept = videos.fits(SampleId(id));
        dropped += u64::from(!is_kept);
        kept.push(is_kept);
    }
    if dropped == videos.sample_count() {
        return Err(DatasetError::FirstSample {
            path: config.path.clone(),
            reason:
                "all videos are shorter than a clip; lower dataset.frames, or set dataset.short"
                    .to_owned(),
        });
    }
    if dropped == 0 {
        return Ok((videos, report));
    }
    let words = format!("{dropped} videos shorter than a clip are left out");
    Ok((Arc::new(Selected::new(videos, Arc::new(kept.build()), words)), report))
}

/// As [`folder::has_saved_index`].
pub(super) fn has_saved_index(
    config: &DatasetConfig,
    format: FolderFormat,
    options: OpenOptions<'_>,
) -> bool {
    keys::split(config).is_ok_and(|(_, config)| folder::has_saved_index(&config, format, options))
}

/// Clips of 16 frames, decoded and resized.
pub(super) fn draft(_seen: &Seen) -> Draft {
    Draft {
        dataset: "frames = 16\nstride = 4             # each fourth frame of a video\nstart = \"random\"       # \"uniform\" for validation\n"
            .to_owned(),
        epochs: Epochs::Many,
        tables: "[[stage]]\nname = \"decode\"\noperations = [\n    { op = \"decode-video\" },\n    { op = \"resize\", size = [224, 224] },\n]\n"
            .to_owned(),
        ..Draft::default()
    }
}

/// A folder of videos.
#[derive(Debug)]
struct Videos {
    index: FolderIndex,
    tables: Tables,
    sampling: Sampling,
    fields: Vec<Field>,
}

impl Videos {
    fn new(index: FolderIndex, tables: Tables, sampling: Sampling) -> Self {
        let field = |name: &str, kind| Field { name: name.to_owned(), kind };
        let (video, times) = video_kinds(&sampling);
        let mut fields = vec![field("video", video), field("times", times)];
        if !index.classes().is_empty() {
            fields.push(field("label", FieldKind::Integer));
        }
        Self { index, tables, sampling, fields }
    }

    /// The class, if the folders are classes.
    fn class(&self, id: SampleId) -> Option<i64> {
        (!self.index.classes().is_empty()).then(|| self.index.label(id))
    }

    /// The stream of pictures of a file.
    fn stream(&self, id: SampleId) -> Result<Stream, Defect> {
        self.tables.of(id)?.into_video().map_err(|Refused(reason)| Defect(reason))
    }

    /// Whether a file has a whole clip; also if it is defective, which is said when it is read.
    fn fits(&self, id: SampleId) -> bool {
        let shown = self.stream(id).ok().and_then(|stream| stream.shown());
        shown.is_none_or(|shown| self.sampling.fits(&shown))
    }

    /// The stream of a file, and what of it is read for a draw.
    fn cut(&self, id: SampleId, draw: u64) -> Result<(Stream, Cut), Defect> {
        let stream = self.stream(id)?;
        let cut = stream.choose(&self.sampling, draw).map_err(|Refused(reason)| Defect(reason))?;
        Ok((stream, cut))
    }
}

impl FileTable for Videos {
    fn append_path(&self, file: FileId, path: &mut Vec<u8>) {
        self.index.append_path(SampleId(file.0), path);
    }

    fn stamp(&self, file: FileId) -> Option<ObjectStamp> {
        self.index.stamp(file)
    }
}

impl Dataset for Videos {
    fn sample_count(&self) -> u64 {
        self.index.sample_count()
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn locate(&self, id: SampleId, locations: &mut Vec<Location>) {
        self.locate_drawn(id, 0, locations);
    }

    fn locate_drawn(&self, id: SampleId, draw: u64, locations: &mut Vec<Location>) {
        let part = |offset, length| Location {
            file: FileId(id.0),
            range: ByteRange { offset, length: Some(length) },
            unit: Unit::Sample,
        };
        match self.cut(id, draw) {
            Ok((_, cut)) => {
                let ranges = cut.ranges.iter();
                locations.extend(ranges.map(|range| part(range.start, range.end - range.start)));
            }
            // It is read for its name in the message alone.
            Err(_) => locations.push(part(0, 0)),
        }
    }

    fn read<'a>(
        &'a self,
        id: SampleId,
        bytes: SampleBytes<'a>,
        values: &mut Vec<FieldValue<'a>>,
    ) -> Result<(), Defect> {
        self.read_drawn(id, 0, bytes, values)
    }

    fn read_drawn<'a>(
        &'a self,
        id: SampleId,
        draw: u64,
        bytes: SampleBytes<'a>,
        values: &mut Vec<FieldValue<'a>>,
    ) -> Result<(), Defect> {
        let (stream, cut) = self.cut(id, draw)?;
        let clip = stream.clip(&cut, bytes.all()).map_err(|refused| Defect(refused.0))?;
        let times = times_of(&clip, &self.sampling);
        values.push(FieldValue::Video(Box::new(clip)));
        values.push(FieldValue::Array(times));
        values.extend(self.class(id).map(FieldValue::Integer));
        Ok(())
    }

    fn label(&self, id: SampleId) -> Option<Result<i64, Defect>> {
        self.class(id).map(Ok)
    }

    fn append_key(&self, id: SampleId, key: &mut Vec<u8>) -> bool {
        self.index.append_path(id, key);
        true
    }

    /// Differs if the same files give other clips, or other files.
    fn fingerprint(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_derive_key("forebay folder of videos");
        hasher.update(&self.index.file().fingerprint());
        hasher.update(&self.tables.digest());
        hasher.update(&self.sampling.identity());
        *hasher.finalize().as_bytes()
    }

    fn index(&self) -> Option<&IndexBytes> {
        Some(self.index.file().bytes())
    }

    fn description(&self) -> Description {
        Description {
            classes: class_summary(&self.index),
            left_out: self.index.left_out().map(str::to_owned),
            notes: vec![("videos", self.tables.summary().to_owned())],
            ..Description::default()
        }
    }

    fn classes(&self) -> &[String] {
        self.index.classes()
    }
}
