//! Makes tokens of one field of a sample.

use forebay_config::DatasetConfig;
use forebay_keys::ConfigError;
#[cfg(feature = "text")]
use forebay_keys::TokenName;
use forebay_protocol::tensor::DType;

#[cfg(feature = "text")]
use forebay_text::{Options, Tokenizer, Tokens};

use super::made::MadeTexts;
use crate::tokens::TokenKeys;
use forebay_dataset::{ArrayValue, FieldValue};

/// The largest vocabulary whose tokens take two bytes.
const SHORT: u32 = 0xffff;

/// A thread's maker of tokens.
#[derive(Debug, Clone)]
pub(super) struct Maker {
    #[cfg(feature = "text")]
    tokenizer: Option<ForTexts>,
    /// The token after each text.
    pub(super) end: Option<u32>,
    largest_id: u32,
    ids: Vec<u32>,
}

#[cfg(feature = "text")]
#[derive(Debug)]
struct ForTexts {
    tokenizer: Tokenizer,
    options: Options,
    flags: [bool; 2],
    most_bytes: u64,
    tokens: Tokens,
}

#[cfg(feature = "text")]
impl Clone for ForTexts {
    fn clone(&self) -> Self {
        let (tokenizer, options) = (self.tokenizer.clone(), self.options.clone());
        Self { tokenizer, options, tokens: Tokens::default(), ..*self }
    }
}

impl Maker {
    /// Reads the tokenizer, if the keys name one.
    pub(super) fn new(config: &DatasetConfig, keys: &TokenKeys) -> Result<Self, ConfigError> {
        #[cfg(feature = "text")]
        if let Some(path) = &keys.tokenizer {
            let fail = |message: String| config.own.error(format!("`dataset.tokens`: {message}"));
            let tokenizer = Tokenizer::open(path).map_err(|error| fail(error.to_string()))?;
            let id = |end: &TokenName| end.id(tokenizer.largest_id(), |name| tokenizer.id_of(name));
            let end = keys.end.as_ref().map(id).transpose();
            let end = end.map_err(|message| fail(format!("`end`: {message}")))?;
            let largest_id = tokenizer.largest_id();
            let flags = [
                keys.add_special_tokens.unwrap_or(true),
                keys.parse_special_tokens.unwrap_or(true),
            ];
            let options = Options::new(flags[0], flags[1], None);
            let (most_bytes, tokens) = (keys.most_text_bytes(), Tokens::default());
            let tokenizer = Some(ForTexts { tokenizer, options, flags, most_bytes, tokens });
            return Ok(Self { tokenizer, end, largest_id, ids: Vec::new() });
        }
        let (end, largest_id) = (keys.end_id(), i32::MAX.cast_unsigned());
        if let Some(end) = end.filter(|end| *end > largest_id) {
            let message = format!("`dataset.tokens.end` is {end}, and tokens are below 2³¹");
            return Err(config.own.error(message));
        }
        Ok(Self {
            #[cfg(feature = "text")]
            tokenizer: None,
            end,
            largest_id,
            ids: Vec::new(),
        })
    }

    /// The type of the tokens in files.
    pub(super) const fn dtype(&self) -> DType {
        if self.largest_id <= SHORT { DType::U16 } else { DType::I32 }
    }

    /// Adds what determines the tokens of a text.
    pub(super) fn digest(&self, hasher: &mut blake3::Hasher) {
        #[cfg(feature = "text")]
        if let Some(texts) = &self.tokenizer {
            hasher.update(texts.tokenizer.digest());
            hasher.update(&texts.flags.map(u8::from));
        }
        hasher.update(&self.end.map_or(u64::MAX, u64::from).to_le_bytes());
    }

    /// Adds the tokens of a value to `made`, as one document.
    ///
    /// # Errors
    /// Why the value has none; `made` is unchanged.
    pub(super) fn make(
        &mut self,
        value: &FieldValue<'_>,
        made: &mut MadeTexts,
    ) -> Result<(), String> {
        self.ids.clear();
        match value {
            FieldValue::Text(text) => self.tokenize(text)?,
            FieldValue::Array(array) => self.take_numbers(array)?,
            _ => return Err("it is neither a text nor a list of numbers".to_owned()),
        }
        self.ids.extend(self.end);
        made.add(&self.ids, self.dtype())
    }

    #[cfg(feature = "text")]
    fn tokenize(&mut self, text: &str) -> Result<(), String> {
        let Some(texts) = &mut self.tokenizer else {
            return Err("it is a text, and dataset.tokens.tokenizer is not set".to_owned());
        };
        if text.len() as u64 > texts.most_bytes {
            let (bytes, most) = (text.len(), texts.most_bytes);
            return Err(format!(
                "the text has {bytes} bytes, more than dataset.tokens.max_bytes, {most}"
            ));
        }
        texts
            .tokenizer
            .encode(text, &texts.options, &mut texts.tokens)
            .map_err(|error| error.to_string())?;
        self.ids.extend_from_slice(texts.tokens.ids());
        Ok(())
    }

    #[cfg(not(feature = "text"))]
    fn tokenize(&mut self, _text: &str) -> Result<(), String> {
        Err("this program is built without `text`".to_owned())
    }

    fn take_numbers(&mut self, array: &ArrayValue<'_>) -> Result<(), String> {
        if array.big_endian {
            return Err("its numbers are in big endian; save them in little endian".to_owned());
        }
        if array.shape.len() != 1 {
            return Err(format!("its shape is {:?}, not that of a list", array.shape));
        }
        let size = usize::try_from(array.dtype.size_bytes()).unwrap_or(1).clamp(1, 8);
        let is_signed = matches!(array.dtype, DType::I8 | DType::I16 | DType::I32 | DType::I64);
        for number in array.bytes.chunks_exact(size) {
            let mut wide = [0; 8];
            wide[..size].copy_from_slice(number);
            let found = u64::from_le_bytes(wide);
            let is_negative = is_signed && number.last().is_some_and(|byte| *byte >= 0x80);
            match u32::try_from(found).ok().filter(|id| !is_negative && *id <= self.largest_id) {
                Some(id) => self.ids.push(id),
                None if is_negative => return Err("it has a negative number".to_owned()),
                None => {
                    return Err(format!("it has the number {found}, and tokens are below 2³¹"));
                }
            }
        }
        Ok(())
    }
}
