//! Metrics of the index of JPEG files.

use serde::{Deserialize, Serialize};

use super::units::format_bytes;

/// Metrics of a stream's index of JPEG files.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct JpegIndexReport {
    /// The index file; empty if there is none.
    pub path: String,
    /// The number of images in the dataset.
    pub images: u64,
    /// The number of images in the index.
    pub known: u64,
    /// The file's size.
    pub bytes: u64,
    /// `dataset.jpeg_index_bytes`.
    pub limit_bytes: u64,
    /// Partial decodings of JPEG files that used the index, since the start.
    pub decodes_with: u64,
    /// Partial decodings without the index, since the start.
    pub decodes_without: u64,
    /// Records dropped because the write queue was full; later decodings provide them.
    pub dropped: u64,
    /// Why the index is disabled, if it is.
    pub off: Option<String>,
}

impl JpegIndexReport {
    /// All metrics as one line.
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
