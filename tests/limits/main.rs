//! P8: it says what the limit is, what a faster loader would gain, and what to change.

#![forbid(unsafe_code)]

mod doctor;
mod headspace;
