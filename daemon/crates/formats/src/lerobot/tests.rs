//! Datasets in the layouts of LeRobot, whose files pyarrow and ffmpeg have written (`fixtures/lerobot.py`).

use std::fs;
use std::path::{Path, PathBuf};

use forebay_protocol::ids::SampleId;
use forebay_storage::location::SampleBytes;

use super::*;
use crate::conformance::{self, Format as Conforming};
use crate::testing::{EVERYWHERE, config_for, names, own_keys, sample, write_aged};
use crate::{open, propose, recognize};
use forebay_dataset::{OpenOptions, Opened};

const FPS: f64 = 10.0;
const TOP: &str = "observation.images.top";
const WRIST: &str = "observation.images.wrist";

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/lerobot")
}

fn copy(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &to),
            false => write_aged(&to, &fs::read(entry.path()).unwrap()),
        }
    }
}

/// A dataset of a version, which may be changed.
fn copied(version: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("data");
    copy(&fixtures().join(version), &root);
    (folder, root)
}

fn open_with(root: &Path, keys: &str) -> Result<Opened, String> {
    let mut config = config_for("lerobot", root);
    config.own = own_keys(keys);
    open(&config, OpenOptions::default()).map_err(|error| error.to_string())
}

/// The values of a sample.
struct Read {
    names: Vec<String>,
    arrays: Vec<Option<(Vec<u64>, Vec<f64>)>>,
    texts: Vec<Option<String>>,
    /// The times of pictures in seconds.
    times: Vec<Option<Vec<f64>>>,
    /// The bytes that were read.
    bytes: u64,
}

impl Read {
    fn place(&self, name: &str) -> usize {
        self.names.iter().position(|one| one == name).unwrap()
    }

    fn array(&self, name: &str) -> (Vec<u64>, Vec<f64>) {
        self.arrays[self.place(name)].clone().unwrap()
    }

    fn times(&self, name: &str) -> Vec<f64> {
        self.times[self.place(name)].clone().unwrap()
    }
}

fn read(opened: &Opened, id: u64) -> Read {
    let Opened { dataset, storage, .. } = opened;
    let (mut locations, mut parts) = (Vec::new(), Vec::new());
    let (mut bytes, mut ends, mut values) = (Vec::new(), Vec::new(), Vec::new());
    dataset.locate(SampleId(id), &mut locations);
    let length = storage.open_all(dataset.as_ref(), &locations, 1 << 30, &mut parts).unwrap();
    storage.read_all(dataset.as_ref(), &mut parts, &mut bytes, &mut ends).unwrap();
    dataset.read(SampleId(id), SampleBytes::new(&bytes, &ends), &mut values).unwrap();
    let names = dataset.fields().iter().map(|field| field.name.clone()).collect();
    let mut read =
        Read { names, arrays: Vec::new(), texts: Vec::new(), times: Vec::new(), bytes: length };
    for value in &values {
        let (mut array, mut text, mut times) = (None, None, None);
        match value {
            FieldValue::Array(value) => {
                let elements =
                    value.bytes.chunks_exact(usize::try_from(value.dtype.size_bytes()).unwrap());
                let elements =
                    elements.map(|bytes| match Encoding::number(value.dtype.name(), bytes) {
                        Ok(Number::Integer(number)) => number as f64,
                        Ok(Number::Float(number)) => number,
                        Err(why) => panic!("{why}"),
                    });
                array = Some((value.shape.to_vec(), elements.collect()));
            }
            FieldValue::Text(value) => text = Some(value.to_string()),
            FieldValue::Video(clip) => {
                times =
                    Some(clip.wanted.iter().map(|time| clip.time_base.seconds(*time)).collect());
            }
            other => panic!("{other:?}"),
        }
        read.arrays.push(array);
        read.texts.push(text);
        read.times.push(times);
    }
    read
}

