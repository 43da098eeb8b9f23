//! Which pictures are those of a frame, and the packets that an episode needs of a video.

use std::ops::Range;

use forebay_dataset::Defect;
use forebay_dataset::error::DatasetError;
use forebay_index::saved_index::open_file;
use forebay_index::stored_file::StoredFile;
use forebay_storage::Storage;
use forebay_storage::version::FileStamp;
use forebay_video::choose::Shown;
use forebay_video::table::Stream;
use forebay_video::{Cut, Failure, ReadAt, Refused};

use super::index::Entry;

/// The pictures of an episode in a video.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    /// When it begins, in seconds.
    pub(super) start: f64,
    /// Its frames.
    pub(super) rows: u64,
}

/// When frames are, and how far their pictures may be from it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    pub(super) fps: f64,
    pub(super) tolerance: f64,
}

impl Clock {
    #[expect(clippy::cast_precision_loss, reason = "a time in seconds")]
    fn time(self, start: f64, row: u64) -> f64 {
        start + row as f64 / self.fps
    }

    /// The picture nearest to a frame, and how far it is from it in seconds.
    fn nearest(self, shown: &Shown, start: f64, row: u64) -> (i64, f64) {
        let time = self.time(start, row);
        let seconds = |ticks: i64| shown.time_base.seconds(ticks);
        let behind = shown.times.partition_point(|ticks| seconds(*ticks) < time);
        let before = behind.checked_sub(1).and_then(|place| shown.times.get(place));
        let both = before.into_iter().chain(shown.times.get(behind));
        let distances = both.map(|ticks| (*ticks, (seconds(*ticks) - time).abs()));
        let nearest = distances.min_by(|one, other| one.1.total_cmp(&other.1));
        nearest.unwrap_or((0, f64::INFINITY))
    }

    /// What is read of a video for some frames of an episode.
    ///
    /// # Errors
    /// A frame has no picture.
    pub(super) fn cut(
        self,
        stream: &Stream,
        start: f64,
        rows: impl Iterator<Item = u64>,
    ) -> Result<Cut, Defect> {
        let shown = stream.shown().ok_or_else(|| Defect("it shows no pictures".to_owned()))?;
        let mut wanted = Vec::new();
        for row in rows {
            let (ticks, distance) = self.nearest(&shown, start, row);
            if distance > self.tolerance {
                return Err(Defect(format!(
                    "frame {row} is at {:.4} s of the video, and the nearest picture is {distance:.4} s from it; \
                     {:.4} s are allowed (dataset.tolerance)",
                    self.time(start, row),
                    self.tolerance
                )));
            }
            wanted.push(ticks);
        }
        stream.cut(wanted).map_err(|refused| Defect(refused.0))
    }
}

/// What a video has for each of some episodes, and the number of frames whose pictures are too far from them.
pub(super) struct Looked {
    pub(super) entries: Vec<Entry>,
    pub(super) missed: u64,
    pub(super) stamp: FileStamp,
}

/// Reads the header of a video.
pub(super) fn look(
    storage: &dyn Storage,
    path: &[u8],
    parts: &[Part],
    clock: Clock,
) -> Result<Looked, DatasetError> {
    let file = open_file(storage, path)?;
    let refused = |reason: &str| Looked {
        entries: parts.iter().map(|_| Err(reason.to_owned())).collect(),
        missed: 0,
        stamp: file.stamp,
    };
    let table = match forebay_video::read(Stored(&file)) {
        Ok(table) => table,
        Err(Failure::Refused(Refused(reason))) => return Ok(refused(&reason)),
        Err(Failure::Read(error)) => return Err(error),
    };
    let stream = match table.into_video() {
        Ok(stream) => stream,
        Err(Refused(reason)) => return Ok(refused(&reason)),
    };
    let Some(shown) = stream.shown() else { return Ok(refused("it shows no pictures")) };
    let mut looked = Looked { entries: Vec::new(), missed: 0, stamp: file.stamp };
    for Part { start, rows } in parts {
        let mut wanted = Vec::new();
        // An episode of more frames than twice the pictures has none for the others.
        let looked_at = (*rows).min(2 * shown.times.len() as u64);
        looked.missed += rows - looked_at;
        for row in 0..looked_at {
            let (ticks, distance) = clock.nearest(&shown, *start, row);
            looked.missed += u64::from(distance > clock.tolerance);
            wanted.push(ticks);
        }
        looked.entries.push(stream.part(&wanted).map_err(|refused| refused.0));
    }
    Ok(looked)
}

/// A file as a video.
struct Stored<'f>(&'f StoredFile<'f>);

impl ReadAt for Stored<'_> {
    type Error = DatasetError;

    fn length_bytes(&self) -> u64 {
        self.0.stamp.bytes
    }

    fn read_at(&mut self, range: Range<u64>, bytes: &mut Vec<u8>) -> Result<(), DatasetError> {
        bytes.clear();
        match range.end.saturating_sub(range.start) {
            0 => Ok(()),
            length => self.0.read(range.start, length, bytes),
        }
    }
}
