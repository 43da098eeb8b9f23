//! Encoding in steps, for tokenizers of which the engine encodes a part differently or not at all:
//! - those with regular expressions, in a `Split` or a `Replace`. The engine compiles none of a `Split`, and takes a text
//!   on which an expression gives up for one without further matches;
//! - BPE whose vocabulary marks the ends of words: [`Affixes`].
//!
//! The steps are those of the engine's `encode_into`, and its own parts but for these two. All other tokenizers are
//! encoded by the engine alone, which is faster.

use std::borrow::Cow;
use std::slice;
use std::sync::{Mutex, PoisonError};

use tokenizers::Result;
use tokenizers::pipeline::{
    EncodeOptions, Model as _, Normalizer as _, PipelineModelScratch, PipelineNormalizer,
    PipelinePreTokenizer, PipelineToken, PipelineTokenizer, PreTokenizer as _, PreTokenizerScratch,
    Segment, Span, SpecialSegmentIterator,
};
use tokenizers::pre_tokenizers::split::{Search, Split, SplitPattern};
use tokenizers::tokenizer::SplitDelimiterBehavior;
use tokenizers::utils::search::ReplacePattern;
use tokenizers::utils::truncation::truncate_pair;

use crate::affixes::{Affixes, Word};
use crate::pattern::Pattern;

/// What is not the engine's in the steps of a tokenizer.
pub(crate) struct Steps {
    /// By normaliser, the expression and what replaces its matches.
    replacements: Vec<Option<(Pattern, String)>>,
    /// By pre-tokenizer, the expression that splits.
    splits: Vec<Option<Cutter>>,
    affixes: Option<Affixes>,
    /// The memory of threads that encode nothing now.
    idle: Mutex<Vec<Scratch>>,
}

/// An expression that splits, and what becomes of its matches.
struct Cutter {
    pattern: Pattern,
    behavior: SplitDelimiterBehavior,
    invert: bool,
}

/// What one thread keeps from text to text.
struct Scratch {
    model: PipelineModelScratch,
    cutting: PreTokenizerScratch,
    words: Vec<Span>,
    cut: Vec<Span>,
    spelled: String,
}

impl Steps {
    /// Those of a tokenizer, with the marks that were taken from it; `None` if the engine encodes it.
    ///
    /// # Errors
    /// An expression is not supported.
    pub(crate) fn of(
        pipeline: &PipelineTokenizer,
        affixes: Option<Affixes>,
    ) -> std::result::Result<Option<Self>, String> {
        let replacements = pipeline.get_normalizers().iter().map(replacement);
        let splits = pre_tokenizers(pipeline).iter().map(Cutter::of);
        let steps = Self {
            replacements: replacements.collect::<std::result::Result<_, _>>()?,
            splits: splits.collect::<std::result::Result<_, _>>()?,
            affixes,
            idle: Mutex::default(),
        };
        let is_needed = steps.affixes.is_some()
            || steps.replacements.iter().any(Option::is_some)
            || steps.splits.iter().any(Option::is_some);
        Ok(is_needed.then_some(steps))
    }

    /// Appends the ids of a text.
    pub(crate) fn encode(
        &self,
        pipeline: &PipelineTokenizer,
        text: &str,
        options: &EncodeOptions,
        ids: &mut Vec<PipelineToken>,
    ) -> Result<()> {
        let idle = || self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = idle().pop();
        let mut scratch = kept.unwrap_or_else(|| Scratch {
            model: pipeline.get_model().init_scratch(),
            cutting: PreTokenizerScratch::default(),
            words: Vec::new(),
            cut: Vec::new(),
            spelled: String::new(),
        });
        let mut found = Vec::with_capacity(text.len() / 4);
        let encoded = self.encode_parts(pipeline, text, options, &mut scratch, &mut found);
        idle().push(scratch);
        encoded?;
        let template = &pipeline.get_post_processor().single;
        let special = if options.add_special_tokens { template.n_special() } else { 0 };
        let truncation = pipeline.resolve_truncation(&options.truncation);
        let (found, _) = truncate_pair(found, None, truncation, special)?;
        let whole = if options.add_special_tokens {
            template.post_process::<true>(found, None)
        } else {
            template.post_process::<false>(found, None)
        };
        ids.extend_from_slice(whole.ids());
        Ok(())
    }

