//! The stream version of a stream. A change that affects only some configurations raises only their version, so that
//! saved states of all others still resume.

use forebay_dataset::FieldKind;
use forebay_order::STREAM_VERSION;
use forebay_protocol::tensor::DType;

use crate::ground::stream::Stream;

/// The version since which numbers keep their types. Before, `np.float32` values and booleans that the user's Python
/// returned became float64 and int64, and its values of another byte order were swapped; columns of floats and booleans
/// became float64 and int64, too.
const TYPES_KEPT: u32 = 2;
/// Column formats in which floats of 16 and 32 bits and booleans became float64 and int64 before that version.
const FORMATS_OF_COLUMNS: [&str; 6] =
    ["arrow", "parquet", "mds", "litdata", "tfrecord", "manifest"];

impl Stream {
    /// Raised when order, draws, pixels or values change for the same input: a state saved under another version is
    /// refused.
    #[must_use]
    pub fn version(&self) -> u32 {
        let calls_python = !self.python_sources().is_empty();
        if calls_python || self.has_kept_columns() { TYPES_KEPT } else { STREAM_VERSION }
    }

    fn has_kept_columns(&self) -> bool {
        let is_kept = |kind: &FieldKind| match kind {
            FieldKind::Array { dtype: DType::F16 | DType::F32 | DType::Bool, shape } => {
                shape.is_empty()
            }
            _ => false,
        };
        let mut datasets = std::iter::once(&self.config.dataset).chain(&self.config.more_datasets);
        datasets.any(|dataset| FORMATS_OF_COLUMNS.contains(&dataset.format.as_str()))
            && self.dataset.fields().iter().any(|field| is_kept(&field.kind))
    }
}
