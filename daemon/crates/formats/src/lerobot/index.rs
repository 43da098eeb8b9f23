//! The saved index of recordings: the episodes, the packets of their pictures, and the values of their frames. The sections
//! of the [file](forebay_index::index_file):
//!
//! ```text
//! numbers   cameras, bytes of a frame's values
//! files     per file: end of its path, then its stamp: bytes, seconds, nanoseconds, tag, status change time (u64 each)
//! paths     of the files, concatenated; the first one is `meta/info.json`
//! episodes  per episode: first frame, its number, frames, the file of its rows, the first of them there (u64 each)
//! videos    per episode and camera: end of its entry, file (u64 each), the time at which it begins (f64)
//! tables    the entries: a byte that says what follows, and the packets that the episode needs or why it has none
//! values    per frame: the values of all columns
//! rules     see [`Rules`], as JSON
//! ```

use serde::{Deserialize, Serialize};

use forebay_dataset::{Defect, IndexBytes};
use forebay_index::file_list::{self, PATHS};
use forebay_index::index_file::{IndexDraft, IndexFile, Kind, LayoutFault, u64_at};
use forebay_index::saved_index::SavedIndex;
use forebay_protocol::ids::SampleId;
use forebay_protocol::tensor::DType;
use forebay_storage::location::{FileId, FileTable};
use forebay_storage::version::{FileStamp, ObjectStamp};
use forebay_video::Table;
use forebay_video::table::Stream;

use super::episodes::{Episode, Files};

const EPISODE_BYTES: usize = 40;
const VIDEO_BYTES: usize = 24;

const EPISODES: usize = 2;
const VIDEOS: usize = 3;
const TABLES: usize = 4;
const VALUES: usize = 5;
const RULES: usize = 6;

/// An entry with a table of packets.
const TABLE: u8 = 0;
/// An entry with the reason why there is none.
const REFUSED: u8 = 1;

/// The definition of the samples, as the index has it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Rules {
    /// In the order of `meta/info.json`.
    pub(super) features: Vec<Known>,
    /// The texts of tasks by number; `None`: the dataset has none.
    pub(super) tasks: Option<Vec<String>>,
    pub(super) fps: f64,
    /// The keys as text.
    pub(super) keys: String,
}

/// A feature that can be read.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Known {
    pub(super) name: String,
    pub(super) form: Form,
}

/// What a feature is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Form {
    /// Numbers of each frame.
    Column(Column),
    /// The pictures of a camera, by its place among cameras.
    Camera { place: usize, statistics: Option<Statistics> },
}

/// Where a column is in the values of a frame.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Column {
    pub(super) dtype: String,
    pub(super) shape: Vec<u64>,
    pub(super) offset: usize,
    pub(super) bytes: usize,
}

impl Column {
    pub(super) fn dtype(&self) -> Option<DType> {
        forebay_columnar::dtype(&self.dtype)
    }
}

/// Mean and deviation of a camera's channels, for values from 0 to 1.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Statistics {
    pub(super) mean: Vec<f64>,
    pub(super) std: Vec<f64>,
}

impl Rules {
    pub(super) fn column(&self, name: &str) -> Option<&Column> {
        self.features.iter().find_map(|known| match &known.form {
            Form::Column(column) if known.name == name => Some(column),
            _ => None,
        })
    }

    pub(super) fn columns(&self) -> impl Iterator<Item = (&str, &Column)> {
        self.features.iter().filter_map(|known| match &known.form {
            Form::Column(column) => Some((known.name.as_str(), column)),
            Form::Camera { .. } => None,
        })
    }

    pub(super) fn cameras(&self) -> impl Iterator<Item = &str> {
        let cameras =
            self.features.iter().filter(|known| matches!(known.form, Form::Camera { .. }));
        cameras.map(|known| known.name.as_str())
    }
}

/// The packets of an episode's pictures, or why there are none.
pub(super) type Entry = Result<Stream, String>;

/// Writes an entry.
pub(super) fn entry_bytes(entry: Entry) -> Vec<u8> {
    match entry {
        Ok(stream) => {
            let mut bytes = vec![TABLE];
            Table { streams: vec![stream], unknown: Vec::new() }.write(&mut bytes);
            bytes
        }
        Err(reason) => [&[REFUSED], reason.as_bytes()].concat(),
    }
}

/// Everything in an index.
pub(super) struct Contents<'a> {
    pub(super) files: &'a Files,
    pub(super) episodes: &'a [Episode],
    /// By episode: the first of its rows in its file.
    pub(super) first_rows: &'a [u64],
    /// By episode, then by camera.
    pub(super) entries: Vec<Vec<u8>>,
    /// By frame.
    pub(super) values: Vec<Vec<u8>>,
    pub(super) row_bytes: usize,
    pub(super) rules: &'a str,
    /// The digests of the dataset and of its options.
    pub(super) keys: [&'a [u8; 32]; 2],
    pub(super) scan_started_seconds: i64,
    pub(super) limit: Option<u64>,
}

