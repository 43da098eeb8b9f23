//! A configuration from the TOML of `[[stage]]` and `[output]` alone, for tests and examples of the operations.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use forebay_protocol::tensor::DType;

use crate::config::{
    BadSampleBudget, BatchConfig, Concurrency, Config, CpuConfig, CpuPolicy, DatasetConfig,
    ErrorsConfig, FetchConfig, ImageLayout, Last, ListenConfig, Located, OnBadSample, OrderConfig,
    OutputConfig, Place, RingConfig, StageConfig, Value,
};

fn place() -> Place {
    Place { source: Arc::from("test.toml"), line: 0 }
}

fn located(value: &toml::Value) -> Located {
    let value = match value {
        toml::Value::Boolean(value) => Value::Bool(*value),
        toml::Value::Integer(value) => Value::Integer(*value),
        toml::Value::Float(value) => Value::Float(*value),
        toml::Value::String(value) => Value::String(value.clone()),
        toml::Value::Datetime(value) => Value::String(value.to_string()),
        toml::Value::Array(items) => Value::Array(items.iter().map(located).collect()),
        toml::Value::Table(entries) => {
            Value::Table(entries.iter().map(|(key, value)| (key.clone(), located(value))).collect())
        }
    };
    Located { value, place: place() }
}

fn numbers(value: Option<&toml::Value>) -> Option<Vec<f64>> {
    value?.as_array().map(|items| items.iter().filter_map(toml::Value::as_float).collect())
}

fn output(field: &str, table: &toml::Value) -> OutputConfig {
    let text = |key: &str| table.get(key).and_then(toml::Value::as_str);
    OutputConfig {
        field: field.to_owned(),
        dtype: text("dtype").map(|name| DType::from_name(name).expect("a type's name")),
        layout: text("layout").map(|name| match name {
            "NHWC" => ImageLayout::Nhwc,
            _ => ImageLayout::Nchw,
        }),
        mean: numbers(table.get("mean")),
        std: numbers(table.get("std")),
        ragged_max_bytes: table
            .get("max_bytes")
            .and_then(toml::Value::as_integer)
            .and_then(|bytes| u64::try_from(bytes).ok()),
        compact: false,
        place: place(),
    }
}

/// The configuration; everything but stages and output has a stand-in.
///
/// # Panics
/// When the text is not TOML.
pub(crate) fn plain_config(text: &str) -> Config {
    let root: toml::Table = toml::from_str(text).expect("TOML");
    let stages = root
        .get("stage")
        .and_then(toml::Value::as_array)
        .map_or(&[][..], Vec::as_slice)
        .iter()
        .enumerate()
        .map(|(index, stage)| StageConfig {
            name: format!("stage-{index}"),
            concurrency: Concurrency::Auto,
            operations: stage
                .get("operations")
                .and_then(toml::Value::as_array)
                .map_or(&[][..], Vec::as_slice)
                .iter()
                .map(located)
                .collect(),
        })
        .collect();
    let outputs = root.get("output").and_then(toml::Value::as_table);
    Config {
        name: "test".to_owned(),
        source: "test.toml".to_owned(),
        dataset: DatasetConfig {
            format: "test".to_owned(),
            path: PathBuf::from("/"),
            classes: None,
            ids: None,
            limit: None,
            index: None,
        },
        order: OrderConfig { seed: 0, shuffle: true, epochs: None },
        batch: BatchConfig { size: NonZeroU32::MIN, last: Last::Drop },
        fetch: FetchConfig { concurrency: NonZeroU32::MIN },
        stages,
        output: outputs
            .map(|table| table.iter().map(|(field, table)| output(field, table)).collect())
            .unwrap_or_default(),
        ring: RingConfig { slots: 8, hold: 6, memory_bytes: 1 << 31, memory_place: place() },
        errors: ErrorsConfig {
            on_bad_sample: OnBadSample::Fail,
            budget: BadSampleBudget::Count(1),
        },
        cpu: CpuConfig { cores: None, policy: CpuPolicy::Normal, nice: 0 },
        listen: ListenConfig {
            socket: None,
            allow_uids: Vec::new(),
            linger: Duration::from_secs(5),
            max_sessions: 1,
        },
    }
}
