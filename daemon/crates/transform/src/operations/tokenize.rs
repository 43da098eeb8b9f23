//! `tokenize`: a text becomes its tokens, int32, as the Python package `tokenizers` gives them.
//!
//! Rows are ragged, or with `pad` of one length. The tokenizer is read when the plan is compiled, and its digest is part
//! of the fingerprint: the file's path is not.

use std::path::PathBuf;

use crate::contract::{FieldType, FieldTypes, Operation, Sample};
use crate::field::FieldInProgress;
use crate::needs::Reckoning;
use forebay_dataset::{Defect, FieldKind};
use forebay_keys::{AtLeastOne, ByteSize, ConfigError, Keys, LocalPath, Section, words};
use forebay_order::Draws;
use forebay_protocol::tensor::{DType, MAX_NAME_BYTES};
use forebay_text::{Options, Side, Tokenizer};

/// Memory while a text is tokenized, for each of its bytes: the normalised text, the words' places, and 48 bytes for each
/// character of the longest word, which may be all of the text.
const SCRATCH_PER_BYTE: u64 = 64;
/// The largest size of the ids for each byte of the text. Compatibility normalisation makes at most 11 bytes of one, and
/// each byte is at most one token.
const IDS_PER_BYTE: u64 = 11 * 4;
/// The memory of the ids that are added to a text.
const ADDED_BYTES: u64 = 4096;
/// The default of `max_bytes`.
const MAX_TEXT_BYTES: u64 = 16 << 20;

words! {
    /// The end that is cut off a text that is too long.
    pub(crate) enum Cut {
        /// Its end.
        Right = "right",
        /// Its beginning.
        Left = "left",
    }
}

forebay_keys::keys! {
    /// a text becomes its tokens: int32, `[n]`, or `[max_length]` with `pad`
    pub(crate) struct Arguments = "tokenize" {
        /// a `tokenizer.json`
        pub tokenizer: LocalPath, "", required;
        /// the field to work on
        pub field: String, "", absent("the only text");
        /// the new name of the field, such as `input_ids`
        pub to: String, "", absent("unchanged");
        /// whether the tokens that the tokenizer puts around a text, such as `[CLS]`, are added
        pub add_special_tokens: bool, "", default(true);
        /// whether the name of a special token within a text, such as `<|endoftext|>`, becomes this token; `false`: it is
        /// text, as texts from strangers should be
        pub parse_special_tokens: bool, "", default(true);
        /// a longer text is cut; special tokens count
        pub max_length: AtLeastOne, "tokens", absent("none");
        /// which end is cut off
        pub cut: Cut, "", default(Cut::Right);
        /// with `max_length`: the token that fills shorter rows at their end, by name or number
        pub pad: PadToken, "", absent("rows are ragged");
        /// a new field with the number of tokens of each row, int64
        pub length: String, "", absent("none");
        /// a longer text is a bad sample; memory for it is planned
        pub max_bytes: ByteSize, "bytes", default(MAX_TEXT_BYTES);
    }
}

forebay_keys::kinds! {
    /// A token by its name or its number.
    PadToken as PadToken: "a token's name or number, such as \"<pad>\" or 0", type "a text or a whole number";
    read(value) {
        match value {
            forebay_keys::Value::String(name) => Some(PadToken::Name(name.clone())),
            forebay_keys::Value::Integer(id) => u32::try_from(*id).ok().map(PadToken::Id),
            _ => None,
        }
    }
    write(out) {
        match out {
            PadToken::Name(name) => String::write(name),
            PadToken::Id(id) => forebay_keys::Value::Integer((*id).into()),
        }
    }
    schema { "type": ["string", "integer"], "minimum": 0 }
}

/// A token in the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PadToken {
    Name(String),
    Id(u32),
}

#[derive(Debug)]
struct Tokenize {
    field: usize,
    length_field: Option<usize>,
    tokenizer: Tokenizer,
    options: Options,
    /// The number of ids of each row and the id that fills it.
    padding: Option<(usize, u32)>,
    /// The most ids of a row.
    most: Option<u64>,
    max_text_bytes: u64,
}

