//! Views with separate masks and boxes.

use super::*;

const DECODE: &str = r#"{ op = "decode-image", field = "image" }, { op = "decode-image", field = "mask", channels = 1 }"#;
const FIELDS: &str = r#"fields = ["image", "mask", "boxes"]"#;
const RAGGED: &str = "{ ragged = true, max_bytes = 64 }";

type Named = (String, Vec<u8>);

/// The rows after these stages, by the tensors' names.
fn rows(stages: &[&str], output: &str, sample: u64) -> Vec<Named> {
    let stages: String =
        stages.iter().map(|list| format!("[[stage]]\noperations = [{list}]\n")).collect();
    let config = plain_config(&format!("{stages}[output]\n{output}\n"));
    let dataset = mixed(&["image", "mask", "boxes"]);
    let plan = SamplePlan::compile(&config, &dataset).unwrap();
    let rows = run_all(&config, &dataset, &photograph(), sample).unwrap();
    plan.tensors().iter().map(|tensor| tensor.name.clone()).zip(rows).collect()
}

fn views(arguments: &str) -> String {
    format!(r#"{{ op = "views", {FIELDS}, {arguments} }}"#)
}

/// The results of operations without draws on the fields alone; each operation names its fields.
fn alone(list: &str) -> Vec<Vec<u8>> {
    let together = format!("{DECODE}, {list}");
    rows(&[&together], &format!("boxes = {RAGGED}"), 1).into_iter().map(|(_, row)| row).collect()
}

/// The rows of one view: image, mask, boxes.
fn of_view(rows: &[Named], view: &str) -> Vec<Vec<u8>> {
    let get = |name: String| {
        let found = rows.iter().find(|(known, _)| *known == name);
        found.unwrap_or_else(|| panic!("no {name}")).1.clone()
    };
    vec![get(view.to_owned()), get(format!("{view}_mask")), get(format!("{view}_boxes"))]
}

#[test]
fn each_view_equals_its_operations_on_image_mask_and_boxes_alone() {
    let lists = [
        [r#"{ op = "center-crop", size = [100, 120]"#, "", r#"{ op = "resize", size = [50, 80]"#],
        [
            r#"{ op = "random-horizontal-flip", probability = 1.0"#,
            r#"{ op = "invert", probability = 1.0"#,
            r#"{ op = "resize", size = [44, 60]"#,
        ],
        [r#"{ op = "resize", size = [60, 50]"#, "", r#"{ op = "center-crop", size = [30, 20]"#],
    ];
    let named = |list: [&str; 3]| {
        let fields = [FIELDS, r#"field = "image""#, FIELDS];
        let named = list.iter().zip(fields).filter(|(operation, _)| !operation.is_empty());
        named.map(|(operation, fields)| format!("{operation}, {fields} }}")).collect::<Vec<_>>()
    };
    let own: Vec<String> = lists
        .iter()
        .enumerate()
        .map(|(view, list)| {
            let list: Vec<String> = list
                .iter()
                .filter(|operation| !operation.is_empty())
                .map(|operation| format!("{operation} }}"))
                .collect();
            format!("v_{view} = [{}]", list.join(", "))
        })
        .collect();
    let views = views(&format!("outputs = {{ v = 3 }}, operations = {{ {} }}", own.join(", ")));
    let output = format!("v_boxes = {RAGGED}");
    let together = rows(&[&format!("{DECODE}, {views}")], &output, 1);
    let names: Vec<&str> = together.iter().map(|(name, _)| name.as_str()).collect();
    let of_first = ["v_0", "v_0_mask", "v_0_boxes"];
    assert_eq!((names.len(), &names[..3]), (9, &of_first[..]));
    for (view, list) in lists.into_iter().enumerate() {
        let expected = alone(&named(list).join(", "));
        assert_eq!(of_view(&together, &format!("v_{view}")), expected, "v_{view}");
        assert!(!expected[2].is_empty(), "a box stays");
    }
    // Through stages, and with a later operation on one view's fields.
    assert_eq!(rows(&[DECODE, &views, ""], &output, 1), together);
}

#[test]
fn view_shares_its_draw_with_its_mask_and_boxes_only() {
    let flip = |share: &str, fields: &str| {
        format!(r#"{{ op = "random-horizontal-flip", probability = {share}{fields} }}"#)
    };
    let expected = ["0.0", "1.0"].map(|share| {
        let crop = format!(r#"{{ op = "center-crop", size = [90, 100], {FIELDS} }}"#);
        alone(&format!("{crop}, {}", flip(share, &format!(", {FIELDS}"))))
    });
    let list = format!(r#"{{ op = "center-crop", size = [90, 100] }}, {}"#, flip("0.5", ""));
    let views = views(&format!("outputs = {{ v = 2 }}, operations = {{ v = [{list}] }}"));
    let mut seen = [[0; 2]; 2];
    for sample in 0..40 {
        let found = rows(&[&format!("{DECODE}, {views}")], &format!("v_boxes = {RAGGED}"), sample);
        let drawn = ["v_0", "v_1"].map(|view| {
            let found = of_view(&found, view);
            expected.iter().position(|one| *one == found).unwrap_or_else(|| {
                panic!("sample {sample}: {view} has an image, a mask and boxes of different draws")
            })
        });
        seen[drawn[0]][drawn[1]] += 1;
    }
    assert!(seen.iter().flatten().all(|count| *count > 2), "{seen:?}");
}

#[test]
fn image_of_a_view_is_the_same_with_and_without_masks() {
    let list = r#"{ op = "random-resized-crop", size = 40 }, { op = "color-jitter", hue = 0.2 }"#;
    let arguments = format!("outputs = {{ v = 2 }}, operations = {{ v = [{list}] }}");
    // The same number of operations before: draws are keyed by an operation's index.
    let plain = format!(
        r#"{{ op = "decode-image" }}, {{ op = "delay", milliseconds = 0 }}, {{ op = "views", {arguments} }}"#
    );
    let config = plain_config(&one_stage(&plain, ""));
    let dataset = mixed(&["image"]);
    for sample in 0..5 {
        let shared = views(&arguments);
        let output = format!("v_boxes = {RAGGED}");
        let found = rows(&[&format!("{DECODE}, {shared}")], &output, sample);
        let expected = run_all(&config, &dataset, &photograph(), sample).unwrap();
        assert_eq!([&found[0].1, &found[3].1], [&expected[0], &expected[1]], "sample {sample}");
        assert_eq!(found[1].1.len() * 3, expected[0].len());
    }
}

#[test]
fn operation_of_a_view_may_name_one_of_its_fields() {
    let list = r#"{ op = "center-crop", size = 60 }, { op = "resize", size = 20, field = "mask" }, { op = "resize", size = 30, fields = ["image", "boxes"] }"#;
    let views = views(&format!("outputs = {{ v = 1 }}, operations = {{ v = [{list}] }}"));
    let output = format!(
        "v_0_boxes = {RAGGED}\nv_mask = {{ dtype = \"float32\" }}\nv = {{ layout = \"NHWC\" }}"
    );
    let found = rows(&[&format!("{DECODE}, {views}")], &output, 1);
    let sizes: Vec<usize> = found[..2].iter().map(|(_, row)| row.len()).collect();
    assert_eq!(sizes, [30 * 30 * 3, 20 * 20 * 4]);
}

/// Arguments of `views`, and a part of the message.
const MISTAKES: &str = r#"
outputs = { v = 1 }, operations = { v = [] }, fields = ["image", "mask"], field = "image"
    => `views` has `field` and `fields`; leave one of them out
outputs = { v = 1 }, operations = { v = [] }, fields = ["boxes"]
    => `stage.stage-0.operations[2].fields` names no image
outputs = { v = 1 }, operations = { v = [] }, fields = ["image", "masks"]
    => `stage.stage-0.operations[2].fields` names no field of the dataset: "masks"; did you mean `mask`?
outputs = { v = 1 }, operations = { v = [{ op = "resize", size = 8, fields = ["v_0"] }] }, fields = ["image", "mask"]
    => `stage.stage-0.operations[2].operations.v[0].fields` names no field of the dataset: "v_0"; the fields are: image, mask
outputs = { v = 1 }, operations = { v = [{ op = "invert", field = "boxes" }] }, fields = ["image", "mask"]
    => names no field of the dataset: "boxes"
outputs = { v = 1, v_0_mask = 1 }, operations = { v = [], v_0_mask = [] }, fields = ["image", "v_0_mask"]
    => names no field of the dataset: "v_0_mask"
"#;

#[test]
fn mistakes_in_views_with_masks_are_explained() {
    check_mistakes(MISTAKES, |mistake| {
        let operations = format!(r#"{DECODE}, {{ op = "views", {mistake} }}"#);
        refusal(&operations, "", &["image", "mask", "boxes"])
    });
}
