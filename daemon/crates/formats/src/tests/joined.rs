//! Joined datasets: consecutive sample numbers, with the fields of the first dataset.

use std::path::Path;

use tempfile::TempDir;
use zip::CompressionMethod;

use crate::open;
use crate::testing::{config_for, npy_bytes, npz_bytes, sample, with_values, write_aged};
use forebay_dataset::OpenOptions;
use forebay_dataset::*;
use forebay_protocol::ids::SampleId;

/// A folder of arrays with one number each, starting at `first`.
fn numbers(folder: &TempDir, name: &str, descr: &str, first: u8, count: u8) -> (String, Opened) {
    let root = folder.path().join(name);
    for number in 0..count {
        let mut elements = vec![0; if descr == "<i8" { 8 } else { 4 }];
        elements[0] = first + number;
        write_aged(
            &root.join(format!("{number}.npy")),
            &npy_bytes(descr, false, "(1,)", &elements),
        );
    }
    (name.to_owned(), open(&config_for("npy", &root), OpenOptions::default()).unwrap())
}

/// A folder with one `.npz` file with these members of one number each.
fn members(folder: &TempDir, name: &str, members: &[(&str, &str, u8)]) -> (String, Opened) {
    let root = folder.path().join(name);
    let arrays: Vec<_> = members
        .iter()
        .map(|(member, descr, value)| {
            let size = if *descr == "<i8" { 8 } else { 4 };
            let mut elements = vec![0; size];
            elements[0] = *value;
            (*member, npy_bytes(descr, false, "(1,)", &elements))
        })
        .collect();
    let arrays: Vec<_> = arrays.iter().map(|(name, bytes)| (*name, bytes.as_slice())).collect();
    write_aged(&root.join("0.npz"), &npz_bytes(&arrays, CompressionMethod::Stored));
    (name.to_owned(), open(&config_for("npz", &root), OpenOptions::default()).unwrap())
}

/// The first byte of a sample's field.
fn first_byte(opened: &Opened, id: u64, field: usize) -> u8 {
    let first = |values: &[FieldValue<'_>]| match &values[field] {
        FieldValue::Array(array) => array.bytes[0],
        other => panic!("{other:?}"),
    };
    with_values(opened, id, first).unwrap()
}

#[test]
fn samples_are_numbered_consecutively_over_all_datasets() {
    let folder = tempfile::tempdir().unwrap();
    let parts = [
        numbers(&folder, "a", "<i8", 10, 3),
        numbers(&folder, "b", "<i8", 50, 4),
        numbers(&folder, "c", "<i8", 90, 1),
    ];
    let joined = join(parts.into()).unwrap();
    assert_eq!((joined.dataset.sample_count(), joined.report.samples), (8, 8));
    let values: Vec<_> = (0..8).map(|id| first_byte(&joined, id, 0)).collect();
    assert_eq!(values, [10, 11, 12, 50, 51, 52, 53, 90]);
    let path = joined.dataset.full_name(joined.storage.as_ref(), SampleId(5));
    assert_eq!(path, folder.path().join("b/2.npy"));
    // The datasets' arrays have the same layout, so they can be read in place.
    let direct = joined.dataset.direct_read().unwrap();
    let mut locations = Vec::new();
    joined.dataset.locate(SampleId(6), &mut locations);
    let file = joined.storage.open_direct(joined.dataset.as_ref(), locations[0]).unwrap();
    let mut elements = [0; 8];
    if file.read(&direct.before, &mut elements, &mut Vec::new()) {
        assert_eq!(elements[0], 53);
    }
    let beside = joined.report.path.unwrap().display().to_string();
    let index = Path::new(&beside).file_name().unwrap().to_str().unwrap().to_owned();
    assert!(index.starts_with("a.index.with-"), "{index}");
}

#[test]
fn joining_one_dataset_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (name, one) = numbers(&folder, "a", "<i8", 10, 3);
    let fingerprint = one.dataset.fingerprint();
    let joined = join(vec![(name, one)]).unwrap();
    assert_eq!(joined.dataset.fingerprint(), fingerprint);
    assert!(joined.report.path.unwrap().ends_with("a.index"));
}

#[test]
fn names_order_and_content_are_part_of_the_fingerprint() {
    let folder = tempfile::tempdir().unwrap();
    let parts = |names: [&str; 2], counts: [u8; 2]| {
        let [(_, first), (_, other)] = [("a", counts[0]), ("b", counts[1])].map(|(name, count)| {
            let name = format!("{name}{count}");
            numbers(&folder, &name, "<i8", 0, count)
        });
        join(vec![(names[0].to_owned(), first), (names[1].to_owned(), other)])
    };
    let base = parts(["x", "y"], [2, 3]).unwrap().dataset.fingerprint();
    assert_eq!(base, parts(["x", "y"], [2, 3]).unwrap().dataset.fingerprint());
    for (names, counts) in [(["x", "z"], [2, 3]), (["y", "x"], [2, 3]), (["x", "y"], [2, 4])] {
        assert_ne!(base, parts(names, counts).unwrap().dataset.fingerprint(), "{names:?}");
    }
}

#[test]
fn fields_have_the_order_of_the_first_dataset() {
    let folder = tempfile::tempdir().unwrap();
    let names = ["w.npy", "x.npy", "y.npy", "z.npy"];
    let first =
        names.map(|name| (name, if name < "y" { "<i8" } else { "<f4" }, name.as_bytes()[0]));
    // Every order of the other dataset's fields.
    for code in 0..24 {
        let (mut left, mut rest, mut other) = (first.to_vec(), code, Vec::new());
        for count in (1..=4).rev() {
            other.push(left.remove(rest % count));
            rest /= count;
        }
        let (base, folder_of_other) = (format!("a{code}"), format!("b{code}"));
        let parts =
            vec![members(&folder, &base, &first), members(&folder, &folder_of_other, &other)];
        let joined = join(parts).unwrap();
        let fields: Vec<_> = joined.dataset.fields().iter().map(|field| &field.name).collect();
        assert_eq!(fields, ["w", "x", "y", "z"]);
        assert_eq!(sample(&joined, 0).unwrap(), sample(&joined, 1).unwrap());
        let values = [0, 1, 2, 3].map(|field| first_byte(&joined, 1, field));
        assert_eq!(values, *b"wxyz", "{other:?}");
        assert!(joined.dataset.direct_read().is_none());
    }
}

#[test]
fn error_names_the_datasets_and_the_field_that_differ() {
    let folder = tempfile::tempdir().unwrap();
    let two = |place: usize, of: &[(&str, &str, u8)]| members(&folder, &format!("n{place}"), of);
    let first = || two(0, &[("x.npy", "<i8", 1)]);
    for (place, other, parts) in [
        (1, two(1, &[("x.npy", "<f4", 1)]), ["field `x`", "int64", "float32", "`n0`", "`n1`"]),
        (1, two(2, &[("z.npy", "<i8", 1)]), ["field `x`", "`n0` has", "`n2` has not", "z", ""]),
        (
            1,
            two(3, &[("x.npy", "<i8", 1), ("z.npy", "<i8", 1)]),
            ["field `z`", "`n3` has", "`n0` has not", "(it has x)", "[dataset.fields]"],
        ),
    ] {
        let error = join(vec![first(), other]).unwrap_err();
        assert_eq!(error.place, place);
        for part in parts {
            assert!(error.message.contains(part), "{part}: {}", error.message);
        }
    }
}
