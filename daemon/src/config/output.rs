//! `[output]`: how each named field leaves the daemon.

use forebay_protocol::tensor::{DType, MAX_NAME_BYTES, MAX_TENSORS};

use super::error::ConfigError;
use super::model::{FinishedOn, ImageLayout, OutputConfig};
use super::section::Section;
use super::value::{Located, Value};
use super::values::ByteSize;

/// The tensors that Forebay itself adds to a batch.
const OWN_TENSORS: [&str; 2] = ["index", "valid"];

/// Reads the table of fields; `output` is the value of `output`.
///
/// # Errors
/// A field of a reserved or overlong name, and keys that contradict each other.
pub(super) fn read_output(output: Option<Located>) -> Result<Vec<OutputConfig>, ConfigError> {
    let Some(output) = output else {
        return Ok(Vec::new());
    };
    let Value::Table(entries) = output.value else {
        return Err(ConfigError::new(
            &output.place,
            format!("`output` must be a table of fields, not {}", output.value.kind()),
        ));
    };
    // `index` and `valid` need room too.
    let most = MAX_TENSORS - OWN_TENSORS.len();
    if entries.len() > most {
        return Err(ConfigError::new(
            &output.place,
            format!("`output` names {} fields, at most {most} are possible", entries.len()),
        ));
    }
    entries.into_iter().map(|(field, table)| read_field(field, table)).collect()
}

fn read_field(field: String, table: Located) -> Result<OutputConfig, ConfigError> {
    let place = table.place.clone();
    let path = format!("output.{field}");
    if OWN_TENSORS.contains(&field.as_str()) {
        return Err(ConfigError::new(
            &place,
            format!("`{path}`: the field `{field}` is made by Forebay and cannot be changed"),
        ));
    }
    if field.is_empty() || field.len() > MAX_NAME_BYTES {
        return Err(ConfigError::new(
            &place,
            format!("`{path}`: a field's name has 1 to {MAX_NAME_BYTES} bytes"),
        ));
    }
    let mut section = Section::new(path.clone(), table)?;
    let dtype = section.take::<DType>("dtype")?;
    let layout = section.take_placed::<ImageLayout>("layout")?;
    let mean = section.take_placed::<Vec<f64>>("mean")?;
    let std = section.take_placed::<Vec<f64>>("std")?;
    let on = section.take_placed::<FinishedOn>("on")?;
    let ragged = section.take_or("ragged", false)?;
    let max_bytes = section.take_placed::<ByteSize>("max_bytes")?;
    let compact = section.take_placed::<bool>("compact")?;
    section.finish()?;

    let contradiction = |message: &str| ConfigError::new(&place, format!("`{path}`: {message}"));
    match (&mean, &std) {
        (Some((mean, _)), Some((std, place))) => {
            if mean.len() != std.len() || mean.is_empty() {
                return Err(ConfigError::new(
                    place,
                    format!(
                        "`{path}`: mean has {} values and std has {}; both take one a channel",
                        mean.len(),
                        std.len()
                    ),
                ));
            }
            if let Some(wrong) = std.iter().find(|value| **value <= 0.0) {
                return Err(ConfigError::new(
                    place,
                    format!("`{path}.std` must be above 0 everywhere, not {wrong}"),
                ));
            }
            if !dtype.is_some_and(is_float) {
                return Err(contradiction(
                    "mean and std need a float dtype: float32, float16 or bfloat16",
                ));
            }
        }
        (None, None) => {}
        (Some(_), None) => return Err(contradiction("mean stands without std; give both or none")),
        (None, Some(_)) => return Err(contradiction("std stands without mean; give both or none")),
    }
    let on_place = on.as_ref().map_or(&place, |(_, place)| place).clone();
    let on = on.map_or(FinishedOn::Cpu, |(on, _)| on);
    if ragged && on == FinishedOn::Gpu {
        return Err(ConfigError::new(
            &on_place,
            format!(
                "`{path}.on`: only images are finished on the GPU, and ragged rows are none; leave `on` out"
            ),
        ));
    }
    if ragged {
        if max_bytes.is_none() {
            return Err(contradiction(
                "a ragged field needs `max_bytes`, the most bytes of a row, such as \"4MiB\"",
            ));
        }
        if layout.is_some() || mean.is_some() {
            return Err(contradiction(
                "layout, mean and std are for images, which are dense; leave `ragged` out",
            ));
        }
    } else if max_bytes.is_some() || compact.is_some() {
        return Err(contradiction(
            "`max_bytes` and `compact` are for ragged fields; add `ragged = true`",
        ));
    }
    if let Some((ByteSize(0), place)) = &max_bytes {
        return Err(ConfigError::new(place, format!("`{path}.max_bytes` must be above 0")));
    }
    Ok(OutputConfig {
        field,
        dtype,
        layout: layout.map(|(layout, _)| layout),
        mean: mean.map(|(mean, _)| mean),
        std: std.map(|(std, _)| std),
        ragged_max_bytes: max_bytes.map(|(size, _)| size.0),
        compact: compact.is_some_and(|(compact, _)| compact),
        on,
        place,
        on_place,
    })
}

const fn is_float(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16 | DType::F32 | DType::F64)
}
