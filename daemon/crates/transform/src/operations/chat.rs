//! `chat`: a conversation becomes the tokens that its model is trained on, and labels of what the model says.
//!
//! The text is what `apply_chat_template` of Transformers gives, the tokens are the tokenizer's without tokens around
//! them, and a label is its token, or −100 outside of what the model says.

use crate::contract::{FieldType, FieldTypes, Operation, Sample};
use crate::field::FieldInProgress;
use crate::needs::Reckoning;
use crate::texts::{
    Cut, MAX_TEXT_BYTES, Placeholders, RowLength, TextTools, add, as_element, set_length, text_of,
};
use forebay_dataset::{Defect, FieldKind};
use forebay_keys::{AtLeastOne, ByteSize, ConfigError, Keys, LocalPath, Section, TokenName};
use forebay_order::Draws;
use forebay_text::{Date, Options, Rendered, Side, Spelling, Template, Tokenizer, read_tokenizer};
use std::ops::Range;

/// The label of a token that the model does not say.
const IGNORED: i32 = -100;
/// Memory for each byte of a conversation besides that of its text: the values of its JSON.
const JSON_PER_BYTE: u64 = 160;
/// The longest text of a conversation: so many times its JSON, and what a template adds. A template may print a value twice,
/// or with indentation.
const TEXT_PER_BYTE: u64 = 3;
const ADDED_BYTES: u64 = 64 << 10;

forebay_keys::keys! {
    /// a conversation becomes its tokens by a model's chat template: int32, `[n]`, or `[max_length]` with `pad`
    pub(crate) struct Arguments = "chat" {
        /// a `tokenizer_config.json` or a file of Jinja, such as `chat_template.jinja`
        pub template: LocalPath, "", required;
        /// a `tokenizer.json`
        pub tokenizer: LocalPath, "", required;
        /// the field to work on: JSON, a list of messages, or an object with `messages`, `tools` and what else the template
        /// reads
        pub field: String, "", absent("the only text");
        /// the new name of the field, such as `input_ids`
        pub to: String, "", absent("unchanged");
        /// a new field: each token, or −100 outside of what the model says, which the template marks with
        /// `{% generation %}`
        pub labels: String, "", absent("none");
        /// the name of the token that the template prints for each image: it is repeated for the patches that
        /// `image-patches` has made of the image, and its label is −100
        pub image_token: String, "", absent("none");
        /// whether the beginning of the model's next answer ends the text
        pub add_generation_prompt: bool, "", default(false);
        /// the date that `strftime_now` of a template gives, such as `"2024-07-26"`
        pub date: Day, "", absent("none; a template that asks for it is refused");
        /// a longer row is cut
        pub max_length: AtLeastOne, "tokens", absent("none");
        /// which end is cut off
        pub cut: Cut, "", default(Cut::Right);
        /// with `max_length`: the token that fills shorter rows at their end, by name or number
        pub pad: TokenName, "", absent("rows are ragged");
        /// a new field with the number of tokens of each row, int64
        pub length: String, "", absent("none");
        /// a longer conversation is a bad sample; memory for it is planned
        pub max_bytes: ByteSize, "bytes", default(MAX_TEXT_BYTES);
    }
}

forebay_keys::kinds! {
    /// A date.
    [pub(crate)] Day as Date: "a date such as \"2024-07-26\"", type "a date";
    read(value) { value.as_text()?.parse().ok() }
    write(out) { forebay_keys::Value::String(out.to_string()) }
    schema { "type": "string", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}$" }
}

#[derive(Debug)]
struct Chat {
    field: usize,
    labels: Option<(usize, Spelling)>,
    length_field: Option<usize>,
    placeholders: Option<Placeholders>,
    template: Template,
    tokenizer: Tokenizer,
    options: Options,
    adds_prompt: bool,
    cut: Side,
    rows: RowLength,
    max_text_bytes: u64,
    digest: [u8; 32],
}

