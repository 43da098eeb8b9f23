//! What conditions on samples are evaluated on, besides fields: columns of files, and sizes.

use forebay_protocol::ids::SampleId;
use forebay_select::{Type, Value};
use forebay_storage::location::{Location, Unit};

use crate::{Dataset, DatasetError};

/// A column of a dataset's files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileColumn {
    /// Its name in the files.
    pub name: String,
    /// The type of its values, or why a condition cannot use them.
    pub values: Result<Type, String>,
}

/// Receives a sample and its values of the requested columns.
pub type VisitColumns<'v> = &'v mut dyn FnMut(SampleId, &[Value<'_>]) -> Result<(), DatasetError>;

/// Samples share blocks of bytes, so none has a size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoSize;

/// The bytes of a sample as the index has them.
///
/// # Errors
/// See [`NoSize`]. Otherwise `None`: its files must be asked.
pub fn stored_size(
    dataset: &dyn Dataset,
    id: SampleId,
    locations: &mut Vec<Location>,
) -> Result<Option<u64>, NoSize> {
    locations.clear();
    dataset.locate(id, locations);
    let mut size = 0_u64;
    for location in locations.iter() {
        let length = match location.unit {
            Unit::Sample => location.range.length.or_else(|| {
                let stamp = dataset.stamp(location.file)?;
                stamp.bytes.checked_sub(location.range.offset)
            }),
            Unit::Packed(part) => Some(part.length.into()),
            Unit::Block(_) => return Err(NoSize),
        };
        let Some(length) = length else { return Ok(None) };
        size = size.saturating_add(length);
    }
    Ok(Some(size))
}
