//! From a TOML file, a dict and overrides to a resolved [`Config`].

mod error;
mod model;
mod section;
mod value;
mod values;

pub use error::{ConfigError, Place};
pub use model::{
    BadSampleBudget, BatchConfig, Concurrency, Config, CpuConfig, CpuPolicy, DatasetConfig,
    ErrorsConfig, FetchConfig, ImageLayout, Last, ListenConfig, OnBadSample, OrderConfig,
    OutputConfig, RingConfig, StageConfig,
};
pub use section::{FromValue, Section, nearest};
pub use value::{Located, Value};
pub use values::{ByteSize, ImageSize, MAX_IMAGE_SIDE, ResizeTarget};
