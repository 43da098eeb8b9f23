//! Applies `[output]` to the fields after all operations: each field's tensor, and how its row is written.
//!
//! `dtype` has two meanings. For a decoded image a float is value / 255, then (x − mean) / std if those are configured.
//! For every other field it is a plain cast: a `uint8` array as `float32` keeps its values 0 to 255.

use std::borrow::Cow;

use forebay_protocol::tensor::{DType, Extent, MAX_NAME_BYTES, MAX_RANK, TensorSpec};

use super::contract::{FieldPlan, FieldType, FieldTypes, ImageType, PlannedSize, VideoShape};
use super::finish::leave_to_the_gpu;
use super::image::{ImageFormat, Normalization, PixelValues, check_normalization};
use forebay_config::{Config, FinishedOn, ImageLayout, OutputConfig};
use forebay_dataset::FieldKind;
use forebay_keys::{ConfigError, SourceLocation};
use forebay_media::array::ArrayType;
use forebay_media::size::Size;

/// How a field is written to its row.
#[derive(Debug)]
pub(super) enum FieldOutput {
    /// A decoded image of one size.
    Image(ImageFormat),
    /// A dense array or scalar, cast to the tensor's type.
    Array {
        /// The type and shape required of every sample.
        expected: ArrayType,
        /// The tensor's type.
        target: DType,
    },
    /// An array whose first dimension differs between samples.
    RaggedArray {
        /// The type required of every sample.
        source: DType,
        /// The dimensions after the first, required of every sample.
        row_shape: Vec<u64>,
        /// The tensor's type.
        target: DType,
    },
    /// The bytes of an image file, bytes or text, unchanged.
    RaggedBytes,
}

impl FieldOutput {
    /// A description for messages.
    pub(super) const fn describe(&self) -> &'static str {
        match self {
            Self::Image(_) => "a decoded image",
            Self::Array { .. } | Self::RaggedArray { .. } => "an array",
            Self::RaggedBytes => "bytes",
        }
    }
}

