use std::fs;
use std::path::{Path, PathBuf};

use forebay_keys::Section;

use crate::conformance::{self, Format};
use crate::testing::{EVERYWHERE, config_for, names, own_key, sample, write_aged};
use crate::{open, recognize};
use forebay_dataset::{DatasetError, FieldKind, OpenOptions, Opened};

fn conforming(root: &Path, count: usize) -> PathBuf {
    let (mut images, mut annotations) = (Vec::new(), Vec::new());
    for number in 0..count {
        let name = format!("pictures/{number:03}.jpg");
        write_aged(&root.join(&name), &vec![u8::try_from(number).unwrap(); 20 + number]);
        images.push(format!(
            r#"{{"file_name": "{name}", "id": {}, "width": {number}, "height": 7}}"#,
            1000 + 3 * number
        ));
        annotations.extend((0..number % 4).map(|place| {
            format!(
                r#"{{"image_id": {}, "bbox": [{place}, 1, 2.5, {number}], "category_id": {}, "segmentation": [[1.5, 2]]}}"#,
                1000 + 3 * number,
                [90, 3][place % 2]
            )
        }));
    }
    let text = format!(
        r#"{{"info": {{"x": []}}, "annotations": [{}], "images": [{}], "categories": [{{"id": 90, "name": "z"}}, {{"id": 3, "name": "a"}}]}}"#,
        annotations.join(","),
        images.join(",\n")
    );
    let path = root.join("instances.json");
    write_aged(&path, text.as_bytes());
    path
}

#[test]
fn coco_files_conform_on_disk_and_from_urls() {
    for open in EVERYWHERE {
        let (has_names, refuses_cuts) = (true, false);
        conformance::run(&Format { open, name: "coco", make: conforming, has_names, refuses_cuts });
    }
}

struct Fixture(tempfile::TempDir);

impl Fixture {
    fn new(json: &str) -> Self {
        let fixture = Self(tempfile::tempdir().unwrap());
        write_aged(&fixture.path("a.json"), json.as_bytes());
        fixture
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join("data").join(name)
    }

    fn open(&self, own: Section) -> Result<Opened, DatasetError> {
        let mut config = config_for("coco", &self.path("a.json"));
        config.own = own;
        config.index = Some(self.0.path().join("index"));
        let opened = open(&config, OpenOptions::default());
        let _ = fs::remove_file(self.0.path().join("index"));
        opened
    }

    fn refusal(&self) -> String {
        let opened = self.open(Section::default());
        opened.map(|opened| names(&opened)).unwrap_err().to_string()
    }
}

const IMAGES: &str = r#""images": [{"id": 9, "file_name": "b.jpg", "width": 640, "height": 480, "license": 3},
    {"id": 7, "file_name": "./x/a.jpg", "width": 10, "height": 20}]"#;

#[test]
fn ids_as_strings_or_floats_and_empty_boxes_are_read() {
    let made = Fixture::new(
        r#"{"images": [{"id": "9", "file_name": "b.jpg"}, {"id": 7.0, "file_name": "c.jpg"}],
        "categories": [{"id": "2", "name": "dog"}],
        "annotations": [
            {"image_id": 9.0, "category_id": 2, "bbox": [1, 1, 1, 1]},
            {"image_id": "7", "category_id": 2.0, "bbox": []}
        ]}"#,
    );
    write_aged(&made.path("b.jpg"), b"picture");
    write_aged(&made.path("c.jpg"), b"picture");
    let opened = made.open(Section::default()).unwrap();
    assert_eq!(names(&opened), ["a.json:9", "a.json:7"]);
    assert_eq!(sample(&opened, 0).unwrap()[1..3], ["F32 [1, 4]", "I64 [1]"]);
    assert_eq!(sample(&opened, 1).unwrap()[1..3], ["F32 [0, 4]", "I64 [0]"]);
    assert_eq!(opened.report.warnings, ["1 boxes without an area are left out"]);
}

