//! Augmentations in whole plans: errors, independence of stages and shared views, frequencies of choices, and the
//! results for complete batches.

use super::*;
use crate::batch::BatchRow;
use half::f16;

/// Operations after `decode-image`; then a part of the message.
const REFUSED: &str = r#"
{ op = "posterize" }
    => `stage.stage-0.operations[1].bits` is required: a whole number from 0 to 8
{ op = "solarize", threshold = 256 }
    => `stage.stage-0.operations[1].threshold` must be a number from 0 to 255, not 256
{ op = "color-jitter", hue = 0.6 }
    => must be a number from 0 to 0.5, or two from -0.5 to 0.5, the smaller one first, not 0.6
{ op = "color-jitter", brightness = [1.2, 0.8] }
    => must be a number from 0, or two, the smaller one first, not [1.2, 0.8]
{ op = "gaussian-blur", kernel_size = 4 }
    => must be an odd whole number from 1 to 255, or two, `[width, height]`, not 4
{ op = "rotate", degrees = 10, fill = [1, 2] }
    => `stage.stage-0.operations[1].fill` must be one number, or one for each of the 3 channels, not 2
{ op = "rotate", degrees = 10, expand = true }
    => `image` differ in size
{ op = "affine", degrees = 0, translate = [0.1, 1.5] }
    => must be two numbers from 0 to 1, not [0.1, 1.5]
{ op = "random-erasing", scale = [0.1, 1.1] }
    => must be two numbers above 0 and at most 1, the smaller one first
{ op = "pad", padding = [1, 2, 3] }
    => must be a whole number of pixels from 0 to 65535 for all sides, two
{ op = "rand-augment", magnitude = 31 }
    => `stage.stage-0.operations[1].magnitude` must be a whole number from 0 to 30, not 31
{ op = "aug-mix", severity = 11 }
    => must be a whole number from 1 to 10, not 11
{ op = "auto-augment", policy = "imagenet21k" }
    => must be "imagenet", "cifar10" or "svhn"
{ op = "random-apply", operations = [] }
    => `stage.stage-0.operations[1].operations` needs at least one operation
{ op = "random-apply", operations = [{ op = "inver" }] }
    => unknown operation "inver"; did you mean `invert`?
{ op = "random-apply", operations = [{ op = "invert", p = 1 }] }
    => unknown key `stage.stage-0.operations[1].operations[0].p`
{ op = "random-horizontal-flip", p = 0.5 }
    => unknown key `stage.stage-0.operations[1].p`; `p` of torchvision is `probability` here
{ op = "random-resized-crop", size = 8, scale = [0.2, 1.0] }
    => unknown key `stage.stage-0.operations[1].scale`; `scale` of torchvision is `area` here
{ op = "random-apply", operations = [{ op = "grayscale" }] }
    => `image` changes its channels in some samples and not in others; put the operation that does it outside of the list
{ op = "random-choice", operations = [{ op = "invert" }], probabilities = [1, 2] }
    => must be one number from 0 for each of the 1 operations
{ op = "center-crop", size = 9 }, { op = "random-order", operations = [{ op = "invert" }, { op = "resize", size = 7 }] }
    => `stage.stage-0.operations[2].operations[1]` changes the image's size; put it outside of the list
{ op = "random-choice", operations = [{ op = "center-crop", size = 8 }, { op = "center-crop", size = 9 }] }
    => `image` differ in size
"#;

#[test]
fn mistakes_in_augmentations_are_explained() {
    check_mistakes(REFUSED, |mistake| {
        refusal(&format!("{{ op = \"decode-image\" }}, {mistake}"), "", &["image", "label"])
    });
    let alpha = "{ op = \"decode-image\", channels = 4 }, { op = \"invert\" }";
    let message = refusal(alpha, "", &["image"]);
    assert!(
        message.contains("of 1 or 3 channels, and this one has 4; set `channels = 3`"),
        "{message}"
    );
}

