//! Tests of the generator: bytes that depend only on the options, and protection of existing folders.

use super::*;
use std::collections::BTreeMap;

fn small() -> GenerateOptions {
    GenerateOptions {
        images: 12,
        classes: 3,
        width: 96,
        height: 64,
        threads: 1,
        ..GenerateOptions::default()
    }
}

fn silent(_done: u64, _all: u64) {}

/// Every file below `folder` except the marker: its relative path, and its bytes.
fn contents(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![folder.to_path_buf()];
    while let Some(next) = waiting.pop() {
        for entry in fs::read_dir(next).expect("list") {
            let path = entry.expect("entry").path();
            if path.is_dir() {
                waiting.push(path);
            } else if path.file_name().is_some_and(|name| name != marker::MARKER_NAME) {
                let name = path.strip_prefix(folder).expect("below").to_path_buf();
                found.insert(name, fs::read(&path).expect("read"));
            }
        }
    }
    found
}

#[test]
fn bytes_depend_on_the_options_and_not_on_threads() {
    let (one, many) = (tempfile::tempdir().expect("folder"), tempfile::tempdir().expect("folder"));
    let report = generate_images(one.path(), &small(), &silent).expect("one thread");
    let options = GenerateOptions { threads: 4, ..small() };
    generate_images(many.path(), &options, &silent).expect("four threads");
    let made = contents(one.path());
    assert_eq!(made, contents(many.path()));
    assert_eq!(made.len(), 12);
    assert_eq!(report.bytes, made.values().map(|file| file.len() as u64).sum::<u64>());
    assert!(made.contains_key(Path::new("class-002/00000011.jpg")));
    assert!(made.values().all(|file| file.starts_with(&[0xFF, 0xD8])));
}

/// Fails if the images change: then raise `GENERATOR_VERSION` with the digest, so that old sets are generated again.
#[test]
fn bytes_of_this_generator_version_are_pinned() {
    let folder = tempfile::tempdir().expect("folder");
    generate_images(folder.path(), &small(), &silent).expect("made");
    let mut hasher = blake3::Hasher::new();
    contents(folder.path()).values().for_each(|file| {
        hasher.update(file);
    });
    assert_eq!((GENERATOR_VERSION, &hasher.finalize().to_hex()[..16]), (1, "e8c5843171ce88c5"));
}

#[test]
fn another_seed_gives_other_images() {
    let (one, other) = (tempfile::tempdir().expect("folder"), tempfile::tempdir().expect("folder"));
    generate_images(one.path(), &small(), &silent).expect("made");
    generate_images(other.path(), &GenerateOptions { seed: 18, ..small() }, &silent).expect("made");
    let (one, other) = (contents(one.path()), contents(other.path()));
    assert!(one.iter().all(|(name, file)| other[name] != *file));
}

#[test]
fn complete_set_is_reused_and_a_damaged_one_is_generated_again() {
    let folder = tempfile::tempdir().expect("folder");
    let first = generate_images(folder.path(), &small(), &silent).expect("made");
    let picture = folder.path().join("class-001/00000004.jpg");
    fs::write(&picture, b"mine").expect("change");
    let second = generate_images(folder.path(), &small(), &silent).expect("found");
    assert!(!first.reused && second.reused);
    assert_eq!(first.bytes, second.bytes);
    assert_eq!(fs::read(&picture).expect("read"), b"mine");

    fs::remove_file(folder.path().join("class-000/00000000.jpg")).expect("remove");
    let third = generate_images(folder.path(), &small(), &silent).expect("made again");
    assert!(!third.reused);
    assert_ne!(fs::read(&picture).expect("read"), b"mine");
}

#[test]
fn interrupted_set_is_generated_again() {
    let folder = tempfile::tempdir().expect("folder");
    fs::write(folder.path().join(marker::MARKER_NAME), b"{\"opt").expect("half a marker");
    fs::create_dir(folder.path().join("class-000")).expect("half a set");
    let report = generate_images(folder.path(), &small(), &silent).expect("made");
    assert!(!report.reused);
    assert_eq!(contents(folder.path()).len(), 12);
}

#[test]
fn folder_with_other_content_is_refused_and_unchanged() {
    let folder = tempfile::tempdir().expect("folder");
    fs::write(folder.path().join("holiday.jpg"), b"precious").expect("write");
    let error = generate_images(folder.path(), &small(), &silent).expect_err("refused");
    assert!(matches!(error, GenerateError::NotOurs { .. }), "{error}");
    assert_eq!(fs::read_dir(folder.path()).expect("list").count(), 1);
}

