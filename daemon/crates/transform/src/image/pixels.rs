//! Writes pixels onto a canvas of zeros, optionally mirrored, in the output's layout and type.
//!
//! Every byte of the canvas is written and none is read: it may be a row of a slot.

use super::values::{ImageFormat, PixelValues};
use crate::geometry::Geometry;
use forebay_config::ImageLayout;
use forebay_media::size::{Rectangle, is_wide};

/// Pixels in memory, height × width × channels.
#[derive(Debug, Clone, Copy)]
pub(super) struct PixelView<'p> {
    /// From the first pixel of the first row to at least the last pixel of the last row.
    pub(super) bytes: &'p [u8],
    /// Distance of the starts of consecutive rows, in bytes.
    pub(super) pitch_bytes: usize,
    /// Bytes per pixel; two per channel if levels have 16 bits.
    pub(super) channels: u8,
}

impl<'p> PixelView<'p> {
    /// A part of an image with contiguous rows.
    pub(super) fn part(bytes: &'p [u8], image_width: u32, part: Rectangle, channels: u8) -> Self {
        let pitch_bytes = image_width as usize * usize::from(channels);
        let start = part.top as usize * pitch_bytes + part.left as usize * usize::from(channels);
        Self { bytes: &bytes[start.min(bytes.len())..], pitch_bytes, channels }
    }
}

/// Converts a byte of one channel.
trait Convert<const N: usize>: Copy {
    fn convert(self, channel: usize, byte: u8) -> [u8; N];
}

/// The byte itself.
#[derive(Clone, Copy)]
struct Identity;

impl Convert<1> for Identity {
    #[inline(always)]
    fn convert(self, _channel: usize, byte: u8) -> [u8; 1] {
        [byte]
    }
}

impl<const N: usize> Convert<N> for &[[[u8; N]; 256]] {
    #[inline(always)]
    fn convert(self, channel: usize, byte: u8) -> [u8; N] {
        self[channel][usize::from(byte)]
    }
}

/// Writes the canvas. `view` begins at the first visible pixel.
///
/// # Panics
/// If the size of `canvas` differs from the geometry's canvas, or `view` is smaller than its visible part.
pub(super) fn write_canvas(
    view: PixelView<'_>,
    geometry: &Geometry,
    format: &ImageFormat,
    canvas: &mut [u8],
) {
    match &format.values {
        PixelValues::Bytes if format.layout == ImageLayout::Nhwc => {
            interleaved_bytes(view, geometry, canvas);
        }
        PixelValues::Bytes if is_wide(view.channels) => planar_words(view, geometry, canvas),
        PixelValues::Bytes if view.channels == 3 => planar_rgb_bytes(view, geometry, canvas),
        PixelValues::Bytes => dispatch::<1, _>(view, geometry, format.layout, Identity, canvas),
        PixelValues::TwoBytes(tables) => {
            dispatch(view, geometry, format.layout, tables.as_slice(), canvas);
        }
        PixelValues::FourBytes(tables) => {
            dispatch(view, geometry, format.layout, tables.as_slice(), canvas);
        }
        PixelValues::EightBytes(tables) => {
            dispatch(view, geometry, format.layout, tables.as_slice(), canvas);
        }
    }
}

fn dispatch<const N: usize, C: Convert<N>>(
    view: PixelView<'_>,
    geometry: &Geometry,
    layout: ImageLayout,
    convert: C,
    canvas: &mut [u8],
) {
    match view.channels {
        1 => write::<N, 1, C>(view, geometry, layout, convert, canvas),
        3 => write::<N, 3, C>(view, geometry, layout, convert, canvas),
        _ => write::<N, 4, C>(view, geometry, layout, convert, canvas),
    }
}

/// The position of the visible part on the canvas after the flips: (first column, first row).
fn placed(geometry: &Geometry) -> (usize, usize) {
    let after = |flip: bool, place: u32, part: u32, whole: u32| {
        if flip { (whole - place - part) as usize } else { place as usize }
    };
    let Geometry { visible, canvas, place: (left, top), .. } = *geometry;
    (
        after(geometry.flip_horizontally, left, visible.width, canvas.width),
        after(geometry.flip_vertically, top, visible.height, canvas.height),
    )
}

