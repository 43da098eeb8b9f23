//! The saved index of windows: the episodes, and where the rows of each column are. Its size follows from the number of
//! episodes and of the parts of files (pages, batches), not from the number of rows or windows.
//!
//! A *set* is a table: columns with as many rows each, in one file or in several in step. An episode is a range of a
//! set's rows. The sections of the [file](forebay_index::index_file):
//!
//! ```text
//! numbers   columns, rows from a window's start to that of the next one, first row of an episode's first window (i64)
//! files     per file: end of its path, then its stamp: bytes, seconds, nanoseconds, tag, status change time (u64 each)
//! paths     of the files, concatenated
//! episodes  per episode: first window, set, first row, rows (u64 each)
//! sets      per set: the file that names it, and its rows (u64 each)
//! ends      per set and column: the cumulative number of pieces, u64
//! pieces    see [`Piece`]
//! rules     the columns and the keys, as JSON
//! ```

use forebay_dataset::IndexBytes;
use forebay_index::file_list::{self, PATHS};
use forebay_index::index_file::{IndexDraft, IndexFile, Kind, LayoutFault, u64_at};
use forebay_index::saved_index::SavedIndex;
use forebay_protocol::ids::SampleId;
use forebay_storage::location::{FileId, FileTable};
use forebay_storage::version::{FileStamp, ObjectStamp};

const EPISODE_BYTES: usize = 32;
const SET_BYTES: usize = 16;
const PIECE_BYTES: usize = 40;

const EPISODES: usize = 2;
const SETS: usize = 3;
const ENDS: usize = 4;
const PIECES: usize = 5;
const RULES: usize = 6;

/// Consecutive rows of a column in one part of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Piece {
    /// The first row, counted in its set; or another number that rises.
    pub(crate) first: u64,
    pub(crate) file: u64,
    /// The offset in the file.
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    /// As the format defines it.
    pub(crate) form: u64,
}

/// Consecutive rows of a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Episode {
    pub(crate) set: usize,
    pub(crate) first_row: u64,
    pub(crate) rows: u64,
}

/// A window: its episode, and its first row relative to the episode's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) episode: Episode,
    pub(crate) start: i64,
}

/// A set under construction.
#[derive(Debug, Default)]
pub(crate) struct ScannedSet {
    /// The file that names it.
    pub(crate) file: u64,
    pub(crate) rows: u64,
    /// By column.
    pub(crate) pieces: Vec<Vec<Piece>>,
}

/// Everything but the windows.
#[derive(Debug)]
pub(crate) struct Contents<'a> {
    pub(crate) files: &'a [(Vec<u8>, FileStamp)],
    pub(crate) sets: &'a [ScannedSet],
    pub(crate) columns: usize,
    pub(crate) rules: &'a str,
    /// The digests of the dataset and of its options.
    pub(crate) keys: [&'a [u8; 32]; 2],
    pub(crate) scan_started_seconds: i64,
}

/// How windows are cut from the rows of an episode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cut {
    pub(crate) stride: u64,
    /// The first row of the first window, relative to the episode's.
    pub(crate) first: i64,
    /// The rows that a window needs; `None`: it is padded.
    pub(crate) needs: Option<u64>,
}

impl Cut {
    /// The number of windows of an episode.
    pub(crate) fn windows(&self, rows: u64) -> u64 {
        match self.needs {
            None => rows.div_ceil(self.stride),
            Some(needs) => rows.checked_sub(needs).map_or(0, |rest| rest / self.stride + 1),
        }
    }
}

