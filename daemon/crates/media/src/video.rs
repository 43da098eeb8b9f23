//! Pictures of videos: from a decoder's planes to red, green and blue.
//!
//! The conversion is Forebay's own, in whole numbers: the bytes do not depend on the host's libraries. The matrix and the
//! range are those that the stream says, then those of its file, then BT.601 in the limited range, which FFmpeg assumes,
//! too. A sample of chroma counts for all the pixels that it covers; above 8 bits it is interpolated between rows. So do
//! FFmpeg's conversions, which torchcodec and PyAV use.

mod colours;
mod turns;

use std::sync::Arc;

use forebay_decoders::{Colors, Frame};
use forebay_video::codec::{Color, Rotation};

use self::colours::{RowConverter, Rows};
pub use self::turns::turned;
use self::turns::{turned_size, write_turned_row};
use crate::size::{Rectangle, Size};

/// Bytes of a pixel of the result.
const PIXEL_BYTES: usize = 3;

/// A decoded picture of a video, in memory that all pictures of a clip share.
#[derive(Debug, Clone)]
pub struct VideoFrame {
    planes: Arc<Vec<u8>>,
    at: usize,
    frame: Frame,
    rows: RowConverter,
    rotation: Rotation,
}

impl VideoFrame {
    /// A picture whose planes begin at `frame.at` of `planes`. `color` is what the file says. `None`: the planes are
    /// shorter than the picture.
    #[must_use]
    pub fn new(
        planes: &Arc<Vec<u8>>,
        frame: &Frame,
        color: Color,
        rotation: Rotation,
    ) -> Option<Self> {
        let at = usize::try_from(frame.at).ok()?;
        let end = at.checked_add(frame.bytes())?;
        if end > planes.len() || frame.width == 0 || frame.height == 0 {
            return None;
        }
        let rows = RowConverter::new(frame.format, said(frame.colors, color));
        Some(Self { planes: Arc::clone(planes), at, frame: frame.clone(), rows, rotation })
    }

    /// Its size as it is shown.
    #[must_use]
    pub const fn size(&self) -> Size {
        let Frame { width, height, .. } = self.frame;
        turned_size(Size { width, height }, self.rotation)
    }

    /// The bytes of its planes.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.frame.bytes()
    }

    /// Writes a part of it as it is shown: rows of red, green and blue.
    ///
    /// # Panics
    /// If the part is not within the picture, or `out` has another size.
    pub fn write(&self, part: Rectangle, out: &mut [u8]) {
        let (width, height) = (part.width as usize, part.height as usize);
        assert_eq!(out.len(), width * height * PIXEL_BYTES);
        let source = self.unturned(part);
        let row_bytes = source.width as usize * PIXEL_BYTES;
        if self.rotation == Rotation::None {
            for (y, row) in (source.top as usize..).zip(out.chunks_exact_mut(row_bytes.max(1))) {
                self.convert(y, source.left as usize, row);
            }
            return;
        }
        let mut row = vec![0; row_bytes];
        for y in 0..source.height as usize {
            self.convert(source.top as usize + y, source.left as usize, &mut row);
            write_turned_row(&row, y, self.rotation, part.size(), out);
        }
    }

    /// The part of the decoded picture that a part of the shown one is.
    const fn unturned(&self, part: Rectangle) -> Rectangle {
        let Rectangle { left, top, width, height } = part;
        let Size { width: whole_width, height: whole_height } = self.size();
        let (right, bottom) = (whole_width - left - width, whole_height - top - height);
        match self.rotation {
            Rotation::None => part,
            Rotation::Quarter => Rectangle { left: top, top: right, width: height, height: width },
            Rotation::Half => Rectangle { left: right, top: bottom, width, height },
            Rotation::ThreeQuarters => {
                Rectangle { left: bottom, top: left, width: height, height: width }
            }
        }
    }

    /// Converts a part of a decoded row.
    fn convert(&self, y: usize, left: usize, out: &mut [u8]) {
        let format = self.frame.format;
        let size = (self.frame.width, self.frame.height);
        let mut start = self.at;
        let mut planes = [Rows::default(); 3];
        for (plane, rows) in planes.iter_mut().enumerate().take(format.planes()) {
            let (width, height) = format.plane_size(plane, size);
            let row_bytes = width * format.sample_bytes();
            let is_shared = plane > 0 && height < self.frame.height as usize;
            let near = if is_shared { y >> format.shift_y } else { y };
            // The lower of two rows that share one is nearer to the next.
            let far = match (is_shared, y & 1) {
                (false, _) => near,
                (true, 0) => near.saturating_sub(1),
                (true, _) => near + 1,
            };
            let row = |number: usize| {
                let row_start = start + number.min(height - 1) * row_bytes;
                &self.planes[row_start..row_start + row_bytes]
            };
            *rows = Rows { near: row(near), far: row(far) };
            start += row_bytes * height;
        }
        self.rows.convert(planes, left, out);
    }
}