/// Compiles the outputs: the tensors of all fields that are not dropped, in the order of the fields, and each field's
/// output.
///
/// # Errors
/// A form that the field does not support, or a shape that is not fixed.
pub(super) fn compile(
    config: &Config,
    fields: &FieldTypes,
) -> Result<(Vec<TensorSpec>, Vec<Option<FieldOutput>>), ConfigError> {
    let mut tensors = Vec::with_capacity(fields.fields.len());
    let mut outputs = Vec::with_capacity(fields.fields.len());
    for field in &fields.fields {
        let FieldPlan { name, kind, is_dropped, max_row_bytes, output_dtype, view_of, .. } = field;
        if *is_dropped {
            outputs.push(None);
            continue;
        }
        let named = |name: &String| config.output.iter().find(|output| output.field == *name);
        let output = named(name).or_else(|| view_of.as_ref().and_then(named));
        let output = output.map(|output| match kind {
            FieldType::Image(_) => Cow::Borrowed(output),
            FieldType::Raw(_) => without_preset(config, output),
        });
        let output = output.as_deref();
        let location = match output {
            Some(output) => config.location(&["output", &output.field]),
            None => default_location(config, kind),
        };
        let fail = |message: String| ConfigError::new(&location, message);
        if name.len() > MAX_NAME_BYTES {
            return Err(fail(format!(
                "the field name `{name}` has {} bytes, more than {MAX_NAME_BYTES}",
                name.len()
            )));
        }
        check_tokens(field, output).map_err(fail)?;
        let (tensor, field_output) = match kind {
            FieldType::Image(image) => image_output(name, image, &fields.buckets, output),
            FieldType::Raw(
                kind @ (FieldKind::EncodedImage | FieldKind::Bytes | FieldKind::Text),
            ) => bytes_output(name, kind, *max_row_bytes, output),
            FieldType::Raw(FieldKind::Array { dtype, shape }) => {
                let types = (*dtype, output_dtype.unwrap_or(*dtype));
                array_output(name, types, shape, *max_row_bytes, output)
            }
            FieldType::Raw(FieldKind::RaggedArray { dtype, row_shape }) => {
                ragged_array_output(name, (*dtype, *dtype), row_shape, *max_row_bytes, output)
            }
            FieldType::Raw(FieldKind::EncodedImages) => Err(format!(
                "`{name}` is a list of image files; make patches of them with `image-patches`"
            )),
            // Audio files are decoded to arrays before any operation.
            FieldType::Raw(FieldKind::Sound { .. }) => Err(format!("`{name}` is not decoded")),
            FieldType::Raw(FieldKind::Video { .. }) => {
                Err(format!("`{name}` is a video; decode it with `decode-video`"))
            }
            FieldType::Raw(FieldKind::Integer) => {
                array_output(name, (DType::I64, DType::I64), &[], None, output)
            }
            FieldType::Raw(FieldKind::Float) => {
                array_output(name, (DType::F64, DType::F64), &[], None, output)
            }
        }
        .map_err(fail)?;
        let (tensor, field_output) = match output {
            Some(output) if output.on == FinishedOn::Gpu => {
                let normalization = match kind {
                    FieldType::Image(image) => {
                        normalization(name, image, Some(output)).map_err(fail)?
                    }
                    FieldType::Raw(_) => None,
                };
                let (tensor, format) = leave_to_the_gpu(kind, &tensor, normalization.as_ref())
                    .map_err(|message| {
                        let path = ["output", &output.field, "on"];
                        ConfigError::new(&config.location(&path), message)
                    })?;
                (tensor, FieldOutput::Image(format))
            }
            _ => (tensor, field_output),
        };
        outputs.push(Some(field_output));
        tensors.push(tensor);
    }
    let has_buckets = |tensor: &TensorSpec| !tensor.row_shapes.is_empty();
    if !fields.buckets.is_empty() && !tensors.iter().any(has_buckets) {
        let message = "`batch.buckets` gives batches a shape, and no field has it; let `resize` and `center-crop` or \
                       `random-crop`, or `random-resized-crop`, give images `size = \"bucket\"`, or leave `batch.buckets` out";
        return Err(ConfigError::new(&config.location(&["batch", "buckets"]), message));
    }
    Ok((tensors, outputs))
}

/// Checks that a type holds all tokens of a tokenizer exactly.
fn check_tokens(field: &FieldPlan, output: Option<&OutputConfig>) -> Result<(), String> {
    let (Some((least, largest)), Some(dtype)) =
        (field.tokens, output.and_then(|output| output.dtype))
    else {
        return Ok(());
    };
    let range = match dtype {
        DType::I8 => -0x80..=0x7f,
        DType::U8 => 0..=0xff,
        DType::I16 => -0x8000..=0x7fff,
        DType::U16 => 0..=0xffff,
        DType::U32 | DType::U64 => 0..=i64::MAX,
        DType::BF16 => -0x100..=0x100,
        DType::F16 => -0x800..=0x800,
        DType::Bool => 0..=1,
        _ => return Ok(()),
    };
    if range.contains(&least) && range.contains(&largest) {
        return Ok(());
    }
    let (name, dtype) = (&field.name, dtype.name());
    Err(format!("`{name}` has numbers from {least} to {largest}, which are not all `{dtype}`"))
}

/// The keys of `[output]` that presets set, for decoded images.
const PRESET_KEYS: [&str; 4] = ["dtype", "layout", "mean", "std"];

/// The keys that a preset sets for a field.
fn preset_keys(config: &Config, field: &str) -> Vec<&'static str> {
    PRESET_KEYS.into_iter().filter(|key| config.is_of_preset(&["output", field, key])).collect()
}

/// The user's keys for a field other than a decoded image: a preset's keys are ignored.
pub(super) fn without_preset<'o>(
    config: &Config,
    output: &'o OutputConfig,
) -> Cow<'o, OutputConfig> {
    let keys = preset_keys(config, &output.field);
    if keys.is_empty() {
        return Cow::Borrowed(output);
    }
    let mut output = output.clone();
    for key in keys {
        match key {
            "dtype" => output.dtype = None,
            "layout" => output.layout = None,
            "mean" => output.mean = None,
            _ => output.std = None,
        }
    }
    Cow::Owned(output)
}

