//! The index: from ids to paths and labels in large folders, and refusal of truncated or modified bytes.

use std::collections::BTreeMap;
use std::path::Path;

use forebay_protocol::ids::SampleId;

use super::{FolderIndex, IndexBytes};
use crate::folder::generated::{GeneratedFolder, NameRule};
use crate::folder::layout::IndexOrigin;
use crate::folder::scan::{FolderFormat, LooseFiles, scan_folder};
use crate::folder::select::Selection;
use crate::index_file::{LayoutFault, seal};
use forebay_dataset::no_progress;
use forebay_storage::listing::{Directories, EntryKind};

const FORMAT: FolderFormat =
    FolderFormat { name: "test", extensions: &[".jpg", ".jpeg"], loose: LooseFiles::NoFolders };

fn origin() -> IndexOrigin {
    IndexOrigin {
        identity: [1; 32],
        options: [2; 32],
        scan_started_seconds: -5,
        left_out: "3 .git".to_owned(),
    }
}

fn build(folder: GeneratedFolder, limit: Option<u64>) -> Vec<u8> {
    let scanned = scan_folder(&folder, Path::new("/generated"), FORMAT, &no_progress).unwrap();
    let selection = Selection { limit, ..Selection::default() };
    let selected = selection.apply(scanned, Path::new("/generated"), FORMAT).unwrap();
    FolderIndex::build(&selected, &origin(), FORMAT.extensions)
}

fn open(bytes: Vec<u8>) -> Result<FolderIndex, LayoutFault> {
    FolderIndex::open(IndexBytes::Owned(bytes), FORMAT.extensions)
}

/// Every path with its label, in the expected order of the index.
fn expected(folder: GeneratedFolder) -> Vec<(String, i64)> {
    let mut directories = BTreeMap::new();
    for (label, class) in (0_i64..).zip(0..folder.classes.max(1)) {
        let prefix = match folder.classes {
            0 => String::new(),
            _ => format!("{}/", GeneratedFolder::class_name(class)),
        };
        let mut names: Vec<_> =
            (0..folder.files_per_class).map(|file| folder.file_name(class, file)).collect();
        names.sort();
        directories.insert(label, (prefix, names));
    }
    directories
        .into_iter()
        .flat_map(|(label, (prefix, names))| {
            names.into_iter().map(move |name| (format!("{prefix}{name}"), label))
        })
        .collect()
}

#[test]
fn a_hundred_thousand_names_decode_in_order_from_less_than_four_bytes_each() {
    for (rule, classes, files_per_class) in [
        (NameRule::ImageNet, 80, 1250),
        (NameRule::Counted, 80, 1250),
        (NameRule::Counted, 0, 100_000),
    ] {
        let folder = GeneratedFolder { classes, files_per_class, rule };
        let index = open(build(folder, None)).unwrap();
        assert_eq!((index.sample_count(), index.left_out()), (100_000, Some("3 .git")));
        let bytes = index.file().bytes().len();
        assert!(bytes < 400_000, "{rule:?} takes {bytes} bytes");
        let mut path = Vec::new();
        for (id, (name, label)) in (0..).map(SampleId).zip(expected(folder)) {
            path.clear();
            index.append_path(id, &mut path);
            assert_eq!(String::from_utf8_lossy(&path), name, "{rule:?} {id:?}");
            assert_eq!(index.label(id), label, "{rule:?} {id:?}");
        }
    }
}

#[test]
fn paths_are_appended_without_growing_a_buffer_that_is_large_enough() {
    let folder = GeneratedFolder { classes: 3, files_per_class: 50, rule: NameRule::Hashed };
    let index = open(build(folder, None)).unwrap();
    let mut path = Vec::with_capacity(64);
    let (capacity, address) = (path.capacity(), path.as_ptr());
    for id in 0..150 {
        path.clear();
        path.extend_from_slice(b"root/");
        index.append_path(SampleId(id), &mut path);
        assert!(path.starts_with(b"root/n0000000"));
        assert_eq!((path.capacity(), path.as_ptr()), (capacity, address));
    }
}