/// What the stream says of its colours, completed by what its file says. 2: not said.
fn said(stream: Colors, file: Color) -> Colors {
    let or = |of_stream: u8, of_file: Option<u8>| {
        if of_stream == 2 { of_file.unwrap_or(2) } else { of_stream }
    };
    Colors {
        matrix: or(stream.matrix, file.matrix),
        primaries: or(stream.primaries, file.primaries),
        transfer: or(stream.transfer, file.transfer),
        full_range: stream.full_range.or(file.full_range),
        chroma_location: stream.chroma_location,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_decoders::{Family, Format};

    const UNSAID: Colors =
        Colors { matrix: 2, primaries: 2, transfer: 2, full_range: None, chroma_location: 0 };

    /// A picture of 5 × 3 pixels whose luma counts up.
    fn counting(rotation: Rotation) -> VideoFrame {
        let format = Format { family: Family::Gray, bits: 8, shift_x: 0, shift_y: 0 };
        let colors = Colors { full_range: Some(true), ..UNSAID };
        let frame = Frame { pts: 0, width: 5, height: 3, format, colors, at: 2 };
        let planes = Arc::new((0..17).map(|at: u8| at.wrapping_sub(2)).collect());
        VideoFrame::new(&planes, &frame, Color::default(), rotation).unwrap()
    }

    fn red(frame: &VideoFrame, part: Rectangle) -> Vec<u8> {
        let mut out = vec![0; (part.width * part.height) as usize * 3];
        frame.write(part, &mut out);
        out.chunks_exact(3).map(|pixel| pixel[0]).collect()
    }

    #[test]
    fn turns_are_clockwise_and_parts_are_of_the_turned_picture() {
        let whole = |rotation| {
            let frame = counting(rotation);
            red(&frame, Rectangle::whole(frame.size()))
        };
        assert_eq!(whole(Rotation::None), (0..15).collect::<Vec<u8>>());
        assert_eq!(whole(Rotation::Half), (0..15).rev().collect::<Vec<u8>>());
        let pixels: Vec<u8> = (0..15).flat_map(|level| [level; 3]).collect();
        for rotation in (0..4).map(Rotation::of_quarters) {
            let (turned, size) = turned(&pixels, Size { width: 5, height: 3 }, rotation);
            assert_eq!(size, counting(rotation).size());
            assert!(turned.iter().step_by(3).copied().eq(whole(rotation)), "{rotation:?}");
        }
        let quarter = [10, 5, 0, 11, 6, 1, 12, 7, 2, 13, 8, 3, 14, 9, 4];
        assert_eq!(whole(Rotation::Quarter), quarter);
        assert_eq!(
            whole(Rotation::ThreeQuarters),
            quarter.iter().rev().copied().collect::<Vec<_>>()
        );
        for rotation in (0..4).map(Rotation::of_quarters) {
            let frame = counting(rotation);
            let Size { width, height } = frame.size();
            let all = red(&frame, Rectangle::whole(frame.size()));
            let part = Rectangle { left: 1, top: 1, width: width - 2, height: height - 1 };
            let expected: Vec<u8> = (1..height)
                .flat_map(|y| (1..width - 1).map(move |x| (y * width + x) as usize))
                .map(|at| all[at])
                .collect();
            assert_eq!(red(&frame, part), expected, "{rotation:?}");
        }
    }

    #[test]
    fn short_planes_are_no_picture() {
        let frame = counting(Rotation::None).frame;
        let planes = Arc::new(vec![0; 16]);
        assert!(VideoFrame::new(&planes, &frame, Color::default(), Rotation::None).is_none());
    }

    #[test]
    fn the_stream_comes_before_its_file() {
        let file = Color { matrix: Some(1), full_range: Some(true), ..Color::default() };
        let all = said(UNSAID, file);
        assert_eq!((all.matrix, all.full_range), (1, Some(true)));
        let all = said(Colors { matrix: 9, full_range: Some(false), ..UNSAID }, file);
        assert_eq!((all.matrix, all.full_range), (9, Some(false)));
    }
}
