//! Commands, web page and reports that show a running daemon. They send requests to daemons and never run one.

#![forbid(unsafe_code)]
// `println!` panics on a closed pipe: see `output`.
#![cfg_attr(not(test), deny(clippy::print_stdout))]

pub mod bench_report;
pub mod error_text;
pub mod flame;
pub mod headspace;
#[cfg(feature = "http")]
pub mod http;
#[cfg(not(feature = "http"))]
#[path = "no_http.rs"]
pub mod http;
pub mod observer;
pub mod output;
mod page;
pub mod profile;
pub mod question;
pub mod report;
mod sanitize;
pub mod stats;
pub mod table;
#[cfg(feature = "tui")]
pub mod top;
#[cfg(not(feature = "tui"))]
#[path = "no_top.rs"]
pub mod top;
pub mod trace;