pub(crate) fn compile(
    section: &mut Section,
    fields: &mut FieldTypes,
) -> Result<Box<dyn Operation>, ConfigError> {
    let arguments = Arguments::read(section)?;
    let field = fields.find("chat", section, arguments.field, "text", |kind| {
        matches!(kind, FieldType::Raw(FieldKind::Text))
    })?;
    let most = arguments.max_length.map(|most| usize::try_from(most).unwrap_or(usize::MAX));
    RowLength::check(section, most)?;
    let template = Template::open(&arguments.template, arguments.date)
        .map_err(|error| section.error_at("template", error.to_string()))?;
    if template.asks_for_date() && arguments.date.is_none() {
        let message = "the template asks for today's date, on which rows must not depend; give it as `date = \"2024-07-26\"`";
        return Err(section.error_at("template", message.to_owned()));
    }
    let unusable = |error: String| section.error_at("tokenizer", error);
    let file = read_tokenizer(&arguments.tokenizer).map_err(|error| unusable(error.to_string()))?;
    let tokenizer = Tokenizer::from_json(&file).map_err(|reason| {
        unusable(format!(
            "{}: not a usable tokenizer.json: {reason}",
            arguments.tokenizer.display()
        ))
    })?;
    let id = |pad: TokenName| pad.id(tokenizer.largest_id(), |name| tokenizer.id_of(name));
    let fill = arguments.pad.map(id).transpose();
    let rows = RowLength { most, fill: fill.map_err(|message| section.error_at("pad", message))? };
    if let Some(to) = arguments.to {
        fields.rename(field, to).map_err(|message| section.error_at("to", message))?;
    }
    let (kind, max_row_bytes) = rows.kind();
    let spelling = match &arguments.labels {
        None => None,
        Some(_) if !template.marks_generation() => {
            let message = "the template does not mark what the model says; put `{% generation %}` and `{% endgeneration %}` \
                           around it, or leave `labels` out";
            return Err(section.error_at("labels", message.to_owned()));
        }
        Some(_) => Some(
            Spelling::from_json(&file).map_err(|message| section.error_at("labels", message))?,
        ),
    };
    let labels = add(section, "labels", fields, (arguments.labels, kind.clone()))?;
    for number in labels.into_iter().chain([field]) {
        let plan = &mut fields.fields[number];
        (plan.kind, plan.max_row_bytes) = (kind.clone(), max_row_bytes);
        let least = if number == field { 0 } else { IGNORED.into() };
        plan.tokens = Some((least, tokenizer.largest_id().into()));
    }
    let count = (arguments.length, FieldType::Raw(FieldKind::Integer));
    let length_field = add(section, "length", fields, count)?;
    let placeholders =
        Placeholders::compile("chat", section, fields, &tokenizer, arguments.image_token)?;
    let mut digest = blake3::Hasher::new();
    digest.update(template.digest()).update(tokenizer.digest());
    Ok(Box::new(Chat {
        field,
        labels: labels.zip(spelling),
        length_field,
        placeholders,
        template,
        tokenizer,
        options: Options::new(false, true, None),
        adds_prompt: arguments.add_generation_prompt,
        cut: arguments.cut.into(),
        rows,
        max_text_bytes: arguments.max_bytes,
        digest: *digest.finalize().as_bytes(),
    }))
}

/// The longest text of a conversation of so many bytes.
const fn most_text_bytes(json_bytes: u64) -> u64 {
    json_bytes.saturating_mul(TEXT_PER_BYTE).saturating_add(ADDED_BYTES)
}

impl Chat {
    /// The part of a row of `count` tokens that is not cut off.
    fn kept(&self, count: usize) -> std::ops::Range<usize> {
        let most = self.rows.most.unwrap_or(usize::MAX).min(count);
        match self.cut {
            Side::Right => 0..most,
            Side::Left => count - most..count,
        }
    }

