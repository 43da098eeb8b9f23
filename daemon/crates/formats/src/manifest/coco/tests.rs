use std::fs;
use std::path::{Path, PathBuf};

use forebay_keys::Section;

use crate::conformance::{self, Format};
use crate::testing::{EVERYWHERE, config_for, names, own_key, own_keys, sample, write_aged};
use crate::{open, recognize};
use forebay_config::DatasetConfig;
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

/// Opens COCO files with masks and keypoints.
fn open_objects(config: &DatasetConfig, options: OpenOptions<'_>) -> Result<Opened, DatasetError> {
    let mut config = config.clone();
    config.own = own_keys("dataset.masks = \"instances\"\ndataset.keypoints = true\n");
    open(&config, options)
}

/// Opens COCO files as panoptic ones.
fn open_segments(config: &DatasetConfig, options: OpenOptions<'_>) -> Result<Opened, DatasetError> {
    let mut config = config.clone();
    let folder = config.path.parent().unwrap().join("ids");
    config.own = own_keys(&format!("dataset.panoptic = {:?}\n", folder.to_str().unwrap()));
    open(&config, options)
}

fn conforming_objects(root: &Path, count: usize) -> PathBuf {
    let path = conforming(root, count);
    let text = fs::read_to_string(&path).unwrap();
    let text = text.replace("\"height\": 7", "\"height\": 9");
    let text = text.replace(
        "\"segmentation\": [[1.5, 2]]",
        "\"segmentation\": [[0, 0, 5, 0, 5, 5]], \"keypoints\": [1, 2, 2, 3, 4.5, 1]",
    );
    // One object more, so that the first image has an object too.
    let text = text.replace(
        "\"annotations\": [",
        "\"annotations\": [{\"image_id\": 1000, \"bbox\": [1, 1, 2, 2], \"category_id\": 3, \"keypoints\": [0, 0, 0, 1, 1, 1]}, ",
    );
    write_aged(&path, text.replace("}, ]", "}]").as_bytes());
    path
}

fn conforming_segments(root: &Path, count: usize) -> PathBuf {
    let path = conforming(root, count);
    let mut json: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let annotations = (0..count).map(|number| {
        let name = format!("{number:03}.png");
        write_aged(&root.join("ids").join(&name), &vec![7; 10 + number]);
        let segment = |id: usize| {
            serde_json::json!({"id": id, "category_id": 3, "bbox": [0, 0, 2, id], "iscrowd": id % 2})
        };
        let segments: Vec<_> = (1..1 + number % 3).map(segment).collect();
        serde_json::json!({"image_id": 1000 + 3 * number, "file_name": name, "segments_info": segments})
    });
    json["annotations"] = annotations.collect();
    write_aged(&path, json.to_string().as_bytes());
    path
}

#[test]
fn masks_keypoints_and_segments_conform() {
    let format =
        |open, make| Format { open, name: "coco", make, has_names: true, refuses_cuts: false };
    for format in
        [format(open_objects, conforming_objects), format(open_segments, conforming_segments)]
    {
        conformance::run(&format);
    }
}

const OBJECTS: &str = r#"{"images": [{"id": 9, "file_name": "b.jpg", "width": 6, "height": 4}, {"id": 7, "file_name": "a.jpg", "width": 2, "height": 2}],
    "categories": [{"id": 5, "name": "dog", "keypoints": ["nose", "tail"]}, {"id": 3, "name": "cat"}],
    "annotations": [
        {"image_id": 9, "category_id": 5, "bbox": [1, 1, 2, 2], "segmentation": [[0, 0, 0, 4, 2, 4, 2, 0], [4, 0, 4, 1, 5, 1, 5, 0]], "keypoints": [1, 2, 2, 0, 0, 0]},
        {"image_id": 9, "category_id": 3, "bbox": [1, 1, 2, 2], "segmentation": {"counts": [5, 2, 17], "size": [4, 6]}},
        {"image_id": 9, "category_id": 3, "bbox": [1, 1, 2, 2], "iscrowd": 1, "segmentation": {"counts": [0, 24], "size": [4, 6]}}
    ]}"#;

fn objects(keys: &str) -> (Fixture, Opened) {
    let made = Fixture::new(OBJECTS);
    write_aged(&made.path("b.jpg"), b"picture");
    write_aged(&made.path("a.jpg"), b"picture");
    let opened = made.open(own_keys(keys)).unwrap();
    (made, opened)
}

/// The values of the objects of a sample's mask, with the number of parts of each.
fn mask_values(opened: &Opened, id: u64) -> Vec<u16> {
    let mut values = Vec::new();
    let bytes = forebay_storage::location::SampleBytes::new(b"picture", &[7]);
    opened.dataset.read(forebay_protocol::ids::SampleId(id), bytes, &mut values).unwrap();
    let place = opened.dataset.fields().iter().position(|field| field.name == "mask").unwrap();
    let forebay_dataset::FieldValue::EncodedImage(file) = values[place] else { panic!() };
    let mask = forebay_dataset::mask::CodedMask::open(file).unwrap();
    mask.objects().map(|object| object.unwrap().0).collect()
}

