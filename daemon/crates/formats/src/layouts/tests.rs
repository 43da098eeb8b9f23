use std::fs;
use std::path::Path;

use super::{Layout, find_layout};
use crate::testing::{config_for, make_files, npy_bytes};
use crate::{Proposal, propose, recognize};
use forebay_dataset::OpenOptions;

fn layout(root: &Path) -> Result<Option<Layout>, String> {
    find_layout(&config_for("", root), OpenOptions::default()).map_err(|error| error.to_string())
}

/// What `init` does with a folder without a known layout.
fn proposal(root: &Path) -> Result<Proposal, String> {
    let mut config = config_for("", root);
    config.index = Some(root.with_extension("index"));
    let format = recognize(&config, OpenOptions::default()).map_err(|error| error.to_string())?;
    config.format = format.to_owned();
    propose(&config, true, OpenOptions::default()).map_err(|error| error.to_string())
}

fn numbered(folder: &str, extension: &str, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{folder}/{number:04}.{extension}")).collect()
}

fn make(root: &Path, folders: &[(&str, &str)]) {
    for (folder, extension) in folders {
        let files = numbered(folder, extension, 9);
        let files: Vec<_> = files.iter().map(String::as_str).collect();
        make_files(root, &files, b"bytes");
    }
}

fn coco(names: &[&str]) -> String {
    let images: Vec<_> =
        names.iter().map(|name| format!("{{\"id\": 1, \"file_name\": {name:?}}}")).collect();
    format!("{{\"info\": {{}}, \"images\": [{}], \"annotations\": []}}", images.join(", "))
}

#[test]
fn root_of_a_coco_file_is_the_folder_with_its_images() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("coco");
    make(&root, &[("imgs", "jpg")]);
    fs::write(root.join("instances_train.json"), coco(&["0000.jpg", "0003.jpg"])).unwrap();
    for path in [root.clone(), root.join("instances_train.json")] {
        let found = layout(&path).unwrap().unwrap();
        assert_eq!((found.format, found.path), ("coco", root.join("instances_train.json")));
        assert_eq!(found.root, Some(root.join("imgs")));
    }
    fs::write(root.join("instances_train.json"), coco(&["gone.jpg"])).unwrap();
    for path in [root.clone(), root.join("instances_train.json")] {
        let message = layout(&path).unwrap_err();
        assert!(message.contains("\"gone.jpg\"") && message.contains("dataset.root"), "{message}");
    }
}

#[test]
fn unknown_annotations_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("via");
    make(&root, &[("cat", "jpg"), ("dog", "jpg")]);
    fs::write(root.join("via.json"), "{\"annotations\": [{\"file\": \"0000.jpg\"}]}").unwrap();
    let message = layout(&root).unwrap_err();
    assert!(message.contains("via.json with annotations"), "{message}");
    fs::write(root.join("via.json"), "{\"version\": 1}").unwrap();
    assert_eq!(layout(&root), Ok(None));
}

#[test]
fn coco_download_is_read_as_its_training_instances() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("coco");
    make(&root, &[("train2017", "jpg"), ("val2017", "jpg")]);
    let annotations = root.join("annotations");
    fs::create_dir(&annotations).unwrap();
    fs::write(root.join("train2017/000009.jpg"), "bytes").unwrap();
    fs::write(root.join("val2017/000139.jpg"), "bytes").unwrap();
    // Its paths refer to a folder that exists in only one place, and another folder is empty.
    fs::create_dir(root.join("empty")).unwrap();
    make(&root, &[("shots/nested", "jpg")]);
    fs::write(root.join("nested.json"), coco(&["nested/0001.jpg"])).unwrap();
    let found = layout(&root.join("nested.json")).unwrap().unwrap();
    assert_eq!(found.root, Some(root.join("shots")));
    fs::remove_file(root.join("nested.json")).unwrap();
    for (split, picture) in [("train", "000009.jpg"), ("val", "000139.jpg")] {
        for kind in ["captions", "instances", "person_keypoints"] {
            let path = annotations.join(format!("{kind}_{split}2017.json"));
            fs::write(path, coco(&[picture])).unwrap();
        }
    }
    let found = layout(&root).unwrap().unwrap();
    assert_eq!(found.path, annotations.join("instances_train2017.json"));
    assert_eq!(found.root, Some(root.join("train2017")));
    let found = layout(&annotations.join("instances_val2017.json")).unwrap().unwrap();
    assert_eq!(found.root, Some(root.join("val2017")));
}

