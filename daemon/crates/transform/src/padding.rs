//! `batch.pad`: the description of the padding with which clients hand out ragged arrays as one array.

use forebay_protocol::tensor::{DType, Padding, TensorSpec};

use crate::row_tensors::{ListKind, RowTensors};
use forebay_config::Config;
use forebay_keys::ConfigError;

/// Describes the padding of each ragged array of the batch, if it is configured.
///
/// # Errors
/// A value that is not of the field's type, a value for a field that is no ragged array, or a field with the name of
/// another one's lengths.
pub(crate) fn describe(config: &Config, tensors: &mut RowTensors) -> Result<(), ConfigError> {
    let Some(multiple_of) = config.batch.padded_to_multiple() else { return Ok(()) };
    let given = |name: &str| config.output.iter().find(|output| output.field == *name);
    let mut specs = tensors.specs().to_vec();
    for (place, spec) in specs.iter_mut().enumerate() {
        if tensors.list(tensors.numbers()[place]) != Some(ListKind::Array) {
            continue;
        }
        let value = given(&spec.name).and_then(|output| output.pad).unwrap_or(0.0);
        if !is_of(spec.dtype, value) {
            let message = format!(
                "`output.{}.pad`: {value} is not a value of {}, the type of `{0}`",
                spec.name,
                spec.dtype.name()
            );
            let path = ["output", &spec.name, "pad"];
            return Err(ConfigError::new(&config.location(&path), message));
        }
        spec.padding = Some(Padding { multiple_of, value_bits: value.to_bits() });
    }
    let is_padded = |spec: &&TensorSpec| spec.padding.is_some();
    for output in config.output.iter().filter(|output| output.pad.is_some()) {
        let name = &output.field;
        if !specs.iter().filter(is_padded).any(|spec| spec.name == *name) {
            let message = format!(
                "`output.{name}.pad` is for arrays whose rows differ in length, and `{name}` is not one; leave `pad` out"
            );
            return Err(ConfigError::new(&config.location(&["output", name, "pad"]), message));
        }
    }
    for spec in specs.iter().filter(is_padded) {
        let lengths = format!("{}_lengths", spec.name);
        if specs.iter().any(|other| other.name == lengths) {
            let message = format!(
                "`batch.pad`: the lengths of `{}` are called `{lengths}`, as another field is; give it another name",
                spec.name
            );
            return Err(ConfigError::new(&config.location(&["batch", "pad"]), message));
        }
    }
    tensors.change(specs);
    Ok(())
}

/// Whether a type has a value.
fn is_of(dtype: DType, value: f64) -> bool {
    let is_of_range = |value: f64, most: f64| !value.is_finite() || value.abs() <= most;
    let is_whole = value.fract() == 0.0;
    let values = 2_f64.powi(i32::try_from(8 * dtype.size_bytes()).unwrap_or(i32::MAX));
    match dtype {
        DType::Bool => value == 0.0 || value == 1.0,
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => {
            is_whole && (0.0..values).contains(&value)
        }
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => {
            is_whole && (-values / 2.0..values / 2.0).contains(&value)
        }
        DType::F16 => is_of_range(value, 65_504.0),
        DType::BF16 | DType::F32 => is_of_range(value, f32::MAX.into()),
        DType::F64 => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_of_the_fields_type() {
        for (dtype, value, expected) in [
            (DType::U8, 255.0, true),
            (DType::U8, 256.0, false),
            (DType::U8, -1.0, false),
            (DType::I8, -128.0, true),
            (DType::I8, 128.0, false),
            (DType::I64, -100.0, true),
            (DType::I64, 0.5, false),
            (DType::I64, 9.3e18, false),
            (DType::U64, 9.3e18, true),
            (DType::Bool, 1.0, true),
            (DType::Bool, 2.0, false),
            (DType::F16, -0.5, true),
            (DType::F16, 1e5, false),
            (DType::F32, f64::NEG_INFINITY, true),
            (DType::BF16, 1e300, false),
            (DType::I32, f64::NAN, false),
        ] {
            assert_eq!(is_of(dtype, value), expected, "{dtype:?} {value}");
        }
    }
}
