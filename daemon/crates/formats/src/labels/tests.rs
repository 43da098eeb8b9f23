use std::fs;

use forebay_keys::Section;

use super::*;
use crate::conformance::{self, Format as Conforming};
use crate::testing::{EVERYWHERE, Opener, config_for, names, own_keys, sample, write_aged};
use crate::{open, recognize};
use forebay_config::DatasetConfig;
use forebay_dataset::{OpenOptions, Opened};

/// A PNG header of this size, and a byte that differs.
fn picture(width: u32, height: u32, byte: u8) -> Vec<u8> {
    let mut file = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR".to_vec();
    file.extend_from_slice(&width.to_be_bytes());
    file.extend_from_slice(&height.to_be_bytes());
    file.extend_from_slice(&[8, 2, 0, 0, 0, byte]);
    file
}

fn xml(number: usize) -> String {
    let object = |place: usize| {
        format!(
            "<object><name>{}</name><difficult>{}</difficult><bndbox><xmin>{place}</xmin><ymin>1</ymin><xmax>{}.5</xmax>\
             <ymax>9</ymax></bndbox></object>",
            ["dog", "cat"][place % 2],
            place % 2,
            place + 3
        )
    };
    let objects: String = (0..number % 4).map(object).collect();
    let size = "<size><width>40</width><height>30</height><depth>3</depth></size>";
    format!("<annotation>\n<filename>x</filename>{size}\n{objects}</annotation>\n")
}

fn conforming_voc(root: &Path, count: usize) -> PathBuf {
    for number in 0..count {
        let byte = u8::try_from(number).unwrap();
        write_aged(&root.join(format!("JPEGImages/{number:03}.jpg")), &picture(40, 30, byte));
        write_aged(&root.join(format!("Annotations/{number:03}.xml")), xml(number).as_bytes());
        write_aged(&root.join(format!("SegmentationClass/{number:03}.png")), &[byte; 30]);
    }
    let list: String = (0..count).rev().map(|number| format!("{number:03}\n")).collect();
    write_aged(&root.join("ImageSets/Segmentation/train.txt"), list.as_bytes());
    root.to_owned()
}

fn conforming_yolo(root: &Path, count: usize) -> PathBuf {
    for number in 0..count {
        let byte = u8::try_from(number).unwrap();
        write_aged(&root.join(format!("images/train/{number:03}.png")), &picture(40, 30, byte));
        let lines = ["1 0.5 0.5 0.5 0.5\n", "0 0 0 1 0 1 1\n", "1 0.1 0.1 0.1 0.1\n"];
        // Every fourth picture is without a file.
        if number % 4 > 0 {
            let labels = lines[..number % 4].concat();
            write_aged(&root.join(format!("labels/train/{number:03}.txt")), labels.as_bytes());
        }
    }
    let data = "train: images/train\nnames: [cat, dog]\n";
    write_aged(&root.join("data.yaml"), data.as_bytes());
    root.to_owned()
}

fn with_keys(
    config: &DatasetConfig,
    options: OpenOptions<'_>,
    keys: &str,
) -> Result<Opened, DatasetError> {
    let mut config = config.clone();
    config.own = own_keys(keys);
    open(&config, options)
}

#[test]
fn voc_and_yolo_conform() {
    let (has_names, refuses_cuts) = (true, false);
    for open in EVERYWHERE {
        let format =
            Conforming { open, name: "voc", make: conforming_voc, has_names, refuses_cuts };
        conformance::run(&format);
        let format =
            Conforming { open, name: "yolo", make: conforming_yolo, has_names, refuses_cuts };
        conformance::run(&format);
    }
    let open: Opener =
        |config, options| with_keys(config, options, "dataset.masks = \"instances\"\n");
    let format = Conforming { open, name: "yolo", make: conforming_yolo, has_names, refuses_cuts };
    conformance::run(&format);
    let open: Opener = |config, options| {
        with_keys(
            config,
            options,
            "dataset.masks = \"categories\"\ndataset.image_set = \"train\"\n",
        )
    };
    let format = Conforming { open, name: "voc", make: conforming_voc, has_names, refuses_cuts };
    conformance::run_permuted(&format);
}

