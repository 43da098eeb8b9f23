//! Windows of HDF5 files: the conformance suite, and files that h5py and netCDF4 wrote (`fixtures/hdf5.py`).

use std::fs;
use std::path::{Path, PathBuf};

use forebay_config::DatasetConfig;
use forebay_dataset::{DatasetError, OpenOptions, Opened};

use super::super::tests::values;
use super::Form;
use crate::conformance;
use crate::testing::{EVERYWHERE, Opener, config_for, own_keys, write_aged};

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/hdf5");

/// The only number of `one.h5`.
const NUMBER: i64 = 0x1122_3344_5566_7788;

fn with(config: &DatasetConfig, keys: &str) -> DatasetConfig {
    DatasetConfig { own: own_keys(keys), ..config.clone() }
}

fn open(file: &str, keys: &str) -> Result<Opened, DatasetError> {
    let path = Path::new(FIXTURES).join(file);
    let folder = tempfile::tempdir().unwrap();
    let config = DatasetConfig {
        index: Some(folder.path().join("index")),
        ..with(&config_for("hdf5", &path), keys)
    };
    crate::open(&config, OpenOptions::default())
}

/// Files of one number each.
fn numbers(root: &Path, count: usize) -> PathBuf {
    let template = fs::read(Path::new(FIXTURES).join("one.h5")).unwrap();
    let number = NUMBER.to_le_bytes();
    let at = template.windows(8).position(|bytes| bytes == number).unwrap();
    for place in 0..count {
        let mut bytes = template.clone();
        bytes[at..at + 8].copy_from_slice(&(place as u64).to_le_bytes());
        write_aged(&root.join(format!("{place:03}.h5")), &bytes);
    }
    root.to_owned()
}

#[test]
fn windows_of_hdf5_conform() {
    let openers: [Opener; 3] = [
        |config, options| EVERYWHERE[0](&with(config, "dataset.windows.length = 1"), options),
        |config, options| EVERYWHERE[1](&with(config, "dataset.windows.length = 1"), options),
        |config, options| EVERYWHERE[2](&with(config, "dataset.windows.length = 1"), options),
    ];
    for open in openers {
        conformance::run(&conformance::Format {
            open,
            name: "hdf5",
            make: numbers,
            has_names: false,
            refuses_cuts: true,
        });
    }
}

#[test]
fn windows_have_the_rows_that_h5py_wrote() {
    for way in ["plain", "gzip", "lzf"] {
        let keys = format!(
            "dataset.windows = {{ length = 20, stride = 7, fields = {{ x = {{ from = \"{way}/x\" }} }} }}"
        );
        let opened = open("rows.h5", &keys).unwrap();
        assert_eq!(opened.dataset.sample_count(), 27, "{way}");
        for id in 0..27 {
            let expected = (7 * id..7 * id + 20).flat_map(|row| [7 * row, 7 * row + 1]);
            let expected: Vec<u8> =
                expected.flat_map(|x| i32::try_from(x).unwrap().to_le_bytes()).collect();
            assert!(values(&opened, id) == [expected], "{way}: window {id}");
        }
    }
}

#[test]
fn datasets_in_step_and_those_without_chunks_are_read() {
    let keys = "dataset.windows = { length = 20, stride = 20, by = \"episode\", fields = { step = { start = 2, length = 3 }, \
                none = {}, is_even = { length = 4 } } }";
    let opened = open("rows.h5", keys).unwrap();
    // Episodes of 70, 70 and 68 rows.
    assert_eq!(opened.dataset.sample_count(), 9);
    let found = values(&opened, 4);
    assert_eq!(found[0], [92_i64, 93, 94].map(i64::to_le_bytes).concat());
    assert_eq!(found[1], (-1.5_f32).to_le_bytes().repeat(20));
    assert_eq!(found[2], [1, 0, 1, 0]);
}

#[test]
fn groups_whose_order_of_creation_is_kept_are_read() {
    let opened = open(
        "dense.h5",
        "dataset.windows = { length = 3, fields = { x = { from = \"g/number 59\" } } }",
    );
    assert_eq!(values(&opened.unwrap(), 0), [vec![59; 3]]);
    let opened =
        open("netcdf.h5", "dataset.windows = { length = 5, stride = 100, fields = { v9 = {} } }")
            .unwrap();
    let expected: Vec<u8> = (109_i16..114).flat_map(i16::to_le_bytes).collect();
    assert_eq!(values(&opened, 1), [expected]);
}

#[test]
fn damaged_files_are_named_and_do_no_harm() {
    let whole = fs::read(Path::new(FIXTURES).join("rows.h5")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.h5");
    let keys = "dataset.windows = { length = 20, fields = { x = { from = \"gzip/x\" } } }";
    let mut noise = 7_u64;
    for round in 0..400_usize {
        let mut bytes = whole.clone();
        for _ in 0..8 {
            noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // Headers and trees are at the beginning.
            let at = usize::try_from(noise >> 33).unwrap()
                % if round % 2 == 0 { 4096 } else { bytes.len() };
            bytes[at] = noise.to_le_bytes()[3];
        }
        fs::write(&path, &bytes).unwrap();
        let config = DatasetConfig {
            index: Some(folder.path().join(format!("index-{round}"))),
            ..with(&config_for("hdf5", &path), keys)
        };
        if let Err(error) = crate::open(&config, OpenOptions::default()) {
            assert!(error.to_string().contains("x.h5"), "{error}");
        }
    }
}

#[test]
fn what_a_piece_says_is_kept() {
    for (mask, layout) in [(0, 0), (0xffff, 0xffff), (2, 1)] {
        let found = Form::of(Form { mask, layout }.number());
        assert_eq!((found.mask, found.layout), (mask, layout));
    }
}
