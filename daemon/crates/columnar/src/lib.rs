//! Where the values of columns are: Arrow streams, Parquet files and Lance files.
//!
//! A [`Reader`] gives a file's columns, and for each row the place of a value in the file, or the value itself if it is
//! short or cannot be read alone ([`Cell`]). [`encoding`] says what a value's bytes mean; the shards of MosaicML Streaming
//! and LitData have columns of the same encodings. [`features`] reads what Hugging Face's writers declare about columns.

#![forbid(unsafe_code)]

pub mod arrow;
mod cell;
mod column;
mod encoding;
mod features;
#[doc(hidden)]
pub mod fuzzing;
mod json;
pub mod lance;
mod lists;
mod names;
pub mod parquet;
pub mod protobuf;
mod reader;

pub use cell::{Cell, PackedCell};
pub use column::{Column, Inferred, TableColumn};
pub use encoding::{ArrayForm, Encoding, Number, check_length, dtype, lit_dtype, lit_tensor_dtype};
pub(crate) use features::{Feature, Features, HUGGINGFACE, SharedClasses};
pub(crate) use names::{MAX_COLUMNS, NameSizes};
pub use reader::{Reader, Reads, Visit};