struct Made(tempfile::TempDir);

impl Made {
    fn new(files: &[(&str, &[u8])]) -> Self {
        let made = Self(tempfile::tempdir().unwrap());
        for (name, bytes) in files {
            write_aged(&made.path(name), bytes);
        }
        made
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join("data").join(name)
    }

    fn open_at(&self, format: &str, path: &str, own: Section) -> Result<Opened, DatasetError> {
        let mut config = config_for(format, &self.path(path));
        config.own = own;
        config.index = Some(self.0.path().join("index"));
        let opened = open(&config, OpenOptions::default());
        let _ = fs::remove_file(self.0.path().join("index"));
        opened
    }

    fn refusal(&self, format: &str, keys: &str) -> String {
        self.open_at(format, "", own_keys(keys))
            .map(|opened| names(&opened))
            .unwrap_err()
            .to_string()
    }
}

fn numbers(opened: &Opened, id: u64, field: usize) -> Vec<u8> {
    let mut values = Vec::new();
    let bytes = SampleBytes::new(b"picture", &[7]);
    opened.dataset.read(SampleId(id), bytes, &mut values).unwrap();
    match &values[field] {
        FieldValue::Array(array) => array.bytes.to_vec(),
        other => panic!("{other:?}"),
    }
}

fn floats(opened: &Opened, id: u64) -> Vec<f32> {
    let bytes = numbers(opened, id, 1);
    bytes.as_chunks().0.iter().map(|number| f32::from_le_bytes(*number)).collect()
}

#[test]
fn yolo_boxes_are_in_pixels_and_polygons_have_masks() {
    let made = Made::new(&[
        (
            "data.yaml",
            b"path: .\ntrain: ../train/images\nval: val.txt\nnames: {0: cat, 1: traffic light}\n",
        ),
        ("train/images/a.png", &picture(40, 20, 1)),
        ("train/images/b.png", &picture(40, 20, 2)),
        ("train/labels/a.txt", b"1 0.5 0.5 0.5 0.25\n0 0.25 0 0.75 0 0.5 1\n1 0.5 0.5 0 0\n"),
        ("val/c.png", &picture(8, 8, 3)),
        ("val.txt", b"./val/c.png\n"),
        ("val/c.txt", b"0 0.5 0.5 1 1"),
    ]);
    let opened =
        made.open_at("yolo", "data.yaml", own_keys("dataset.masks = \"instances\"\n")).unwrap();
    assert_eq!(names(&opened), ["train/labels/a.txt:1", "train/images/b.png:1"]);
    assert_eq!(opened.dataset.classes(), ["cat", "traffic light"]);
    assert_eq!(floats(&opened, 0), [10.0, 7.5, 30.0, 12.5, 10.0, 0.0, 30.0, 20.0]);
    assert_eq!(numbers(&opened, 0, 2), [1_i64, 0].map(i64::to_le_bytes).concat());
    assert_eq!(numbers(&opened, 0, 3), [20_i64, 40].map(i64::to_le_bytes).concat());
    assert_eq!(numbers(&opened, 0, 5), [1_i64, 2].map(i64::to_le_bytes).concat());
    assert_eq!(sample(&opened, 1).unwrap()[1..3], ["F32 [0, 4]", "I64 [0]"]);
    assert_eq!(opened.report.warnings, ["left out: 1 box without an area"]);
    let opened = made.open_at("yolo", "", own_keys("dataset.image_set = \"val\"\n")).unwrap();
    assert_eq!(names(&opened), ["val/c.txt:1"]);
    let config = config_for("auto", &made.path(""));
    assert_eq!(recognize(&config, OpenOptions::default()).unwrap(), "yolo");
}

