//! Whole plans over a small dataset: errors at compilation, and the contents of rows.

use std::collections::BTreeMap;

use forebay_order::DrawKey;
use forebay_protocol::ids::SampleId;
use forebay_protocol::mix::Mix;
use forebay_protocol::tensor::{DType, Extent, TensorSpec};

use super::*;
use forebay_config::Config;
use forebay_config::plain_config::plain_config;
use forebay_dataset::{ArrayValue, Defect, FieldKind, FieldValue};
use forebay_media::test_images::{gradient, jpeg, with_orientation};
use in_memory::InMemory;

mod augmentations;
mod batch;
mod fields;
#[path = "../examples/support/in_memory.rs"]
mod in_memory;
mod patches;
mod scaled;
mod shared;
mod shared_views;
#[cfg(feature = "sound")]
mod sounds;
#[cfg(feature = "text")]
mod texts;
mod views;

/// `image` and `mask` (the same file), `label`, `array` (i16, big-endian), `boxes` (f32), `numbers` (any count),
/// `score`, `caption` and `blob` (the first bytes of the file); the fetched bytes are the image file.
fn mixed(fields: &[&str]) -> InMemory {
    let all = [
        ("image", FieldKind::EncodedImage),
        ("label", FieldKind::Integer),
        ("array", FieldKind::Array { dtype: DType::I16, shape: vec![3] }),
        ("mask", FieldKind::EncodedImage),
        ("boxes", FieldKind::Array { dtype: DType::F32, shape: vec![2, 4] }),
        ("numbers", FieldKind::RaggedArray { dtype: DType::I16, row_shape: vec![] }),
        ("points", FieldKind::RaggedArray { dtype: DType::F32, row_shape: vec![1, 3] }),
        ("score", FieldKind::Float),
        ("caption", FieldKind::Text),
        ("blob", FieldKind::Bytes),
    ];
    InMemory::new(all.into_iter().filter(|(name, _)| fields.contains(name)), value)
}

fn value<'a>(field: &str, id: SampleId, bytes: &'a [u8]) -> FieldValue<'a> {
    let array = |dtype, shape: &'static [u64], big_endian, bytes: &'static [u8]| {
        let (shape, bytes) = (shape.into(), bytes.into());
        FieldValue::Array(ArrayValue { dtype, shape, fortran_order: false, big_endian, bytes })
    };
    match field {
        "image" | "mask" => FieldValue::EncodedImage(bytes),
        "score" => FieldValue::Float(id.0 as f64 / 2.0),
        "caption" => FieldValue::Text("a gräy cat".into()),
        "blob" => FieldValue::Bytes(bytes[..20].into()),
        "boxes" => array(DType::F32, &[2, 4], false, BOXES.as_flattened()),
        "points" => array(DType::F32, &[2, 1, 3], false, POINTS.as_flattened()),
        "label" => FieldValue::Integer(i64::try_from(id.0).unwrap() - 5),
        _ => array(DType::I16, &[3], true, NUMBERS.as_flattened()),
    }
}

/// −2, 300 and 7.
const NUMBERS: [[u8; 2]; 3] = [[0xff, 0xfe], [0x01, 0x2c], [0, 7]];

/// Two boxes, x y x y.
const BOXES: [[u8; 4]; 8] = [
    10.0_f32.to_le_bytes(),
    20.0_f32.to_le_bytes(),
    30.0_f32.to_le_bytes(),
    44.5_f32.to_le_bytes(),
    [0; 4],
    [0; 4],
    60.0_f32.to_le_bytes(),
    50.0_f32.to_le_bytes(),
];

/// A keypoint of each box: x, y and visibility.
const POINTS: [[u8; 4]; 6] = [
    10.0_f32.to_le_bytes(),
    44.5_f32.to_le_bytes(),
    1.0_f32.to_le_bytes(),
    60.0_f32.to_le_bytes(),
    20.0_f32.to_le_bytes(),
    2.0_f32.to_le_bytes(),
];

/// One row, filled with a pattern that reveals unwritten bytes.
#[derive(Debug)]
struct Rows {
    rows: Vec<Vec<u8>>,
    limits: Vec<u64>,
    /// By tensor and number, as set last.
    mixes: BTreeMap<(usize, u32), Mix>,
}

