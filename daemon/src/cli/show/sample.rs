//! One row of a batch in the form that a page draws: images, boxes, texts and values.

use std::borrow::Cow;
use std::collections::BTreeSet;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use forebay_client::finish::mix_rows;
use forebay_client::{Batch, DType, Tensor};
use forebay_config::Config;
use forebay_keys::Value as ConfigValue;
use forebay_protocol::tensor::TensorSpec;
use serde_json::{Value, json};

use crate::cli::values::{begin, described, numbers};

/// The most frames of a video in a line.
const FRAMES_ACROSS: usize = 8;
/// Images with a longer side are drawn with every second, third, … pixel.
const MAX_SIDE: usize = 512;
/// The maximum number of classes in a mask.
const MAX_CLASSES: usize = 64;

/// The names of the classes, and the fields that contain labels.
#[derive(Debug)]
pub(super) struct Classes<'a> {
    names: &'a [String],
    /// The fields with `classes` in `[dataset.fields]`.
    fields: Vec<&'a str>,
}

impl<'a> Classes<'a> {
    pub(super) fn new(names: &'a [String], config: &'a Config) -> Self {
        let own = std::iter::once(&config.dataset).chain(&config.more_datasets);
        let own = own.flat_map(|dataset| dataset.own.entries());
        let tables =
            own.filter(|(key, _)| key == "fields").filter_map(|(_, fields)| match &fields.value {
                ConfigValue::Table(fields) => Some(fields),
                _ => None,
            });
        let has_classes = |field: &ConfigValue| match field {
            ConfigValue::Table(keys) => keys.iter().any(|(key, _)| key == "classes"),
            _ => false,
        };
        let fields = tables.flatten().filter(|(_, field)| has_classes(&field.value));
        Self { names, fields: fields.map(|(name, _)| name.as_str()).collect() }
    }

    /// Whether a field contains labels: by the configuration, or by its name in formats and operations.
    fn are_in(&self, field: &str) -> bool {
        matches!(field, "label" | "label_b" | "labels") || self.fields.contains(&field)
    }

    /// The class of a label, if there is one.
    fn name(&self, label: i64) -> Option<&'a str> {
        self.names.get(usize::try_from(label).ok()?).map(String::as_str)
    }
}

/// The fields of a row except `index`, in the order of the tensors.
pub(super) fn fields(batch: &Batch, row: usize, classes: &Classes<'_>) -> Vec<Value> {
    let shown = batch.tensors().zip(batch.specs()).filter(|(tensor, _)| tensor.name() != "index");
    let mut fields: Vec<Value> =
        shown.map(|(tensor, spec)| field(&tensor, spec, row, classes)).collect();
    lay_masks_over_pictures(&mut fields);
    name_boxes(&mut fields);
    fields
}

/// Labels belong to the boxes if they are equal in number.
fn name_boxes(fields: &mut [Value]) {
    let count = |value: &Value| value.as_array().map(Vec::len);
    let labels: Vec<Value> =
        fields.iter().filter(|field| field["labels"].is_array()).cloned().collect();
    for field in fields.iter_mut().filter(|field| field["boxes"].is_array()) {
        let of = labels.iter().find(|one| count(&one["labels"]) == count(&field["boxes"]));
        if let Some(of) = of {
            field["labels"] = of["labels"].clone();
            field["names"] = of["names"].clone();
        }
    }
}

/// A field with one channel and few levels is a mask of a colour image with the same size: it is drawn over the image.
fn lay_masks_over_pictures(fields: &mut [Value]) {
    let size =
        |field: &Value| (field["width"].clone(), field["height"].clone(), field["step"].clone());
    let coloured = fields.iter().find(|field| field["channels"].as_u64() >= Some(3));
    let Some((name, of)) = coloured.map(|field| (field["name"].clone(), size(field))) else {
        return;
    };
    for field in fields {
        if field["levels"].is_u64() && size(field) == of {
            field["mask_of"] = name.clone();
        }
    }
}

