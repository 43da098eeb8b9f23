use std::fs;
use std::path::{Path, PathBuf};

use forebay_keys::Section;
use forebay_protocol::ids::SampleId;
use forebay_protocol::tensor::DType;

use crate::conformance::{self, Format};
use crate::open;
use crate::testing::{EVERYWHERE, config_for, names, npy_bytes, own_keys, sample, write_aged};
use forebay_dataset::{DatasetError, FieldValue, OpenOptions, Opened};
use forebay_storage::location::SampleBytes;

/// Pictures, and a manifest in the given form that lists them with labels and captions.
fn conforming(root: &Path, count: usize, form: &str) -> PathBuf {
    let mut text = match form {
        "jsonl" => String::new(),
        "tsv" => "file_name\tlabel\tcaption\n".to_owned(),
        _ => "file_name,label,caption\n".to_owned(),
    };
    for number in 0..count {
        let name = format!("images/{number:03}.jpg");
        write_aged(&root.join(&name), &vec![u8::try_from(number).unwrap(); 20 + number]);
        text += &match form {
            "jsonl" => format!(
                "{{\"caption\": \"no \\\"{number}\\\"\", \"file_name\": \"{name}\", \"label\": {number}}}\n"
            ),
            "tsv" => format!("{name}\t{number}\t\"no \"\"{number}\"\"\"\n"),
            _ => format!("{name},{number},\"no \"\"{number}\"\"\"\n"),
        };
    }
    let path = root.join(format!("metadata.{form}"));
    write_aged(&path, text.as_bytes());
    path
}

#[test]
fn manifests_conform_on_disk_and_from_urls() {
    let makes: [fn(&Path, usize) -> PathBuf; 4] = [
        |root, count| conforming(root, count, "csv"),
        |root, count| conforming(root, count, "tsv"),
        |root, count| conforming(root, count, "jsonl"),
        |root, count| conforming(root, count, "jsonl").parent().unwrap().to_owned(),
    ];
    for (place, make) in makes.into_iter().enumerate() {
        // Only one form is read from each kind of URL.
        let openers = if place == 2 { &EVERYWHERE[..] } else { &EVERYWHERE[..1] };
        for open in openers {
            let (has_names, refuses_cuts) = (true, false);
            conformance::run(&Format {
                open: *open,
                name: "manifest",
                make,
                has_names,
                refuses_cuts,
            });
        }
    }
}

mod pictures;

struct Fixture {
    folder: tempfile::TempDir,
    own: Section,
    limit: Option<u64>,
}

impl Fixture {
    /// Files in `data`; the first one is the manifest.
    fn new(files: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            write_aged(&folder.path().join("data").join(name), text.as_bytes());
        }
        Self { folder, own: Section::default(), limit: None }
    }

    fn with(mut self, keys: &str) -> Self {
        self.own = own_keys(keys);
        self
    }

    fn open_path(&self, path: &str) -> Result<Opened, DatasetError> {
        let mut config = config_for("manifest", &self.folder.path().join(path));
        config.index = Some(self.folder.path().join("saved.index"));
        (config.own, config.limit) = (self.own.clone(), self.limit);
        open(&config, OpenOptions::default())
    }

    fn refusal(&self, path: &str) -> String {
        let message = self.open_path(path).unwrap_err().to_string();
        message.replace(&format!("{}/", self.folder.path().display()), "")
    }
}

fn fields(opened: &Opened) -> Vec<&str> {
    opened.dataset.fields().iter().map(|field| &field.name[..]).collect()
}

#[test]
fn bad_label_is_given_with_its_defect() {
    let made = Fixture::new(&[("train.csv", "text,label\na,3\nb,\nc,x\n")])
        .with("[dataset.fields]\nlabel = { from = \"label\", as = \"integer\" }");
    let opened = made.open_path("data/train.csv").unwrap();
    let label = |id| opened.dataset.label(SampleId(id)).unwrap();
    assert_eq!(label(0).unwrap(), 3);
    for id in [1, 2] {
        assert_eq!(label(id).unwrap_err().0, sample(&opened, id).unwrap_err());
    }
}

