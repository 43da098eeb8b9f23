//! The keys of recordings of robots.

use forebay_keys::{ConfigError, Keys, Located, Section, Value, keys, kinds};
use forebay_video::clip::MAX_WANTED;

/// How far a time of `delta_timestamps` may be from a frame by default, in seconds.
const TOLERANCE: f64 = 1e-4;
/// The most frames from a sample's own frame to another one of it.
const MAX_DISTANCE: i64 = 1 << 32;

/// A finite number; `None`: the value is none.
#[expect(clippy::cast_precision_loss, reason = "seconds in a configuration")]
fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Integer(number) => Some(*number as f64),
        Value::Float(number) => Some(*number),
        _ => None,
    }
    .filter(|number| number.is_finite())
}

kinds! {
    /// Names of features.
    [pub(crate)] FeatureNames as Vec<String>: "an array of names of features";
    read(value) {
        match value {
            Value::Array(items) if !items.is_empty() => {
                items.iter().map(|item| item.value.as_text().map(str::to_owned)).collect()
            }
            _ => None,
        }
    }
    write(out) { Value::Array(out.iter().map(|name| Value::String(name.clone()).into()).collect()) }
    schema { "type": "array", "items": { "type": "string" }, "minItems": 1 }

    /// The unparsed table of the frames of features.
    [pub(crate)] FramesOfFeatures as Vec<(String, Located)>: "a table of features, each with an array of numbers", type "table";
    read(value) {
        match value {
            Value::Table(entries) => Some(entries.clone()),
            _ => None,
        }
    }
    write(out) { Value::Table(out.clone()) }
    schema { "type": "object" }

    /// A time that is allowed between two that should be equal.
    [pub(crate)] Tolerance as f64: "a number of seconds from 0 to 10", type "a number";
    read(value) { number(value).filter(|seconds| (0.0..=10.0).contains(seconds)) }
    write(out) { Value::Float(*out) }
    schema { "type": "number", "minimum": 0, "maximum": 10 }
}

keys! {
    /// The keys of recordings of robots; see [Robots](../how-to/robots.md).
    pub(crate) struct RobotKeys = "dataset", check check {
        /// the features of `meta/info.json` that are fields, and `"task"`, the text of the frame's task
        pub(crate) features: FeatureNames, "", absent("all that can be read");
        /// for each feature the times that it is stacked over, relative to the sample's frame, such as `action = [0.0,
        /// 0.1]`: whole numbers of frames, clamped at the ends of the episode; a field `action_is_pad` says which were
        pub(crate) delta_timestamps: FramesOfFeatures, "seconds", absent("the frame alone");
        /// the same as numbers of frames, such as `action = [0, 1]`
        pub(crate) delta_frames: FramesOfFeatures, "frames", absent("the frame alone");
        /// how far a picture's time may be from the frame's, and a time of `delta_timestamps` from a frame
        pub(crate) tolerance: Tolerance, "seconds", absent("a quarter of a frame for pictures, 0.0001 for `delta_timestamps`");
    }
}

/// The instants of a field, relative to the sample's frame.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Instants {
    /// In seconds.
    Seconds(Vec<f64>),
    /// In frames.
    Frames(Vec<i64>),
}

impl Instants {
    /// The instants in frames.
    ///
    /// # Errors
    /// A time that is none of a frame, as a sentence.
    pub(crate) fn frames(
        &self,
        feature: &str,
        fps: f64,
        tolerance: f64,
    ) -> Result<Vec<i64>, String> {
        let seconds = match self {
            Self::Frames(frames) => return Ok(frames.clone()),
            Self::Seconds(seconds) => seconds,
        };
        let frame = |time: &f64| {
            let place = (time * fps).round();
            let distance = (time - place / fps).abs();
            #[expect(clippy::cast_possible_truncation, reason = "a cast saturates")]
            let frame = place as i64;
            let is_one = distance <= tolerance && frame.abs() <= MAX_DISTANCE;
            is_one.then_some(frame).ok_or_else(|| {
                format!(
                    "dataset.delta_timestamps of `{feature}` has {time:?} s, and frames are {:?} s apart: the nearest is {:?} s; \
                     use it, or dataset.delta_frames",
                    1.0 / fps,
                    place / fps
                )
            })
        };
        seconds.iter().map(frame).collect()
    }
}