/// The visible row that a canvas row shows.
fn visible_row(geometry: &Geometry, first_row: usize, row: usize) -> Option<usize> {
    let height = geometry.visible.height as usize;
    let inside = row.checked_sub(first_row).filter(|row| *row < height)?;
    Some(if geometry.flip_vertically { height - 1 - inside } else { inside })
}

fn interleaved_bytes(view: PixelView<'_>, geometry: &Geometry, canvas: &mut [u8]) {
    let channels = usize::from(view.channels);
    let line_bytes = geometry.canvas.width as usize * channels;
    let part_bytes = geometry.visible.width as usize * channels;
    let (first_column, first_row) = placed(geometry);
    for (row, line) in canvas.chunks_exact_mut(line_bytes).enumerate() {
        let Some(from) = visible_row(geometry, first_row, row) else {
            line.fill(0);
            continue;
        };
        let from = &view.bytes[from * view.pitch_bytes..][..part_bytes];
        let (before, rest) = line.split_at_mut(first_column * channels);
        let (part, after) = rest.split_at_mut(part_bytes);
        before.fill(0);
        after.fill(0);
        if !geometry.flip_horizontally {
            part.copy_from_slice(from);
            continue;
        }
        match channels {
            1 => reverse_pixels::<1>(part, from),
            2 => reverse_pixels::<2>(part, from),
            3 => reverse_pixels::<3>(part, from),
            6 => reverse_pixels::<6>(part, from),
            8 => reverse_pixels::<8>(part, from),
            _ => reverse_pixels::<4>(part, from),
        }
    }
}

/// Copies pixels in reverse order. With their size known to the compiler, there is no call per pixel.
fn reverse_pixels<const CHANNELS: usize>(to: &mut [u8], from: &[u8]) {
    let (to, from) = (to.as_chunks_mut::<CHANNELS>().0, from.as_chunks::<CHANNELS>().0);
    for (to, from) in to.iter_mut().zip(from.iter().rev()) {
        *to = *from;
    }
}

/// The red, green and blue bytes of four neighbouring pixels, from three words of memory.
const fn unzip_four(pixels: &[u8; 12]) -> [u32; 3] {
    let [a, b, c, d, e, f, g, h, i, j, k, l] = *pixels;
    let first = u32::from_le_bytes([a, b, c, d]);
    let second = u32::from_le_bytes([e, f, g, h]);
    let third = u32::from_le_bytes([i, j, k, l]);
    [
        first & 0xff | first >> 16 & 0xff00 | second & 0x00ff_0000 | third << 16 & 0xff00_0000,
        first >> 8 & 0xff
            | second << 8 & 0xff00
            | second >> 8 & 0x00ff_0000
            | third << 8 & 0xff00_0000,
        first >> 16 & 0xff | second & 0xff00 | third << 16 & 0x00ff_0000 | third & 0xff00_0000,
    ]
}

