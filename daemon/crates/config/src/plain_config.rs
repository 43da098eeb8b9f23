//! A configuration from the TOML of `[[stage]]`, `[output]` and `batch.operations` only, for tests and examples of the
//! operations.

use std::path::Path;

use serde_json::{Value, json};

use crate::Config;

/// The configuration; stages without a name get one, dataset and batch are placeholders.
///
/// # Panics
/// The text is not TOML, or not a configuration.
pub fn plain_config(text: &str) -> Config {
    let root: toml::Table = toml::from_str(text).expect("TOML");
    let mut dict = serde_json::to_value(root).expect("TOML is no richer than JSON here");
    dict["dataset"] = json!({ "format": "npy", "path": "/" });
    dict["batch"]["size"] = json!(1);
    let stages = dict.get_mut("stage").and_then(Value::as_array_mut);
    for (index, stage) in stages.into_iter().flatten().enumerate() {
        if stage.get("name").is_none() {
            stage["name"] = json!(format!("stage-{index}"));
        }
    }
    Config::from_json("test", Path::new("/"), &dict, &[]).expect("a configuration")
}
