//! The pictures of a clip as bytes, between the process that decodes and the one that asked.
//!
//! A head describes each picture; the planes lie one after another, without gaps, in a second sequence of bytes. Both come
//! from a process that may have been taken over: the reader checks each number.

use serde::{Deserialize, Serialize};

use crate::picture::{Colors, Format};

/// The most pixels of a side.
const MAX_SIDE: u32 = 1 << 16;

/// One decoded picture.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frame {
    /// Its time, in ticks of the clip's clock.
    pub pts: i64,
    /// Pixels of a row.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// How samples are stored.
    pub format: Format,
    /// How numbers are colours, as the decoder says.
    pub colors: Colors,
    /// Where its planes begin in the second sequence of bytes.
    pub at: u64,
}

impl Frame {
    /// The bytes of its planes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.format.picture_bytes((self.width, self.height))
    }
}

/// The distinct pictures of a clip.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Frames {
    /// In the order in which they were decoded.
    pub frames: Vec<Frame>,
}

impl Frames {
    /// The head as bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        // No value of these types cannot be written.
        bincode::serde::encode_to_vec(self, bincode::config::standard()).unwrap_or_default()
    }

    /// Reads a head, for planes of `bytes` bytes and pictures of at most `max_pixels` pixels.
    ///
    /// # Errors
    /// It is malformed, or a picture is not within these limits.
    pub fn of_bytes(head: &[u8], bytes: u64, max_pixels: u64) -> Result<Self, String> {
        let config = bincode::config::standard().with_limit::<{ 64 << 20 }>();
        let (read, used): (Self, usize) = bincode::serde::decode_from_slice(head, config)
            .map_err(|error| format!("the head of the pictures: {error}"))?;
        if used != head.len() {
            return Err("the head of the pictures has bytes too many".to_owned());
        }
        for frame in &read.frames {
            let Frame { width, height, format, at, .. } = frame;
            let is_sized = (1..=MAX_SIDE).contains(width) && (1..=MAX_SIDE).contains(height);
            let pixels = u64::from(*width) * u64::from(*height);
            let is_known =
                (8..=12).contains(&format.bits) && format.shift_x <= 2 && format.shift_y <= 2;
            let end = at.checked_add(if is_known { frame.bytes() as u64 } else { 0 });
            if !(is_sized
                && is_known
                && pixels <= max_pixels
                && end.is_some_and(|end| end <= bytes))
            {
                return Err(format!(
                    "a picture of {width}×{height} pixels that is not within limits"
                ));
            }
        }
        Ok(read)
    }

    /// The index of each wanted picture; the error is the first time that has none.
    ///
    /// # Errors
    /// As above.
    pub fn places(&self, wanted: &[i64]) -> Result<Vec<usize>, i64> {
        let place = |pts: &i64| self.frames.iter().position(|frame| frame.pts == *pts).ok_or(*pts);
        wanted.iter().map(place).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picture::Family;

    fn frame(width: u32, at: u64) -> Frame {
        let format = Format { family: Family::Yuv, bits: 8, shift_x: 1, shift_y: 1 };
        let colors =
            Colors { matrix: 1, primaries: 2, transfer: 2, full_range: None, chroma_location: 1 };
        Frame { pts: -3, width, height: 2, format, colors, at }
    }

    #[test]
    fn head_is_read_again_and_pictures_beyond_the_bytes_are_refused() {
        let frames = Frames { frames: vec![frame(4, 0), frame(4, 12)] };
        let head = frames.to_bytes();
        assert_eq!(Frames::of_bytes(&head, 24, 8), Ok(frames.clone()));
        assert!(Frames::of_bytes(&head, 23, 8).is_err());
        assert!(Frames::of_bytes(&head, 24, 7).is_err());
        assert!(Frames::of_bytes(&head[..head.len() - 1], 24, 8).is_err());
        assert!(Frames::of_bytes(&[&head[..], &[0]].concat(), 24, 8).is_err());
        for (width, at) in [(0, 0), (MAX_SIDE + 1, 0), (4, u64::MAX)] {
            let head = Frames { frames: vec![frame(width, at)] }.to_bytes();
            assert!(Frames::of_bytes(&head, u64::MAX, u64::MAX).is_err(), "{width} {at}");
        }
        assert_eq!(frames.places(&[-3, -3]), Ok(vec![0, 0]));
        assert_eq!(frames.places(&[-3, 5]), Err(5));
    }

    #[test]
    fn any_head_is_read_or_refused() {
        let head = Frames { frames: vec![frame(4, 0); 3] }.to_bytes();
        for at in 0..head.len() {
            for value in [0, 1, 0x7f, 0x80, 0xfb, 0xfc, 0xfd, 0xff] {
                let mut changed = head.clone();
                changed[at] = value;
                let _ = Frames::of_bytes(&changed, 36, 1 << 20);
            }
        }
    }
}
