//! The encoding of frames: bincode with fixed-width little-endian integers and a size limit.
//!
//! This is the only file that uses bincode. `docs/decisions/0001-bincode.md` describes how to replace it.

use bincode::config::{Configuration, Fixint, Limit, LittleEndian};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The maximum size of a frame.
pub const MAX_FRAME_BYTES: usize = 65_536;

/// The one-byte frame that wakes the peer. No bincode frame is one byte long: each begins with a u32.
pub const DOORBELL: u8 = 0x21;

/// A frame that cannot be decoded or encoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The bytes are not a frame of this protocol version.
    #[error("a control frame of {bytes} bytes cannot be decoded: {reason}")]
    Malformed {
        /// Its size.
        bytes: usize,
        /// The reason.
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

/// Encodes a frame.
///
/// # Errors
/// The frame exceeds the limit.
pub fn encode<T: Serialize>(frame: &T) -> Result<Vec<u8>, WireError> {
    let bytes = bincode::serde::encode_to_vec(frame, configuration())
        .map_err(|error| WireError::TooLarge(error.to_string()))?;
    if bytes.len() > MAX_FRAME_BYTES {
        return Err(WireError::TooLarge(format!("{} bytes", bytes.len())));
    }
    Ok(bytes)
}

/// Decodes a frame from exactly these bytes.
///
/// # Errors
/// The bytes are not exactly one frame.
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
