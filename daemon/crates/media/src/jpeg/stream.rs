//! Reads a JPEG file's markers in safe code: its size, its EXIF orientation, and whether it ends properly.
//!
//! Follows ITU-T T.81, annex B. Decodes no pixels.

use crate::decode::exif;
use crate::size::Size;
use forebay_dataset::Defect;

const START_OF_SCAN: u8 = 0xda;
const END_OF_IMAGE: u8 = 0xd9;
const APP1: u8 = 0xe1;

/// The content of the segments before the first scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JpegHeader {
    /// As coded, before any orientation.
    pub size: Size,
    /// 1 grey, 3 colour, 4 CMYK or YCCK.
    pub components: u8,
    /// The EXIF tag, 1 to 8; 1 if it is missing.
    pub orientation: u8,
    /// The width of an MCU in pixels (T.81, A.2); `None` for a lossless file, which is coded without blocks.
    pub block_width: Option<u32>,
    /// Memory that a decoder needs for the whole image before the first row: the coefficients, if scans refine each
    /// other or have only some of the components.
    pub buffered_bytes: u64,
}

/// How the markers lead to the end of the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// One scan (or its rest), then the end marker.
    Clean,
    /// The end marker exists, but other segments precede it.
    AfterMoreSegments,
    /// The file ends before the end marker.
    Missing,
}

/// A marker and its data, which extend to the next marker if it has a length.
struct Segment<'a> {
    marker: u8,
    body: &'a [u8],
    end: usize,
}

/// Markers without a length: TEM, RSTn, SOI, EOI.
const fn stands_alone(marker: u8) -> bool {
    matches!(marker, 0x01 | 0xd0..=0xd9)
}

/// The segment whose marker is the first at or after `position`.
fn next_segment(file: &[u8], position: usize) -> Option<Segment<'_>> {
    let mut at = position + file.get(position..)?.iter().position(|byte| *byte == 0xff)?;
    loop {
        match file.get(at + 1)? {
            0xff => at += 1,
            0x00 => at += 2 + file.get(at + 2..)?.iter().position(|byte| *byte == 0xff)?,
            marker if stands_alone(*marker) => {
                return Some(Segment { marker: *marker, body: &[], end: at + 2 });
            }
            marker => {
                let length =
                    usize::from(u16::from_be_bytes([*file.get(at + 2)?, *file.get(at + 3)?]));
                let end = at + 2 + length.max(2);
                let body = file.get(at + 4..end)?;
                return Some(Segment { marker: *marker, body, end });
            }
        }
    }
}

/// Start of frame: all of 0xc0 to 0xcf but DHT, JPG and DAC.
const fn is_frame(marker: u8) -> bool {
    matches!(marker, 0xc0..=0xcf) && !matches!(marker, 0xc4 | 0xc8 | 0xcc)
}

/// Lossless frames, which are coded pixel by pixel.
const fn is_lossless(marker: u8) -> bool {
    matches!(marker, 0xc3 | 0xc7 | 0xcb | 0xcf)
}

/// The width of an MCU, from the frame's list of components.
fn block_width(marker: u8, list: &[u8]) -> Option<u32> {
    if is_lossless(marker) {
        return None;
    }
    let components = list.as_chunks::<3>().0;
    // With a single component every MCU is one block, regardless of its factors.
    let widest = match components {
        [_] => 1,
        _ => components.iter().map(|[_, factors, _]| factors >> 4).max()?,
    };
    Some(8 * u32::from(widest.max(1)))
}

const fn is_progressive(marker: u8) -> bool {
    matches!(marker, 0xc2 | 0xc6 | 0xca | 0xce)
}

/// The number of components in the first scan at or after a position.
fn components_of_first_scan(file: &[u8], mut position: usize) -> Option<u8> {
    loop {
        let segment = next_segment(file, position)?;
        position = segment.end;
        match segment.marker {
            START_OF_SCAN => return segment.body.first().copied(),
            END_OF_IMAGE => return None,
            _ => {}
        }
    }
}

/// The coefficients of all blocks, of two bytes each. A lossless image has as many samples, of two bytes.
fn coefficient_bytes(size: Size, list: &[u8]) -> u64 {
    let factors =
        list.as_chunks::<3>().0.iter().map(|[_, factors, _]| {
            (u64::from(factors >> 4).max(1), u64::from(factors & 0xf).max(1))
        });
    let widest = factors.clone().map(|(across, _)| across).max().unwrap_or(1);
    let highest = factors.clone().map(|(_, down)| down).max().unwrap_or(1);
    let groups =
        u64::from(size.width).div_ceil(8 * widest) * u64::from(size.height).div_ceil(8 * highest);
    factors.map(|(across, down)| groups * across * down * 128).sum()
}