pub(crate) fn compile(
    section: &mut Section,
    fields: &mut FieldTypes,
) -> Result<Box<dyn Operation>, ConfigError> {
    let arguments = Arguments::read(section)?;
    let field = fields.find("tokenize", section, arguments.field, "text", |kind| {
        matches!(kind, FieldType::Raw(FieldKind::Text))
    })?;
    let most = arguments.max_length.map(|most| usize::try_from(most).unwrap_or(usize::MAX));
    if arguments.pad.is_some() && most.is_none() {
        let message = "`pad` makes rows of `max_length` tokens; give `max_length` too";
        return Err(section.error_at("pad", message.to_owned()));
    }
    if section.location_of("cut").is_some() && most.is_none() {
        let message =
            "`cut` says which end of a text above `max_length` is cut off; give `max_length` too";
        return Err(section.error_at("cut", message.to_owned()));
    }
    let path: PathBuf = arguments.tokenizer;
    let tokenizer =
        Tokenizer::open(&path).map_err(|error| section.error_at("tokenizer", error.to_string()))?;
    let side = match arguments.cut {
        Cut::Right => Side::Right,
        Cut::Left => Side::Left,
    };
    let pad = match arguments.pad {
        None => None,
        Some(PadToken::Id(id)) => Some(id),
        Some(PadToken::Name(name)) => Some(tokenizer.id_of(&name).ok_or_else(|| {
            let message = format!("`{}` has no token {name:?}; give its number", path.display());
            section.error_at("pad", message)
        })?),
    };
    let dtype = DType::I32;
    let length = most.map(|most| most as u64);
    let kind = match (pad, length) {
        (Some(_), Some(length)) => FieldKind::Array { dtype, shape: vec![length] },
        _ => FieldKind::RaggedArray { dtype, row_shape: Vec::new() },
    };
    if let Some(to) = arguments.to {
        rename(fields, field, to).map_err(|message| section.error_at("to", message))?;
    }
    let plan = &mut fields.fields[field];
    plan.kind = FieldType::Raw(kind);
    plan.max_row_bytes = length.map(|length| length.saturating_mul(dtype.size_bytes()));
    let length_field = match arguments.length {
        None => None,
        Some(name) => {
            let added = fields.add(&name, FieldType::Raw(FieldKind::Integer));
            let added = added.map_err(|message| section.error_at("length", message))?;
            fields.fields[added].last_stage = Some(fields.stage);
            Some(added)
        }
    };
    let options = Options::new(
        arguments.add_special_tokens,
        arguments.parse_special_tokens,
        most.map(|most| (most, side)),
    );
    Ok(Box::new(Tokenize {
        field,
        length_field,
        tokenizer,
        options,
        padding: most.zip(pad),
        most: length,
        max_text_bytes: arguments.max_bytes,
    }))
}

/// Gives a field another name.
fn rename(fields: &mut FieldTypes, field: usize, name: String) -> Result<(), String> {
    if name.is_empty() || name.len() > MAX_NAME_BYTES {
        return Err(format!("a field's name has 1 to {MAX_NAME_BYTES} bytes"));
    }
    if fields.present().any(|(other, plan)| other != field && plan.name == name) {
        return Err(format!("there is a field `{name}` already"));
    }
    fields.fields[field].name = name;
    Ok(())
}

impl Operation for Tokenize {
    fn reckon(&self, reckoning: &mut Reckoning<'_>) {
        let text_bytes = reckoning.sample_bytes.min(self.max_text_bytes);
        let ids = text_bytes.saturating_mul(IDS_PER_BYTE).saturating_add(ADDED_BYTES);
        let ids = self.most.map_or(ids, |most| ids.min(most.saturating_mul(4)));
        let scratch = text_bytes.saturating_mul(SCRATCH_PER_BYTE);
        reckoning.scratch_bytes = reckoning.scratch_bytes.saturating_add(scratch + ids);
        reckoning.give(self.field, ids);
    }

    fn file_digest(&self) -> Option<&[u8; 32]> {
        Some(self.tokenizer.digest())
    }

    fn run(&self, sample: &mut Sample<'_, '_>, _draws: &mut Draws) -> Result<(), Defect> {
        let FieldInProgress::Bytes(text) = &sample.fields[self.field] else {
            return Err(Defect("`tokenize` found no text".to_owned()));
        };
        if text.len() as u64 > self.max_text_bytes {
            return Err(Defect(format!(
                "the text has {} bytes, more than `max_bytes` of `tokenize`, {}",
                text.len(),
                self.max_text_bytes
            )));
        }
        let text = std::str::from_utf8(text)
            .map_err(|error| Defect(format!("the text is not UTF-8: {error}")))?;
        let tokens = &mut sample.tools.tokens;
        self.tokenizer
            .encode(text, &self.options, tokens)
            .map_err(|error| Defect(error.to_string()))?;
        let mut array = sample.tools.spare_array();
        let ids = sample.tools.tokens.ids();
        let (count, padded) = match self.padding {
            Some((count, _)) => (count, count.saturating_sub(ids.len())),
            None => (ids.len(), 0),
        };
        array.dtype = DType::I32;
        array.shape.clear();
        array.shape.push(count as u64);
        array.bytes.clear();
        array.bytes.extend(ids.iter().flat_map(|id| id.to_ne_bytes()));
        let fill = self.padding.map_or(0, |(_, id)| id).to_ne_bytes();
        array.bytes.extend(std::iter::repeat_n(fill, padded).flatten());
        if let Some(length) = self.length_field {
            let count = i64::try_from(ids.len()).unwrap_or(i64::MAX);
            sample.fields[length] = FieldInProgress::Number(DType::I64, count.to_ne_bytes());
        }
        sample.fields[self.field] = FieldInProgress::Buffer(array);
        Ok(())
    }
}
