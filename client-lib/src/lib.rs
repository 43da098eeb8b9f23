//! The Forebay client: attach to a daemon, take finished batches from shared memory, give them back by dropping them.
//!
//! ```no_run
//! let mut loader = forebay_client::Loader::attach("train.toml")?;
//! while let Some(batch) = loader.next_batch()? {
//!     let labels: &[i64] = batch.require("label")?.as_slice()?;
//!     println!("{} samples, first label {:?}", batch.rows(), labels.first());
//! }
//! # Ok::<(), forebay_client::Error>(())
//! ```
//!
//! - [`loader`]: epochs, positions and state over a session; [`builder`] says where and as whom to attach.
//! - [`target`]: what can be attached to; [`program`]: the private daemon's process; [`rank`]: which rank this is.
//! - `keeper`: sees to the next daemon when one dies; its head has the states of a client through that.
//! - [`batch`] and [`views`]: a leased batch and its tensors. A batch is a reference-counted lease on a slot of the
//!   ring; its last clone returns the slot. Slots return in any order.
//! - [`finish`]: what the configuration leaves to the client's GPU, and the same on the CPU.
//! - [`state`]: what a checkpoint keeps; [`statistics`]: what waiting cost.
//!
//! - [`cuda`]: batches copied to a GPU ahead of the trainer.
//!
//! Without a GPU nothing here decodes, copies or starts a thread while batches flow; the one thread of a loader, its
//! keeper's, sleeps as long as the daemon lives. `unsafe` lives in [`views`] and [`cuda`] alone.

#![deny(unsafe_code)]

pub mod batch;
pub mod builder;
pub mod cuda;
pub mod error;
pub mod finish;
mod keeper;
mod leases;
mod link;
pub mod loader;
mod place;
pub mod program;
pub mod rank;
mod ring;
pub mod state;
pub mod statistics;
pub mod target;
pub mod views;

pub use batch::Batch;
pub use builder::Builder;
pub use cuda::{DeviceBatch, DeviceLoader};
pub use error::Error;
pub use forebay_protocol::ids::Position;
pub use forebay_protocol::tensor::{DType, Extent, TensorSpec};
pub use loader::{Loader, Next};
pub use place::MAX_HELD_BACK;
pub use rank::{Placement, RankSource};
pub use state::State;
pub use statistics::{Times, WaitStatistics};
pub use target::Target;
pub use views::{Ragged, Tensor};
