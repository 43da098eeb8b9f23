//! The Forebay daemon: a folder is a step of the batch's way.

#![deny(unsafe_code)]

pub mod cli;
pub mod config;
pub mod dataset;
pub mod operation;
pub mod order;
