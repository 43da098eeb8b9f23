//! Records that are `tf.train.Example`s, as TFRecord and `ArrayRecord` files have them: [`message`] parses one, [`rules`]
//! makes fields of its features.

mod message;
pub(crate) mod rules;

use forebay_index::shards::ShardIndex;
use forebay_protocol::tensor::DType;

pub(crate) use self::message::{Fault, Feature, Kind, features, inner, numbers};
pub(crate) use self::rules::SeenKeys;
use crate::columns::{self, ColumnRule};
use crate::fields::Form;
use crate::indexed::{Format, Opening, Take};
use forebay_dataset::error::DatasetError;
use forebay_dataset::{Defect, Field, FieldKind, FieldValue};

/// The number of records that fields are inferred from.
pub(crate) const INFERRED_FROM: usize = 5;

/// The fields of Examples.
#[derive(Debug)]
pub(crate) struct Examples {
    /// One per field.
    pub(crate) rules: Vec<ColumnRule>,
}

impl Examples {
    /// Whether the first sample is needed to determine the fields.
    pub(crate) fn needs_first(&self) -> bool {
        self.rules.iter().any(|rule| rule.rule.form == Form::Array)
    }

    /// One field.
    ///
    /// # Errors
    /// The first sample's value is malformed.
    pub(crate) fn field(
        rule: &ColumnRule,
        first: Option<&FieldValue<'_>>,
    ) -> Result<Field, Defect> {
        // Floats have 32 bits in this format.
        rule.field((rule.rule.form == Form::Float).then_some(DType::F32), first)
    }

    /// The values of the fields of one record.
    ///
    /// # Errors
    /// It is no Example, or a value is missing or malformed.
    pub(crate) fn values<'a>(&self, data: &'a [u8], take: Take<'_, 'a>) -> Result<(), Defect> {
        let found = rules::find(&self.rules, data);
        let found = found.map_err(|fault| Defect(fault.words().to_owned()))?;
        for (rule, feature) in self.rules.iter().zip(found) {
            take(rules::value(rule, feature)?)?;
        }
        Ok(())
    }

    /// The memory for lists of numbers, which are converted to arrays.
    pub(crate) fn unpacked_bytes(&self, data: &[u8]) -> u64 {
        let found = rules::find(&self.rules, data).unwrap_or_default();
        let features = found.iter().zip(&self.rules);
        let arrays = features.filter(|(_, rule)| rule.rule.form == Form::Array);
        arrays.filter_map(|(feature, _)| feature.as_ref()).map(Feature::unpacked_bytes).sum()
    }

    /// As [`Format::max_row_bytes`].
    pub(crate) fn max_row_bytes(index: &ShardIndex, field: &Field) -> Option<u64> {
        // A value is shorter than the longest record.
        let is_of_bytes = matches!(field.kind, FieldKind::Bytes | FieldKind::Text);
        is_of_bytes.then(|| index.longest(0).max(1))
    }

    /// As [`Format::field_rules`].
    pub(crate) fn table(&self) -> String {
        columns::table(&self.rules)
    }

    /// As [`Format::classes`].
    pub(crate) fn classes(&self) -> &[String] {
        columns::classes(&self.rules)
    }
}

/// The rules of the configuration, or those inferred from the first records, which are in the file at `path`.
///
/// # Errors
/// The records lack what a rule reads, or have nothing to make a field of.
pub(crate) fn settle<F: Format>(
    opening: &Opening<'_, F>,
    configured: Option<Vec<ColumnRule>>,
    (seen, path): (&SeenKeys, &[u8]),
    warnings: &mut Vec<String>,
) -> Result<Vec<ColumnRule>, DatasetError> {
    if let Some(mut rules) = configured {
        seen.settle(&mut rules).map_err(|reason| DatasetError::BrokenFile {
            path: opening.storage.full_path(path),
            reason,
        })?;
        return Ok(rules);
    }
    let (rules, left_out) = seen.infer();
    if !left_out.is_empty() {
        warnings.push(format!(
            "features that no field was made of, since they are lists of bytes, empty, or not in each of the first \
             records: {}; name them in dataset.fields",
            left_out.join(", ")
        ));
    }
    match rules.is_empty() {
        true => {
            Err(opening.request.no_samples("its first records have no features that can be read"))
        }
        false => Ok(rules),
    }
}
