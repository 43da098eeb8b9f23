//! Promise P8, it says what is wrong: mistakes in a configuration, data that cannot be read, machines that do not grant
//! what is asked. Each message names the place and the remedy. And P10, it outlasts storage that goes away (`outages`).

#![forbid(unsafe_code)]

mod bad_samples;
mod broken_files;
mod budgets;
mod cache;
mod changing_files;
mod killers;
mod memory;
mod mistakes;
mod outages;
mod pictures;
mod remote;
mod stalls;
