//! Frames as bytes: bincode with fixed-width little-endian integers, always with a limit.
//!
//! This is the only file that names bincode. `docs/decisions/0001-bincode.md` says how to leave it.

use bincode::config::{Configuration, Fixint, Limit, LittleEndian};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The largest frame in bytes.
pub const MAX_FRAME_BYTES: usize = 65_536;

/// The one-byte frame that wakes the other side. No bincode frame is one byte long: each begins with a u32.
pub const DOORBELL: u8 = 0x21;

/// Why bytes are no frame, or a frame has no bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The bytes are not a frame of this protocol version.
    #[error("a control frame of {bytes} bytes cannot be read: {reason}")]
    Malformed {
        /// Its size.
        bytes: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// The frame is larger than [`MAX_FRAME_BYTES`].
    #[error("a control frame exceeds {MAX_FRAME_BYTES} bytes: {0}")]
    TooLarge(String),
}

fn configuration() -> Configuration<LittleEndian, Fixint, Limit<MAX_FRAME_BYTES>> {
    bincode::config::standard()
        .with_little_endian()
        .with_fixed_int_encoding()
        .with_limit::<MAX_FRAME_BYTES>()
}

/// A frame's bytes.
///
/// # Errors
/// When they exceed the limit.
pub fn encode<T: Serialize>(frame: &T) -> Result<Vec<u8>, WireError> {
    let bytes = bincode::serde::encode_to_vec(frame, configuration())
        .map_err(|error| WireError::TooLarge(error.to_string()))?;
    if bytes.len() > MAX_FRAME_BYTES {
        return Err(WireError::TooLarge(format!("{} bytes", bytes.len())));
    }
    Ok(bytes)
}

/// The frame that the bytes are, all of them.
///
/// # Errors
/// When they are anything else.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, WireError> {
    let malformed = |reason: String| WireError::Malformed { bytes: bytes.len(), reason };
    let (frame, read) = bincode::serde::decode_from_slice(bytes, configuration())
        .map_err(|error| malformed(error.to_string()))?;
    if read == bytes.len() {
        Ok(frame)
    } else {
        Err(malformed(format!("{} bytes are left over", bytes.len() - read)))
    }
}

#[cfg(test)]
mod tests;
