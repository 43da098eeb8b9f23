//! The operations that a configuration can name. A new one is a file in `operations/` and a line in [`OPERATIONS`].

use std::path::Path;

use super::batch::{BatchOperation, CompileBatchEntry};
use super::contract::{FieldTypes, Operation};
#[cfg(test)]
use super::operations::for_tests;
#[cfg(any(test, feature = "testing"))]
use super::operations::spin;
use super::operations::{
    auto_augment, batch_choice, batch_mixes, color_jitter, crop, decode_image, delay,
    gaussian_blur, grayscale, normalize, pad, random_erasing, random_flip, random_levels,
    random_lists, random_resized_crop, resize, warps,
};
use forebay_config::{ConfigError, Keys, Located, Section, Table, nearest};

/// Reads an operation's arguments and changes the fields as the operation will.
pub(crate) type Compile =
    fn(&mut Section, &mut FieldTypes) -> Result<Box<dyn Operation>, ConfigError>;

/// Arguments and what compiles them.
const OPERATIONS: &[(Table, Compile)] = &[
    (decode_image::Arguments::TABLE, decode_image::compile),
    (resize::Arguments::TABLE, resize::compile),
    (crop::Center::TABLE, crop::compile_center),
    (crop::Random::TABLE, crop::compile_random),
    (random_resized_crop::Arguments::TABLE, random_resized_crop::compile),
    (random_flip::Horizontal::TABLE, random_flip::compile_horizontal),
    (random_flip::Vertical::TABLE, random_flip::compile_vertical),
    (pad::Arguments::TABLE, pad::compile),
    (warps::Rotate::TABLE, warps::compile_rotate),
    (warps::Affine::TABLE, warps::compile_affine),
    (warps::Perspective::TABLE, warps::compile_perspective),
    (color_jitter::Arguments::TABLE, color_jitter::compile),
    (grayscale::Always::TABLE, grayscale::compile_always),
    (grayscale::Random::TABLE, grayscale::compile_random),
    (gaussian_blur::Arguments::TABLE, gaussian_blur::compile),
    (random_levels::AdjustSharpness::TABLE, random_levels::compile_adjust_sharpness),
    (random_levels::Invert::TABLE, random_levels::compile_invert),
    (random_levels::Posterize::TABLE, random_levels::compile_posterize),
    (random_levels::Solarize::TABLE, random_levels::compile_solarize),
    (random_levels::Equalize::TABLE, random_levels::compile_equalize),
    (random_levels::Autocontrast::TABLE, random_levels::compile_autocontrast),
    (random_erasing::Arguments::TABLE, random_erasing::compile),
    (auto_augment::RandAugment::TABLE, auto_augment::compile_rand),
    (auto_augment::TrivialAugmentWide::TABLE, auto_augment::compile_trivial),
    (auto_augment::AutoAugment::TABLE, auto_augment::compile_auto),
    (auto_augment::AugMix::TABLE, auto_augment::compile_mix),
    (random_lists::Apply::TABLE, random_lists::compile_apply),
    (random_lists::Choice::TABLE, random_lists::compile_choice),
    (random_lists::Order::TABLE, random_lists::compile_order),
    (normalize::Arguments::TABLE, normalize::compile),
    (delay::Arguments::TABLE, delay::compile),
];

/// Reads a batch operation's arguments. The last compiles entries of its own.
type CompileBatch =
    fn(&mut Section, CompileBatchEntry) -> Result<Box<dyn BatchOperation>, ConfigError>;

/// The operations on complete batches: arguments and what compiles them.
const BATCH_OPERATIONS: &[(Table, CompileBatch)] = &[
    (batch_mixes::Mixup::TABLE, |section, _| batch_mixes::compile_mixup(section)),
    (batch_mixes::Cutmix::TABLE, |section, _| batch_mixes::compile_cutmix(section)),
    (batch_choice::Arguments::TABLE, batch_choice::compile),
];

/// Those of tests, which are no part of the reference.
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
    OPERATIONS.iter().map(|(table, _)| *table)
}

/// The arguments of every operation on complete batches.
pub fn batch_operation_tables() -> impl Iterator<Item = Table> {
    BATCH_OPERATIONS.iter().map(|(table, _)| *table)
}

/// Compiles one entry of a stage's `operations`.
///
/// # Errors
/// An unknown name or argument, or a field that the operation cannot work on.
pub(crate) fn compile(
    path: String,
    entry: Located,
    fields: &mut FieldTypes,
) -> Result<(&'static str, Box<dyn Operation>), ConfigError> {
    let mut arguments = Section::new(path, entry, Path::new("/"))?;
    let names = || operation_tables().map(|table| table.path);
    let all = OPERATIONS.iter().chain(TEST_OPERATIONS);
    let (table, compile) =
        named(&mut arguments, names, all.map(|(table, compile)| (table, compile)))?;
    Ok((table.path, compile(&mut arguments, fields)?))
}

/// Compiles one entry of a batch's `operations`.
///
/// # Errors
/// An unknown name or argument.
pub(crate) fn compile_batch(
    path: String,
    entry: Located,
) -> Result<Box<dyn BatchOperation>, ConfigError> {
    let mut arguments = Section::new(path, entry, Path::new("/"))?;
    let names = || batch_operation_tables().map(|table| table.path);
    let all = BATCH_OPERATIONS.iter().map(|(table, compile)| (table, compile));
    let (_, compile) = named(&mut arguments, names, all)?;
    compile(&mut arguments, compile_batch)
}

/// The operation that `op` names, of those in `all`; `names` are those that a message lists.
fn named<'o, C, N: Iterator<Item = &'static str>>(
    arguments: &mut Section,
    names: impl Fn() -> N,
    mut all: impl Iterator<Item = (&'o Table, &'o C)>,
) -> Result<(&'o Table, &'o C), ConfigError> {
    let listed = || names().collect::<Vec<_>>().join(", ");
    let Some(wanted) = arguments.take::<String>("op")? else {
        let path = arguments.key_path("op");
        let message = format!("`{path}` is required: the operation's name, one of {}", listed());
        return Err(arguments.error(message));
    };
    all.find(|(table, _)| table.path == wanted).ok_or_else(|| {
        let hint = nearest(&wanted, names()).map_or_else(
            || format!("the operations are: {}", listed()),
            |name| format!("did you mean `{name}`?"),
        );
        arguments.error_at("op", format!("unknown operation {wanted:?}; {hint}"))
    })
}
