//! Builds a resolved [`Config`] from a TOML file, a dict and overrides.
//!
//! The crate `keys` builds a tree of values with their lines; `presets` and `overrides` merge trees, and `config` reads the
//! result by tables of keys ([`keys!`](forebay_keys::keys)). The resolved configuration, docs/reference/config*.md and the JSON schema
//! (`reference`) derive from the same tables. Formats and operations own the tables of their keys; this crate depends on
//! none of them.

#![forbid(unsafe_code)]

mod buckets;
mod by_class;
mod by_length;
mod config;
mod datasets;
mod draws;
mod fingerprint;
mod model;
mod object;
mod operations;
mod output;
mod overrides;
mod presets;
mod reference;
mod sample_command;
mod select_keys;
mod single_keys;
mod stages;
mod weight_steps;

pub use buckets::Bucket;
pub use by_class::GroupedBatches;
pub use by_length::{LengthBudget, LengthSource, LengthUnit};
pub use config::Config;
pub use draws::{DrawsConfig, weight_changes};
pub use model::{
    BatchConfig, CacheConfig, Confinement, CpuConfig, CpuPolicy, DatasetConfig, ErrorsConfig,
    FeedConfig, FeedersConfig, JpegIndexing, Last, Limits, ListenConfig, LocalWork, MetricsFrom,
    OnBadSample, OnUnreadable, OrderConfig, Pace, Pad, RingConfig, SecurityConfig, SessionConfig,
    ShareConfig, TooLong,
};
pub use object::{DatasetObject, OBJECT_TARGET};
pub use operations::{BatchOperations, Operations};
pub use output::{FinishedOn, ImageLayout, OutputConfig};
pub use overrides::Override;
pub use reference::Reference;
pub use select_keys::SplitKeys;
pub use single_keys::{BadSampleBudget, Concurrency, Shuffle, TlsPaths};
pub use stages::{
    Arguments as KeywordArguments, FetchConfig, PythonConfig, PythonTarget, StageConfig,
    WorkerDefaults,
};
pub use weight_steps::WeightSteps;

#[cfg(test)]
mod mistake_tests;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod plain_config;
#[cfg(test)]
mod resolve_tests;
#[cfg(test)]
mod testing;
