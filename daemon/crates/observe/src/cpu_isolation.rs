//! CPU isolation in reports: the measures in force, the unavailable ones, and remedies.

use serde::{Deserialize, Serialize};

/// The item of the scheduling class.
const CLASS: &str = "class";
const IN_CLASS: &str = "work threads run in the class";

/// One measure that isolates the trainer from the daemon, as `stats` and `check` show it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IsolationItem {
    /// `class`, `group`, `cores`, `limit`, `quota`, `fallback-pool` or `huge-pages`.
    pub name: String,
    /// Whether the measure is in force.
    pub in_force: bool,
    /// Its state, as a sentence.
    pub state: String,
    /// What the user can change, if that helps.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub remedy: Option<String>,
}

impl IsolationItem {
    /// A measure in force.
    pub fn in_force(name: &str, state: impl Into<String>) -> Self {
        Self { name: name.to_owned(), in_force: true, state: state.into(), remedy: None }
    }

    /// The item of the work threads' scheduling class: its name, perhaps with a nice level.
    pub fn class_in_force(class: &str) -> Self {
        Self::in_force(CLASS, format!("{IN_CLASS} {class}"))
    }

    /// Whether the work threads run in the class `idle`, according to a report's items.
    pub(crate) fn is_idle(items: &[Self]) -> bool {
        let idle = format!("{IN_CLASS} idle");
        items.iter().any(|item| item.name == CLASS && item.state.ends_with(&idle))
    }

    /// A measure that the machine or the configuration does not allow.
    pub fn unavailable(name: &str, state: impl Into<String>, remedy: impl Into<String>) -> Self {
        let remedy = Some(remedy.into());
        Self { name: name.to_owned(), in_force: false, state: state.into(), remedy }
    }
}