fn field(tensor: &Tensor<'_>, spec: &TensorSpec, row: usize, classes: &Classes<'_>) -> Value {
    let size = |extent: u64| usize::try_from(extent).unwrap_or(0);
    let name = tensor.name();
    let shape: Vec<usize> = tensor.row_shape().iter().map(|extent| size(*extent)).collect();
    if let Some(ragged) = tensor.ragged() {
        let bytes = ragged.row_bytes(row).unwrap_or_default();
        if tensor.dtype() == DType::U8 && shape.is_empty() {
            return match std::str::from_utf8(bytes) {
                Ok(text) => json!({ "name": name, "text": begin(text) }),
                Err(_) => json!({ "name": name, "value": format!("{} bytes", bytes.len()) }),
            };
        }
        let values = numbers(bytes, tensor.dtype());
        if shape == [4] && tensor.dtype() == DType::F32 {
            let boxes: Vec<&[f64]> = values.chunks_exact(4).collect();
            return json!({ "name": name, "boxes": boxes });
        }
        if shape.is_empty() && tensor.dtype() == DType::I64 && classes.are_in(name) {
            let labels: Vec<i64> = labels(bytes).collect();
            let name_of =
                |label: &i64| classes.name(*label).map_or(label.to_string(), str::to_owned);
            let names: Vec<String> = labels.iter().map(name_of).collect();
            let value = described(&values, tensor.dtype(), &[labels.len()]);
            return json!({ "name": name, "labels": labels, "names": names, "value": value });
        }
        let rows = ragged.row_len(row).unwrap_or(0);
        let shape: Vec<usize> = std::iter::once(rows).chain(shape).collect();
        return json!({ "name": name, "value": described(&values, tensor.dtype(), &shape) });
    }
    let row_bytes = shape.iter().product::<usize>() * size(tensor.dtype().size_bytes());
    let bytes = mixed_row(tensor, spec, row, row_bytes);
    let values = numbers(&bytes, tensor.dtype());
    let drawn = picture(&values, &shape, spec).or_else(|| frames(&values, &shape, spec));
    if let Some(mut drawn) = drawn {
        drawn["name"] = name.into();
        return drawn;
    }
    if shape.is_empty()
        && tensor.dtype() == DType::I64
        && classes.are_in(name)
        && let Some(class) = labels(&bytes).next().and_then(|label| classes.name(label))
    {
        let number = described(&values, tensor.dtype(), &shape);
        return json!({ "name": name, "class": class, "value": number });
    }
    json!({ "name": name, "value": described(&values, tensor.dtype(), &shape) })
}

fn labels(bytes: &[u8]) -> impl Iterator<Item = i64> {
    let (labels, _) = bytes.as_chunks();
    labels.iter().map(|label| i64::from_ne_bytes(*label))
}

/// A row's bytes; for images that a GPU would finish and mix, the mixed bytes.
fn mixed_row<'t>(
    tensor: &Tensor<'t>,
    spec: &TensorSpec,
    row: usize,
    row_bytes: usize,
) -> Cow<'t, [u8]> {
    let all = tensor.bytes();
    let of = |row: usize| all.get(row * row_bytes..(row + 1) * row_bytes).unwrap_or_default();
    let partner = (all.len() / row_bytes.max(1)).checked_sub(1 + row);
    let mixes = tensor.mixes().unwrap_or_default();
    let (Some(partner), false) = (partner.filter(|partner| *partner != row), mixes.is_empty())
    else {
        return Cow::Borrowed(of(row));
    };
    let mut pair = [of(row), of(partner)].concat();
    if mix_rows(spec, &mixes, 2, &mut pair).is_err() {
        return Cow::Borrowed(of(row));
    }
    pair.truncate(row_bytes);
    Cow::Owned(pair)
}

/// The frames of a video side by side, those of each clip in lines of their own; `None` if it is none.
fn frames(values: &[f64], shape: &[usize], spec: &TensorSpec) -> Option<Value> {
    let (counts, frame) = shape.split_at_checked(shape.len().checked_sub(3)?)?;
    let [first, second, third] = <[usize; 3]>::try_from(frame).ok()?;
    let (height, width, channels) =
        if spec.channels_last { (first, second, third) } else { (second, third, first) };
    let of_clip = *counts.last()?;
    let count = counts.iter().product::<usize>();
    if counts.len() > 2
        || count * height * width == 0
        || values.len() != count * first * second * third
    {
        return None;
    }
    let across = of_clip.min(FRAMES_ACROSS);
    let step = (height.max(width) * across).div_ceil(MAX_SIDE);
    let (drawn_height, drawn_width) = (height.div_ceil(step), width.div_ceil(step));
    let lines = of_clip.div_ceil(across);
    let all = [count / of_clip * lines * drawn_height, across * drawn_width, channels];
    let mut drawn = vec![0.0; all.iter().product()];
    for (number, frame) in values.chunks_exact(height * width * channels).enumerate() {
        let (clip, place) = (number / of_clip, number % of_clip);
        let (line, left) = (clip * lines + place / across, place % across);
        for row in 0..drawn_height {
            for column in 0..drawn_width {
                let at = (line * drawn_height + row) * all[1] + left * drawn_width + column;
                for channel in 0..channels {
                    let from = match spec.channels_last {
                        true => (row * step * width + column * step) * channels + channel,
                        false => (channel * height + row * step) * width + column * step,
                    };
                    drawn[at * channels + channel] = frame[from];
                }
            }
        }
    }
    picture(&drawn, &all, &TensorSpec { channels_last: true, ..spec.clone() })
}