/// Whether the user has set no key of a field.
fn is_of_preset_alone(config: &Config, field: &str) -> bool {
    let given = config.keys_at(&["output", field]);
    !given.is_empty() && given.iter().all(|key| config.is_of_preset(&["output", field, key]))
}

/// A sentence for each preset key that is ignored, because its field is not a decoded image or does not exist.
pub(super) fn left_out(config: &Config, fields: &FieldTypes) -> Vec<String> {
    let mut sentences = Vec::new();
    for OutputConfig { field: name, .. } in &config.output {
        let keys = preset_keys(config, name);
        let mut named = fields
            .present()
            .map(|(_, field)| field)
            .filter(|field| field.name == *name || field.view_of.as_ref() == Some(name))
            .peekable();
        if keys.is_empty() {
            continue;
        }
        if named.peek().is_none() {
            sentences.push(format!(
                "the preset's output.{name} is left out: there is no field `{name}`"
            ));
        } else if named.all(|field| !matches!(field.kind, FieldType::Image(_))) {
            sentences.push(format!(
                "the preset's {} of output.{name} {} left out: `{name}` is not a decoded image; what the last stage gives is \
                 delivered as it is",
                keys.join(", "),
                if keys.len() == 1 { "is" } else { "are" }
            ));
        }
    }
    sentences
}

/// Refuses keys in `[output]` for fields that do not exist; `made`: the fields that a function on batches makes.
pub(super) fn check_names(
    config: &Config,
    fields: &FieldTypes,
    made: &[String],
) -> Result<(), ConfigError> {
    let is_known = |name: &String| {
        let names = |(_, field): (_, &FieldPlan)| {
            field.name == *name || field.view_of.as_ref() == Some(name)
        };
        fields.present().any(names) || made.contains(name)
    };
    let Some(OutputConfig { field: name, .. }) = config
        .output
        .iter()
        .find(|output| !is_known(&output.field) && !is_of_preset_alone(config, &output.field))
    else {
        return Ok(());
    };
    let message = if matches!(name.as_str(), "index" | "valid") {
        format!("`output.{name}` cannot be configured: Forebay generates `{name}`")
    } else {
        format!("`output.{name}` names no field of the dataset; {}", fields.hint(name))
    };
    Err(ConfigError::new(&config.location(&["output", name]), message))
}

/// The location in a message about a field that `[output]` does not name.
fn default_location(config: &Config, kind: &FieldType) -> SourceLocation {
    if let FieldType::Image(image) = kind {
        return image.location.clone();
    }
    let last_operation = config.stages.iter().rev().find_map(|stage| stage.operations.last());
    last_operation.map_or_else(|| config.location(&[]), |operation| operation.location.clone())
}

/// The operations that give images a size, for messages.
const GIVES_A_SIZE: &str = "`resize` with `size = [height, width]`, `center-crop`, `random-crop` or \
                            `random-resized-crop`";

/// The normalisation of an image: by `[output]` or by the operation.
fn normalization(
    name: &str,
    image: &ImageType,
    output: Option<&OutputConfig>,
) -> Result<Option<Normalization>, String> {
    let in_output = match output.map(|output| (&output.mean, &output.std)) {
        Some((Some(mean), Some(std))) => Some(
            check_normalization(mean.clone(), std.clone(), image.channels)
                .map_err(|reason| format!("`output.{name}`: {reason}"))?,
        ),
        // One without the other is refused when the configuration is read.
        _ => None,
    };
    if in_output.is_some() && image.normalization.is_some() {
        return Err(format!("`normalize` and `output.{name}.mean` both normalise; remove one"));
    }
    Ok(in_output.or_else(|| image.normalization.clone()))
}

