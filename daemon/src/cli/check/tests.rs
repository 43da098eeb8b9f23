//! The tables of docs/reference/config*.md match the keys, every example matches the schema, and every example round-trips.

use std::path::{Path, PathBuf};

use forebay_config::{Config, Override};
use serde_json::Value;

use super::reference;

/// If set to `1`, the test writes the tables of docs/reference/config*.md instead of comparing them.
const REWRITE: &str = "FOREBAY_REWRITE_DOCS";

/// Between the pages, while they are one text.
const BREAK: &str = "\u{c}";

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn examples() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(repository().join("configs")).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.filter(|path| path.extension().is_some_and(|extension| extension == "toml")).collect()
}

#[test]
fn reference_tables_match_the_keys() {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(repository().join("docs/reference"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("config"))
        .collect();
    paths.sort();
    let texts = paths.iter().map(|path| std::fs::read_to_string(path).unwrap());
    let text = texts.collect::<Vec<_>>().join(BREAK);
    let made = reference().markdown(&text).unwrap_or_else(|line| panic!("no page has {line}"));
    if std::env::var_os(REWRITE).is_some() {
        for (path, page) in paths.iter().zip(made.split(BREAK)) {
            std::fs::write(path, page).unwrap();
        }
    }
    let stale = text.lines().zip(made.lines()).find(|(old, new)| old != new);
    assert!(made == text, "run this test with {REWRITE}=1; the first difference: {stale:?}");
}

#[test]
fn every_example_round_trips() {
    assert!(examples().len() >= 8);
    for path in examples() {
        let config = Config::from_file(&path, &[]).unwrap_or_else(|error| panic!("{error}"));
        let text = config.resolved_toml();
        let again = Config::from_resolved("printed", "printed", &text);
        let again = again.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(again.resolved_toml(), text, "{}", path.display());
        // An example shows one topic and fits on a screen.
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.lines().count() <= 30, "{} is long", path.display());
        assert!(text.starts_with('#'), "{} does not say what it shows", path.display());
        // Batches by length have no size.
        if config.batch.budget.is_some() {
            continue;
        }
        let smaller = Override::from_argument("batch.size=2").unwrap();
        let config = Config::from_file(&path, &[smaller]).unwrap();
        assert_eq!(config.batch.size.get(), 2);
    }
}

/// The first violation of a schema, for the keywords that ours uses except patterns.
fn misfit(schema: &Value, value: &Value, root: &Value) -> Option<String> {
    let fits = |schema: &Value| misfit(schema, value, root).is_none();
    schema.as_object().unwrap().iter().find_map(|(keyword, wanted)| {
        let holds = match keyword.as_str() {
            "$schema" | "title" | "description" | "default" | "definitions" => true,
            // A Python test tries the others.
            "pattern" => wanted != r"\$\{" || value.as_str().is_none_or(|text| text.contains("${")),
            "$ref" => {
                let definition = wanted.as_str().unwrap().trim_start_matches('#');
                return misfit(root.pointer(definition).unwrap(), value, root);
            }
            "type" => match wanted.as_str().unwrap() {
                "object" => value.is_object(),
                "array" => value.is_array(),
                "string" => value.is_string(),
                "boolean" => value.is_boolean(),
                "integer" => value.is_i64(),
                "number" => value.is_number(),
                other => panic!("{other}"),
            },
            "const" => value == wanted,
            "enum" => wanted.as_array().unwrap().contains(value),
            "anyOf" => wanted.as_array().unwrap().iter().any(fits),
            "oneOf" => wanted.as_array().unwrap().iter().filter(|one| fits(one)).count() == 1,
            "minimum" => value.as_f64().is_none_or(|value| value >= wanted.as_f64().unwrap()),
            "maximum" => value.as_f64().is_none_or(|value| value <= wanted.as_f64().unwrap()),
            "minItems" => value.as_array().unwrap().len() as u64 >= wanted.as_u64().unwrap(),
            "maxItems" => value.as_array().unwrap().len() as u64 <= wanted.as_u64().unwrap(),
            "required" => wanted
                .as_array()
                .unwrap()
                .iter()
                .all(|key| value.get(key.as_str().unwrap()).is_some()),
            "items" => {
                let mut items = value.as_array().into_iter().flatten();
                let found = items.find_map(|item| misfit(wanted, item, root));
                return found.or_else(|| (!value.is_array()).then(|| format!("{value}: no array")));
            }
            "properties" => {
                let keys = value.as_object().into_iter().flatten();
                let found = keys
                    .filter_map(|(key, value)| Some((wanted.get(key)?, value)))
                    .find_map(|(schema, value)| misfit(schema, value, root));
                return found
                    .or_else(|| (!value.is_object()).then(|| format!("{value}: no table")));
            }
            "additionalProperties" => {
                let known = |key: &str| schema.get("properties")?.get(key);
                let keys = value.as_object().into_iter().flatten();
                let others = keys.filter(|(key, _)| known(key).is_none());
                let found = others.into_iter().find_map(|(key, value)| match wanted {
                    Value::Bool(false) => Some(format!("{key} is no property")),
                    schema => misfit(schema, value, root),
                });
                match found {
                    Some(found) => return Some(found),
                    None => true,
                }
            }
            "minProperties" | "maxProperties" => {
                let count = value.as_object().map_or(0, |entries| entries.len() as u64);
                let limit = wanted.as_u64().unwrap();
                if keyword == "minProperties" { count >= limit } else { count <= limit }
            }
            other => panic!("{other} is no keyword that this test knows"),
        };
        (!holds).then(|| format!("{keyword}: {wanted} does not hold for {value}"))
    })
}

#[test]
fn schema_accepts_every_example_and_refuses_mistakes() {
    let schema = reference().schema();
    assert!(!schema.to_string().contains("]("), "a link in a description");
    let read =
        |text: &str| serde_json::to_value(toml::from_str::<toml::Table>(text).unwrap()).unwrap();
    for path in examples() {
        let value = read(&std::fs::read_to_string(&path).unwrap());
        assert_eq!(misfit(&schema, &value, &schema), None, "{}", path.display());
    }
    for variable in [
        "batch.last = \"${LAST:-drop}\"",
        "ring.memory = \"${MEMORY}\"",
        "dataset.format = \"${A}\"",
    ] {
        assert_eq!(misfit(&schema, &read(variable), &schema), None, "{variable}");
    }
    for mistake in [
        "[batch]\nsise = 3",
        "[batch]\nsize = 0",
        "[batch]\nlast = \"dorp\"",
        "[dataset]\nformat = \"image-foldr\"",
        "[dataset]\nclasses = 3",
        "[[dataset]]\nrepeet = 3",
        "[[dataset]]\nrepeat = -1",
        "[ring]\nslots = 2",
        "[output]\nimage = { dtype = \"float\" }",
        "[[stage]]\nname = \"a\"\noperations = [{ op = \"decode-imge\" }]",
        "[[stage]]\nname = \"a\"\noperations = [{ op = \"resize\" }]",
        "[[stage]]\nname = \"a\"\noperations = [{ op = \"resize\", size = [1, 2, 3] }]",
    ] {
        assert!(misfit(&schema, &read(mistake), &schema).is_some(), "{mistake}");
    }
}