#[test]
fn column_types_are_inferred_from_values() {
    let made = Fixture::new(&[
        (
            "train.csv",
            "file_name,mask_file_name,score,label,caption\r\na.jpg,m/a.png,0.5,3,\"one,\ntwo\"\r\n\r\nb.JPG,m/b.png,2,-1,\r\n",
        ),
        ("a.jpg", "A"),
        ("b.JPG", "BB"),
        ("m/a.png", "mask A"),
        ("m/b.png", "mask"),
    ]);
    let opened = made.open_path("data/train.csv").unwrap();
    assert_eq!(fields(&opened), ["file_name", "mask", "score", "label", "caption"]);
    assert_eq!(names(&opened), ["train.csv:2", "train.csv:5"]);
    assert_eq!(sample(&opened, 0).unwrap(), ["image 1", "image 6", "0.5", "3", "\"one,\\ntwo\""]);
    assert_eq!(sample(&opened, 1).unwrap(), ["image 2", "image 4", "2", "-1", "\"\""]);
    assert_eq!(opened.dataset.max_row_bytes(4), Some(8));
    // A single column of pictures becomes `image`.
    let made = Fixture::new(&[
        ("metadata.jsonl", "{\"file_name\": \"a.jpg\", \"objects\": {\"id\": [1]}}\n"),
        ("a.jpg", "A"),
    ]);
    let opened = made.open_path("data").unwrap();
    assert_eq!(fields(&opened), ["image", "objects"]);
    assert_eq!(sample(&opened, 0).unwrap(), ["image 1", "\"{\\\"id\\\":[1]}\""]);
}

#[test]
fn fields_follow_the_configuration() {
    let array = npy_bytes("<i8", false, "(1,)", &[7; 8]);
    let made = Fixture::new(&[
        ("pairs.jsonl", concat!(
            r#"{"left": "l0.jpg", "right": "r0.jpg", "kind": "dog", "text": "ein Hund", "raw": "r0.jpg", "array": "a.npy"}"#, "\n",
            r#"{"left": "l1.jpg", "right": "r1.jpg", "kind": "cat", "text": null, "raw": "r1.jpg", "array": "a.npy"}"#, "\n",
            r#"{"left": "l1.jpg", "kind": "ant", "raw": "r1.jpg", "array": "gone.npy", "alternative": "l0.jpg"}"#, "\n",
            r#"{"left": "l1.jpg", "kind": null, "raw": "r1.jpg", "array": "a.npy"}"#, "\n",
        )),
        ("l0.jpg", "1"), ("l1.jpg", "22"), ("r0.jpg", "333"), ("r1.jpg", "4444"),
    ])
    .with(
        r#"
        [dataset.fields]
        left  = { from = "left" }
        right = { from = ["right", "alternative"], as = "image" }
        kind  = { from = "kind", classes = "sorted", missing = "skip" }
        order = { from = "kind", as = "integer", classes = ["cat", "dog", "ant"] }
        text  = { from = "text", as = "text", missing = "empty" }
        raw   = { from = "raw", as = "bytes" }
        array = { from = "array" }
        "#,
    );
    write_aged(&made.folder.path().join("data/a.npy"), &array);
    let opened = made.open_path("data/pairs.jsonl").unwrap();
    assert_eq!(opened.dataset.sample_count(), 3);
    let expected = ["image 1", "image 3", "2", "1", "\"ein Hund\"", "[51, 51, 51]", "I64 [1]"];
    assert_eq!(sample(&opened, 0).unwrap(), expected);
    assert_eq!(sample(&opened, 1).unwrap()[2..5], ["1", "0", "\"\""]);
    let missing = sample(&opened, 2).unwrap_err();
    assert!(missing.contains("gone.npy"), "{missing}");
    assert!(opened.report.warnings[0].contains("1 row without a value"), "{:?}", opened.report);
    assert!(opened.dataset.description().field_rules.contains("classes = \"sorted\""));
    assert!(opened.dataset.classes().is_empty(), "two fields have classes");
    // The labels do not depend on the limit.
    let few = Fixture { limit: Some(1), ..made };
    assert_eq!(sample(&few.open_path("data/pairs.jsonl").unwrap(), 0).unwrap(), expected);
}

