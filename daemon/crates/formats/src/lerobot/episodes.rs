//! The episodes and the tasks, as the files of `meta` list them.

use std::collections::HashMap;

use serde::Deserialize;

use forebay_dataset::error::DatasetError;
use forebay_index::saved_index::open_file;
use forebay_index::stored_file::StoredFile;
use forebay_storage::Storage;
use forebay_storage::version::FileStamp;

use super::BROKEN;
use super::info::{INFO, Info, Layout};
use super::rows::{Table, visit_lines};

/// The most episodes, and the most frames of one.
const MAX_EPISODES: u64 = 1 << 32;
/// The most tasks.
/// The file of tasks: in the layout of episodes, and in the shared one.
pub(super) const TASKS: [&[u8]; 2] = [b"meta/tasks.jsonl", b"meta/tasks.parquet"];
const MAX_TASKS: u64 = 1 << 24;
/// How much larger than the place in the list a task's number may be, beside sixteen times the place.
const MAX_TASK_GAP: u64 = 1 << 16;
/// The most text of all tasks, in bytes.
const MAX_TASKS_BYTES: usize = 256 << 20;

/// An episode.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Episode {
    /// Its `episode_index`.
    pub(super) number: u64,
    /// Its frames.
    pub(super) rows: u64,
    /// The file of its rows.
    pub(super) data: usize,
    /// By camera: the video, and the time in it at which the episode begins.
    pub(super) cameras: Vec<(usize, f64)>,
}

/// The files of a dataset, by number.
#[derive(Debug, Default)]
pub(super) struct Files {
    pub(super) paths: Vec<Vec<u8>>,
    /// When they were read.
    pub(super) stamps: Vec<FileStamp>,
    places: HashMap<Vec<u8>, usize>,
}

impl Files {
    /// The number of a file.
    pub(super) fn place(&mut self, path: Vec<u8>) -> usize {
        if let Some(place) = self.places.get(&path) {
            return *place;
        }
        let place = self.paths.len();
        self.places.insert(path.clone(), place);
        self.paths.push(path);
        self.stamps.push(FileStamp::default());
        place
    }

    /// Adds a file that was opened.
    pub(super) fn add(&mut self, path: &[u8], stamp: FileStamp) {
        let place = self.place(path.to_vec());
        self.stamps[place] = stamp;
    }
}

/// Reads episodes in their order, until there are enough frames for `limit`.
pub(super) fn read(
    storage: &dyn Storage,
    info: &Info,
    cameras: &[&str],
    limit: Option<u64>,
    files: &mut Files,
) -> Result<Vec<Episode>, DatasetError> {
    match info.layout {
        Layout::Episodes => of_lines(storage, info, cameras, limit, files),
        Layout::Shared => of_tables(storage, info, cameras, limit, files),
    }
}

/// Collects episodes, and checks their order and number.
struct Found<'i> {
    info: &'i Info,
    limit: Option<u64>,
    episodes: Vec<Episode>,
    frames: u64,
}

impl<'i> Found<'i> {
    fn new(info: &'i Info, limit: Option<u64>) -> Self {
        Self { info, limit, episodes: Vec::new(), frames: 0 }
    }

    fn is_full(&self) -> bool {
        self.limit.is_some_and(|limit| self.frames >= limit)
    }

    fn is_whole(&self) -> bool {
        self.episodes.len() as u64 >= self.info.total_episodes
    }

    fn add(&mut self, episode: Episode) -> Result<(), String> {
        let Episode { number, rows, .. } = episode;
        if let Some(before) = self.episodes.last().filter(|before| before.number >= number) {
            return Err(format!(
                "episode {number} comes after episode {}, and episodes are in the order of their numbers; {BROKEN}",
                before.number
            ));
        }
        if rows == 0 || rows >= MAX_EPISODES {
            return Err(format!("episode {number} has {rows} frames; {BROKEN}"));
        }
        if !self.is_full() {
            self.frames = self.frames.saturating_add(rows);
            self.episodes.push(episode);
        }
        Ok(())
    }

    fn finish(self, storage: &dyn Storage) -> Result<Vec<Episode>, DatasetError> {
        let (found, said) = (self.episodes.len() as u64, self.info.total_episodes);
        if self.is_full() || found == said {
            return Ok(self.episodes);
        }
        Err(DatasetError::BrokenFile {
            path: storage.full_path(INFO.as_bytes()),
            reason: format!("it says {said} episodes, and meta lists {found}; {BROKEN}"),
        })
    }
}

/// A line of `meta/episodes.jsonl`.
#[derive(Deserialize)]
struct EpisodeLine {
    episode_index: u64,
    length: u64,
}

fn of_lines(
    storage: &dyn Storage,
    info: &Info,
    cameras: &[&str],
    limit: Option<u64>,
    files: &mut Files,
) -> Result<Vec<Episode>, DatasetError> {
    let path = b"meta/episodes.jsonl";
    let file = open_file(storage, path)?;
    files.add(path, file.stamp);
    let mut found = Found::new(info, limit);
    visit_lines(&file, |EpisodeLine { episode_index, length }| {
        if found.is_full() {
            return Ok(());
        }
        let number = |name: &str| match name {
            "episode_chunk" => Some(episode_index / info.chunks_size),
            "episode_index" => Some(episode_index),
            _ => None,
        };
        let data = files.place(info.data_path(number)?);
        let video = |camera: &&str| Ok((files.place(info.video_path(camera, number)?), 0.0));
        let cameras = cameras.iter().map(video).collect::<Result<_, String>>()?;
        found.add(Episode { number: episode_index, rows: length, data, cameras })
    })?;
    found.finish(storage)
}

