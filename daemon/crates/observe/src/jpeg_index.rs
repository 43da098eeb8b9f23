//! What is learned of JPEG files, in figures.

use serde::{Deserialize, Serialize};

use super::units::format_bytes;

/// What is learned of a stream's JPEG files.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct JpegIndexReport {
    /// The file that keeps it; empty where none does.
    pub path: String,
    /// The images of the dataset.
    pub images: u64,
    /// Images of which something is known.
    pub known: u64,
    /// The file's size.
    pub bytes: u64,
    /// `dataset.jpeg_index_bytes`.
    pub limit_bytes: u64,
    /// Decodings of parts of JPEG files with what was learned before, since the start.
    pub decodes_with: u64,
    /// Such decodings without.
    pub decodes_without: u64,
    /// Records that were dropped because too many waited to be written; they are learned later.
    pub dropped: u64,
    /// Why nothing is learned, if so.
    pub off: Option<String>,
}

impl JpegIndexReport {
    /// In one line.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "figures")]
    pub fn line(&self) -> String {
        let mut line = String::new();
        if !self.path.is_empty() {
            let share = |part: u64, all: u64| 100.0 * part as f64 / (all as f64).max(1.0);
            line = format!(
                "{} of {} images known ({:.0} %) in {}",
                self.known,
                self.images,
                share(self.known, self.images).min(100.0),
                format_bytes(self.bytes),
            );
            let decodes = self.decodes_with + self.decodes_without;
            if decodes > 0 {
                let with = share(self.decodes_with, decodes);
                line.push_str(&format!(", used by {with:.0} % of the decodings since the start"));
            }
        }
        if let Some(why) = &self.off {
            let gap = if line.is_empty() { "" } else { "; " };
            line.push_str(&format!("{gap}nothing is learned: {why}"));
        }
        line
    }
}
