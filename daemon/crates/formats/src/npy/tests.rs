//! Folders of `.npy` files and single array files.

use std::path::PathBuf;

use forebay_config::DatasetConfig;
use forebay_protocol::ids::SampleId;
use forebay_protocol::tensor::DType;

use crate::conformance::{self, Format};
use crate::open;
use crate::testing::{EVERYWHERE, config_for, make_files, npy_bytes, npy_with_text, own_flag};
use forebay_dataset::{
    ArrayValue, DatasetError, Field, FieldKind, FieldValue, OpenOptions, Opened,
};
use forebay_storage::location::ByteRange;

#[test]
fn folders_of_arrays_conform() {
    for open in EVERYWHERE {
        conformance::run(&Format {
            open,
            name: "npy",
            make: |root, count| {
                for number in 0..count {
                    let path = format!("class{}/{number:03}.npy", number * 3 / count);
                    let elements = [7, 0, u8::try_from(number).unwrap(), 0];
                    make_files(root, &[&path], &npy_bytes("<u2", false, "(2,)", &elements));
                }
                root.to_owned()
            },
            has_names: true,
            refuses_cuts: true,
        });
    }
}

#[test]
fn array_files_conform() {
    for descr in ["<u2", ">u2"] {
        for open in EVERYWHERE {
            conformance::run(&Format {
                open,
                name: "npy",
                make: if descr == "<u2" {
                    |root, count| all(root, "<u2", count)
                } else {
                    |root, count| all(root, ">u2", count)
                },
                has_names: false,
                refuses_cuts: true,
            });
        }
    }
}

/// One file of rows of three u16 with consecutive values.
fn all(root: &std::path::Path, descr: &str, rows: usize) -> PathBuf {
    let elements: Vec<u8> = (0..rows * 6).map(|at| u8::try_from(at).unwrap()).collect();
    let shape = format!("({rows}, 3)");
    make_files(root, &["all.npy"], &npy_bytes(descr, false, &shape, &elements));
    root.join("all.npy")
}

struct Fixture {
    _folder: tempfile::TempDir,
    root: PathBuf,
    config: DatasetConfig,
}

/// Each file contains one row of two u16; the second is the file's number.
fn fixture(files: &[&str]) -> Fixture {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("arrays");
    std::fs::create_dir(&root).unwrap();
    for (number, file) in (0_u8..).zip(files) {
        make_files(&root, &[file], &npy_bytes("<u2", false, "(2,)", &[7, 0, number, 0]));
    }
    let config = config_for("npy", &root);
    Fixture { _folder: folder, root, config }
}

/// One file of `rows` rows of three big-endian u16 with consecutive values.
fn array_file(shape: &str, rows: u8, fortran_order: bool) -> Fixture {
    let fixture = fixture(&[]);
    let elements: Vec<u8> = (0..rows * 3).flat_map(|number| [0, number]).collect();
    make_files(&fixture.root, &["all.npy"], &npy_bytes(">u2", fortran_order, shape, &elements));
    let config = config_for("npy", &fixture.root.join("all.npy"));
    Fixture { config, ..fixture }
}

fn array(shape: &[u64]) -> Field {
    let kind = FieldKind::Array { dtype: DType::U16, shape: shape.to_vec() };
    Field { name: "array".to_owned(), kind }
}

