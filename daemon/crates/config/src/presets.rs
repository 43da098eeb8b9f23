//! Named presets, and how a user's keys are merged into one.
//!
//! A preset is TOML like the user's file and has the same abilities.

use forebay_keys::nearest;
use forebay_keys::parse_toml;
use forebay_keys::{ConfigError, SourceLocation};
use forebay_keys::{Located, Value};

/// The presets' names and texts.
pub(super) const PRESETS: [(&str, &str); 7] = [
    ("imagenet-train", IMAGENET_TRAIN),
    ("imagenet-train-strong", IMAGENET_TRAIN_STRONG),
    ("imagenet-eval", IMAGENET_EVAL),
    ("detection", DETECTION),
    ("segmentation", SEGMENTATION),
    ("dino", DINO),
    ("clip", CLIP),
];

/// Torchvision's reference augmentation for training ResNet-50; the cast to float is left to the GPU.
const IMAGENET_TRAIN: &str = r#"
[dataset]
format = "image-folder"

[[stage]]
name = "preprocess"
operations = [
  { op = "decode-image" },
  { op = "random-resized-crop", size = 224 },
  { op = "random-horizontal-flip", probability = 0.5 },
]

[output]
image = { dtype = "uint8", layout = "NCHW" }
"#;

/// Augmentations of images and batches in timm's recipes for long trainings: RandAugment, random erasing, MixUp or
/// CutMix.
const IMAGENET_TRAIN_STRONG: &str = r#"
[dataset]
format = "image-folder"

[batch]
operations = [
  { op = "choice", operations = [{ op = "mixup", alpha = 0.8 }, { op = "cutmix", alpha = 1.0 }] },
]

[[stage]]
name = "preprocess"
operations = [
  { op = "decode-image" },
  { op = "random-resized-crop", size = 224, interpolation = "bicubic" },
  { op = "random-horizontal-flip", probability = 0.5 },
  { op = "rand-augment", num_ops = 2, magnitude = 9, interpolation = "bilinear", fill = [124, 116, 104] },
  { op = "random-erasing", probability = 0.25, value = "random" },
]

[output]
image = { dtype = "uint8", layout = "NCHW" }
"#;

/// Torchvision's reference evaluation: every image once, in order.
const IMAGENET_EVAL: &str = r#"
[dataset]
format = "image-folder"

[order]
shuffle = false

[batch]
last = "short"

[[stage]]
name = "preprocess"
operations = [
  { op = "decode-image" },
  { op = "resize", size = 256 },
  { op = "center-crop", size = 224 },
]

[output]
image = { dtype = "uint8", layout = "NCHW" }
"#;

/// Random crops of COCO's images, mirrored at random, with the boxes and labels inside them.
const DETECTION: &str = r#"
[dataset]
format = "coco"

[[stage]]
name = "preprocess"
operations = [
  { op = "decode-image" },
  { op = "random-resized-crop", size = 512, area = [0.3, 1.0], fields = ["image", "boxes", "labels"] },
  { op = "random-horizontal-flip", probability = 0.5, fields = ["image", "boxes", "labels"] },
]

[output]
image = { dtype = "uint8", layout = "NCHW" }
"#;

/// Random crops of images, mirrored at random, with the same crops of their masks.
const SEGMENTATION: &str = r#"
[[stage]]
name = "preprocess"
operations = [
  { op = "decode-image", field = "image" },
  { op = "decode-image", field = "mask", channels = 1, palette = "indices" },
  { op = "random-resized-crop", size = 512, area = [0.25, 1.0], fields = ["image", "mask"] },
  { op = "random-horizontal-flip", probability = 0.5, fields = ["image", "mask"] },
]

[output]
image = { dtype = "uint8", layout = "NCHW" }
"#;

/// DINO's two global and six local views of an image. The blur is Pillow's with a radius; the filter's size is
/// DINOv2's.
const DINO: &str = r#"
[dataset]
format = "image-folder"

[[stage]]
name = "preprocess"
operations = [
  { op = "decode-image" },
  { op = "views", outputs = { global = 2, local = 6 }, operations = { global_0 = [
    { op = "random-resized-crop", size = 224, area = [0.4, 1.0], interpolation = "bicubic" },
    { op = "random-horizontal-flip", probability = 0.5 },
    { op = "random-apply", probability = 0.8, operations = [
      { op = "color-jitter", brightness = 0.4, contrast = 0.4, saturation = 0.2, hue = 0.1 },
    ] },
    { op = "random-grayscale", probability = 0.2 },
    { op = "gaussian-blur", kernel_size = 9, sigma = [0.1, 2.0] },
  ], global_1 = [
    { op = "random-resized-crop", size = 224, area = [0.4, 1.0], interpolation = "bicubic" },
    { op = "random-horizontal-flip", probability = 0.5 },
    { op = "random-apply", probability = 0.8, operations = [
      { op = "color-jitter", brightness = 0.4, contrast = 0.4, saturation = 0.2, hue = 0.1 },
    ] },
    { op = "random-grayscale", probability = 0.2 },
    { op = "random-apply", probability = 0.1, operations = [
      { op = "gaussian-blur", kernel_size = 9, sigma = [0.1, 2.0] },
    ] },
    { op = "solarize", threshold = 128, probability = 0.2 },
  ], local = [
    { op = "random-resized-crop", size = 96, area = [0.05, 0.4], interpolation = "bicubic" },
    { op = "random-horizontal-flip", probability = 0.5 },
    { op = "random-apply", probability = 0.8, operations = [
      { op = "color-jitter", brightness = 0.4, contrast = 0.4, saturation = 0.2, hue = 0.1 },
    ] },
    { op = "random-grayscale", probability = 0.2 },
    { op = "random-apply", probability = 0.5, operations = [
      { op = "gaussian-blur", kernel_size = 9, sigma = [0.1, 2.0] },
    ] },
  ] } },
]

