//! Image folders: the conformance suite, torchvision's order, classes, and refused folders.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use forebay_protocol::ids::SampleId;

use forebay_config::DatasetConfig;

use crate::conformance::{self, Format};
use crate::open;
use crate::testing::{EVERYWHERE, age_directories, config_for, make_files, own_flag, own_key};
use forebay_dataset::{Dataset, DatasetError, FieldKind, FieldValue, OpenOptions, Opened};
use forebay_storage::location::{FileId, Location};

#[test]
fn image_folders_conform() {
    for open in EVERYWHERE {
        conformance::run(&Format {
            open,
            name: "image-folder",
            make: |root, count| {
                for number in 0..count {
                    let path = format!("class{}/{number:03}.jpg", number * 3 / count);
                    make_files(root, &[&path], path.as_bytes());
                }
                root.to_owned()
            },
            has_names: true,
            refuses_cuts: false,
        });
    }
}

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
        open(&self.config, OpenOptions::default())
    }

    fn list(&self, name: &str, contents: &str) -> Option<PathBuf> {
        let path = self.root.parent().unwrap().join(name);
        fs::write(&path, contents).unwrap();
        Some(path)
    }

    fn list_classes(&mut self, contents: &str) {
        let path = self.list("classes.txt", contents).unwrap();
        self.config.own = own_key("classes", path.to_str().unwrap());
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
            let mut locations = Vec::new();
            dataset.locate(SampleId(id), &mut locations);
            assert_eq!(locations, [Location::whole(FileId(id))]);
            let mut values = Vec::new();
            dataset.read(SampleId(id), b"bytes"[..].into(), &mut values).unwrap();
            let [FieldValue::EncodedImage(b"bytes"), FieldValue::Integer(label)] = values[..]
            else {
                panic!("{values:?}")
            };
            (String::from_utf8(dataset.path(FileId(id))).unwrap(), label)
        })
        .collect()
}

fn pairs(expected: &[(&str, i64)]) -> Vec<(String, i64)> {
    expected.iter().map(|(path, label)| ((*path).to_owned(), *label)).collect()
}

