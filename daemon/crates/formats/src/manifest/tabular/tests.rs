use std::cell::Cell;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use crate::testing::{EVERYWHERE, config_for, names, own_keys, sample, write_aged};
use crate::{find_layout, open, propose};
use forebay_dataset::{DatasetError, OpenOptions, Opened, ScanProgress};

/// A table in `data`, with its pictures in the folder `pictures`.
fn made(name: &str, pictures: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data").join(name);
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/columns");
    write_aged(&path, &fs::read(fixtures.join(name)).unwrap());
    for number in 0..6 {
        let picture = folder.path().join(pictures).join(format!("images/{number}.jpg"));
        write_aged(&picture, &vec![b'x'; 10 + number]);
    }
    (folder, path)
}

fn open_as(format: &str, path: &Path, keys: &str) -> Result<Opened, DatasetError> {
    let mut config = config_for(format, path);
    config.index = Some(path.parent().unwrap().parent().unwrap().join("saved.index"));
    config.own = own_keys(keys);
    open(&config, OpenOptions::default())
}

#[test]
fn tables_that_name_pictures_are_manifests_if_the_configuration_says_so() {
    for name in ["paths.parquet", "hub-paths.parquet", "hub-paths.arrow"] {
        let (_folder, path) = made(name, "data");
        let opened = open_as("manifest", &path, "").unwrap();
        let fields: Vec<_> = opened.dataset.fields().iter().map(|field| &field.name[..]).collect();
        assert_eq!(fields[..3], ["image", "label", "score"], "{name}");
        assert_eq!(sample(&opened, 5).unwrap()[..3], ["image 15", "5", "2.5"], "{name}");
        assert_eq!(names(&opened)[5], format!("{name}:6"));
        let fields = "[dataset.fields]\nphoto = { from = \"image\", as = \"image\" }";
        let opened = open_as("manifest", &path, fields).unwrap();
        assert_eq!(sample(&opened, 1).unwrap(), ["image 11"]);
        let absent = "[dataset.fields]\nphoto = { from = \"picture\" }";
        let message = open_as("manifest", &path, absent).unwrap_err().to_string();
        assert!(message.contains("no row has picture for dataset.fields.photo"), "{message}");
    }
    // Lists of numbers are arrays, and unsupported values are missing.
    let (_folder, path) = made("nulls-in-lists.arrow", "data");
    let fields = "[dataset.fields]\nboxes = { from = \"boxes\" }\ntags = { from = \"tags\", as = \"text\", missing = \"empty\" }";
    let opened = open_as("manifest", &path, fields).unwrap();
    assert_eq!(sample(&opened, 1).unwrap(), ["F64 [1, 4]", "\"[1,2]\""]);
    assert_eq!(sample(&opened, 5).unwrap(), ["F64 [1, 4]", "\"\""]);
    // Values in compressed buffers are not missing: they are not read.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data/packed-long.arrow");
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/tables");
    write_aged(&path, &fs::read(fixtures.join("packed-long.arrow")).unwrap());
    let message = open_as("manifest", &path, "").unwrap_err().to_string();
    assert!(message.contains("long values in compressed buffers"), "{message}");
    // From URLs, and with the pictures in another folder.
    let (_folder, path) = made("paths.parquet", "data");
    for (place, open) in EVERYWHERE.into_iter().enumerate() {
        let mut config = config_for("manifest", &path);
        config.index = Some(path.with_extension(format!("{place}.index")));
        let opened = open(&config, OpenOptions::default()).unwrap();
        assert_eq!(sample(&opened, 5).unwrap()[..2], ["image 15", "5"]);
    }
    let (folder, path) = made("paths.parquet", "elsewhere");
    let root = format!("dataset.root = {:?}", folder.path().join("elsewhere"));
    assert_eq!(sample(&open_as("manifest", &path, &root).unwrap(), 5).unwrap()[0], "image 15");
}

#[test]
fn reading_a_table_reports_progress_and_can_be_stopped() {
    for name in ["paths.parquet", "hub-paths.arrow"] {
        let (_folder, path) = made(name, "data");
        let mut config = config_for("manifest", &path);
        config.index = Some(path.with_extension("index"));
        let files = Cell::new(None);
        let progress = |seen: ScanProgress| {
            files.set(seen.files.map(|files| (files.done, files.all)));
            ControlFlow::Break(())
        };
        let options = OpenOptions { progress: &progress, ..OpenOptions::default() };
        let stopped = open(&config, options).unwrap_err();
        assert!(matches!(stopped, DatasetError::Cancelled), "{stopped}");
        assert_eq!(files.get(), Some((0, 1)));
    }
}