impl Rows {
    fn of(plan: &SamplePlan) -> Self {
        let row = |tensor: &TensorSpec| match tensor.extent {
            Extent::Dense => {
                let pitch = usize::try_from(tensor.row_pitch_bytes().unwrap()).unwrap();
                (vec![0x5a; pitch], 0)
            }
            Extent::Ragged { max_row_bytes, .. } => (Vec::new(), max_row_bytes),
        };
        let (rows, limits) = plan.tensors().iter().map(row).unzip();
        Self { rows, limits, mixes: BTreeMap::new() }
    }
}

impl Row for Rows {
    fn dense(&mut self, tensor: usize) -> &mut [u8] {
        &mut self.rows[tensor]
    }

    fn ragged(&mut self, tensor: usize, bytes: u64) -> Option<&mut [u8]> {
        if bytes > self.limits[tensor] {
            return None;
        }
        self.rows[tensor] = vec![0x5a; usize::try_from(bytes).ok()?];
        Some(&mut self.rows[tensor])
    }

    fn ragged_bytes(&mut self, tensor: usize) -> &[u8] {
        &self.rows[tensor]
    }

    fn set_mix(&mut self, tensor: usize, number: u32, mix: &Mix) {
        self.mixes.insert((tensor, number), mix.clone());
    }
}

const CALLER: crate::batch::BatchCaller<'static> = crate::batch::BatchCaller::plain(0);

const fn key(sample: u64) -> DrawKey {
    DrawKey { seed: 17, epoch: 2, sample }
}

fn run_all(
    config: &Config,
    dataset: &InMemory,
    file: &[u8],
    sample: u64,
) -> Result<Vec<Vec<u8>>, Defect> {
    let plan = SamplePlan::compile(config, dataset).unwrap();
    let mut rows = Rows::of(&plan);
    let mut task = SampleTask::new(SampleId(sample), key(sample), file.to_vec());
    for stage in 0..config.stages.len() {
        // Each stage on a separate thread.
        let mut scratch = WorkerScratch::default();
        plan.run(stage, &mut task, dataset, &mut rows, &mut scratch)?;
    }
    Ok(rows.rows)
}

fn image_row(config: &str, file: &[u8], sample: u64) -> Vec<u8> {
    let mut rows = run_all(&plain_config(config), &mixed(&["image"]), file, sample).unwrap();
    rows.swap_remove(0)
}

fn photograph() -> Vec<u8> {
    jpeg(&gradient(160, 120, 3), 160, 120, 3)
}

fn one_stage(operations: &str, output: &str) -> String {
    format!("[[stage]]\noperations = [{operations}]\n[output]\n{output}\n")
}

const STANDARD: &str = r#"{ op = "decode-image" }, { op = "random-resized-crop", size = 64 }, { op = "random-horizontal-flip" }"#;

pub(super) fn refusal(operations: &str, output: &str, fields: &[&str]) -> String {
    let config = plain_config(&one_stage(operations, output));
    SamplePlan::compile(&config, &mixed(fields)).unwrap_err().message
}