    /// By token, whether the model says it.
    fn said(&self, spelling: &Spelling, tools: &mut TextTools) -> Result<(), Defect> {
        let Rendered { text, said } = &mut tools.rendered;
        spelling.normalize(text, said).map_err(Defect)?;
        tools.is_said.clear();
        // Both are in order.
        let mut parts = said.iter().peekable();
        spelling
            .spell(text, tools.tokens.ids(), |bytes| {
                while parts.next_if(|part| part.end <= bytes.start).is_some() {}
                let is_said = parts.peek().is_some_and(|part| part.start < bytes.end);
                tools.is_said.push(is_said);
            })
            .map_err(Defect)
    }
}

impl Operation for Chat {
    fn reckon(&self, reckoning: &mut Reckoning<'_>) {
        let json_bytes = reckoning.text_bytes.min(self.max_text_bytes);
        let text_bytes = most_text_bytes(json_bytes);
        let (scratch, row) =
            self.rows.memory(&self.tokenizer, text_bytes, self.placeholders.as_ref());
        let values = json_bytes
            .saturating_mul(JSON_PER_BYTE)
            .saturating_add(2 * text_bytes)
            .saturating_add(Template::most_bytes(json_bytes));
        reckoning.scratch_bytes =
            reckoning.scratch_bytes.saturating_add(scratch).saturating_add(values);
        reckoning.give(self.field, row);
        if let Some((labels, _)) = &self.labels {
            reckoning.give(*labels, row);
        }
    }

    fn file_digest(&self) -> Option<[u8; 32]> {
        Some(self.digest)
    }

    fn run(&self, sample: &mut Sample<'_, '_>, _draws: &mut Draws) -> Result<(), Defect> {
        let conversation = text_of(&sample.fields[self.field], "chat", self.max_text_bytes)?;
        let mut row = sample.tools.spare_array();
        let labels_row = self.labels.as_ref().map(|_| sample.tools.spare_array());
        let tools = &mut sample.tools.texts;
        let most =
            usize::try_from(most_text_bytes(conversation.len() as u64)).unwrap_or(usize::MAX);
        self.template
            .render(conversation, self.adds_prompt, most, &mut tools.rendered)
            .map_err(Defect)?;
        self.tokenizer
            .encode(&tools.rendered.text, &self.options, &mut tools.tokens)
            .map_err(|error| Defect(error.to_string()))?;
        tools.is_said.clear();
        if let Some((_, spelling)) = &self.labels {
            self.said(spelling, tools)?;
        }
        let images = match &self.placeholders {
            Some(placeholders) => Some(placeholders.repeat(sample.fields, tools)?),
            None => None,
        };
        let TextTools { tokens, is_said, repeated, .. } = &sample.tools.texts;
        let (ids, is_said) = match &images {
            Some(_) => (&repeated.ids[..], &repeated.is_said),
            None => (tokens.ids(), is_said),
        };
        let kept = self.kept(ids.len());
        let is_whole = |images: &Range<usize>| {
            images.is_empty() || (kept.start <= images.start && images.end <= kept.end)
        };
        if !images.as_ref().is_none_or(is_whole) {
            return Err(Defect(format!(
                "the row has {} tokens, and `max_length` of `chat`, {}, cuts off those of images",
                ids.len(),
                kept.len()
            )));
        }
        if let (Some((field, _)), Some(mut row)) = (&self.labels, labels_row) {
            let ids = ids[kept.clone()].iter().zip(&is_said[kept.clone()]);
            let labels = ids.map(|(id, is_said)| if *is_said { as_element(*id) } else { IGNORED });
            self.rows.write(labels, IGNORED, &mut row);
            sample.fields[*field] = FieldInProgress::Buffer(row);
        }
        let fill = as_element(self.rows.fill.unwrap_or(0));
        self.rows.write(ids[kept.clone()].iter().map(|id| as_element(*id)), fill, &mut row);
        set_length(sample, self.length_field, kept.len());
        sample.fields[self.field] = FieldInProgress::Buffer(row);
        Ok(())
    }
}
