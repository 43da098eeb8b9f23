//! Counts in messages: `1 shard`, `2 shards`.

use std::fmt::Display;

/// A number and the noun that it counts, in the plural unless the number is 1. `noun` is a regular English noun in the
/// singular, possibly with words before it, such as `work thread`.
#[must_use]
pub fn counted(count: impl Display, noun: &str) -> String {
    let count = count.to_string();
    if count == "1" {
        return format!("{count} {noun}");
    }
    let ends = |ends: &[&str]| ends.iter().any(|end| noun.ends_with(end));
    let is_hissed = ends(&["s", "x", "z", "ch", "sh"]) && !ends(&["epoch"]);
    match noun.strip_suffix('y') {
        Some(stem) if !stem.ends_with(['a', 'e', 'i', 'o', 'u']) => format!("{count} {stem}ies"),
        _ if is_hissed => format!("{count} {noun}es"),
        _ => format!("{count} {noun}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::counted;

    #[test]
    fn noun_is_plural_unless_there_is_one() {
        let all = [
            (0_u64, "sample"),
            (1, "sample"),
            (2, "batch"),
            (90, "epoch"),
            (21, "class"),
            (3, "entry"),
        ];
        let words = all.map(|(count, noun)| counted(count, noun));
        assert_eq!(
            words,
            ["0 samples", "1 sample", "2 batches", "90 epochs", "21 classes", "3 entries"]
        );
        assert_eq!(counted("1.0", "day"), "1.0 days");
    }
}