#[test]
fn set_with_other_options_is_refused_with_both() {
    let folder = tempfile::tempdir().expect("folder");
    generate_images(folder.path(), &small(), &silent).expect("made");
    let error =
        generate_images(folder.path(), &GenerateOptions { quality: 80, ..small() }, &silent)
            .expect_err("other");
    let message = error.to_string();
    assert!(message.contains("\"quality\":94") && message.contains("\"quality\":80"), "{message}");
}

#[test]
fn options_out_of_range_are_refused_by_name() {
    let folder = tempfile::tempdir().expect("folder");
    for (options, name) in [
        (GenerateOptions { images: 0, ..small() }, "images"),
        (GenerateOptions { classes: 13, ..small() }, "classes"),
        (GenerateOptions { classes: 0, ..small() }, "classes"),
        (GenerateOptions { width: 8, ..small() }, "width"),
        (GenerateOptions { height: 20_000, ..small() }, "height"),
        (GenerateOptions { size_variation_percent: 90, ..small() }, "size variation"),
        (GenerateOptions { quality: 0, ..small() }, "quality"),
    ] {
        let target = folder.path().join("data");
        let error = generate_images(&target, &options, &silent).expect_err(name);
        assert!(error.to_string().starts_with(name), "{error}");
        assert!(!target.exists());
    }
}

#[test]
fn unwritable_file_ends_the_generation_and_is_named() {
    let folder = tempfile::tempdir().expect("folder");
    fs::write(folder.path().join(marker::MARKER_NAME), b"").expect("marker");
    fs::create_dir_all(folder.path().join("class-001/00000004.jpg"))
        .expect("a folder in a file's place");
    let error = generate_images(folder.path(), &small(), &silent).expect_err("cannot write");
    assert!(error.to_string().contains("class-001/00000004.jpg"), "{error}");
}

#[test]
fn progress_ends_at_the_total() {
    let folder = tempfile::tempdir().expect("folder");
    let seen = std::cell::RefCell::new(Vec::new());
    generate_images(folder.path(), &small(), &|done, all| seen.borrow_mut().push((done, all)))
        .expect("made");
    assert_eq!(*seen.borrow(), (1..=12).map(|done| (done, 12)).collect::<Vec<_>>());
}

#[test]
fn arrays_read_back_in_every_container() {
    for container in [ArrayContainer::NpyFiles, ArrayContainer::NpyStack, ArrayContainer::NpzFiles]
    {
        let folder = tempfile::tempdir().expect("folder");
        let options = ArrayOptions {
            container,
            samples: 6,
            classes: 2,
            shape: vec![2, 3],
            ..ArrayOptions::default()
        };
        generate_arrays(folder.path(), &options, &silent).expect("made");
        assert!(generate_arrays(folder.path(), &options, &silent).expect("found").reused);
        let files = contents(folder.path());
        let read = |bytes: &[u8]| -> (Vec<u64>, Vec<f32>) {
            let array = npyz::NpyFile::new(bytes).expect("header");
            (array.shape().to_vec(), array.into_vec().expect("float32"))
        };
        let fourth = match container {
            ArrayContainer::NpyFiles => read(&files[Path::new("class-001/00000003.npy")]),
            ArrayContainer::NpyStack => {
                let (shape, values) = read(&files[Path::new("samples.npy")]);
                assert_eq!(shape, [6, 2, 3]);
                (vec![2, 3], values[18..24].to_vec())
            }
            ArrayContainer::NpzFiles => {
                let bytes = std::io::Cursor::new(&files[Path::new("00000003.npz")]);
                let mut archive = zip::ZipArchive::new(bytes).expect("archive");
                let target = npyz::NpyFile::new(archive.by_name("target.npy").expect("target"))
                    .expect("header");
                assert!(target.shape().is_empty());
                assert_eq!(target.into_vec::<i64>().expect("int64"), [1]);
                let mut bytes = Vec::new();
                let mut member = archive.by_name("features.npy").expect("features");
                std::io::Read::read_to_end(&mut member, &mut bytes).expect("inflate");
                read(&bytes)
            }
        };
        let expected = (0..6).map(|place| fourth.1[place]).collect::<Vec<_>>();
        assert_eq!(fourth, (vec![2, 3], expected));
        assert!(fourth.1.iter().all(|value| value.abs() <= 1.5));
        assert!(fourth.1.iter().any(|&value| value != 0.0));
    }
}
