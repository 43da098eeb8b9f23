//! `tokenize`: a text becomes its tokens, int32, as the Python package `tokenizers` gives them.
//!
//! Rows are ragged, or with `pad` of one length. The tokenizer is read when the plan is compiled, and its digest is part
//! of the fingerprint: the file's path is not.

use crate::contract::{FieldType, FieldTypes, Operation, Sample};
use crate::field::FieldInProgress;
use crate::needs::Reckoning;
use crate::texts::{
    Cut, MAX_TEXT_BYTES, Placeholders, RowLength, TextTools, add, as_element, set_length, text_of,
};
use forebay_dataset::{Defect, FieldKind};
use forebay_keys::{AtLeastOne, ByteSize, ConfigError, Keys, LocalPath, Section, TokenName};
use forebay_order::Draws;
use forebay_text::{Options, Tokenizer, Tokens};

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
        /// whether the name of a special token within a text, such as `</s>`, becomes this token; `false`: it is
        /// text, as texts from strangers should be
        pub parse_special_tokens: bool, "", default(true);
        /// the name of the token that a text has for each image: it is repeated for the patches that `image-patches`
        /// has made of the image
        pub image_token: String, "", absent("none");
        /// a longer text is cut, and a longer row with images is a bad sample; special tokens count
        pub max_length: AtLeastOne, "tokens", absent("none");
        /// which end is cut off
        pub cut: Cut, "", default(Cut::Right);
        /// with `max_length`: the token that fills shorter rows at their end, by name or number
        pub pad: TokenName, "", absent("rows are ragged");
        /// a new field with the number of tokens of each row, int64
        pub length: String, "", absent("none");
        /// a longer text is a bad sample; memory for it is planned
        pub max_bytes: ByteSize, "bytes", default(MAX_TEXT_BYTES);
    }
}

#[derive(Debug)]
struct Tokenize {
    field: usize,
    length_field: Option<usize>,
    placeholders: Option<Placeholders>,
    tokenizer: Tokenizer,
    options: Options,
    /// The same without `max_length`, for rows with images.
    uncut: Options,
    rows: RowLength,
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
    RowLength::check(section, most)?;
    let tokenizer = Tokenizer::open(&arguments.tokenizer)
        .map_err(|error| section.error_at("tokenizer", error.to_string()))?;
    let id = |pad: TokenName| pad.id(tokenizer.largest_id(), |name| tokenizer.id_of(name));
    let fill = arguments.pad.map(id).transpose();
    let rows = RowLength { most, fill: fill.map_err(|message| section.error_at("pad", message))? };
    if let Some(to) = arguments.to {
        fields.rename(field, to).map_err(|message| section.error_at("to", message))?;
    }
    let plan = &mut fields.fields[field];
    (plan.kind, plan.max_row_bytes) = rows.kind();
    plan.tokens = Some((0, tokenizer.largest_id().into()));
    let count = (arguments.length, FieldType::Raw(FieldKind::Integer));
    let length_field = add(section, "length", fields, count)?;
    let placeholders =
        Placeholders::compile("tokenize", section, fields, &tokenizer, arguments.image_token)?;
    let options =
        |most| Options::new(arguments.add_special_tokens, arguments.parse_special_tokens, most);
    let (options, uncut) = (options(most.map(|most| (most, arguments.cut.into()))), options(None));
    if let Some(most) = most {
        let alone = Options::new(arguments.add_special_tokens, true, None);
        let mut added = Tokens::default();
        tokenizer
            .encode("", &alone, &mut added)
            .map_err(|error| section.error(error.to_string()))?;
        if most <= added.ids().len() {
            let count = added.ids().len();
            let message = format!(
                "the tokenizer adds {count} tokens to each text, so `max_length` is above {count}"
            );
            return Err(section.error_at("max_length", message));
        }
    }
    let max_text_bytes = arguments.max_bytes;
    Ok(Box::new(Tokenize {
        field,
        length_field,
        placeholders,
        tokenizer,
        options,
        uncut,
        rows,
        max_text_bytes,
    }))
}

impl Operation for Tokenize {
    fn reckon(&self, reckoning: &mut Reckoning<'_>) {
        let text_bytes = reckoning.text_bytes.min(self.max_text_bytes);
        let (scratch, row) =
            self.rows.memory(&self.tokenizer, text_bytes, self.placeholders.as_ref());
        reckoning.scratch_bytes = reckoning.scratch_bytes.saturating_add(scratch);
        reckoning.give(self.field, row);
    }

    fn file_digest(&self) -> Option<[u8; 32]> {
        Some(*self.tokenizer.digest())
    }

    fn run(&self, sample: &mut Sample<'_, '_>, _draws: &mut Draws) -> Result<(), Defect> {
        let text = text_of(&sample.fields[self.field], "tokenize", self.max_text_bytes)?;
        let mut row = sample.tools.spare_array();
        let tools = &mut sample.tools.texts;
        let encode = |options: &Options, tools: &mut TextTools| {
            let encoded = self.tokenizer.encode(text, options, &mut tools.tokens);
            encoded.map_err(|error| Defect(error.to_string()))
        };
        let mut has_images = false;
        if let Some(placeholders) = &self.placeholders {
            encode(&self.uncut, tools)?;
            tools.is_said.clear();
            has_images = !placeholders.repeat(sample.fields, tools)?.is_empty();
        }
        if !has_images {
            encode(&self.options, tools)?;
        }
        let ids = if has_images { &tools.repeated.ids[..] } else { tools.tokens.ids() };
        if let Some(most) = self.rows.most.filter(|most| ids.len() > *most) {
            return Err(Defect(format!(
                "the row has {} tokens with those of images, more than `max_length` of `tokenize`, {most}",
                ids.len()
            )));
        }
        let fill = as_element(self.rows.fill.unwrap_or(0));
        self.rows.write(ids.iter().map(|id| as_element(*id)), fill, &mut row);
        let count = ids.len();
        set_length(sample, self.length_field, count);
        sample.fields[self.field] = FieldInProgress::Buffer(row);
        Ok(())
    }
}