#[test]
fn error_for_a_missing_input_names_the_operation_that_makes_it() {
    let message = refusal("", "", &["image"]);
    assert!(message.contains("decode it with `decode-image`"), "{message}");
    let message = refusal(r#"{ op = "decode-image" }"#, "", &["label"]);
    assert!(message.contains("needs an image, and the dataset has none"), "{message}");
}

/// Operations and, after ` | `, keys of `[output]`; then a part of the message.
const MISTAKES: &str = r#"
{ op = "random-resized-crop", size = 64 }
    => `random-resized-crop` needs a decoded image; put `decode-image` before it
{ op = "decode-image" }
    => `image` differ in size; give them one with `resize`
{ op = "decode-image", scaled = "half" }
    => scaled` must be "off" or "auto", not
{ op = "decode-imag" }
    => unknown operation "decode-imag"; did you mean `decode-image`?
{ op = "decode-image" }, { op = "mixup", alpha = 0.2 }
    => `mixup` works on complete batches: put it under `[[batch.operations]]`, not into a stage
{}
    => `stage.stage-0.operations[0]` is empty: give it an `op`, such as { op = "decode-image" }, or leave it out; the operations are: decode-image, decode-raster, decode-video, resize
{ size = 3 }
    => `stage.stage-0.operations[0].op` is required: the operation's name, such as `op = "decode-image"`, one of decode-image, decode-raster, decode-video, resize
{ op = "decode-raster", size = 3, dtype = "bool" }
    => is the type of no TIFF file's samples; give the files' own
{ op = "decode-raster", size = "bucket" }
    => `decode-raster` changes no size
{ op = "decode-raster", size = 65535 }
    => 65535 × 65535 pixels are more than limits.pixels
{ op = "decode-raster", size = 3 }, { op = "random-horizontal-flip" }
    => `random-horizontal-flip` needs an image
{ operation = "resize", size = 3 }
    => `stage.stage-0.operations[0].op` is required: write `op = "resize"` in the place of `operation`
{ op = "decode-image" }, { op = "random-apply", operations = [{}] }
    => `stage.stage-0.operations[1].operations[0]` is empty: give it an `op`
{ op = "decode-image", channel = 3 }
    => unknown key `stage.stage-0.operations[0].channel`; did you mean `stage.stage-0.operations[0].channels`?
{ op = "decode-image", channels = 2 }
    => `stage.stage-0.operations[0].channels` must be 3 (red, green, blue), 1 (grey) or 4 (with alpha), not 2
{ op = "decode-image", palette = "indices" }
    => `palette = "indices"` gives one number a pixel; set `channels = 1`
{ op = "decode-image" }, { op = "resize" }
    => `stage.stage-0.operations[1].size` is required
{ op = "decode-image" }, { op = "decode-image" }
    => `image` is decoded already
{ op = "decode-image", field = "imag" }
    => did you mean `image`?
{ op = "decode-image", field = "label" }
    => needs an image, but field `label` is not one
STANDARD | imag = { dtype = "uint8" }
    => `output.imag` names no field of the dataset; did you mean `image`?
STANDARD | image = { dtype = "int32" }
    => must be `uint8`, `uint16` (with `depth = 16` of `decode-image`), `float16`
{ op = "decode-image", depth = 12 }
    => must be 8 or 16, not 12
{ op = "decode-image", depth = 16 }, { op = "center-crop", size = 8 } | image = { dtype = "float32" }
    => `image` has levels of 16 bits, which are `uint16` and not normalised; set `depth = 8`
{ op = "decode-image", depth = 16 }, { op = "center-crop", size = 8 } | image = { on = "gpu" }
    => does not support levels of 16 bits
{ op = "decode-image" }, { op = "center-crop", size = 8 }, { op = "color-jitter", hue = 0.1 } | image = { dtype = "uint16" }
    => `color-jitter` works on images of 8 bits; set `depth = 8`
{ op = "decode-image", depth = 16 }, { op = "rotate", degrees = 9 }
    => `rotate` works on images of 8 bits
{ op = "decode-image", depth = 16 }, { op = "pad", padding = 4, fill = 9 }
    => margins of an image of 16 bits are black
{ op = "decode-image", depth = 16 }, { op = "normalize", mean = [0.5, 0.5, 0.5], std = [0.5, 0.5, 0.5] }
    => `normalize` works on images of 8 bits
{ op = "decode-image", channels = 1, palette = "indices", depth = 16 }
    => `palette = "indices"` gives bytes
STANDARD | image = { dtype = "float32", mean = [0.5, 0.5], std = [0.5, 0.5] }
    => one number for each of the 3 channels, not 2
STANDARD | label = { layout = "NHWC" }
    => `output.label.layout` is for decoded images, and `label` is not one; remove the key
STANDARD | label = { ragged = true, max_bytes = 10 }
    => `label` is a single number
STANDARD | image = { ragged = true, max_bytes = 10 }
    => cannot be ragged after `decode-image`
{ op = "delay" }
    => `stage.stage-0.operations[0].milliseconds` is required
{ op = "decode-image" }, { op = "random-resized-crop", size = 8, area = [0.5, 1.5] }
    => must not exceed 1.0
{ op = "decode-image" }, { op = "random-resized-crop", size = 8, ratio = [2.0, 1.0] }
    => two numbers above 0, the smaller one first
{ op = "decode-image" }, { op = "normalize", mean = [0.5, 0.5, 0.5], std = [1.0, 1.0, 0.0] }
    => `std` must be above 0
{ op = "decode-image" }, { op = "normalize", mean = [123.7, 116, 103.5], std = [58.4, 57.1, 57.4] }
    => `normalize`: `mean` is for values from 0 to 1, so 123.7 is too large; did you mean 123.7/255 = 0.485? Write `mean = [0.485, 0.455, 0.406], std = [0.229, 0.224, 0.225]`
{ op = "decode-image" }, { op = "normalize", mean = [0.485, 0.456, 0.406], std = [0.229, 57, 0.225] }
    => `std` is for values from 0 to 1, so 57 is too large; did you mean 57/255 = 0.224?
{ op = "decode-image" }, { op = "normalize", mean = [0.5, 0.5, 1.1], std = [1.0, 1.0, 1.0] }
    => so 1.1 is too large
STANDARD | image = { dtype = "float32", mean = [123, 116, 103], std = [1.0, 1.0, 1.0] }
    => `output.image`: `mean` is for values from 0 to 1, so 123 is too large; did you mean 123/255 = 0.482? Write `mean = [0.482, 0.455, 0.404], std = [1.0, 1.0, 1.0]`
STANDARD | image = { dtype = "float32", mean = [0.5, 300, 0.5], std = [1.0, 1.0, 1.0] }
    => so 300 is too large
{ op = "decode-image" }, { op = "normalize", mean = [0.5, 0.5, 0.5], std = [1.0, 1.0, 1.0] }, { op = "resize", size = [8, 8] }
    => put it before `normalize`
{ op = "decode-image" }, { op = "resize", size = [8, 8] }, { op = "normalize", mean = [0.5, 0.5, 0.5], std = [1.0, 1.0, 1.0] } | image = { dtype = "float32", mean = [0.5, 0.5, 0.5], std = [1.0, 1.0, 1.0] }
    => both normalise; remove one
"#;

/// A line of the table is a mistake, and the one below it, after `=>`, is in its message.
fn check_mistakes(table: &str, message_of: impl Fn(&str) -> String) {
    let lines: Vec<_> = table.trim().lines().collect();
    let (mistakes, rest) = lines.as_chunks();
    assert!(!mistakes.is_empty() && rest.is_empty(), "{table}");
    for [mistake, expected] in mistakes {
        let message = message_of(mistake);
        let expected = expected.trim_start_matches("    => ");
        assert!(message.contains(expected), "{mistake}: {message}");
    }
}

#[test]
fn mistakes_are_explained() {
    check_mistakes(MISTAKES, |mistake| {
        let (operations, output) = mistake.split_once(" | ").unwrap_or((mistake, ""));
        refusal(&operations.replace("STANDARD", STANDARD), output, &["image", "label"])
    });
}

/// The tensors of `image`, `label` and `array`.
pub(super) fn tensors(operations: &str, output: &str) -> Vec<TensorSpec> {
    let config = plain_config(&one_stage(operations, output));
    let dataset = mixed(&["image", "label", "array"]);
    SamplePlan::compile(&config, &dataset).unwrap().tensors().to_vec()
}

#[test]
fn tensors_have_the_shape_and_type_of_the_output() {
    let plain = tensors(STANDARD, "");
    assert_eq!(plain[0], TensorSpec::dense("image", DType::U8, &[3, 64, 64]));
    assert_eq!((plain[1].dtype, plain[1].row_shape.as_slice()), (DType::I64, &[][..]));
    assert_eq!((plain[2].dtype, plain[2].row_shape.as_slice()), (DType::I16, &[3][..]));
    let sized = r#"{ op = "decode-image", channels = 1 }, { op = "resize", size = [10, 20] }, { op = "resize", size = 5 }"#;
    let output = "image = { dtype = \"float16\", layout = \"NHWC\" }\nlabel = { dtype = \"int32\" }\narray = { ragged = true, max_bytes = 8 }";
    let changed = tensors(sized, output);
    assert_eq!((changed[0].dtype, changed[0].row_shape.as_slice()), (DType::F16, &[5, 10, 1][..]));
    assert!(changed[0].channels_last);
    assert_eq!(changed[1].dtype, DType::I32);
    assert_eq!(changed[2].extent, Extent::Ragged { max_row_bytes: 8, compact: false });
}

#[test]
fn fields_without_operations_pass_through() {
    let config = plain_config(
        "[[stage]]\noperations = []\n[output]\nimage = { ragged = true, max_bytes = 9000 }\nlabel = { dtype = \"float32\" }\n",
    );
    let dataset = mixed(&["image", "label", "array"]);
    let file = photograph();
    let rows = run_all(&config, &dataset, &file, 9).unwrap();
    assert_eq!(rows[0], file);
    assert_eq!(rows[1], 4.0_f32.to_ne_bytes());
    assert_eq!(rows[2], [-2_i16, 300, 7].map(i16::to_ne_bytes).concat());
    let refused = run_all(&config, &dataset, &[0; 9001], 9).unwrap_err();
    assert!(refused.0.contains("has 9001 bytes, more than its `max_bytes` of 9000"), "{refused}");
}

#[test]
fn defect_of_a_wrong_shape_names_both() {
    let config = plain_config("[[stage]]\noperations = []\n");
    let kind = FieldKind::Array { dtype: DType::I16, shape: vec![2] };
    let dataset = InMemory::new([("array", kind)], value);
    let refused = run_all(&config, &dataset, &[], 0).unwrap_err();
    assert_eq!(
        refused.0,
        "`array` is int16 [3], and the first sample's is int16 [2]; if lengths differ from sample to sample, set \
         `[output] array = { ragged = true, max_bytes = \"64KiB\" }`"
    );
}

