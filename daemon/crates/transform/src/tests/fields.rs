//! Plans that pass bytes and text on, drop fields, add fields, change arrays and apply one draw to several fields.

use super::*;

const ALL: [&str; 9] =
    ["image", "label", "array", "mask", "boxes", "numbers", "score", "caption", "blob"];
const RAGGED: &str = "caption = { ragged = true, max_bytes = 64 }\nblob = { ragged = true, max_bytes = 64 }\n\
                      numbers = { ragged = true, max_bytes = 64 }\n";

/// A configuration with one stage per list.
fn stages(stages: &[&str], output: &str) -> Config {
    let stages: String =
        stages.iter().map(|list| format!("[[stage]]\noperations = [{list}]\n")).collect();
    plain_config(&format!("{stages}[output]\n{output}"))
}

fn names(config: &Config, dataset: &InMemory) -> Vec<String> {
    let plan = SamplePlan::compile(config, dataset).unwrap();
    plan.tensors().iter().map(|tensor| tensor.name.clone()).collect()
}

fn floats(row: &[u8]) -> Vec<f32> {
    row.as_chunks::<4>().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect()
}

#[test]
fn bytes_text_and_numbers_are_written_to_their_rows() {
    let dataset = mixed(&ALL[4..]);
    let output = format!("{RAGGED}score = {{ dtype = \"float32\" }}\n");
    // Written in the first stage, or carried through three.
    for lists in [&[""][..], &["", "", r#"{ op = "drop", field = "boxes" }"#]] {
        let rows = run_all(&stages(lists, &output), &dataset, &[7; 30], 9).unwrap();
        let [.., numbers, score, caption, blob] = rows.as_slice() else {
            panic!("{} tensors", rows.len());
        };
        assert_eq!(*numbers, [-2_i16, 300, 7].map(i16::to_ne_bytes).concat());
        assert_eq!(floats(score), [4.5]);
        assert_eq!(caption, "a gräy cat".as_bytes());
        assert_eq!(*blob, [7; 20]);
    }
    for (field, kind) in [("caption", "64KiB"), ("blob", "64KiB"), ("numbers", "64KiB")] {
        let message = refusal("", "", &[field]);
        assert!(message.contains(&format!("{field} = {{ ragged = true, max_bytes = \"{kind}")));
    }
    let config = stages(&[""], "caption = { ragged = true, max_bytes = 4 }\n");
    let refused = run_all(&config, &mixed(&["caption"]), &[7; 30], 0).unwrap_err();
    assert_eq!(
        refused.0,
        "`caption` has 11 bytes, more than its `max_bytes` of 4; raise output.caption.max_bytes to 11 or more"
    );
}

#[test]
fn ragged_array_without_max_bytes_uses_the_datasets_longest_row() {
    let kind = || FieldKind::Array { dtype: DType::I16, shape: vec![3] };
    let config = |output: &str| stages(&[""], &format!("array = {{ ragged = true{output} }}"));
    let known = InMemory::with_longest([("array", kind())], value, &[Some(6)]);
    let longest = |output: &str| {
        let plan = SamplePlan::compile(&config(output), &known).unwrap();
        plan.tensors()[0].extent
    };
    let of = |max_row_bytes, compact| Extent::Ragged { max_row_bytes, compact };
    assert_eq!(longest(""), of(6, false));
    assert_eq!(longest(", dtype = \"float64\", compact = true"), of(24, true));
    assert_eq!(longest(", max_bytes = 10"), of(10, false));
    let rows = run_all(&config(""), &known, &[], 0).unwrap();
    assert_eq!(rows, [[-2_i16, 300, 7].map(i16::to_ne_bytes).concat()]);
    let unknown = InMemory::new([("array", kind())], value);
    let message = SamplePlan::compile(&config(""), &unknown).unwrap_err().to_string();
    assert!(message.contains("`[output] array = { ragged = true, max_bytes ="), "{message}");
}

#[test]
fn arrays_are_ragged_in_their_first_dimension() {
    let dataset = mixed(&["image", "boxes"]);
    let mirror = r#"{ op = "decode-image" }, { op = "mirror-together" }"#;
    let resize = r#", { op = "resize", size = [30, 20] }"#;
    let ragged = "boxes = { ragged = true, max_bytes = 64, dtype = \"float64\" }";
    let file = "image = { ragged = true, max_bytes = \"1MiB\" }";
    let expected = BOXES.map(|corner| f64::from(f32::from_ne_bytes(corner)));
    let mirrored = format!("{mirror}{resize}");
    // Written in the first of three stages, or changed in the second.
    for (lists, image) in [(&["", "", ""][..], file), (&["", &mirrored], "")] {
        let config = stages(lists, &format!("{image}\n{ragged}"));
        let plan = SamplePlan::compile(&config, &dataset).unwrap();
        let boxes = &plan.tensors()[1];
        assert_eq!((boxes.dtype, &boxes.row_shape[..]), (DType::F64, &[4][..]));
        let rows = run_all(&config, &dataset, &photograph(), 1).unwrap();
        let found: Vec<f64> =
            rows[1].as_chunks::<8>().0.iter().map(|bytes| f64::from_ne_bytes(*bytes)).collect();
        assert_eq!(found.len(), 8);
        if image == file {
            assert_eq!(found, expected);
        }
        // With or without mirroring, the vertical coordinates are unchanged.
        assert_eq!([1, 3, 5, 7].map(|at| found[at]), [1, 3, 5, 7].map(|at| expected[at]));
    }
    let config = stages(&[""], "boxes = { ragged = true, max_bytes = 31 }");
    let refused = run_all(&config, &mixed(&["boxes"]), &[], 0).unwrap_err();
    assert!(refused.0.contains("has 32 bytes, more than its `max_bytes` of 31"), "{refused}");
}

#[test]
fn dropped_field_has_no_tensor_and_no_name() {
    let dataset = mixed(&["label", "array", "caption"]);
    let drop = r#"{ op = "drop", field = "label" }, { op = "drop", field = "caption" }"#;
    for lists in [&[drop][..], &["", drop]] {
        let config = stages(lists, "");
        assert_eq!(names(&config, &dataset), ["array"]);
        let rows = run_all(&config, &dataset, &[], 3).unwrap();
        assert_eq!(rows, [[-2_i16, 300, 7].map(i16::to_ne_bytes).concat()]);
    }
    let message = refusal(drop, "caption = { ragged = true, max_bytes = 64 }", &ALL);
    assert!(message.contains("`output.caption` names no field"), "{message}");
    let message = refusal(&format!("{drop}, {drop}"), "", &ALL);
    assert!(message.contains("names no field of the dataset: \"label\""), "{message}");
}

#[test]
fn two_views_of_an_image_are_two_fields() {
    let file = photograph();
    let decode = r#"{ op = "decode-image", field = "image" }"#;
    let left = r#"{ op = "center-crop", size = 50, field = "left" }"#;
    let right = r#"{ op = "resize", size = [30, 20], field = "right" }"#;
    let views = r#"{ op = "two-views" }"#;
    let single =
        |operation: &str| image_row(&one_stage(&format!("{decode}, {operation}"), ""), &file, 3);
    let expected =
        [single(&left.replace("left", "image")), single(&right.replace("right", "image"))];
    let turned = decode.replace("decode-image\"", "decode-image\", scaled = \"auto\"");
    for (lists, differs) in [
        (vec![[decode, views, left, right].join(", ")], false),
        (vec![[decode, views].join(", "), left.to_owned(), right.to_owned()], false),
        (vec![decode.to_owned(), [views, right, left].join(", ")], false),
        // Pixels instead of a file: the views share them.
        (vec![decode.to_owned(), views.to_owned(), [right, left].join(", ")], false),
        (vec![[turned.as_str(), views, left, right].join(", ")], true),
    ] {
        let lists: Vec<&str> = lists.iter().map(String::as_str).collect();
        let config = stages(&lists, "");
        let dataset = mixed(&["image", "label"]);
        assert_eq!(names(&config, &dataset), ["label", "left", "right"]);
        let rows = run_all(&config, &dataset, &file, 3).unwrap();
        assert_eq!(rows[1], expected[0], "{lists:?}");
        assert_eq!(rows[2] != expected[1], differs, "{lists:?}");
    }
    let message = refusal(
        &[decode, views, r#"{ op = "decode-image", field = "image" }"#].join(", "),
        "",
        &["image"],
    );
    assert!(message.contains("names no field of the dataset: \"image\""), "{message}");
}

#[test]
fn one_draw_mirrors_image_mask_and_boxes() {
    let file = photograph();
    let prepared = |field: &str| {
        format!(
            r#"{{ op = "decode-image", field = "{field}" }}, {{ op = "resize", size = [48, 64], field = "{field}" }}"#
        )
    };
    let [image, mask] = ["image", "mask"].map(prepared);
    let single = |flip: &str| image_row(&one_stage(&format!("{image}, {flip}"), ""), &file, 0);
    let plain = single(r#"{ op = "delay", milliseconds = 0 }"#);
    let flipped = single(r#"{ op = "random-horizontal-flip", probability = 1.0 }"#);
    let mirror = r#"{ op = "mirror-together" }"#;
    let dataset = mixed(&["image", "mask", "boxes"]);
    let mut seen = [0, 0];
    for sample in 0..20 {
        let together = [image.as_str(), &mask, mirror].join(", ");
        let rows = run_all(&stages(&[&together], ""), &dataset, &file, sample).unwrap();
        let is_mirrored = rows[0] == flipped;
        seen[usize::from(is_mirrored)] += 1;
        assert_eq!(rows[0], if is_mirrored { &flipped } else { &plain }[..]);
        assert_eq!(rows[0], rows[1]);
        let boxes: &[f32] = if is_mirrored {
            &[34.0, 20.0, 54.0, 44.5, 4.0, 0.0, 64.0, 50.0]
        } else {
            &[10.0, 20.0, 30.0, 44.5, 0.0, 0.0, 60.0, 50.0]
        };
        assert_eq!(floats(&rows[2]), boxes);
        let apart = stages(&[&image, &mask, mirror, ""], "");
        assert_eq!(run_all(&apart, &dataset, &file, sample).unwrap(), rows);
    }
    assert!(seen.iter().all(|count| *count > 2), "{seen:?}");
}

#[test]
fn row_is_written_after_the_last_stage_on_its_field() {
    let dataset = mixed(&["image", "label", "boxes"]);
    let image = r#"{ op = "decode-image" }, { op = "resize", size = [48, 64] }"#;
    let config = stages(&[image, r#"{ op = "mirror-together" }"#, ""], "");
    let written = |lists: &[&str]| {
        let config = stages(lists, "");
        let plan = SamplePlan::compile(&config, &dataset).unwrap();
        let mut rows = Rows::of(&plan);
        let mut task = SampleTask::new(SampleId(1), key(1), photograph());
        let mut first = [usize::MAX; 3];
        for stage in 0..lists.len() {
            plan.run(stage, &mut task, &dataset, &mut rows, &mut WorkerScratch::default()).unwrap();
            for (row, first) in rows.rows.iter().zip(&mut first) {
                if row.iter().any(|byte| *byte != 0x5a) {
                    *first = stage.min(*first);
                }
            }
        }
        assert_eq!(task.held_bytes(), photograph().len(), "nothing is carried behind the end");
        first
    };
    assert_eq!(written(&[image, r#"{ op = "mirror-together" }"#, ""]), [1, 0, 1]);
    assert_eq!(written(&[image, "", ""]), [0, 0, 0]);
    assert_eq!(SamplePlan::compile(&config, &dataset).unwrap().tensors().len(), 3);
}

#[test]
fn carried_arrays_and_text_cost_no_allocation() {
    let dataset = mixed(&["label", "boxes", "caption"]);
    let drop = r#"{ op = "drop", field = "label" }, { op = "drop", field = "boxes" }"#;
    let config = stages(&["", "", drop], "caption = { ragged = true, max_bytes = 64 }\n");
    let plan = SamplePlan::compile(&config, &dataset).unwrap();
    let mut task = SampleTask::new(SampleId(9), key(9), Vec::new());
    let mut scratch = WorkerScratch::default();
    struct Nothing([u8; 64]);
    impl Row for Nothing {
        fn dense(&mut self, _tensor: usize) -> &mut [u8] {
            &mut self.0
        }
        fn ragged(&mut self, _tensor: usize, bytes: u64) -> Option<&mut [u8]> {
            self.0.get_mut(..usize::try_from(bytes).ok()?)
        }
        fn ragged_bytes(&mut self, _tensor: usize) -> &[u8] {
            &self.0
        }
    }
    let mut run = || {
        for stage in 0..3 {
            plan.run(stage, &mut task, &dataset, &mut Nothing([0; 64]), &mut scratch).unwrap();
        }
        task.reset(SampleId(9), key(9));
    };
    (0..10).for_each(|_| run());
    assert_eq!(allocation_counter::measure(run).count_total, 0);
}

const TRUNCATED: &str = "[batch]\nbudget = { tokens = 2 }\nlength = \"numbers\"\nmax_rows = 1\ntoo_long = \"truncate\"\n";

#[test]
fn samples_above_the_budget_are_cut_with_the_arrays_of_the_same_length() {
    let dataset = mixed(&["array", "boxes", "numbers", "caption"]);
    let cut = [-2_i16, 300].map(i16::to_ne_bytes).concat();
    let whole = [-2_i16, 300, 7].map(i16::to_ne_bytes).concat();
    for (of_array, expected) in [("ragged = true, max_bytes = 64", &cut), ("", &whole)] {
        for lists in [&[""][..], &["", "", ""]] {
            let output = format!(
                "{TRUNCATED}[output]\ncaption = {{ ragged = true, max_bytes = 64 }}\nnumbers = {{ ragged = true, max_bytes = 4 }}\n\
                 boxes = {{ ragged = true, max_bytes = 64 }}\narray = {{ {of_array} }}\n"
            );
            let lists: String =
                lists.iter().map(|list| format!("[[stage]]\noperations = [{list}]\n")).collect();
            let config = plain_config(&format!("{lists}{output}"));
            let rows = run_all(&config, &dataset, &[], 0).unwrap();
            let [array, boxes, numbers, caption] = rows.as_slice() else { panic!("{rows:?}") };
            assert_eq!((numbers, array), (&cut, expected), "{of_array}");
            // Of another length, and a text.
            assert_eq!((boxes.len(), &caption[..]), (32, "a gräy cat".as_bytes()));
        }
    }
}

#[test]
fn arrays_in_fortran_order_are_cut_by_rows() {
    let kind = || FieldKind::RaggedArray { dtype: DType::I16, row_shape: vec![2] };
    let dataset = InMemory::new([("numbers", kind())], |_, _, _| {
        FieldValue::Array(ArrayValue {
            dtype: DType::I16,
            shape: [3, 2][..].into(),
            fortran_order: true,
            big_endian: false,
            bytes: [1_i16, 2, 3, 4, 5, 6].map(i16::to_le_bytes).concat().into(),
        })
    });
    let config = plain_config(&format!(
        "[[stage]]\noperations = []\n{TRUNCATED}[output]\nnumbers = {{ ragged = true, max_bytes = 8 }}\n"
    ));
    let rows = run_all(&config, &dataset, &[], 0).unwrap();
    assert_eq!(rows, [[1_i16, 4, 2, 5].map(i16::to_ne_bytes).concat()]);
}

#[test]
fn rows_are_planned_for_what_is_left_of_the_longest() {
    let kind = || FieldKind::Array { dtype: DType::I16, shape: vec![3] };
    let known = InMemory::with_longest([("numbers", kind())], value, &[Some(600)]);
    let config = plain_config(&format!(
        "[[stage]]\noperations = []\n{TRUNCATED}[output]\nnumbers = {{ ragged = true, dtype = \"int32\" }}\n"
    ));
    let plan = SamplePlan::compile(&config, &known).unwrap();
    assert_eq!(plan.tensors()[0].extent, Extent::Ragged { max_row_bytes: 8, compact: false });
}

#[test]
fn lengths_that_do_not_say_what_to_cut_are_refused() {
    let dataset = mixed(&["label", "array", "caption"]);
    for (length, expected) in [
        ("label", "`label` is a number that does not say what to cut"),
        (
            "caption",
            "`caption` counts bytes: cut texts with `max_length` of the operation `tokenize`",
        ),
        ("array", "all rows of `array` have one length; set `output.array.ragged = true`"),
    ] {
        let keys = TRUNCATED.replace("numbers", length);
        let config = plain_config(&format!(
            "[[stage]]\noperations = []\n{keys}[output]\ncaption = {{ ragged = true, max_bytes = 64 }}\n"
        ));
        let message = SamplePlan::compile(&config, &dataset).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
        assert!(message.contains("`batch.too_long = \"truncate\"`"), "{message}");
    }
}

#[test]
fn padding_of_ragged_arrays_is_described() {
    let dataset = mixed(&["array", "boxes", "numbers", "caption"]);
    let config = |output: &str| {
        plain_config(&format!(
            "[[stage]]\noperations = []\n[batch]\npad = \"batch\"\nmultiple_of = 8\n[output]\n\
             caption = {{ ragged = true, max_bytes = 64 }}\nboxes = {{ ragged = true, max_bytes = 64 }}\n{output}\n"
        ))
    };
    let described = config("numbers = { ragged = true, max_bytes = 64, pad = -100 }");
    let plan = SamplePlan::compile(&described, &dataset).unwrap();
    let found: Vec<_> = plan
        .tensors()
        .iter()
        .map(|tensor| tensor.padding.map(|by| (by.multiple_of, f64::from_bits(by.value_bits))))
        .collect();
    // An array of one shape, boxes, numbers, and a text.
    assert_eq!(found, [None, Some((8, 0.0)), Some((8, -100.0)), None]);
    for (output, expected) in [
        (
            "numbers = { ragged = true, max_bytes = 64, dtype = \"uint8\", pad = -1 }",
            "`output.numbers.pad`: -1 is not a value of uint8",
        ),
        (
            "numbers = { ragged = true, max_bytes = 64 }\narray = { pad = 1 }",
            "`output.array.pad` is for arrays whose rows differ in length, and `array` is not one",
        ),
    ] {
        let message = SamplePlan::compile(&config(output), &dataset).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    }
    let kinds = || FieldKind::RaggedArray { dtype: DType::I16, row_shape: vec![] };
    let twice =
        InMemory::new([("numbers", kinds()), ("numbers_lengths", FieldKind::Integer)], value);
    let config = plain_config(
        "[[stage]]\noperations = []\n[batch]\npad = \"batch\"\n[output]\nnumbers = { ragged = true, max_bytes = 64 }\n",
    );
    let message = SamplePlan::compile(&config, &twice).unwrap_err().to_string();
    assert!(message.contains("the lengths of `numbers` are called `numbers_lengths`"), "{message}");
}