/// Episodes of one frame, each with files of its own.
fn one_frame_each(root: &Path, count: usize, version: &str) -> PathBuf {
    let three = version == "v3";
    let from = fixtures();
    let mut info: serde_json::Value =
        serde_json::from_slice(&fs::read(from.join(version).join(INFO)).unwrap()).unwrap();
    info["total_episodes"] = count.into();
    info["features"].as_object_mut().unwrap().shift_remove(WRIST);
    write_aged(&root.join(INFO), info.to_string().as_bytes());
    let tasks = if three { "meta/tasks.parquet" } else { "meta/tasks.jsonl" };
    write_aged(&root.join(tasks), &fs::read(from.join(version).join(tasks)).unwrap());
    let video =
        fs::read(from.join("v2/videos/chunk-000").join(TOP).join("episode_000000.mp4")).unwrap();
    let mut lines = String::new();
    for number in 0..count {
        let file = |name: &str| {
            let mut bytes = fs::read(from.join(name)).unwrap();
            for (sentinel, number) in [
                (7_000_001_i64, number),
                (7_000_002, number),
                (7_000_003, number),
                (7_000_004, number + 1),
            ] {
                let sentinel = sentinel.to_le_bytes();
                let places: Vec<usize> =
                    (0..bytes.len() - 8).filter(|at| bytes[*at..*at + 8] == sentinel).collect();
                for place in places {
                    bytes[place..place + 8].copy_from_slice(&(number as u64).to_le_bytes());
                }
            }
            bytes
        };
        // What follows the boxes of an MP4 is not read.
        let mut video = video.clone();
        video.extend(b"\0\0\0\x0cfree");
        video.extend(u32::try_from(number).unwrap().to_be_bytes());
        let (data, pictures) = match three {
            true => (
                format!("data/chunk-000/file-{number:03}.parquet"),
                format!("videos/{TOP}/chunk-000/file-{number:03}.mp4"),
            ),
            false => (
                format!("data/chunk-{:03}/episode_{number:06}.parquet", number / 2),
                format!("videos/chunk-{:03}/{TOP}/episode_{number:06}.mp4", number / 2),
            ),
        };
        write_aged(&root.join(data), &file("one-data.parquet"));
        write_aged(&root.join(pictures), &video);
        if three {
            let path = format!("meta/episodes/chunk-000/file-{number:03}.parquet");
            write_aged(&root.join(path), &file("one-episode.parquet"));
        }
        lines += &format!("{{\"episode_index\": {number}, \"tasks\": [\"a\"], \"length\": 1}}\n");
    }
    if !three {
        write_aged(&root.join("meta/episodes.jsonl"), lines.as_bytes());
    }
    root.to_owned()
}

#[test]
fn recordings_of_both_layouts_conform_on_disk_and_from_urls() {
    for open in EVERYWHERE {
        for make in [
            (|root: &Path, count| one_frame_each(root, count, "v3")) as fn(&Path, usize) -> PathBuf,
            |root: &Path, count| one_frame_each(root, count, "v2"),
        ] {
            let (name, has_names, refuses_cuts) = ("lerobot", false, true);
            conformance::run(&Conforming { open, name, make, has_names, refuses_cuts });
        }
    }
}