fn layout(path: &Path) -> Result<Option<crate::Layout>, String> {
    let mut config = config_for("", path);
    config.index = Some(path.with_extension("index"));
    find_layout(&config, OpenOptions::default()).map_err(|error| error.to_string())
}

#[test]
fn init_reads_a_table_of_paths_as_a_manifest_and_asks_for_their_root() {
    for name in ["paths.parquet", "hub-paths.parquet", "hub-paths.arrow"] {
        let (folder, path) = made(name, "data");
        let found = layout(&path).unwrap().unwrap();
        assert_eq!((found.format, &found.path), ("manifest", &path), "{name}");
        let extension = name.rsplit('.').next().unwrap();
        let of_folder = layout(path.parent().unwrap()).unwrap().unwrap();
        let pattern = path.with_file_name(format!("*.{extension}"));
        assert_eq!((of_folder.format, &of_folder.path), ("manifest", &pattern), "{name}");
        for (place, path) in [found.path, of_folder.path].into_iter().enumerate() {
            let mut config = config_for("manifest", &path);
            config.index = Some(folder.path().join(format!("{place}.index")));
            let proposal = propose(&config, true, OpenOptions::default()).unwrap();
            let image = "image = { from = \"image\", as = \"image\" }";
            assert!(proposal.draft.tables.contains(image), "{}", proposal.draft.tables);
        }
        let (_folder, path) = made(name, "elsewhere");
        let message = layout(&path).unwrap_err();
        assert!(message.contains("column image, such as \"images/0.jpg\""), "{message}");
        assert!(message.contains("--set dataset.format=manifest --set dataset.root="), "{message}");
        assert!(
            message
                .ends_with(&format!("--set dataset.format={}", name.rsplit('.').next().unwrap()))
        );
    }
    // Pictures that are embedded in the table.
    let (_folder, path) = made("embedded.parquet", "data");
    assert_eq!(layout(&path).unwrap(), None);
    assert_eq!(layout(path.parent().unwrap()).unwrap(), None);
    let opened = open_as("parquet", &path, "").unwrap();
    assert_eq!(sample(&opened, 5).unwrap(), ["image 4", "5", "2.5 F32"]);
    for name in ["times.arrow", "urls.parquet"] {
        let (_folder, path) = made(name, "data");
        assert_eq!(layout(&path).unwrap(), None, "{name}");
    }
}

#[test]
fn only_tables_of_the_dataset_itself_are_looked_at_for_paths() {
    // A folder whose name ends like a table, as Spark writes it.
    let (_folder, path) = made("paths.parquet", "data");
    let above = path.parent().unwrap().parent().unwrap().join("spark");
    write_aged(&above.join("train.parquet/part-0.parquet"), &fs::read(&path).unwrap());
    assert_eq!(layout(&above).unwrap(), None);
    // `datasets` leaves caches next to the files that its list names.
    let (_folder, path) = made("hub-paths.arrow", "data");
    let state = r#"{"_data_files": [{"filename": "hub-paths.arrow"}]}"#;
    let folder = path.parent().unwrap();
    write_aged(&folder.join("state.json"), state.as_bytes());
    assert_eq!(layout(folder).unwrap().unwrap().format, "manifest");
    write_aged(&folder.join("cache-0.arrow"), &fs::read(&path).unwrap());
    assert_eq!(layout(folder).unwrap(), None);
}

#[test]
fn table_formats_suggest_the_manifest_for_pictures_that_are_not_embedded() {
    let (_folder, path) = made("hub-paths.parquet", "data");
    let opened = open_as("parquet", &path, "").unwrap();
    let warnings = opened.report.warnings.join("\n");
    assert!(warnings.contains("dataset.format = \"manifest\""), "{warnings}");
    let (_folder, path) = made("hub-paths.arrow", "data");
    let opened = open_as("arrow", &path, "").unwrap();
    let warnings = opened.report.warnings.join("\n");
    assert!(warnings.contains("image (row 0 of a batch names a file"), "{warnings}");
    let fields = "[dataset.fields]\nimage = { from = \"image\" }";
    let message = open_as("arrow", &path, fields).unwrap_err().to_string();
    assert!(message.contains("dataset.format = \"manifest\""), "{message}");
}
