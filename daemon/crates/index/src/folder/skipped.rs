//! Counts of the files that a scan skipped, by extension, for one summary instead of a line per file.

use std::collections::BTreeMap;

/// Extensions that are counted separately; the rest are counted together.
const MAX_EXTENSIONS: usize = 32;
/// Extensions that the summary lists.
const SPELT_OUT: usize = 5;

/// Counts of the files that the format does not read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Skipped {
    by_extension: BTreeMap<String, u64>,
    others: u64,
    outside_classes: u64,
}

impl Skipped {
    /// Counts a file by its extension: the name from its last dot. Hidden files are not counted, because they are not
    /// meant as samples.
    pub fn add(&mut self, name: &[u8]) {
        if name.starts_with(b".") {
            return;
        }
        let extension = name.iter().rposition(|byte| *byte == b'.').map(|dot| &name[dot..]);
        match extension {
            Some(extension) if extension.len() <= 12 => {
                let extension = String::from_utf8_lossy(extension).to_ascii_lowercase();
                self.add_many(extension, 1);
            }
            _ => self.others += 1,
        }
    }

    fn add_many(&mut self, extension: String, count: u64) {
        if self.by_extension.len() < MAX_EXTENSIONS || self.by_extension.contains_key(&extension) {
            *self.by_extension.entry(extension).or_default() += count;
        } else {
            self.others += count;
        }
    }

    /// Counts files with the format's extensions that are next to the class folders instead of in them.
    pub fn add_outside_classes(&mut self, count: u64) {
        self.outside_classes += count;
    }

    /// Adds another thread's counts.
    pub fn merge(&mut self, other: Self) {
        for (extension, count) in other.by_extension {
            self.add_many(extension, count);
        }
        self.others += other.others;
        self.outside_classes += other.outside_classes;
    }

    /// The number of skipped files.
    fn total(&self) -> u64 {
        self.by_extension.values().sum::<u64>() + self.others + self.outside_classes
    }

    /// One sentence; `None` if no files were skipped.
    #[must_use]
    pub fn summary(&self, extensions: &[&str]) -> Option<String> {
        if self.total() == 0 {
            return None;
        }
        let mut counts: Vec<_> = self.by_extension.iter().collect();
        counts.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        let (named, unnamed) = counts.split_at(counts.len().min(SPELT_OUT));
        let mut parts: Vec<_> =
            named.iter().map(|(extension, count)| format!("{count} {extension}")).collect();
        let others = self.others + unnamed.iter().map(|(_, count)| **count).sum::<u64>();
        if others > 0 {
            parts.push(format!("{others} others"));
        }
        if self.outside_classes > 0 {
            parts.push(format!("{} outside any class folder", self.outside_classes));
        }
        Some(format!(
            "skipped {} files that are not samples ({}); samples end in {} and lie in class folders where there are any",
            self.total(),
            parts.join(", "),
            extensions.join(" ")
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::Skipped;

    #[test]
    fn summary_counts_by_extension_most_frequent_first() {
        let mut skipped = Skipped::default();
        assert_eq!(skipped.summary(&[".jpg"]), None);
        for name in ["a.txt", "b.bmp", "c.BMP", "README"] {
            skipped.add(name.as_bytes());
        }
        let mut other = Skipped::default();
        other.add(b"d.bmp");
        other.add_outside_classes(2);
        skipped.merge(other);
        let summary = skipped.summary(&[".jpg", ".png"]).unwrap();
        assert!(
            summary.starts_with("skipped 7 files that are not samples (3 .bmp, 1 .txt, 1 others, 2 outside any class folder); samples end in .jpg .png"),
            "{summary}"
        );
    }

    #[test]
    fn counts_are_bounded_with_many_extensions() {
        let mut skipped = Skipped::default();
        for number in 0..1000 {
            skipped.add(format!("x.e{number}").as_bytes());
        }
        assert_eq!(skipped.total(), 1000);
        assert_eq!(skipped.by_extension.len(), super::MAX_EXTENSIONS);
    }
}