/// The pixels of an image with three dimensions and 1, 3 or 4 channels: height × width × channels, one byte each.
fn picture(values: &[f64], shape: &[usize], spec: &TensorSpec) -> Option<Value> {
    let [first, second, third] = <[usize; 3]>::try_from(shape).ok()?;
    let (height, width, channels) =
        if spec.channels_last { (first, second, third) } else { (second, third, first) };
    if !matches!(channels, 1 | 3 | 4)
        || height * width == 0
        || values.len() != height * width * channels
    {
        return None;
    }
    let is_bytes = spec.dtype == DType::U8;
    let finite = || values.iter().copied().filter(|value| value.is_finite());
    let (least, most) = if is_bytes {
        (0.0, 255.0)
    } else {
        (finite().fold(f64::INFINITY, f64::min), finite().fold(f64::NEG_INFINITY, f64::max))
    };
    let step = height.max(width).div_ceil(MAX_SIDE);
    let scale = 255.0 / (most - least).max(f64::MIN_POSITIVE);
    let mut pixels = Vec::with_capacity((height / step + 1) * (width / step + 1) * channels);
    for row in (0..height).step_by(step) {
        for column in (0..width).step_by(step) {
            for channel in 0..channels {
                let place = if spec.channels_last {
                    (row * width + column) * channels + channel
                } else {
                    (channel * height + row) * width + column
                };
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "between 0 and 255; a value that is no number becomes 0"
                )]
                pixels.push(((values[place] - least) * scale).round().clamp(0.0, 255.0) as u8);
            }
        }
    }
    let levels = pixels.iter().collect::<BTreeSet<_>>().len();
    let levels = (is_bytes && channels == 1 && levels <= MAX_CLASSES).then_some(levels);
    let range = (!is_bytes).then(|| format!("drawn from {least:.3} to {most:.3}"));
    Some(json!({
        "width": width.div_ceil(step),
        "height": height.div_ceil(step),
        "step": step,
        "channels": channels,
        "pixels": BASE64_STANDARD.encode(&pixels),
        "note": range,
        "levels": levels,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_side_by_side_and_clips_below_each_other() {
        let spec = TensorSpec::dense("video", DType::U8, &[2, 3, 3, 1, 2]);
        // Two clips of three frames of 2 × 1 pixels, in planes; the values count.
        let values: Vec<f64> = (0..36).map(f64::from).collect();
        let drawn = frames(&values, &[2, 3, 3, 1, 2], &spec).unwrap();
        assert_eq!((drawn["width"].as_u64(), drawn["height"].as_u64()), (Some(6), Some(2)));
        let pixels = BASE64_STANDARD.decode(drawn["pixels"].as_str().unwrap()).unwrap();
        assert_eq!(pixels[..9], [0, 2, 4, 1, 3, 5, 6, 8, 10]);
        assert_eq!(pixels[18..24], [18, 20, 22, 19, 21, 23]);
        assert!(frames(&values, &[6, 6], &spec).is_none());
        // More frames than fit into a line, and pixels that are left out.
        let side = 2 * MAX_SIDE / FRAMES_ACROSS;
        let long = vec![7.0; 9 * side * side * 3];
        let drawn = frames(&long, &[9, 3, side, side], &spec).unwrap();
        let sides = (MAX_SIDE as u64, (MAX_SIDE / 4) as u64);
        assert_eq!(
            (drawn["width"].as_u64(), drawn["height"].as_u64()),
            (Some(sides.0), Some(sides.1))
        );
    }
}