/// The expected list is the result of torchvision's `make_dataset` (sorted classes, `sorted(os.walk(…))`, sorted
/// names).
#[test]
fn order_equals_torchvisions_with_nested_folders_and_odd_names() {
    let mut fixture = fixture(&[
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
    // As in torchvision.
    fixture.config.own = own_flag("hidden");
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
    assert_eq!((fields[1].name.as_str(), &fields[1].kind), ("label", &FieldKind::Integer));
}

#[test]
fn new_image_extensions_do_not_change_folders_without_them() {
    let before = fixture(&["a/1.jpg", "a/2.PNG", "b/3.jpeg", "b/4.webp"]);
    let fingerprint = before.open().unwrap().dataset.fingerprint();
    // The fingerprint from before these extensions were supported: it covers names, not the list of extensions.
    let mut hasher = blake3::Hasher::new();
    hasher.update(b"forebay dataset 1\0\x04\0\0\0\0\0\0\0");
    hasher.update(b"a/1.jpg\0a/2.PNG\0b/3.jpeg\0b/4.webp\0a\0b\0");
    assert_eq!(fingerprint, *hasher.finalize().as_bytes());
    let after = fixture(&[
        "a/1.jpg", "a/2.PNG", "a/5.tif", "b/3.jpeg", "b/4.webp", "b/6.TIFF", "b/7.bmp", "b/8.Gif",
    ]);
    let expected = [
        ("a/1.jpg", 0),
        ("a/2.PNG", 0),
        ("a/5.tif", 0),
        ("b/3.jpeg", 1),
        ("b/4.webp", 1),
        ("b/6.TIFF", 1),
        ("b/7.bmp", 1),
        ("b/8.Gif", 1),
    ];
    assert_eq!(after.samples(), pairs(&expected));
    assert_ne!(after.open().unwrap().dataset.fingerprint(), fingerprint);
}

#[test]
fn skipped_files_are_counted_in_one_warning() {
    let fixture = fixture(&["a/1.jpg", "a/2.ppm", "a/3.ppm", "a/note.txt", "stray.jpg"]);
    let report = fixture.open().unwrap().report;
    assert_eq!(report.warnings.len(), 1, "{:?}", report.warnings);
    assert!(report.warnings[0].starts_with(
        "skipped 4 files that are not samples (2 .ppm, 1 .txt, 1 outside any class folder)"
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
fn link_to_a_parent_folder_is_refused() {
    for (link, target) in [("a/deep/up", "a"), ("a/root", ""), ("root", ""), ("a/above", "..")] {
        let fixture = fixture(&["a/deep/1.jpg"]);
        symlink(fixture.root.join(target), fixture.root.join(link)).unwrap();
        let error = fixture.open().unwrap_err();
        assert!(matches!(error, DatasetError::LinkLoop { .. }), "{link}: {error}");
    }
}

#[test]
fn hidden_files_and_folders_are_excluded_unless_configured() {
    let clean = fixture(&["a/1.jpg", "b/2.jpg"]);
    let mut fixture = fixture(&[
        "a/1.jpg",
        "a/._1.jpg",
        "a/.ipynb_checkpoints/1.jpg",
        "b/2.jpg",
        ".ipynb_checkpoints/3.jpg",
        "__MACOSX/a/1.jpg",
        "@eaDir/4.jpg",
    ]);
    age_directories(&fixture.root);
    let fingerprint = clean.open().unwrap().dataset.fingerprint();
    for is_saved in [false, true] {
        let Opened { dataset, report, .. } = fixture.open().unwrap();
        assert_eq!(samples(&*dataset), pairs(&[("a/1.jpg", 0), ("b/2.jpg", 1)]));
        assert_eq!(dataset.classes(), ["a", "b"]);
        assert_eq!((dataset.fingerprint(), report.reused), (fingerprint, is_saved));
        assert_eq!(
            report.warnings,
            [
                "left out hidden files and folders (2 .ipynb_checkpoints, 1 ._*, 1 @eaDir, 1 __MACOSX); dataset.hidden = \
              true takes them in"
            ]
        );
    }
    assert!(clean.open().unwrap().report.warnings.is_empty());
    fixture.config.own = own_flag("hidden");
    // Now a class has its files in a folder below.
    assert!(fixture.failure().contains("themselves, only folders that do: \"__MACOSX\". Their"));
    fs::rename(fixture.root.join("__MACOSX/a/1.jpg"), fixture.root.join("__MACOSX/1.jpg")).unwrap();
    let Opened { dataset, report, .. } = fixture.open().unwrap();
    assert_eq!(dataset.classes(), [".ipynb_checkpoints", "@eaDir", "__MACOSX", "a", "b"]);
    assert_eq!((dataset.sample_count(), report.warnings.len()), (7, 0));
    assert_ne!(dataset.fingerprint(), fingerprint);
}

#[test]
fn wrong_root_is_refused_with_a_suggested_path() {
    let refused = |paths: &[&str], names: &str, meant: &str| {
        let fixture = fixture(paths);
        let message = fixture.failure();
        let parts = [
            format!(
                "has class folders that hold no .jpg .jpeg .png .webp .tif .tiff .bmp .gif files themselves, only folders that do: {names}."
            ),
            format!("did you mean dataset.path = {:?}?", fixture.root.join(meant)),
            "set dataset.nested_classes = true".to_owned(),
        ];
        for part in parts {
            assert!(message.contains(&part), "{part}: {message}");
        }
    };
    let train = ["val/a/1.jpg", "val/a/2.jpg", "val/b/3.jpg", "train/a/4.jpg", "train/b/5.jpg"];
    refused(&train, "\"train\", \"val\"", "train");
    refused(&["data/val/a/1.jpg", "data/train/a/2.jpg"], "\"data\"", "data/train");
    refused(&["one/a/1.jpg", "two/a/2.jpg", "two/b/3.jpg"], "\"one\", \"two\"", "two");
    // The images of a validation set are often directly in one folder.
    refused(&["train/a/1.jpg", "val/2.jpg"], "\"train\"", "train");
}

#[test]
fn nested_class_folders_need_a_key_or_a_list() {
    let mut fixture = fixture(&["a/film/1.jpg", "b/film/2.jpg"]);
    assert!(fixture.failure().contains("nested_classes"));
    let expected = pairs(&[("a/film/1.jpg", 0), ("b/film/2.jpg", 1)]);
    fixture.config.own = own_flag("nested_classes");
    assert_eq!(fixture.samples(), expected);
    fixture.config.own = Default::default();
    assert!(fixture.failure().contains("nested_classes"));
    fixture.list_classes("a\nb\n");
    assert_eq!(fixture.samples(), expected);
}

#[test]
fn empty_class_causes_a_warning_and_keeps_its_label() {
    let mut fixture = fixture(&["a/1.jpg", "b/2.ppm", "d/3.jpg"]);
    fs::create_dir_all(fixture.root.join("c/deep")).unwrap();
    assert_eq!(fixture.samples(), pairs(&[("a/1.jpg", 0), ("d/3.jpg", 3)]));
    let warnings = |fixture: &Fixture| fixture.open().unwrap().report.warnings;
    let expected = "no .jpg .jpeg .png .webp .tif .tiff .bmp .gif file in class folder \"b\", \"c\": no sample has its label";
    assert!(warnings(&fixture).last().unwrap().starts_with(expected), "{:?}", warnings(&fixture));
    // With a selection, empty classes are intended.
    fixture.config.limit = Some(1);
    assert_eq!(warnings(&fixture).len(), 1);
    fixture.config.limit = None;
    for class in 0..9 {
        fs::create_dir(fixture.root.join(format!("e{class}"))).unwrap();
    }
    let warning = warnings(&fixture).pop().unwrap();
    assert!(warning.contains("\"e2\" and 6 more: "), "{warning}");
}

#[test]
fn class_summary_has_count_ends_and_extremes() {
    let summary = |paths: &[&str]| {
        let opened = fixture(paths).open().unwrap();
        opened.dataset.description().classes.unwrap().to_string()
    };
    assert_eq!(summary(&["a/1.jpg", "a/2.jpg"]), "1, a, of 2 samples");
    assert_eq!(summary(&["a/1.jpg", "b/2.jpg", "c/3.jpg"]), "3, a to c, of 1 sample each");
    assert_eq!(
        summary(&["a/1.jpg", "a/2.jpg", "b/x/3.jpg", "b/y/4.jpg", "b/5.jpg", "c/6.jpg", "d/7.jpg"]),
        "4, a to d, of 1 (c) to 3 (b) samples"
    );
}

#[test]
fn error_for_a_folder_without_images_says_what_was_expected() {
    let fixture = fixture(&["notes.txt"]);
    assert!(fixture.failure().contains("holds no class folders; …/CLASS/file.jpg was expected"));
}

#[test]
fn images_in_the_root_have_no_label_and_are_skipped_next_to_class_folders() {
    let flat = fixture(&["2.jpg", "1.png", "notes.txt"]);
    let opened = flat.open().unwrap();
    let fields: Vec<_> = opened.dataset.fields().iter().map(|field| &field.name[..]).collect();
    assert_eq!((fields, opened.dataset.sample_count()), (vec!["image"], 2));
    assert!(opened.report.warnings.iter().any(|warning| warning.contains("they have no `label`")));
    let beside = fixture(&["2.jpg", "a/1.jpg"]);
    assert_eq!(beside.samples(), pairs(&[("a/1.jpg", 0)]));
}

#[test]
fn listed_classes_set_the_labels_but_not_the_order() {
    let mut fixture = fixture(&["a/1.jpg", "b/2.jpg", "c/3.jpg"]);
    fixture.list_classes("c\r\na/\n\nb\n");
    assert_eq!(fixture.samples(), pairs(&[("a/1.jpg", 1), ("b/2.jpg", 2), ("c/3.jpg", 0)]));
    assert_eq!(fixture.open().unwrap().dataset.classes(), ["c", "a", "b"]);
}

#[test]
fn error_has_the_line_of_a_class_that_does_not_match_the_folders() {
    let mut fixture = fixture(&["a/1.jpg", "b/2.jpg"]);
    for (contents, expected) in [
        ("a\n", "class folder \"b\" is not listed in"),
        ("a\nb\nc\n", "classes.txt:3: class \"c\" has no folder in the dataset"),
        ("a\nb\na\n", "classes.txt:3: class \"a\" is listed twice"),
    ] {
        fixture.list_classes(contents);
        let message = fixture.failure();
        assert!(message.contains(expected), "{message}");
    }
    fixture.config.own = own_key("classes", fixture.root.join("absent.txt").to_str().unwrap());
    assert!(fixture.failure().contains("reading dataset.classes"), "{}", fixture.failure());
}

#[test]
fn paths_are_relative_to_the_folder_even_if_the_root_is_a_link() {
    let mut fixture = fixture(&["a/1.jpg"]);
    let link = fixture.root.parent().unwrap().join("link");
    symlink(&fixture.root, &link).unwrap();
    let direct = fixture.open().unwrap().dataset.fingerprint();
    fixture.config.path = link;
    assert_eq!(fixture.samples(), pairs(&[("a/1.jpg", 0)]));
    assert_eq!(fixture.open().unwrap().dataset.fingerprint(), direct);
}
