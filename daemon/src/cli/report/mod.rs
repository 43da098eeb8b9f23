//! Reports as a page for a browser: one file with plots, configuration and machine, for `bench` and `headspace`.
//!
//! ```text
//!   course    a measured run over time            file      where the page goes
//!   chart     plots as SVG                        markup    escaping, numbers
//!   page      the page around them                machine   what it was measured on
//! ```
//! Everything is drawn here; the page loads nothing and runs nothing.

mod bench_page;
mod chart;
mod course;
mod file;
mod headspace_page;
mod machine;
mod markup;
mod page;
mod pipeline;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub(super) use bench_page::{BenchPage, bench_page};
pub(super) use course::Recorder;
pub(super) use file::ReportFile;
pub(super) use headspace_page::{HeadspaceBars, headspace_page};