#[test]
fn stages_do_not_change_the_pixels() {
    let file = photograph();
    let together = image_row(&one_stage(STANDARD, ""), &file, 3);
    let apart = r#"
        [[stage]]
        operations = [{ op = "delay", milliseconds = 0 }]
        [[stage]]
        operations = [{ op = "decode-image" }]
        [[stage]]
        operations = [{ op = "random-resized-crop", size = 64 }]
        [[stage]]
        operations = [{ op = "random-horizontal-flip" }]
        [[stage]]
        operations = []
    "#;
    // The delay is an operation too: the crop is the third operation of one plan and the second of the other.
    let shifted = r#"{ op = "delay", milliseconds = 0 }, "#.to_owned() + STANDARD;
    let shifted = image_row(&one_stage(&shifted, ""), &file, 3);
    assert_eq!(image_row(apart, &file, 3), shifted);
    assert_ne!(together, shifted, "draws are keyed by the operation's number");
}

#[test]
fn layouts_and_types_hold_the_same_pixels() {
    let file = photograph();
    // Some of the samples 0 to 7 are flipped.
    for sample in 0..8 {
        let planar = image_row(&one_stage(STANDARD, ""), &file, sample);
        let interleaved =
            image_row(&one_stage(STANDARD, "image = { layout = \"NHWC\" }"), &file, sample);
        let plane = 64 * 64;
        for (place, pixel) in interleaved.chunks_exact(3).enumerate() {
            assert_eq!(pixel, [planar[place], planar[plane + place], planar[2 * plane + place]]);
        }
        let by = "mean = [0.4, 0.5, 0.6], std = [0.2, 0.3, 0.4]";
        let floats = image_row(
            &one_stage(STANDARD, &format!("image = {{ dtype = \"float32\", {by} }}")),
            &file,
            sample,
        );
        let operation = format!("{STANDARD}, {{ op = \"normalize\", {by} }}");
        assert_eq!(image_row(&one_stage(&operation, ""), &file, sample), floats);
        for (place, float) in floats.chunks_exact(4).enumerate() {
            let channel = place / plane;
            let mean = [0.4_f32, 0.5, 0.6][channel];
            let std = [0.2_f32, 0.3, 0.4][channel];
            let expected = (f32::from(planar[place]) / 255.0 - mean) / std;
            assert_eq!(f32::from_ne_bytes(float.try_into().unwrap()), expected);
        }
    }
}

