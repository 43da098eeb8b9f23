//! Lists and structs of tables, in Parquet and Arrow files of the same rows.

use std::fs;
use std::path::{Path, PathBuf};

use forebay_keys::Section;

use crate::open;
use crate::testing::{config_for, own_keys, sample, write_aged};
use forebay_dataset::{DatasetError, OpenOptions, Opened};

fn copied(name: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/tables");
    write_aged(&path, &fs::read(fixtures.join(name)).unwrap());
    (folder, path)
}

fn open_as(format: &str, path: &Path, own: Section) -> Result<Opened, DatasetError> {
    let mut config = config_for(format, path);
    config.index = Some(path.with_extension("index"));
    config.own = own;
    open(&config, OpenOptions::default())
}

fn open_with(path: &Path, fields: &str) -> Result<Opened, DatasetError> {
    let own = match fields {
        "" => Section::default(),
        fields => own_keys(&format!("[dataset.fields]\n{fields}")),
    };
    open_as(path.extension().unwrap().to_str().unwrap(), path, own)
}

fn field_names(opened: &Opened) -> Vec<&str> {
    opened.dataset.fields().iter().map(|field| &field.name[..]).collect()
}

#[test]
fn lists_of_numbers_in_parquet_are_the_arrays_that_they_are_in_arrow() {
    let fields = "ids = { from = \"ids\", missing = \"skip\" }\nsmall = { from = \"small\" }\n\
                  boxes = { from = \"boxes\", missing = \"skip\" }";
    let (_folder, path) = copied("lists.arrow");
    let arrow = open_with(&path, fields).unwrap();
    assert_eq!(arrow.dataset.sample_count(), 18, "two rows have no list");
    assert_eq!(sample(&arrow, 2).unwrap(), ["I32 [6]", "U16 [2]", "F32 [2, 4]"]);
    for name in ["lists-1.0.parquet", "lists-2.0.parquet", "lists-packed.arrow"] {
        let (_folder, path) = copied(name);
        let opened = open_with(&path, fields).unwrap();
        assert_eq!(opened.dataset.fields(), arrow.dataset.fields(), "{name}");
        assert_eq!(opened.dataset.sample_count(), 18, "{name}");
        for row in 0..18 {
            assert_eq!(sample(&opened, row), sample(&arrow, row), "{name} {row}");
        }
        // From the saved index.
        let again = open_with(&path, fields).unwrap();
        assert!(again.report.reused);
        assert_eq!(sample(&again, 17), sample(&arrow, 17), "{name}");
    }
    let (_folder, path) = copied("lists-1.0.parquet");
    let opened = open_with(&path, "half = { from = \"inner.half\" }").unwrap();
    assert_eq!(sample(&opened, 6).unwrap(), ["F16 [2]"]);
    assert_eq!(sample(&opened, 7).unwrap_err(), "it has no inner.half for the field `half`");
}

#[test]
fn nested_columns_are_json_if_the_configuration_names_them() {
    let fields = "chat = { from = \"messages\", missing = \"empty\", as = \"text\" }\ninfo = { from = \"info\" }\n\
                  tags = { from = \"tags\" }\nname = { from = \"info:name\" }\nscores = { from = \"info.scores\" }";
    for name in ["told-1.0.parquet", "told-2.0.parquet", "told.arrow", "told-packed.arrow"] {
        let (_folder, path) = copied(name);
        let opened = open_with(&path, fields).unwrap();
        let text = |text: &str| format!("{text:?}");
        let expected = [
            text(r#"[{"role":"user","content":"\"1\"\n\\","calls":null}]"#),
            text(r#"{"name":"n1","scores":[0.0],"is_good":false}"#),
            text(r#"["t0"]"#),
            text("n1"),
            "F64 [1]".to_owned(),
        ];
        assert_eq!(sample(&opened, 1).unwrap(), expected, "{name}");
        assert_eq!(sample(&opened, 6).unwrap()[0], "\"\"", "{name}");
        let reason = sample(&opened, 8).unwrap_err();
        assert_eq!(reason, "it has no info for the field `info`", "{name}");
        let message = open_with(&path, "x = { from = \"info\", as = \"integer\" }").unwrap_err();
        assert!(message.to_string().contains("cannot be what `as` says"), "{message}");
    }
}

#[test]
fn configurations_without_fields_keep_the_columns_that_they_had() {
    let (_folder, path) = copied("told.arrow");
    let opened = open_with(&path, "").unwrap();
    assert_eq!(field_names(&opened), ["info.name", "info.scores", "info.is_good"]);
    let warnings = opened.report.warnings.join("\n");
    for part in [
        "messages.role (it lies in the structs of a list; name the list in dataset.fields",
        "messages.calls (it has no values)",
        "tags (it is a list of texts or bytes, read as JSON only if dataset.fields names it)",
        "grid (it is a list of lists that differ in length, read as JSON only if",
    ] {
        assert!(warnings.contains(part), "{part}: {warnings}");
    }
    let (_folder, path) = copied("told-1.0.parquet");
    let opened = open_with(&path, "").unwrap();
    assert_eq!(field_names(&opened), ["info.name", "info.is_good"]);
    let warnings = opened.report.warnings.join("\n");
    let part = "info.scores (it is a list, read only if dataset.fields names it)";
    assert!(
        warnings.contains(part) && warnings.contains("tags (it is a list of texts"),
        "{warnings}"
    );
    let (_folder, path) = copied("lists-1.0.parquet");
    let message = open_with(&path, "").unwrap_err().to_string();
    assert!(message.contains("it has no columns that can be read: ids (it is a list"), "{message}");
}

#[test]
fn nested_columns_with_parts_that_json_does_not_have_are_refused_by_name() {
    for name in ["no-json.parquet", "no-json.arrow"] {
        let (_folder, path) = copied(name);
        let refused = |column: &str| {
            open_with(&path, &format!("x = {{ from = \"{column}\" }}")).unwrap_err().to_string()
        };
        let message = refused("event");
        let why = "the column event of dataset.fields.x is not read: event.at in it is a time, which JSON does not have";
        assert!(message.contains(why), "{message}");
        assert!(refused("files").contains("it is a list of texts or bytes"), "{message}");
        let message = refused("pairs");
        assert!(message.contains("it is a map; write it as JSON text"), "{message}");
    }
}

#[test]
fn manifests_of_tables_have_lists_only_if_they_are_named() {
    let (_folder, path) = copied("told-1.0.parquet");
    let plain = open_as("manifest", &path, Section::default()).unwrap();
    assert_eq!(field_names(&plain), ["info.name", "info.is_good"]);
    let own = own_keys(
        "[dataset.fields]\ntags = { from = \"tags\" }\nscores = { from = \"info.scores\" }",
    );
    let named = open_as("manifest", &path, own).unwrap();
    assert_eq!(sample(&named, 1).unwrap(), [r#""[\"t0\"]""#, r#""[0.0]""#]);
    // Texts that are paths of pictures.
    write_aged(&path.with_file_name("t0"), b"12");
    let own = own_keys("dataset.fields = { tags = { from = \"tags\", as = \"images\" } }");
    let pictured = open_as("manifest", &path, own).unwrap();
    assert_eq!(sample(&pictured, 1).unwrap(), ["images 2:99"]);
}
