//! The protocol between a Forebay daemon and its clients: control frames and shared memory.
//!
//! - [`frames`] and [`wire`]: the control frames and their bytes; [`socket`] carries them with descriptors.
//! - [`tensor`] and [`layout`]: the tensors of a batch and their offsets in a slot.
//! - [`pixel_values`]: the output values of an image's bytes; [`finish`]: the conversion that is left to the client's
//!   GPU; [`mix`]: the mixing of a batch's rows.
//! - [`segment`]: sealed shared memory; [`slots`]: the rows of the data segment; [`sealed`]: immutable bytes that
//!   processes exchange; [`window`]: memory that a process shares with an untrusted one.
//! - [`launcher`]: the rank that launchers state for a process; [`identity`]: the values that the ranks of a job must
//!   share.
//! - [`runtime_folder`]: the folder of a user's sockets.
//! - [`publish`] and [`returns`]: the two rings; [`lease`]: the state of each slot, on the daemon's heap.
//!
//! The rings are generic over [`words::Words`], so the same code runs over shared memory, over the heap and under the
//! model checker. Datasets, threads and GPUs are not handled here.

#![deny(unsafe_code)]

#[cfg(not(loom))]
mod aligned_mapping;
#[cfg(not(loom))]
pub mod clock;
pub mod counted;
pub mod cuts;
mod dtype;
pub mod finish;
pub mod frames;
#[cfg(not(loom))]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(not(loom))]
pub mod huge_pages;
pub mod identity;
pub mod ids;
#[cfg(not(loom))]
pub mod launcher;
pub mod layout;
pub mod lease;
#[cfg(not(loom))]
pub mod mapped_file;
pub mod mix;
pub mod observing;
pub mod pixel_values;
pub mod publish;
pub mod returns;
#[cfg(not(loom))]
pub mod runtime_folder;
pub mod sync;
pub mod tensor;
pub mod wire;
pub mod words;

#[cfg(not(loom))]
pub mod sealed;
#[cfg(not(loom))]
pub mod segment;
#[cfg(not(loom))]
pub mod slots;
#[cfg(not(loom))]
pub mod socket;
#[cfg(not(loom))]
pub mod window;

#[cfg(all(test, loom))]
mod loom_tests;