/// The most frequent output. Four pixels at a time in ordinary words: twice as fast as byte by byte.
fn planar_rgb_bytes(view: PixelView<'_>, geometry: &Geometry, canvas: &mut [u8]) {
    let (width, height) = (geometry.canvas.width as usize, geometry.canvas.height as usize);
    let part_width = geometry.visible.width as usize;
    let (first_column, first_row) = placed(geometry);
    let plane_bytes = width * height;
    assert_eq!(canvas.len(), 3 * plane_bytes, "a canvas of another size");
    let (red, rest) = canvas.split_at_mut(plane_bytes);
    let (green, blue) = rest.split_at_mut(plane_bytes);
    for row in 0..height {
        let mut lines = [&mut *red, &mut *green, &mut *blue]
            .map(|plane| &mut plane[row * width..(row + 1) * width]);
        let Some(from) = visible_row(geometry, first_row, row) else {
            lines.iter_mut().for_each(|line| line.fill(0));
            continue;
        };
        let pixels = &view.bytes[from * view.pitch_bytes..][..part_width * 3];
        let [red, green, blue] = lines.map(|line| {
            let (before, rest) = line.split_at_mut(first_column);
            let (part, after) = rest.split_at_mut(part_width);
            before.fill(0);
            after.fill(0);
            part
        });
        let (fours, last) = pixels.as_chunks::<12>();
        if geometry.flip_horizontally {
            let (r_last, r) = red.as_rchunks_mut::<4>();
            let (g_last, g) = green.as_rchunks_mut::<4>();
            let (b_last, b) = blue.as_rchunks_mut::<4>();
            for (((four, r), g), b) in
                fours.iter().zip(r.iter_mut().rev()).zip(g.iter_mut().rev()).zip(b.iter_mut().rev())
            {
                [*r, *g, *b] = unzip_four(four).map(u32::to_be_bytes);
            }
            for (place, pixel) in last.as_chunks::<3>().0.iter().rev().enumerate() {
                [r_last[place], g_last[place], b_last[place]] = *pixel;
            }
        } else {
            let (r, r_last) = red.as_chunks_mut::<4>();
            let (g, g_last) = green.as_chunks_mut::<4>();
            let (b, b_last) = blue.as_chunks_mut::<4>();
            for (((four, r), g), b) in fours.iter().zip(r).zip(g).zip(b) {
                [*r, *g, *b] = unzip_four(four).map(u32::to_le_bytes);
            }
            for (place, pixel) in last.as_chunks::<3>().0.iter().enumerate() {
                [r_last[place], g_last[place], b_last[place]] = *pixel;
            }
        }
    }
}

/// Levels of 16 bits, a plane for each channel.
fn planar_words(view: PixelView<'_>, geometry: &Geometry, canvas: &mut [u8]) {
    let (width, height) = (geometry.canvas.width as usize, geometry.canvas.height as usize);
    let part_width = geometry.visible.width as usize;
    let channels = usize::from(view.channels / 2);
    let (first_column, first_row) = placed(geometry);
    for (number, line) in canvas.as_chunks_mut::<2>().0.chunks_exact_mut(width).enumerate() {
        let (channel, row) = (number / height, number % height);
        line.fill([0; 2]);
        let Some(from) = visible_row(geometry, first_row, row) else { continue };
        let from = &view.bytes[from * view.pitch_bytes..][..2 * part_width * channels];
        let from = from.as_chunks::<2>().0.iter().skip(channel).step_by(channels);
        let part = &mut line[first_column..first_column + part_width];
        if geometry.flip_horizontally {
            part.iter_mut().rev().zip(from).for_each(|(to, from)| *to = *from);
        } else {
            part.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
        }
    }
}

fn write<const N: usize, const CHANNELS: usize, C: Convert<N>>(
    view: PixelView<'_>,
    geometry: &Geometry,
    layout: ImageLayout,
    convert: C,
    canvas: &mut [u8],
) {
    let (width, height) = (geometry.canvas.width as usize, geometry.canvas.height as usize);
    let part_width = geometry.visible.width as usize;
    let (first_column, first_row) = placed(geometry);
    let (elements, _) = canvas.as_chunks_mut::<N>();
    assert_eq!(elements.len(), width * height * CHANNELS, "a canvas of another size");
    for row in 0..height {
        let pixels = visible_row(geometry, first_row, row).map(|from| {
            view.bytes[from * view.pitch_bytes..][..part_width * CHANNELS].as_chunks::<CHANNELS>().0
        });
        match layout {
            ImageLayout::Nhwc => {
                let line = &mut elements[row * width * CHANNELS..][..width * CHANNELS];
                let line = line.as_chunks_mut::<CHANNELS>().0;
                let Some(pixels) = pixels else {
                    line.fill(std::array::from_fn(|channel| convert.convert(channel, 0)));
                    continue;
                };
                let pixel = |pixel: &[u8; CHANNELS]| {
                    std::array::from_fn(|channel| convert.convert(channel, pixel[channel]))
                };
                fill_line(line, pixels, first_column, geometry.flip_horizontally, pixel);
            }
            ImageLayout::Nchw => {
                for channel in 0..CHANNELS {
                    let line = &mut elements[(channel * height + row) * width..][..width];
                    let Some(pixels) = pixels else {
                        line.fill(convert.convert(channel, 0));
                        continue;
                    };
                    let pixel = |pixel: &[u8; CHANNELS]| convert.convert(channel, pixel[channel]);
                    fill_line(line, pixels, first_column, geometry.flip_horizontally, pixel);
                }
            }
        }
    }
}

