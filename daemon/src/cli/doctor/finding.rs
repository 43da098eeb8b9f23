//! A finding of `forebay doctor`.

use serde::Serialize;

/// The importance of a finding, the most important first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Weight {
    /// It does not work.
    Broken,
    /// High cost: throughput, or steps of the trainer.
    Costly,
    /// Low cost, or only sometimes.
    Minor,
    /// No change needed.
    Good,
}

/// The result of one check.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Finding {
    pub(super) weight: Weight,
    /// The subject of the check, in a word or two.
    pub(super) name: &'static str,
    /// Its state, with numbers.
    pub(super) state: String,
    /// What to change, if anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) remedy: Option<String>,
}

impl Finding {
    pub(super) fn good(name: &'static str, state: impl Into<String>) -> Self {
        Self { weight: Weight::Good, name, state: state.into(), remedy: None }
    }

    pub(super) fn new(
        weight: Weight,
        name: &'static str,
        state: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { weight, name, state: state.into(), remedy: Some(remedy.into()) }
    }
}