/// With several stages, the whole image is decoded at a stage's end; a plan of one stage decodes only what it needs.
#[test]
fn decoding_only_a_region_does_not_change_the_rows() {
    let file = photograph();
    let plans = [
        r#"{ op = "random-resized-crop", size = 40, interpolation = "bicubic" }, { op = "random-horizontal-flip" }"#,
        r#"{ op = "resize", size = 72, interpolation = "lanczos" }, { op = "center-crop", size = 30 }"#,
        r#"{ op = "resize", size = 240 }, { op = "random-crop", size = [31, 57] }"#,
        r#"{ op = "resize", size = 50, interpolation = "nearest" }, { op = "random-crop", size = [31, 57] }"#,
        r#"{ op = "random-crop", size = [20, 200] }, { op = "random-vertical-flip" }"#,
    ];
    for plan in plans {
        for sample in 0..12 {
            let together = one_stage(&format!("{{ op = \"decode-image\" }}, {plan}"), "");
            let apart = format!(
                "[[stage]]\noperations = [{{ op = \"decode-image\" }}]\n[[stage]]\noperations = [{plan}]\n"
            );
            let rows = image_row(&together, &file, sample);
            assert!(rows == image_row(&apart, &file, sample), "{plan} {sample}");
        }
    }
}

#[test]
fn rotated_file_equals_the_flipped_file() {
    let file = photograph();
    let turned = with_orientation(&file, 3);
    let twice = r#"{ op = "decode-image", orientation = true }, { op = "random-vertical-flip", probability = 1.0 }, { op = "random-horizontal-flip", probability = 1.0 }, { op = "center-crop", size = [50, 60] }"#;
    let centre = r#"{ op = "decode-image" }, { op = "center-crop", size = [50, 60] }"#;
    assert_eq!(
        image_row(&one_stage(twice, ""), &turned, 1),
        image_row(&one_stage(centre, ""), &file, 1)
    );
}

