//! The page that `forebay show` writes.

use std::fs;
use std::path::Path;

use forebay_tests::{TestDir, data, program};
use serde_json::Value;

/// The run's JSON in a page.
fn found(page: &Path) -> Value {
    let text = fs::read_to_string(page).unwrap();
    let (_, data) = text.split_once("id=\"data\">").unwrap();
    serde_json::from_str(data.split_once("</script>").unwrap().0).unwrap()
}

fn field<'f>(sample: &'f Value, name: &str) -> &'f Value {
    let fields = sample["fields"].as_array().unwrap();
    fields.iter().find(|field| field["name"] == name).unwrap()
}

#[test]
fn pictures_labels_and_files_are_those_that_a_trainer_gets() {
    let dir = TestDir::new();
    data::images(&dir.path("data"), 24, 3);
    let config = dir.config("train.toml", &data::image_config(&dir.path("data"), ""));
    let page = dir.path("out.html");
    let show = |arguments: &[&str]| {
        let run = program::run(
            dir.forebay(&["show", "--count", "6", "--output"])
                .arg(&page)
                .args(arguments)
                .arg(&config),
        );
        assert!(run.status.success(), "{run:?}");
        found(&page)
    };
    let bytes = show(&["--set", "output.image.dtype=uint8"]);
    let samples = bytes["run"]["samples"].as_array().unwrap();
    assert_eq!((samples.len(), bytes["run"]["of"].as_u64()), (6, Some(24)));
    for sample in samples {
        let picture = field(sample, "image");
        assert_eq!((&picture["width"], &picture["channels"]), (&32.into(), &3.into()));
        // Four characters for three bytes.
        assert_eq!(picture["pixels"].as_str().unwrap().len(), 32 * 32 * 3 / 3 * 4);
        let path = sample["path"].as_str().unwrap();
        let class = Path::new(path).parent().unwrap().file_name().unwrap().to_str().unwrap();
        assert_eq!(field(sample, "label")["class"], class, "{path}");
        assert!(sample["file"].as_str().unwrap().len() > fs::read(path).unwrap().len());
    }
    // Normalised pictures are drawn as the bytes that they are made of.
    let normalised = show(&[
        "--set",
        "output.image.dtype=float32",
        "--set",
        "output.image.mean=[0.4, 0.5, 0.6]",
        "--set",
        "output.image.std=[0.2, 0.3, 0.4]",
    ]);
    assert_eq!(normalised["run"], bytes["run"]);
}

#[test]
fn boxes_are_shown_for_each_sample_and_an_unwritable_page_is_an_error() {
    let dir = TestDir::new();
    data::boxes(&dir.path("boxes"), 5);
    let text = format!(
        "dataset.path = {:?}\ndataset.format = \"npz\"\nbatch.size = 2\norder.shuffle = false\n\
         stage = [{{ name = \"unpack\", operations = [] }}]\n\
         output.boxes = {{ ragged = true, max_bytes = \"1KiB\" }}\n",
        dir.path("boxes").display()
    );
    let config = dir.config("boxes.toml", &text);
    let folder = dir.path("pages");
    fs::create_dir(&folder).unwrap();
    let run = program::run(dir.forebay(&["show"]).arg(&config).current_dir(&folder));
    assert!(run.status.success(), "{run:?}");
    let page = folder.join("boxes-samples.html");
    let data = found(&page);
    let samples = data["run"]["samples"].as_array().unwrap();
    assert_eq!(samples.len(), 5, "{data}");
    for (number, sample) in samples.iter().enumerate() {
        let expected = vec![vec![number as f64; 4]; number % 5];
        assert_eq!(field(sample, "boxes")["boxes"], serde_json::json!(expected));
        assert!(sample["file"].is_null());
    }
    // A folder that is not there is an error, and no page.
    let page = dir.path("no/such/out.html");
    let run = program::run(dir.forebay(&["show", "--output"]).arg(&page).arg(&config));
    assert!(!run.status.success() && run.stderr.contains("cannot write the report"), "{run:?}");
}

