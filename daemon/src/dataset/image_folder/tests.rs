//! Image folders: torchvision's order, classes, lists, limit, and every refusal.

use std::cell::Cell;
use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use forebay_protocol::ids::SampleId;
use forebay_protocol::tensor::DType;

use super::open;
use crate::config::DatasetConfig;
use crate::dataset::registry::Opened;
use crate::dataset::testing::{config_for, make_files};
use crate::dataset::{ByteRange, Dataset, DatasetError, FieldKind, FieldValue, no_progress};

struct Fixture {
    _folder: tempfile::TempDir,
    root: PathBuf,
    config: DatasetConfig,
}

fn fixture(paths: &[&str]) -> Fixture {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("images");
    fs::create_dir(&root).unwrap();
    make_files(&root, paths, b"bytes");
    let config = config_for("image-folder", &root);
    Fixture { _folder: folder, root, config }
}

impl Fixture {
    fn open(&self) -> Result<Opened, DatasetError> {
        open(&self.config, &no_progress)
    }

    fn list(&self, name: &str, contents: &str) -> Option<PathBuf> {
        let path = self.root.parent().unwrap().join(name);
        fs::write(&path, contents).unwrap();
        Some(path)
    }

    fn samples(&self) -> Vec<(String, i64)> {
        samples(&*self.open().unwrap().dataset)
    }

    fn failure(&self) -> String {
        self.open().unwrap_err().to_string()
    }
}

fn samples(dataset: &dyn Dataset) -> Vec<(String, i64)> {
    (0..dataset.sample_count())
        .map(|id| {
            let mut path = Vec::new();
            let range = dataset.locate(SampleId(id), &mut path);
            assert_eq!(range, ByteRange { offset: 0, length: None });
            let mut values = Vec::new();
            dataset.read(SampleId(id), b"bytes", &mut values).unwrap();
            let [FieldValue::Encoded(b"bytes"), FieldValue::Integer(label)] = values[..] else {
                panic!("{values:?}")
            };
            (String::from_utf8(path).unwrap(), label)
        })
        .collect()
}

fn pairs(expected: &[(&str, i64)]) -> Vec<(String, i64)> {
    expected.iter().map(|(path, label)| ((*path).to_owned(), *label)).collect()
}

/// The expected list is what torchvision's `make_dataset` (sorted classes, `sorted(os.walk(…))`, sorted names) gives.
#[test]
fn the_order_is_torchvisions_over_nested_folders_and_odd_names() {
    let fixture = fixture(&[
        "b/z.jpg",
        "b/x/2.png",
        "b/x-y/1.jpg",
        "b/x/y/0.webp",
        "b/a.JPEG",
        "b/B.jpg",
        "b/a.jpg",
        "b/a-1.jpg",
        "b/.hidden.jpg",
        "b-c/10.jpg",
        "b-c/9.jpg",
        "B/ä.jpg",
        "B/note.txt",
        "stray.jpg",
    ]);
    assert_eq!(
        fixture.samples(),
        pairs(&[
            ("B/ä.jpg", 0),
            ("b/.hidden.jpg", 1),
            ("b/B.jpg", 1),
            ("b/a-1.jpg", 1),
            ("b/a.JPEG", 1),
            ("b/a.jpg", 1),
            ("b/z.jpg", 1),
            ("b/x/2.png", 1),
            ("b/x-y/1.jpg", 1),
            ("b/x/y/0.webp", 1),
            ("b-c/10.jpg", 2),
            ("b-c/9.jpg", 2),
        ])
    );
    let opened = fixture.open().unwrap();
    assert_eq!(opened.dataset.classes(), ["B", "b", "b-c"]);
    let fields = opened.dataset.fields();
    assert_eq!((fields[0].name.as_str(), &fields[0].kind), ("image", &FieldKind::EncodedImage));
    let label = FieldKind::Array { dtype: DType::I64, shape: vec![] };
    assert_eq!((fields[1].name.as_str(), &fields[1].kind), ("label", &label));
}

