//! A tokenizer: the ids of a text, as the Python package `tokenizers` gives them.
//!
//! It is read from a `tokenizer.json` and never changes. Its digest identifies it: the same digest gives the same ids.
//! The truncation and padding that the file configures are not applied, as in `transformers`; the caller asks for its
//! own.

use std::collections::HashMap;
use std::fmt;
use std::io::Read as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;
use tokenizers::pipeline::{EncodeOptions, Override, PipelineToken, PipelineTokenizer};
use tokenizers::{TruncationDirection, TruncationParams};

use crate::affixes::Affixes;
use crate::characters::hide_unreachable;
use crate::steps::Steps;

/// The largest `tokenizer.json` that is read. Those of well-known models have up to 35 MB.
const MAX_FILE_BYTES: u64 = 512 << 20;

/// The largest id: vocabularies of well-known models have up to 262,144 entries.
const MAX_ID: u64 = (1 << 24) - 1;

/// A tokenizer that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// The file cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is larger than any tokenizer.
    #[error("{}: more than {} MiB is no tokenizer.json", path.display(), MAX_FILE_BYTES >> 20)]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// Its contents are not those of a tokenizer, or of one that is not supported.
    #[error("{}: not a usable tokenizer.json: {reason}", path.display())]
    Contents {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}

/// A text that cannot be tokenized.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the text cannot be tokenized: {0}")]
pub struct TextError(String);

/// The end at which a text that is too long is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Its beginning is cut off.
    Left,
    /// Its end is cut off.
    Right,
}

/// How texts become ids.
#[derive(Debug, Clone)]
pub struct Options(EncodeOptions);

impl Options {
    /// Options of a tokenizer:
    /// - `adds_special`: whether the tokens that the tokenizer puts around a text, such as `[CLS]`, are added;
    /// - `reads_special`: whether the name of a special token within a text is this token, or is text like any other;
    /// - `most`: the largest number of ids, special ones included, and where more are cut off.
    #[must_use]
    pub fn new(adds_special: bool, reads_special: bool, most: Option<(usize, Side)>) -> Self {
        let truncation = most.map_or(Override::Off, |(max_length, side)| {
            let direction = match side {
                Side::Left => TruncationDirection::Left,
                Side::Right => TruncationDirection::Right,
            };
            Override::With(TruncationParams {
                direction,
                max_length,
                ..TruncationParams::default()
            })
        });
        Self(EncodeOptions {
            add_special_tokens: adds_special,
            encode_special_tokens: !reads_special,
            padding: Override::Off,
            truncation,
        })
    }
}

/// The ids of a text; kept from text to text for its memory.
#[derive(Debug, Default)]
pub struct Tokens(Vec<PipelineToken>);

impl Tokens {
    /// The ids.
    #[must_use]
    pub const fn ids(&self) -> &[u32] {
        PipelineToken::cast_slice(self.0.as_slice())
    }

    /// The memory that it keeps, in bytes.
    #[must_use]
    pub const fn kept_bytes(&self) -> usize {
        self.0.capacity() * size_of::<PipelineToken>()
    }
}

/// See the module's head. Cheap to clone; shared by all threads.
#[derive(Clone)]
pub struct Tokenizer {
    pipeline: PipelineTokenizer,
    /// What is not encoded by the engine alone.
    steps: Option<Arc<Steps>>,
    /// The added tokens, by name.
    added: Arc<HashMap<String, u32>>,
    largest_id: u32,
    /// How many characters its normaliser makes of a byte at most.
    growth: u64,
    digest: [u8; 32],
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digest = blake3::Hash::from_bytes(self.digest).to_hex();
        formatter.debug_struct("Tokenizer").field("digest", &&digest[..16]).finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Reads a `tokenizer.json`. Takes up to a second, for the largest vocabularies.
    ///
    /// # Errors
    /// The file cannot be read, or is not a tokenizer that is supported.
    pub fn open(path: &Path) -> Result<Self, TokenizerError> {
        Self::from_json(&read_file(path)?)
            .map_err(|reason| TokenizerError::Contents { path: path.to_owned(), reason })
    }

