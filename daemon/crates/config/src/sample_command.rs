//! The command that repeats one sample of a configuration, for messages.

use crate::config::{Config, DICT};
use crate::overrides::is_override;
use crate::stages::PythonConfig;
use forebay_keys::{Key, Keys};
use forebay_keys::{Located, Value, toml_key};

/// The tables that affect a sample. `[storage]` is excluded: its expanded variables may be secret.
const TABLES: [&str; 5] = ["preset", "dataset", "limits", "stage", "output"];

impl Config {
    /// `forebay run-sample` with this configuration's file and its overrides; for a Dataset object of the trainer,
    /// which other processes do not have, the expression that calls it.
    pub fn sample_command(&self, sample: u64, epoch: u64) -> String {
        if self.dataset.object.is_some() {
            return format!(
                "dataset[{sample}]    # in Python, with the Dataset of the loader; its generators are not seeded there"
            );
        }
        let is_dict = self.source == DICT;
        let source = if is_dict { "CONFIG.toml" } else { &self.source };
        let mut words = format!("forebay run-sample {} {sample} --epoch {epoch}", quoted(source));
        let mut set = Vec::new();
        if let Value::Table(entries) = &self.tree.value {
            for (key, value) in entries.iter().filter(|(key, _)| TABLES.contains(&&**key)) {
                collect(value, key, &mut set);
            }
        }
        let order = self.tree.get("order");
        for key in ["seed", "samples_per_epoch", "weights", "balance", "group"] {
            if let Some(value) = order.and_then(|order| order.get(key)) {
                collect(value, &format!("order.{key}"), &mut set);
            }
        }
        if self.stages.iter().any(|stage| stage.python.is_some()) {
            set.extend(self.interpreter_keys());
        }
        for setting in &set {
            words.push_str(&format!(" --set {}", quoted(setting)));
        }
        if is_dict {
            words.push_str(" (CONFIG.toml: a file with the keys of the dict)");
        }
        words
    }

    /// The interpreter and the script, if they are not the defaults. A Python trainer's `sys.path` is left out: it is
    /// long, and most of it is the interpreter's.
    fn interpreter_keys(&self) -> impl Iterator<Item = String> {
        let is_default = |name: &str, value: &Value| {
            let key = PythonConfig::TABLE.keys.iter().find(|key| key.name == name);
            key.and_then(Key::default_value).as_ref() == Some(value)
        };
        let keys = self.python.entries().into_iter();
        keys.filter(|(key, _)| matches!(*key, "interpreter" | "main"))
            .filter(move |(key, value)| !is_default(key, value))
            .map(|(key, value)| format!("python.{key}={}", argument(&value)))
    }
}

/// The overridden keys below a value, as arguments of `--set`.
fn collect(located: &Located, path: &str, set: &mut Vec<String>) {
    match &located.value {
        Value::Table(entries) => {
            for (key, below) in entries {
                collect(below, &format!("{path}.{}", toml_key(key)), set);
            }
        }
        // An array that was overridden as a whole is one value; in an array of the file, elements were set.
        Value::Array(items) if !is_override(located) || path == "stage" => {
            for (place, item) in items.iter().enumerate() {
                let Value::Table(entries) = &item.value else { continue };
                let label = ["name", "op"].iter().find_map(|key| item.get(key)?.value.as_text());
                let step = label.map_or_else(|| place.to_string(), toml_key);
                for (key, below) in entries.iter().filter(|(key, _)| key != "name" && key != "op") {
                    collect(below, &format!("{path}.{step}.{}", toml_key(key)), set);
                }
            }
        }
        value if is_override(located) => set.push(format!("{path}={}", argument(value))),
        _ => {}
    }
}

/// A value of `--set`: text that is not another TOML value needs no quotes.
fn argument(value: &Value) -> String {
    match value {
        Value::String(text)
            if text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '/')
                && text.chars().all(is_plain)
                && !matches!(&**text, "true" | "false" | "inf" | "nan") =>
        {
            text.clone()
        }
        value => value.to_toml(),
    }
}

fn is_plain(character: char) -> bool {
    character.is_ascii_alphanumeric() || "_./:-".contains(character)
}

/// A word for a shell.
fn quoted(word: &str) -> String {
    let is_word = |character| is_plain(character) || "=,@%+".contains(character);
    if !word.is_empty() && word.chars().all(is_word) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::{Config, Override};

    const FILE: &str = r#"
        preset = "imagenet-train"
        dataset = { path = "images" }
        batch = { size = 4 }
    "#;

    fn overrides(json: &serde_json::Value) -> Vec<Override> {
        Override::from_json(json).unwrap()
    }

    #[test]
    fn command_contains_the_overrides_that_affect_a_sample() {
        let set = serde_json::json!({
            "order.seed": 7,
            "batch.size": 64,
            "stage.augment.python": "my.transforms:Augment",
            "stage.augment.arguments": { "sizes": [3, 4.5], "what": "it's" },
            "stage.preprocess.operations.random-resized-crop.size": 32,
            "output.image.layout": "NHWC",
            "python.interpreter": "/venv/bin/python",
            "python.path": ["/a", "/b"],
            "python.main": "/home/me/my train.py",
        });
        let config =
            Config::from_text("train.toml", Path::new("/base"), FILE, &overrides(&set)).unwrap();
        let command = config.sample_command(17, 2);
        assert_eq!(
            command,
            "forebay run-sample train.toml 17 --epoch 2 \
             --set stage.preprocess.operations.random-resized-crop.size=32 \
             --set stage.augment.python=my.transforms:Augment \
             --set 'stage.augment.arguments.sizes=[3, 4.5]' \
             --set 'stage.augment.arguments.what=\"it'\\''s\"' \
             --set output.image.layout=NHWC \
             --set order.seed=7 \
             --set python.interpreter=/venv/bin/python \
             --set 'python.main=\"/home/me/my train.py\"'"
        );
        // Its arguments produce the same samples.
        let arguments = command.split(" --set ").skip(1).map(|word| {
            let word =
                word.strip_prefix('\'').and_then(|word| word.strip_suffix('\'')).unwrap_or(word);
            Override::from_argument(&word.replace(r"'\''", "'")).unwrap()
        });
        let again = Config::from_text(
            "train.toml",
            Path::new("/base"),
            FILE,
            &arguments.collect::<Vec<_>>(),
        )
        .unwrap();
        assert_eq!(again.fingerprint([], []), config.fingerprint([], []));
        assert_eq!(again.python.main, config.python.main);
    }

    #[test]
    fn dict_must_be_written_to_a_file() {
        let dict = serde_json::json!({
            "preset": "imagenet-train",
            "dataset": { "path": "images" },
            "batch": { "size": 4 },
        });
        let config = Config::from_json("x", Path::new("/base"), &dict, &[]).unwrap();
        let command = config.sample_command(3, 0);
        assert_eq!(
            command,
            "forebay run-sample CONFIG.toml 3 --epoch 0 (CONFIG.toml: a file with the keys of the dict)"
        );
    }
}