/// Writes one line: zeros, the pixels in either direction, zeros.
#[inline(always)]
fn fill_line<const CHANNELS: usize, T: Copy>(
    line: &mut [T],
    pixels: &[[u8; CHANNELS]],
    first_column: usize,
    mirrored: bool,
    value: impl Fn(&[u8; CHANNELS]) -> T,
) {
    let (before, rest) = line.split_at_mut(first_column);
    let (part, after) = rest.split_at_mut(pixels.len());
    if mirrored {
        for (to, from) in part.iter_mut().zip(pixels.iter().rev()) {
            *to = value(from);
        }
    } else {
        for (to, from) in part.iter_mut().zip(pixels) {
            *to = value(from);
        }
    }
    if !before.is_empty() || !after.is_empty() {
        let zero = value(&[0; CHANNELS]);
        before.fill(zero);
        after.fill(zero);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_media::size::Size;
    use forebay_media::test_images::{draws, gradient};

    /// Each canvas pixel by its definition.
    fn expected(image: &[u8], size: Size, geometry: &Geometry, layout: ImageLayout) -> Vec<u8> {
        let (width, height) = (geometry.canvas.width as usize, geometry.canvas.height as usize);
        let mut canvas = vec![0; width * height * 3];
        for y in 0..height {
            for x in 0..width {
                let column = if geometry.flip_horizontally { width - 1 - x } else { x };
                let row = if geometry.flip_vertically { height - 1 - y } else { y };
                let inside = |at: usize, place: u32, part: u32| {
                    at.checked_sub(place as usize).filter(|at| *at < part as usize)
                };
                let column = inside(column, geometry.place.0, geometry.visible.width);
                let row = inside(row, geometry.place.1, geometry.visible.height);
                let (Some(column), Some(row)) = (column, row) else { continue };
                let column = column + geometry.visible.left as usize;
                let row = row + geometry.visible.top as usize;
                for channel in 0..3 {
                    let to = match layout {
                        ImageLayout::Nhwc => (y * width + x) * 3 + channel,
                        ImageLayout::Nchw => (channel * height + y) * width + x,
                    };
                    canvas[to] = image[(row * size.width as usize + column) * 3 + channel];
                }
            }
        }
        canvas
    }

    #[test]
    fn every_byte_is_written_for_any_position_and_mirroring() {
        let size = Size { width: 23, height: 11 };
        let image = gradient(23, 11, 3);
        let mut draws = draws(4);
        for _ in 0..500 {
            let mut geometry = Geometry::identity(size);
            geometry.flip_horizontally = draws.below(2) == 0;
            geometry.flip_vertically = draws.below(2) == 0;
            let left = i64::try_from(draws.below(30)).unwrap() - 10;
            let top = i64::try_from(draws.below(16)).unwrap() - 6;
            let width = u32::try_from(draws.below(30)).unwrap() + 1;
            let height = u32::try_from(draws.below(14)).unwrap() + 1;
            geometry.crop(left, top, Size { width, height });
            for layout in [ImageLayout::Nhwc, ImageLayout::Nchw] {
                let view = PixelView::part(&image, size.width, geometry.visible, 3);
                let format = ImageFormat { layout, values: PixelValues::Bytes };
                let mut canvas = vec![0xee; (width * height * 3) as usize];
                write_canvas(view, &geometry, &format, &mut canvas);
                assert!(canvas == expected(&image, size, &geometry, layout), "{geometry:?}");
            }
        }
    }
}