#[test]
fn boxes_and_labels_belong_to_their_image() {
    let made = Fixture::new(&format!(
        r#"{{{IMAGES},
        "categories": [{{"id": 90, "name": "toothbrush"}}, {{"id": 1, "name": "person"}}],
        "annotations": [
            {{"image_id": 9, "category_id": 1, "bbox": [0.1, 2, 3, 4.5], "iscrowd": 0}},
            {{"image_id": 5, "category_id": 1, "bbox": [1, 1, 1, 1]}},
            {{"image_id": 9, "category_id": 90, "bbox": [1, 1, 1, 1], "iscrowd": 1, "segmentation": {{"counts": "a\"b"}}}},
            {{"image_id": 9, "category_id": 90, "bbox": [-1, 0, 2, 0.5], "iscrowd": false, "id": "x"}},
            {{"image_id": 9, "category_id": 1, "bbox": [1, 1, 0, 5]}}
        ]}}"#
    ));
    write_aged(&made.path("b.jpg"), b"picture");
    write_aged(&made.path("x/a.jpg"), b"p");
    let opened = made.open(Section::default()).unwrap();
    let fields: Vec<_> = opened.dataset.fields().iter().map(|field| &field.name[..]).collect();
    assert_eq!(fields, ["image", "boxes", "labels", "image_id", "orig_size"]);
    assert!(matches!(opened.dataset.fields()[1].kind, FieldKind::RaggedArray { .. }));
    assert_eq!(
        (opened.dataset.max_row_bytes(1), opened.dataset.max_row_bytes(2)),
        (Some(32), Some(16))
    );
    let expected = ["image 7", "F32 [2, 4]", "I64 [2]", "9", "I64 [2]"];
    assert_eq!(sample(&opened, 0).unwrap(), expected);
    assert_eq!(sample(&opened, 1).unwrap()[1..3], ["F32 [0, 4]", "I64 [0]"]);
    assert_eq!(opened.dataset.classes(), ["person", "toothbrush"]);
    assert_eq!(
        opened.dataset.description().classes.unwrap().to_string(),
        "2, person to toothbrush"
    );
    assert_eq!(names(&opened), ["a.json:9", "a.json:7"]);
    let mut values = Vec::new();
    let bytes = forebay_storage::location::SampleBytes::new(b"picture", &[7]);
    opened.dataset.read(forebay_protocol::ids::SampleId(0), bytes, &mut values).unwrap();
    let elements: Vec<_> = values
        .iter()
        .filter_map(|value| match value {
            forebay_dataset::FieldValue::Array(array) => Some(array.bytes.to_vec()),
            _ => None,
        })
        .collect();
    let floats = [0.1_f32, 2.0, 3.1, 6.5, -1.0, 0.0, 1.0, 0.5];
    assert_eq!(elements[0], floats.map(f32::to_le_bytes).concat());
    assert_eq!(elements[1], [0_i64, 1].map(i64::to_le_bytes).concat());
    assert_eq!(elements[2], [480_i64, 640].map(i64::to_le_bytes).concat());
    let warnings = opened.report.warnings.join("; ");
    assert_eq!(
        warnings,
        "1 annotations of crowds (iscrowd) are left out; 1 boxes without an area are left out; \
         1 annotations of images that the file does not list are left out"
    );
    let config = config_for("auto", &made.path("a.json"));
    assert_eq!(recognize(&config, OpenOptions::default()).unwrap(), "coco");
    // Without sizes, the field of sizes is left out; without annotations, the boxes are empty.
    let bare = Fixture::new(r#"{"images": [{"id": 0, "file_name": "b.jpg"}]}"#);
    write_aged(&bare.path("b.jpg"), b"picture");
    let opened = bare.open(Section::default()).unwrap();
    assert_eq!(sample(&opened, 0).unwrap(), ["image 7", "F32 [0, 4]", "I64 [0]", "0"]);
}

#[test]
fn roboflows_annotation_file_is_found_in_a_folder() {
    let made = Fixture::new("{}");
    fs::rename(made.path("a.json"), made.path("_annotations.coco.json")).unwrap();
    write_aged(
        &made.path("_annotations.coco.json"),
        br#"{"images": [{"id": 0, "file_name": "b.jpg"}]}"#,
    );
    for name in ["b.jpg", "c.jpg", "d.jpg"] {
        write_aged(&made.path(name), b"picture");
    }
    let mut config = config_for("auto", &made.path(""));
    config.index = Some(made.0.path().join("index"));
    assert_eq!(recognize(&config, OpenOptions::default()).unwrap(), "coco");
    let opened = open(&config, OpenOptions::default()).unwrap();
    assert_eq!(names(&opened), ["_annotations.coco.json:0"]);
    fs::remove_file(made.path("_annotations.coco.json")).unwrap();
    config.format = "coco".to_owned();
    config.index = Some(made.0.path().join("other"));
    let message = open(&config, OpenOptions::default()).unwrap_err().to_string();
    assert!(message.contains("it is a folder without _annotations.coco.json"), "{message}");
}

