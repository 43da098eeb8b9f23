//! Which bytes of a text each of its tokens covers.
//!
//! The engine gives ids alone, so the text is spelled with them: each id's bytes must be the next of the text. That holds
//! for BPE, in the byte-level form and in SentencePiece's, of texts that the normaliser leaves as they are. A text for
//! which it does not hold is refused rather than labelled wrongly.

use std::collections::HashMap;
use std::ops::Range;

use serde_json::Value;
use unicode_normalization::{UnicodeNormalization as _, is_nfc};

use crate::characters::byte_of;

/// SentencePiece's mark of a space.
const SPACE: &str = "▁";

/// The bytes of an id.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Piece {
    bytes: Box<[u8]>,
    /// Set for an added token: whether it takes the white space at its left and at its right.
    added: Option<[bool; 2]>,
}

/// The space that a tokenizer puts before a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leading {
    /// None.
    Never,
    /// Unless the text begins with one.
    Unless,
    /// One more.
    Always,
}

/// The bytes of every id of a tokenizer.
#[derive(Debug)]
pub struct Spelling {
    pieces: HashMap<u32, Piece>,
    /// Whether texts are brought into the normal form C.
    composes: bool,
    /// Whether a space is put before a text and after an added token.
    leading: Leading,
}

impl Spelling {
    /// Of the contents of a `tokenizer.json`.
    ///
    /// # Errors
    /// The model is not BPE, or the normaliser changes texts in a way that cannot be followed.
    pub fn from_json(json: &[u8]) -> Result<Self, String> {
        let mut value: Value = serde_json::from_slice(json).map_err(|error| error.to_string())?;
        tokenizers::canonicalize_value(&mut value).map_err(|error| error.to_string())?;
        let model = value.get("model").unwrap_or(&Value::Null);
        if model.get("type").and_then(Value::as_str) != Some("BPE") {
            return Err("labels of conversations need a tokenizer with a BPE model".to_owned());
        }
        let is_byte_level = model.get("byte_level").and_then(Value::as_bool) == Some(true);
        let composes = normalizer(value.get("normalizer"))?;
        let mut pieces = HashMap::new();
        for (token, id) in model.get("vocab").and_then(Value::as_object).into_iter().flatten() {
            if let Some(id) = id.as_u64().and_then(|id| u32::try_from(id).ok()) {
                let bytes = if is_byte_level { byte_level(token) } else { plain(token) };
                pieces.insert(id, Piece { bytes, added: None });
            }
        }
        for token in value.get("added_tokens").and_then(Value::as_array).into_iter().flatten() {
            let id = token.get("id").and_then(Value::as_u64).and_then(|id| u32::try_from(id).ok());
            let (Some(id), Some(text)) = (id, token.get("content").and_then(Value::as_str)) else {
                continue;
            };
            let takes = ["lstrip", "rstrip"]
                .map(|side| token.get(side).and_then(Value::as_bool) == Some(true));
            pieces.insert(id, Piece { bytes: text.as_bytes().into(), added: Some(takes) });
        }
        let leading = match value.get("normalizer").map(Value::to_string) {
            _ if is_byte_level => Leading::Never,
            Some(normalizer) if normalizer.contains("\"Prepend\"") => Leading::Always,
            _ => Leading::Unless,
        };
        Ok(Self { pieces, composes, leading })
    }

    /// The text as the tokenizer normalises it; `said` are parts of it, which follow.
    ///
    /// # Errors
    /// A part begins or ends within a character of the normal form.
    pub fn normalize(&self, text: &mut String, said: &mut [Range<usize>]) -> Result<(), String> {
        if !self.composes || is_nfc(text) {
            return Ok(());
        }
        let (mut composed, mut place) = (String::with_capacity(text.len()), 0);
        for part in said {
            composed.extend(text[place..part.start].nfc());
            let start = composed.len();
            composed.extend(text[part.clone()].nfc());
            place = part.end;
            *part = start..composed.len();
        }
        composed.extend(text[place..].nfc());
        if !is_nfc(&composed) {
            return Err("what the model says begins or ends within a character".to_owned());
        }
        *text = composed;
        Ok(())
    }