/// The numbers of a sample's field.
fn floats(opened: &Opened, id: u64, field: &str) -> Vec<f32> {
    let mut values = Vec::new();
    let bytes = forebay_storage::location::SampleBytes::new(b"picture", &[7]);
    opened.dataset.read(forebay_protocol::ids::SampleId(id), bytes, &mut values).unwrap();
    let place = opened.dataset.fields().iter().position(|one| one.name == field).unwrap();
    let forebay_dataset::FieldValue::Array(array) = &values[place] else { panic!() };
    array.bytes.as_chunks().0.iter().map(|number| f32::from_le_bytes(*number)).collect()
}

#[test]
fn masks_have_the_numbers_of_categories_or_of_instances() {
    let (_made, opened) = objects("dataset.masks = \"categories\"\n");
    // The crowd of cats first, then both parts of the dog, then the cat.
    assert_eq!(mask_values(&opened, 0), [1, 2, 2, 1]);
    assert!(mask_values(&opened, 1).is_empty());
    assert_eq!(sample(&opened, 0).unwrap()[1..3], ["F32 [2, 4]", "I64 [2]"]);
    assert_eq!(opened.report.warnings, ["without boxes: 1 annotation of crowds (iscrowd)"]);
    let (_made, opened) = objects("dataset.masks = \"instances\"\ndataset.keypoints = true\n");
    assert_eq!(mask_values(&opened, 0), [1, 1, 2]);
    let fields: Vec<_> = opened.dataset.fields().iter().map(|field| &field.name[..]).collect();
    let expected =
        ["image", "boxes", "labels", "image_id", "orig_size", "mask", "instances", "keypoints"];
    assert_eq!(fields, expected);
    assert_eq!(sample(&opened, 0).unwrap()[6..], ["I64 [2]", "F32 [2, 2, 3]"]);
    // The middles of pixels; what is not labelled stays zeros.
    let points = floats(&opened, 0, "keypoints");
    assert_eq!(points, [1.5, 2.5, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
    let most = [1, 2, 6, 7].map(|field| opened.dataset.max_row_bytes(field));
    assert_eq!(most, [Some(32), Some(16), Some(16), Some(48)]);
    let (_made, plain) = objects("");
    assert_ne!(plain.dataset.fingerprint(), opened.dataset.fingerprint());
}

#[test]
fn what_masks_keypoints_and_segments_need_is_named() {
    let refusal = |json: &str, keys: &str| {
        let made = Fixture::new(json);
        made.open(own_keys(keys)).map(|opened| names(&opened)).unwrap_err().to_string()
    };
    let masks = "dataset.masks = \"categories\"\n";
    for (from, to, reason) in [
        ("\"height\": 4", "\"high\": 4", "an image has no height or width, which masks need"),
        (
            "\"size\": [4, 6]",
            "\"size\": [6, 4]",
            "of image 9 is of 4x6 pixels (width x height), and the image of 6x4",
        ),
        ("[0, 0, 0, 4,", "[0, 0, 0,", "a.json:4: column"),
        ("[0, 0, 0, 4,", "[0, 0, 0,", "an odd number of coordinates"),
    ] {
        let message = refusal(&OBJECTS.replace(from, to), masks);
        assert!(message.contains(reason), "{reason}: {message}");
    }
    let points = "dataset.keypoints = true\n";
    let message = refusal(&OBJECTS.replace("\"keypoints\": [1", "\"k\": [1"), points);
    assert!(message.contains("leave dataset.keypoints out"), "{message}");
    let more = OBJECTS.replace(
        "\"counts\": [5, 2, 17], \"size\": [4, 6]}",
        "\"counts\": [], \"size\": [4, 6]}, \"keypoints\": [1, 2, 2]",
    );
    let message = refusal(&more, points);
    assert!(
        message.contains("has 3 numbers as keypoints, and the first one with keypoints has 6"),
        "{message}"
    );
    let many = format!("\"keypoints\": [{}]", vec!["1, 2, 2"; 1025].join(", "));
    let message = refusal(&OBJECTS.replace("\"keypoints\": [1, 2, 2, 0, 0, 0]", &many), points);
    assert!(
        message.contains("a.json:5: column")
            && message.contains("1025 keypoints, and an object has at most 1024"),
        "{message}"
    );
    let message = refusal(OBJECTS, "dataset.panoptic = \"/x\"\n");
    assert!(message.contains("no segments_info or no file_name"), "{message}");
    let panoptic = r#"{"images": [{"id": 9, "file_name": "b.jpg"}], "categories": [{"id": 3, "name": "cat"}], "annotations": [
        {"image_id": 9, "file_name": "../b.png", "segments_info": [{"id": 1, "category_id": 3, "bbox": [1, 1, 2, 2]}]}]}"#;
    let message = refusal(panoptic, "dataset.panoptic = \"/x\"\n");
    assert!(message.contains("the file_name of the segments of image 9 leads out"), "{message}");
    let other = panoptic.replace("\"image_id\": 9", "\"image_id\": 8");
    let message = refusal(&other, "dataset.panoptic = \"/x\"\n");
    assert!(message.contains("no annotation is of the image 9"), "{message}");
    let large = panoptic.replace("{\"id\": 1,", "{\"id\": 16777216,");
    let message = refusal(&large, "dataset.panoptic = \"/x\"\n");
    assert!(message.contains("larger than a pixel of three bytes"), "{message}");
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
    assert_eq!(opened.report.warnings, ["left out: 1 box without an area"]);
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
        "left out: 1 annotation of crowds (iscrowd); left out: 1 box without an area; left out: 1 annotation of images that \
         the file does not list"
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
