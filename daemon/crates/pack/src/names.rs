//! The names of samples in a result.

/// What becomes of the samples' names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Names {
    /// They are kept: as keys of archives, or as the column [`KEY`].
    Keep,
    /// They are dropped, and keys of archives are the samples' numbers.
    Drop,
}

/// The column of names in a table.
pub(crate) const KEY: &str = "__key__";
/// Separates a key from the number that distinguishes it from the key before it. No other key has this character.
const DISTINCT: char = '~';

/// A name as text.
pub(crate) fn text(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

/// The key of a sample without a name.
pub(crate) fn number(id: u64) -> String {
    format!("{id:09}")
}

/// A sample's key in an archive, where consecutive members with equal keys are one sample. `before`: the name of the
/// sample before it.
pub(crate) fn key(id: u64, name: &[u8], before: Option<&[u8]>) -> String {
    let key = plain_key(name);
    match before {
        Some(before) if plain_key(before) == key => format!("{key}{DISTINCT}{id}"),
        _ => key,
    }
}

/// The name without its extension, in characters that archives and shells take: a key has no dot after its last slash, and
/// leads to no other folder.
fn plain_key(name: &[u8]) -> String {
    let text = text(name);
    let plain = |character: char| match character {
        '\u{fffd}' | ':' | DISTINCT => '_',
        character if character.is_control() => '_',
        character => character,
    };
    let mut parts: Vec<String> = text
        .split('/')
        .filter(|part| !matches!(*part, "" | "." | ".."))
        .map(|part| part.chars().map(plain).collect())
        .collect();
    let last = parts.pop().unwrap_or_default();
    // A row of a list is named `LIST.csv:17`.
    let is_row = text.rsplit('/').next().is_some_and(|last| last.contains(':'));
    let stem = last.rsplit_once('.').filter(|_| !is_row);
    let stem = stem.map_or(last.as_str(), |(stem, _)| stem);
    parts.push(if stem.is_empty() { "_".to_owned() } else { stem.replace('.', "_") });
    let first = &mut parts[0];
    // webdataset skips members with such names.
    if first.len() >= 4 && first.starts_with("__") && first.ends_with("__") {
        first.insert(0, 'x');
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_no_dot_in_their_last_part_and_stay_below_the_folder() {
        for (name, expected) in [
            (&b"n01/img.1.JPEG"[..], "n01/img_1"),
            (b"train-000.tar/000017", "train-000.tar/000017"),
            (b"/data/../a.jpg", "data/a"),
            (b".hidden", "_"),
            (b"lists/rows.csv:17", "lists/rows_csv_17"),
            (b"", "_"),
            (b"__meta__/a.jpg", "x__meta__/a"),
            (b"a\nb~\xff.png", "a_b__"),
            (b"_/b.png", "_/b"),
        ] {
            assert_eq!(plain_key(name), expected);
        }
    }

    #[test]
    fn neighbours_have_different_keys() {
        let names: [&[u8]; 5] = [b"a.jpg", b"a.png", b"a.webp", b"a~2.jpg", b"a_2.jpg"];
        let keys: Vec<_> = (0..names.len())
            .map(|id| {
                let before = id.checked_sub(1).map(|before| names[before]);
                key(id as u64, names[id], before)
            })
            .collect();
        assert_eq!(keys, ["a", "a~1", "a~2", "a_2", "a_2~4"]);
    }
}
