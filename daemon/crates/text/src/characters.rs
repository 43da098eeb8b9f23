//! Characters that a vocabulary lists and its merges do not make.
//!
//! A byte-level vocabulary may have an entry for a character of several bytes although no sequence of merges leads from
//! its bytes to this entry; Command R+ has `👧`, which is not even spelled in the alphabet of bytes. Merging never gives such an entry, so the Python package does not
//! either. The pinned engine takes any entry of one character for reachable. Under another name, which no text has, it
//! merges as it should.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

/// The longest character in UTF-8, and so in characters of the byte-level alphabet.
const MAX_BYTES: usize = 4;

/// Renames the entries that merges do not make in the model of a canonical `tokenizer.json`; all ids stay as they are.
/// Returns how many it renamed.
pub(crate) fn hide_unreachable(tokenizer: &mut Value) -> usize {
    let added: HashSet<String> = list(tokenizer, "added_tokens")
        .filter_map(|token| Some(token.get("content")?.as_str()?.to_owned()))
        .collect();
    let Some(model) = tokenizer.get_mut("model") else { return 0 };
    let is = |model: &Value, key: &str| model.get(key).and_then(Value::as_bool) == Some(true);
    if !is(model, "byte_level") || is(model, "ignore_merges") {
        return 0;
    }
    let merges = Merges::of(model);
    let Some(vocabulary) = model.get_mut("vocab").and_then(Value::as_object_mut) else { return 0 };
    let is_unreachable =
        |token: &String| is_one_character(token) && !added.contains(token) && !merges.make(token);
    let unreachable: Vec<String> =
        vocabulary.keys().filter(|token| is_unreachable(token)).cloned().collect();
    for token in &unreachable {
        let Some(id) = vocabulary.remove(token) else { continue };
        // Begins with a byte that no character begins with.
        let mut name = format!("§{token}");
        while vocabulary.contains_key(&name) {
            name.insert(0, '§');
        }
        vocabulary.insert(name, id);
    }
    unreachable.len()
}

fn list<'v>(value: &'v Value, key: &str) -> impl Iterator<Item = &'v Value> {
    value.get(key).and_then(Value::as_array).into_iter().flatten()
}

/// Whether an entry in the byte-level alphabet is one character of several bytes.
fn is_one_character(token: &str) -> bool {
    // A character of the alphabet takes at most two bytes.
    if token.len() > 2 * MAX_BYTES {
        return false;
    }
    let bytes: Option<Vec<u8>> = token.chars().map(byte_of).collect();
    // An entry that is not spelled in the alphabet is taken for its own bytes.
    let bytes = bytes.unwrap_or_else(|| token.as_bytes().to_vec());
    bytes.len() > 1 && std::str::from_utf8(&bytes).is_ok_and(|text| text.chars().nth(1).is_none())
}

/// The byte that a character of the byte-level alphabet represents. Printable characters of Latin-1 represent themselves,
/// the 68 other bytes are U+0100 and up in order: `bytes_to_unicode` of GPT-2's encoder.
pub(crate) fn byte_of(character: char) -> Option<u8> {
    let is_printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    match u32::from(character) {
        code @ 0..=0xff => u8::try_from(code).ok().filter(|byte| is_printable(*byte)),
        code => (0..=u8::MAX)
            .filter(|byte| !is_printable(*byte))
            .nth(usize::try_from(code - 0x100).ok()?),
    }
}

/// The character of each byte in the byte-level alphabet.
pub(crate) fn alphabet() -> [char; 256] {
    let mut letters = [' '; 256];
    for letter in '!'..='\u{143}' {
        if let Some(byte) = byte_of(letter) {
            letters[usize::from(byte)] = letter;
        }
    }
    letters
}

/// The merges whose result can be one character, with their ranks.
struct Merges(HashMap<(String, String), usize>);

impl Merges {
    fn of(model: &Value) -> Self {
        let mut merges = HashMap::new();
        for (rank, merge) in list(model, "merges").enumerate() {
            let Some([left, right]) = merge.as_array().map(Vec::as_slice) else { continue };
            let (Some(left), Some(right)) = (left.as_str(), right.as_str()) else { continue };
            if left.len() + right.len() <= 2 * MAX_BYTES {
                merges.entry((left.to_owned(), right.to_owned())).or_insert(rank);
            }
        }
        Self(merges)
    }

    /// Whether merging the characters of an entry, the lowest rank and the leftmost pair first, gives the entry.
    fn make(&self, token: &str) -> bool {
        if !token.chars().all(|letter| byte_of(letter).is_some()) {
            return false;
        }
        let mut parts: Vec<String> = token.chars().map(String::from).collect();
        while parts.len() > 1 {
            let ranked = parts.windows(2).enumerate().filter_map(|(place, pair)| {
                let pair = (pair[0].clone(), pair[1].clone());
                Some((*self.0.get(&pair)?, place))
            });
            let Some((_, place)) = ranked.min() else { return false };
            let right = parts.remove(place + 1);
            parts[place].push_str(&right);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// `é` is the bytes C3 A9, which are `Ã` and `©` in the alphabet; `ñ` is `Ã` and `±`.
    fn tokenizer(ignore_merges: bool) -> Value {
        json!({
            "added_tokens": [{ "id": 7, "content": "Ã±" }],
            "model": {
                "byte_level": true,
                "ignore_merges": ignore_merges,
                "vocab": { "a": 0, "Ã": 1, "©": 2, "Ã©": 3, "Ã¨": 4, "aÃ¨": 5, "Ã±": 7, "Ġa": 8, "👧": 9 },
                "merges": [["Ã", "©"]],
            },
        })
    }

    #[test]
    fn characters_that_merges_do_not_make_are_renamed() {
        let mut value = tokenizer(false);
        assert_eq!(hide_unreachable(&mut value), 2);
        let mut expected = tokenizer(false);
        let vocabulary = expected["model"]["vocab"].as_object_mut().unwrap();
        vocabulary.remove("Ã¨");
        vocabulary.insert("§Ã¨".to_owned(), json!(4));
        vocabulary.remove("👧");
        vocabulary.insert("§👧".to_owned(), json!(9));
        assert_eq!(value, expected);
        assert_eq!(hide_unreachable(&mut tokenizer(true)), 0);
    }

    #[test]
    fn a_character_whose_bytes_merge_to_something_else_first_is_not_made() {
        // `€` is E2 82 AC: `â`, `Ĥ` and `¬`.
        let merges = |pairs: Value| Merges::of(&json!({ "merges": pairs }));
        assert!(merges(json!([["â", "Ĥ"], ["âĤ", "¬"]])).make("âĤ¬"));
        assert!(!merges(json!([["Ĥ", "¬"], ["â", "Ĥ"], ["âĤ", "¬"]])).make("âĤ¬"));
    }

    #[test]
    fn alphabet_is_that_of_gpt_2() {
        let bytes: HashSet<u8> = ('!'..='\u{143}').filter_map(byte_of).collect();
        assert_eq!(bytes.len(), 256);
        assert_eq!(['Ġ', 'Ċ', 'a', '¡', 'Ń'].map(byte_of), [32, 10, 97, 0xa1, 0xad].map(Some));
        assert_eq!(byte_of('中'), None);
        assert!((0..=255).all(|byte| byte_of(alphabet()[usize::from(byte)]) == Some(byte)));
    }
}