[output]
global = { dtype = "uint8", layout = "NCHW" }
local = { dtype = "uint8", layout = "NCHW" }
"#;

/// The augmentation of OpenCLIP's training; the text of the sample is unchanged.
const CLIP: &str = r#"
[[stage]]
name = "preprocess"
operations = [
  { op = "decode-image" },
  { op = "random-resized-crop", size = 224, area = [0.9, 1.0], interpolation = "bicubic" },
]

[output.image]
dtype = "float32"
layout = "NCHW"
mean = [0.48145466, 0.4578275, 0.40821073]
std = [0.26862954, 0.26130258, 0.27577711]
"#;

/// Prefix of the sources of a preset's keys.
const SOURCE: &str = "preset ";

/// Whether a value comes from a preset.
pub(super) fn is_of_preset(location: &SourceLocation) -> bool {
    location.line > 0
        && PRESETS.iter().any(|(name, _)| location.source.strip_prefix(SOURCE) == Some(name))
}

/// The tree of the preset called `name`.
pub(super) fn preset_tree(name: &Located) -> Result<Located, ConfigError> {
    let names = || PRESETS.iter().map(|(name, _)| *name);
    let listed = || names().collect::<Vec<_>>().join("`, `");
    let Value::String(wanted) = &name.value else {
        return Err(ConfigError::new(
            &name.location,
            format!("`preset` must be one of `{}`, not {}", listed(), name.value.kind()),
        ));
    };
    match PRESETS.iter().find(|(name, _)| name == wanted) {
        Some((name, text)) => parse_toml(&format!("{SOURCE}{name}"), text),
        None => {
            let hint = match nearest(wanted, names()) {
                Some(name) => format!("did you mean `{name}`?"),
                None => format!("there are `{}`", listed()),
            };
            Err(ConfigError::new(
                &name.location,
                format!("`preset`: unknown preset `{wanted}`; {hint}"),
            ))
        }
    }
}

/// Merges the user's tree into a preset's. Tables are merged key by key, and any other value replaces the preset's.
///
/// Stages are merged by name, and Python stages after them follow the preset's. If the user's file has a stage with
/// operations that the preset does not have, or a Python stage before one of the preset's, it describes all stages: the
/// preset's stages are dropped.
pub(super) fn merge(preset: &mut Located, mut user: Located) {
    let known = preset.get("stage").map(names_of).unwrap_or_default();
    let is_known = |stage: &Located| name_of(stage).is_some_and(|name| known.contains(&name));
    let is_fetch = |stage: &&Located| name_of(stage).is_none_or(|name| name == "fetch");
    let keeps_stages = match user.get("stage").map(|stages| &stages.value) {
        Some(Value::Array(stages)) => {
            let work = stages.iter().filter(|stage| !is_fetch(stage));
            let mut added = work.skip_while(|stage| is_known(stage));
            added.all(|stage| !is_known(stage) && stage.get("python").is_some())
        }
        _ => true,
    };
    if !keeps_stages && let Value::Table(entries) = &mut preset.value {
        entries.retain(|(key, _)| key != "stage");
    }
    lay_under_each_dataset(preset, &mut user);
    merge_values(preset, user, true);
}

/// Merges a preset's `[dataset]` under each `[[dataset]]` of the user, and removes it.
fn lay_under_each_dataset(preset: &mut Located, user: &mut Located) {
    let (Value::Table(preset), Value::Table(user)) = (&mut preset.value, &mut user.value) else {
        return;
    };
    let datasets = user.iter_mut().find(|(key, _)| key == "dataset");
    let Some((_, Located { value: Value::Array(items), .. })) = datasets else { return };
    let Some(place) = preset.iter().position(|(key, _)| key == "dataset") else { return };
    let (_, base) = preset.remove(place);
    for item in items {
        let over = std::mem::replace(item, base.clone());
        merge_values(item, over, true);
    }
}

/// Merges `over` into `base`; with `by_name` also arrays whose tables all have names.
pub(super) fn merge_values(base: &mut Located, over: Located, by_name: bool) {
    match (&mut base.value, over.value) {
        (Value::Table(entries), Value::Table(over_entries)) => {
            base.location = over.location;
            for (key, value) in over_entries {
                match entries.iter_mut().find(|(name, _)| *name == key) {
                    Some((_, existing)) => merge_values(existing, value, by_name),
                    None => entries.push((key, value)),
                }
            }
        }
        (Value::Array(items), Value::Array(over_items))
            if by_name && all_named(items) && all_named(&over_items) =>
        {
            base.location = over.location;
            // A name that is repeated in one file stays repeated, to be refused.
            let preset_names: Vec<String> = items.iter().filter_map(name_of).collect();
            let mut merged = Vec::new();
            for item in over_items {
                let name = name_of(&item);
                let known = preset_names.iter().position(|n| Some(n) == name.as_ref());
                match known {
                    Some(index) if !merged.contains(&index) => {
                        merged.push(index);
                        merge_values(&mut items[index], item, by_name);
                    }
                    _ => items.push(item),
                }
            }
        }
        (_, value) => {
            *base = Located { value, location: over.location };
        }
    }
}

/// The `name` of a table.
fn name_of(located: &Located) -> Option<String> {
    located.get("name")?.value.as_text().map(str::to_owned)
}

fn names_of(array: &Located) -> Vec<String> {
    match &array.value {
        Value::Array(items) => items.iter().filter_map(name_of).collect(),
        _ => Vec::new(),
    }
}

fn all_named(items: &[Located]) -> bool {
    !items.is_empty() && items.iter().all(|item| name_of(item).is_some())
}