#[test]
fn frames_of_version_3_have_the_values_and_the_pictures_of_their_instant() {
    let (_folder, root) = copied("v3");
    let unsaid = config_for("auto", &root);
    assert_eq!(recognize(&unsaid, OpenOptions::default()).unwrap(), "lerobot");
    let opened = open_with(&root, "").unwrap();
    assert_eq!(opened.report.warnings, Vec::<String>::new());
    let firsts = [0, 7, 12, 21];
    for (episode, pair) in (0_u32..).zip(firsts.windows(2)) {
        for index in pair[0]..pair[1] {
            let found = read(&opened, index);
            let number = index as f64;
            let frame = number - pair[0] as f64;
            let expected = [number, number + 0.125, number + 0.25];
            assert_eq!(found.array("observation.state"), (vec![3], expected.to_vec()));
            assert_eq!(found.array("action"), (vec![2], vec![-number, -number - 0.125]));
            assert_eq!(found.array("next.reward"), (vec![], vec![number / 4.0]));
            assert_eq!(found.array("next.done").1, [f64::from(index + 1 == pair[1])]);
            assert_eq!(found.array("frame_index").1, [frame]);
            assert_eq!(found.array("episode_index").1, [f64::from(episode)]);
            assert!((found.array("timestamp").1[0] - frame / FPS).abs() < 1e-6);
            let task = ["pick up the cube", "open the drawer"][episode as usize % 2];
            assert_eq!(found.texts[found.place("task")].as_deref(), Some(task));
            // One video has all episodes; another camera has two.
            let start = [0.0, 0.0, 0.5][episode as usize];
            for (name, time) in [(TOP, number / FPS), (WRIST, start + frame / FPS)] {
                let times = found.times(name);
                assert!(times.len() == 1 && (times[0] - time).abs() < 1e-9, "{index}: {times:?}");
            }
            assert!(found.bytes < 2000, "{} bytes", found.bytes);
        }
    }
    assert_eq!(names(&opened)[8], "data/chunk-000/file-000.parquet:8 (episode 1, frame 1)");
    assert_eq!(names(&opened)[13], "data/chunk-000/file-001.parquet:1 (episode 2, frame 1)");
    let notes = &opened.dataset.description().notes[0].1;
    assert_eq!(*notes, format!("3 episodes, 21 frames at 10 a second; 2 cameras: {TOP}, {WRIST}"));
}

#[test]
fn frames_of_version_2_are_read_from_a_file_for_each_episode() {
    let (_folder, root) = copied("v2");
    let opened = open_with(&root, "").unwrap();
    assert_eq!(opened.dataset.sample_count(), 13);
    let found = read(&opened, 11);
    assert_eq!(found.array("observation.state"), (vec![3], vec![11.0, 11.125, 11.25]));
    assert_eq!((found.array("episode_index").1[0], found.array("frame_index").1[0]), (2.0, 1.0));
    assert!((found.times(TOP)[0] - 0.1).abs() < 1e-9);
    assert_eq!(names(&opened)[11], "data/chunk-001/episode_000002.parquet:1 (episode 2, frame 1)");
    assert!(opened.dataset.description().output.is_empty());
}

#[test]
fn fields_are_stacked_over_instants_within_the_episode() {
    let (_folder, root) = copied("v3");
    let keys = format!(
        "dataset.delta_timestamps.action = [0, 0.1, 0.2]\ndataset.delta_frames.\"next.reward\" = [-2, 0]\n\
         dataset.delta_timestamps.\"{TOP}\" = [-0.1, 0.0]"
    );
    let opened = open_with(&root, &keys).unwrap();
    // The last frame of the second episode.
    let found = read(&opened, 11);
    let expected = [-11.0, -11.125].repeat(3);
    assert_eq!(found.array("action"), (vec![3, 2], expected));
    assert_eq!(found.array("action_is_pad"), (vec![3], vec![0.0, 1.0, 1.0]));
    assert_eq!(found.array("next.reward"), (vec![2], vec![9.0 / 4.0, 11.0 / 4.0]));
    assert_eq!(found.array("next.reward_is_pad").1, [0.0, 0.0]);
    let close = |times: &[f64], expected: &[f64]| {
        times.len() == expected.len()
            && times.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-9)
    };
    assert!(close(&found.times(TOP), &[1.0, 1.1]), "{:?}", found.times(TOP));
    assert_eq!(found.array("observation.state").0, [3]);
    // The first frame of the third one.
    let found = read(&opened, 12);
    assert_eq!(found.array("next.reward").1, [3.0, 3.0]);
    assert_eq!(found.array("next.reward_is_pad").1, [1.0, 0.0]);
    assert!(close(&found.times(TOP), &[1.2, 1.2]));
    assert_eq!(found.array(&format!("{TOP}_is_pad")).1, [1.0, 0.0]);
    let text = format!("{:?}", opened.dataset.fields());
    assert!(text.contains("Video { clips: None, frames: Some(2) }"), "{text}");
    // A name without quotes is a table in tables.
    let dotted = open_with(
        &root,
        "dataset.delta_frames.next.reward = [-2, 0]\ndataset.features = [\"next.reward\", \"task\"]",
    );
    let found = read(&dotted.unwrap(), 11);
    assert_eq!(found.names, ["next.reward", "next.reward_is_pad", "task"]);
    assert_eq!((found.array("next.reward").1, found.bytes), (vec![9.0 / 4.0, 11.0 / 4.0], 1));
}