/// Lays out and seals an index.
pub(super) fn build(contents: Contents<'_>) -> Vec<u8> {
    let Contents { files, episodes, first_rows, entries, values, row_bytes, .. } = contents;
    let all: usize = values.iter().chain(&entries).map(Vec::len).sum();
    let mut draft = IndexDraft::new(Kind::EPISODES, contents.keys, all + contents.rules.len());
    let paths = files.paths.iter().map(Vec::as_slice);
    file_list::push_files(&mut draft, paths.zip(files.stamps.iter().copied()));
    let mut frames = 0_u64;
    for (Episode { number, rows, data, .. }, first_row) in episodes.iter().zip(first_rows) {
        draft.push_all([frames, *number, *rows, *data as u64, *first_row]);
        frames += rows;
    }
    draft.end_section();
    let videos = episodes.iter().flat_map(|episode| &episode.cameras);
    let mut end = 0;
    for ((file, start), entry) in videos.zip(&entries) {
        end += entry.len() as u64;
        draft.push_all([end, *file as u64, start.to_bits()]);
    }
    draft.end_section();
    entries.iter().for_each(|entry| draft.push(entry));
    draft.end_section();
    values.iter().for_each(|values| draft.push(values));
    draft.end_section();
    draft.push(contents.rules.as_bytes());
    draft.end_section();
    let samples = contents.limit.map_or(frames, |limit| limit.min(frames));
    // Stamps are excluded: a copy elsewhere is the same dataset. Reasons name paths of this host.
    let mut hasher = blake3::Hasher::new();
    hasher.update(b"forebay episodes 1\0");
    hasher.update(&samples.to_le_bytes());
    for part in [PATHS, EPISODES, VALUES, RULES].map(|section| draft.section(section)) {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    for entry in &entries {
        let entry = if entry.starts_with(&[TABLE]) { entry } else { &entry[..entry.len().min(1)] };
        hasher.update(&(entry.len() as u64).to_le_bytes());
        hasher.update(entry);
    }
    for (_, start) in episodes.iter().flat_map(|episode| &episode.cameras) {
        hasher.update(&start.to_bits().to_le_bytes());
    }
    let fingerprint = *hasher.finalize().as_bytes();
    let cameras = episodes.first().map_or(0, |episode| episode.cameras.len());
    let numbers = [cameras as u64, row_bytes as u64];
    draft.seal(samples, contents.scan_started_seconds, &numbers, fingerprint)
}

/// A frame, and its episode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Frame {
    /// The place of the episode among all.
    pub(super) place: usize,
    /// The `episode_index`.
    pub(super) episode: u64,
    /// The first frame of the episode, among all.
    pub(super) first: u64,
    /// The frames of the episode.
    pub(super) rows: u64,
    /// The frame within the episode.
    pub(super) row: u64,
    data: u64,
    first_row: u64,
}

/// An opened index.
#[derive(Debug)]
pub(crate) struct RobotIndex {
    file: IndexFile,
    episodes: usize,
    cameras: usize,
    row_bytes: usize,
}

impl RobotIndex {
    fn of(file: IndexFile) -> Option<Self> {
        let [cameras, row_bytes] = [0, 1].map(|place| usize::try_from(file.number(place)).ok());
        let (cameras, row_bytes) = (cameras?, row_bytes?);
        let episodes = file.records(EPISODES, EPISODE_BYTES)?;
        let is_whole = file_list::file_count(&file)? > 0
            && file.records(VIDEOS, VIDEO_BYTES)? == episodes.checked_mul(cameras)?
            && episodes > 0;
        let index = Self { file, episodes, cameras, row_bytes };
        (is_whole && index.frames_follow()).then_some(index)
    }

    /// Whether episodes have frames, which are counted from 0, and their values.
    fn frames_follow(&self) -> bool {
        let mut frames = 0_u64;
        for place in 0..self.episodes {
            match self.episode(place) {
                Some(Frame { first, rows: rows @ 1.., .. }) if first == frames => {
                    let Some(next) = frames.checked_add(rows) else { return false };
                    frames = next;
                }
                _ => return false,
            }
        }
        let bytes = usize::try_from(frames).ok().and_then(|rows| rows.checked_mul(self.row_bytes));
        self.file.samples() <= frames && bytes == Some(self.file.section(VALUES).len())
    }

    /// The first frame of an episode.
    fn episode(&self, place: usize) -> Option<Frame> {
        let record: &[u8; EPISODE_BYTES] = self.file.record(EPISODES, place)?;
        let [first, episode, rows, data, first_row] =
            [0, 8, 16, 24, 32].map(|at| u64_at(record, at));
        let (data, first_row) = (data?, first_row?);
        Some(Frame {
            place,
            episode: episode?,
            first: first?,
            rows: rows?,
            row: 0,
            data,
            first_row,
        })
    }

