//! The first frame of an animation on its canvas, as libwebp's `WebPAnimDecoder` and thereby Pillow give it.
//!
//! image-webp blends the first frame with the canvas, which loses the colours of transparent pixels. libwebp blends only
//! later frames. So the frame is decoded as a still file, and placed here.

use std::io::Cursor;

use image_webp::WebPDecoder;

use super::defect;
use crate::buffers::prepare;
use crate::decode::colour;
use crate::size::Size;
use forebay_dataset::Defect;

/// Position, size, duration and flags of a frame come before its image.
const FRAME_HEADER_BYTES: usize = 16;
/// Of a `VP8X` chunk: the image has alpha.
const HAS_ALPHA: u8 = 0x10;

/// The chunks of a container: names and contents. Ends at a chunk that is truncated.
fn chunks(mut bytes: &[u8]) -> impl Iterator<Item = (&[u8; 4], &[u8])> {
    std::iter::from_fn(move || {
        let (name, rest) = bytes.split_first_chunk::<4>()?;
        let (length, rest) = rest.split_first_chunk::<4>()?;
        let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
        let content = rest.get(..length)?;
        // Chunks are padded to even lengths.
        bytes = rest.get(length + length % 2..).unwrap_or_default();
        Some((name, content))
    })
}

fn number(bytes: [u8; 3]) -> u32 {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], 0])
}

/// The first frame of an animation.
struct Frame<'f> {
    left: u32,
    top: u32,
    size: Size,
    /// The chunks of its image.
    image: &'f [u8],
}

impl<'f> Frame<'f> {
    fn first(file: &'f [u8], canvas: Size) -> Result<Self, Defect> {
        let content = chunks(file.get(12..).unwrap_or_default())
            .find(|(name, _)| *name == b"ANMF")
            .ok_or_else(|| defect("its first frame is missing, or truncated"))?
            .1;
        let (header, image) = content
            .split_at_checked(FRAME_HEADER_BYTES)
            .ok_or_else(|| defect("the header of its first frame is truncated"))?;
        let [left, top, width, height] =
            [0, 3, 6, 9].map(|at| number([header[at], header[at + 1], header[at + 2]]));
        let frame = Self {
            left: 2 * left,
            top: 2 * top,
            size: Size { width: width + 1, height: height + 1 },
            image,
        };
        if frame.left + frame.size.width > canvas.width
            || frame.top + frame.size.height > canvas.height
        {
            return Err(defect("its first frame is larger than the image"));
        }
        Ok(frame)
    }

    /// The frame as a file that is no animation, and whether it has alpha.
    fn still(&self) -> (Vec<u8>, bool) {
        let has_alpha = chunks(self.image).any(|(name, _)| matches!(name, b"ALPH" | b"VP8L"));
        let size = u32::try_from(4 + 18 + self.image.len()).unwrap_or(u32::MAX);
        let flags = if has_alpha { HAS_ALPHA } else { 0 };
        let side = |side: u32| (side - 1).to_le_bytes();
        let mut file = Vec::with_capacity(12 + 18 + self.image.len());
        file.extend_from_slice(b"RIFF");
        file.extend_from_slice(&size.to_le_bytes());
        file.extend_from_slice(b"WEBPVP8X\x0a\0\0\0");
        file.extend_from_slice(&[flags, 0, 0, 0]);
        file.extend_from_slice(&side(self.size.width)[..3]);
        file.extend_from_slice(&side(self.size.height)[..3]);
        file.extend_from_slice(self.image);
        (file, has_alpha)
    }
}

