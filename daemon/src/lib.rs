//! The Forebay daemon: a folder is a step of the batch's way.
//!
//! [`config`] → [`order`] → [`storage`] and [`dataset`] → [`operation`] → `engine` → `publish`; [`observe`] measures all of
//! them and [`cli`] is what a person types.

#![deny(unsafe_code)]

pub mod cli;
pub mod config;
pub mod dataset;
pub mod engine;
#[doc(hidden)]
pub mod fuzzing;
mod lock_file;
pub mod observe;
pub mod operation;
pub mod order;
pub mod publish;
pub mod storage;
