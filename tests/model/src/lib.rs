//! The daemon's hand-over of rows to sleeping threads, compiled by itself so that it can be model-checked.
//!
//! The daemon cannot be built with `--cfg loom`: its runtime takes that for itself. The file under test uses nothing but
//! the protocol crate's atomics, so it is taken in here by its path. Without `--cfg loom` only its own tests run.

#![forbid(unsafe_code)]

#[allow(dead_code, reason = "the daemon uses all of it")]
#[path = "../../../daemon/src/engine/hand_over.rs"]
mod hand_over;

#[cfg(all(test, loom))]
mod loom_tests;
