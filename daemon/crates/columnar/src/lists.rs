//! The rule by which lists become arrays or JSON, for Arrow and Parquet alike.
//!
//! A list of numbers is an array: of one dimension, or of more if the inner lists have a fixed length. Other lists, and
//! structs, are JSON, which only a configuration that names the column asks for.

use crate::{ArrayForm, Feature};

/// Why a list of texts or bytes is no array.
pub(crate) const TEXTS: &str = "it is a list of texts or bytes; write it as JSON text";
/// Why a list of booleans is no array.
pub(crate) const BOOLS: &str = "it is a list of bools; write it as uint8";
/// Why lists in lists are no array.
pub(crate) const DIFFER: &str =
    "it is a list of lists that differ in length; write it as one list, or as a feature Array2D";
/// Why a column in the structs of a list is left out, if the list can be read as JSON.
pub(crate) const IN_STRUCTS: &str =
    "it lies in the structs of a list; name the list in dataset.fields, which is read as JSON";

/// Why the parts of pictures in a list are left out.
pub(crate) const IN_PICTURES: &str =
    "it is of a list of pictures; name the list in dataset.fields, with as = \"images\"";
/// Why a list of bytes is left out.
pub(crate) const BYTE_LISTS: &str =
    "it is a list of texts or bytes, read only if dataset.fields names it with as = \"images\"";

/// Whether a list that is no array has one of the reasons above, and may be JSON.
pub(crate) fn may_be_json(why: &str) -> bool {
    [TEXTS, BOOLS, DIFFER].contains(&why)
}

/// The reason for leaving out a list that JSON can have. `why`: why it is no array.
pub(crate) fn left_out_as_json(why: &str) -> String {
    let what = why.split(';').next().unwrap_or(why);
    format!("{what}, read as JSON only if dataset.fields names it")
}

/// The form of arrays in lists of numbers of the named type. `sizes`: the fixed lengths of the lists, from the outermost
/// on; `None`: it has none.
///
/// # Errors
/// Why they are no arrays.
pub(crate) fn array_form(
    name: &str,
    sizes: &[Option<u64>],
    feature: &Feature<'_>,
) -> Result<ArrayForm, &'static str> {
    if name == "bool" {
        return Err(BOOLS);
    }
    let name = name.to_owned();
    if let Feature::Array(shape) = feature {
        return Ok(ArrayForm::Plain(name, Some(shape.clone())));
    }
    let (first, others) = sizes.split_first().ok_or(DIFFER)?;
    let row: Vec<u64> = others.iter().copied().collect::<Option<_>>().ok_or(DIFFER)?;
    Ok(match first {
        Some(size) => ArrayForm::Plain(name, Some([&[*size], &row[..]].concat())),
        None if row.is_empty() => ArrayForm::Plain(name, None),
        None => ArrayForm::Rows(name, row),
    })
}