/// The boxes of a COCO file have the names of its categories, and a field of `[dataset.fields]` those of its classes.
#[test]
fn labels_of_boxes_and_of_any_field_with_classes_have_names() {
    let dir = TestDir::new();
    data::images(&dir.path("data"), 3, 1);
    let files =
        ["00000000.jpg", "00000001.jpg", "00000002.jpg"].map(|file| format!("class-000/{file}"));
    let image = |(id, file): (usize, &String)| serde_json::json!({ "id": id, "file_name": file, "width": 48, "height": 40 });
    let annotation = |(id, category): (usize, u64)| serde_json::json!({ "id": id, "image_id": 1, "category_id": category, "bbox": [id, 2, 9, 9], "iscrowd": 0 });
    let annotations: Vec<_> = [8, 5].into_iter().enumerate().map(annotation).collect();
    let listed = serde_json::json!({
        "images": files.iter().enumerate().map(image).collect::<Vec<_>>(),
        "annotations": annotations,
        "categories": [{ "id": 8, "name": "dog" }, { "id": 5, "name": "cat" }],
    });
    fs::write(dir.path("data/all.json"), listed.to_string()).unwrap();
    let rows: String = files
        .iter()
        .zip(["owl", "emu", "owl"])
        .map(|(file, bird)| format!("{file},{bird}\n"))
        .collect();
    fs::write(dir.path("data/all.csv"), format!("file,bird\n{rows}")).unwrap();
    let show = |name: &str, dataset: &str| {
        let text = format!(
            "dataset.path = {:?}\nbatch.size = 3\norder.shuffle = false\n{dataset}\n[[stage]]\nname = \"decode\"\n\
             operations = [{{ op = \"decode-image\" }}, {{ op = \"resize\", size = [8, 8] }}]\n",
            dir.path(&format!("data/all.{name}")).display()
        );
        let config = dir.config(&format!("{name}.toml"), &text);
        let page = dir.path("labels.html");
        let run = program::run(dir.forebay(&["show", "--output"]).arg(&page).arg(&config));
        assert!(run.status.success(), "{run:?}");
        let check = program::run(dir.forebay(&["check", "--plan-only"]).arg(&config));
        (found(&page)["run"]["samples"].clone(), check.stdout)
    };
    let (samples, plan) = show("json", "dataset.format = \"coco\"");
    assert!(plan.contains("  classes             2, cat to dog\n"), "{plan}");
    let (labels, boxes) = (field(&samples[1], "labels"), field(&samples[1], "boxes"));
    assert_eq!(boxes["boxes"].as_array().map(Vec::len), Some(2), "{boxes}");
    for one in [labels, boxes] {
        assert_eq!(one["names"], serde_json::json!(["dog", "cat"]));
        assert_eq!(one["labels"], serde_json::json!([1, 0]));
    }
    let none = field(&samples[0], "labels");
    assert_eq!((&none["names"], &none["value"]), (&serde_json::json!([]), &"int64 [0]".into()));
    let fields = "dataset.fields.image.from = \"file\"\ndataset.fields.kind = { from = \"bird\", classes = \"sorted\" }\n";
    let (samples, plan) = show("csv", &format!("dataset.format = \"manifest\"\n{fields}"));
    assert!(plan.contains("  classes             2, emu to owl\n"), "{plan}");
    let names: Vec<_> = (0..3).map(|row| field(&samples[row], "kind")["class"].clone()).collect();
    assert_eq!(names, ["owl", "emu", "owl"]);
}

/// The size of a JPEG, from its frame header.
fn jpeg_size(file: &[u8]) -> (u16, u16) {
    let at = file.windows(2).position(|two| two == [0xff, 0xc0]).unwrap();
    let number = |at: usize| u16::from_be_bytes([file[at], file[at + 1]]);
    (number(at + 7), number(at + 5))
}

#[test]
fn a_picture_shows_what_each_operation_does_without_a_configuration() {
    let dir = TestDir::new();
    let show = |arguments: &[&str]| {
        program::run(
            dir.forebay(&["show", "--operations"]).args(arguments).current_dir(dir.path("")),
        )
    };
    let run = show(&[]);
    assert!(run.status.success(), "{run:?}");
    let said = run.stdout;
    let drawn = fs::read(dir.path("operations.jpg")).unwrap();
    // One that the documentation has, within what a repository should hold.
    assert!((50_000..200_000).contains(&drawn.len()), "{}", drawn.len());
    let (count, _) = said.split_once(" operations: operations.jpg").unwrap();
    let lines = count.parse::<u16>().unwrap().div_ceil(4);
    assert_eq!(jpeg_size(&drawn), (4 * (3 * 104 + 24) + 24, lines * (80 + 24 + 24) + 24));
    // The user's own picture, and one that is none.
    data::images(&dir.path("data"), 2, 1);
    let mut folders = fs::read_dir(dir.path("data")).unwrap().map(|entry| entry.unwrap().path());
    let folder = folders.find(|path| path.is_dir()).unwrap();
    let own = fs::read_dir(folder).unwrap().next().unwrap().unwrap().path();
    let run = show(&["--picture", own.to_str().unwrap(), "--output", "own.jpg"]);
    assert!(run.status.success(), "{run:?}");
    let of_own = fs::read(dir.path("own.jpg")).unwrap();
    assert_eq!(jpeg_size(&of_own), jpeg_size(&drawn));
    assert_ne!(of_own, drawn);
    let config = dir.config("no.toml", "");
    for (wrong, expected) in [
        (
            ["--picture", config.to_str().unwrap()],
            "no.toml: not a JPEG, PNG, WebP, TIFF, BMP or GIF file",
        ),
        (["--count", "3"], "cannot be used with"),
    ] {
        let run = show(&wrong);
        assert!(!run.status.success());
        let error = run.stderr;
        assert!(error.contains(expected), "{error}");
    }
}