#[test]
fn what_is_skipped_is_counted_in_one_warning() {
    let fixture = fixture(&["a/1.jpg", "a/2.bmp", "a/3.bmp", "a/note.txt", "stray.jpg"]);
    let report = fixture.open().unwrap().report;
    assert_eq!(report.warnings.len(), 1, "{:?}", report.warnings);
    assert!(report.warnings[0].starts_with(
        "skipped 4 files that are not samples (2 .bmp, 1 .txt, 1 outside any class folder)"
    ));
    assert_eq!((report.samples, report.classes), (1, 1));
}

#[test]
fn links_to_folders_and_files_are_followed_and_broken_ones_kept() {
    let fixture = fixture(&["a/1.jpg"]);
    let outside = fixture.root.parent().unwrap().join("outside");
    make_files(&outside, &["deep/3.jpg", "2.jpg"], b"bytes");
    symlink(&outside, fixture.root.join("b")).unwrap();
    symlink(outside.join("deep"), fixture.root.join("a/linked")).unwrap();
    symlink(outside.join("2.jpg"), fixture.root.join("a/0.jpg")).unwrap();
    symlink("nowhere", fixture.root.join("a/broken.jpg")).unwrap();
    assert_eq!(
        fixture.samples(),
        pairs(&[
            ("a/0.jpg", 0),
            ("a/1.jpg", 0),
            ("a/broken.jpg", 0),
            ("a/linked/3.jpg", 0),
            ("b/2.jpg", 1),
            ("b/deep/3.jpg", 1),
        ])
    );
}

#[test]
fn a_link_to_a_folder_above_is_refused_instead_of_followed_for_ever() {
    for (link, target) in [("a/deep/up", "a"), ("a/root", ""), ("root", ""), ("a/above", "..")] {
        let fixture = fixture(&["a/deep/1.jpg"]);
        symlink(fixture.root.join(target), fixture.root.join(link)).unwrap();
        let error = fixture.open().unwrap_err();
        assert!(matches!(error, DatasetError::LinkLoop { .. }), "{link}: {error}");
    }
}

#[test]
fn an_empty_class_is_named_with_the_remedy() {
    let fixture = fixture(&["a/1.jpg", "b/2.gif"]);
    fs::create_dir_all(fixture.root.join("c/deep")).unwrap();
    let message = fixture.failure();
    assert!(
        message.contains("no .jpg .jpeg .png .webp file in class folder \"b\", \"c\" of"),
        "{message}"
    );
    assert!(message.contains("remove the folder"), "{message}");
    for class in 0..9 {
        fs::create_dir(fixture.root.join(format!("d{class}"))).unwrap();
    }
    assert!(fixture.failure().contains("\"d2\" and 6 more of"), "{}", fixture.failure());
}

#[test]
fn a_folder_without_class_folders_says_what_was_expected() {
    let fixture = fixture(&["1.jpg"]);
    assert!(fixture.failure().contains("holds no class folders; …/CLASS/file.jpg was expected"));
}

#[test]
fn listed_classes_give_the_labels_and_leave_the_order_alone() {
    let mut fixture = fixture(&["a/1.jpg", "b/2.jpg", "c/3.jpg"]);
    fixture.config.classes = fixture.list("classes.txt", "c\r\na/\n\nb\n");
    assert_eq!(fixture.samples(), pairs(&[("a/1.jpg", 1), ("b/2.jpg", 2), ("c/3.jpg", 0)]));
    assert_eq!(fixture.open().unwrap().dataset.classes(), ["c", "a", "b"]);
}

#[test]
fn classes_that_do_not_match_the_folders_are_named_with_their_line() {
    let mut fixture = fixture(&["a/1.jpg", "b/2.jpg"]);
    for (contents, expected) in [
        ("a\n", "class folder \"b\" is not listed in"),
        ("a\nb\nc\n", "classes.txt:3: class \"c\" has no folder in the dataset"),
        ("a\nb\na\n", "classes.txt:3: class \"a\" is listed twice"),
    ] {
        fixture.config.classes = fixture.list("classes.txt", contents);
        let message = fixture.failure();
        assert!(message.contains(expected), "{message}");
    }
    fixture.config.classes = Some(fixture.root.join("absent.txt"));
    assert!(fixture.failure().contains("reading dataset.classes"), "{}", fixture.failure());
}

