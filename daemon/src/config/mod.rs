//! From a TOML file, a dict and overrides to a resolved [`Config`].
//!
//! `parse` makes a tree of values that know their lines, `presets` and `overrides` lay trees over one another,
//! `expand` fills in environment variables, and `resolve` gives the keys their meaning. `docs/config.md` is the
//! reference that a test holds against the keys that are asked for here.

mod error;
mod expand;
mod fingerprint;
mod metrics_address;
mod model;
mod output;
mod overrides;
mod parse;
mod presets;
mod print;
mod resolve;
mod section;
mod stages;
mod value;
mod values;
mod words;

pub use error::{ConfigError, Place};
pub use model::{
    BadSampleBudget, BatchConfig, Concurrency, Config, Confinement, CpuConfig, CpuPolicy,
    DatasetConfig, ErrorsConfig, FetchConfig, FinishedOn, ImageLayout, KeyPlaces, Last, Limits,
    ListenConfig, MetricsFrom, OnBadSample, OrderConfig, OutputConfig, RingConfig, SecurityConfig,
    SessionConfig, StageConfig,
};
pub use overrides::Override;
pub use section::{FromValue, Section, nearest};
pub use value::{Located, Value};
pub use values::ByteSize;

#[cfg(test)]
mod asked_keys;
#[cfg(test)]
mod documentation_tests;
#[cfg(test)]
mod mistake_tests;
#[cfg(test)]
mod resolve_tests;
#[cfg(test)]
mod testing;
