//! CPU isolation as reports carry it: which measures are in force, which are unavailable, and the remedy.

use serde::{Deserialize, Serialize};

/// One measure that isolates the trainer from the daemon, as `stats` and `check` show it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IsolationItem {
    /// `class`, `group`, `cores`, `limit`, `quota`, `second-group` or `huge-pages`.
    pub name: String,
    /// Whether the measure is in force.
    pub in_force: bool,
    /// Its state, as a sentence.
    pub state: String,
    /// What the user can change, where that helps.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub remedy: Option<String>,
}

impl IsolationItem {
    /// A measure in force.
    pub fn in_force(name: &str, state: impl Into<String>) -> Self {
        Self { name: name.to_owned(), in_force: true, state: state.into(), remedy: None }
    }

    /// A measure that the machine or the configuration does not allow.
    pub fn unavailable(name: &str, state: impl Into<String>, remedy: impl Into<String>) -> Self {
        let remedy = Some(remedy.into());
        Self { name: name.to_owned(), in_force: false, state: state.into(), remedy }
    }
}
