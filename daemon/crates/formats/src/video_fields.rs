//! Fields `as = "video"`: the keys that say which frames a sample has, and the layer that makes clips of a format's
//! bytes.

use std::path::Path;
use std::sync::Arc;

use forebay_config::DatasetConfig;
use forebay_dataset::error::DatasetError;
use forebay_dataset::{Dataset, VideoField, WithVideos};
use forebay_keys::{ConfigError, Located, Section, SourceLocation, Value, kinds};
use forebay_video::choose::{Sampling, Short, Spacing, Start};
use forebay_video::clip::MAX_WANTED;

use crate::fields::name_fault;
use crate::video_folder::{ClipStart, FrameCount, FrameRate, SAME_CLIPS, ShortVideo};

/// The value of the key `as`.
const VIDEO: &str = "video";
/// The keys that only a video has, by which a field without `as = "video"` is recognised: `start` is one of sounds, too.
pub(super) const OWN_KEYS: [&str; 7] =
    ["frames", "stride", "fps", "start_field", "clips", "short", "times"];
/// The frames of a clip, unless the configuration says how many.
const USUAL_FRAMES: u32 = 16;

kinds! {
    /// The name of another field.
    [pub(crate)] FieldName as String: "the name of a field";
    read(value) { value.as_text().filter(|name| !name.is_empty()).map(str::to_owned) }
    write(out) { Value::String(out.clone()) }
    schema { "type": "string" }
}

/// Takes the keys of a field `as = "video"`.
///
/// # Errors
/// A key has a wrong value, or contradicts another one.
pub(super) fn take_keys(name: &str, section: &mut Section) -> Result<VideoField, ConfigError> {
    let frames = section.take::<FrameCount>("frames")?.unwrap_or(USUAL_FRAMES);
    let stride = section.take::<FrameCount>("stride")?;
    let rate = section.take::<FrameRate>("fps")?;
    let start = section.take::<ClipStart>("start")?;
    let start_field = section.take::<FieldName>("start_field")?;
    let clips = section.take::<FrameCount>("clips")?.unwrap_or(1);
    let short = section.take::<ShortVideo>("short")?.unwrap_or(Short::Pad);
    let times = section.take::<FieldName>("times")?;
    let refuse = |key: &str, message: &str| {
        Err(section.error_at(key, format!("`{}` {message}", section.key_path(key))))
    };
    if start.is_some() && start_field.is_some() {
        return refuse("start_field", "and `start` exclude each other");
    }
    if short == Short::Drop {
        return refuse(
            "short",
            "can be \"drop\" in a folder of videos alone: the lengths of videos within samples are not known before they \
             are read; use \"pad\" or \"repeat\"",
        );
    }
    let is_at_a_time = start_field.is_some() || matches!(start, Some(Start::Seconds(_)));
    if clips > 1 && is_at_a_time {
        return refuse("clips", SAME_CLIPS);
    }
    if let Some(fault) = times.as_deref().and_then(name_fault) {
        return refuse("times", &format!("is refused: {fault}"));
    }
    let start = start.unwrap_or(Start::Random);
    let spacing = match Spacing::of_keys(stride, rate, (start, clips)) {
        Some(spacing) => spacing,
        None => return refuse("stride", "and `fps` exclude each other"),
    };
    if frames.saturating_mul(clips) > MAX_WANTED {
        let message = format!("and `clips` make more than {MAX_WANTED} frames of a sample");
        return refuse("frames", &message);
    }
    let sampling = Sampling { frames, clips, spacing, start, short };
    Ok(VideoField { name: name.to_owned(), sampling, start_field, times })
}

/// The videos among the fields of a configuration, and where each one is in it.
fn of_config(config: &DatasetConfig) -> Result<Vec<(VideoField, SourceLocation)>, ConfigError> {
    let mut videos = Vec::new();
    let fields = config.own.clone().take_located("fields").map(|fields| fields.value);
    let Some(Value::Table(fields)) = fields else { return Ok(videos) };
    for (name, located) in fields {
        let is_video = |(key, located): &(String, Located)| {
            key == "as" && located.value.as_text() == Some(VIDEO)
        };
        if matches!(&located.value, Value::Table(keys) if keys.iter().any(is_video)) {
            let (path, location) = (format!("dataset.fields.{name}"), located.location.clone());
            let mut section = Section::new(path, located, Path::new("/"))?;
            videos.push((take_keys(&name, &mut section)?, location));
        }
    }
    Ok(videos)
}

/// A dataset whose fields `as = "video"` are clips; unchanged without such a field.
///
/// # Errors
/// The keys of a field are wrong.
pub(super) fn with_videos(
    config: &DatasetConfig,
    dataset: Arc<dyn Dataset>,
) -> Result<Arc<dyn Dataset>, DatasetError> {
    let found = of_config(config)?;
    if found.is_empty() {
        return Ok(dataset);
    }
    let videos = found.iter().map(|(video, _)| video.clone()).collect();
    let made = WithVideos::new(dataset, videos).map_err(|(name, key, reason)| {
        let message = format!("`dataset.fields.{name}.{key}` {reason}");
        match found.iter().find(|(video, _)| video.name == name) {
            Some((_, location)) => ConfigError::new(location, message),
            None => config.own.error(message),
        }
    })?;
    Ok(Arc::new(made))
}

#[cfg(test)]
mod tests;