const AUGMENTED: [&str; 7] = [
    "{ op = \"decode-image\", scaled = \"auto\" }",
    "{ op = \"color-jitter\", brightness = 0.4, contrast = 0.4, saturation = 0.4, hue = 0.1 }",
    "{ op = \"random-resized-crop\", size = 48 }",
    "{ op = \"random-apply\", operations = [{ op = \"gaussian-blur\", kernel_size = 5 }, { op = \"rand-augment\" }] }",
    "{ op = \"random-horizontal-flip\" }",
    "{ op = \"aug-mix\" }",
    "{ op = \"random-erasing\", value = \"random\" }",
];

#[test]
fn augmented_bytes_do_not_depend_on_how_operations_are_split_into_stages() {
    let file = photograph();
    for sample in 0..12 {
        let together = image_row(&one_stage(&AUGMENTED.join(", "), ""), &file, sample);
        for at in 1..AUGMENTED.len() {
            let (first, second) = AUGMENTED.split_at(at);
            let (first, second) = (first.join(", "), second.join(", "));
            let config =
                format!("[[stage]]\noperations = [{first}]\n[[stage]]\noperations = [{second}]\n");
            assert!(
                image_row(&config, &file, sample) == together,
                "sample {sample}, split at {at}"
            );
        }
    }
}

#[test]
fn changing_one_view_leaves_the_other_unchanged() {
    let operations = |invert: &str| {
        format!(
            "{{ op = \"decode-image\" }}, {{ op = \"resize\", size = [20, 24] }}, {{ op = \"grayscale\", channels = 3 }}, \
             {{ op = \"two-views\" }}{invert}"
        )
    };
    let views = |invert: &str| {
        let config = plain_config(&one_stage(&operations(invert), ""));
        run_all(&config, &mixed(&["image"]), &photograph(), 3).unwrap()
    };
    let plain = views("");
    let changed = views(", { op = \"invert\", field = \"left\", probability = 1.0 }");
    assert_eq!(plain[1], changed[1]);
    assert!(plain[0].iter().zip(&changed[0]).all(|(before, after)| *before == !*after));
}

/// One grey pixel per sample, whose brightness shows the choice.
#[test]
fn lists_choose_with_their_probabilities() {
    let file = jpeg(&[100; 64], 8, 8, 1);
    let light =
        |factor: f64| format!("{{ op = \"color-jitter\", brightness = [{factor}, {factor}] }}");
    let decode = "{ op = \"decode-image\", channels = 1 }, { op = \"center-crop\", size = 1 }";
    let (half, double) = (light(0.5), light(2.0));
    let counted = |list: &str| {
        let config = plain_config(&one_stage(&format!("{decode}, {list}"), ""));
        let dataset = mixed(&["image"]);
        let plan = SamplePlan::compile(&config, &dataset).unwrap();
        let (mut rows, mut scratch) = (Rows::of(&plan), WorkerScratch::default());
        let mut counts = std::collections::BTreeMap::<u8, u32>::new();
        for sample in 0..8000 {
            let mut task = SampleTask::new(SampleId(sample), key(sample), file.clone());
            plan.run(0, &mut task, &dataset, &mut rows, &mut scratch).unwrap();
            *counts.entry(rows.rows[0][0]).or_default() += 1;
        }
        counts
    };
    let near =
        |found: Option<&u32>, expected: u32| found.is_some_and(|n| n.abs_diff(expected) < 225);
    let counts =
        counted(&format!("{{ op = \"random-apply\", operations = [{half}], probability = 0.2 }}"));
    assert!(near(counts.get(&50), 1600) && near(counts.get(&100), 6400), "{counts:?}");
    let choice = format!(
        "{{ op = \"random-choice\", operations = [{half}, {double}], probabilities = [1, 3] }}"
    );
    let counts = counted(&choice);
    assert!(near(counts.get(&50), 2000) && near(counts.get(&200), 6000), "{counts:?}");
    // Posterized, then halved: 100, 96, 48. Halved, then posterized: 100, 50, 32.
    let cut = "{ op = \"posterize\", bits = 3, probability = 1.0 }";
    let counts = counted(&format!("{{ op = \"random-order\", operations = [{half}, {cut}] }}"));
    assert!(near(counts.get(&48), 4000) && near(counts.get(&32), 4000), "{counts:?}");
}