#[test]
fn another_picture_beside_the_same_labels_makes_a_new_index() {
    let made = Made::new(&[
        ("images/a.png", &picture(40, 20, 1)),
        ("images/b.png", &picture(40, 20, 1)),
        ("labels/a.txt", b"0 0.5 0.5 1 1"),
        ("labels/b.txt", b"0 0.5 0.5 1 1"),
    ]);
    let mut config = config_for("yolo", &made.path(""));
    config.index = Some(made.0.path().join("index"));
    let read = || {
        let opened = open(&config, OpenOptions::default()).unwrap();
        assert_eq!(names(&opened), ["labels/a.txt:1", "labels/b.txt:1"]);
        [floats(&opened, 0), floats(&opened, 1)].concat()
    };
    assert_eq!(read(), [0.0, 0.0, 40.0, 20.0, 0.0, 0.0, 40.0, 20.0]);
    fs::remove_file(made.path("images/b.png")).unwrap();
    write_aged(&made.path("images/b.png"), &picture(80, 10, 2));
    assert_eq!(read(), [0.0, 0.0, 40.0, 20.0, 0.0, 0.0, 80.0, 10.0]);
}

#[test]
fn voc_objects_are_read_from_its_folders_and_from_files_beside_pictures() {
    let text = "<?xml version='1.0'?>\n<annotation><size><width>0</width></size><object><name>a &amp; b&#33;</name><part><name>x</name>\
        <bndbox><xmin>7</xmin></bndbox></part><bndbox><xmin>1</xmin><ymin>2</ymin><xmax>3.5</xmax><ymax>4</ymax></bndbox>\
        </object><object><name>a</name><bndbox><xmin>1</xmin><ymin>2</ymin><xmax>1</xmax><ymax>4</ymax></bndbox></object></annotation>";
    let made = Made::new(&[("x/1.jpg", b"picture"), ("x/1.xml", text.as_bytes())]);
    let opened = made.open_at("voc", "", Section::default()).unwrap();
    assert_eq!(names(&opened), ["x/1.xml:1"]);
    assert_eq!(opened.dataset.classes(), ["a & b!"]);
    assert_eq!(floats(&opened, 0), [1.0, 2.0, 3.5, 4.0]);
    let fields: Vec<_> = opened.dataset.fields().iter().map(|field| &field.name[..]).collect();
    assert_eq!(fields, ["image", "boxes", "labels", "difficult"], "the size is not known");
    let message = made.refusal("voc", "dataset.class_names = [\"dog\"]\n");
    assert!(
        message.contains("1.xml") && message.contains("is none of dataset.class_names"),
        "{message}"
    );
}

#[test]
fn classes_of_files_beyond_a_limit_are_noticed() {
    let object = |name: &str| {
        format!(
            "<annotation><object><name>{name}</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>2</xmax><ymax>2</ymax></bndbox>\
             </object></annotation>"
        )
    };
    let made = Made::new(&[
        ("a.png", b"x"),
        ("a.xml", object("bee").as_bytes()),
        ("b.png", b"x"),
        ("b.xml", object("cat").as_bytes()),
    ]);
    let mut config = config_for("voc", &made.path(""));
    config.index = Some(made.0.path().join("index"));
    config.limit = Some(1);
    let classes = || open(&config, OpenOptions::default()).unwrap().dataset.classes().to_vec();
    assert_eq!(classes(), ["bee", "cat"]);
    assert_eq!(names(&open(&config, OpenOptions::default()).unwrap()), ["a.xml:1"]);
    write_aged(&made.path("b.xml"), object("ant").as_bytes());
    assert_eq!(classes(), ["ant", "bee"]);
}

