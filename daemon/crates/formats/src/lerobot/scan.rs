//! Reads a dataset for an index: the lists of `meta`, the rows of all files, and the headers of all videos.

use std::collections::BTreeMap;

use serde_json::Value as Json;

use forebay_dataset::error::DatasetError;
use forebay_index::saved_index::{now_seconds, open_file};
use forebay_index::shards::{self, Pace, Scanned};
use forebay_index::stored_file::StoredFile;
use forebay_protocol::counted::counted;
use forebay_storage::Storage;
use forebay_storage::version::FileStamp;

use super::LeRobot;
use super::episodes::{self, Episode, Files};
use super::index::{Column, Contents, Form, Known, Rules, Statistics, build, entry_bytes};
use super::info::{Feature, INFO, Info, MAX_INFO_BYTES};
use super::pictures::{Clock, Looked, Part, look};
use super::rows::Table;
use super::values::{self, Chosen};
use crate::indexed::Opening;

/// The largest file of statistics, in bytes.
const MAX_STATISTICS_BYTES: u64 = 64 << 20;

/// What one file gave: the values of its frames, or what it has of each episode.
enum FromFile {
    Rows(Vec<u8>, FileStamp),
    Video(Looked),
}

impl Scanned for FromFile {
    /// Files are read as a whole.
    fn samples(&self) -> usize {
        0
    }
}

/// The file of the dataset's description.
pub(super) fn read_info(storage: &dyn Storage) -> Result<(Info, FileStamp), DatasetError> {
    let file = open_file(storage, INFO.as_bytes())?;
    let info = Info::read(&file.read_whole(MAX_INFO_BYTES)?);
    Ok((info.map_err(|reason| file.fault(reason))?, file.stamp))
}

/// Reads everything and lays out an index.
pub(super) fn make(
    opening: &Opening<'_, LeRobot>,
    warnings: &mut Vec<String>,
) -> Result<Vec<u8>, DatasetError> {
    let scan_started_seconds = now_seconds();
    let Opening { request, storage, keys, .. } = opening;
    let storage = *storage;
    request.check_limit()?;
    let refuse =
        |reason: String| DatasetError::BrokenFile { path: request.config.path.clone(), reason };
    if request.config.ids.is_some() {
        return Err(refuse(
            "dataset.ids names samples, and frames have no names; choose episodes with dataset.where, as in \"episode_index < \
             100\""
                .to_owned(),
        ));
    }
    let (info, stamp) = read_info(storage)?;
    let mut files = Files::default();
    files.place(INFO.as_bytes().to_vec());
    files.stamps[0] = stamp;
    let tasks = episodes::tasks(storage, &info, &mut files)?;
    let (cameras, mut left_out) = cameras(&info);
    let limit = request.config.limit;
    let episodes = episodes::read(storage, &info, &cameras, limit, &mut files)?;
    let Some(first) = episodes.first() else {
        return Err(request.no_samples(format!("{INFO} says that it has no episodes")));
    };
    let Chosen { columns, row_bytes, left_out: unread } = {
        let file = open_file(storage, &files.paths[first.data])?;
        values::choose(&Table::new(&file)?, &info.features)?
    };
    left_out.extend(unread);
    let statistics = statistics(storage, &mut files)?;
    let rules = Rules {
        features: features(&info, &cameras, &columns, &statistics),
        tasks,
        fps: info.fps,
        keys: keys.text(),
    };
    let planned = LeRobot::plan_of(&rules, keys).map_err(&refuse)?;
    LeRobot::check_size(&planned, request.config.limits.sample_bytes).map_err(&refuse)?;
    if !left_out.is_empty() && keys.keys.features.is_none() {
        warnings.push(format!("features that no field was made of: {}", left_out.join(", ")));
    }
    let tolerance = keys.keys.picture_tolerance(info.fps);
    let clock = Clock { fps: info.fps, tolerance };
    let all = Wanted::of(&episodes, limit.is_some());
    let found = shards::scan(all.files.len(), None, request.options.progress, &|place, pace| {
        all.read(storage, &files, (place, pace), &columns, clock)
    })?;
    let Gathered { first_rows, values, entries, missed } = all.gather(found, &mut files, warnings);
    if missed > 0 {
        let frames: u64 = episodes.iter().map(|episode| episode.rows).sum();
        let of = frames.saturating_mul(cameras.len() as u64);
        if missed == of {
            return Err(refuse(format!(
                "no frame has a picture within {:.4} s; raise dataset.tolerance, or write the videos again with the times of \
                 meta",
                clock.tolerance
            )));
        }
        warnings.push(format!(
            "{} of {of} have no picture within {:.4} s, and are bad samples; dataset.tolerance sets another distance",
            counted(missed, "frame"),
            clock.tolerance
        ));
    }
    // Cannot fail: words and numbers only.
    let text = serde_json::to_string(&rules).unwrap_or_default();
    Ok(build(Contents {
        files: &files,
        episodes: &episodes,
        first_rows: &first_rows,
        entries: entries.into_iter().map(entry_bytes).collect(),
        values,
        row_bytes,
        rules: &text,
        keys: [&request.identity, &request.digest],
        scan_started_seconds,
        limit,
    }))
}

