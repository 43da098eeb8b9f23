//! The keys of clips.

use forebay_config::DatasetConfig;
use forebay_keys::{ConfigError, Keys, LocalPath, Value, kinds};
use forebay_video::choose::{Sampling, Short, Spacing, Start};
use forebay_video::clip::MAX_WANTED;

use forebay_index::folder::FolderKeys;

/// The highest number of frames a second.
const MAX_RATE: f64 = 100_000.0;

fn count(value: &Value) -> Option<u32> {
    match value {
        Value::Integer(count) => {
            u32::try_from(*count).ok().filter(|count| (1..=MAX_WANTED).contains(count))
        }
        _ => None,
    }
}

#[expect(clippy::cast_precision_loss, reason = "seconds and rates in a configuration")]
fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Integer(number) => Some(*number as f64),
        Value::Float(number) => Some(*number),
        _ => None,
    }
}

kinds! {
    /// A number of frames, clips or steps.
    [pub(crate)] FrameCount as u32: "a whole number from 1 to 65536";
    read(value) { count(value) }
    write(out) { Value::Integer((*out).into()) }
    schema { "type": "integer", "minimum": 1, "maximum": 65536 }

    /// The key `fps`.
    [pub(crate)] FrameRate as f64: "a number above 0 and up to 100000 (frames a second)";
    read(value) { number(value).filter(|rate| *rate > 0.0 && *rate <= MAX_RATE) }
    write(out) { Value::Float(*out) }
    schema { "type": "number", "exclusiveMinimum": 0, "maximum": 100000 }

    /// The key `start`.
    [pub(crate)] ClipStart as Start: "\"random\", \"uniform\" or a number of seconds";
    read(value) {
        match value {
            Value::String(word) if word == "random" => Some(Start::Random),
            Value::String(word) if word == "uniform" => Some(Start::Uniform),
            value => number(value).filter(|seconds| (0.0..1e9).contains(seconds)).map(Start::Seconds),
        }
    }
    write(out) {
        match out {
            Start::Random => Value::String("random".to_owned()),
            Start::Uniform => Value::String("uniform".to_owned()),
            Start::Seconds(seconds) => Value::Float(*seconds),
        }
    }
    schema { "type": ["string", "number"] }

    /// The key `short`.
    [pub(crate)] ShortVideo as Short: "\"pad\", \"repeat\" or \"drop\"";
    read(value) {
        match value.as_text()? {
            "pad" => Some(Short::Pad),
            "repeat" => Some(Short::Repeat),
            "drop" => Some(Short::Drop),
            _ => None,
        }
    }
    write(out) {
        let word = match out {
            Short::Pad => "pad",
            Short::Repeat => "repeat",
            Short::Drop => "drop",
        };
        Value::String(word.to_owned())
    }
    schema { "enum": ["pad", "repeat", "drop"] }
}

forebay_keys::keys! {
    /// The keys of folders of videos.
    pub(crate) struct VideoFolderKeys = "dataset" {
        /// a file that lists all class folders, one a line, in the order of their labels
        pub(crate) classes: LocalPath, "", absent("the sorted class folders");
        /// whether class folders may hold all their files in folders below; `false`: that is refused as a wrong
        /// `dataset.path`, such as one with `train/` and `val/`
        pub(crate) nested_classes: bool, "", default(false);
        /// whether hidden files and folders count: names with a leading dot, and those of systems such as `__MACOSX`,
        /// `@eaDir` and `lost+found`
        pub(crate) hidden: bool, "", default(false);
        /// frames of a clip
        pub(crate) frames: FrameCount, "", default(16);
        /// each so many frames of the video are one of the clip
        pub(crate) stride: FrameCount, "", absent("1; with `start = \"uniform\"` and no `fps` the frames are spread over \
            the whole video");
        /// frames of a clip are so far apart in time, whatever the rate of the video
        pub(crate) fps: FrameRate, "frames a second", absent("counted by `stride`");
        /// `"random"`: a clip begins where it fits, drawn anew each epoch; `"uniform"`: at equal distances; or so many
        /// seconds after the first frame
        pub(crate) start: ClipStart, "", default(Start::Random);
        /// clips of a sample; more than one is a dimension of its own
        pub(crate) clips: FrameCount, "", default(1);
        /// of a video that is shorter than a clip: its last frame is repeated, it begins again, or it is left out
        pub(crate) short: ShortVideo, "", default(Short::Pad);
    }
}

/// Why several clips at one time are refused, after the key.
pub(crate) const SAME_CLIPS: &str = "of more than 1 would all begin at the same time; leave it out, or set `start` to \"random\" or \"uniform\"";

/// The keys that are not those of any folder.
const OWN: [&str; 6] = ["frames", "stride", "fps", "start", "clips", "short"];

/// How clips are chosen, and the configuration without the keys that say so, for the folder's index.
pub(crate) fn split(config: &DatasetConfig) -> Result<(Sampling, DatasetConfig), ConfigError> {
    let mut own = config.own.clone();
    let keys = VideoFolderKeys::read(&mut own)?;
    let refuse =
        |key: &str, message: &str| Err(own.error_at(key, format!("dataset.{key} {message}")));
    let clips = (keys.start, keys.clips);
    let Some(spacing) = Spacing::of_keys(keys.stride, keys.fps, clips) else {
        return refuse("stride", "and dataset.fps exclude each other");
    };
    if keys.clips > 1 && matches!(keys.start, Start::Seconds(_)) {
        return refuse("clips", SAME_CLIPS);
    }
    if keys.frames.saturating_mul(keys.clips) > MAX_WANTED {
        let message = format!("and dataset.clips make more than {MAX_WANTED} frames of a sample");
        return refuse("frames", &message);
    }
    let mut config = config.clone();
    for key in OWN {
        config.own.take_located(key);
    }
    // The remaining keys are the keys of any folder.
    FolderKeys::of(&config)?;
    let VideoFolderKeys { frames, clips, start, short, .. } = keys;
    Ok((Sampling { frames, clips, spacing, start, short }, config))
}
