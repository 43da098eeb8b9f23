//! A summary of the classes, for a user to check.

use std::fmt;

/// The number of classes, the first and the last one, and, if the index has the labels, the smallest and the largest
/// class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassSummary {
    /// The number of classes.
    pub count: usize,
    /// The class of label 0.
    pub first: String,
    /// The class of the highest label.
    pub last: String,
    /// The smallest and the largest number of samples per class, each with the first such class; `None` if only a
    /// sample's bytes determine its label.
    pub sizes: Option<[(u64, String); 2]>,
}

impl ClassSummary {
    /// Summarizes the names, in label order; `None` if there are none.
    #[must_use]
    pub fn of_names(names: &[String]) -> Option<Self> {
        let (first, last) = (shown(names.first()?), shown(names.last()?));
        Some(Self { count: names.len(), first, last, sizes: None })
    }
}

impl fmt::Display for ClassSummary {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { count, first, last, sizes } = self;
        match count {
            1 => write!(formatter, "1, {first}")?,
            count => write!(formatter, "{count}, {first} to {last}")?,
        }
        let Some([least, greatest]) = sizes else { return Ok(()) };
        formatter.write_str(", of ")?;
        if least.0 == greatest.0 {
            let each = if *count == 1 { "" } else { " each" };
            return write!(formatter, "{} samples{each}", least.0);
        }
        write!(formatter, "{} ({}) to {} ({}) samples", least.0, least.1, greatest.0, greatest.1)
    }
}

/// A name with control characters and quotes escaped.
#[must_use]
pub fn shown(name: &str) -> String {
    name.escape_debug().to_string()
}
