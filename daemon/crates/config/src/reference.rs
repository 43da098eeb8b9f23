//! Generates documentation of the keys: the tables of docs/reference/config*.md, and a JSON schema for editors.
//!
//! Both are derived from the tables of this crate and of formats and operations. The text between the tables is written
//! by hand.

use serde_json::{Map, Value as Json, json};

use crate::config::TABLES;
use forebay_keys::{Key, KeyDefault, Table};

/// The tables of other crates.
#[derive(Debug)]
pub struct Reference {
    /// Names of formats with keys in `[dataset]`.
    pub formats: Vec<(&'static str, Table)>,
    /// The keys of `[storage]`, where the program reads behind URLs.
    pub storage: Option<Table>,
    /// The arguments of operations; the path is the operation's name.
    pub operations: Vec<Table>,
    /// The arguments of operations on complete batches.
    pub batch_operations: Vec<Table>,
}

impl Reference {
    /// Replaces the tables of a document. A table follows a line such as `<!-- keys: ring -->`; there are also `<!--
    /// keys: formats -->`, `<!-- keys: operations -->`, `<!-- keys: text operations -->`, `<!--
    /// keys: sound and video operations -->` and `<!-- keys: batch operations -->`.
    ///
    /// # Errors
    /// A table has no such line; the missing line.
    pub fn markdown(&self, document: &str) -> Result<String, String> {
        let of_page = |page: &str| {
            let is_there = |table: &&Table| page_of(table.path) == page;
            operation_rows(self.operations.iter().filter(is_there))
        };
        let mut parts = vec![
            ("formats", self.format_rows()),
            ("operations", of_page("operations")),
            ("text operations", of_page("text operations")),
            ("sound and video operations", of_page("sound and video operations")),
            ("batch operations", operation_rows(&self.batch_operations)),
        ];
        for table in TABLES.into_iter().chain(self.storage) {
            let name = if table.path.is_empty() { "top level" } else { table.path };
            let rows = table.keys.iter().map(|key| row(&path_of(&table, key), key, key.words));
            parts.push((name, format!("{HEAD}{}", rows.collect::<String>())));
        }
        let mut text = document.to_owned();
        for (name, rows) in parts {
            let marker = format!("<!-- keys: {name} -->\n");
            let Some((before, after)) = text.split_once(&marker) else {
                return Err(marker);
            };
            let after: String =
                after.split_inclusive('\n').skip_while(|line| line.starts_with('|')).collect();
            text = format!("{before}{marker}{rows}{after}");
        }
        Ok(text)
    }

    /// One row per key, which several formats may have.
    fn format_rows(&self) -> String {
        let mut rows: Vec<(String, &Key, Vec<String>)> = Vec::new();
        for (format, table) in &self.formats {
            for key in table.keys {
                let path = path_of(table, key);
                let name = format!("`{format}`");
                match rows
                    .iter_mut()
                    .find(|(known, other, _)| *known == path && other.words == key.words)
                {
                    Some((_, _, formats)) => formats.push(name),
                    None => rows.push((path, key, vec![name])),
                }
            }
        }
        let rows = rows.iter().map(|(path, key, formats)| {
            row(path, key, &format!("{}: {}", formats.join(", "), key.words))
        });
        format!("{HEAD}{}", rows.collect::<String>())
    }

    /// A JSON schema (draft 7) of the configuration file.
    pub fn schema(&self) -> Json {
        let mut sections = Map::new();
        for table in TABLES.into_iter().chain(self.storage) {
            let mut keys = properties(&table);
            match table.path {
                "" => sections.append(&mut keys),
                "stage" => {
                    let stage = json!({ "type": "array", "items": object(&table, keys) });
                    sections.insert("stage".to_owned(), stage);
                }
                // Has the same keys as other stages.
                "stage.fetch" => {}
                "output.FIELD" => {
                    let field = object(&table, keys);
                    let output = json!({ "type": "object", "additionalProperties": field });
                    sections.insert("output".to_owned(), output);
                }
                path => {
                    if path == "dataset" {
                        for (_, own) in &self.formats {
                            // A format's keys are in `[dataset]`, or in a sub-table of it.
                            match own.path.strip_prefix("dataset.") {
                                Some(name) => {
                                    keys.insert(name.to_owned(), object(own, properties(own)));
                                }
                                None => keys.extend(properties(own)),
                            }
                        }
                        let mut names: Vec<_> =
                            self.formats.iter().map(|(name, _)| *name).collect();
                        // A format with keys in two tables is there twice.
                        let mut known = std::collections::HashSet::new();
                        names.retain(|name| known.insert(*name));
                        keys["format"]["anyOf"] = json!([{ "enum": names }, variable()]);
                    }
                    let mut section = object(&table, keys);
                    if path == "dataset" {
                        let mut item = section.clone();
                        if let Some(storage) = &self.storage {
                            item["properties"]["storage"] = object(storage, properties(storage));
                        }
                        let list = json!({ "type": "array", "items": item });
                        section = json!({ "anyOf": [section, list] });
                    }
                    sections.insert(path.to_owned(), section);
                }
            }
        }
        let one_of = |operations: &[Table]| -> Json {
            json!({ "oneOf": operations.iter().map(operation).collect::<Vec<_>>() })
        };
        json!({
            "$schema": "http://json-schema.org/draft-07/schema#",
            "title": "A stream of Forebay",
            "type": "object",
            "properties": sections,
            "additionalProperties": false,
            "definitions": {
                "operation": one_of(&self.operations),
                "batch_operation": one_of(&self.batch_operations),
            },
        })
    }
}

const HEAD: &str = "| key | type | unit | default | meaning |\n|---|---|---|---|---|\n";

/// The page that an operation is on, by the marker of its table.
fn page_of(operation: &str) -> &'static str {
    match operation {
        "image-patches" | "tokenize" | "chat" => "text operations",
        "decode-video" | "spectrogram" | "mel-spectrogram" => "sound and video operations",
        _ => "operations",
    }
}

