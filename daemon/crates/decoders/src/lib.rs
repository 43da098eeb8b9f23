//! Decoders of video and sound that the host has: libavcodec, opened at run time.
//!
//! ```text
//!   library     finds and opens libavcodec; knows which decoders it has
//!   layout      offsets of the few fields that have no public function, for each major version
//!   stream      one decoder: packets in, pictures or blocks of sound out
//!   picture     a decoded picture's format, colours and planes
//!   clip        decodes a clip: which packets are sent, which pictures are wanted, what is a defect
//!   sound       decodes a sound to floats; how it is asked for
//!   frames      the pictures of a clip as bytes, between the process that decodes and the one that asked
//!   memory      how much a decoder may need
//! ```
//! Packets only: no file is opened, no container is read (`forebay-video` does that), no colour is converted. A decoder
//! runs on one thread, the caller's. It is called in a process that may be lost at any time, because the bytes are
//! untrusted and the library is foreign; this crate starts no process and knows nothing of Forebay's.
//!
//! `unsafe` is in `library` and `stream`, see `docs/decisions/0005-unsafe-code.md`.

#![deny(unsafe_code)]

mod clip;
mod frames;
mod layout;
mod library;
mod memory;
mod picture;
mod sound;
mod stream;

pub use clip::{Defect, Output, decode};
pub use frames::{Frame, Frames};
pub use library::{FOLDER_VARIABLE, Library, MAJORS, Missing};
pub use memory::{MAX_VIDEO_PIXELS, frame_bytes, most_working_bytes, working_bytes};
pub use picture::{Colors, Family, Format};
pub use sound::{MAX_SOUND_CHANNELS, SOUND_WORKING_BYTES, SoundRequest, decode_sound};
