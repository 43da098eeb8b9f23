//! What operations on texts share: the text of a field, the names of their results, and rows of ids.

mod placeholders;

pub(crate) use placeholders::{Placeholders, Repeated};

use crate::contract::{FieldType, FieldTypes, Sample};
use crate::field::FieldInProgress;
use forebay_dataset::{Defect, FieldKind};
use forebay_keys::{ConfigError, Section, words};
use forebay_media::array::ArrayBuffer;
use forebay_protocol::tensor::DType;
use forebay_text::Side;

/// Memory while a text is tokenized, for each of its bytes: copies of the text, the words' places, and 48 bytes for each
/// character of the longest word, which may be all of the text. A normaliser may make more characters of a byte.
const SCRATCH_PER_BYTE: u64 = 64;
/// The largest size of the ids for each byte of the text. Compatibility normalisation makes at most 11 bytes of one, and
/// each byte is at most one token.
const IDS_PER_BYTE: u64 = 11 * IDS.size_bytes();
/// The memory of the ids that are added to a text.
const ADDED_BYTES: u64 = 4096;
/// The default of `max_bytes`.
pub(crate) const MAX_TEXT_BYTES: u64 = 16 << 20;
/// The type of ids.
pub(crate) const IDS: DType = DType::I32;

words! {
    /// The end that is cut off a text that is too long.
    pub(crate) enum Cut {
        /// Its end.
        Right = "right",
        /// Its beginning.
        Left = "left",
    }
}

impl From<Cut> for Side {
    fn from(cut: Cut) -> Self {
        match cut {
            Cut::Right => Self::Right,
            Cut::Left => Self::Left,
        }
    }
}

/// What a work thread keeps from text to text.
#[derive(Debug, Default)]
pub(crate) struct TextTools {
    /// The ids of the last text.
    pub tokens: forebay_text::Tokens,
    /// The last conversation.
    pub rendered: forebay_text::Rendered,
    /// By token of it, whether the model says it.
    pub is_said: Vec<bool>,
    /// The ids with those of images repeated.
    pub repeated: Repeated,
}

impl TextTools {
    /// The memory that it keeps.
    pub(crate) const fn kept_bytes(&self) -> usize {
        self.tokens.kept_bytes()
            + self.rendered.text.capacity()
            + self.rendered.said.capacity() * size_of::<std::ops::Range<usize>>()
            + self.is_said.capacity()
            + self.repeated.kept_bytes()
    }
}

/// The length of the rows of an operation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowLength {
    /// The most ids.
    pub most: Option<usize>,
    /// The id that fills a row up to `most`.
    pub fill: Option<u32>,
}

impl RowLength {
    /// Checks `pad` and `cut`, which need `max_length`.
    pub(crate) fn check(section: &Section, most: Option<usize>) -> Result<(), ConfigError> {
        let unlimited = ["pad", "cut"].into_iter().filter(|_| most.is_none());
        match unlimited.into_iter().find(|key| section.location_of(key).is_some()) {
            Some(key) => {
                let message = format!(
                    "`{}` is for rows of `max_length`; give `max_length` too",
                    section.key_path(key)
                );
                Err(section.error_at(key, message))
            }
            None => Ok(()),
        }
    }

    /// The memory of tokenizing a text of so many bytes, and that of its row, with the tokens of images.
    pub(crate) fn memory(
        self,
        tokenizer: &forebay_text::Tokenizer,
        text_bytes: u64,
        placeholders: Option<&Placeholders>,
    ) -> (u64, u64) {
        let of_images = placeholders.map_or(0, Placeholders::most_bytes);
        let ids = text_bytes.saturating_mul(IDS_PER_BYTE).saturating_add(ADDED_BYTES);
        // Without images there is one list of ids, with them a second one.
        let repeated = placeholders.map_or(0, |_| ids.saturating_add(of_images));
        let most =
            self.most.map_or(u64::MAX, |most| (most as u64).saturating_mul(IDS.size_bytes()));
        let row = if self.fill.is_some() { most } else { ids.saturating_add(of_images).min(most) };
        let scratch =
            text_bytes.saturating_mul(SCRATCH_PER_BYTE).saturating_mul(tokenizer.growth());
        (scratch.saturating_add(ids).saturating_add(repeated), row)
    }

    /// What a field of ids is, and its longest row in bytes.
    pub(crate) fn kind(self) -> (FieldType, Option<u64>) {
        let most = self.most.map(|most| most as u64);
        let kind = match (self.fill, most) {
            (Some(_), Some(length)) => FieldKind::Array { dtype: IDS, shape: vec![length] },
            _ => FieldKind::RaggedArray { dtype: IDS, row_shape: Vec::new() },
        };
        (FieldType::Raw(kind), most.map(|most| most.saturating_mul(IDS.size_bytes())))
    }

    /// Writes a row, filled with `fill` where rows have one length.
    pub(crate) fn write(
        self,
        ids: impl ExactSizeIterator<Item = i32>,
        fill: i32,
        row: &mut ArrayBuffer,
    ) {
        let padded = match (self.fill, self.most) {
            (Some(_), Some(most)) => most.saturating_sub(ids.len()),
            _ => 0,
        };
        row.dtype = IDS;
        row.shape.clear();
        row.shape.push((ids.len() + padded) as u64);
        let ids_bytes = ids.len() * size_of::<i32>();
        row.bytes.resize(ids_bytes + padded * size_of::<i32>(), 0);
        // Loops over elements, which no build makes calls for each byte of.
        let (of_ids, of_fill) = row.bytes.split_at_mut(ids_bytes);
        for (place, id) in of_ids.as_chunks_mut().0.iter_mut().zip(ids) {
            *place = id.to_ne_bytes();
        }
        of_fill.as_chunks_mut().0.fill(fill.to_ne_bytes());
    }
}

/// An id as the type of rows has it: ids are far below 2³¹.
pub(crate) const fn as_element(id: u32) -> i32 {
    id.cast_signed()
}

/// Adds a field that the operation makes in this stage.
///
/// # Errors
/// There is a field of this name; the error is at the key that gives the name.
pub(crate) fn add(
    section: &Section,
    key: &str,
    fields: &mut FieldTypes,
    (name, kind): (Option<String>, FieldType),
) -> Result<Option<usize>, ConfigError> {
    let Some(name) = name else { return Ok(None) };
    let added = fields.add(&name, kind).map_err(|message| section.error_at(key, message))?;
    fields.fields[added].last_stage = Some(fields.stage);
    Ok(Some(added))
}

/// Writes a number of tokens into a field.
pub(crate) fn set_length(sample: &mut Sample<'_, '_>, field: Option<usize>, count: usize) {
    if let Some(field) = field {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        sample.fields[field] = FieldInProgress::Number(DType::I64, count.to_ne_bytes());
    }
}

/// The text in a field of a sample.
///
/// # Errors
/// It is longer than `most` bytes, or not UTF-8.
pub(crate) fn text_of<'s>(
    field: &'s FieldInProgress<'_>,
    operation: &str,
    most: u64,
) -> Result<&'s str, Defect> {
    let FieldInProgress::Bytes(text) = field else {
        return Err(Defect(format!("`{operation}` found no text")));
    };
    if text.len() as u64 > most {
        return Err(Defect(format!(
            "the text has {} bytes, more than `max_bytes` of `{operation}`, {most}",
            text.len()
        )));
    }
    std::str::from_utf8(text).map_err(|error| Defect(format!("the text is not UTF-8: {error}")))
}
