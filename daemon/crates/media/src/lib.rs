//! Images and sounds: from a file's bytes to pixels and samples.
//!
//! [`decode`] has the image formats, [`jpeg`] decodes the format for which Forebay has its own decoder, [`sound`] reads
//! WAV and FLAC, `video` converts decoded pictures of videos. [`mod@array`] has their results and a dataset's arrays. The crate `transform` processes decoded images;
//! this crate does not depend on operations, dataset formats or threads.

#![deny(unsafe_code)]

pub mod array;
pub mod buffers;
pub mod decode;
#[doc(hidden)]
pub mod fuzzing;
pub mod jpeg;
pub mod reduction;
pub mod size;
pub mod sound;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod test_images;
pub mod video;
