//! `[output]`: the form in which each named field is delivered.

use forebay_protocol::tensor::{DType, MAX_NAME_BYTES, MAX_TENSORS};

use forebay_keys::ConfigError;
use forebay_keys::Keys;
use forebay_keys::Section;
use forebay_keys::SomeBytes;
use forebay_keys::{Located, Value};
use forebay_keys::{keys, words};

/// The tensors that Forebay adds to a batch.
const OWN_TENSORS: [&str; 2] = ["index", "valid"];

words! {
    /// The order of an image's axes in the output.
    pub enum ImageLayout {
        /// Channels × height × width.
        Nchw = "NCHW",
        /// Height × width × channels; PyTorch sees an NCHW-shaped channels_last view.
        Nhwc = "NHWC",
    }
}

words! {
    /// Where a field's rows are converted to the `[output]` form.
    pub enum FinishedOn {
        /// The daemon.
        Cpu = "cpu",
        /// The client's GPU, from the decoded bytes.
        Gpu = "gpu",
    }
}

keys! {
    /// One field of a batch.
    pub struct OutputConfig = "output.FIELD", check check_field {
        /// an image as float is value / 255; integers beyond the type wrap
        pub dtype: DType, "", absent("the field's own");
        /// images only; `"NHWC"` reaches PyTorch as an NCHW-shaped channels_last view
        pub layout: ImageLayout, "", absent("`\"NCHW\"`");
        /// one a channel, with `std` and a float dtype: (value / 255 − mean) / std
        pub mean: Vec<f64>, "0–1", absent("none");
        /// one a channel, above 0, with `mean`
        pub std: Vec<f64>, "0–1", absent("none");
        /// images only; `"gpu"`: rows stay bytes, and the client's GPU makes them what the other keys say; see below
        pub on: FinishedOn, "", default(FinishedOn::Cpu);
        /// rows differ in their first dimension, as tokens `[n]` and boxes `[n, 4]` do; the other dimensions are the first sample's
        pub ragged: bool, "", default(false);
        /// the longest row; a longer one is a bad sample
        pub max_bytes: SomeBytes, "bytes", absent("the dataset's longest row; required where it is not known");
        /// ragged only: rows are moved together, for one more copy
        pub compact: bool, "", default(false);
        /// ragged arrays only, with `batch.pad`: the value after a row's end
        pub pad: f64, "", absent("0");
    }
    with {
        /// The field's name.
        pub field: String,
    }
}

/// Takes the table of fields from the root.
///
/// # Errors
/// A field has a reserved or too long name, or keys contradict each other.
pub(super) fn read_output(root: &mut Section) -> Result<Vec<OutputConfig>, ConfigError> {
    let Some(output) = root.take_located("output") else {
        return Ok(Vec::new());
    };
    let fail = |message| Err(ConfigError::new(&output.location, message));
    let Value::Table(entries) = output.value else {
        return fail(format!("`output` must be a table of fields, not {}", output.value.kind()));
    };
    // `index` and `valid` need room, too.
    let most = MAX_TENSORS - OWN_TENSORS.len();
    if entries.len() > most {
        return fail(format!(
            "`output` names {} fields, at most {most} are possible",
            entries.len()
        ));
    }
    entries.into_iter().map(|(field, table)| read_field(root, field, table)).collect()
}

fn read_field(root: &Section, field: String, table: Located) -> Result<OutputConfig, ConfigError> {
    let path = format!("output.{field}");
    let fail = |message| Err(ConfigError::new(&table.location, format!("`{path}`: {message}")));
    if OWN_TENSORS.contains(&field.as_str()) {
        return fail(format!("the field `{field}` is made by Forebay and cannot be changed"));
    }
    if field.is_empty() || field.len() > MAX_NAME_BYTES {
        return fail(format!("a field's name has 1 to {MAX_NAME_BYTES} bytes"));
    }
    let mut config = OutputConfig::read(&mut root.nested(path, table)?)?;
    config.field = field;
    Ok(config)
}

fn check_field(field: &mut OutputConfig, section: &Section) -> Result<(), ConfigError> {
    let fail = |key: &str, message: &str| {
        Err(section.error_at(key, format!("`{}`: {message}", section.path())))
    };
    let has = |key| section.location_of(key).is_some();
    match (&field.mean, &field.std) {
        (Some(mean), Some(std)) => {
            if mean.len() != std.len() || mean.is_empty() {
                let (mean, std) = (mean.len(), std.len());
                let message =
                    format!("mean has {mean} values and std has {std}; both take one a channel");
                return fail("std", &message);
            }
            if let Some(wrong) = std.iter().find(|value| **value <= 0.0) {
                let path = section.key_path("std");
                let message = format!("`{path}` must be above 0 everywhere, not {wrong}");
                return Err(section.error_at("std", message));
            }
            if !field.dtype.is_some_and(is_float) {
                return fail("", "mean and std need a float dtype: float32, float16 or bfloat16");
            }
        }
        (None, None) => {}
        (Some(_), None) => return fail("", "mean is given without std; give both or none"),
        (None, Some(_)) => return fail("", "std is given without mean; give both or none"),
    }
    if !field.ragged {
        if has("max_bytes") || has("compact") {
            return fail(
                "",
                "`max_bytes` and `compact` are for ragged fields; add `ragged = true`",
            );
        }
        return Ok(());
    }
    if field.on == FinishedOn::Gpu {
        let path = section.key_path("on");
        let message = format!(
            "`{path}`: only images are finished on the GPU, and ragged rows are not images; leave `on` out"
        );
        return Err(section.error_at("on", message));
    }
    if has("layout") || has("mean") {
        return fail(
            "",
            "layout, mean and std are for images, which are dense; leave `ragged` out",
        );
    }
    Ok(())
}

const fn is_float(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16 | DType::F32 | DType::F64)
}