#[test]
fn paths_stay_below_the_root_and_remote_files_cannot_name_local_paths() {
    let with = |name: &str| {
        Fixture::new(&format!(r#"{{"images": [{{"id": 3, "file_name": {name:?}}}]}}"#))
    };
    for (name, reason) in [
        ("/etc/passwd", "is an absolute path"),
        ("../b.jpg", "leads out of"),
        ("x/../../b.jpg", "leads out of"),
        ("file:///etc/passwd", "is a URL that is not below"),
        ("", "names no file"),
        ("a\0b", "a byte of zero"),
    ] {
        let made = with(&name.replace('\0', "\\u0000")).0;
        let text = fs::read_to_string(made.path().join("data/a.json")).unwrap();
        let text = text.replace("\\\\u", "\\u");
        write_aged(&made.path().join("data/a.json"), text.as_bytes());
        let message = Fixture(made).refusal();
        assert!(message.contains("the file_name of image 3"), "{message}");
        assert!(message.contains(reason), "{reason}: {message}");
    }
    // The root is another folder; paths below it may be absolute.
    let elsewhere = tempfile::tempdir().unwrap();
    let root = elsewhere.path().canonicalize().unwrap();
    write_aged(&root.join("b.jpg"), b"picture");
    let made = with(root.join("b.jpg").to_str().unwrap());
    let own = || own_key("root", root.to_str().unwrap());
    let opened = made.open(own()).unwrap();
    assert_eq!(sample(&opened, 0).unwrap()[0], "image 7");
    let mut config = config_for("coco", &made.path("a.json"));
    config.own = own();
    let message = EVERYWHERE[1](&config, OpenOptions::default()).unwrap_err().to_string();
    assert!(message.contains("names no files of this machine"), "{message}");
}

#[test]
fn broken_file_is_reported_with_its_line() {
    let images = IMAGES;
    let long = format!(r#"{{"images": [{{"id": 1, "file_name": "{}"}}]}}"#, "x".repeat(17 << 20));
    let deep = format!(r#"{{"images": [], "x": {}"#, "[".repeat(1000));
    for (json, reason) in [
        ("", "a.json:1: column 0: EOF while parsing"),
        ("[]", "an object with images, annotations and categories"),
        ("{}", "it has no images: it is no COCO file"),
        (r#"{"images": []}"#, "it lists no images"),
        (r#"{"images": [], "images": []}"#, "images is there twice"),
        ("{\"images\": [\n{\"id\": 1}]}", "a.json:2: column 9: missing field `file_name`"),
        (
            r#"{"images": [{"id": -1, "file_name": "a"}]}"#,
            "integer `-1`, expected an id, which is a whole number from 0",
        ),
        (
            r#"{"images": [{"id": "one", "file_name": "a"}]}"#,
            "invalid value: string \"one\", expected an id, which is a whole number from 0",
        ),
        (r#"{"images": [{"id": 1.5, "file_name": "a"}]}"#, "expected an id"),
        (r#"{"images": [{"id": true, "file_name": "a"}]}"#, "expected an id"),
        (
            r#"{"images": [{"id": 18446744073709551615, "file_name": "a"}]}"#,
            "larger than an int64 can be",
        ),
        (
            r#"{"images": [{"id": 1, "file_name": "a"}, {"id": 1, "file_name": "b"}]}"#,
            "two images have the id 1",
        ),
        (
            &format!(r#"{{{images}, "annotations": [{{"image_id": 9, "caption": "a dog"}}]}}"#),
            "files of boxes are read",
        ),
        (
            &format!(
                r#"{{{images}, "annotations": [{{"image_id": 9, "category_id": 2, "bbox": [1, 1, 1, 1]}}]}}"#
            ),
            "has the category 2, which categories do not list",
        ),
        (
            &format!(
                r#"{{{images}, "annotations": [{{"image_id": 9, "category_id": 2, "bbox": [1, 1, 1]}}]}}"#
            ),
            "invalid length 3, expected a bbox, which is [left, top, width, height] in pixels",
        ),
        (
            &format!(
                r#"{{{images}, "annotations": [{{"image_id": 9, "category_id": 2, "bbox": [1, 1, 1e300, 1]}}]}}"#
            ),
            "a number that float32 does not hold",
        ),
        (
            &format!(
                r#"{{{images}, "categories": [{{"id": 1, "name": "a"}}, {{"id": 1, "name": "b"}}]}}"#
            ),
            "two categories have the id 1",
        ),
        (&format!("{{{images}}} x"), "trailing characters"),
        (&long, "a text or a number has more than 16 MiB"),
        (&deep, "lists lie more than 256 deep"),
    ] {
        let message = Fixture::new(json).refusal();
        assert!(message.contains("a.json") || message.contains("lists no images"), "{message}");
        assert!(message.contains(reason), "{reason}: {message}");
    }
    let whole = format!(r#"{{{images}, "annotations": [], "categories": []}}"#);
    for length in 0..whole.len() {
        Fixture::new(&whole[..length]).refusal();
    }
}