/// Lays out and seals an index, of at most `limit` windows.
pub(crate) fn build(
    contents: &Contents<'_>,
    episodes: impl Iterator<Item = Episode>,
    cut: Cut,
    limit: u64,
) -> Vec<u8> {
    let Contents { files, sets, columns, rules, keys, scan_started_seconds } = contents;
    let mut draft = IndexDraft::new(Kind::WINDOWS, *keys, rules.len());
    file_list::push_files(&mut draft, files.iter().map(|(path, stamp)| (&path[..], *stamp)));
    let mut windows = 0_u64;
    for Episode { set, first_row, rows } in episodes {
        let more = cut.windows(rows);
        if more > 0 && windows < limit {
            draft.push_all([windows, set as u64, first_row, rows]);
            windows = windows.saturating_add(more);
        }
    }
    draft.end_section();
    draft.push_all(sets.iter().flat_map(|set| [set.file, set.rows]));
    draft.end_section();
    let mut end = 0;
    for pieces in sets.iter().flat_map(|set| &set.pieces) {
        end += pieces.len() as u64;
        draft.push_all([end]);
    }
    draft.end_section();
    for piece in sets.iter().flat_map(|set| &set.pieces).flatten() {
        draft.push_all([piece.first, piece.file, piece.offset, piece.bytes, piece.form]);
    }
    draft.end_section();
    draft.push(rules.as_bytes());
    draft.end_section();
    let samples = windows.min(limit);
    // Places in files and times are excluded: a copy elsewhere is the same dataset. Rows that no piece has are not.
    let mut hasher = blake3::Hasher::new();
    hasher.update(b"forebay windows 1\0");
    hasher.update(&samples.to_le_bytes());
    for part in [PATHS, EPISODES, RULES].map(|section| draft.section(section)) {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    hasher.update(draft.section(ENDS));
    for piece in sets.iter().flat_map(|set| &set.pieces).flatten() {
        hasher.update(&piece.first.to_le_bytes());
        hasher.update(&piece.bytes.to_le_bytes());
    }
    let fingerprint = *hasher.finalize().as_bytes();
    let numbers = [*columns as u64, cut.stride, cut.first.cast_unsigned()];
    draft.seal(samples, *scan_started_seconds, &numbers, fingerprint)
}

/// An opened index.
#[derive(Debug)]
pub(crate) struct WindowIndex {
    file: IndexFile,
    columns: usize,
    episodes: usize,
    sets: usize,
    stride: u64,
    first: i64,
}

impl WindowIndex {
    fn of(file: IndexFile) -> Option<Self> {
        let columns = usize::try_from(file.number(0)).ok().filter(|columns| *columns > 0)?;
        let (stride, first) = (file.number(1), file.number(2).cast_signed());
        let episodes = file.records(EPISODES, EPISODE_BYTES)?;
        let sets = file.records(SETS, SET_BYTES)?;
        let is_whole = file.records(ENDS, 8)? == sets.checked_mul(columns)?
            && file_list::file_count(&file).is_some()
            && file.records(PIECES, PIECE_BYTES).is_some()
            && (episodes > 0 || file.samples() == 0)
            && stride > 0;
        let index = Self { file, columns, episodes, sets, stride, first };
        (is_whole && index.episodes_rise()).then_some(index)
    }

    /// Whether windows are counted from 0, and rows are in their sets.
    fn episodes_rise(&self) -> bool {
        let mut before = None;
        (0..self.episodes).all(|place| {
            let Some((window, Episode { set, first_row, rows })) = self.episode(place) else {
                return false;
            };
            let is_next = before.map_or(window == 0, |before| before < window);
            before = Some(window);
            let end = first_row.checked_add(rows);
            let is_in_set = end.zip(self.set_rows(set)).is_some_and(|(end, rows)| end <= rows);
            is_next && is_in_set && rows > 0 && i64::try_from(rows).is_ok()
        })
    }

    /// An episode and its first window.
    fn episode(&self, place: usize) -> Option<(u64, Episode)> {
        let record: &[u8; EPISODE_BYTES] = self.file.record(EPISODES, place)?;
        let set = usize::try_from(u64_at(record, 8)?).ok()?;
        let (first_row, rows) = (u64_at(record, 16)?, u64_at(record, 24)?);
        Some((u64_at(record, 0)?, Episode { set, first_row, rows }))
    }

    /// The number of sets.
    pub(crate) fn sets(&self) -> usize {
        self.sets
    }

    /// The rows of a set.
    pub(crate) fn set_rows(&self, set: usize) -> Option<u64> {
        u64_at(self.file.record::<SET_BYTES>(SETS, set)?, 8)
    }

    /// The window of a sample.
    ///
    /// # Panics
    /// The sample does not exist.
    pub(crate) fn window(&self, id: SampleId) -> Window {
        let place = self.file.group_of::<EPISODE_BYTES>(EPISODES, self.episodes, id);
        let none = Episode { set: 0, first_row: 0, rows: 1 };
        let (first, episode) = self.episode(place).unwrap_or((id.0, none));
        let rows = (id.0 - first).saturating_mul(self.stride);
        let start = self.first.saturating_add_unsigned(rows);
        Window { episode, start }
    }

    /// The pieces of a column, of which there are `count`, from the last one that begins at or before `first`.
    pub(crate) fn pieces_from(
        &self,
        set: usize,
        column: usize,
        first: u64,
    ) -> impl Iterator<Item = Piece> {
        let group = set.saturating_mul(self.columns).saturating_add(column);
        let end = |group: usize| usize::try_from(self.file.u64(ENDS, group)?).ok();
        let start = group.checked_sub(1).map_or(Some(0), end).unwrap_or(0);
        let end = end(group).unwrap_or(0);
        let (mut low, mut high) = (start, end);
        while low < high {
            let middle = low.midpoint(high);
            match self.piece(middle).is_some_and(|piece| piece.first <= first) {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        (low.saturating_sub(1).max(start)..end).map_while(|place| self.piece(place))
    }

    fn piece(&self, place: usize) -> Option<Piece> {
        let record: &[u8; PIECE_BYTES] = self.file.record(PIECES, place)?;
        let [first, file, offset, bytes, form] = [0, 8, 16, 24, 32].map(|at| u64_at(record, at));
        Some(Piece { first: first?, file: file?, offset: offset?, bytes: bytes?, form: form? })
    }

    /// The number of files.
    pub(crate) fn file_count(&self) -> u64 {
        file_list::file_count(&self.file).unwrap_or(0) as u64
    }
}

impl SavedIndex for WindowIndex {
    const RULES: usize = RULES;

    fn open(bytes: IndexBytes) -> Result<Self, LayoutFault> {
        Self::of(IndexFile::open(bytes, Kind::WINDOWS)?).ok_or(LayoutFault::Damaged)
    }

    fn file(&self) -> &IndexFile {
        &self.file
    }

    fn files(&self) -> impl Iterator<Item = (&[u8], FileStamp)> {
        (0..).map_while(|place| file_list::file(&self.file, place))
    }

    fn columns(&self) -> usize {
        self.columns
    }

    /// The file and the window's first row in it.
    fn append_name(&self, id: SampleId, name: &mut Vec<u8>) {
        let Window { episode, start } = self.window(id);
        let file = self.file.record::<SET_BYTES>(SETS, episode.set).and_then(|set| u64_at(set, 0));
        self.append_path(FileId(file.unwrap_or(0)), name);
        let row = i128::from(episode.first_row) + i128::from(start);
        name.extend_from_slice(format!(":{row}").as_bytes());
    }
}

impl FileTable for WindowIndex {
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
