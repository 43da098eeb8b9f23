//! `[dataset.tokens]` in the configuration of another format: taken out before that format reads its keys, and put back
//! with the resolved values.

use std::borrow::Cow;

use forebay_config::DatasetConfig;
use forebay_keys::{ConfigError, Keys};

use crate::registry::{self, AUTO, Format};
use crate::tokens::{FORMAT, TABLE, TokenKeys, is_integer};
use forebay_dataset::error::DatasetError;
use forebay_dataset::{Field, FieldKind};

/// Whether the samples become tokens. Those of the format `tokens` are.
pub(in super::super) fn of_texts(config: &DatasetConfig) -> bool {
    let has_keys = config.own.entries().iter().any(|(key, _)| key == TABLE);
    has_keys && config.format != FORMAT.name && config.format != AUTO
}

/// Takes the keys out of a configuration; `None`: the samples do not become tokens.
///
/// # Errors
/// A key is invalid, or none says what the tokens are made of.
pub(in super::super) fn take_keys(
    config: &mut DatasetConfig,
) -> Result<Option<TokenKeys>, ConfigError> {
    if !of_texts(config) {
        return Ok(None);
    }
    let mut section = config.own.take_section(TABLE)?;
    let keys = TokenKeys::read(&mut section)?;
    if !keys.are_made() {
        return Err(section.error(format!(
            "`dataset.tokens` is of files of tokens, and `dataset.format` is \"{}\"; give `dataset.tokens.tokenizer` to \
             make tokens of its texts, or `dataset.tokens.field` if the field has lists of token numbers",
            config.format
        )));
    }
    if keys.tokenizer.is_some() && cfg!(not(feature = "text")) {
        let message =
            "this program is built without `text`, which `dataset.tokens.tokenizer` needs";
        return Err(section.error_at("tokenizer", message));
    }
    Ok(Some(keys))
}

/// Puts resolved keys back.
pub(in super::super) fn put_back(config: &mut DatasetConfig, keys: Option<TokenKeys>) {
    if let Some(keys) = keys {
        config.own.put(TABLE, keys.to_value());
    }
}

/// The configuration of the samples, without the keys of the tokens.
pub(in super::super) fn source(config: &DatasetConfig) -> Cow<'_, DatasetConfig> {
    if !of_texts(config) {
        return Cow::Borrowed(config);
    }
    let mut source = config.clone();
    source.own.remove(TABLE);
    source.limit = None;
    Cow::Owned(source)
}

/// Refuses formats in which a changed file would not be noticed.
pub(super) fn check_format(config: &DatasetConfig) -> Result<(), DatasetError> {
    let has_versions = |format: &&Format| format.has_versions;
    if registry::find(&config.format).is_some_and(|format| format.has_versions) {
        return Ok(());
    }
    let usable: Vec<_> =
        registry::formats().iter().filter(has_versions).map(|format| format.name).collect();
    let message = format!(
        "`dataset.tokens.tokenizer` and `field` are of formats whose index has the version of each file, which `{}` is \
         not: {}",
        config.format,
        usable.join(", ")
    );
    Err(config.own.error(message).into())
}

/// The place of the field that becomes tokens.
pub(super) fn find_field(
    config: &DatasetConfig,
    keys: &TokenKeys,
    fields: &[Field],
) -> Result<usize, DatasetError> {
    let is_usable = |field: &Field| match (&keys.tokenizer, &field.kind) {
        (Some(_), FieldKind::Text) => true,
        (None, FieldKind::Array { dtype, shape }) => shape.len() == 1 && is_integer(*dtype),
        (None, FieldKind::RaggedArray { dtype, row_shape }) => {
            row_shape.is_empty() && is_integer(*dtype)
        }
        _ => false,
    };
    let expected = match keys.tokenizer {
        Some(_) => "text",
        None => "a list of whole numbers",
    };
    let usable: Vec<_> = (0..fields.len()).filter(|place| is_usable(&fields[*place])).collect();
    let named = keys.field.as_ref().map(|name| {
        let place = fields.iter().position(|field| field.name == *name);
        (name, place.filter(|place| usable.contains(place)), place)
    });
    let names = |places: &[usize]| {
        let names = places.iter().map(|place| format!("`{}`", fields[*place].name));
        match places.is_empty() {
            true => "none".to_owned(),
            false => names.collect::<Vec<_>>().join(", "),
        }
    };
    let reason = match (named, &usable[..]) {
        (Some((_, Some(place), _)), _) => return Ok(place),
        (None, [only]) => return Ok(*only),
        (Some((name, None, Some(_))), _) => {
            format!(
                "dataset.tokens.field is {name:?}, which is not {expected}; those that are: {}",
                names(&usable)
            )
        }
        (Some((name, None, None)), _) => {
            let all: Vec<_> = (0..fields.len()).collect();
            format!("dataset.tokens.field is {name:?}, and the fields are {}", names(&all))
        }
        (None, []) => format!(
            "none of its fields is {expected}; in dataset.fields a field of bytes becomes text by as = \"text\""
        ),
        (None, several) => {
            format!("set dataset.tokens.field to the one that becomes tokens: {}", names(several))
        }
    };
    Err(DatasetError::BrokenFile { path: config.path.clone(), reason })
}