/// Lists by the names of features. A dotted name without quotes is a table in tables: its parts are joined again.
fn flatten(prefix: &str, entries: &[(String, Located)], found: &mut Vec<(String, Located)>) {
    for (name, located) in entries {
        let name = match prefix {
            "" => name.clone(),
            prefix => format!("{prefix}.{name}"),
        };
        match &located.value {
            Value::Table(entries) => flatten(&name, entries, found),
            _ => found.push((name, located.clone())),
        }
    }
}

fn items<T>(
    section: &Section,
    (key, name): (&str, &str),
    located: &Located,
    read: impl Fn(&Value) -> Option<T>,
    what: &str,
) -> Result<Vec<T>, ConfigError> {
    let path = format!("{}.{name}", section.key_path(key));
    let refuse =
        |message: String| ConfigError::new(&located.location, format!("`{path}` {message}"));
    let Value::Array(items) = &located.value else {
        return Err(refuse(format!(
            "must be an array of {what}, not {}",
            located.value.describe()
        )));
    };
    if items.is_empty() || items.len() > MAX_WANTED as usize {
        return Err(refuse(format!("has {} {what}, and 1 to {MAX_WANTED} are read", items.len())));
    }
    let one = |item: &Located| {
        read(&item.value).ok_or_else(|| {
            refuse(format!("must be an array of {what}; it has {}", item.value.describe()))
        })
    };
    items.iter().map(one).collect()
}

fn check(keys: &mut RobotKeys, section: &Section) -> Result<(), ConfigError> {
    keys.instants(section).map(drop)
}

impl RobotKeys {
    /// The instants of each feature that has some.
    ///
    /// # Errors
    /// A table has something else, or both tables have a feature.
    pub(crate) fn instants(
        &self,
        section: &Section,
    ) -> Result<Vec<(String, Instants)>, ConfigError> {
        let mut found: Vec<(String, Instants)> = Vec::new();
        let tables =
            [("delta_timestamps", &self.delta_timestamps), ("delta_frames", &self.delta_frames)];
        for (key, table) in tables {
            let mut entries = Vec::new();
            flatten("", table.as_deref().unwrap_or_default(), &mut entries);
            for (name, located) in entries {
                let place = (key, name.as_str());
                let instants = match key {
                    "delta_frames" => {
                        let frame = |value: &Value| match value {
                            Value::Integer(frame) if frame.abs() <= MAX_DISTANCE => Some(*frame),
                            _ => None,
                        };
                        Instants::Frames(items(section, place, &located, frame, "whole numbers")?)
                    }
                    _ => Instants::Seconds(items(section, place, &located, number, "seconds")?),
                };
                if found.iter().any(|(other, _)| *other == name) {
                    let message = format!("`{}.{name}` is set twice", section.key_path(key));
                    return Err(ConfigError::new(&located.location, message));
                }
                found.push((name, instants));
            }
        }
        Ok(found)
    }

    /// How far a picture's time may be from the frame's, in seconds.
    pub(crate) fn picture_tolerance(&self, fps: f64) -> f64 {
        self.tolerance.unwrap_or(0.25 / fps)
    }

    /// How far a time of `delta_timestamps` may be from a frame, in seconds.
    pub(crate) fn instant_tolerance(&self) -> f64 {
        self.tolerance.unwrap_or(TOLERANCE)
    }

    /// The keys as text, for the index.
    pub(crate) fn text(&self) -> String {
        let entries = self.entries().into_iter();
        let entries = entries.map(|(key, value)| (key.to_owned(), value.into())).collect();
        Value::Table(entries).to_json().to_string()
    }
}
