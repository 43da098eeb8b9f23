//! One draw for an image, its mask, its boxes and the arrays with a row for each box.

use super::*;

const DECODE: &str = r#"{ op = "decode-image", field = "image" }, { op = "decode-image", field = "mask", channels = 1 }"#;
const RAGGED: &str =
    "boxes = { ragged = true, max_bytes = 64 }\nnumbers = { ragged = true, max_bytes = 64 }\n";
/// A crop of 40 × 30 of the photograph's 160 × 120, so that the second box may be outside.
const SHARED: &str =
    r#"{ op = "random-crop", size = [30, 40], fields = ["image", "mask", "boxes"] }"#;

fn floats(row: &[u8]) -> Vec<f32> {
    row.as_chunks::<4>().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect()
}

fn refused(operation: &str, fields: &[&str]) -> String {
    refusal(&format!("{DECODE}, {operation}"), RAGGED, fields)
}

const ALL: [&str; 7] = ["image", "label", "array", "mask", "boxes", "numbers", "caption"];

#[test]
fn image_is_the_same_as_without_fields() {
    let operations = [
        r#"{ op = "random-resized-crop", size = [40, 30], interpolation = "bicubic" }"#,
        r#"{ op = "random-horizontal-flip" }"#,
        r#"{ op = "random-vertical-flip" }"#,
        r#"{ op = "random-crop", size = [35, 50], padding = 4, fill = 9 }"#,
        r#"{ op = "pad", padding = [1, 2, 3, 4], fill = [1, 2, 3] }"#,
        r#"{ op = "rotate", degrees = 20, interpolation = "bilinear" }"#,
        r#"{ op = "affine", degrees = 10, translate = [0.1, 0.1], scale = [0.8, 1.2], shear = 5 }"#,
        r#"{ op = "perspective" }"#,
        r#"{ op = "resize", size = 33 }"#,
        r#"{ op = "center-crop", size = [31, 32] }"#,
    ];
    // The same number of operations before: draws are keyed by an operation's index.
    let before = [r#"{ op = "delay", milliseconds = 0 }"#, r#"{ op = "decode-image" }"#];
    let alone = [&before[..], &operations].concat().join(", ");
    let shared = |fields: &str| {
        let named = operations
            .map(|operation| operation.replace(" }", &format!(", fields = [{fields}] }}")));
        format!("{DECODE}, {}", named.join(", "))
    };
    let dataset = mixed(&["image", "mask", "boxes"]);
    for sample in 0..8 {
        let expected = image_row(&one_stage(&alone, ""), &photograph(), sample);
        let config =
            one_stage(&shared(r#""image", "mask", "boxes""#), RAGGED.lines().next().unwrap());
        let rows = run_all(&plain_config(&config), &dataset, &photograph(), sample).unwrap();
        assert_eq!(rows[0], expected);
        assert_eq!(rows[1].len() * 3, expected.len());
    }
}

#[test]
fn boxes_and_their_rows_follow_a_crop_or_are_dropped() {
    let dataset = mixed(&["image", "mask", "boxes"]);
    let output = RAGGED.lines().next().unwrap();
    let config = plain_config(&one_stage(&format!("{DECODE}, {SHARED}"), output));
    let plan = SamplePlan::compile(&config, &dataset).unwrap();
    assert_eq!(plan.tensors()[2].row_shape, [4]);
    let file = photograph();
    let whole = image_row(
        &one_stage(r#"{ op = "decode-image" }"#, "").replace(
            "\"decode-image\" }",
            "\"decode-image\" }, { op = \"center-crop\", size = [120, 160] }",
        ),
        &file,
        0,
    );
    let mut counts = [0; 3];
    for sample in 0..200 {
        let rows = run_all(&config, &dataset, &file, sample).unwrap();
        // Finds the crop's position by its first row in the image's pixels.
        let place = (0..120 - 29)
            .flat_map(|top| (0..160 - 39).map(move |left| (left, top)))
            .find(|(left, top)| whole[top * 160 + left..][..40] == rows[0][..40])
            .unwrap();
        let (left, top) = (place.0 as f32, place.1 as f32);
        let clipped = [[10.0, 20.0, 30.0, 44.5_f32], [0.0, 0.0, 60.0, 50.0]]
            .map(|[x1, y1, x2, y2]| [x1 - left, y1 - top, x2 - left, y2 - top])
            .map(|[x1, y1, x2, y2]| {
                [x1.clamp(0.0, 40.0), y1.clamp(0.0, 30.0), x2.clamp(0.0, 40.0), y2.clamp(0.0, 30.0)]
            });
        let stays = |[x1, y1, x2, y2]: &&[f32; 4]| x2 - x1 >= 1.0 && y2 - y1 >= 1.0;
        let expected: Vec<f32> = clipped.iter().filter(stays).flatten().copied().collect();
        counts[expected.len() / 4] += 1;
        assert_eq!(floats(&rows[2]), expected, "sample {sample}");
    }
    assert!(counts.iter().all(|count| *count > 5), "{counts:?}");
}

#[test]
fn stages_and_lists_share_draws_as_one_stage_does() {
    let dataset = mixed(&["image", "mask", "boxes"]);
    let output = RAGGED.lines().next().unwrap();
    let fields = r#"fields = ["image", "mask", "boxes"]"#;
    let crop = format!("{{ op = \"random-resized-crop\", size = 40, {fields} }}");
    let flip = format!(
        "{{ op = \"random-apply\", operations = [{{ op = \"random-horizontal-flip\", probability = 1.0, {fields} }}] }}"
    );
    let one = plain_config(&one_stage(&format!("{DECODE}, {crop}, {flip}"), output));
    let stages: String =
        [DECODE, &crop, &flip].map(|list| format!("[[stage]]\noperations = [{list}]\n")).concat();
    let several = plain_config(&format!("{stages}[output]\n{output}"));
    for sample in 0..20 {
        let rows = |config| run_all(config, &dataset, &photograph(), sample).unwrap();
        assert_eq!(rows(&one), rows(&several));
    }
}

#[test]
fn mask_of_another_size_and_mismatched_rows_are_bad_samples() {
    let smaller = r#"{ op = "resize", size = [60, 80], field = "mask" }"#;
    let config = plain_config(&one_stage(
        &format!("{DECODE}, {smaller}, {SHARED}"),
        RAGGED.lines().next().unwrap(),
    ));
    let fields = mixed(&["image", "mask", "boxes"]);
    let defect = run_all(&config, &fields, &photograph(), 0).unwrap_err();
    assert_eq!(
        defect.0,
        "`image` is 160x120 pixels and `mask` 80x60: a mask has the size of its image"
    );
    let with_numbers = SHARED.replace("\"boxes\"", "\"boxes\", \"numbers\"");
    let config = plain_config(&one_stage(&format!("{DECODE}, {with_numbers}"), RAGGED));
    let fields = mixed(&["image", "mask", "boxes", "numbers"]);
    let defect = run_all(&config, &fields, &photograph(), 0).unwrap_err();
    assert_eq!(defect.0, "`numbers` has 3 rows and `boxes` 2: each box has one");
}

#[test]
fn fields_that_cannot_share_a_draw_are_refused() {
    let flip = |fields: &str| format!("{{ op = \"random-horizontal-flip\", {fields} }}");
    for (fields, reason) in [
        (
            r#"fields = ["image", "bokses"]"#,
            "fields` names no field of the dataset: \"bokses\"; did you mean `boxes`?",
        ),
        (r#"fields = ["image", "boxes", "image"]"#, "fields` names `image` twice"),
        (r#"fields = ["boxes"]"#, "fields` names no image"),
        (r#"fields = []"#, "fields` names no image"),
        (
            r#"field = "image", fields = ["image", "mask"]"#,
            "has `field` and `fields`; leave one of them out",
        ),
        (
            r#"fields = ["image", "caption"]"#,
            "changes images, boxes (float32 [n, 4]) and arrays with a row for each box; `caption` is text",
        ),
        (r#"fields = ["image", "label"]"#, "`label` is a number"),
        (
            r#"fields = ["image", "array"]"#,
            "names `array`, which is int16 [n], and no boxes: they are float32 [n, 4], the corners x1, y1, x2, y2 in pixels",
        ),
    ] {
        let message = refused(&flip(fields), &ALL);
        assert!(message.contains(reason), "{message}");
    }
    let undecoded = r#"{ op = "decode-image", field = "image" }, { op = "resize", size = 9, fields = ["image", "mask"] }"#;
    let message = refusal(undecoded, RAGGED, &ALL);
    assert!(
        message.contains("put { op = \"decode-image\", field = \"mask\" } before it"),
        "{message}"
    );
    let repeated =
        r#"{ op = "pad", padding = 2, padding_mode = "reflect", fields = ["image", "boxes"] }"#;
    let message = refused(repeated, &ALL);
    assert!(
        message.contains("padding_mode` must be \"constant\" where `fields` names boxes"),
        "{message}"
    );
    // At most as many rows as there are boxes: they would be kept when a box is dropped.
    let dataset = InMemory::with_longest(
        [
            ("image", FieldKind::EncodedImage),
            ("boxes", FieldKind::RaggedArray { dtype: DType::F32, row_shape: vec![4] }),
            ("labels", FieldKind::RaggedArray { dtype: DType::I64, row_shape: vec![] }),
        ],
        value,
        &[None, Some(7 * 16), Some(7 * 8)],
    );
    let compile = |fields: &str| {
        let size = r#"{ op = "decode-image" }, { op = "resize", size = [8, 8] }"#;
        let config = one_stage(&format!("{size}, {}", flip(fields)), "");
        SamplePlan::compile(&plain_config(&config), &dataset).map_err(|error| error.message)
    };
    let message = compile(r#"fields = ["image", "boxes"]"#).unwrap_err();
    assert!(message.contains("name `labels` in `fields` too"), "{message}");
    let plan = compile(r#"fields = ["image", "boxes", "labels"]"#).unwrap();
    let most =
        |tensor: &TensorSpec| matches!(tensor.extent, Extent::Ragged { max_row_bytes: 56, .. });
    assert!(most(&plan.tensors()[2]), "{:?}", plan.tensors());
}

#[test]
fn mask_keeps_its_levels() {
    // Only the levels 0 and 200, which an interpolation would mix.
    let mut file = Vec::new();
    let pixels: Vec<u8> = (0..61 * 47).map(|at| if at % 3 == 0 { 200 } else { 0 }).collect();
    image_webp::WebPEncoder::new(&mut file)
        .encode(&pixels, 61, 47, image_webp::ColorType::L8)
        .unwrap();
    let operations = r#"{ op = "random-resized-crop", size = 40, FIELDS }, { op = "resize", size = [90, 70], FIELDS },
        { op = "rotate", degrees = 20, interpolation = "bilinear", mask_fill = 255, FIELDS },
        { op = "pad", padding = 3, fill = 7, mask_fill = 255, FIELDS }"#;
    let operations = operations.replace("FIELDS", r#"fields = ["image", "mask"]"#);
    let config = plain_config(&one_stage(&format!("{DECODE}, {operations}"), ""));
    let rows = run_all(&config, &mixed(&["image", "mask"]), &file, 3).unwrap();
    assert!(rows[1].iter().all(|level| [0, 200, 255].contains(level)));
    assert!([0, 200, 255].iter().all(|level| rows[1].contains(level)));
    assert!(rows[0].iter().any(|level| ![0, 7, 200, 255].contains(level)));
}

/// Keypoints at two corners of the boxes are at the corners of the moved boxes, or have left the image with them.
#[test]
fn keypoints_follow_as_the_corners_of_their_boxes() {
    let dataset = mixed(&["image", "mask", "boxes", "points"]);
    let fields = r#"fields = ["image", "mask", "boxes", "points"]"#;
    let output =
        RAGGED.lines().next().unwrap().to_owned() + "\npoints = { ragged = true, max_bytes = 64 }";
    let plain = |rest: &str| format!("{{ op = {rest}, {fields} }}");
    // What leaves the size as it is comes after what sets it.
    let resized =
        |rest: &str| format!("{}, {}", plain(r#""resize", size = [70, 90]"#), plain(rest));
    let (mut whole, mut gone) = (0, 0);
    for operation in [
        plain(r#""random-resized-crop", size = [40, 30]"#),
        plain(r#""random-crop", size = [100, 140]"#),
        plain(r#""resize", size = [33, 77]"#),
        resized(r#""pad", padding = [1, 2, 3, 4]"#),
        resized(r#""random-horizontal-flip", keypoint_pairs = []"#),
        resized(r#""random-vertical-flip", keypoint_pairs = []"#),
    ] {
        let config = plain_config(&one_stage(&format!("{DECODE}, {operation}"), &output));
        for sample in 0..40 {
            let rows = run_all(&config, &dataset, &photograph(), sample).unwrap();
            let (boxes, points) = (floats(&rows[2]), floats(&rows[3]));
            assert_eq!(boxes.len() / 4, points.len() / 3);
            for (corners, point) in boxes.as_chunks::<4>().0.iter().zip(points.as_chunks::<3>().0) {
                if point[2] == 0.0 {
                    assert_eq!(*point, [0.0; 3]);
                    gone += 1;
                    continue;
                }
                let near = |one: f32, other: f32| (one - other).abs() < 1e-3;
                let is_corner = (near(point[0], corners[0]) || near(point[0], corners[2]))
                    && (near(point[1], corners[1]) || near(point[1], corners[3]));
                assert!(point[2] == 2.0 || is_corner, "{operation}: {point:?} of {corners:?}");
                whole += 1;
            }
        }
    }
    assert!(whole > 200 && gone > 10, "{whole} {gone}");
}

#[test]
fn mirrored_keypoints_need_their_pairs() {
    let fields = ["image", "mask", "boxes", "numbers", "points"];
    let flip = |more: &str, named: &str| {
        refused(&format!(r#"{{ op = "random-horizontal-flip"{more}, fields = {named} }}"#), &fields)
    };
    let all = r#"["image", "boxes", "points"]"#;
    let message = flip("", all);
    assert!(
        message.contains("mirrors `points`") && message.contains("or `[]` if none do"),
        "{message}"
    );
    let message = flip(", keypoint_pairs = [[0, 1]]", all);
    assert!(message.contains("there is no point 1: the points are 0 to 0"), "{message}");
    let message = flip(", keypoint_pairs = []", r#"["image", "boxes"]"#);
    assert!(message.contains("names no keypoints"), "{message}");
}
