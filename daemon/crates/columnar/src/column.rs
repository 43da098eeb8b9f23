//! The columns of a file.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::Encoding;

/// A column.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Column {
    /// Its dotted name, including the enclosing structs.
    pub name: String,
    /// What a value's bytes mean.
    pub encoding: Encoding,
    /// The length of each value, if it is fixed and records do not contain it.
    pub bytes: Option<u64>,
}

/// A column of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableColumn {
    /// Its name and encoding.
    pub column: Column,
    /// Names of classes, for a column of class numbers.
    pub classes: Arc<[String]>,
    /// Whether the writer declared the type of its bytes.
    pub is_known: bool,
    /// Whether its values are paths of pictures that the file does not contain. The parent struct is the pictures'
    /// column.
    pub is_path: bool,
    /// Whether a table has a field of it if the configuration names none.
    pub inferred: Inferred,
}

/// Whether a table without `[dataset.fields]` has a field of a column. Columns that could not be read when such tables
/// were first opened stay left out, so that their batches stay the same.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Inferred {
    /// It has.
    #[default]
    Field,
    /// It has none, and a warning with this reason.
    LeftOut(String),
    /// It has none, and nothing is said of it: its parts are columns of their own.
    Unmentioned,
}

impl TableColumn {
    /// A column without declarations.
    #[must_use]
    pub fn new(name: &str, encoding: Encoding) -> Self {
        let column = Column { name: name.to_owned(), encoding, bytes: None };
        Self {
            column,
            classes: Arc::default(),
            is_known: false,
            is_path: false,
            inferred: Inferred::Field,
        }
    }
}
