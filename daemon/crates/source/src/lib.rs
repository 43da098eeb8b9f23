//! Where samples come from: [`storage`] reads bytes, [`dataset`] says which bytes a sample is and what is in them,
//! [`location`] is what the two have in common, [`codec`] unpacks what is compressed.

#![forbid(unsafe_code)]

pub mod codec;
pub mod dataset;
pub mod location;
pub mod storage;