/// Reads the segments before the first scan.
///
/// # Errors
/// The file ends before the first scan, or has no frame.
pub fn read_header(file: &[u8]) -> Result<JpegHeader, Defect> {
    let mut position = 2;
    let mut orientation = 1;
    loop {
        let Some(segment) = next_segment(file, position) else {
            return Err(Defect("image file is truncated: the JPEG header does not end".to_owned()));
        };
        position = segment.end;
        match segment.marker {
            APP1 if orientation == 1 => {
                if let Some(tiff) = segment.body.strip_prefix(b"Exif\0\0") {
                    orientation = exif::orientation(tiff);
                }
            }
            marker if is_frame(marker) => {
                let [_, height_high, height_low, width_high, width_low, components, list @ ..] =
                    segment.body
                else {
                    return Err(Defect("the JPEG frame header is too short".to_owned()));
                };
                let size = Size {
                    width: u32::from(u16::from_be_bytes([*width_high, *width_low])),
                    height: u32::from(u16::from_be_bytes([*height_high, *height_low])),
                };
                let is_buffered = is_progressive(marker)
                    || components_of_first_scan(file, position).is_some_and(|of| of < *components);
                return Ok(JpegHeader {
                    size,
                    components: *components,
                    orientation,
                    block_width: block_width(marker, list),
                    buffered_bytes: if is_buffered { coefficient_bytes(size, list) } else { 0 },
                });
            }
            START_OF_SCAN | END_OF_IMAGE => {
                return Err(Defect("the JPEG file holds no image".to_owned()));
            }
            _ => {}
        }
    }
}

/// Follows the markers from the first scan to the end. Reads the whole file once.
pub fn ending(file: &[u8]) -> Ending {
    let mut position = 2;
    // The headers: to the first scan.
    loop {
        let Some(segment) = next_segment(file, position) else {
            return Ending::Missing;
        };
        position = segment.end;
        match segment.marker {
            START_OF_SCAN => break,
            END_OF_IMAGE => return Ending::AfterMoreSegments,
            _ => {}
        }
    }
    let mut clean = true;
    loop {
        // Entropy-coded data: 0xff is stuffed with 0x00, restart markers have no length.
        let Some(rest) = file.get(position..) else {
            return Ending::Missing;
        };
        let Some(found) = memchr::memchr(0xff, rest) else {
            return Ending::Missing;
        };
        position += found;
        match file.get(position + 1) {
            None => return Ending::Missing,
            Some(&END_OF_IMAGE) => {
                return if clean { Ending::Clean } else { Ending::AfterMoreSegments };
            }
            Some(0xff) => position += 1,
            Some(0x00 | 0x01 | 0xd0..=0xd7) => position += 2,
            // Reserved: their segments have no known form.
            Some(0x02..=0xbf) => {
                clean = false;
                position += 2;
            }
            Some(_) => {
                clean = false;
                let Some(segment) = next_segment(file, position) else {
                    return Ending::Missing;
                };
                position = segment.end;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_images::{gradient, jpeg};

    #[test]
    fn the_header_gives_size_and_components() {
        let file = jpeg(&gradient(37, 21, 3), 37, 21, 3);
        let header = read_header(&file).unwrap();
        assert_eq!(header.size, Size { width: 37, height: 21 });
        assert_eq!((header.components, header.orientation), (3, 1));
        assert_eq!(header.block_width, Some(16));
    }

    #[test]
    fn truncated_files_miss_the_end() {
        let file = jpeg(&gradient(37, 21, 3), 37, 21, 3);
        assert_eq!(ending(&file), Ending::Clean);
        for length in 0..file.len() {
            assert_eq!(ending(&file[..length]), Ending::Missing, "{length}");
            let _ = read_header(&file[..length]);
        }
        let mut longer = file.clone();
        longer.extend_from_slice(b"what follows the end does not matter");
        assert_eq!(ending(&longer), Ending::Clean);
    }

    #[test]
    fn segment_between_scan_and_end_is_detected() {
        let mut file = jpeg(&gradient(37, 21, 3), 37, 21, 3);
        file.truncate(file.len() - 2);
        file.extend_from_slice(&[0xff, 0xfe, 0, 4, 0xff, 0xd9]);
        assert_eq!(ending(&file), Ending::Missing, "the end marker is inside a comment");
        file.extend_from_slice(&[0xff, 0xd9]);
        assert_eq!(ending(&file), Ending::AfterMoreSegments);
    }
}
