//! Tables of the packets of video files, and the clips that are decoded from them.
//!
//! A [`Table`] says where the packets of a file are and when their frames are shown; `mp4` and `matroska` read it from a
//! file. `choose` says which frames a sample has, and a [`Cut`] what of the file they need. A [`Clip`](clip::Clip) is what a decoder receives: the packets that some frames need, and the times of these
//! frames. `codec` names what a stream is coded with and how its pictures are to be shown. The crate decodes nothing, and
//! it knows nothing of Forebay's configuration.
//!
//! Times are those of `FFmpeg`: edit lists are applied, so that a frame has the time that torchcodec gives it.

#![forbid(unsafe_code)]

pub mod choose;
pub mod clip;
pub mod codec;
mod cut;
mod error;
#[doc(hidden)]
pub mod fuzzing;
pub mod matroska;
pub mod mp4;
mod read_at;
pub mod table;
mod varint;

pub use cut::Cut;
pub use error::{Refused, Result};
pub use read_at::{Failure, ReadAt};
pub use table::Table;

/// Whether a file begins as one of a container that is known.
#[must_use]
pub fn begins(bytes: &[u8]) -> bool {
    matroska::begins(bytes) || mp4::begins(bytes)
}

/// Reads the table of a file of any container that is known.
///
/// # Errors
/// The file cannot be read, is of another container, or says what cannot be.
pub fn read<R: ReadAt>(mut source: R) -> std::result::Result<Table, Failure<R::Error>> {
    let mut first = Vec::new();
    let length = source.length_bytes().min(16);
    source.read_at(0..length, &mut first).map_err(Failure::Read)?;
    match matroska::begins(&first) {
        true => matroska::read(source),
        false => mp4::read(source),
    }
}
