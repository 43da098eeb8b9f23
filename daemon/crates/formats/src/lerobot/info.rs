//! `meta/info.json`: the version, the rate, the features, and the names of files.

use serde::Deserialize;
use serde_json::Value as Json;

use super::BROKEN;

/// The file, which makes a folder one of this format.
pub(super) const INFO: &str = "meta/info.json";
/// The largest of its size, in bytes.
pub(super) const MAX_INFO_BYTES: u64 = 16 << 20;
/// The most digits to which a number in a path is widened.
const MAX_DIGITS: usize = 32;

/// The layout of a dataset's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    /// A file for each episode (versions 2.0 and 2.1).
    Episodes,
    /// Files of several episodes (version 3.0).
    Shared,
}

/// A feature as the file describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Feature {
    pub(super) name: String,
    pub(super) dtype: String,
    pub(super) shape: Vec<u64>,
    /// Whether its pictures are distances, which are coded in another way.
    pub(super) is_depth: bool,
}

impl Feature {
    /// Whether it is the pictures of a camera in video files.
    pub(super) fn is_video(&self) -> bool {
        self.dtype == "video"
    }

    /// The shape of a frame's value: a list of one number is a number, as it is in LeRobot's samples.
    pub(super) fn row_shape(&self) -> &[u64] {
        match self.shape.as_slice() {
            [1] => &[],
            shape => shape,
        }
    }
}

/// The file.
#[derive(Debug)]
pub(super) struct Info {
    pub(super) layout: Layout,
    pub(super) fps: f64,
    pub(super) total_episodes: u64,
    pub(super) chunks_size: u64,
    data_path: String,
    video_path: String,
    pub(super) features: Vec<Feature>,
}

#[derive(Deserialize)]
struct Written {
    codebase_version: Option<String>,
    fps: Option<f64>,
    total_episodes: Option<u64>,
    chunks_size: Option<u64>,
    data_path: Option<String>,
    video_path: Option<String>,
    features: Option<serde_json::Map<String, Json>>,
}

#[derive(Deserialize)]
struct WrittenFeature {
    dtype: String,
    shape: Option<Vec<u64>>,
    info: Option<Json>,
    video_info: Option<Json>,
}

const DATA: [&str; 2] = [
    "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
    "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
];
const VIDEOS: [&str; 2] = [
    "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
    "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
];

impl Info {
    /// Reads the file.
    ///
    /// # Errors
    /// What is wrong, as a sentence with its remedy.
    pub(super) fn read(bytes: &[u8]) -> Result<Self, String> {
        let written: Written = serde_json::from_slice(bytes)
            .map_err(|error| format!("it is not JSON as LeRobot writes it ({error}); {BROKEN}"))?;
        let version = written.codebase_version.ok_or_else(|| {
            "it has no `codebase_version`, so the folder is no LeRobotDataset; set dataset.format to what it is".to_owned()
        })?;
        let layout = match version.trim_start_matches('v').split('.').next() {
            Some("2") => Layout::Episodes,
            Some("3") => Layout::Shared,
            _ => {
                return Err(format!(
                    "its codebase_version is {version:?}, and 2.0, 2.1 and 3.0 are read; convert the dataset with LeRobot's \
                     scripts (convert_dataset_v1_to_v2, convert_dataset_v21_to_v30)"
                ));
            }
        };
        let needs = |key: &str| format!("it has no `{key}`; {BROKEN}");
        let fps = written.fps.ok_or_else(|| needs("fps"))?;
        if !(fps > 0.0 && fps <= 1e6) {
            return Err(format!("its `fps` is {fps}, which is no rate; {BROKEN}"));
        }
        let chunks_size = written.chunks_size.unwrap_or(1000);
        if chunks_size == 0 {
            return Err(format!("its `chunks_size` is 0; {BROKEN}"));
        }
        let features = written.features.ok_or_else(|| needs("features"))?;
        let feature = |(name, value): (String, Json)| {
            let WrittenFeature { dtype, shape, info, video_info } = serde_json::from_value(value)
                .map_err(|error| {
                format!("its feature {name:?} is unusable ({error}); {BROKEN}")
            })?;
            let is_true = |info: &Json, key: &str| info.get(key) == Some(&Json::Bool(true));
            let infos = [info, video_info];
            let is_depth = infos
                .iter()
                .flatten()
                .any(|info| is_true(info, "video.is_depth_map") || is_true(info, "is_depth_map"));
            Ok(Feature { name, dtype, shape: shape.unwrap_or_default(), is_depth })
        };
        let place = usize::from(layout == Layout::Shared);
        Ok(Self {
            layout,
            fps,
            total_episodes: written.total_episodes.ok_or_else(|| needs("total_episodes"))?,
            chunks_size,
            data_path: written.data_path.unwrap_or_else(|| DATA[place].to_owned()),
            video_path: written.video_path.unwrap_or_else(|| VIDEOS[place].to_owned()),
            features: features.into_iter().map(feature).collect::<Result<_, String>>()?,
        })
    }

