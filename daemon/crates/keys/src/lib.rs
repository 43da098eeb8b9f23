//! Keys of a configuration.
//!
//! `parse` builds a tree of values with their lines, `expand` fills in environment variables, [`Section`] reads one
//! table of the tree, and [`keys!`] declares the keys of a table once: reading with located errors, the resolved
//! configuration, the reference in docs/reference/config*.md and the JSON schema derive from it. Formats, storages and operations
//! declare their keys with it; this crate depends on none of them.

#![forbid(unsafe_code)]

mod data_path;
mod error;
mod expand;
mod kind;
mod parse;
mod section;
mod table;
mod value;

pub use data_path::{DataPath, is_url};
pub use error::{ConfigError, SourceLocation};
pub use expand::{Environment, expand_all, expand_header};
pub use kind::{
    AtLeastOne, ByteSize, HeldSlots, Kind, LocalPath, Niceness, Sessions, Slots, SomeBytes,
    TimeSpan, TokenName, read_percent, write_percent,
};
pub use parse::{from_json, parse_toml, parse_toml_value};
pub use section::{Section, nearest, unknown_key};
pub use table::{Key, KeyDefault, Keys, Out, Table};
pub use value::{Located, Value, toml_key};

#[doc(hidden)]
pub use serde_json::{Value as Json, json};