#[test]
fn keys_that_no_sample_can_have_are_refused_with_the_remedy() {
    let (_folder, root) = copied("v3");
    for (keys, expected) in [
        (
            "dataset.delta_timestamps.action = [0.05]",
            "frames are 0.1 s apart: the nearest is 0.1 s",
        ),
        ("dataset.delta_timestamps.actoin = [0.1]", "did you mean \"action\"?"),
        ("dataset.delta_timestamps.action = []", "1 to 65536 are read"),
        ("dataset.delta_timestamps.action = [\"a\"]", "an array of seconds; it has \"a\""),
        ("dataset.delta_timestamps.action = 3", "must be an array of seconds"),
        ("dataset.delta_frames.action = [0.5]", "an array of whole numbers"),
        (
            "dataset.delta_frames.action = [0]\ndataset.delta_timestamps.action = [0]",
            "is set twice",
        ),
        ("dataset.delta_frames.task = [0]", "which is not stacked"),
        ("dataset.delta_frames.index = [0]", "which is not stacked"),
        ("dataset.features = [\"index\"]", "made by Forebay"),
        ("dataset.features = [\"observation.stat\"]", "did you mean \"observation.state\"?"),
        (
            "dataset.features = [\"action\"]\ndataset.delta_frames.timestamp = [0]",
            "name it in dataset.features",
        ),
    ] {
        let reason = open_with(&root, keys).unwrap_err();
        assert!(reason.contains(expected), "{keys}: {reason}");
    }
    let mut config = config_for("lerobot", &root);
    config.ids = Some(root.join(INFO));
    let reason = open(&config, OpenOptions::default()).unwrap_err().to_string();
    assert!(reason.contains("dataset.where"), "{reason}");
}

#[test]
fn conditions_use_the_values_and_the_task() {
    let (_folder, root) = copied("v3");
    let mut config = config_for("lerobot", &root);
    let mut kept = |condition: &str| {
        config.condition = Some(condition.to_owned());
        open(&config, OpenOptions::default())
            .unwrap()
            .dataset
            .kept()
            .unwrap()
            .ids()
            .collect::<Vec<_>>()
    };
    assert_eq!(kept("episode_index == 1"), (7..12).collect::<Vec<_>>());
    assert_eq!(kept("next.done == true"), [6, 11, 20]);
    assert_eq!(kept("task like 'open%' and frame_index >= 3"), [10, 11]);
    assert_eq!(kept("next.reward > 4.5"), [19, 20]);
    let fractions = vec![("train".to_owned(), 0.5), ("val".to_owned(), 0.5)];
    let mut parts = Vec::new();
    for part in ["train", "val"] {
        config.condition = None;
        let (part, by) = (part.to_owned(), Some("episode_index".to_owned()));
        config.split =
            Some(forebay_config::SplitKeys { part, fractions: fractions.clone(), seed: 0, by });
        let opened = open(&config, OpenOptions::default());
        let Ok(opened) = opened else { continue };
        parts.extend(opened.dataset.kept().unwrap().ids());
    }
    parts.sort_unstable();
    // A part without samples is refused; then the other one has all.
    assert_eq!(parts, (0..21).collect::<Vec<_>>());
}

