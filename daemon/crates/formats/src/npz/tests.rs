//! `.npz` files: members, compression methods, and archives with false sizes.

use std::borrow::Cow;
use std::path::PathBuf;

use forebay_protocol::ids::SampleId;
use zip::CompressionMethod::{Deflated, Stored};

use forebay_config::DatasetConfig;

use crate::conformance::{self, Format};
use crate::testing::{EVERYWHERE, config_for, make_files, npy_bytes, npz_bytes};
use crate::{open, propose};
use forebay_dataset::{DatasetError, FieldKind, FieldValue, OpenOptions};

#[test]
fn folders_of_archives_conform() {
    for open in EVERYWHERE {
        conformance::run(&Format {
            open,
            name: "npz",
            make: |root, count| {
                for number in 0..count {
                    let flags = [u8::try_from(number).unwrap(), 1, 0, 1];
                    let flags = npy_bytes("|u1", true, "(2, 2)", &flags);
                    let method = if number % 2 == 0 { Deflated } else { Stored };
                    let bytes =
                        npz_bytes(&[("points.npy", &points()), ("flags.npy", &flags)], method);
                    make_files(root, &[&format!("{number:03}.npz")], &bytes);
                }
                root.to_owned()
            },
            has_names: true,
            refuses_cuts: true,
        });
    }
}

struct Fixture {
    _folder: tempfile::TempDir,
    root: PathBuf,
    config: DatasetConfig,
}

fn fixture(files: &[&str], bytes: &[u8]) -> Fixture {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("arrays");
    make_files(&root, files, bytes);
    let config = config_for("npz", &root);
    Fixture { _folder: folder, root, config }
}

fn points() -> Vec<u8> {
    npy_bytes("<f4", false, "(250, 2)", &[1; 2000])
}

fn mask() -> Vec<u8> {
    npy_bytes("|b1", true, "(2, 2)", &[1, 0, 0, 1])
}

fn standard(method: zip::CompressionMethod) -> Vec<u8> {
    npz_bytes(&[("points.npy", &points()), ("mask.npy", &mask())], method)
}

/// The defect of a sample with these bytes, read with the fields of the first sample.
fn defect_of(bytes: &[u8]) -> String {
    let fixture = fixture(&["a.npz"], &standard(Stored));
    let dataset = open(&fixture.config, OpenOptions::default()).unwrap().dataset;
    dataset.read(SampleId(0), bytes.into(), &mut Vec::new()).unwrap_err().to_string()
}

#[test]
fn members_are_fields_in_order_borrowed_if_stored_and_owned_if_deflated() {
    for method in [Stored, Deflated] {
        let bytes = standard(method);
        let fixture = fixture(&["a.npz"], &bytes);
        let dataset = open(&fixture.config, OpenOptions::default()).unwrap().dataset;
        let names: Vec<_> = dataset.fields().iter().map(|field| field.name.as_str()).collect();
        assert_eq!(names, ["points", "mask"]);
        let mut values = Vec::new();
        dataset.read(SampleId(0), bytes[..].into(), &mut values).unwrap();
        let [FieldValue::Array(points), FieldValue::Array(mask)] = &values[..] else {
            panic!("{values:?}")
        };
        assert_eq!((&points.shape[..], points.bytes.as_ref()), (&[250, 2][..], &[1; 2000][..]));
        assert_eq!((mask.fortran_order, mask.bytes.as_ref()), (true, &[1, 0, 0, 1][..]));
        assert_eq!(matches!(points.bytes, Cow::Borrowed(_)), method == Stored);
    }
}

#[test]
fn class_folders_add_a_label_and_reserve_its_name() {
    let both = fixture(&["cat/a.npz", "dog/b.npz"], &standard(Stored));
    let dataset = open(&both.config, OpenOptions::default()).unwrap().dataset;
    assert_eq!(dataset.fields()[2].name, "label");
    let mut values = Vec::new();
    let bytes = std::fs::read(both.root.join("dog/b.npz")).unwrap();
    dataset.read(SampleId(1), bytes[..].into(), &mut values).unwrap();
    assert!(matches!(values[2], FieldValue::Integer(1)));

    let labelled = npz_bytes(&[("label.npy", &mask())], Stored);
    let flat = fixture(&["a.npz"], &labelled);
    assert!(open(&flat.config, OpenOptions::default()).is_ok());
    let error =
        open(&fixture(&["cat/a.npz"], &labelled).config, OpenOptions::default()).unwrap_err();
    assert!(error.to_string().contains("an array is named \"label\""), "{error}");
    let reserved = npz_bytes(&[("index.npy", &mask())], Stored);
    let error = open(&fixture(&["a.npz"], &reserved).config, OpenOptions::default()).unwrap_err();
    assert!(matches!(error, DatasetError::FirstSample { .. }), "{error}");
}

#[test]
fn members_may_be_reordered_but_not_missing_or_added() {
    let swapped = npz_bytes(&[("mask.npy", &mask()), ("points.npy", &points())], Stored);
    let fixture = fixture(&["a.npz"], &standard(Stored));
    let dataset = open(&fixture.config, OpenOptions::default()).unwrap().dataset;
    let mut values = Vec::new();
    dataset.read(SampleId(0), swapped[..].into(), &mut values).unwrap();
    assert!(matches!(&values[0], FieldValue::Array(points) if *points.shape == [250, 2]));
    assert!(matches!(dataset.fields()[0].kind, FieldKind::Array { .. }));

    assert_eq!(
        defect_of(&npz_bytes(&[("points.npy", &points())], Stored)),
        "the member \"mask\" of the first sample is missing"
    );
    let three = [("points.npy", &points()[..]), ("mask.npy", &mask()), ("more.npy", &mask())];
    assert_eq!(
        defect_of(&npz_bytes(&three, Stored)),
        "it has a member \"more\" that the first sample does not have"
    );
    assert_eq!(
        defect_of(&npz_bytes(&[("readme.txt", b"hello")], Stored)),
        "the member \"readme.txt\" is not an array (NAME.npy)"
    );
    let other_type = [("points.npy", &mask()[..]), ("mask.npy", &mask())];
    assert_eq!(
        defect_of(&npz_bytes(&other_type, Stored)),
        "points is bool, and float32 in the first sample"
    );
}

