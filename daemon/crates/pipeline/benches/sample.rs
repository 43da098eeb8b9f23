//! What the parts of a sample cost, on one thread: `cargo bench -p forebay --bench sample`.
//!
//! Parts are told apart by leaving others out: a crop without a resize, an image so plain that its entropy decoding costs
//! next to nothing, the same work with another output.

#[path = "../examples/support/one_field.rs"]
mod one_field;

use std::borrow::Cow;
use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use forebay_order::DrawKey;
use forebay_pipeline::{SamplePlan, SampleTask, WorkerScratch};
use forebay_protocol::ids::SampleId;
use forebay_protocol::tensor::DType;
use forebay_source::dataset::{ArrayValue, FieldKind, FieldValue};
use jpeg_encoder::{ColorType, Encoder, SamplingFactor};
use one_field::{OneField, OneRow};

const ARRAY_SHAPE: [u64; 2] = [256, 1024];

/// Waves under noise (about 110 kB at 500×375), or one colour.
fn photograph(width: u16, height: u16, plain: bool) -> Vec<u8> {
    let mut noise = 1_u32;
    let mut pixels = Vec::new();
    for y in 0..u32::from(height) {
        for x in 0..u32::from(width) {
            for channel in 0..3 {
                noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let wave = (x * (3 + channel) / 2 + y * 2) % 200;
                let value = wave.min(200 - wave) + 20 + (noise >> 26);
                pixels.push(if plain { 120 } else { u8::try_from(value).unwrap_or(255) });
            }
        }
    }
    let mut file = Vec::new();
    let mut encoder = Encoder::new(&mut file, 90);
    encoder.set_sampling_factor(SamplingFactor::F_2_2);
    encoder.encode(&pixels, width, height, ColorType::Rgb).expect("an image");
    file
}

fn bench(criterion: &mut Criterion, name: &str, config: &str, dataset: &OneField, file: &[u8]) {
    let config = forebay_config::plain_config::plain_config(config);
    let plan = SamplePlan::compile(&config, dataset).expect("a plan");
    let row_bytes = plan.tensors()[0].row_pitch_bytes().expect("a row");
    let mut row = OneRow(vec![0; usize::try_from(row_bytes).expect("a row")]);
    let mut scratch = WorkerScratch::default();
    let key = |sample| DrawKey { seed: 1, epoch: 0, sample };
    let mut task = SampleTask::new(SampleId(0), key(0), file.to_vec());
    let mut sample = 0;
    let mut group = criterion.benchmark_group("sample");
    group.throughput(Throughput::Bytes(row_bytes));
    group.bench_function(name, |bencher| {
        bencher.iter(|| {
            sample = (sample + 1) % 64;
            task.reset(SampleId(sample), key(sample));
            for stage in 0..config.stages.len() {
                plan.run(stage, &mut task, dataset, &mut row, &mut scratch).expect("a sample");
            }
            black_box(&row.0);
        });
    });
    group.finish();
}

fn images(criterion: &mut Criterion) {
    let dataset =
        OneField::new("image", FieldKind::EncodedImage, |bytes| FieldValue::EncodedImage(bytes));
    let ordinary = photograph(500, 375, false);
    let large = photograph(1600, 1200, false);
    let plain = photograph(500, 375, true);
    let operations = |decode: &str, then: &str, output: &str| {
        format!(
            "[[stage]]\noperations = [{{ op = \"decode-image\"{decode} }}, {then}]\n[output]\nimage = {{ {output} }}\n"
        )
    };
    let whole = r#"{ op = "center-crop", size = [375, 500] }"#;
    let region = r#"{ op = "center-crop", size = 224 }"#;
    let resized = r#"{ op = "random-resized-crop", size = 224 }"#;
    let (bytes, floats) = (r#"dtype = "uint8""#, r#"dtype = "float32""#);
    let auto = r#", scaled = "auto""#;
    for (name, file, config) in [
        ("decode whole", &ordinary, operations("", whole, bytes)),
        ("decode region", &ordinary, operations("", region, bytes)),
        ("decode and resize region", &ordinary, operations("", resized, bytes)),
        ("decode and resize region, float32", &ordinary, operations("", resized, floats)),
        ("plain image, uint8", &plain, operations("", region, bytes)),
        ("plain image, uint8 NHWC", &plain, operations("", region, r#"layout = "NHWC""#)),
        ("plain image, float32", &plain, operations("", region, floats)),
        ("plain image, float16", &plain, operations("", region, r#"dtype = "float16""#)),
        ("plain image, resized", &plain, operations("", resized, bytes)),
        ("1600x1200, resized", &large, operations("", resized, bytes)),
        ("1600x1200, resized, scaled", &large, operations(auto, resized, bytes)),
    ] {
        bench(criterion, name, &config, &dataset, file);
    }
}

fn arrays(criterion: &mut Criterion) {
    let kind = FieldKind::Array { dtype: DType::F32, shape: ARRAY_SHAPE.to_vec() };
    fn array(bytes: &[u8]) -> FieldValue<'_> {
        FieldValue::Array(ArrayValue {
            dtype: DType::F32,
            shape: Cow::Borrowed(&ARRAY_SHAPE),
            fortran_order: false,
            big_endian: cfg!(target_endian = "big"),
            bytes: Cow::Borrowed(bytes),
        })
    }
    let dataset = OneField::new("array", kind, array);
    let file = vec![1; 256 * 1024 * 4];
    for output in ["float32", "float16"] {
        let config =
            format!("[[stage]]\noperations = []\n[output]\narray = {{ dtype = \"{output}\" }}\n");
        bench(criterion, &format!("array of 256x1024, {output}"), &config, &dataset, &file);
    }
}

criterion_group!(parts, images, arrays);
criterion_main!(parts);