/// Decodes the first frame. The canvas is transparent around it, black without alpha.
pub(super) fn decode(
    file: &[u8],
    canvas: Size,
    has_alpha: bool,
    channels: u8,
    unconverted: &mut Vec<u8>,
    pixels: &mut Vec<u8>,
) -> Result<(), Defect> {
    let frame = Frame::first(file, canvas)?;
    let (still, frame_has_alpha) = frame.still();
    let mut decoder = WebPDecoder::new(Cursor::new(&still[..])).map_err(defect)?;
    decoder.set_memory_limit(still.len());
    let frame_channels = if frame_has_alpha { 4 } else { 3 };
    let row = frame.size.width as usize * usize::from(frame_channels);
    let bytes = row * frame.size.height as usize;
    if decoder.output_buffer_size() != Some(bytes) {
        return Err(defect("two headers of its first frame"));
    }
    let from = prepare(unconverted, bytes);
    decoder.read_image(from).map_err(defect)?;

    let pixel_bytes = usize::from(channels);
    let canvas_row = canvas.width as usize * pixel_bytes;
    let out = prepare(pixels, canvas_row * canvas.height as usize);
    out.fill(0);
    let start = frame.left as usize * pixel_bytes;
    let rows = out.chunks_exact_mut(canvas_row).skip(frame.top as usize);
    for (out, from) in rows.zip(from.chunks_exact(row)) {
        let out = &mut out[start..][..frame.size.width as usize * pixel_bytes];
        colour::convert(frame_channels, from, channels, out);
    }
    if !has_alpha && channels == 4 {
        out.iter_mut().skip(3).step_by(4).for_each(|alpha| *alpha = 255);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::{Form, decode as decode_file, read_header};
    use super::*;
    use crate::decode::format::Content;

    const CANVAS: Size = Size { width: 6, height: 5 };
    const FRAME: Size = Size { width: 3, height: 2 };

    fn chunk(name: &[u8; 4], content: &[u8]) -> Vec<u8> {
        let length = u32::try_from(content.len()).unwrap().to_le_bytes();
        let padding = vec![0; content.len() % 2];
        [&name[..], &length, content, &padding].concat()
    }

    /// A still frame as the encoder writes it, without the file's first 12 bytes.
    fn image(rgba: &[u8]) -> Vec<u8> {
        let mut still = Vec::new();
        let encoder = image_webp::WebPEncoder::new(&mut still);
        let (width, height) = (FRAME.width, FRAME.height);
        encoder.encode(rgba, width, height, image_webp::ColorType::Rgba8).unwrap();
        // In a container of its own the encoder puts no chunk before the image.
        assert_eq!(&still[12..16], b"VP8L");
        still.split_off(12)
    }

    /// An animation of a frame at column 2 and row 2, and of a second one.
    fn animation(flags: u8, rgba: &[u8]) -> Vec<u8> {
        let frame = |rgba: &[u8]| {
            let header = [1, 0, 0, 1, 0, 0, 2, 0, 0, 1, 0, 0, 100, 0, 0, 0];
            chunk(b"ANMF", &[&header[..], &image(rgba)].concat())
        };
        let extended = chunk(b"VP8X", &[2 | flags, 0, 0, 0, 5, 0, 0, 4, 0, 0]);
        // Of a background that is not used.
        let control = chunk(b"ANIM", &[50, 60, 70, 255, 0, 0]);
        let frames = [frame(rgba), frame(&[77; 24])].concat();
        chunk(b"RIFF", &[&b"WEBP"[..], &extended, &control, &frames].concat())
    }

    fn pixels(file: &[u8], channels: u8) -> Vec<u8> {
        assert_eq!(read_header(file, false).unwrap().0, CANVAS);
        let form = Form { channels, content: Content::Colours };
        let mut pixels = vec![9; 500];
        decode_file(file, CANVAS, form, &mut Vec::new(), &mut pixels).unwrap();
        pixels.truncate(6 * 5 * usize::from(channels));
        pixels
    }

    #[test]
    fn colours_under_alpha_0_are_kept_in_the_first_frame() {
        let rgba: Vec<u8> =
            (0..6).flat_map(|at| [200, 10 * at, 30, [0, 255, 90][at as usize % 3]]).collect();
        let file = animation(HAS_ALPHA, &rgba);
        let (rgb, with_alpha) = (pixels(&file, 3), pixels(&file, 4));
        for (place, (rgb, with_alpha)) in
            rgb.chunks_exact(3).zip(with_alpha.chunks_exact(4)).enumerate()
        {
            let (column, row) = (place % 6, place / 6);
            let expected = if (2..5).contains(&column) && (2..4).contains(&row) {
                &rgba[((row - 2) * 3 + column - 2) * 4..][..4]
            } else {
                &[0; 4]
            };
            assert_eq!((rgb, with_alpha), (&expected[..3], expected), "{column} {row}");
        }
        // A canvas without alpha is opaque everywhere.
        let opaque = pixels(&animation(0, &rgba), 4);
        assert!(opaque.chunks_exact(4).all(|pixel| pixel[3] == 255));
        assert_eq!(opaque[(2 * 6 + 2) * 4..][..3], rgba[..3]);
    }

    #[test]
    fn frames_that_are_truncated_or_beyond_the_canvas_are_defects() {
        let file = animation(HAS_ALPHA, &[200; 24]);
        let form = Form { channels: 3, content: Content::Colours };
        let refused = |file: &[u8]| {
            decode_file(file, CANVAS, form, &mut Vec::new(), &mut Vec::new()).unwrap_err().0
        };
        let frame = file.windows(4).position(|name| name == b"ANMF").unwrap() + 8;
        let mut beyond = file.clone();
        beyond[frame] = 2;
        assert!(refused(&beyond).ends_with("its first frame is larger than the image"));
        let mut other = file.clone();
        other[frame + 6] = 1;
        assert!(refused(&other).starts_with("cannot decode the WebP file"));
        let length = u32::from_le_bytes(file[frame - 4..frame].try_into().unwrap()) as usize;
        for end in frame..file.len() {
            let mut pixels = Vec::new();
            let decoded = decode_file(&file[..end], CANVAS, form, &mut Vec::new(), &mut pixels);
            assert!(end >= frame + length || decoded.is_err(), "{end}");
        }
    }
}