#[test]
#[should_panic(expected = "sample 6 does not exist: the dataset has 6")]
fn an_id_beyond_the_last_sample_panics() {
    let folder = GeneratedFolder { classes: 2, files_per_class: 3, rule: NameRule::Counted };
    open(build(folder, None)).unwrap().append_path(SampleId(6), &mut Vec::new());
}

#[test]
fn any_changed_or_missing_byte_is_detected() {
    let folder = GeneratedFolder { classes: 2, files_per_class: 20, rule: NameRule::ImageNet };
    let bytes = build(folder, None);
    assert!(open(bytes.clone()).is_ok());
    for place in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[place] ^= 1;
        let expected = match place {
            0..8 | 12..14 => LayoutFault::NoIndex,
            8..12 | 14..16 => LayoutFault::OtherVersion,
            _ => LayoutFault::Damaged,
        };
        assert_eq!(open(changed).unwrap_err(), expected, "byte {place}");
    }
    for length in [0, 7, 47, 255, bytes.len() - 1] {
        assert!(open(bytes[..length].to_vec()).is_err(), "{length} bytes");
    }
}

#[test]
fn inconsistent_tables_are_refused_despite_a_correct_checksum() {
    let folder = GeneratedFolder { classes: 2, files_per_class: 20, rule: NameRule::ImageNet };
    let bytes = build(folder, None);
    // The number of samples; the end of the directories; the first sample of the first directories; names, paths.
    for place in [144, 192, 256, 256 + 48, 256 + 3 * 48 + 16, 256 + 3 * 48 + 24] {
        let mut changed = bytes.clone();
        changed[place] = changed[place].wrapping_add(1);
        seal(&mut changed, [0; 32]);
        assert_eq!(open(changed).unwrap_err(), LayoutFault::Damaged, "byte {place}");
    }
    let mut changed = bytes;
    let first_block = 256 + 4 * 48;
    changed[first_block..first_block + 4].copy_from_slice(&u32::MAX.to_le_bytes());
    seal(&mut changed, [0; 32]);
    let index = open(changed).unwrap();
    let mut path = Vec::new();
    index.append_path(SampleId(0), &mut path);
    assert_eq!(path, b"n00000000/");
}

#[test]
fn fingerprint_depends_only_on_names_order_and_limit() {
    let folder = GeneratedFolder { classes: 3, files_per_class: 40, rule: NameRule::ImageNet };
    let fingerprint = |folder, limit| open(build(folder, limit)).unwrap().file().fingerprint();
    let whole = fingerprint(folder, None);
    assert_ne!(whole, [0; 32]);
    assert_eq!(whole, fingerprint(folder, None));
    assert_eq!(whole, fingerprint(folder, Some(1_000_000)));
    assert_ne!(whole, fingerprint(folder, Some(119)));
    assert_ne!(whole, fingerprint(GeneratedFolder { rule: NameRule::Counted, ..folder }, None));
    assert_ne!(whole, fingerprint(GeneratedFolder { files_per_class: 41, ..folder }, None));
}

#[test]
fn a_limit_keeps_the_first_samples_across_blocks_and_directories() {
    let folder = GeneratedFolder { classes: 3, files_per_class: 40, rule: NameRule::ImageNet };
    let names = expected(folder);
    for limit in [1, 15, 16, 17, 39, 40, 41, 100, 119] {
        let index = open(build(folder, Some(limit))).unwrap();
        assert_eq!(index.sample_count(), limit);
        assert_eq!(index.classes().len(), 3);
        let mut path = Vec::new();
        index.append_path(SampleId(limit - 1), &mut path);
        let last = usize::try_from(limit - 1).unwrap();
        assert_eq!(String::from_utf8_lossy(&path), names[last].0);
        assert_eq!(index.label(SampleId(limit - 1)), names[last].1);
    }
}

#[test]
fn a_generated_folder_lists_its_classes_as_directories() {
    let folder = GeneratedFolder { classes: 2, files_per_class: 1, rule: NameRule::Counted };
    let mut entries = Vec::new();
    folder.list(b"", &mut |name, kind| entries.push((name.to_vec(), kind))).unwrap();
    assert_eq!(entries[1], (b"n00000001".to_vec(), EntryKind::Directory));
}
