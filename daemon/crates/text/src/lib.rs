//! Texts, conversations and their tokens. Knows nothing of samples and batches.
//!
//! The crate `tokenizers` does the work; its version is pinned, because its ids are compared with those of the Python
//! package of the same name (`fixtures/make.py`).

#![forbid(unsafe_code)]

mod affixes;
mod characters;
mod chat;
pub mod fuzzing;
mod pattern;
mod python;
mod spelling;
mod steps;
mod tokenizer;

pub use chrono::NaiveDate as Date;

pub use chat::{Rendered, Template, TemplateError};
pub use spelling::Spelling;
pub use tokenizer::{
    Options, Side, TextError, Tokenizer, TokenizerError, Tokens, read_file as read_tokenizer,
};