    /// Calls `each` with the range of bytes that an id covers, for all ids in order.
    ///
    /// # Errors
    /// The ids do not spell the text.
    pub fn spell(
        &self,
        text: &str,
        ids: &[u32],
        mut each: impl FnMut(Range<usize>),
    ) -> Result<(), String> {
        let (mut place, mut after_added, mut may_skip) = (0, true, false);
        for id in ids {
            let Some(piece) = self.pieces.get(id) else {
                return Err(format!("the tokenizer has no token {id}"));
            };
            // An added token takes all white space at a side, or none.
            if may_skip || piece.added.is_some_and(|[left, _]| left) {
                place += space_at(text, place);
            }
            let rest = &text.as_bytes()[place..];
            let bytes: &[u8] = &piece.bytes;
            let leading = if after_added { self.leading } else { Leading::Never };
            let is_added = piece.added.is_some();
            let without =
                bytes.strip_prefix(b" ").filter(|_| leading != Leading::Never && !is_added);
            // The space of the tokenizer comes first.
            let whole = Some(bytes).filter(|_| leading != Leading::Always || without.is_none());
            let length = [whole, without]
                .into_iter()
                .flatten()
                .find(|bytes| rest.starts_with(bytes))
                .map(<[u8]>::len);
            let Some(length) = length else {
                return Err(format!(
                    "the tokenizer changes the text, so the tokens of what the model says are not known (at byte {place})"
                ));
            };
            // A token that is only the space before a text is counted to the character that follows.
            each(place..place + length.max(1));
            place += length;
            after_added = piece.added.is_some();
            may_skip = piece.added.is_some_and(|[_, right]| right);
        }
        let left = if may_skip { space_at(text, place) } else { 0 };
        if place + left == text.len() {
            return Ok(());
        }
        Err(format!("the tokens end at byte {place} of a text of {} bytes", text.len()))
    }
}

/// The bytes of white space, of any script, at a place that no character contains.
fn space_at(text: &str, place: usize) -> usize {
    text.get(place..).map_or(0, |rest| rest.len() - rest.trim_start().len())
}

fn byte_level(token: &str) -> Box<[u8]> {
    token.chars().filter_map(byte_of).collect()
}

/// The bytes of an entry of SentencePiece's form.
fn plain(token: &str) -> Box<[u8]> {
    let byte = token.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
    match byte
        .filter(|digits| digits.len() == 2)
        .and_then(|digits| u8::from_str_radix(digits, 16).ok())
    {
        Some(byte) => [byte].into(),
        None => token.replace(SPACE, " ").into_bytes().into(),
    }
}

/// Whether a normaliser composes; one that changes more than spaces is refused.
fn normalizer(node: Option<&Value>) -> Result<bool, String> {
    let Some(node) = node.filter(|node| !node.is_null()) else { return Ok(false) };
    let kind = node.get("type").and_then(Value::as_str).unwrap_or_default();
    let is_space = |key: &str, text: &str| node.pointer(key).and_then(Value::as_str) == Some(text);
    match kind {
        "Sequence" => {
            let children = node.get("normalizers").and_then(Value::as_array).into_iter().flatten();
            children.map(|child| normalizer(Some(child))).try_fold(false, |all, one| Ok(all | one?))
        }
        "NFC" => Ok(true),
        "Prepend" | "MetaspaceNormalizer" => Ok(false),
        "Replace" if is_space("/pattern/String", " ") && is_space("/content", SPACE) => Ok(false),
        _ => Err(format!(
            "labels of conversations need a tokenizer that leaves texts as they are, and its normaliser has `{kind}`"
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::slice;

    use super::*;
    use crate::tokenizer::{Options, Tokenizer, Tokens};

    const FILE: &[u8] = include_bytes!("../fixtures/byte-level.json");

    #[test]
    fn a_text_in_another_normal_form_is_spelled_in_that_of_the_tokenizer() {
        let (tokenizer, spelling) =
            (Tokenizer::from_json(FILE).unwrap(), Spelling::from_json(FILE).unwrap());
        let mut text = "cafe\u{301}: e\u{301}te\u{301}.".to_owned();
        let said = text.find(": ").unwrap() + 2;
        let mut said = said..text.len();
        let mut tokens = Tokens::default();
        tokenizer.encode(&text, &Options::new(false, true, None), &mut tokens).unwrap();
        let unnormalized = spelling.spell(&text, tokens.ids(), |_| ());
        assert!(unnormalized.unwrap_err().contains("changes the text"));
        spelling.normalize(&mut text, slice::from_mut(&mut said)).unwrap();
        assert_eq!((text.as_str(), &text[said]), ("café: été.", "été."));
        let mut end = 0;
        spelling.spell(&text, tokens.ids(), |bytes| end = bytes.end).unwrap();
        assert_eq!(end, text.len());
    }

    #[test]
    fn a_part_that_ends_within_a_character_is_refused() {
        let spelling = Spelling::from_json(FILE).unwrap();
        let mut text = "e\u{301}".to_owned();
        assert!(spelling.normalize(&mut text, slice::from_mut(&mut (0..1))).is_err());
    }
}
