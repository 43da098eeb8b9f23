//! A summary of the classes, for a user to check.

use forebay_protocol::counted::counted;
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

    /// Summarizes the names and the number of samples of each, in label order; `None` if there are none.
    #[must_use]
    pub fn of_counts(names: &[String], counts: &[u64]) -> Option<Self> {
        let named = || counts.iter().copied().zip(names);
        let least = named().min_by_key(|(samples, _)| *samples)?;
        // Reversed, because `max_by_key` returns the last of equal elements.
        let greatest = named().rev().max_by_key(|(samples, _)| *samples)?;
        let sizes = [least, greatest].map(|(samples, name)| (samples, shown(name)));
        Some(Self { sizes: Some(sizes), ..Self::of_names(names)? })
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
            return write!(formatter, "{}{each}", counted(least.0, "sample"));
        }
        write!(formatter, "{} ({}) to {} ({}) samples", least.0, least.1, greatest.0, greatest.1)
    }
}

/// A name with control characters and quotes escaped.
#[must_use]
pub fn shown(name: &str) -> String {
    name.escape_debug().to_string()
}