    /// As [`open`](Self::open), from the file's contents.
    ///
    /// # Errors
    /// Why the contents are not those of a tokenizer that is supported.
    pub fn from_json(json: &[u8]) -> Result<Self, String> {
        let mut value: Value = serde_json::from_slice(json).map_err(|error| error.to_string())?;
        tokenizers::canonicalize_value(&mut value).map_err(|error| error.to_string())?;
        let largest_id = check_ids(&value)?;
        let affixes = Affixes::take(&mut value)?;
        hide_unreachable(&mut value);
        let listed = value.get("added_tokens").and_then(Value::as_array).into_iter().flatten();
        let named = |token: &Value| {
            let id = token.get("id")?.as_u64().and_then(|id| u32::try_from(id).ok())?;
            Some((token.get("content")?.as_str()?.to_owned(), id))
        };
        let added = Arc::new(listed.filter_map(named).collect());
        let normalizer = value.get("normalizer").map(Value::to_string).unwrap_or_default();
        let decomposes =
            ["NFKC", "NFKD", "Precompiled"].iter().any(|kind| normalizer.contains(kind));
        // U+FDFA has three bytes and becomes eighteen characters.
        let growth = if decomposes { 6 } else { 1 };
        // The crate finds no table for some vocabularies of a few long entries.
        let read = catch_unwind(|| tokenizers::from_json(&value.to_string()));
        let read = read.map_err(|_| "the tokenizer's crate panics on it".to_owned())?;
        let pipeline = read.map_err(|error| error.to_string())?;
        let steps = Steps::of(&pipeline, affixes)?.map(Arc::new);
        let digest = *blake3::hash(json).as_bytes();
        Ok(Self { pipeline, steps, added, largest_id, growth, digest })
    }

    /// The digest of the file.
    #[must_use]
    pub const fn digest(&self) -> &[u8; 32] {
        &self.digest
    }

    /// The ids of a text, which replace those of `tokens`.
    ///
    /// # Errors
    /// A pattern of the tokenizer gives up on the text, the crate panics on it, or it is longer than 4 GiB.
    pub fn encode(
        &self,
        text: &str,
        options: &Options,
        tokens: &mut Tokens,
    ) -> Result<(), TextError> {
        tokens.0.clear();
        // The crate slices some texts within a character, beside an added token with `single_word`.
        let encode = AssertUnwindSafe(|| match &self.steps {
            Some(steps) => steps.encode(&self.pipeline, text, &options.0, &mut tokens.0),
            None => self.pipeline.encode_into(text, &options.0, &mut tokens.0),
        });
        let encoded = catch_unwind(encode)
            .map_err(|_| TextError("the tokenizer's crate panics on this text".to_owned()))?;
        encoded.map_err(|error| TextError(error.to_string()))
    }

    /// The id of an added token, such as `<pad>`; `None` if there is no such token.
    #[must_use]
    pub fn id_of(&self, token: &str) -> Option<u32> {
        self.added.get(token).copied()
    }

    /// The largest id.
    #[must_use]
    pub const fn largest_id(&self) -> u32 {
        self.largest_id
    }

    /// How many characters the normaliser makes of a byte at most: memory for a text grows with it.
    #[must_use]
    pub const fn growth(&self) -> u64 {
        self.growth
    }
}

/// The contents of a `tokenizer.json`.
///
/// # Errors
/// It cannot be read, or is larger than any tokenizer.
pub fn read_file(path: &Path) -> Result<Vec<u8>, TokenizerError> {
    let unread = |source| TokenizerError::Read { path: path.to_owned(), source };
    let file = std::fs::File::open(path).map_err(unread)?;
    let mut json = Vec::new();
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut json).map_err(unread)?;
    if json.len() as u64 > MAX_FILE_BYTES {
        return Err(TokenizerError::TooLarge { path: path.to_owned() });
    }
    Ok(json)
}

/// Refuses ids for which tables would not fit into memory: the engine has a place for each id up to the largest.
/// Returns the largest id.
fn check_ids(tokenizer: &Value) -> Result<u32, String> {
    let vocabulary = tokenizer.get("model").and_then(|model| model.get("vocab"));
    // A Unigram model numbers its entries by their order.
    let ids = vocabulary.and_then(Value::as_object).into_iter().flat_map(|entries| entries.iter());
    let added = tokenizer.get("added_tokens").and_then(Value::as_array).into_iter().flatten();
    let added = added.filter_map(|token| Some(("added_tokens", token.get("id")?)));
    let entries = vocabulary.and_then(Value::as_array).map_or(0, Vec::len);
    let mut largest = u32::try_from(entries.saturating_sub(1)).unwrap_or(u32::MAX);
    for (token, id) in ids.map(|(token, id)| (token.as_str(), id)).chain(added) {
        let valid = id.as_u64().filter(|id| *id <= MAX_ID).and_then(|id| u32::try_from(id).ok());
        let Some(valid) = valid else {
            return Err(format!("the id of {token:?} is {id}, and ids are 0 to {MAX_ID}"));
        };
        largest = largest.max(valid);
    }
    Ok(largest)
}

#[cfg(test)]
#[path = "tokenizer_tests.rs"]
mod tests;