#[test]
fn a_limit_reads_no_further_episodes() {
    let (_folder, root) = copied("v3");
    fs::remove_file(root.join("data/chunk-000/file-001.parquet")).unwrap();
    fs::remove_file(root.join("meta/episodes/chunk-000/file-001.parquet")).unwrap();
    let reason = open_with(&root, "").unwrap_err();
    assert!(
        reason.contains("file-001.parquet") && reason.contains("list 2 of the 3 episodes"),
        "{reason}"
    );
    let mut config = config_for("lerobot", &root);
    config.limit = Some(3);
    let opened = open(&config, OpenOptions::default()).unwrap();
    assert_eq!(opened.dataset.sample_count(), 3);
}

#[test]
fn changed_files_are_noticed_at_the_next_start() {
    let (folder, root) = copied("v3");
    let mut config = config_for("lerobot", &root);
    config.index = Some(folder.path().join("saved.index"));
    let open = || open(&config, OpenOptions::default()).unwrap();
    let first = open();
    assert!(!first.report.reused && open().report.reused);
    let path = root.join("data/chunk-000/file-001.parquet");
    let mut bytes = fs::read(&path).unwrap();
    let old = 15.125_f32.to_le_bytes();
    let place = bytes.windows(4).position(|bytes| bytes == old).unwrap();
    bytes[place..place + 4].copy_from_slice(&99.5_f32.to_le_bytes());
    write_aged(&path, &bytes);
    let again = open();
    assert!(!again.report.reused);
    assert_eq!(read(&again, 15).array("observation.state").1, [15.0, 99.5, 15.25]);
    assert_ne!(again.dataset.fingerprint(), first.dataset.fingerprint());
    // Statistics are offered by `forebay init`; a file of them may come later.
    let path = root.join("meta/stats.json");
    let text = fs::read_to_string(&path).unwrap();
    write_aged(&path, text.replacen("0.", "1.", 1).as_bytes());
    assert!(!open().report.reused);
    fs::remove_file(&path).unwrap();
    assert!(!open().report.reused);
    assert!(open().report.reused);
    write_aged(&path, text.as_bytes());
    assert!(!open().report.reused);
}

#[test]
fn contradictions_and_broken_files_are_named() {
    let (_folder, root) = copied("v2");
    let path = root.join("meta/episodes.jsonl");
    let lines = fs::read_to_string(&path).unwrap();
    let refused = |text: &str| {
        write_aged(&path, text.as_bytes());
        let reason = open_with(&root, "").unwrap_err();
        write_aged(&path, lines.as_bytes());
        reason
    };
    for (from, to, expected) in [
        ("\"length\": 4", "\"length\": 5", "it has 4 rows, and by the list of episodes it has 5"),
        ("\"length\": 6", "\"length\": 5", "it has 6 rows, and by the list of episodes it has 5"),
        ("\"length\": 4", "\"length\": 0", "episode 0 has 0 frames"),
        ("\"episode_index\": 1", "\"episode_index\": 0", "comes after episode 0"),
        ("\"episode_index\": 2", "\"episode_index\": 3", "episode_000003.parquet"),
        (
            "{\"episode_index\": 1",
            "{\"episode\": 1",
            "episodes.jsonl:2: it is not JSON as LeRobot writes it",
        ),
    ] {
        let reason = refused(&lines.replacen(from, to, 1));
        assert!(reason.contains(expected), "{reason}");
    }
    let tasks = root.join("meta/tasks.jsonl");
    let before = fs::read(&tasks).unwrap();
    write_aged(&tasks, b"{\"task_index\": 16777215, \"task\": \"x\"}");
    let reason = open_with(&root, "").unwrap_err();
    assert!(reason.contains("task 16777215 is the 1. that it lists"), "{reason}");
    write_aged(&tasks, &before);
    let two: String = lines.lines().take(2).map(|line| line.to_owned() + "\n").collect();
    assert!(refused(&two).contains("it says 3 episodes, and meta lists 2"));
    // The rows of another episode.
    let data = root.join("data/chunk-000");
    fs::copy(data.join("episode_000000.parquet"), data.join("episode_000001.parquet")).unwrap();
    let reason = open_with(&root, "").unwrap_err();
    assert!(
        reason.contains("row 0 is of episode 0, and by the list of episodes it is of episode 1"),
        "{reason}"
    );
}