    /// The path of the rows of an episode, by the name of a number.
    pub(super) fn data_path(
        &self,
        number: impl Fn(&str) -> Option<u64>,
    ) -> Result<Vec<u8>, String> {
        fill("data_path", &self.data_path, "", number)
    }

    /// The path of a video of an episode.
    pub(super) fn video_path(
        &self,
        camera: &str,
        number: impl Fn(&str) -> Option<u64>,
    ) -> Result<Vec<u8>, String> {
        fill("video_path", &self.video_path, camera, number)
    }
}

/// Fills a pattern of Python's `str.format` with numbers, some of which have a width, and with the name of a camera.
fn fill(
    key: &str,
    pattern: &str,
    camera: &str,
    number: impl Fn(&str) -> Option<u64>,
) -> Result<Vec<u8>, String> {
    let refuse = |why: &str| format!("its `{key}` is {pattern:?}, {why}; {BROKEN}");
    let (mut path, mut rest) = (String::new(), pattern);
    while let Some((before, behind)) = rest.split_once('{') {
        path.push_str(before);
        let (inner, behind) = behind.split_once('}').ok_or_else(|| refuse("which has no end"))?;
        rest = behind;
        let (name, form) = inner.split_once(':').unwrap_or((inner, ""));
        if name == "video_key" {
            path.push_str(camera);
            continue;
        }
        let value = number(name)
            .ok_or_else(|| refuse(&format!("whose `{{{name}}}` is not known in this version")))?;
        let digits = form.trim_end_matches('d');
        let width = match digits {
            "" => 0,
            digits => digits.parse().unwrap_or(usize::MAX),
        };
        if width > MAX_DIGITS {
            return Err(refuse(&format!("whose form {form:?} is not read")));
        }
        path.push_str(&format!("{value:0width$}"));
    }
    path.push_str(rest);
    // A path that leads out of the dataset, or that no file can have.
    let is_inside = path.split('/').all(|part| !["", ".", ".."].contains(&part));
    match is_inside && !path.contains('\0') {
        true => Ok(path.into_bytes()),
        false => Err(refuse(&format!("which gives {path:?}, no path in the dataset's folder"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_of_paths_are_filled() {
        let number = |name: &str| match name {
            "chunk_index" => Some(7),
            "file_index" => Some(12_345),
            _ => None,
        };
        let fill = |pattern: &str| fill("data_path", pattern, "top", number);
        let path =
            fill("videos/{video_key}/c-{chunk_index:03d}/f-{file_index:04d}-{chunk_index}.mp4");
        assert_eq!(path.unwrap(), b"videos/top/c-007/f-12345-7.mp4");
        for (pattern, why) in [
            ("a/{chunk_index", "has no end"),
            ("a/{episode:03d}", "not known"),
            ("a/{chunk_index:1000000d}", "is not read"),
            ("a/{chunk_index:x}", "is not read"),
            ("../{chunk_index}", "no path"),
            ("/etc/{chunk_index}", "no path"),
        ] {
            let reason = fill(pattern).unwrap_err();
            assert!(reason.contains(why), "{reason}");
        }
    }

    #[test]
    fn other_versions_and_broken_files_are_refused_by_name() {
        for (text, why) in [
            (r#"{"codebase_version": "v1.6", "fps": 10}"#, "convert the dataset"),
            (r#"{"fps": 10}"#, "no `codebase_version`"),
            (r#"{"codebase_version": "v3.0"}"#, "no `fps`"),
            (r#"{"codebase_version": "v3.0", "fps": 0}"#, "no rate"),
            (r#"{"codebase_version": "v3.0", "fps": 10}"#, "no `features`"),
            ("{", "not JSON"),
        ] {
            let reason = Info::read(text.as_bytes()).unwrap_err();
            assert!(reason.contains(why), "{reason}");
        }
    }
}
