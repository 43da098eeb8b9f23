//! The Forebay client: attaches to a daemon, takes finished batches from shared memory and returns them when they are
//! dropped.
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
//! - [`loader`]: epochs, positions and state of a session; [`builder`]: the settings of a loader, and the attach.
//! - [`target`]: the targets of an attach; [`program`]: the private daemon's process; [`rank`]: rank and world size.
//! - `supervisor`: replaces a dead daemon; its documentation draws the states of a client.
//! - [`padding`]: ragged rows as one array, padded to the longest of their batch.
//! - [`batch`] and [`views`]: a leased batch and its tensors. A batch is a reference-counted lease of a slot of the ring;
//!   dropping its last clone returns the slot. Slots return in any order.
//! - [`finish`]: the conversion that is left to the client's GPU, with a CPU implementation.
//! - [`SessionStatus`]: what all kinds of loaders know of their session.
//! - [`state`]: a stream's state for a checkpoint; [`statistics`]: the client's waits.
//! - [`cuda`]: copies batches to a GPU ahead of the trainer.
//!
//! Without a GPU this crate does not decode, copy or start threads per batch; a loader's one thread, the supervisor's,
//! sleeps as long as the daemon lives. `unsafe` is confined to [`views`] and [`cuda`].

#![deny(unsafe_code)]

pub mod batch;
pub mod builder;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod error;
pub mod finish;
pub mod job;
mod leases;
mod link;
pub mod loader;
pub mod padding;
mod patience;
pub mod program;
pub mod rank;
mod ring;
pub mod rows;
mod session_status;
mod shared_daemon;
pub mod state;
pub mod statistics;
mod stream_cursor;
mod supervisor;
pub mod target;
pub mod views;

pub use batch::Batch;
pub use builder::Builder;
#[cfg(feature = "cuda")]
pub use cuda::{DeviceBatch, DeviceLoader};
pub use error::Error;
pub use forebay_protocol::ids::Position;
pub use forebay_protocol::tensor::{DType, Extent, TensorSpec};
pub use loader::{Loader, Next};
pub use padding::PaddedRows;
pub use rank::{Placement, RankSource};
pub use session_status::SessionStatus;
pub use state::State;
pub use statistics::{DurationHistogram, WaitStatistics};
pub use stream_cursor::MAX_HELD_BACK;
pub use target::Target;
pub use views::{Ragged, Tensor};