#[test]
fn listed_ids_select_in_the_folders_own_order_and_then_the_limit_applies() {
    let mut fixture = fixture(&["a/1.jpg", "a/2.jpg", "a/3.jpg", "b/4.jpg", "c/d/5.PNG"]);
    fixture.config.ids = fixture.list("ids.txt", "c/d/5.PNG\n./a/3.jpg\n\na/1.jpg\n");
    assert_eq!(fixture.samples(), pairs(&[("a/1.jpg", 0), ("a/3.jpg", 0), ("c/d/5.PNG", 2)]));
    assert_eq!(fixture.open().unwrap().dataset.classes(), ["a", "b", "c"]);
    fixture.config.limit = Some(2);
    assert_eq!(fixture.samples(), pairs(&[("a/1.jpg", 0), ("a/3.jpg", 0)]));
}

#[test]
fn ids_that_do_not_exist_or_repeat_are_named_with_their_line() {
    let mut fixture = fixture(&["a/1.jpg", "a/2.jpg"]);
    for (contents, expected) in [
        ("a/1.jpg\na/0.jpg\na/3.jpg\n", "ids.txt:2: \"a/0.jpg\" is no sample of the dataset"),
        ("a/1.jpg\n\na/1.jpg\n", "ids.txt:3: \"a/1.jpg\" is listed already in line 1"),
        ("\n", "ids.txt lists none"),
    ] {
        fixture.config.ids = fixture.list("ids.txt", contents);
        let message = fixture.failure();
        assert!(message.contains(expected), "{message}");
    }
    fixture.config.ids = None;
    fixture.config.limit = Some(0);
    assert!(fixture.failure().contains("dataset.limit is 0"));
}

#[test]
fn an_empty_file_is_a_defect() {
    let fixture = fixture(&["a/1.jpg"]);
    let dataset = fixture.open().unwrap().dataset;
    let defect = dataset.read(SampleId(0), b"", &mut Vec::new()).unwrap_err();
    assert_eq!(defect.to_string(), "the file is empty");
}

#[test]
fn the_callback_sees_progress_and_can_cancel() {
    let fixture = fixture(&["a/1.jpg", "b/2.jpg"]);
    let calls = Cell::new(0);
    let cancel = |_| {
        calls.set(calls.get() + 1);
        ControlFlow::Break(())
    };
    match open(&fixture.config, &cancel) {
        Err(error) => assert!(matches!(error, DatasetError::Cancelled), "{error}"),
        // The two folders were listed before the first report.
        Ok(_) => assert_eq!(calls.get(), 0),
    }
}

#[test]
fn paths_are_relative_to_the_folder_even_when_it_is_reached_by_a_link() {
    let mut fixture = fixture(&["a/1.jpg"]);
    let link = fixture.root.parent().unwrap().join("link");
    symlink(&fixture.root, &link).unwrap();
    let straight = fixture.open().unwrap().dataset.fingerprint();
    fixture.config.path = link;
    assert_eq!(fixture.samples(), pairs(&[("a/1.jpg", 0)]));
    assert_eq!(fixture.open().unwrap().dataset.fingerprint(), straight);
}

#[test]
fn four_thousand_files_in_a_hundred_folders_are_opened_and_found() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("images");
    for class in 0..100 {
        let class_folder = root.join(format!("class{class:03}"));
        fs::create_dir_all(&class_folder).unwrap();
        for file in 0..40 {
            fs::File::create(class_folder.join(format!("{file:05}.jpg"))).unwrap();
        }
    }
    let opened = open(&config_for("image-folder", &root), &no_progress).unwrap();
    assert_eq!((opened.report.samples, opened.report.classes), (4000, 100));
    let all = samples(&*opened.dataset);
    assert_eq!(all[1234], ("class030/00034.jpg".to_owned(), 30));
    assert!(all.iter().all(|(path, _)| Path::new(&root).join(path).exists()));
}