/// The cameras whose pictures are read, and the others, with why.
fn cameras(info: &Info) -> (Vec<&str>, Vec<String>) {
    let (mut cameras, mut left_out) = (Vec::new(), Vec::new());
    for Feature { name, is_depth, .. } in info.features.iter().filter(|one| one.is_video()) {
        match is_depth {
            true => left_out.push(format!("{name} (videos of depth are not read)")),
            false => cameras.push(name.as_str()),
        }
    }
    (cameras, left_out)
}

fn features(
    info: &Info,
    cameras: &[&str],
    columns: &[(String, Column)],
    statistics: &BTreeMap<String, Statistics>,
) -> Vec<Known> {
    let known = |Feature { name, .. }: &Feature| {
        let camera = cameras.iter().position(|camera| camera == name);
        let form = match camera {
            Some(place) => Form::Camera { place, statistics: statistics.get(name).cloned() },
            None => Form::Column(columns.iter().find(|(column, _)| column == name)?.1.clone()),
        };
        Some(Known { name: name.clone(), form })
    };
    info.features.iter().filter_map(known).collect()
}

/// The file of means and deviations.
pub(super) const STATISTICS: &[u8] = b"meta/stats.json";

/// Mean and deviation of three channels, of each feature that has them.
fn statistics(
    storage: &dyn Storage,
    files: &mut Files,
) -> Result<BTreeMap<String, Statistics>, DatasetError> {
    let mut found = BTreeMap::new();
    let Some(file) = StoredFile::if_there(storage, STATISTICS)? else { return Ok(found) };
    files.add(STATISTICS, file.stamp);
    let all: serde_json::Map<String, Json> =
        serde_json::from_slice(&file.read_whole(MAX_STATISTICS_BYTES)?)
            .map_err(|error| file.fault(format!("it is not JSON as LeRobot writes it: {error}")))?;
    let numbers = |feature: &Json, key: &str| {
        let channels = feature.get(key)?.as_array()?.iter();
        // A channel's number is in a list for each dimension of a picture.
        let number = |mut value: &'_ Json| loop {
            match value {
                Json::Array(items) => value = items.first()?,
                value => break value.as_f64(),
            }
        };
        let numbers: Vec<f64> = channels.map(number).collect::<Option<_>>()?;
        (numbers.len() == 3).then_some(numbers)
    };
    for (name, feature) in &all {
        if let (Some(mean), Some(std)) = (numbers(feature, "mean"), numbers(feature, "std")) {
            found.insert(name.clone(), Statistics { mean, std });
        }
    }
    Ok(found)
}

/// The files to read, and what is wanted of each.
struct Wanted<'e> {
    episodes: &'e [Episode],
    /// The numbers of the files of rows, in the order of their first episodes, then of videos.
    files: Vec<usize>,
    /// By file of rows: its episodes.
    rows: BTreeMap<usize, Vec<usize>>,
    /// By video: its episodes, each with the place of the camera.
    videos: BTreeMap<usize, Vec<(usize, usize)>>,
    /// Whether files may have rows of further episodes.
    is_cut: bool,
}