#[test]
fn folders_of_labels_are_named_by_their_format() {
    let folder = tempfile::tempdir().unwrap();
    for (number, (folders, expected)) in [
        (&[("images/train", "jpg"), ("labels/train", "txt")][..], "yolo"),
        (&[("train/images", "jpg"), ("train/labels", "txt")], "yolo"),
        (&[("JPEGImages", "jpg"), ("Annotations", "xml"), ("SegmentationClass", "png")], "voc"),
    ]
    .into_iter()
    .enumerate()
    {
        let root = folder.path().join(format!("layout{number}"));
        make(&root, folders);
        let found = layout(&root).unwrap().unwrap();
        assert_eq!((found.format, &found.path), (expected, &root));
    }
}

#[test]
fn folders_that_are_not_classes_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (number, (folders, expected)) in [
        (&[("images", "jpg"), ("masks", "png")][..], "pictures and their masks"),
        (&[("photos", "jpg"), ("drawn", "png")], "pictures and their masks"),
    ]
    .into_iter()
    .enumerate()
    {
        let root = folder.path().join(format!("layout{number}"));
        make(&root, folders);
        let message = layout(&root).unwrap_err();
        assert!(message.contains(expected), "{message}");
        assert!(message.contains("--set dataset.format=image-folder"), "{message}");
    }
    for (number, folders) in
        [&[("train", "jpg"), ("val", "jpg")][..], &[("imgs", "jpg")]].iter().enumerate()
    {
        let root = folder.path().join(format!("classes{number}"));
        make(&root, folders);
        assert_eq!(layout(&root), Ok(None));
        let message = proposal(&root).unwrap_err();
        assert!(message.contains("not classes"), "{message}");
    }
}

#[test]
fn class_folders_with_equal_file_names_are_classes() {
    let folder = tempfile::tempdir().unwrap();
    for (number, folders) in [
        [("cat", "jpg"), ("dog", "jpg")],
        [("0", "png"), ("1", "png")],
        [("train", "jpg"), ("plane", "jpg")],
    ]
    .iter()
    .enumerate()
    {
        let root = folder.path().join(format!("classes{number}"));
        make(&root, folders);
        assert_eq!(layout(&root), Ok(None));
        assert_eq!(proposal(&root).unwrap().format, "image-folder");
    }
    let root = folder.path().join("one");
    make(&root, &[("faces", "jpg")]);
    let warnings = proposal(&root).unwrap().report.warnings;
    assert!(
        warnings.iter().any(|warning| warning.contains("one class alone, \"faces\"")),
        "{warnings:?}"
    );
}

#[test]
fn arrays_with_equal_row_counts_are_refused_as_columns() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    fs::write(root.join("X.npy"), npy_bytes("<f4", false, "(8, 3)", &[0; 96])).unwrap();
    fs::write(root.join("y.npy"), npy_bytes("<i8", false, "(8,)", &[0; 64])).unwrap();
    let message = layout(root).unwrap_err();
    assert!(
        message.contains("8 rows each") && message.contains("columns of one dataset"),
        "{message}"
    );
    fs::remove_file(root.join("y.npy")).unwrap();
    fs::write(root.join("Z.npy"), npy_bytes("<f4", false, "(9, 3)", &[0; 108])).unwrap();
    assert_eq!(layout(root), Ok(None));
}

#[test]
fn class_names_in_a_table_are_numbered_unlike_free_text() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("table");
    fs::create_dir(&root).unwrap();
    let rows: String =
        (0..40).map(|row| format!("{},text {row}\n", ["cat", "dog"][row % 2])).collect();
    fs::write(root.join("metadata.csv"), format!("label,target\n{rows}")).unwrap();
    let text = proposal(&root).unwrap().draft.tables;
    assert!(
        text.contains("label = { from = \"label\", classes = \"sorted\" }  # numbers of"),
        "{text}"
    );
    assert!(text.contains("target = { from = \"target\", as = \"text\" }\n"), "{text}");
}

#[test]
fn lists_and_objects_of_json_are_no_names_of_classes() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("rows");
    fs::create_dir(&root).unwrap();
    let row = |row: usize| {
        let label = ["[0, 1]", "[1, 0]"][row % 2];
        format!(
            "{{\"label\": {label}, \"class\": {{\"a\": {}}}, \"category\": \"news\"}}\n",
            row % 2
        )
    };
    fs::write(root.join("metadata.jsonl"), (0..40).map(row).collect::<String>()).unwrap();
    let text = proposal(&root).unwrap().draft.tables;
    assert!(text.contains("label = { from = \"label\", as = \"array\" }"), "{text}");
    assert!(text.contains("class = { from = \"class\", as = \"text\" }\n"), "{text}");
    assert!(text.contains("1 different in 40 rows: every label is 0"), "{text}");
}

#[test]
fn dataset_without_a_usable_sample_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("empty");
    make_files(&root, &["cat/1.jpg", "dog/2.jpg"], b"");
    let message = proposal(&root).unwrap_err();
    assert!(message.contains("none of the 2 samples") && message.contains("is empty"), "{message}");
}
