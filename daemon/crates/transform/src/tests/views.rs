//! Views: each equals its operations on the image alone, with independent draws, and the image is decoded once.

use super::*;

/// The rows of a plan of one stage, by the tensors' names.
fn views(before: &str, arguments: &str, output: &str, file: &[u8], sample: u64) -> Vec<Named> {
    let operations = format!(r#"{before}, {{ op = "views", {arguments} }}"#);
    let config = plain_config(&one_stage(&operations, output));
    let dataset = mixed(&["image", "label"]);
    let plan = SamplePlan::compile(&config, &dataset).unwrap();
    let rows = run_all(&config, &dataset, file, sample).unwrap();
    plan.tensors().iter().map(|tensor| tensor.name.clone()).zip(rows).collect()
}

type Named = (String, Vec<u8>);

const DECODE: &str = r#"{ op = "decode-image" }"#;
const CROP: &str = r#"{ op = "random-resized-crop", size = 40 }"#;

/// Lists without draws, each with a known result size.
const LISTS: [&str; 6] = [
    r#"{ op = "center-crop", size = [30, 44] }"#,
    r#"{ op = "resize", size = [33, 50] }, { op = "center-crop", size = 20 }"#,
    r#"{ op = "center-crop", size = [20, 140] }, { op = "resize", size = 64 }, { op = "resize", size = [12, 9] }"#,
    r#"{ op = "invert", probability = 1.0 }, { op = "resize", size = [17, 23], interpolation = "nearest" }"#,
    r#"{ op = "random-vertical-flip", probability = 1.0 }, { op = "center-crop", size = [200, 31] }"#,
    r#"{ op = "random-horizontal-flip", probability = 1.0 }, { op = "resize", size = [8, 8] }, { op = "equalize", probability = 1.0 }"#,
];

#[test]
fn each_view_equals_its_operations_on_the_image_alone() {
    let outputs = r#"outputs = { v = 6 }"#;
    let lists: Vec<String> =
        LISTS.iter().enumerate().map(|(view, list)| format!("v_{view} = [{list}]")).collect();
    let lists = format!("{outputs}, operations = {{ {} }}", lists.join(", "));
    let files = [photograph(), with_orientation(&photograph(), 6)];
    for before in [
        DECODE.to_owned(),
        r#"{ op = "decode-image", orientation = true }"#.to_owned(),
        r#"{ op = "decode-image", channels = 4 }"#.to_owned(),
        // A part, a resampling and a mirrored image are pending operations, which may be executed before the views are
        // made.
        format!(r#"{DECODE}, {{ op = "center-crop", size = [100, 90] }}"#),
        format!(
            r#"{DECODE}, {{ op = "center-crop", size = 130 }}, {{ op = "random-horizontal-flip", probability = 1.0 }}"#
        ),
        format!(r#"{DECODE}, {{ op = "resize", size = 90, interpolation = "bicubic" }}"#),
        format!(r#"{DECODE}, {{ op = "posterize", bits = 3, probability = 1.0 }}"#),
    ] {
        for file in &files {
            if before.contains("= 4") {
                // `equalize` does not support alpha.
                continue;
            }
            let floats = r#"{ dtype = "float32", layout = "NHWC" }"#;
            for (output, of_views) in [("", String::new()), (floats, format!("v = {floats}"))] {
                let found = views(&before, &lists, &of_views, file, 3);
                assert_eq!(found.len(), 7);
                assert_eq!(found[0].0, "label");
                for ((name, row), list) in found[1..].iter().zip(LISTS) {
                    let output =
                        if output.is_empty() { String::new() } else { format!("image = {output}") };
                    let alone =
                        image_row(&one_stage(&format!("{before}, {list}"), &output), file, 3);
                    assert_eq!(*row, alone, "{name} after {before}");
                }
            }
        }
    }
}

#[test]
fn view_is_independent_of_other_views() {
    let file = photograph();
    let jitter = r#"{ op = "color-jitter", brightness = 0.5, hue = 0.1 }"#;
    let list = format!(r#"{CROP}, {{ op = "random-horizontal-flip" }}, {jitter}"#);
    let of = |arguments: &str, sample| views(DECODE, arguments, "", &file, sample);
    let get = |rows: &[Named], name: &str| {
        rows.iter().find(|(known, _)| known == name).map(|(_, row)| row.clone()).unwrap()
    };
    for sample in 0..4 {
        let few = of(&format!("outputs = {{ b = 2 }}, operations = {{ b = [{list}] }}"), sample);
        let many = of(
            &format!(
                "outputs = {{ c = 3, b = 2, a = 1 }}, operations = {{ a = [{CROP}, {CROP}], b_1 = [{CROP}], b = [{list}], \
                 c = [{list}] }}"
            ),
            sample,
        );
        let names: Vec<&str> = many.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["label", "a_0", "b_0", "b_1", "c_0", "c_1", "c_2"]);
        assert_eq!(get(&few, "b_0"), get(&many, "b_0"));
        let mut different: Vec<Vec<u8>> = many[1..].iter().map(|(_, row)| row.clone()).collect();
        different.push(get(&few, "b_1"));
        different.extend(
            of(&format!("outputs = {{ b = 2 }}, operations = {{ b = [{list}] }}"), sample + 9)
                .into_iter()
                .skip(1)
                .map(|(_, row)| row),
        );
        different.sort();
        different.dedup();
        assert_eq!(
            different.len(),
            9,
            "views of a name, of other names and of other samples differ"
        );
    }
}

/// Decoding one part of the file for all views yields the same pixels as the whole image.
#[test]
fn views_of_a_decoded_part_equal_views_of_the_whole_image() {
    let file = photograph();
    let lists = format!(
        r#"outputs = {{ small = 3, large = 1 }}, operations = {{ small = [{{ op = "random-resized-crop", size = 20, area = [0.02, 0.1] }}, {{ op = "solarize", threshold = 100 }}], large = [{CROP}, {{ op = "random-horizontal-flip" }}] }}"#
    );
    // The same number of operations, after which the whole image is decoded.
    let part = format!(
        r#"{DECODE}, {{ op = "delay", milliseconds = 0 }}, {{ op = "delay", milliseconds = 0 }}"#
    );
    let whole = format!(
        r#"{DECODE}, {{ op = "invert", probability = 1.0 }}, {{ op = "invert", probability = 1.0 }}"#
    );
    for sample in 0..30 {
        let found = views(&part, &lists, "", &file, sample);
        assert_eq!(found, views(&whole, &lists, "", &file, sample), "sample {sample}");
    }
}

/// Number of decodings for the views of one sample, and their rows.
fn decodings(decode: &str, lists: &str, file: &[u8]) -> (usize, Vec<Vec<u8>>) {
    let operations = format!(r#"{decode}, {{ op = "views", {lists} }}"#);
    let config = plain_config(&one_stage(&operations, ""));
    let dataset = mixed(&["image"]);
    let plan = SamplePlan::compile(&config, &dataset).unwrap();
    let mut rows = Rows::of(&plan);
    let mut scratch = WorkerScratch::default();
    let mut task = SampleTask::new(SampleId(1), key(1), file.to_vec());
    plan.run(0, &mut task, &dataset, &mut rows, &mut scratch).unwrap();
    (scratch.tools.image.decoders.count, rows.rows)
}

#[test]
fn picture_is_decoded_once_for_all_views() {
    let lists = format!(
        r#"outputs = {{ global = 2, local = 6 }}, operations = {{ global = [{CROP}, {{ op = "color-jitter", hue = 0.1 }}], local = [{CROP}], local_3 = [{{ op = "random-horizontal-flip" }}, {CROP}] }}"#
    );
    let before = format!(r#"{DECODE}, {{ op = "resize", size = 90 }}"#);
    for decode in [DECODE, r#"{ op = "decode-image", scaled = "auto" }"#, &before] {
        assert_eq!(decodings(decode, &lists, &photograph()).0, 1, "{decode}");
    }
}

/// The scale must be permitted by all views: with a view of the whole size there is none.
#[test]
fn picture_is_decoded_smaller_if_all_views_permit_it() {
    let file = jpeg(&gradient(640, 480, 3), 640, 480, 3);
    let (off, auto) = (DECODE, r#"{ op = "decode-image", scaled = "auto" }"#);
    let small = r#"{ op = "resize", size = [30, 40] }"#;
    let half = r#"{ op = "resize", size = [240, 320] }"#;
    let large = r#"{ op = "center-crop", size = 300 }"#;
    let alone = |decode, list| image_row(&one_stage(&format!("{decode}, {list}"), ""), &file, 1);
    assert_ne!(alone(off, small), alone(auto, small));
    let lists = |second: &str| {
        format!("outputs = {{ a = 1, b = 1 }}, operations = {{ a = [{small}], b = [{second}] }}")
    };
    let (_, both_small) = decodings(auto, &lists(small), &file);
    assert_eq!(both_small[0], alone(auto, small));
    let (_, with_half) = decodings(auto, &lists(half), &file);
    assert_eq!(with_half[1], alone(auto, half));
    assert_ne!(with_half[0], alone(auto, small));
    assert_ne!(with_half[0], alone(off, small));
    let (_, with_large) = decodings(auto, &lists(large), &file);
    assert_eq!(with_large, [alone(off, small), alone(off, large)]);
}

#[test]
fn views_pass_through_later_stages() {
    let lists =
        format!(r#"{{ op = "views", outputs = {{ a = 2 }}, operations = {{ a = [{CROP}] }} }}"#);
    let later = r#"{ op = "invert", probability = 1.0, field = "a_1" }, { op = "normalize", mean = [0.5, 0.5, 0.5], std = [0.2, 0.2, 0.2], field = "a_0" }"#;
    let stages = |lists: &[&str]| -> Config {
        let stages: String =
            lists.iter().map(|list| format!("[[stage]]\noperations = [{list}]\n")).collect();
        plain_config(&stages)
    };
    let together = format!("{DECODE}, {lists}, {later}");
    let dataset = mixed(&["image"]);
    let file = photograph();
    let expected = run_all(&stages(&[&together]), &dataset, &file, 5).unwrap();
    assert_eq!(expected[0].len(), 4 * expected[1].len());
    assert_eq!(run_all(&stages(&[DECODE, &lists, later]), &dataset, &file, 5).unwrap(), expected);
}

/// Arguments of `views`, and a part of the message.
const MISTAKES: &str = r#"
operations = { a = [] }
    => outputs` is required: a table of names and how many views each has (1 to 64), such as { global = 2, local = 6 }
outputs = { a = 0 }, operations = { a = [] }
    => outputs` must be a table of names and how many views each has (1 to 64), such as { global = 2, local = 6 }, not a table
outputs = { a = 2 }
    => operations` is required
outputs = { a = 2, b = 1 }, operations = { a = [CROP] }
    => `stage.stage-0.operations[1].operations.b` is required: what is done to `b_0`; [] for nothing
outputs = { global = 2 }, operations = { globl = [CROP] }
    => `stage.stage-0.operations[1].operations.globl` is for no view of `outputs`; did you mean `global`?
outputs = { a = 2 }, operations = { a = [CROP], a_2 = [CROP] }
    => `stage.stage-0.operations[1].operations.a_2` is for no view of `outputs`; did you mean `a_0`?
outputs = { a = 2, a_1 = 1 }, operations = { a = [CROP], a_1 = [CROP] }
    => `a_1` is a view of another name already; choose another
outputs = { a = 2 }, operations = { a = [CROP], a_1 = [{ op = "invrt" }] }
    => unknown operation "invrt"; did you mean `invert`?
outputs = { a = 2 }, operations = { a = [{ op = "random-resized-crop" }] }
    => `stage.stage-0.operations[1].operations.a[0].size` is required
outputs = { a = 2 }, operations = { a = [] }
    => the images of `a_0` differ in size
outputs = { a = 2 }, operations = { a = [{ op = "random-resized-crop", size = 8, fields = ["a_0", "boxes"] }] }
    => `random-resized-crop` works on its view alone; for views with masks and boxes name these in `fields` of `views`
outputs = { a = 2 }, operations = { a = [{ op = "random-apply", operations = [{ op = "invert", field = "image" }] }] }
    => `invert` works on its view alone; leave `field` out
outputs = { a = 2 }, operations = { a = [CROP, { op = "views", outputs = { b = 1 }, operations = { b = [] } }] }
    => `views` within `views`: make all of them in one
outputs = { a = 2 }, operations = { a = [{ op = "decode-image" }] }
    => `a_0` is decoded already
outputs = { a = 2 }, operations = { a = [CROP] }, field = "boxes"
    => `views` needs an image, but field `boxes` is not one
"#;

#[test]
fn mistakes_in_views_are_explained() {
    check_mistakes(MISTAKES, |mistake| {
        let arguments = mistake.replace("CROP", CROP);
        refusal(&format!(r#"{DECODE}, {{ op = "views", {arguments} }}"#), "", &["image", "boxes"])
    });
    let views =
        format!(r#"{{ op = "views", outputs = {{ a = 1 }}, operations = {{ a = [{CROP}] }} }}"#);
    let taken = refusal(&format!("{DECODE}, {views}"), "image = { dtype = \"uint8\" }", &["image"]);
    assert!(taken.contains("`output.image` names no field"), "{taken}");
    let encoded = refusal(&views, "", &["image"]);
    assert!(
        encoded.contains("`views` needs a decoded image; put `decode-image` before it"),
        "{encoded}"
    );
    let chosen = refusal(
        &format!(r#"{DECODE}, {{ op = "random-apply", operations = [{views}] }}"#),
        "",
        &["image"],
    );
    assert!(chosen.contains("a field is added in some samples and not in others"), "{chosen}");
}
