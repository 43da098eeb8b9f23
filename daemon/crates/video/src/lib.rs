//! Tables of the packets of video files, and the clips that are decoded from them.
//!
//! A [`Clip`](clip::Clip) is what a decoder receives: the packets that some frames need, and the times of these frames.
//! `codec` names what a stream is coded with and how its pictures are to be shown. The crate decodes nothing, and it
//! knows nothing of Forebay's configuration.

#![forbid(unsafe_code)]

pub mod clip;
pub mod codec;
mod error;
mod varint;

pub use error::{Refused, Result};
