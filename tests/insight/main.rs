//! Promise P8, it says what is wrong: `stats`, the verdict, `top`, traces, reports, `--profile`, `doctor` and headspace.

#![forbid(unsafe_code)]

mod doctor;
mod headspace;
mod metrics;
mod namespaces;
mod profile;
mod report;
mod show;
mod top;
mod traces;
