//! What a dataset reports to a user: for `forebay check`, `forebay init` and the log of a start. Computed for each call.

use super::ClassSummary;

/// See the module's head.
#[derive(Debug, Clone, Default)]
pub struct Description {
    /// A summary of the classes; `None` if there are none.
    pub classes: Option<ClassSummary>,
    /// The hidden files that were excluded, as text.
    pub left_out: Option<String>,
    /// The definition of the fields in the syntax of `[dataset.fields]`; empty if the format does not use this table.
    pub field_rules: String,
    /// Tables of `[output]` that the data's own statistics propose, as TOML; empty if there are none.
    pub output: String,
    /// Further lines for `forebay check`: names and texts.
    pub notes: Vec<(&'static str, String)>,
}

impl Description {
    /// With the classes of these names, in label order.
    #[must_use]
    pub fn of_classes(names: &[String]) -> Self {
        Self { classes: ClassSummary::of_names(names), ..Self::default() }
    }
}