fn batch_config(batch: &str, output: &str) -> Config {
    let resize = "{ op = \"decode-image\" }, { op = \"resize\", size = [9, 14] }";
    plain_config(&format!(
        "[[stage]]\noperations = [{resize}]\n[output]\n{output}\n[batch]\noperations = [{batch}]\n"
    ))
}

/// The rows of a batch of samples with different images, before and after the batch's operations.
fn batches(config: &Config, samples: &[u64]) -> [Vec<Rows>; 2] {
    let dataset = mixed(&["image", "label"]);
    let plan = SamplePlan::compile(config, &dataset).unwrap();
    let run = || -> Vec<Rows> {
        let row = |sample: &u64| {
            let mut rows = Rows::of(&plan);
            let pixels: Vec<u8> = gradient(40, 30, 3)
                .iter()
                .map(|byte| byte ^ u8::try_from(*sample * 37 % 256).unwrap())
                .collect();
            let file = jpeg(&pixels, 40, 30, 3);
            let mut task = SampleTask::new(SampleId(*sample), key(*sample), file);
            plan.run(0, &mut task, &dataset, &mut rows, &mut WorkerScratch::default()).unwrap();
            rows
        };
        samples.iter().map(row).collect()
    };
    let (before, mut after) = (run(), run());
    let mut rows: Vec<BatchRow<'_>> = after
        .iter_mut()
        .zip(samples)
        .map(|(row, sample)| BatchRow { key: key(*sample), row })
        .collect();
    plan.run_on_batch(&mut rows, &CALLER).unwrap();
    [before, after]
}

const SAMPLES: [u64; 5] = [20, 31, 42, 53, 64];

fn number<const N: usize>(rows: &Rows, tensor: usize) -> [u8; N] {
    *rows.rows[tensor].first_chunk().unwrap()
}

#[test]
fn mixup_mixes_pairs_and_records_the_mix() {
    let config = batch_config("{ op = \"mixup\", alpha = 0.8 }", "");
    let [before, after] = batches(&config, &SAMPLES);
    let share = f32::from_ne_bytes(number(&after[0], 3));
    assert!((0.0..=1.0).contains(&share));
    for (place, rows) in after.iter().enumerate() {
        let partner = SAMPLES.len() - 1 - place;
        assert_eq!(f32::from_ne_bytes(number(rows, 3)), share, "one for the batch");
        let label = |number: u64| i64::try_from(number).unwrap() - 5;
        assert_eq!(i64::from_ne_bytes(number(rows, 1)), label(SAMPLES[place]));
        assert_eq!(i64::from_ne_bytes(number(rows, 2)), label(SAMPLES[partner]));
        let pairs = before[place].rows[0].iter().zip(&before[partner].rows[0]);
        for ((own, other), mixed) in pairs.zip(&rows.rows[0]) {
            let exact = f32::from(*own) * share + f32::from(*other) * (1.0 - share);
            assert_eq!(f32::from(*mixed), exact.round_ties_even(), "{own} {other} {share}");
        }
    }
    let lambda = |samples: &[u64]| f32::from_ne_bytes(number(&batches(&config, samples)[1][0], 3));
    assert_eq!(lambda(&SAMPLES), share, "the same batch again");
    assert_ne!(lambda(&[21, 31, 42]), share, "another batch");
    assert_eq!(
        batches(&config, &[20])[1][0].rows[0],
        batches(&config, &[20])[0][0].rows[0],
        "alone"
    );
}