/// What all files gave.
struct Gathered {
    first_rows: Vec<u64>,
    values: Vec<Vec<u8>>,
    entries: Vec<super::index::Entry>,
    missed: u64,
}

impl<'e> Wanted<'e> {
    fn of(episodes: &'e [Episode], is_cut: bool) -> Self {
        let (mut rows, mut videos) = (BTreeMap::new(), BTreeMap::new());
        let mut files = Vec::new();
        for (place, episode) in episodes.iter().enumerate() {
            let of_file: &mut Vec<usize> = rows.entry(episode.data).or_default();
            if of_file.is_empty() {
                files.push(episode.data);
            }
            of_file.push(place);
            for (camera, (video, _)) in episode.cameras.iter().enumerate() {
                let of_video: &mut Vec<(usize, usize)> = videos.entry(*video).or_default();
                of_video.push((place, camera));
            }
        }
        files.extend(videos.keys());
        Self { episodes, files, rows, videos, is_cut }
    }

    fn read(
        &self,
        storage: &dyn Storage,
        files: &Files,
        (place, pace): (usize, &dyn Pace),
        columns: &[(String, Column)],
        clock: Clock,
    ) -> Result<FromFile, DatasetError> {
        let file = self.files[place];
        let path = &files.paths[file];
        if place < self.rows.len() {
            let own: Vec<&Episode> =
                self.rows[&file].iter().map(|place| &self.episodes[*place]).collect();
            let (values, stamp) = values::read(storage, path, columns, &own, self.is_cut, pace)?;
            return Ok(FromFile::Rows(values, stamp));
        }
        let part = |(place, camera): &(usize, usize)| {
            let episode = &self.episodes[*place];
            Part { start: episode.cameras[*camera].1, rows: episode.rows }
        };
        let parts: Vec<Part> = self.videos[&file].iter().map(part).collect();
        look(storage, path, &parts, clock).map(FromFile::Video)
    }

    /// Brings everything in the order of episodes.
    fn gather(
        &self,
        found: Vec<FromFile>,
        files: &mut Files,
        warnings: &mut Vec<String>,
    ) -> Gathered {
        let cameras = self.episodes.first().map_or(0, |episode| episode.cameras.len());
        let none = || Err("it was not looked at".to_owned());
        let mut entries: Vec<_> = (0..cameras * self.episodes.len()).map(|_| none()).collect();
        let mut first_rows = vec![0; self.episodes.len()];
        let mut values = vec![Vec::new(); self.episodes.len()];
        let (mut missed, mut bad) = (0, Vec::new());
        for (file, from) in self.files.iter().zip(found) {
            match from {
                FromFile::Rows(all, stamp) => {
                    files.stamps[*file] = stamp;
                    let own = &self.rows[file];
                    let rows: u64 = own.iter().map(|place| self.episodes[*place].rows).sum();
                    let row_bytes = all.len() / usize::try_from(rows).unwrap_or(1).max(1);
                    let mut row = 0;
                    for place in own {
                        first_rows[*place] = row as u64;
                        let end = row + usize::try_from(self.episodes[*place].rows).unwrap_or(0);
                        values[*place] = all[row * row_bytes..end * row_bytes].to_vec();
                        row = end;
                    }
                }
                FromFile::Video(Looked { entries: own, missed: more, stamp }) => {
                    files.stamps[*file] = stamp;
                    missed += more;
                    if let Some(Err(reason)) = own.iter().find(|entry| entry.is_err()) {
                        bad.push((*file, reason.clone()));
                    }
                    for ((place, camera), entry) in self.videos[file].iter().zip(own) {
                        entries[place * cameras + camera] = entry;
                    }
                }
            }
        }
        if let Some((file, reason)) = bad.first() {
            warnings.push(format!(
                "{} of {} have episodes that are bad samples; the first is {}: {reason}",
                counted(bad.len(), "video"),
                self.videos.len(),
                String::from_utf8_lossy(&files.paths[*file])
            ));
        }
        Gathered { first_rows, values, entries, missed }
    }
}
