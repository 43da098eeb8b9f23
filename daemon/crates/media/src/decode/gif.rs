//! GIF through the crate `gif`: the first frame, on the canvas that all frames share.
//!
//! Pixels outside the frame have its transparent colour, or the first one of its palette, as in Pillow.

use gif::{ColorOutput, DecodeOptions, Decoder, MemoryLimit};

use super::colour;
use super::format::{Content, Form, Format};
use crate::buffers::prepare;
use crate::size::Size;
use forebay_dataset::Defect;

pub(super) const FORMAT: Format = Format {
    begins: |file| matches!(file, [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..]),
    may_be_wide: false,
    read_header: |file, _| Ok((Picture::open(file)?.size(), 1)),
    bytes_beside_pixels: |file, size, _| {
        let area = u64::from(size.width) * u64::from(size.height);
        // The frame and the canvas, as indices; the crate's copies of extensions, and its tables.
        2 * area + 2 * file.len() as u64 + (256 << 10)
    },
    decode,
};

fn defect(reason: impl std::fmt::Display) -> Defect {
    Defect(format!("cannot decode the GIF file: {reason}"))
}

/// A file whose first frame is to be read next.
struct Picture<'f> {
    decoder: Decoder<&'f [u8]>,
    /// From the left and the top.
    corner: [usize; 2],
    frame: [usize; 2],
    transparent: Option<u8>,
}

impl<'f> Picture<'f> {
    fn open(file: &'f [u8]) -> Result<Self, Defect> {
        let mut options = DecodeOptions::new();
        options.set_color_output(ColorOutput::Indexed);
        options.allow_unknown_blocks(true);
        // Limits extensions, which are parts of the file.
        let most = std::num::NonZeroU64::new(file.len() as u64)
            .map_or(MemoryLimit::Unlimited, MemoryLimit::Bytes);
        options.set_memory_limit(most);
        let mut decoder = options.read_info(file).map_err(defect)?;
        let Some(frame) = decoder.next_frame_info().map_err(defect)? else {
            return Err(defect("it has no frame"));
        };
        let corner = [frame.left, frame.top].map(usize::from);
        let (transparent, frame) =
            (frame.transparent, [frame.width, frame.height].map(usize::from));
        if frame.contains(&0) {
            return Err(defect("its first frame has no pixels"));
        }
        Ok(Self { decoder, corner, frame, transparent })
    }

    /// The canvas' size, extended if the frame exceeds it.
    fn size(&self) -> Size {
        let side = |screen: u16, axis: usize| {
            let end = self.corner[axis] + self.frame[axis];
            u32::try_from(end.max(usize::from(screen))).unwrap_or(u32::MAX)
        };
        Size { width: side(self.decoder.width(), 0), height: side(self.decoder.height(), 1) }
    }
}

/// Decodes the image, converted to 1, 3 or 4 channels.
fn decode(
    file: &[u8],
    size: Size,
    form: Form,
    unconverted: &mut Vec<u8>,
    pixels: &mut Vec<u8>,
) -> Result<(), Defect> {
    let mut picture = Picture::open(file)?;
    let [left, top] = picture.corner;
    let [width, height] = picture.frame;
    let (canvas_width, count) = (size.width as usize, size.width as usize * size.height as usize);
    // A colour missing in the palette is a grey, as in Pillow.
    let mut colours: [[u8; 4]; 256] = std::array::from_fn(|index| {
        let grey = u8::try_from(index).unwrap_or(u8::MAX);
        [grey, grey, grey, 255]
    });
    let palette = picture.decoder.palette().map_err(defect)?;
    for (colour, entry) in colours.iter_mut().zip(palette.as_chunks::<3>().0) {
        colour[..3].copy_from_slice(entry);
    }
    if let Some(index) = picture.transparent {
        colours[usize::from(index)][3] = 0;
    }
    let (frame, canvas) = prepare(unconverted, width * height + count).split_at_mut(width * height);
    picture.decoder.read_into_buffer(frame).map_err(defect)?;
    canvas.fill(picture.transparent.unwrap_or(0));
    for (row, line) in frame.chunks_exact(width).enumerate() {
        let start = (top + row) * canvas_width + left;
        canvas[start..start + width].copy_from_slice(line);
    }
    let channels = usize::from(form.channels);
    let out = prepare(pixels, count * channels);
    if form.content == Content::Indices {
        out.copy_from_slice(canvas);
        return Ok(());
    }
    for (index, out) in canvas.iter().zip(out.chunks_exact_mut(channels)) {
        colour::convert(4, &colours[usize::from(*index)], form.channels, out);
    }
    Ok(())
}