    /// The number of episodes.
    pub(super) fn episodes(&self) -> usize {
        self.episodes
    }

    /// The frame of a sample.
    ///
    /// # Panics
    /// The sample does not exist.
    pub(super) fn frame(&self, id: SampleId) -> Frame {
        let place = self.file.group_of::<EPISODE_BYTES>(EPISODES, self.episodes, id);
        let none = Frame { place, episode: 0, first: id.0, rows: 1, row: 0, data: 0, first_row: 0 };
        let frame = self.episode(place).unwrap_or(none);
        Frame { row: id.0.saturating_sub(frame.first), ..frame }
    }

    /// The value of a column in a frame, which is counted among all; empty if there is none.
    pub(super) fn value(&self, frame: u64, column: &Column) -> &[u8] {
        let start = usize::try_from(frame).ok().and_then(|row| row.checked_mul(self.row_bytes));
        let start = start.and_then(|start| start.checked_add(column.offset));
        let found =
            start.and_then(|start| self.file.section(VALUES).get(start..)?.get(..column.bytes));
        found.unwrap_or_default()
    }

    /// The file of a camera's pictures, when the episode begins there, and the packets that it needs.
    ///
    /// # Errors
    /// The file has no pictures of the episode.
    pub(super) fn video(
        &self,
        place: usize,
        camera: usize,
    ) -> Result<(FileId, f64, Stream), Defect> {
        let broken = || Defect("the index has no packets of its pictures; remove it".to_owned());
        let at = place.saturating_mul(self.cameras).saturating_add(camera);
        let record: &[u8; VIDEO_BYTES] = self.file.record(VIDEOS, at).ok_or_else(broken)?;
        let end = |record: &[u8; VIDEO_BYTES]| usize::try_from(u64_at(record, 0)?).ok();
        let start = match at.checked_sub(1) {
            Some(before) => self.file.record(VIDEOS, before).and_then(end),
            None => Some(0),
        };
        let range = start.zip(end(record)).ok_or_else(broken)?;
        match self.file.section(TABLES).get(range.0..range.1) {
            Some([TABLE, table @ ..]) => {
                let table = Table::read(table).map_err(|refused| Defect(refused.0))?;
                let stream = table.streams.into_iter().next().ok_or_else(broken)?;
                let start = f64::from_bits(u64_at(record, 16).unwrap_or(0));
                Ok((self.video_file(record), start, stream))
            }
            Some([REFUSED, reason @ ..]) => {
                Err(Defect(String::from_utf8_lossy(reason).into_owned()))
            }
            _ => Err(broken()),
        }
    }

    fn video_file(&self, record: &[u8; VIDEO_BYTES]) -> FileId {
        FileId(u64_at(record, 8).filter(|file| *file < self.file_count()).unwrap_or(0))
    }

    fn file_count(&self) -> u64 {
        file_list::file_count(&self.file).unwrap_or(0) as u64
    }

    /// All files but the first, with their paths and stamps.
    pub(super) fn other_files(&self) -> impl Iterator<Item = (FileId, &[u8], FileStamp)> {
        (1..self.file_count()).map_while(|file| {
            let (path, stamp) = file_list::file(&self.file, usize::try_from(file).ok()?)?;
            Some((FileId(file), path, stamp))
        })
    }
}

impl SavedIndex for RobotIndex {
    const RULES: usize = RULES;

    fn open(bytes: IndexBytes) -> Result<Self, LayoutFault> {
        Self::of(IndexFile::open(bytes, Kind::EPISODES)?).ok_or(LayoutFault::Damaged)
    }

    fn file(&self) -> &IndexFile {
        &self.file
    }

    /// The file that names the others.
    fn files(&self) -> impl Iterator<Item = (&[u8], FileStamp)> {
        file_list::file(&self.file, 0).into_iter()
    }

    fn columns(&self) -> usize {
        self.cameras
    }

    /// The file of the frame's row, the row, and which frame it is.
    fn append_name(&self, id: SampleId, name: &mut Vec<u8>) {
        let Frame { episode, row, data, first_row, .. } = self.frame(id);
        self.append_path(FileId(data), name);
        let row_of_file = first_row.saturating_add(row);
        let frame = format!(":{row_of_file} (episode {episode}, frame {row})");
        name.extend_from_slice(frame.as_bytes());
    }
}

impl FileTable for RobotIndex {
    fn append_path(&self, file: FileId, path: &mut Vec<u8>) {
        let found =
            usize::try_from(file.0).ok().and_then(|place| file_list::file(&self.file, place));
        path.extend_from_slice(found.map_or(b"", |(path, _)| path));
    }

    fn stamp(&self, file: FileId) -> Option<ObjectStamp> {
        let (_, stamp) = file_list::file(&self.file, usize::try_from(file.0).ok()?)?;
        Some(stamp.object())
    }
}
