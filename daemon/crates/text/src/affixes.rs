//! BPE whose vocabulary marks the ends of words, as `cat</w>` of CLIP and of the first GPT, or the middle of them.
//!
//! The engine encodes such words but for two kinds, which are encoded here as the Python package does:
//! - a word of one character: the engine takes the entry without the mark, if there is one;
//! - a word in the byte-level alphabet: the engine marks characters, where the vocabulary marks bytes. It gets such words
//!   spelled in the alphabet, and a model that is not byte-level.

use std::collections::HashMap;

use serde_json::Value;

use crate::characters::alphabet;

/// See the module's head.
pub(crate) struct Affixes {
    /// The character of each byte, if the vocabulary is in the byte-level alphabet.
    alphabet: Option<[char; 256]>,
    /// The ids of words of one character; `None` if the vocabulary's marks do not count.
    lone: Option<HashMap<char, u32>>,
    /// The id of a character that is not in the vocabulary.
    unknown: Option<u32>,
}

/// How a word is encoded.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Word<'w> {
    /// By this id, or by none.
    Alone(Option<u32>),
    /// By the model, which is given this.
    Model(&'w str),
}

impl Affixes {
    /// Those of a canonical `tokenizer.json`, whose model is changed to one that is not byte-level; `None` if the
    /// vocabulary has no marks.
    ///
    /// # Errors
    /// The model is not supported.
    pub(crate) fn take(tokenizer: &mut Value) -> Result<Option<Self>, String> {
        let Some(model) = tokenizer.get_mut("model") else { return Ok(None) };
        let affix = |key| model.get(key).and_then(Value::as_str).unwrap_or_default();
        let is = |key| model.get(key).and_then(Value::as_bool) == Some(true);
        let (suffix, prefix) = (affix("end_of_word_suffix"), affix("continuing_subword_prefix"));
        let is_bpe = model.get("type").and_then(Value::as_str) == Some("BPE");
        if !is_bpe || suffix.is_empty() && prefix.is_empty() {
            return Ok(None);
        }
        if is("byte_fallback") {
            return Err("`byte_fallback` with marks of words is not supported".to_owned());
        }
        let entries = || model.get("vocab").and_then(Value::as_object).into_iter().flatten();
        let id = |id: &Value| id.as_u64().and_then(|id| u32::try_from(id).ok());
        let lone = entries().filter_map(|(entry, number)| {
            let mut letters = entry.strip_suffix(suffix)?.chars();
            let letter = letters.next().filter(|_| letters.next().is_none());
            Some((letter?, id(number)?))
        });
        let affixes = Self {
            alphabet: is("byte_level").then(alphabet),
            lone: (!is("ignore_merges")).then(|| lone.collect()),
            unknown: (model.get("unk_token").and_then(Value::as_str))
                .and_then(|unknown| id(model.get("vocab")?.get(unknown)?)),
        };
        model["byte_level"] = Value::Bool(false);
        Ok(Some(affixes))
    }

    /// How a word is encoded; `spelled` is memory for it.
    pub(crate) fn word<'w>(&self, word: &'w str, spelled: &'w mut String) -> Word<'w> {
        let mut word = word;
        if let Some(alphabet) = &self.alphabet {
            spelled.clear();
            spelled.extend(word.bytes().map(|byte| alphabet[usize::from(byte)]));
            word = spelled;
        }
        let mut letters = word.chars();
        match (letters.next(), letters.next(), &self.lone) {
            (Some(letter), None, Some(lone)) => {
                Word::Alone(lone.get(&letter).copied().or(self.unknown))
            }
            _ => Word::Model(word),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tokenizer(key: &str, value: impl Into<Value>) -> Value {
        let vocab = json!({ "a": 0, "a</w>": 1, "Ã": 2, "©</w>": 3, "é</w>": 4, "?": 5, "b": 6 });
        let mut made = json!({ "model": {
            "type": "BPE", "byte_level": true, "end_of_word_suffix": "</w>", "unk_token": "?", "vocab": vocab,
        }});
        made["model"][key] = value.into();
        made
    }

    #[test]
    fn words_are_spelled_and_those_of_one_character_are_looked_up() {
        let mut file = tokenizer("fuse_unk", false);
        let affixes = Affixes::take(&mut file).unwrap().unwrap();
        assert_eq!(file["model"]["byte_level"], false);
        let word = |word| match affixes.word(word, &mut String::new()) {
            Word::Alone(id) => Err(id),
            Word::Model(word) => Ok(word.to_owned()),
        };
        assert_eq!(word("a"), Err(Some(1)));
        assert_eq!(word("b"), Err(Some(5)));
        assert_eq!(word("é"), Ok("Ã©".to_owned()));
        assert_eq!(word("a b"), Ok("aĠb".to_owned()));
        let affixes = Affixes::take(&mut tokenizer("byte_level", false)).unwrap().unwrap();
        assert_eq!(affixes.word("é", &mut String::new()), Word::Alone(Some(4)));
        let affixes = Affixes::take(&mut tokenizer("ignore_merges", true)).unwrap().unwrap();
        assert_eq!(affixes.word("a", &mut String::new()), Word::Model("a"));
    }

    #[test]
    fn other_models_are_left_as_they_are() {
        for (key, value) in [("end_of_word_suffix", ""), ("type", "WordPiece")] {
            let mut file = tokenizer(key, value);
            assert!(Affixes::take(&mut file).unwrap().is_none());
            assert_eq!(file, tokenizer(key, value));
        }
        assert!(Affixes::take(&mut tokenizer("byte_fallback", true)).is_err());
    }
}
