//! `batch.too_long = "truncate"`: the arrays of a sample that is longer than the budget are cut at their end, as soon as the
//! sample is read. Operations and functions see the sample as if it had been stored like that.

use super::PlannedField;
use crate::field::{FieldInProgress, Tools};
use forebay_config::{Config, LengthSource};
use forebay_dataset::{Dataset, Defect, FieldKind};
use forebay_keys::ConfigError;

/// Where samples are cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Truncation {
    /// The number of the field whose elements are the length.
    field: usize,
    /// The elements of the first dimension that are kept.
    elements: u64,
}

impl Truncation {
    /// The truncation of a configuration; `None`: samples are not cut.
    ///
    /// # Errors
    /// The length is not the number of a field's elements.
    pub(super) fn of(config: &Config, dataset: &dyn Dataset) -> Result<Option<Self>, ConfigError> {
        let (Some(elements), Some(LengthSource::Field(name))) =
            (config.batch.truncated_to(), config.batch.length_source())
        else {
            return Ok(None);
        };
        let fields = dataset.fields();
        // A length that does not exist is refused where lengths are learned.
        let Some(field) = fields.iter().position(|field| field.name == name) else {
            return Ok(None);
        };
        let what = match &fields[field].kind {
            FieldKind::RaggedArray { .. } => return Ok(Some(Self { field, elements })),
            FieldKind::Array { shape, .. } if !shape.is_empty() => {
                return Ok(Some(Self { field, elements }));
            }
            FieldKind::Text | FieldKind::Bytes => {
                "counts bytes: cut texts with `max_length` of the operation `tokenize`, "
            }
            _ => "is a number that does not say what to cut: ",
        };
        Err(refusal(
            config,
            format!("`{name}` {what}or set `batch.too_long` to \"drop\", or raise the budget"),
        ))
    }

    /// Refuses a length's field that must have one shape.
    pub(super) fn check(self, config: &Config, fields: &[PlannedField]) -> Result<(), ConfigError> {
        match fields.get(self.field) {
            Some(field) if field.has_one_shape() => {
                let name = &field.name;
                Err(refusal(
                    config,
                    format!(
                        "all rows of `{name}` have one length; set `output.{name}.ragged = true`"
                    ),
                ))
            }
            _ => Ok(()),
        }
    }

    /// The longest row of the length's field in bytes, if it is known for all samples as they are stored.
    pub(super) fn max_row_bytes(
        self,
        field: usize,
        kind: &FieldKind,
        stored: Option<u64>,
    ) -> Option<u64> {
        let (dtype, row_shape) = match kind {
            FieldKind::RaggedArray { dtype, row_shape } => (dtype, &row_shape[..]),
            FieldKind::Array { dtype, shape } => (dtype, shape.get(1..).unwrap_or_default()),
            _ => return stored,
        };
        let row_elements =
            row_shape.iter().fold(self.elements, |all, side| all.saturating_mul(*side));
        let cut = row_elements.saturating_mul(dtype.size_bytes());
        stored.map(|stored| if field == self.field { stored.min(cut) } else { stored })
    }

    /// Cuts a sample that is too long: the length's field, and each array whose first dimension is the same and may differ
    /// between samples.
    pub(super) fn apply(
        self,
        fields: &mut [FieldInProgress<'_>],
        planned: &[PlannedField],
        tools: &mut Tools,
    ) -> Result<(), Defect> {
        let length = fields.get(self.field).and_then(FieldInProgress::first_dimension);
        let Some(length) = length.filter(|length| *length > self.elements) else { return Ok(()) };
        for (field, planned) in fields.iter_mut().zip(planned) {
            if field.first_dimension() == Some(length) && !planned.has_one_shape() {
                field.truncate(self.elements, tools)?;
            }
        }
        Ok(())
    }
}

fn refusal(config: &Config, why: String) -> ConfigError {
    let location = config.location(&["batch", "too_long"]);
    ConfigError::new(&location, format!("`batch.too_long = \"truncate\"`: {why}"))
}