#[test]
fn broken_labels_are_reported_with_their_file_and_line() {
    for (text, reason) in [
        ("<annotation>\n<object>\n</annotation>", "a.xml:3: it is not well-formed XML"),
        ("<annotation>", "a.xml:1: it is not a VOC file"),
        ("<other></other>", "a.xml:1: it is not a VOC file"),
        (
            "<annotation>\n<object><name>a</name></object></annotation>",
            "a.xml:2: an object has no <bndbox>",
        ),
        (
            "<annotation>\n\n<size><width>x</width></size></annotation>",
            "a.xml:3: <width> is no number: \"x\"",
        ),
        (
            "<!DOCTYPE a [<!ENTITY b 'c'>]><annotation>&b;</annotation>",
            "a.xml:1: it has a document type",
        ),
        (
            "<annotation>\n<object><name>&b;</name></object></annotation>",
            "a.xml:2: it has the entity \"b\"",
        ),
        (&"<annotation>".repeat(40), "more than 32 deep"),
    ] {
        let made = Made::new(&[("a.jpg", b"picture"), ("a.xml", text.as_bytes())]);
        let message = made.refusal("voc", "");
        assert!(message.contains(reason), "{reason}: {message}");
    }
    for (text, reason) in [
        ("0 0.5 0.5 1 1\nx 0.5 0.5 1 1", "a.txt:2: \"x\" is no number of a class"),
        ("7 0.5 0.5 1 1", "a.txt:1: the class 7 does not exist: there are 2, from 0 on"),
        ("0 0.5 0.5 1", "a.txt:1: it has 3 numbers behind the class"),
        ("\n0 0.5 0.5 1 10", "a.txt:2: \"10\" is no part of the picture's side"),
        ("0 0.5 nan 1 1", "\"nan\" is no part of the picture's side"),
    ] {
        let made = Made::new(&[
            ("data.yaml", b"train: images\nnames: [a, b]\n"),
            ("images/a.png", &picture(9, 9, 0)),
            ("labels/a.txt", text.as_bytes()),
        ]);
        let message = made.refusal("yolo", "");
        assert!(message.contains(reason), "{reason}: {message}");
    }
    for (data, reason) in [
        ("train: images\nnames: {1: a}\n", "neither a list nor a map"),
        ("train: /data/images\n", "is an absolute path"),
        ("train: other\n", "no pictures are in its \"other\""),
        (
            "path: ../datasets/x\ntrain: images\n",
            "which is read as \"datasets/x/images\" in the folder of the file",
        ),
        ("val: images\n", "it has no `train`, which dataset.image_set asks for"),
        ("train: images\nkpt_shape: [17, 3]\n", "it is of poses"),
        ("train: images\n\tb: 1\n", "data.yaml:2: it is indented by a tab"),
    ] {
        let made =
            Made::new(&[("data.yaml", data.as_bytes()), ("images/a.png", &picture(9, 9, 0))]);
        let message = made.refusal("yolo", "");
        assert!(message.contains(reason), "{reason}: {message}");
    }
    let labels = ("labels/a.txt", &b"0 0.5 0.5 1 1"[..]);
    let made = Made::new(&[("images/a.png", b"x"), ("images/a.jpg", b"x"), labels]);
    let message = made.refusal("yolo", "");
    assert!(message.contains("a.png") && message.contains("one file of labels"), "{message}");
    let made = Made::new(&[("a.png", b"x"), ("a.jpg", b"x"), ("a.xml", b"<annotation/>")]);
    let message = made.refusal("voc", "");
    assert!(message.contains("a.png") && message.contains("one file of labels"), "{message}");
    // Folders of other sets are not those of the one that is asked for.
    let made = Made::new(&[("images/train/a.png", &picture(9, 9, 0)), ("images/b.png", b"x")]);
    let message = made.refusal("yolo", "dataset.image_set = \"val\"\n");
    assert!(message.contains("no pictures in images/val or val/images"), "{message}");
    let made = Made::new(&[("images/a.png", b"no picture")]);
    assert!(made.refusal("yolo", "").contains("its size in pixels cannot be read"));
    let made = Made::new(&[("JPEGImages/a.jpg", b"x"), ("Annotations/b.xml", b"<annotation/>")]);
    assert!(made.refusal("voc", "").contains("no picture has its name"));
    write_aged(&made.path("ImageSets/Main/train.txt"), b"a 1\n\nc\n");
    let message = made.refusal("voc", "dataset.image_set = \"train\"\n");
    assert!(message.contains("train.txt:1: Annotations has no a.xml"), "{message}");
    write_aged(&made.path("ImageSets/Main/train.txt"), b"c -1\nc\n");
    let message = made.refusal("voc", "dataset.image_set = \"train\"\n");
    assert!(
        message.contains("train.txt:2: no picture of JPEGImages has the name \"c\""),
        "{message}"
    );
}