fn image_output(
    name: &str,
    image: &ImageType,
    buckets: &[Size],
    output: Option<&OutputConfig>,
) -> Result<(TensorSpec, FieldOutput), String> {
    if output.is_some_and(|output| output.ragged) {
        return Err(format!(
            "`output.{name}` cannot be ragged after `decode-image`; give the images one size with {GIVES_A_SIZE}, or \
             leave `decode-image` out to pass the files' bytes on"
        ));
    }
    let sizes = match image.size {
        Some(PlannedSize::Fixed(size)) => vec![size],
        Some(PlannedSize::Bucket) => buckets.to_vec(),
        None if !buckets.is_empty() => {
            return Err(format!(
                "the images of `{name}` differ in size; give them one, or their bucket's with `center-crop` or \
                 `random-crop` and `size = \"bucket\"`"
            ));
        }
        None => {
            return Err(format!(
                "the images of `{name}` differ in size; give them one with {GIVES_A_SIZE}"
            ));
        }
    };
    let normalization = normalization(name, image, output)?;
    let default = match (&normalization, image.is_wide) {
        (Some(_), _) => DType::F32,
        (None, true) => DType::U16,
        (None, false) => DType::U8,
    };
    let dtype = output.and_then(|output| output.dtype).unwrap_or(default);
    if image.is_wide && (dtype != DType::U16 || normalization.is_some()) {
        return Err(format!(
            "`{name}` has levels of 16 bits, which are `uint16` and not normalised; set `depth = 8` of `decode-image` for \
             other types"
        ));
    }
    if normalization.is_some() && dtype == DType::U8 {
        return Err(format!(
            "a normalised `{name}` is a float; set `output.{name}.dtype` to `float32`, `float16` or `bfloat16`"
        ));
    }
    let values = if image.is_wide {
        Some(PixelValues::Bytes)
    } else {
        PixelValues::new(dtype, image.channels, normalization.as_ref())
    };
    let Some(values) = values else {
        return Err(format!(
            "`output.{name}.dtype` must be `uint8`, `uint16` (with `depth = 16` of `decode-image`), `float16`, `bfloat16`, `float32` or `float64` for an image, not `{}`",
            dtype.name()
        ));
    };
    let layout = output.and_then(|output| output.layout).unwrap_or(ImageLayout::Nchw);
    let channels_last = layout == ImageLayout::Nhwc;
    let shape = |size: &Size| {
        let [channels, height, width] =
            [image.channels.into(), size.height, size.width].map(u64::from);
        let picture =
            if channels_last { [height, width, channels] } else { [channels, height, width] };
        let of_video = image.video.into_iter().flat_map(VideoShape::dimensions);
        of_video.chain(picture).collect::<Vec<u64>>()
    };
    let shapes: Vec<Vec<u64>> = sizes.iter().map(shape).collect();
    let elements = |shape: &&Vec<u64>| shape.iter().product::<u64>();
    let largest = shapes.iter().max_by_key(elements).cloned().unwrap_or_default();
    if largest.len() >= MAX_RANK {
        return Err(format!("`{name}` has too many dimensions: {largest:?}"));
    }
    // The layout of a batch of pictures; a video's dimensions are in the order of its bytes.
    let channels_last = channels_last && image.video.is_none();
    let tensor = TensorSpec { channels_last, ..TensorSpec::dense(name, dtype, &largest) };
    let is_of_bucket = image.size == Some(PlannedSize::Bucket);
    let tensor =
        TensorSpec { row_shapes: if is_of_bucket { shapes } else { Vec::new() }, ..tensor };
    Ok((tensor, FieldOutput::Image(ImageFormat { layout, values })))
}

fn bytes_output(
    name: &str,
    kind: &FieldKind,
    known_max_bytes: Option<u64>,
    output: Option<&OutputConfig>,
) -> Result<(TensorSpec, FieldOutput), String> {
    // An undecoded image file in a batch must be configured by name: otherwise it is a mistake.
    let known = known_max_bytes.filter(|_| *kind != FieldKind::EncodedImage);
    let Some(max_row_bytes) = output.and_then(|output| output.max_bytes).or(known) else {
        return Err(match kind {
            FieldKind::EncodedImage => format!(
                "`{name}` is an image file; decode it with `decode-image`, or deliver the file's bytes with `[output] \
                 {name} = {{ ragged = true, max_bytes = \"4MiB\" }}`"
            ),
            _ => unknown_length(name),
        });
    };
    if let Some(output) = output {
        no_image_keys(name, output)?;
        if output.dtype.is_some_and(|dtype| dtype != DType::U8) {
            return Err(format!("`output.{name}.dtype` must be `uint8` for bytes"));
        }
    }
    let compact = output.is_some_and(|output| output.compact);
    let extent = Extent::Ragged { max_row_bytes, compact };
    let tensor = TensorSpec { extent, ..TensorSpec::dense(name, DType::U8, &[]) };
    Ok((tensor, FieldOutput::RaggedBytes))
}