#[test]
fn two_members_with_the_same_name_are_a_defect() {
    // The writer refuses duplicates, so a member is renamed in both of its headers.
    let bytes = npz_bytes(&[("points.npy", &points()), ("pointz.npy", &mask())], Stored);
    let changed = replace_all(&bytes, b"pointz.npy", b"points.npy");
    assert_eq!(defect_of(&changed), "two members have the same name");
}

fn replace_all(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let places: Vec<_> = bytes
        .windows(from.len())
        .enumerate()
        .filter(|(_, part)| *part == from)
        .map(|(at, _)| at)
        .collect();
    assert!(!places.is_empty());
    for place in places {
        bytes[place..place + to.len()].copy_from_slice(to);
    }
    bytes
}

#[test]
fn a_changed_byte_of_any_member_is_a_defect() {
    for method in [Stored, Deflated] {
        let mut bytes = standard(method);
        // Within the elements of the first member, or within its deflated bytes.
        let place = if method == Stored { 500 } else { 60 };
        bytes[place] ^= 0x55;
        let message = defect_of(&bytes);
        assert!(message.starts_with("member \"points\": cannot be read: "), "{message}");
    }
}

#[test]
fn other_files_and_empty_archives_are_defects() {
    assert_eq!(defect_of(b""), "the file is empty");
    assert!(defect_of(b"\x93NUMPY and no archive").starts_with("not a whole .npz (zip) file"));
    assert_eq!(defect_of(&npz_bytes(&[], Stored)), "the .npz file has no members");
}

#[test]
fn impossible_declared_size_is_refused_before_allocation() {
    let bytes = standard(Deflated);
    let inflated = u32::try_from(points().len()).unwrap().to_le_bytes();
    for (declared, expected) in [
        (1_u32 << 30, "more than"),
        (u32::MAX - 1, "more than"),
        (3000, "and inflates to others"),
        (100, "larger than its declared"),
    ] {
        let lying = replace_all(&bytes, &inflated, &declared.to_le_bytes());
        let message = defect_of(&lying);
        assert!(message.contains(expected), "{declared}: {message}");
    }
}

#[test]
fn limit_applies_to_the_sum_of_deflated_members_only() {
    let zeros = npy_bytes("<f4", false, "(2500, 2)", &[0; 20_000]);
    let each = zeros.len() as u64;
    let members = [("a.npy", zeros.as_slice()), ("b.npy", &zeros)];
    let bomb = npz_bytes(&members, Deflated);
    assert!(bomb.len() < 1000);
    assert_eq!(super::read_all_members(&bomb, 2 * each).unwrap().len(), 2);
    let message = super::read_all_members(&bomb, 2 * each - 1).unwrap_err().0;
    let expected =
        format!("\"b\": it declares {each} bytes, and {} of limits.inflated_bytes", each - 1);
    assert!(message.contains(&expected), "{message}");
    assert_eq!(super::read_all_members(&npz_bytes(&members, Stored), 0).unwrap().len(), 2);
}

#[test]
fn first_sample_beyond_the_limit_is_refused() {
    let mut fixture = fixture(&["a.npz"], &standard(Stored));
    fixture.config.limits.sample_bytes = 100;
    let message = open(&fixture.config, OpenOptions::default()).unwrap_err().to_string();
    assert!(message.contains("limits.sample_bytes is 100"), "{message}");
}

#[test]
fn single_archive_with_rows_is_asked_about() {
    let rows = npy_bytes("<f4", false, "(8, 3)", &[0; 96]);
    let labels = npy_bytes("<i8", false, "(8,)", &[0; 64]);
    let archive = npz_bytes(&[("X.npy", &rows), ("y.npy", &labels)], Stored);
    let proposed = |fixture: &Fixture, asks| {
        let proposal = propose(&fixture.config, asks, OpenOptions::default());
        proposal.map(|proposal| proposal.report.samples).map_err(|error| error.to_string())
    };
    let one = fixture(&["all.npz"], &archive);
    let question = proposed(&one, true).unwrap_err();
    assert!(question.contains("8 rows each") && question.contains("save_to_disk"), "{question}");
    assert_eq!(proposed(&one, false), Ok(1));
    let mut file = one.config.clone();
    (file.path, file.format) = (one.root.join("all.npz"), "auto".to_owned());
    let refused = open(&file, OpenOptions::default()).unwrap_err().to_string();
    assert!(refused.contains("is one .npz file") && refused.contains("save_to_disk"), "{refused}");
    // Each of several archives is a sample, and so is one whose arrays have different lengths.
    assert_eq!(proposed(&fixture(&["a.npz", "b.npz"], &archive), true), Ok(2));
    let differing = npz_bytes(&[("points.npy", &points()), ("X.npy", &rows)], Stored);
    assert_eq!(proposed(&fixture(&["a.npz"], &differing), true), Ok(1));
}
