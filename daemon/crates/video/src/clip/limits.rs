//! What a clip and a table may have at most.

/// Packets of a clip.
pub const MAX_PACKETS: u32 = 1 << 20;
/// Frames of a clip's result.
pub const MAX_WANTED: u32 = 1 << 16;
/// Bytes of a decoder's configuration.
pub const MAX_CONFIGURATION_BYTES: u32 = 1 << 20;
/// Pixels of a side of a picture.
pub const MAX_SIDE: u32 = 1 << 16;