fn of_tables(
    storage: &dyn Storage,
    info: &Info,
    cameras: &[&str],
    limit: Option<u64>,
    files: &mut Files,
) -> Result<Vec<Episode>, DatasetError> {
    let mut found = Found::new(info, limit);
    let mut at = 0_u64;
    while !found.is_whole() && !found.is_full() {
        let (chunk, number) = (at / info.chunks_size, at % info.chunks_size);
        let path = format!("meta/episodes/chunk-{chunk:03}/file-{number:03}.parquet").into_bytes();
        let file = open_file(storage, &path).map_err(|error| match error {
            DatasetError::Missing { path } => DatasetError::BrokenFile {
                path,
                reason: format!(
                    "it does not exist, and the files before it list {} of the {} episodes of {INFO}; {BROKEN}",
                    found.episodes.len(),
                    info.total_episodes
                ),
            },
            error => error,
        })?;
        files.add(&path, file.stamp);
        let table = Table::new(&file)?;
        let mut places = Vec::new();
        for name in ["episode_index", "length", "data/chunk_index", "data/file_index"] {
            places.push(table.required(name)?);
        }
        for camera in cameras {
            for what in ["chunk_index", "file_index", "from_timestamp"] {
                places.push(table.required(&format!("videos/{camera}/{what}"))?);
            }
        }
        let before = found.episodes.len();
        table.visit(storage, &places, |row| {
            if found.is_full() {
                return Ok(());
            }
            let mut add = || {
                let number_of = |chunk: u64, file: u64| {
                    move |name: &str| match name {
                        "chunk_index" => Some(chunk),
                        "file_index" => Some(file),
                        _ => None,
                    }
                };
                let (number, rows) = (row.count(0)?, row.count(1)?);
                let data = info.data_path(number_of(row.count(2)?, row.count(3)?))?;
                let data = files.place(data);
                let video = |(camera, place): (&&str, usize)| {
                    let number = number_of(row.count(place)?, row.count(place + 1)?);
                    let path = info.video_path(camera, number)?;
                    Ok((files.place(path), row.seconds(place + 2)?))
                };
                let cameras = cameras.iter().zip((4..).step_by(3));
                let cameras = cameras.map(video).collect::<Result<_, String>>()?;
                found.add(Episode { number, rows, data, cameras })
            };
            add().map_err(|reason| file.fault(reason))
        })?;
        if found.episodes.len() == before {
            return Err(file.fault(format!("it lists no episodes; {BROKEN}")));
        }
        at += 1;
    }
    found.finish(storage)
}

/// The texts of tasks by their numbers; those between that are not listed are empty. None: there is no list of them.
pub(super) fn tasks(
    storage: &dyn Storage,
    info: &Info,
    files: &mut Files,
) -> Result<Option<Vec<String>>, DatasetError> {
    let path = match info.layout {
        Layout::Episodes => TASKS[0],
        Layout::Shared => TASKS[1],
    };
    let Some(file) = StoredFile::if_there(storage, path)? else { return Ok(None) };
    files.add(path, file.stamp);
    let mut tasks = Tasks::default();
    match info.layout {
        Layout::Episodes => {
            #[derive(Deserialize)]
            struct TaskLine {
                task_index: u64,
                task: String,
            }
            visit_lines(&file, |TaskLine { task_index, task }| tasks.add(task_index, &task))?;
        }
        Layout::Shared => {
            let table = Table::new(&file)?;
            let number = table.required("task_index")?;
            // The text is the index of the table that pandas writes.
            let text = ["task", "__index_level_0__"].into_iter().find_map(|name| table.place(name));
            let text = text.ok_or_else(|| {
                file.fault(format!("it has no column of the tasks' texts; {BROKEN}"))
            })?;
            table.visit(storage, &[number, text], |row| {
                let mut add = || tasks.add(row.count(0)?, row.text(1)?);
                add().map_err(|reason| file.fault(reason))
            })?;
        }
    }
    Ok(Some(tasks.texts))
}

#[derive(Default)]
struct Tasks {
    texts: Vec<String>,
    bytes: usize,
    listed: u64,
}

impl Tasks {
    fn add(&mut self, number: u64, text: &str) -> Result<(), String> {
        self.bytes = self.bytes.saturating_add(text.len());
        self.listed += 1;
        if number >= MAX_TASKS || self.bytes > MAX_TASKS_BYTES {
            return Err(format!(
                "task {number}: at most {MAX_TASKS} tasks of {MAX_TASKS_BYTES} bytes are read; {BROKEN}"
            ));
        }
        if number > MAX_TASK_GAP + 16 * self.listed {
            return Err(format!("task {number} is the {}. that it lists; {BROKEN}", self.listed));
        }
        let place = usize::try_from(number).unwrap_or(usize::MAX);
        if place >= self.texts.len() {
            self.texts.resize(place + 1, String::new());
        }
        text.clone_into(&mut self.texts[place]);
        Ok(())
    }
}
