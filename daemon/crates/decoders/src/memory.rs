//! How much memory a decoder may need: a bound from the size that the file announces.
//!
//! A stream that turns out larger is refused by the library (`max_pixels`) or has its allocations refused by the
//! process's limit.

use forebay_video::codec::Codec;

/// The most pictures of a clip that a decoder holds at once: 16 references and as many that wait for their turn, as
/// H.264 and HEVC allow, one under work, and some that a library keeps for reuse.
pub const MAX_FRAME_COPIES: u64 = 40;
/// Decoders round sides up, and have a border around references that motion may point into.
const BORDER: u64 = 192;
/// Tables of a context, entropy decoders, scratch rows.
const FIXED_BYTES: u64 = 64 << 20;
/// Motion vectors, modes and filters' levels, in bytes for each pixel of a picture.
const SIDE_BYTES_A_PIXEL: u64 = 1;

/// The bytes of a picture with full chroma in its samples' type, an upper bound for each format.
#[must_use]
pub fn frame_bytes(width: u32, height: u32, bits: Option<u8>) -> u64 {
    let sample = if bits == Some(8) { 1 } else { 2 };
    u64::from(width).saturating_mul(height.into()).saturating_mul(3 * sample)
}

/// The most bytes that a decoder of such a stream allocates, the packets apart.
#[must_use]
pub fn working_bytes(codec: Codec, width: u32, height: u32, bits: Option<u8>) -> u64 {
    let (width, height) = (u64::from(width) + BORDER, u64::from(height) + BORDER);
    let pixels = width.saturating_mul(height);
    let copies = match codec {
        // 3 references, or 8, and some under work.
        Codec::Vp8 | Codec::Mpeg4 | Codec::Mjpeg => 8,
        Codec::Vp9 | Codec::Av1 => 20,
        _ => MAX_FRAME_COPIES,
    };
    let sample = if bits == Some(8) { 1 } else { 2 };
    let picture = pixels.saturating_mul(3 * sample + SIDE_BYTES_A_PIXEL);
    picture.saturating_mul(copies).saturating_add(FIXED_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bound_grows_with_pictures_and_not_beyond_numbers() {
        let small = working_bytes(Codec::H264, 640, 480, Some(8));
        assert!(small > FIXED_BYTES + 40 * frame_bytes(640, 480, Some(8)));
        assert!(small < 200 << 20, "{small}");
        assert!(working_bytes(Codec::H264, 640, 480, None) > small);
        assert!(working_bytes(Codec::Hevc, u32::MAX, u32::MAX, None) > 1 << 60);
    }
}