#[test]
fn floats_of_all_widths_are_mixed() {
    let mixed = |dtype: &str| {
        let config =
            batch_config("{ op = \"mixup\" }", &format!("image = {{ dtype = \"{dtype}\" }}"));
        batches(&config, &SAMPLES)
    };
    let [before, after] = mixed("float32");
    let share = f32::from_ne_bytes(number(&after[0], 3));
    let floats = |rows: &Rows| -> Vec<f32> {
        rows.rows[0].as_chunks().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect()
    };
    let (own, other) = (floats(&before[1]), floats(&before[3]));
    let expected: Vec<f32> =
        own.iter().zip(&other).map(|(a, b)| a * share + b * (1.0 - share)).collect();
    assert_eq!(floats(&after[1]), expected);
    let [before, after] = mixed("float16");
    let halves = |rows: &Rows| -> Vec<f16> {
        rows.rows[0].as_chunks().0.iter().map(|bytes| f16::from_ne_bytes(*bytes)).collect()
    };
    for (((own, other), mixed), place) in
        halves(&before[0]).iter().zip(halves(&before[4])).zip(halves(&after[0])).zip(0..)
    {
        let exact = f16::from_f32(own.to_f32() * share + other.to_f32() * (1.0 - share));
        assert_eq!(mixed, exact, "{place}");
    }
    for (dtype, tolerance) in [("bfloat16", 0.005), ("float64", 1e-7)] {
        let [_, after] = mixed(dtype);
        let bytes = &after[1].rows[0];
        let found: Vec<f64> = match dtype {
            "float64" => bytes.as_chunks().0.iter().map(|b| f64::from_ne_bytes(*b)).collect(),
            _ => {
                bytes.as_chunks().0.iter().map(|b| half::bf16::from_ne_bytes(*b).to_f64()).collect()
            }
        };
        for (found, expected) in found.iter().zip(&expected) {
            assert!(
                (found - f64::from(*expected)).abs() < tolerance,
                "{dtype}: {found} {expected}"
            );
        }
    }
}

#[test]
fn cutmix_swaps_a_rectangle_in_either_layout() {
    for layout in ["NCHW", "NHWC"] {
        let output = format!("image = {{ layout = \"{layout}\" }}");
        let config = batch_config("{ op = \"cutmix\" }", &output);
        let mut cut = 0;
        for first in 20..40 {
            let [before, after] = batches(&config, &[first, 41, 52, 63]);
            let share = f32::from_ne_bytes(number(&after[0], 3));
            let at = |rows: &Rows, channel: usize, place: usize| match layout {
                "NCHW" => rows.rows[0][channel * 9 * 14 + place],
                _ => rows.rows[0][place * 3 + channel],
            };
            // If the images differ, each pixel is its own or the partner's.
            let is_partners = |place: usize| {
                let pixel = |rows: &Rows| [0, 1, 2].map(|channel| at(rows, channel, place));
                let (own, other) = (pixel(&before[0]), pixel(&before[3]));
                let found = pixel(&after[0]);
                assert!(found == own || found == other);
                assert!(pixel(&after[3]) == if found == own { other } else { own } || own == other);
                found != own
            };
            let swapped: Vec<usize> = (0..9 * 14).filter(|place| is_partners(*place)).collect();
            let columns = swapped.iter().map(|place| place % 14);
            let rows = swapped.iter().map(|place| place / 14);
            let extent = |values: Vec<usize>| match (values.iter().min(), values.iter().max()) {
                (Some(low), Some(high)) => high - low + 1,
                _ => 0,
            };
            let area = extent(columns.collect()) * extent(rows.collect());
            // A few pixels may be the same in both.
            assert!(area >= swapped.len() && swapped.len() * 10 >= area * 8, "{area} {swapped:?}");
            let expected = 1.0 - u16::try_from(area).map(f32::from).unwrap() / (9.0 * 14.0);
            assert!((share - expected).abs() < 1e-6, "{share} {expected}");
            cut += usize::from(area > 0);
        }
        assert!(cut >= 10, "{cut} of 20");
    }
}

#[test]
fn classes_make_soft_labels() {
    let soft = "{ op = \"mixup\", alpha = 0.4, classes = 100 }";
    let [_, after] = batches(&batch_config(soft, ""), &SAMPLES);
    let hard = batch_config("{ op = \"mixup\", alpha = 0.4 }", "");
    let share = f32::from_ne_bytes(number(&batches(&hard, &SAMPLES)[1][0], 3));
    for (place, rows) in after.iter().enumerate() {
        let shares: Vec<f32> =
            rows.rows[1].as_chunks().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect();
        assert_eq!(shares.len(), 100);
        let mut expected = vec![0.0; 100];
        for (sample, share) in [(SAMPLES[place], share), (SAMPLES[4 - place], 1.0 - share)] {
            expected[usize::try_from(sample - 5).unwrap()] += share;
        }
        assert_eq!(shares, expected);
    }
    let dataset = mixed(&["image", "label"]);
    let config = batch_config("{ op = \"mixup\", classes = 10 }", "");
    let plan = SamplePlan::compile(&config, &dataset).unwrap();
    let mut rows = Rows::of(&plan);
    rows.rows[1][..8].copy_from_slice(&12_i64.to_ne_bytes());
    let mut rows = [BatchRow { key: key(1), row: &mut rows }];
    let error = plan.run_on_batch(&mut rows, &CALLER).unwrap_err();
    assert_eq!(error.to_string(), "`mixup`: a label is 12, and `classes` is 10: labels are 0 to 9");
}

