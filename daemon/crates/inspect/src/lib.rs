//! What shows a running daemon: commands, the web page and reports. It asks daemons and never runs one.

#![forbid(unsafe_code)]

pub mod bench_report;
pub mod error_text;
pub mod flame;
pub mod headspace;
pub mod http;
pub mod observer;
mod page;
pub mod profile;
pub mod report;
mod sanitize;
pub mod stats;
pub mod table;
pub mod top;
pub mod trace;
