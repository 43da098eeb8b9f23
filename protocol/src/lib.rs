//! What a Forebay daemon and its clients must agree on, and nothing else.
//!
//! - [`frames`] and [`wire`]: the control frames and their bytes; [`socket`] carries them with descriptors.
//! - [`tensor`] and [`layout`]: the tensors of a batch and where they lie in a slot.
//! - [`pixel_values`]: what a byte of an image becomes; [`finish`]: what of that is left to the client's GPU.
//! - [`segment`]: sealed shared memory; [`slots`]: the rows of the data segment; [`kept`]: sealed bytes for a restart.
//! - [`publish`] and [`returns`]: the two rings; [`lease`]: who holds which slot, in the daemon's heap.
//!
//! The rings are generic over [`words::Words`], so the same code runs over shared memory, over the heap and under the
//! model checker. Nothing here knows of data sets, threads or GPUs.

#![deny(unsafe_code)]

#[cfg(not(loom))]
pub mod clock;
pub mod finish;
pub mod frames;
#[cfg(not(loom))]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(not(loom))]
pub mod huge_pages;
pub mod ids;
#[cfg(not(loom))]
pub mod kept;
pub mod layout;
pub mod lease;
#[cfg(not(loom))]
pub mod mapped_file;
pub mod observing;
pub mod pixel_values;
pub mod publish;
pub mod returns;
pub mod sync;
pub mod tensor;
pub mod wire;
pub mod words;

#[cfg(not(loom))]
pub mod segment;
#[cfg(not(loom))]
pub mod slots;
#[cfg(not(loom))]
pub mod socket;

#[cfg(all(test, loom))]
mod loom_tests;