#[test]
fn small_image_is_surrounded_by_zeros() {
    let file = jpeg(&[200; 4 * 2], 4, 2, 1);
    let row = image_row(
        &one_stage(
            r#"{ op = "decode-image", channels = 1 }, { op = "center-crop", size = [4, 7] }"#,
            "",
        ),
        &file,
        0,
    );
    assert_eq!(row[..7], [0; 7]);
    assert_eq!(row[7], 0);
    assert_eq!(row[12..14], [0, 0]);
    assert!(row[8..12].iter().all(|value| *value > 190));
    assert_eq!(row[21..], [0; 7]);
}

#[test]
fn operations_that_cannot_be_combined_run_in_sequence() {
    let file = photograph();
    let twice = r#"{ op = "decode-image" }, { op = "resize", size = [60, 80] }, { op = "center-crop", size = 100 }, { op = "resize", size = [50, 50] }"#;
    let split = twice
        .replace("{ op = \"center-crop\"", "] \n[[stage]]\noperations = [{ op = \"center-crop\"");
    assert_eq!(
        image_row(&format!("[[stage]]\noperations = [{twice}]\n"), &file, 0),
        image_row(&format!("[[stage]]\noperations = [{split}]\n"), &file, 0)
    );
}

#[test]
fn defect_names_its_reason() {
    let config = plain_config(&one_stage(STANDARD, ""));
    let dataset = mixed(&["image"]);
    let file = photograph();
    for (file, expected) in [
        (
            &file[..file.len() / 2],
            "image file is truncated: the JPEG data ends before the image does",
        ),
        (&file[..20], "image file is truncated: the JPEG header does not end"),
        (b"".as_slice(), "the image file is empty"),
        (
            b"\0\0\0\x18ftypheic".as_slice(),
            "HEIC is not read: convert the file to JPEG, PNG, WebP or TIFF, or decode it in a Python stage",
        ),
        (
            b"PIF89a".as_slice(),
            "not a JPEG, PNG, WebP, TIFF, BMP or GIF file: it begins with 50 49 46 38 39 61",
        ),
    ] {
        assert_eq!(run_all(&config, &dataset, file, 0).unwrap_err().0, expected);
    }
}

/// Pixels and draws are part of the stream version: if this digest changes, that number must be raised.
#[test]
fn rows_of_a_small_pipeline_have_their_golden_digest() {
    let file = photograph();
    let mut hasher = blake3::Hasher::new();
    hasher.update(&file);
    let file_digest = hasher.finalize().to_hex();
    assert_eq!(&file_digest[..16], "5b555d2ef8aa580e", "the encoder's output changed");
    let mut hasher = blake3::Hasher::new();
    for sample in 0..16 {
        hasher.update(&image_row(&one_stage(STANDARD, ""), &file, sample));
    }
    let eval = r#"{ op = "decode-image" }, { op = "resize", size = 72, interpolation = "bicubic" }, { op = "center-crop", size = 64 }"#;
    hasher.update(&image_row(&one_stage(eval, "image = { dtype = \"float32\" }"), &file, 0));
    assert_eq!(&hasher.finalize().to_hex()[..16], "25aa67f44b28e551");
}