#[test]
fn draws_for_the_gpu_equal_the_cpus_and_bytes_and_labels_are_the_same() {
    let on = |operation: &str, on: &str| {
        let output = format!("image = {{ dtype = \"float32\", on = \"{on}\" }}");
        batches(&batch_config(operation, &output), &SAMPLES)
    };
    let mut areas = 0;
    for (operation, classes) in
        [("mixup", ""), ("mixup", ", classes = 100"), ("cutmix", ""), ("cutmix", ", alpha = 9")]
    {
        let operation = format!("{{ op = \"{operation}\"{classes} }}");
        let [_, on_cpu] = on(&operation, "cpu");
        let [before, on_gpu] = on(&operation, "gpu");
        for (place, rows) in on_gpu.iter().enumerate() {
            assert_eq!(rows.rows[0], before[place].rows[0], "the client's GPU mixes");
            assert_eq!(rows.rows[1..], on_cpu[place].rows[1..], "labels");
        }
        let Some(mix) = on_gpu[0].mixes.get(&(0, 0)) else { panic!("nothing is left") };
        assert_eq!(on_gpu[0].mixes.len(), 1);
        let written = f32::from_ne_bytes(number(&on_gpu[0], on_gpu[0].rows.len() - 1));
        match mix {
            Mix::Nothing => panic!("nothing is left"),
            Mix::Sum { share } if classes.is_empty() => assert_eq!(*share, written),
            Mix::Sum { share } => assert!(*share > 0.0 && *share < 1.0),
            Mix::Part { columns, rows } => {
                assert!(columns.end <= 14 && rows.end <= 9, "{mix:?}");
                let area = columns.len() * rows.len();
                let expected = 1.0 - u16::try_from(area).map(f32::from).unwrap() / 126.0;
                assert!((written - expected).abs() < 1e-6, "{written} {expected}");
                areas += area;
            }
        }
    }
    assert!(areas > 0);
}

#[test]
fn choice_leaves_the_mixes_of_unchosen_images_empty() {
    let mixup = |field: &str| format!("{{ op = \"mixup\", field = \"{field}\" }}");
    let decode = |field: &str| format!("{{ op = \"decode-image\", field = \"{field}\" }}");
    let resize =
        |field: &str| format!("{{ op = \"resize\", field = \"{field}\", size = [9, 14] }}");
    let operations = [decode("image"), resize("image"), decode("mask"), resize("mask")].join(", ");
    let config = plain_config(&format!(
        "[[stage]]\noperations = [{operations}]\n[output]\nimage = {{ dtype = \"float16\", on = \"gpu\" }}\n\
         mask = {{ on = \"gpu\" }}\n[batch]\noperations = [{{ op = \"choice\", operations = [{}, {}] }}]\n",
        mixup("image"),
        mixup("mask"),
    ));
    let plan = SamplePlan::compile(&config, &mixed(&["image", "label", "mask"])).unwrap();
    let images: Vec<usize> =
        (0..plan.tensors().len()).filter(|tensor| plan.tensors()[*tensor].mixes() == 1).collect();
    assert_eq!(images.len(), 2);
    let mut chosen = [0, 0];
    for first in 20..40 {
        let mut rows = [Rows::of(&plan), Rows::of(&plan)];
        // As left by an earlier batch.
        for image in &images {
            rows[0].mixes.insert((*image, 0), Mix::Sum { share: 0.5 });
        }
        let mut batch: Vec<BatchRow<'_>> = rows
            .iter_mut()
            .zip(first..)
            .map(|(row, sample)| BatchRow { key: key(sample), row })
            .collect();
        plan.run_on_batch(&mut batch, &CALLER).unwrap();
        let is_mixed = images.iter().map(|image| rows[0].mixes[&(*image, 0)] != Mix::Nothing);
        let is_mixed: Vec<bool> = is_mixed.collect();
        assert_ne!(is_mixed[0], is_mixed[1]);
        chosen[usize::from(is_mixed[1])] += 1;
    }
    assert!(chosen[0] > 3 && chosen[1] > 3, "{chosen:?}");
}

