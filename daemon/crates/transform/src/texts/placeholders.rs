//! The tokens of images in a text: a template prints one for each image, and the model reads as many as the image has
//! merged patches.

use super::TextTools;
use crate::contract::FieldTypes;
use crate::field::FieldInProgress;
use forebay_dataset::Defect;
use forebay_keys::{ConfigError, Section};
use forebay_text::Tokenizer;
use std::ops::Range;

/// How the tokens of images are repeated.
#[derive(Debug)]
pub(crate) struct Placeholders {
    token: u32,
    name: String,
    /// The field with the grids of the images.
    grids: usize,
    patches_per_token: u64,
    most_tokens: u64,
}

impl Placeholders {
    /// Reads the argument `image_token`.
    ///
    /// # Errors
    /// The tokenizer has no such token, or no operation before has made patches of images.
    pub(crate) fn compile(
        operation: &str,
        section: &Section,
        fields: &mut FieldTypes,
        tokenizer: &Tokenizer,
        name: Option<String>,
    ) -> Result<Option<Self>, ConfigError> {
        let Some(name) = name else { return Ok(None) };
        let fail = |message: String| section.error_at("image_token", message);
        let token = tokenizer
            .id_of(&name)
            .ok_or_else(|| fail(format!("the tokenizer has no added token {name:?}")))?;
        let with_grids = |(number, field): (usize, &crate::contract::FieldPlan)| {
            field.image_grids.map(|grids| (number, grids))
        };
        let found: Vec<_> = fields.present().filter_map(with_grids).collect();
        let &[(number, grids)] = &found[..] else {
            return Err(fail(format!(
                "`image_token` is repeated by the grids of `image-patches`; put one such operation before `{operation}`"
            )));
        };
        fields.fields[number].last_stage = Some(fields.stage);
        let (patches_per_token, most_tokens) = (grids.patches_per_token, grids.most_tokens);
        Ok(Some(Self { token, name, grids: number, patches_per_token, most_tokens }))
    }

    /// The bytes of the ids of a sample's images.
    pub(crate) const fn most_bytes(&self) -> u64 {
        self.most_tokens.saturating_mul(super::IDS.size_bytes())
    }

    /// Repeats the tokens of images, in [`TextTools::repeated`], and marks them as not said. Gives the part of the row from
    /// the first to the last of them.
    ///
    /// # Errors
    /// The text has another number of them than the sample has images.
    pub(crate) fn repeat(
        &self,
        fields: &[FieldInProgress<'_>],
        tools: &mut TextTools,
    ) -> Result<Range<usize>, Defect> {
        let grids = fields.get(self.grids).and_then(FieldInProgress::elements);
        let grids = grids.ok_or_else(|| Defect("the images have no grids".to_owned()))?;
        let (numbers, _) = grids.bytes.as_chunks::<8>();
        let counts = numbers.chunks_exact(3).map(|grid| {
            let side = |number: &[u8; 8]| u64::try_from(i64::from_ne_bytes(*number)).unwrap_or(0);
            let patches = grid.iter().map(side).fold(1_u64, u64::saturating_mul);
            usize::try_from(patches / self.patches_per_token.max(1)).unwrap_or(usize::MAX)
        });
        let TextTools { tokens, repeated, is_said, .. } = tools;
        let has_labels = !is_said.is_empty();
        let found = tokens.ids().iter().filter(|id| **id == self.token).count();
        if found != counts.len() {
            return Err(Defect(format!(
                "the text has {found} of {:?}, and the sample has {} images",
                self.name,
                counts.len()
            )));
        }
        let all = counts.clone().fold(0, usize::saturating_add);
        if all as u64 > self.most_tokens {
            return Err(Defect(format!(
                "the images have {all} tokens, more than the {} of `image-patches`",
                self.most_tokens
            )));
        }
        repeated.ids.clear();
        repeated.is_said.clear();
        let mut counts = counts;
        let mut images = None::<Range<usize>>;
        for (place, id) in tokens.ids().iter().enumerate() {
            let (times, is_image) = match *id == self.token {
                true => (counts.next().unwrap_or(0), true),
                false => (1, false),
            };
            let start = repeated.ids.len();
            repeated.ids.extend(std::iter::repeat_n(*id, times));
            if has_labels {
                let is_said = !is_image && is_said.get(place).copied().unwrap_or(false);
                repeated.is_said.extend(std::iter::repeat_n(is_said, times));
            }
            if is_image {
                let first = images.map_or(start, |images| images.start);
                images = Some(first..repeated.ids.len());
            }
        }
        Ok(images.unwrap_or(0..0))
    }
}

/// The ids of a text whose image tokens are repeated.
#[derive(Debug, Default)]
pub(crate) struct Repeated {
    pub ids: Vec<u32>,
    /// By id, whether the model says it; empty without labels.
    pub is_said: Vec<bool>,
}

impl Repeated {
    /// The memory that it keeps.
    pub(crate) const fn kept_bytes(&self) -> usize {
        self.ids.capacity() * size_of::<u32>() + self.is_said.capacity()
    }
}
