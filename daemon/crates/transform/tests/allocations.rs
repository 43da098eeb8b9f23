//! In the steady state a sample causes no allocation on its work thread.
//!
//! The counter counts this thread's requests to Rust's allocator; it does not include libjpeg-turbo's memory.

#[path = "../examples/support/in_memory.rs"]
mod in_memory;

use std::borrow::Cow;

use allocation_counter::measure;
use forebay_dataset::{ArrayValue, FieldKind, FieldValue};
use forebay_order::DrawKey;
use forebay_protocol::ids::SampleId;
use forebay_protocol::tensor::DType;
use forebay_transform::{SamplePlan, SampleTask, WorkerScratch};
use in_memory::{InMemory, OneRow};
use jpeg_encoder::{ColorType, Encoder, SamplingFactor};

/// Samples before counting, in which buffers reach their size.
const WARM: u64 = 200;
/// Number of counted samples.
const COUNTED: u64 = 100;

fn photograph() -> Vec<u8> {
    let pixels: Vec<u8> =
        (0..320_u32 * 240 * 3).map(|at| (at.wrapping_mul(at) >> 9).to_le_bytes()[0]).collect();
    let mut file = Vec::new();
    let mut encoder = Encoder::new(&mut file, 90);
    encoder.set_sampling_factor(SamplingFactor::F_2_2);
    encoder.encode(&pixels, 320, 240, ColorType::Rgb).unwrap();
    file
}

/// Total number of allocations for the counted samples.
fn allocations(config: &str, dataset: &InMemory, file: &[u8]) -> u64 {
    let config = forebay_config::plain_config::plain_config(config);
    let plan = SamplePlan::compile(&config, dataset).unwrap();
    let row_bytes = plan.tensors()[0].row_pitch_bytes().unwrap();
    let mut row = OneRow(vec![0; usize::try_from(row_bytes).unwrap()]);
    let mut scratch = WorkerScratch::default();
    let key = |sample| DrawKey { seed: 1, epoch: 0, sample };
    let mut task = SampleTask::new(SampleId(0), key(0), file.to_vec());
    let mut run = |sample| {
        task.reset(SampleId(sample), key(sample));
        for stage in 0..config.stages.len() {
            plan.run(stage, &mut task, dataset, &mut row, &mut scratch).unwrap();
        }
    };
    (0..WARM).for_each(&mut run);
    measure(|| (WARM..WARM + COUNTED).for_each(&mut run)).count_total
}

#[test]
fn cropped_images_cost_no_allocation() {
    let file = photograph();
    let crop = r#"{ op = "random-crop", size = 128 }, { op = "random-horizontal-flip" }"#;
    for decode in [r#"{ op = "decode-image" }"#, r#"{ op = "decode-image", scaled = "auto" }"#] {
        for output in ["uint8", "float32"] {
            let output = format!("[output]\nimage = {{ dtype = \"{output}\" }}\n");
            let together = format!("[[stage]]\noperations = [{decode}, {crop}]\n{output}");
            assert_eq!(allocations(&together, &InMemory::images(), &file), 0, "{together}");
            let apart = format!(
                "[[stage]]\noperations = [{decode}]\n[[stage]]\noperations = [{crop}]\n{output}"
            );
            assert_eq!(allocations(&apart, &InMemory::images(), &file), 0, "{apart}");
        }
    }
}

#[test]
fn resized_images_cost_no_allocation() {
    // With the resizer for usual processors; fast_image_resize allocates memory for its coefficients.
    let has_none = forebay_resample::Resampler::new().is_some();
    let operations = r#"{ op = "decode-image" }, { op = "random-resized-crop", size = 128 }, { op = "random-horizontal-flip" }"#;
    for layout in ["NCHW", "NHWC"] {
        let output = format!("[output]\nimage = {{ dtype = \"uint8\", layout = \"{layout}\" }}\n");
        let config = format!("[[stage]]\noperations = [{operations}]\n{output}");
        let counted = allocations(&config, &InMemory::images(), &photograph());
        assert!(counted == 0 || !has_none, "{layout}: {counted}");
    }
}

#[test]
fn views_cost_no_allocation() {
    let has_none = forebay_resample::Resampler::new().is_some();
    // The usual resizer does not support reductions beyond a factor of four.
    let list = |size, area| {
        format!(
            r#"[{{ op = "random-resized-crop", size = {size}, area = {area} }}, {{ op = "random-horizontal-flip" }}, {{ op = "solarize", threshold = 128 }}]"#
        )
    };
    let config = format!(
        "[[stage]]\noperations = [{{ op = \"decode-image\" }}, {{ op = \"views\", outputs = {{ global = 2, local = 6 }}, \
         operations = {{ global = {}, local = {} }} }}]\n",
        list(128, "[0.4, 1.0]"),
        list(64, "[0.05, 0.4]")
    );
    let counted = allocations(&config, &InMemory::images(), &photograph());
    assert!(counted == 0 || !has_none, "{counted}");
}

#[test]
fn arrays_cost_no_allocation() {
    let kind = FieldKind::Array { dtype: DType::F32, shape: vec![64, 4] };
    let dataset = InMemory::new([("array", kind)], |_, _, bytes| {
        FieldValue::Array(ArrayValue {
            dtype: DType::F32,
            shape: Cow::Borrowed(&[64, 4]),
            fortran_order: false,
            big_endian: true,
            bytes: Cow::Borrowed(bytes),
        })
    });
    for output in ["float32", "float16"] {
        let config =
            format!("[[stage]]\noperations = []\n[output]\narray = {{ dtype = \"{output}\" }}\n");
        assert_eq!(allocations(&config, &dataset, &[1; 1024]), 0, "{output}");
    }
}