#[test]
fn rows_without_paths_have_no_files() {
    let made =
        Fixture::new(&[("pairs.tsv", "source\ttarget\tn\nhello\thallo\t1\nbye\ttschüs\t2\n")]);
    let opened = made.open_path("data/pairs.tsv").unwrap();
    let mut locations = Vec::new();
    opened.dataset.locate(SampleId(1), &mut locations);
    assert!(locations.is_empty());
    assert_eq!(sample(&opened, 1).unwrap(), ["\"bye\"", "\"tschüs\"", "2"]);
}

#[test]
fn broken_manifest_is_reported_with_line_and_column() {
    let long = format!("a\n{}\n", "x".repeat(17 << 20));
    let many = (0..10_002).map(|n| format!("c{n}")).collect::<Vec<_>>().join(",");
    for (name, text, reason) in [
        ("m.csv", "a,b\n1,2\n3\n", "m.csv:3: the row has 1 cells, and the header 2"),
        ("m.csv", "a,a\n1,2\n", "m.csv:1: the header names the column \"a\" twice"),
        ("m.csv", "a,b\n1,\"2\n3,4\n", "m.csv:2: column 3: a quote is opened and never closed"),
        ("m.csv", "a,b\n\"1\"2,3\n", "m.csv:2: column 4: text follows a closing quote"),
        ("m.csv", "", "m.csv:1: the file is empty"),
        ("m.csv", "a,b\n", "it has no rows with values"),
        ("m.csv", &long, "m.csv:2: the row has more than 16 MiB"),
        ("m.csv", &many, "m.csv:1: the header names 10002 columns, and at most 10000"),
        ("m.csv", "\u{feff}a,b\n1\n", "m.csv:2: the row has 1 cells"),
        ("m.jsonl", "{\"a\": 1}\n\n{\"a\": }\n", "m.jsonl:3: column 7: it is no JSON object"),
        ("m.jsonl", "[1]\n", "m.jsonl:1: column"),
        ("m.jsonl", "{\"a\": 1} x\n", "m.jsonl:1: column 10: it is no JSON object"),
    ] {
        let made = Fixture::new(&[(name, text)]);
        let message = made.refusal(&format!("data/{name}"));
        assert!(message.contains(reason), "{reason}: {message}");
    }
    let utf16 = Fixture::new(&[("m.csv", "x")]);
    write_aged(&utf16.folder.path().join("data/m.csv"), b"\xff\xfea\0,\0");
    assert!(utf16.refusal("data/m.csv").contains("save it as UTF-8"));
}

#[test]
fn missing_columns_and_classes_are_reported() {
    let text = "file,kind\na.jpg,cat\nb.jpg,cow\n";
    for (name, text, keys, reason) in [
        (
            "m.csv",
            text,
            "x = { from = \"label\" }",
            "m.csv:1: the header has no column label for dataset.fields.x; it has file, kind",
        ),
        (
            "m.csv",
            text,
            "x = { from = \"kind\", classes = [\"cat\", \"dog\"] }",
            "m.csv:3: column 7: `kind` is none of its classes: \"cow\"",
        ),
        (
            "m.jsonl",
            "{\"file\": \"a.jpg\"}\n",
            "x = { from = \"label\", as = \"integer\" }",
            "no row has label for dataset.fields.x",
        ),
        (
            "m.csv",
            text,
            "x = { from = \"kind\", as = \"text\", classes = \"sorted\" }",
            "are for integers",
        ),
        (
            "m.csv",
            text,
            "x = { from = \"kind\", classes = \"found\" }",
            "must be an array of names in the order of their labels, or \"sorted\"",
        ),
        ("m.csv", text, "x = { from = \"kind\", classes = [\"a\", \"a\"] }", "name \"a\" twice"),
        (
            "m.csv",
            text,
            "x = { from = \"kind\", as = \"image\", missing = \"empty\" }",
            "for text and bytes alone",
        ),
        ("m.csv", text, "index = { from = \"kind\" }", "is made by Forebay"),
        ("m.csv", text, "x = { as = \"text\" }", "`dataset.fields.x.from` is required"),
    ] {
        let made = Fixture::new(&[(name, text)]).with(&format!("[dataset.fields]\n{keys}"));
        let message = made.refusal(&format!("data/{name}"));
        assert!(message.contains(reason), "{reason}: {message}");
    }
    for (files, path, reason) in [
        (&[("a.jpg", "x")][..], "data", "it is a folder without metadata.jsonl, metadata.csv"),
        (&[("metadata.csv", "a\n1"), ("metadata.jsonl", "{}")], "data", "several manifests"),
        (&[("a.csv", "a\n1")], "data/{a,a}.csv", "names it twice"),
        (&[("a.csv", "a\n1")], "data/b.csv", "data/b.csv does not exist"),
    ] {
        let message = Fixture::new(files).refusal(path);
        assert!(message.contains(reason), "{reason}: {message}");
    }
}

