//! The operations that a configuration can name. A new one is a file in `operations/` and a line in [`OPERATIONS`].

use super::contract::{FieldTypes, Operation};
use super::operations;
use crate::config::{ConfigError, Located, Section, nearest};

/// Reads an operation's arguments and changes the fields as the operation will.
pub(crate) type Compile =
    fn(&mut Section, &mut FieldTypes) -> Result<Box<dyn Operation>, ConfigError>;

/// Names and what compiles them.
const OPERATIONS: &[(&str, Compile)] = &[
    ("decode-image", operations::decode_image::compile),
    ("resize", operations::resize::compile),
    ("center-crop", operations::center_crop::compile),
    ("random-crop", operations::random_crop::compile),
    ("random-resized-crop", operations::random_resized_crop::compile),
    ("random-horizontal-flip", operations::random_horizontal_flip::compile),
    ("random-vertical-flip", operations::random_vertical_flip::compile),
    ("normalize", operations::normalize::compile),
    ("delay", operations::delay::compile),
    #[cfg(test)]
    ("spin", operations::spin::compile),
];

/// Compiles one entry of a stage's `operations`.
///
/// # Errors
/// An unknown name or argument, or a field that the operation cannot work on.
pub(crate) fn compile(
    path: String,
    entry: Located,
    fields: &mut FieldTypes,
) -> Result<(&'static str, Box<dyn Operation>), ConfigError> {
    let mut arguments = Section::new(path, entry)?;
    let Some((wanted, place)) = arguments.take_placed::<String>("op")? else {
        return Err(arguments.error(format!(
            "`{}` is required: the operation's name, one of {}",
            arguments.key_path("op"),
            names()
        )));
    };
    let Some((name, compile)) = OPERATIONS.iter().find(|(name, _)| *name == wanted) else {
        let hint = nearest(&wanted, OPERATIONS.iter().map(|(name, _)| *name)).map_or_else(
            || format!("the operations are: {}", names()),
            |name| format!("did you mean `{name}`?"),
        );
        return Err(ConfigError::new(&place, format!("unknown operation {wanted:?}; {hint}")));
    };
    let operation = compile(&mut arguments, fields)?;
    arguments.finish()?;
    Ok((*name, operation))
}

fn names() -> String {
    OPERATIONS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
}
