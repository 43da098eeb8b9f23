//! The same folder on disk and on servers has the same samples, whatever its listings look like.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::testing::{age_directories, config_for};
use crate::{find_layout, open, recognize};
use forebay_dataset::{OpenOptions, Opened};
use forebay_protocol::ids::SampleId;
use forebay_storage::RepeatingFolder;
use forebay_storage_remote::testing::{Fault, Server};

/// Two classes with one file each whose name is not valid UTF-8.
fn make(root: &Path) {
    for class in [&b"cat"[..], b"d\xe4mon"] {
        let folder = root.join("data").join(OsStr::from_bytes(class));
        fs::create_dir_all(&folder).unwrap();
        for name in [&b"1.jpg"[..], b"\xff.jpg", b"z.jpg"] {
            fs::write(folder.join(OsStr::from_bytes(name)), name).unwrap();
        }
    }
    age_directories(root);
}

fn on_disk(root: &Path, index: &str) -> Opened {
    let mut config = config_for("image-folder", &root.join("data"));
    config.index = Some(root.join(index));
    open(&config, OpenOptions::default()).unwrap()
}

fn paths(opened: &Opened) -> Vec<Vec<u8>> {
    let name = |id| {
        let mut name = Vec::new();
        opened.dataset.append_name(SampleId(id), &mut name);
        name
    };
    (0..opened.dataset.sample_count()).map(name).collect()
}

#[test]
fn folder_on_a_web_server_equals_the_one_on_disk_for_any_names_and_links() {
    let folder = tempfile::tempdir().unwrap();
    make(folder.path());
    let expected = on_disk(folder.path(), "disk.index");
    assert_eq!(expected.dataset.sample_count(), 6);
    let server = Server::of(folder.path());
    for repeats in [false, true] {
        server.set_weather(move |_| if repeats { Fault::Repeats } else { Fault::None });
        let mut config = config_for("image-folder", Path::new("/"));
        config.index = Some(folder.path().join(format!("web-{repeats}.index")));
        server.lead(&mut config.path, &mut config.storage, &server.url("http", "data"));
        let opened = open(&config, OpenOptions::default()).unwrap();
        assert_eq!(paths(&opened), paths(&expected));
        assert_eq!(opened.dataset.fingerprint(), expected.dataset.fingerprint());
        assert_eq!(opened.dataset.classes().len(), 2);
    }
}

#[test]
fn names_repeated_in_a_listing_are_counted_and_reported() {
    let folder = tempfile::tempdir().unwrap();
    make(folder.path());
    let expected = on_disk(folder.path(), "disk.index");
    let _repeating = RepeatingFolder::new(folder.path().join("data"));
    let opened = on_disk(folder.path(), "repeated.index");
    assert_eq!(opened.dataset.fingerprint(), expected.dataset.fingerprint());
    let warnings = opened.report.warnings.join("\n");
    assert!(warnings.contains("lists 8 names more than once, and each counts once"), "{warnings}");
}

#[test]
fn empty_prefix_is_reported_as_empty_not_as_vanished() {
    let folder = tempfile::tempdir().unwrap();
    make(folder.path());
    let server = Server::of(folder.path());
    for scheme in ["s3", "gs", "http"] {
        let said = |message: String| match scheme {
            "http" => assert!(message.contains("does not exist; check the URL"), "{message}"),
            _ => {
                let reason = "there are no objects under ";
                assert!(message.starts_with(reason), "{message}");
                assert!(
                    message.ends_with("/nothing; check the prefix in dataset.path"),
                    "{message}"
                );
            }
        };
        let mut config = config_for("auto", Path::new("/"));
        server.lead(&mut config.path, &mut config.storage, &server.url(scheme, "nothing"));
        said(recognize(&config, OpenOptions::default()).unwrap_err().to_string());
        said(find_layout(&config, OpenOptions::default()).unwrap_err().to_string());
        for format in [
            "image-folder",
            "npy",
            "npz",
            "webdataset",
            "manifest",
            "tfrecord",
            "arrayrecord",
            "coco",
            "arrow",
            "parquet",
            "audio-folder",
            "video-folder",
            "tokens",
            "mds",
            "litdata",
        ] {
            format.clone_into(&mut config.format);
            let message = open(&config, OpenOptions::default()).unwrap_err().to_string();
            assert!(!message.contains("vanished"), "{format}: {message}");
            if !matches!(format, "mds" | "litdata") {
                said(message);
            }
        }
    }
    let empty = folder.path().join("empty");
    fs::create_dir(&empty).unwrap();
    let message = recognize(&config_for("auto", &empty), OpenOptions::default()).unwrap_err();
    assert!(message.to_string().contains("empty is a folder without files"), "{message}");
}
