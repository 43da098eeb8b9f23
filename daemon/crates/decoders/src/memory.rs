//! How much memory a decoder may need: a bound from the size that the file announces.
//!
//! A stream that turns out larger is refused by the library (`max_pixels`) or has its allocations refused by the
//! process's limit.

use forebay_video::codec::Codec;

/// The most pixels of a picture of a video: the largest level of H.264, HEVC and AV1.
pub const MAX_VIDEO_PIXELS: u64 = 8192 * 4352;
/// References of H.264 and HEVC: at most 16, and at most so many pixels in all.
const MAX_REFERENCES: u64 = 16;
const MAX_REFERENCE_PIXELS: u64 = 696_320 * 256;
/// Pictures under work, and those that a library keeps for reuse.
const OTHER_PICTURES: u64 = 8;
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
    let bordered = (u64::from(width) + BORDER).saturating_mul(u64::from(height) + BORDER);
    let references = match codec {
        Codec::Vp8 | Codec::Mpeg4 | Codec::Mjpeg => 4,
        Codec::Vp9 | Codec::Av1 => 8,
        // As many wait for their turn to be shown.
        _ => 2 * most_references(u64::from(width).saturating_mul(height.into())),
    };
    bytes_of(bordered, references, bits)
}

/// The same for any stream whose pictures have at most so many pixels.
#[must_use]
pub fn most_working_bytes(pixels: u64) -> u64 {
    // The border of a picture that is 16 times as wide as high.
    let side = pixels.isqrt().saturating_mul(5);
    let bordered =
        pixels.saturating_add(side.saturating_mul(BORDER)).saturating_add(BORDER * BORDER);
    // A smaller picture may have more references: as many pixels in all as the largest, or 16.
    let largest = bytes_of(bordered, 2 * most_references(pixels), None);
    let shared = MAX_REFERENCE_PIXELS.min(pixels.saturating_mul(MAX_REFERENCES));
    largest.max(bytes_of(shared / MAX_REFERENCES + bordered / 4, 2 * MAX_REFERENCES, None))
}

fn most_references(pixels: u64) -> u64 {
    (MAX_REFERENCE_PIXELS / pixels.max(1)).clamp(1, MAX_REFERENCES)
}

fn bytes_of(bordered_pixels: u64, references: u64, bits: Option<u8>) -> u64 {
    let sample = if bits == Some(8) { 1 } else { 2 };
    let picture = bordered_pixels.saturating_mul(3 * sample + SIDE_BYTES_A_PIXEL);
    picture.saturating_mul(references + OTHER_PICTURES).saturating_add(FIXED_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bound_grows_with_pictures_and_not_beyond_numbers() {
        let small = working_bytes(Codec::H264, 640, 480, Some(8));
        assert!(small > FIXED_BYTES + 40 * frame_bytes(640, 480, Some(8)));
        assert!(small < 256 << 20, "{small}");
        assert!(working_bytes(Codec::H264, 640, 480, None) > small);
        assert!(working_bytes(Codec::Hevc, u32::MAX, u32::MAX, None) > 1 << 60);
        for (width, height) in [(640, 480), (1920, 1080), (4096, 2304), (8192, 4352), (3000, 200)] {
            let most = most_working_bytes(u64::from(width) * u64::from(height));
            assert!(most >= working_bytes(Codec::H264, width, height, None), "{width} {most}");
        }
        assert!(most_working_bytes(MAX_VIDEO_PIXELS) < 6 << 30);
    }
}