#[test]
fn a_broken_video_makes_its_frames_bad_samples() {
    let (_folder, root) = copied("v3");
    let video = format!("videos/{WRIST}/chunk-000/file-000.mp4");
    write_aged(&root.join(&video), b"\0\0\0\x08ftyp");
    let opened = open_with(&root, "").unwrap();
    let warning = &opened.report.warnings[0];
    assert!(
        warning.starts_with("1 video of 3 have episodes") && warning.contains(&video),
        "{warning}"
    );
    let reason = sample(&opened, 2).unwrap_err();
    assert!(reason.contains(WRIST) && reason.contains("no header (`moov`)"), "{reason}");
    assert_eq!(read(&opened, 9).times(WRIST).len(), 1);
    // Without the camera nothing of it is needed.
    let others = open_with(&root, "dataset.features = [\"action\"]").unwrap();
    assert_eq!(read(&others, 2).array("action").1, [-2.0, -2.125]);
}

#[test]
fn pictures_that_are_far_from_their_frames_are_bad_samples() {
    let (_folder, root) = copied("v2");
    let path = root.join(INFO);
    let info = fs::read_to_string(&path).unwrap();
    write_aged(&path, info.replace("\"fps\": 10", "\"fps\": 9.9").as_bytes());
    let opened = open_with(&root, "dataset.tolerance = 0.0001").unwrap();
    assert!(
        opened.report.warnings[0].contains("10 frames of 13 have no picture"),
        "{:?}",
        opened.report.warnings
    );
    let reason = sample(&opened, 1).unwrap_err();
    assert!(
        reason.contains("frame 1 is at 0.1010 s of the video, and the nearest picture is 0.0010 s"),
        "{reason}"
    );
    assert!(sample(&opened, 0).is_ok());
    let opened = open_with(&root, "").unwrap();
    assert!(opened.report.warnings.is_empty() && sample(&opened, 1).is_ok());
}

#[test]
fn features_that_are_not_read_are_named() {
    let (_folder, root) = copied("v3");
    let path = root.join(INFO);
    let mut info: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    info["features"][WRIST]["info"]["video.is_depth_map"] = true.into();
    for (name, dtype) in
        [("observation.images.side", "image"), ("note", "string"), ("gone", "float32")]
    {
        info["features"][name] = serde_json::json!({ "dtype": dtype, "shape": [1], "names": null });
    }
    write_aged(&path, info.to_string().as_bytes());
    let opened = open_with(&root, "").unwrap();
    let warning = &opened.report.warnings[0];
    for part in [
        "wrist (videos of depth",
        "side (pictures in Parquet",
        "convert_image_to_video",
        "note (its type is string)",
        "gone (the Parquet files have no such column)",
    ] {
        assert!(warning.contains(part), "{warning}");
    }
    assert!(!read(&opened, 0).names.contains(&WRIST.to_owned()));
    assert!(
        open_with(&root, "dataset.features = [\"action\"]").unwrap().report.warnings.is_empty()
    );
    assert!(
        open_with(&root, "dataset.features = [\"note\"]")
            .unwrap_err()
            .contains("no feature that can be read")
    );
}

#[test]
fn a_first_configuration_decodes_each_camera_and_offers_the_statistics() {
    let (_folder, root) = copied("v3");
    let config = config_for("lerobot", &root);
    let tables = propose(&config, false, OpenOptions::default()).unwrap().draft.tables;
    for part in [
        "{ op = \"decode-video\", field = \"observation.images.top\" }",
        "{ op = \"resize\", size = [224, 224], field = \"observation.images.wrist\" }",
        "# [output.\"observation.images.top\"]\n# dtype = \"float32\"\n# mean = [0.5000, 0.2500, 0.1250]",
        "# [dataset.delta_frames]",
    ] {
        assert!(tables.contains(part), "{tables}");
    }
    assert!(!tables.contains("max_bytes"), "{tables}");
}