    /// The ids of the added tokens in a text, and of what is between them.
    fn encode_parts(
        &self,
        pipeline: &PipelineTokenizer,
        text: &str,
        options: &EncodeOptions,
        scratch: &mut Scratch,
        ids: &mut Vec<PipelineToken>,
    ) -> Result<()> {
        let (added, as_text) = (pipeline.get_added_vocabulary(), options.encode_special_tokens);
        for part in SpecialSegmentIterator::new(text, added, false, as_text) {
            let normal = match part {
                Segment::SpecialToken(id) => {
                    ids.push(id.into());
                    continue;
                }
                Segment::Text { text, input_offset } => {
                    self.normalize(pipeline, text, input_offset)?
                }
            };
            for part in SpecialSegmentIterator::new(&normal, added, true, as_text) {
                match part {
                    Segment::SpecialToken(id) => ids.push(id.into()),
                    Segment::Text { text, .. } => {
                        self.cut(pipeline, text, scratch)?;
                        self.encode_words(pipeline, text, scratch, ids)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn normalize<'t>(
        &self,
        pipeline: &PipelineTokenizer,
        text: &'t str,
        offset: usize,
    ) -> Result<Cow<'t, str>> {
        let mut text = Cow::Borrowed(text);
        for (normalizer, replacement) in pipeline.get_normalizers().iter().zip(&self.replacements) {
            let changed = match replacement {
                Some((pattern, content)) => pattern.replace(&text, content)?,
                None => match normalizer.normalize(&text, offset)? {
                    Cow::Borrowed(part) if part.len() == text.len() => None,
                    changed => Some(changed.into_owned()),
                },
            };
            if let Some(changed) = changed {
                text = Cow::Owned(changed);
            }
        }
        Ok(text)
    }

    /// Cuts a text into words.
    fn cut(&self, pipeline: &PipelineTokenizer, text: &str, scratch: &mut Scratch) -> Result<()> {
        let Scratch { cutting, words, cut, .. } = scratch;
        let end = u32::try_from(text.len())
            .map_err(|_| format!("it has {} bytes, which is more than 4 GiB", text.len()))?;
        words.clear();
        words.push(Span { start: 0, end });
        for (engine, cutter) in pre_tokenizers(pipeline).iter().zip(&self.splits) {
            cut.clear();
            for word in &*words {
                let (within, known) = (&text[word.range()], cut.len());
                match cutter {
                    Some(cutter) => cutter.cut(within, cut)?,
                    None => engine.pre_tokenize(within, cutting, cut)?,
                }
                for part in &mut cut[known..] {
                    part.start += word.start;
                    part.end += word.start;
                }
            }
            std::mem::swap(words, cut);
        }
        Ok(())
    }

    fn encode_words(
        &self,
        pipeline: &PipelineTokenizer,
        text: &str,
        scratch: &mut Scratch,
        ids: &mut Vec<PipelineToken>,
    ) -> Result<()> {
        let Scratch { model, words, spelled, .. } = scratch;
        for word in &*words {
            // One word at a time: the engine does not check the places of many.
            let word = &text[word.range()];
            let word = match &self.affixes {
                Some(affixes) => affixes.word(word, spelled),
                None => Word::Model(word),
            };
            match word {
                Word::Alone(id) => ids.extend(id.map(PipelineToken::from)),
                Word::Model(word) => pipeline.get_model().tokenize_pipeline(word, model, ids)?,
            }
        }
        Ok(())
    }
}

impl Cutter {
    /// That of a `Split` that the engine cannot run; `None` for all else.
    fn of(pre_tokenizer: &PipelinePreTokenizer) -> std::result::Result<Option<Self>, String> {
        let PipelinePreTokenizer::Split(split) = pre_tokenizer else { return Ok(None) };
        let Split { pattern: SplitPattern::Regex(pattern), behavior, invert, .. } = split else {
            return Ok(None);
        };
        let is_isolated = *behavior == SplitDelimiterBehavior::Isolated && !invert;
        if matches!(split.search, Search::Regex(_)) || split.grammar().is_some() && is_isolated {
            return Ok(None);
        }
        let pattern = Pattern::compile("Split", pattern)?;
        Ok(Some(Self { pattern, behavior: *behavior, invert: *invert }))
    }

    /// Appends the parts of a text.
    fn cut(&self, text: &str, parts: &mut Vec<Span>) -> Result<()> {
        let (mut pieces, mut end) = (Vec::new(), 0);
        for found in self.pattern.matches(text) {
            let found = found?;
            if end < found.start {
                pieces.push(((end, found.start), self.invert));
            }
            end = found.end;
            pieces.push(((found.start, end), !self.invert));
        }
        if end < text.len() {
            pieces.push(((end, text.len()), self.invert));
        }
        tokenizers::pipeline::split_matches(parts, pieces, self.behavior);
        Ok(())
    }
}

/// The expression of a `Replace`, and what replaces its matches; `None` for all else.
fn replacement(
    normalizer: &PipelineNormalizer,
) -> std::result::Result<Option<(Pattern, String)>, String> {
    match normalizer {
        PipelineNormalizer::Replace(replace) => match replace.pattern() {
            ReplacePattern::Regex(pattern) => {
                Ok(Some((Pattern::compile("Replace", pattern)?, replace.content.clone())))
            }
            ReplacePattern::String(_) => Ok(None),
        },
        _ => Ok(None),
    }
}

/// The pre-tokenizers that run one after the other.
fn pre_tokenizers(pipeline: &PipelineTokenizer) -> &[PipelinePreTokenizer] {
    match pipeline.get_pre_tokenizer() {
        // Three expressions for which the engine has one grammar.
        whole @ PipelinePreTokenizer::Sequence(sequence) if sequence.is_deepseek() => {
            slice::from_ref(whole)
        }
        PipelinePreTokenizer::Sequence(sequence) => sequence.pre_tokenizers(),
        one => slice::from_ref(one),
    }
}
