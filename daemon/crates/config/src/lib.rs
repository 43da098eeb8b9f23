//! From a TOML file, a dict and overrides to a resolved [`Config`].
//!
//! `parse` makes a tree of values that know their lines, `presets` and `overrides` merge trees, `expand` fills in
//! environment variables, and `config` reads the result by tables of keys ([`keys!`]). From the same tables come the
//! resolved configuration, docs/config.md and the JSON schema (`reference`). A format and an operation own the tables
//! of their keys; this crate knows none of them.

#![forbid(unsafe_code)]

mod config;
mod data_path;
mod datasets;
mod draws;
mod error;
mod expand;
mod fingerprint;
mod kind;
mod model;
mod operations;
mod output;
mod overrides;
mod parse;
mod presets;
mod reference;
mod sample_command;
mod section;
mod single_keys;
mod stages;
mod table;
mod value;
mod weight_steps;

pub use config::Config;
pub use data_path::{DataPath, is_url};
pub use draws::{DrawsConfig, weight_changes};
pub use error::{ConfigError, SourceLocation};
pub use expand::expand_header;
pub use kind::{AtLeastOne, ByteSize, Kind, LocalPath, SomeBytes, TimeSpan};
pub use model::{
    BatchConfig, CacheConfig, Confinement, CpuConfig, CpuPolicy, DatasetConfig, ErrorsConfig,
    JpegIndexing, Last, Limits, ListenConfig, MetricsFrom, OnBadSample, OnUnreadable, OrderConfig,
    RingConfig, SecurityConfig, SessionConfig,
};
pub use operations::{BatchOperations, Operations};
pub use output::{FinishedOn, ImageLayout, OutputConfig};
pub use overrides::Override;
pub use reference::Reference;
pub use section::{Section, nearest};
pub use single_keys::{BadSampleBudget, Concurrency, Shuffle};
pub use stages::{
    Arguments as KeywordArguments, FetchConfig, PythonConfig, PythonTarget, StageConfig,
    WorkerDefaults,
};
pub use table::{Key, KeyDefault, Keys, Out, Table};
pub use value::{Located, Value, toml_key};
pub use weight_steps::WeightSteps;

#[doc(hidden)]
pub use serde_json::{Value as Json, json};

#[cfg(test)]
mod mistake_tests;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod plain_config;
#[cfg(test)]
mod resolve_tests;
#[cfg(test)]
mod testing;
