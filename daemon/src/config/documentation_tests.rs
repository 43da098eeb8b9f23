//! docs/config.md lists exactly the keys that the code asks for, and every example in configs/ resolves.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::{Config, Override, asked_keys};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn resolve(dict: &serde_json::Value) -> Config {
    Config::from_json("", Path::new("/"), dict, &[]).unwrap()
}

/// The keys asked for while configurations that reach every branch are read, with the user's names made general.
fn asked() -> BTreeSet<String> {
    asked_keys::take();
    resolve(&serde_json::json!({
        "preset": "imagenet-train",
        "dataset": { "path": "x" },
        "batch": { "size": 1 },
        "stage": [{ "name": "fetch" }, { "name": "preprocess" }],
    }));
    let ignored = [
        "stage", "output", "dataset", "limits", "order", "batch", "ring", "errors", "cpu",
        "listen", "session", "security",
    ];
    asked_keys::take()
        .into_iter()
        .filter(|key| !ignored.contains(&key.as_str()))
        .map(|key| key.replace("stage.preprocess.", "stage.").replace("stage.fetch.", "stage."))
        .map(|key| key.replace("output.image.", "output.FIELD."))
        .collect()
}

/// The keys in the first column of the tables: lines that start with a cell in backticks and have five cells.
fn documented() -> BTreeSet<String> {
    let text = std::fs::read_to_string(repository().join("docs/config.md")).unwrap();
    text.lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`'))
        .filter(|(_, rest)| rest.matches('|').count() == 5)
        .map(|(key, _)| key.to_owned())
        .collect()
}

#[test]
fn the_reference_lists_every_key_and_no_other() {
    let (asked, documented) = (asked(), documented());
    assert!(asked.len() > 30, "{asked:?}");
    let missing: Vec<_> = asked.difference(&documented).collect();
    let stale: Vec<_> = documented.difference(&asked).collect();
    assert!(missing.is_empty(), "not in docs/config.md: {missing:?}");
    assert!(stale.is_empty(), "in docs/config.md, but read nowhere: {stale:?}");
}

#[test]
fn every_example_resolves_and_prints_itself() {
    let mut examples = 0;
    for entry in std::fs::read_dir(repository().join("configs")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        examples += 1;
        let config = Config::from_file(&path, &[]).unwrap_or_else(|error| panic!("{error}"));
        let folder = tempfile::tempdir().unwrap();
        let printed = folder.path().join("printed.toml");
        std::fs::write(&printed, config.resolved_toml()).unwrap();
        let again = Config::from_file(&printed, &[]).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(again.resolved_toml(), config.resolved_toml(), "{}", path.display());
        // An example shows one thing, on one screen.
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.lines().count() <= 30, "{} is long", path.display());
        assert!(text.starts_with('#'), "{} does not say what it shows", path.display());
        let smaller = Override::from_argument("batch.size=2").unwrap();
        let config = Config::from_file(&path, &[smaller]).unwrap();
        assert_eq!(config.batch.size.get(), 2);
    }
    assert!(examples >= 8, "{examples} examples");
}