#[test]
fn only_local_manifests_may_name_files_outside_the_root() {
    let made = Fixture::new(&[("lists/train.csv", "path\na.jpg\n"), ("images/a.jpg", "A")]);
    let root = made.folder.path().join("data/images");
    let own = |root: &Path| own_keys(&format!("dataset.root = {:?}", root.display()));
    let elsewhere = Fixture { own: own(&root), ..made };
    let opened = elsewhere.open_path("data/lists/train.csv").unwrap();
    assert_eq!(sample(&opened, 0).unwrap(), ["image 1"]);
    let manifest = elsewhere.folder.path().join("data/lists/train.csv");
    // The same with absolute paths, below the root or with a detour: the dataset is the same at another location.
    for text in
        [format!("path\n{}/a.jpg\n", root.display()), format!("path\n{}/./a.jpg\n", root.display())]
    {
        write_aged(&manifest, text.as_bytes());
        fs::remove_file(elsewhere.folder.path().join("saved.index")).unwrap();
        let again = elsewhere.open_path("data/lists/train.csv").unwrap();
        assert_eq!(sample(&again, 0).unwrap(), ["image 1"]);
        assert_eq!(again.dataset.fingerprint(), opened.dataset.fingerprint());
    }
    fs::remove_file(elsewhere.folder.path().join("saved.index")).unwrap();
    let plain = Fixture { own: Section::default(), ..elsewhere };
    assert_eq!(sample(&plain.open_path("data/lists/train.csv").unwrap(), 0).unwrap(), ["image 1"]);
    // Paths in a manifest from a URL cannot leave its root.
    for (path, reason) in [
        (format!("{}/a.jpg", root.display()), "is an absolute path"),
        ("../../a.jpg".to_owned(), "leads out of"),
        ("file:///etc/passwd".to_owned(), "is a URL that is not below"),
    ] {
        write_aged(&manifest, format!("path\n{path}\n").as_bytes());
        let own = own_keys("dataset.fields = { x = { from = \"path\", as = \"image\" } }");
        for open in &EVERYWHERE[1..] {
            let mut config = config_for("manifest", &manifest);
            config.own = own.clone();
            let message = open(&config, OpenOptions::default()).unwrap_err().to_string();
            assert!(message.contains("train.csv:2: column 1: `path`"), "{message}");
            assert!(message.contains(reason), "{message}");
        }
    }
    let mut config = config_for("manifest", &manifest);
    config.own = own(&root);
    let message = EVERYWHERE[1](&config, OpenOptions::default()).unwrap_err().to_string();
    assert!(
        message.contains("a manifest behind a URL names no files of this machine"),
        "{message}"
    );
}

#[test]
fn edited_manifest_takes_effect_at_the_next_start() {
    let made = Fixture::new(&[("m.csv", "text\none\ntwo\n")]);
    let opened = made.open_path("data/m.csv").unwrap();
    write_aged(&made.folder.path().join("data/m.csv"), b"text\nthree\n");
    assert_eq!(sample(&opened, 1).unwrap(), ["\"two\""]);
    let again = made.open_path("data/m.csv").unwrap();
    assert!(!again.report.reused);
    assert_eq!(sample(&again, 0).unwrap(), ["\"three\""]);
    assert!(made.open_path("data/m.csv").unwrap().report.reused);
}

