//! The daemon's hand-over of rows to sleeping threads and the client's leases, compiled by themselves so that they can be
//! model-checked.
//!
//! The daemon cannot be built with `--cfg loom`: its runtime takes that for itself. The files under test use nothing but
//! the protocol crate, so they are taken in here by their paths. Without `--cfg loom` only their own tests run.

#![deny(unsafe_code)]

#[allow(dead_code, reason = "the daemon uses all of it")]
#[path = "../../../daemon/crates/engine/src/ground/work_parking.rs"]
mod work_parking;

#[allow(dead_code, reason = "the client uses all of it")]
#[path = "../../../client-lib/src/leases.rs"]
mod leases;

#[cfg(all(test, loom))]
mod lease_models;
#[cfg(all(test, loom))]
mod work_parking_models;