fn ragged_array_output(
    name: &str,
    (dtype, default): (DType, DType),
    row_shape: &[u64],
    known: Option<u64>,
    output: Option<&OutputConfig>,
) -> Result<(TensorSpec, FieldOutput), String> {
    if let Some(output) = output {
        no_image_keys(name, output)?;
    }
    let target = output.and_then(|output| output.dtype).unwrap_or(default);
    // The longest row is known in the elements' original type.
    let known = known.map(|bytes| (bytes / dtype.size_bytes()).max(1) * target.size_bytes());
    let Some(max_row_bytes) = output.and_then(|output| output.max_bytes).or(known) else {
        return Err(unknown_length(name));
    };
    let compact = output.is_some_and(|output| output.compact);
    let extent = Extent::Ragged { max_row_bytes, compact };
    let tensor = TensorSpec { extent, ..TensorSpec::dense(name, target, row_shape) };
    if row_shape.len() + 1 >= MAX_RANK || tensor.row_elements().is_none_or(|elements| elements == 0)
    {
        return Err(format!(
            "`output.{name}` cannot be ragged with rows of the shape {row_shape:?}: at most {} dimensions can be carried, and \
             only the first may be 0",
            MAX_RANK - 1
        ));
    }
    let row_shape = row_shape.to_vec();
    Ok((tensor, FieldOutput::RaggedArray { source: dtype, row_shape, target }))
}

/// The error if the length of rows is unknown, with the remedy.
fn unknown_length(name: &str) -> String {
    format!(
        "the length of `{name}` differs from sample to sample; say how long it may be with `[output] {name} = {{ ragged = \
         true, max_bytes = \"64KiB\" }}`"
    )
}

fn array_output(
    name: &str,
    (dtype, default): (DType, DType),
    shape: &[u64],
    known: Option<u64>,
    output: Option<&OutputConfig>,
) -> Result<(TensorSpec, FieldOutput), String> {
    if output.is_some_and(|output| output.ragged) {
        let Some((_, row_shape)) = shape.split_first() else {
            return Err(format!(
                "`output.{name}` cannot be ragged: `{name}` is a single number; leave `ragged` and `max_bytes` out"
            ));
        };
        return ragged_array_output(name, (dtype, default), row_shape, known, output);
    }
    if let Some(output) = output {
        no_image_keys(name, output)?;
    }
    let target = output.and_then(|output| output.dtype).unwrap_or(default);
    if shape.len() >= MAX_RANK {
        return Err(format!(
            "`{name}` has {} dimensions; with the batch's own that is more than {MAX_RANK}",
            shape.len()
        ));
    }
    let tensor = TensorSpec::dense(name, target, shape);
    if tensor.row_pitch_bytes().is_none() {
        return Err(format!("a row of `{name}` ({} {shape:?}) has too many bytes", target.name()));
    }
    let expected = ArrayType { dtype, shape: shape.to_vec() };
    Ok((tensor, FieldOutput::Array { expected, target }))
}

fn no_image_keys(name: &str, output: &OutputConfig) -> Result<(), String> {
    let given = [
        ("layout", output.layout.is_some()),
        ("mean", output.mean.is_some()),
        ("std", output.std.is_some()),
    ];
    match given.iter().find(|(_, is_given)| *is_given) {
        Some((key, _)) => Err(format!(
            "`output.{name}.{key}` is for decoded images, and `{name}` is not one; remove the key"
        )),
        None => Ok(()),
    }
}