#[test]
fn lists_of_numbers_in_json_are_arrays() {
    let made = Fixture::new(&[(
        "rows.jsonl",
        concat!(
            r#"{"fixed": [1, 2.5, 3], "many": [7], "boxes": [[1, 2, 3, 4]], "grid": [[1, 2], [3, 4]], "mixed": [1, "a"], "text": "[1]", "empty": []}"#,
            "\n",
            r#"{"fixed": [4, 5, 6], "many": [], "boxes": [], "grid": [[5, 6], [7, 8]], "mixed": [1], "text": "[2]", "empty": []}"#,
            "\n",
            r#"{"fixed": [7, 8, 9], "many": [1, -2, 3], "boxes": [[0, 0, 1, 1], [0, 0, 2, 2]], "grid": [[0, 0], [0, 1]], "mixed": [], "text": "[3]", "empty": []}"#,
            "\n",
        ),
    )]);
    let opened = made.open_path("data/rows.jsonl").unwrap();
    assert_eq!(fields(&opened), ["fixed", "many", "boxes", "grid", "mixed", "text", "empty"]);
    let first = [
        "F64 [3]",
        "I64 [1]",
        "I64 [1, 4]",
        "I64 [2, 2]",
        "\"[1,\\\"a\\\"]\"",
        "\"[1]\"",
        "\"[]\"",
    ];
    assert_eq!(sample(&opened, 0).unwrap(), first);
    assert_eq!(sample(&opened, 1).unwrap()[..3], ["F64 [3]", "I64 [0]", "I64 [0, 4]"]);
    assert_eq!(sample(&opened, 2).unwrap()[1..3], ["I64 [3]", "I64 [2, 4]"]);
    let differ = (0..4).map(|field| opened.dataset.rows_differ(field));
    assert!(differ.eq([Some(false), Some(true), Some(true), Some(false)]));
    let longest = (0..4).map(|field| opened.dataset.max_row_bytes(field));
    assert!(longest.eq([Some(24), Some(24), Some(64), Some(32)]));
    // Read from the saved index.
    let again = made.open_path("data/rows.jsonl").unwrap();
    assert!(again.report.reused);
    let mut values = Vec::new();
    again.dataset.read(SampleId(1), SampleBytes::new(&[], &[]), &mut values).unwrap();
    let FieldValue::Array(fixed) = &values[0] else { panic!("{values:?}") };
    let expected: Vec<u8> = [4_f64, 5.0, 6.0].iter().flat_map(|x| x.to_le_bytes()).collect();
    assert_eq!((fixed.dtype, &fixed.bytes[..]), (DType::F64, &expected[..]));
}

#[test]
fn list_of_another_form_is_a_bad_sample_unless_text_is_requested() {
    let mut text = "{\"x\": [1, 2]}\n".repeat(100);
    text += "{\"x\": [1.5]}\n{\"x\": [1, null]}\n{\"x\": [[1]]}\n{\"x\": null}\n";
    let made = Fixture::new(&[("rows.jsonl", &text)]);
    let opened = made.open_path("data/rows.jsonl").unwrap();
    // All are floats, because one is.
    assert_eq!(sample(&opened, 0).unwrap(), ["F64 [2]"]);
    assert_eq!(sample(&opened, 100).unwrap(), ["F64 [1]"]);
    for (id, reason) in [
        (101, "`x` is no list of numbers: \"[1,null]\": invalid type: null"),
        (102, "`x` has the shape [1, 1], and elements of other rows have []"),
        (103, "it has no x for the field `x`"),
    ] {
        let message = sample(&opened, id).unwrap_err();
        assert!(message.contains(reason), "{message}");
    }
    for (form, expected) in [("text", "\"[1,2]\""), ("array", "F64 [2]")] {
        let own = format!("dataset.fields = {{ y = {{ from = \"x\", as = \"{form}\" }} }}");
        let opened = Fixture::new(&[("rows.jsonl", &text)]).with(&own);
        assert_eq!(sample(&opened.open_path("data/rows.jsonl").unwrap(), 0).unwrap(), [expected]);
    }
}