/// Locates and reads a sample as the engine does.
fn with_sample<T>(opened: &Opened, id: u64, check: impl FnOnce(&str, &[FieldValue<'_>]) -> T) -> T {
    let Opened { dataset, storage, .. } = opened;
    let (mut locations, mut bytes, mut values) = (Vec::new(), Vec::new(), Vec::new());
    dataset.locate(SampleId(id), &mut locations);
    storage.read(dataset.as_ref(), locations[0], u64::MAX, &mut bytes).unwrap();
    dataset.read(SampleId(id), bytes[..].into(), &mut values).unwrap();
    check(std::str::from_utf8(&dataset.path(locations[0].file)).unwrap(), &values)
}

#[test]
fn flat_folder_has_one_field_and_no_label() {
    let fixture = fixture(&["b.npy", "a.npy", "c.NPY"]);
    let opened = open(&fixture.config, OpenOptions::default()).unwrap();
    let dataset = &*opened.dataset;
    assert_eq!(dataset.fields(), [array(&[2])]);
    assert!(dataset.classes().is_empty());
    for (id, name, number) in [(0, "a.npy", 1), (1, "b.npy", 0), (2, "c.NPY", 2)] {
        with_sample(&opened, id, |path, values| {
            assert_eq!(path, name);
            let [FieldValue::Array(ArrayValue { bytes, big_endian: false, .. })] = values else {
                panic!("{values:?}")
            };
            assert_eq!(bytes[..], [7, 0, number, 0]);
        });
    }
}

#[test]
fn class_folders_add_a_label() {
    let mut fixture = fixture(&["dog/x.npy", "cat/deep/y.npy"]);
    fixture.config.own = own_flag("nested_classes");
    let opened = open(&fixture.config, OpenOptions::default()).unwrap();
    let dataset = &*opened.dataset;
    assert_eq!(
        dataset.fields(),
        [array(&[2]), Field { name: "label".to_owned(), kind: FieldKind::Integer }]
    );
    assert_eq!(dataset.classes(), ["cat", "dog"]);
    with_sample(&opened, 1, |path, values| {
        assert_eq!(path, "dog/x.npy");
        assert!(matches!(values[1], FieldValue::Integer(1)));
    });
}

#[test]
fn files_next_to_class_folders_and_folders_without_files_are_refused() {
    let mixed = fixture(&["a.npy", "dog/x.npy"]);
    let error = open(&mixed.config, OpenOptions::default()).unwrap_err();
    assert!(matches!(error, DatasetError::FilesBesideFolders { .. }), "{error}");
    assert!(error.to_string().contains("(such as \"dog\")"));
    let empty = fixture(&[]);
    let message = open(&empty.config, OpenOptions::default()).unwrap_err().to_string();
    assert!(message.contains("gives no samples: there is no .npy file in it"), "{message}");
}

#[test]
fn error_names_an_unreadable_first_sample() {
    let fixture = fixture(&["b.npy"]);
    make_files(&fixture.root, &["a.npy"], b"no array");
    let message = open(&fixture.config, OpenOptions::default()).unwrap_err().to_string();
    assert!(
        message.contains("a.npy, the first sample, cannot be used: not a .npy file"),
        "{message}"
    );
}

#[test]
fn different_type_is_a_defect_but_different_shape_is_returned() {
    let fixture = fixture(&["a.npy"]);
    let dataset = open(&fixture.config, OpenOptions::default()).unwrap().dataset;
    let other = npy_bytes("<f4", false, "(2,)", &[0; 8]);
    let defect = dataset.read(SampleId(0), other[..].into(), &mut Vec::new()).unwrap_err();
    assert_eq!(defect.to_string(), "array is float32, and uint16 in the first sample");
    let longer = npy_bytes("<u2", false, "(3,)", &[0; 6]);
    let mut values = Vec::new();
    dataset.read(SampleId(0), longer[..].into(), &mut values).unwrap();
    assert!(matches!(&values[0], FieldValue::Array(array) if *array.shape == [3]));
}

#[test]
fn rows_of_one_file_are_located_by_byte_range() {
    let fixture = array_file("(4, 3)", 4, false);
    let opened = open(&fixture.config, OpenOptions::default()).unwrap();
    let dataset = &*opened.dataset;
    assert_eq!((dataset.sample_count(), dataset.fields()), (4, &[array(&[3])][..]));
    let mut locations = Vec::new();
    dataset.locate(SampleId(2), &mut locations);
    assert_eq!(locations[0].range, ByteRange { offset: 128 + 12, length: Some(6) });
    with_sample(&opened, 2, |path, values| {
        assert_eq!(path, "all.npy");
        let [FieldValue::Array(row)] = values else { panic!("{values:?}") };
        assert_eq!((row.bytes.as_ref(), row.big_endian), (&[0, 6, 0, 7, 0, 8][..], true));
    });
    let defect = dataset.read(SampleId(0), [0; 5][..].into(), &mut Vec::new()).unwrap_err();
    assert_eq!(defect.to_string(), "a row has 6 bytes, and 5 were read");
}

#[test]
fn one_dimensional_file_has_scalar_rows() {
    let fixture = array_file("(12,)", 4, true);
    let opened = open(&fixture.config, OpenOptions::default()).unwrap();
    assert_eq!(opened.dataset.fields(), [array(&[])]);
    with_sample(&opened, 4, |_, values| {
        let [FieldValue::Array(row)] = values else { panic!("{values:?}") };
        assert_eq!((row.bytes.as_ref(), &row.shape[..]), (&[0, 4][..], &[][..]));
    });
}

#[test]
fn error_says_why_a_file_has_no_rows() {
    let failure =
        |fixture: Fixture| open(&fixture.config, OpenOptions::default()).unwrap_err().to_string();
    assert!(failure(array_file("(4, 3)", 4, true)).contains("numpy.ascontiguousarray(array)"));
    assert!(failure(array_file("()", 0, false)).contains("cut short"));
    assert!(failure(array_file("(0, 3)", 0, false)).contains("gives no samples"));
    assert!(
        failure(array_file("(5, 3)", 4, false))
            .contains("cut short: uint16 [5, 3] takes 30 bytes and 24")
    );
    let mut listed = array_file("(4, 3)", 4, false);
    listed.config.ids = Some("ids.txt".into());
    assert!(failure(listed).contains("dataset.limit"));
}

#[test]
fn long_header_is_read_completely() {
    let fixture = fixture(&[]);
    let text =
        format!("{{'descr': '|u1', 'fortran_order': False, 'shape': (3,), {}}}", " ".repeat(3000));
    let bytes = npy_with_text(&text, &[1, 2, 3]);
    make_files(&fixture.root, &["all.npy"], &bytes);
    let config = config_for("npy", &fixture.root.join("all.npy"));
    let opened = open(&config, OpenOptions::default()).unwrap();
    with_sample(&opened, 1, |_, values| {
        assert!(matches!(&values[0], FieldValue::Array(row) if row.bytes[..] == [2]));
    });
}
