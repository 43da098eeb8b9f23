//! What shows a running daemon: commands, the web page and reports. It asks daemons and never runs one.

#![forbid(unsafe_code)]
// It panics on a closed pipe: see `output`.
#![cfg_attr(not(test), deny(clippy::print_stdout))]

pub mod bench_report;
pub mod error_text;
pub mod flame;
pub mod headspace;
pub mod http;
pub mod observer;
pub mod output;
mod page;
pub mod profile;
pub mod report;
mod sanitize;
pub mod stats;
pub mod table;
pub mod top;
pub mod trace;
