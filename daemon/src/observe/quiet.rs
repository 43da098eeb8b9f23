//! What keeps the daemon quiet beside the trainer: what is in force, what could not be had, and what would help.

use serde::{Deserialize, Serialize};

/// One means of being quiet, as `stats` and `check` show it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuietItem {
    /// `class`, `group`, `cores`, `limit`, `quota`, `second-group` or `huge-pages`.
    pub name: String,
    /// Whether it is as it should be.
    pub in_force: bool,
    /// How it is, as a sentence.
    pub state: String,
    /// What to do about it, where something can be done.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub remedy: Option<String>,
}

impl QuietItem {
    /// It is as it should be.
    pub(crate) fn held(name: &str, state: impl Into<String>) -> Self {
        Self { name: name.to_owned(), in_force: true, state: state.into(), remedy: None }
    }

    /// It could not be had.
    pub(crate) fn missed(name: &str, state: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            name: name.to_owned(),
            in_force: false,
            state: state.into(),
            remedy: Some(remedy.into()),
        }
    }
}