fn operation_rows<'t>(operations: impl IntoIterator<Item = &'t Table>) -> String {
    let mut text =
        "| `op` | argument | type | default | meaning |\n|---|---|---|---|---|\n".to_owned();
    for table in operations {
        text.push_str(&format!("| `{}` | | | | {} |\n", table.path, table.words));
        for key in table.keys {
            let (name, default) = (key.name, key.default_words());
            text.push_str(&format!("| | `{name}` | {} | {default} | {} |\n", key.kind, key.words));
        }
    }
    text
}

fn path_of(table: &Table, key: &Key) -> String {
    if table.path.is_empty() { key.name.to_owned() } else { format!("{}.{}", table.path, key.name) }
}

fn row(path: &str, key: &Key, words: &str) -> String {
    let unit = if key.unit.is_empty() { String::new() } else { format!("{} ", key.unit) };
    format!("| `{path}` | {} | {unit}| {} | {words} |\n", key.kind, key.default_words())
}

/// Keeps the texts of Markdown's links, which lead nowhere in an editor.
fn without_links(words: &str) -> String {
    let mut rest = words;
    let mut text = String::new();
    while let Some(middle) = rest.find("](")
        && let Some(start) = rest[..middle].rfind('[')
        && let Some(end) = rest[middle..].find(')')
    {
        text.push_str(&rest[..start]);
        text.push_str(&rest[start + 1..middle]);
        rest = &rest[middle + end + 1..];
    }
    text + rest
}

fn properties(table: &Table) -> Map<String, Json> {
    let property = |key: &Key| {
        let mut schema = or_variable((key.schema)());
        schema["description"] = without_links(key.words).into();
        if let Some(default) = key
            .default_value()
            .filter(|_| !matches!(key.default, KeyDefault::Value(_, words) if !words.is_empty()))
        {
            schema["default"] = default.to_json();
        }
        (key.name.to_owned(), schema)
    };
    table.keys.iter().map(property).collect()
}

/// A string with a variable, such as `"${CACHE:-/tmp}"`, whose value no editor knows.
fn variable() -> Json {
    json!({ "type": "string", "pattern": r"\$\{" })
}

/// The schema of values of which some are words, or strings of a pattern: a variable may replace them.
fn or_variable(mut schema: Json) -> Json {
    let has_form = |schema: &Json| schema.get("enum").is_some() || schema.get("pattern").is_some();
    if has_form(&schema) {
        return json!({ "anyOf": [schema, variable()] });
    }
    if let Some(items) = schema.get_mut("items") {
        *items = or_variable(items.take());
    }
    if let Some(Json::Array(forms)) = schema.get_mut("anyOf")
        && forms.iter().any(has_form)
    {
        forms.push(variable());
    }
    schema
}

/// No key is required here: a preset or an override may have it.
fn object(table: &Table, properties: Map<String, Json>) -> Json {
    json!({
        "description": without_links(table.words),
        "type": "object",
        "properties": properties,
        "additionalProperties": false,
    })
}

fn operation(table: &Table) -> Json {
    let mut keys = properties(table);
    keys.insert("op".to_owned(), json!({ "const": table.path }));
    let required = table.keys.iter().filter(|key| matches!(key.default, KeyDefault::Required(_)));
    let names: Vec<&str> = std::iter::once("op").chain(required.map(|key| key.name)).collect();
    let mut schema = object(table, keys);
    schema["required"] = json!(names);
    schema
}