#[test]
fn choice_is_made_for_each_batch_and_has_separate_draws() {
    let (mixup, cutmix) = ("{ op = \"mixup\" }", "{ op = \"cutmix\" }");
    let choice = |probabilities: &str| {
        batch_config(
            &format!("{{ op = \"choice\", operations = [{mixup}, {cutmix}]{probabilities} }}"),
            "",
        )
    };
    let config = choice(", probabilities = [1, 3]");
    let (mut summed, mut shares) = (0, Vec::new());
    for first in 0..200 {
        let [before, after] = batches(&config, &[first + 20, 300]);
        let pairs = before[0].rows[0].iter().zip(&before[1].rows[0]).zip(&after[0].rows[0]);
        let is_sum =
            pairs.filter(|((own, other), mixed)| mixed != own && mixed != other).count() > 20;
        if is_sum {
            summed += 1;
            shares.push(f32::from_ne_bytes(number(&after[0], 3)));
        }
    }
    assert!((25..=80).contains(&summed), "{summed} of 200");
    // λ is uniform for alpha = 1, independent of the draws for the choice.
    let below = shares.iter().filter(|share| **share < 0.5).count();
    assert!(below * 4 > summed && below * 4 < summed * 3, "{below} of {summed}");
    let arguments = |config: &Config| {
        let plan = SamplePlan::compile(config, &mixed(&["image", "label"])).unwrap();
        plan.batch_operations().map(|(_, arguments)| arguments).collect::<Vec<_>>()
    };
    assert_ne!(arguments(&config), arguments(&choice("")), "the fingerprint knows them");
}

/// Operations of a batch; then a part of the message.
const REFUSED_OF_BATCHES: &str = r#"
{ op = "mixp" }
    => unknown operation "mixp"; did you mean `mixup`?
{ op = "invert" }
    => `invert` works on single samples: put it into the `operations` of a stage, not under `batch.operations`
{}
    => `batch.operations[0]` is empty: give it an `op`, such as { op = "mixup" }, or leave it out; the operations are: mixup, cutmix, choice, python
{ alpha = 0.2 }
    => `batch.operations[0].op` is required: the operation's name, such as `op = "mixup"`, one of mixup, cutmix, choice, python
{ call = "own:collate" }
    => `batch.operations[0].op` is required: `call` needs `op = "python"`
{ mixup = { alpha = 0.2 } }
    => `batch.operations[0].op` is required: write `op = "mixup"` in the place of `mixup`
{ op = "choice", operations = [{ op = "mixup" }, {}] }
    => `batch.operations[0].operations[1]` is empty: give it an `op`
{ op = "mixup", alpha = 0 }
    => `batch.operations[0].alpha` must be a number above 0, not 0
{ op = "mixup", classes = 1 }
    => `batch.operations[0].classes` must be a whole number from 2
{ op = "mixup", label = "image" }
    => needs a field of class numbers, int64, one a sample, and `image` is none
{ op = "cutmix", field = "label" }
    => needs `field`, the name of images of one size that are uint8 or floats; there are: `image`
{ op = "mixup" }, { op = "cutmix" }
    => `cutmix`: there is a field `label_b` already
{ op = "choice", operations = [{ op = "mixup" }, { op = "cutmix", classes = 5 }] }
    => its operations leave different tensors
{ op = "choice", operations = [{ op = "mixup" }], probabilities = [0] }
    => one of them above 0
"#;

#[test]
fn mistakes_in_operations_on_batches_are_explained() {
    check_mistakes(REFUSED_OF_BATCHES, |mistake| {
        let config = batch_config(mistake, "");
        SamplePlan::compile(&config, &mixed(&["image", "label"])).unwrap_err().message
    });
}
