//! The operations that a configuration can name. A new one is a file in `operations/` and a line in [`OPERATIONS`].

use std::path::Path;

use super::batch::{BatchEntry, CompileBatchEntry};
use super::contract::{FieldTypes, Operation};
#[cfg(test)]
use super::operations::for_tests;
#[cfg(feature = "sound")]
use super::operations::spectrogram;
#[cfg(any(test, feature = "testing"))]
use super::operations::spin;
use super::operations::{
    auto_augment, batch_choice, batch_mixes, batch_python, color_jitter, crop, decode_image,
    decode_raster, decode_video, delay, gaussian_blur, grayscale, image_patches, map_segments,
    normalize, pad, random_erasing, random_flip, random_levels, random_lists, random_resized_crop,
    resize, views, warps,
};
#[cfg(feature = "text")]
use super::operations::{chat, tokenize};
use forebay_keys::{ConfigError, Keys, Located, Section, Table, nearest};

/// Reads an operation's arguments and changes the fields as the operation will.
pub(crate) type Compile =
    fn(&mut Section, &mut FieldTypes) -> Result<Box<dyn Operation>, ConfigError>;

/// The arguments' table, the compile function, and example arguments that show the operation's effect on a picture of
/// 96 × 72 pixels; `None`: its effect is not visible.
const OPERATIONS: &[(Table, Compile, Option<&str>)] = &[
    (decode_image::Arguments::TABLE, decode_image::compile, None),
    (decode_raster::Arguments::TABLE, decode_raster::compile, None),
    (decode_video::Arguments::TABLE, decode_video::compile, None),
    (resize::Arguments::TABLE, resize::compile, Some("size = [72, 48]")),
    (crop::Center::TABLE, crop::compile_center, Some("size = [48, 64]")),
    (crop::Random::TABLE, crop::compile_random, Some("size = [48, 64]")),
    (random_resized_crop::Arguments::TABLE, random_resized_crop::compile, Some("size = [72, 96]")),
    (random_flip::Horizontal::TABLE, random_flip::compile_horizontal, Some("probability = 1.0")),
    (random_flip::Vertical::TABLE, random_flip::compile_vertical, Some("probability = 1.0")),
    (pad::Arguments::TABLE, pad::compile, Some("padding = 4, fill = 120")),
    (warps::Rotate::TABLE, warps::compile_rotate, Some("degrees = 40")),
    (
        warps::Affine::TABLE,
        warps::compile_affine,
        Some("degrees = 20, translate = [0.1, 0.2], scale = [0.6, 1.0], shear = 15"),
    ),
    (warps::Perspective::TABLE, warps::compile_perspective, Some("probability = 1.0")),
    (
        color_jitter::Arguments::TABLE,
        color_jitter::compile,
        Some("brightness = 0.5, contrast = 0.5, saturation = 0.5, hue = 0.2"),
    ),
    (grayscale::Always::TABLE, grayscale::compile_always, Some("")),
    (grayscale::Random::TABLE, grayscale::compile_random, Some("probability = 1.0")),
    (
        gaussian_blur::Arguments::TABLE,
        gaussian_blur::compile,
        Some("kernel_size = 9, sigma = [1.0, 3.0]"),
    ),
    (
        random_levels::AdjustSharpness::TABLE,
        random_levels::compile_adjust_sharpness,
        Some("sharpness_factor = 6.0, probability = 1.0"),
    ),
    (random_levels::Invert::TABLE, random_levels::compile_invert, Some("probability = 1.0")),
    (
        random_levels::Posterize::TABLE,
        random_levels::compile_posterize,
        Some("bits = 2, probability = 1.0"),
    ),
    (
        random_levels::Solarize::TABLE,
        random_levels::compile_solarize,
        Some("threshold = 128, probability = 1.0"),
    ),
    (random_levels::Equalize::TABLE, random_levels::compile_equalize, Some("probability = 1.0")),
    (
        random_levels::Autocontrast::TABLE,
        random_levels::compile_autocontrast,
        Some("probability = 1.0"),
    ),
    (
        random_erasing::Arguments::TABLE,
        random_erasing::compile,
        Some(r#"probability = 1.0, value = "random""#),
    ),
    (auto_augment::RandAugment::TABLE, auto_augment::compile_rand, Some("")),
    (auto_augment::TrivialAugmentWide::TABLE, auto_augment::compile_trivial, Some("")),
    (auto_augment::AutoAugment::TABLE, auto_augment::compile_auto, Some("")),
    (auto_augment::AugMix::TABLE, auto_augment::compile_mix, Some("severity = 8")),
    (
        random_lists::Apply::TABLE,
        random_lists::compile_apply,
        Some(
            r#"operations = [{ op = "posterize", bits = 2, probability = 1.0 }, { op = "rotate", degrees = [20, 20] }]"#,
        ),
    ),
    (
        random_lists::Choice::TABLE,
        random_lists::compile_choice,
        Some(
            r#"operations = [{ op = "rotate", degrees = [20, 20] }, { op = "invert", probability = 1.0 }]"#,
        ),
    ),
    (
        random_lists::Order::TABLE,
        random_lists::compile_order,
        Some(
            r#"operations = [{ op = "solarize", threshold = 128, probability = 1.0 }, { op = "color-jitter", brightness = [0.4, 0.4] }]"#,
        ),
    ),
    (
        views::Arguments::TABLE,
        views::compile,
        Some(
            r#"outputs = { view = 2 }, operations = { view = [{ op = "random-resized-crop", size = [72, 96], area = [0.1, 0.4] }] }"#,
        ),
    ),
    (normalize::Arguments::TABLE, normalize::compile, None),
    (image_patches::Arguments::TABLE, image_patches::compile, None),
    (map_segments::Arguments::TABLE, map_segments::compile, None),
    #[cfg(feature = "sound")]
    (spectrogram::Plain::TABLE, spectrogram::compile_plain, None),
    #[cfg(feature = "sound")]
    (spectrogram::Mel::TABLE, spectrogram::compile_mel, None),
    #[cfg(feature = "text")]
    (tokenize::Arguments::TABLE, tokenize::compile, None),
    #[cfg(feature = "text")]
    (chat::Arguments::TABLE, chat::compile, None),
    (delay::Arguments::TABLE, delay::compile, None),
];

/// Operations of optional features, and the feature.
const OPTIONAL: &[(&str, &str)] = &[
    ("tokenize", "text"),
    ("chat", "text"),
    ("spectrogram", "sound"),
    ("mel-spectrogram", "sound"),
];

/// Reads a batch operation's arguments. The last parameter compiles nested entries.
type CompileBatch = fn(&mut Section, CompileBatchEntry) -> Result<BatchEntry, ConfigError>;

/// The operations on complete batches: the arguments' table and the compile function.
const BATCH_OPERATIONS: &[(Table, CompileBatch)] = &[
    (batch_mixes::Mixup::TABLE, |section, _| batch_mixes::compile_mixup(section)),
    (batch_mixes::Cutmix::TABLE, |section, _| batch_mixes::compile_cutmix(section)),
    (batch_choice::Arguments::TABLE, batch_choice::compile),
    (batch_python::Arguments::TABLE, |section, _| batch_python::compile(section)),
];

/// Operations for tests, which are not part of the reference.
const TEST_OPERATIONS: &[(Table, Compile)] = &[
    #[cfg(any(test, feature = "testing"))]
    (spin::Arguments::TABLE, spin::compile),
    #[cfg(any(test, feature = "testing"))]
    (spin::Takes::TABLE, spin::compile_takes),
    #[cfg(test)]
    (for_tests::table("drop"), for_tests::compile_drop),
    #[cfg(test)]
    (for_tests::table("two-views"), for_tests::compile_two_views),
    #[cfg(test)]
    (for_tests::table("mirror-together"), for_tests::compile_mirror_together),
];

/// The arguments of every operation, for the reference; a table's path is the operation's name.
pub fn operation_tables() -> impl Iterator<Item = Table> {
    OPERATIONS.iter().map(|(table, ..)| *table)
}

/// The operations that change a picture of bytes, by name, each with example arguments in TOML for a picture of 96 × 72
/// pixels.
pub fn operation_examples() -> impl Iterator<Item = (&'static str, &'static str)> {
    OPERATIONS.iter().filter_map(|(table, _, example)| Some((table.path, (*example)?)))
}

/// The arguments of every operation on complete batches.
pub fn batch_operation_tables() -> impl Iterator<Item = Table> {
    BATCH_OPERATIONS.iter().map(|(table, _)| *table)
}

/// Compiles one entry of a stage's `operations`.
///
/// # Errors
/// An unknown name or argument, or a field that the operation does not support.
pub(crate) fn compile(
    path: String,
    entry: Located,
    fields: &mut FieldTypes,
) -> Result<(&'static str, Box<dyn Operation>), ConfigError> {
    let mut arguments = Section::new(path, entry, Path::new("/"))?;
    let names = || operation_tables().map(|table| table.path);
    refuse_named(&arguments, batch_operation_tables(), |name| {
        format!(
            "`{name}` works on complete batches: put it under `[[batch.operations]]`, not into a stage"
        )
    })?;
    let all = OPERATIONS.iter().map(|(table, compile, _)| (table, compile));
    let all = all.chain(TEST_OPERATIONS.iter().map(|(table, compile)| (table, compile)));
    let (table, compile) = named(&mut arguments, names, all)?;
    Ok((table.path, compile(&mut arguments, fields)?))
}

/// Compiles one entry of a batch's `operations`.
///
/// # Errors
/// An unknown name or argument.
pub(crate) fn compile_batch(path: String, entry: Located) -> Result<BatchEntry, ConfigError> {
    let mut arguments = Section::new(path, entry, Path::new("/"))?;
    let names = || batch_operation_tables().map(|table| table.path);
    refuse_named(&arguments, operation_tables(), |name| {
        format!(
            "`{name}` works on single samples: put it into the `operations` of a stage, not under `batch.operations`"
        )
    })?;
    let all = BATCH_OPERATIONS.iter().map(|(table, compile)| (table, compile));
    let (_, compile) = named(&mut arguments, names, all)?;
    compile(&mut arguments, compile_batch)
}

/// Refuses an entry whose `op` names an operation of these tables.
fn refuse_named(
    arguments: &Section,
    mut tables: impl Iterator<Item = Table>,
    why: impl Fn(&str) -> String,
) -> Result<(), ConfigError> {
    let op = arguments.entries().iter().find(|(key, _)| key == "op");
    let Some((name, location)) = op.and_then(|(_, op)| Some((op.value.as_text()?, &op.location)))
    else {
        return Ok(());
    };
    match tables.find(|table| table.path == name) {
        Some(_) => Err(ConfigError::new(location, why(name))),
        None => Ok(()),
    }
}

/// The error for an entry without `op`, with the remedy.
fn without_name<N: Iterator<Item = &'static str>>(
    arguments: &Section,
    names: &impl Fn() -> N,
) -> ConfigError {
    let path = arguments.key_path("op");
    let entry = path.trim_end_matches(".op");
    let example = names().next().unwrap_or_default();
    let listed = names().collect::<Vec<_>>().join(", ");
    if arguments.entries().is_empty() {
        return arguments.error(format!(
            "`{entry}` is empty: give it an `op`, such as {{ op = \"{example}\" }}, or leave it out; the operations are: \
             {listed}"
        ));
    }
    // The name may be the value of another key, or may itself be a key.
    let is_name = |text: &str| names().any(|name| name == text);
    for (key, found) in arguments.entries() {
        let name = found.value.as_text().filter(|text| is_name(text));
        let name = name.or(is_name(key).then_some(key.as_str()));
        if let Some(name) = name {
            let message =
                format!("`{path}` is required: write `op = \"{name}\"` in the place of `{key}`");
            return ConfigError::new(&found.location, message);
        }
    }
    let has_call = arguments.entries().iter().any(|(key, _)| key == "call");
    if has_call && is_name("python") {
        return arguments.error(format!("`{path}` is required: `call` needs `op = \"python\"`"));
    }
    arguments.error(format!(
        "`{path}` is required: the operation's name, such as `op = \"{example}\"`, one of {listed}"
    ))
}

/// The operation that `op` names, among `all`; `names` are listed in messages.
fn named<'o, C, N: Iterator<Item = &'static str>>(
    arguments: &mut Section,
    names: impl Fn() -> N,
    mut all: impl Iterator<Item = (&'o Table, &'o C)>,
) -> Result<(&'o Table, &'o C), ConfigError> {
    let listed = || names().collect::<Vec<_>>().join(", ");
    let Some(wanted) = arguments.take::<String>("op")? else {
        return Err(without_name(arguments, &names));
    };
    all.find(|(table, _)| table.path == wanted).ok_or_else(|| {
        if let Some((name, feature)) = OPTIONAL.iter().find(|(name, _)| *name == wanted) {
            let message =
                format!("this program is built without `{feature}`, which `{name}` needs");
            return arguments.error_at("op", message);
        }
        let hint = nearest(&wanted, names()).map_or_else(
            || format!("the operations are: {}", listed()),
            |name| format!("did you mean `{name}`?"),
        );
        arguments.error_at("op", format!("unknown operation {wanted:?}; {hint}"))
    })
}
