//! Where samples come from: [`storage`] reads bytes, [`dataset`] says which bytes a sample is and what is in them,
//! [`location`] is what the two have in common.

#![forbid(unsafe_code)]

pub mod dataset;
pub mod location;
pub mod storage;
