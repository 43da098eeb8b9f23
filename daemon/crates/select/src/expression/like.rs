//! The patterns of `like`: `%` is any text, `_` one character, and `\` before one of the three makes it itself.

/// A part of a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Any,
    One,
    Is(char),
}

/// A pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pattern(Vec<Part>);

impl Pattern {
    pub(super) fn new(text: &str) -> Self {
        let mut parts = Vec::new();
        let mut characters = text.chars().peekable();
        while let Some(character) = characters.next() {
            let part = match character {
                '%' => Part::Any,
                '_' => Part::One,
                '\\' => {
                    let special = characters.next_if(|next| matches!(next, '%' | '_' | '\\'));
                    Part::Is(special.unwrap_or(character))
                }
                character => Part::Is(character),
            };
            // Several `%` are one, so that matching takes at most the product of the lengths.
            if part != Part::Any || parts.last() != Some(&Part::Any) {
                parts.push(part);
            }
        }
        Self(parts)
    }

    pub(super) fn matches(&self, text: &str) -> bool {
        let Self(parts) = self;
        let mut rest = text.chars();
        let mut at = 0;
        // After the last `%`: its place, and the text that it has not taken yet.
        let mut retry: Option<(usize, std::str::Chars<'_>)> = None;
        loop {
            let mut after = rest.clone();
            let next = after.next();
            match (parts.get(at), next) {
                (Some(Part::Any), _) => {
                    retry = Some((at, rest.clone()));
                    at += 1;
                    continue;
                }
                (None, None) => return true,
                (Some(Part::One), Some(_)) => {
                    (at, rest) = (at + 1, after);
                    continue;
                }
                (Some(Part::Is(wanted)), Some(found)) if *wanted == found => {
                    (at, rest) = (at + 1, after);
                    continue;
                }
                _ => {}
            }
            let Some((place, mut taken)) = retry.take() else { return false };
            if taken.next().is_none() {
                return false;
            }
            rest = taken.clone();
            at = place + 1;
            retry = Some((place, taken));
        }
    }
}

#[test]
fn patterns_match_whole_texts() {
    for (pattern, text, expected) in [
        ("", "", true),
        ("", "a", false),
        ("%", "", true),
        ("a%", "abc", true),
        ("a%", "ba", false),
        ("%c", "abc", true),
        ("%b%", "abc", true),
        ("a_c", "aäc", true),
        ("a_c", "ac", false),
        ("%a%b%", "xxaxxbxx", true),
        ("%ab", "aab", true),
        ("%aab", "aaab", true),
        ("100\\%", "100%", true),
        ("100\\%", "1000", false),
        ("a\\b", "a\\b", true),
        ("_%_", "a", false),
        ("_%_", "ab", true),
    ] {
        assert_eq!(Pattern::new(pattern).matches(text), expected, "{text:?} like {pattern:?}");
    }
    // Would take hours if `%` were tried independently of each other.
    assert!(!Pattern::new(&"%a".repeat(100)).matches(&("a".repeat(5000) + "b")));
}
