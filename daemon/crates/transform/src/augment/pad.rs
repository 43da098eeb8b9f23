//! Margins around an image.

use super::Pixels;
use super::filter::reflected;
use forebay_keys::words;
use forebay_media::size::Size;

words! {
    /// The contents of a margin.
    pub(crate) enum Beyond {
        /// One colour.
        Constant = "constant",
        /// The nearest pixel of the edge.
        Edge = "edge",
        /// The image reflected, without the edge itself.
        Reflect = "reflect",
        /// The image reflected, with the edge.
        Symmetric = "symmetric",
    }
}

/// Margin widths in pixels on each side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Margins {
    pub left: u32,
    pub top: u32,
    pub right: u32,
    pub bottom: u32,
}

impl Margins {
    /// Adds `x` pixels on the left and on the right, and `y` above and below.
    pub(crate) const fn widened(self, x: u32, y: u32) -> Self {
        Self {
            left: self.left.saturating_add(x),
            top: self.top.saturating_add(y),
            right: self.right.saturating_add(x),
            bottom: self.bottom.saturating_add(y),
        }
    }

    /// The size of an image with these margins; `None` if a side exceeds 2³² pixels.
    pub(crate) fn around(self, size: Size) -> Option<Size> {
        Some(Size {
            width: size.width.checked_add(self.left)?.checked_add(self.right)?,
            height: size.height.checked_add(self.top)?.checked_add(self.bottom)?,
        })
    }
}

impl Beyond {
    /// The position within `0..count` that is shown; `None`: the constant colour.
    fn shown(self, place: i64, count: usize) -> Option<usize> {
        let last = i64::try_from(count).unwrap_or(i64::MAX) - 1;
        if (0..=last).contains(&place) {
            return usize::try_from(place).ok();
        }
        match self {
            Self::Constant => None,
            Self::Edge => usize::try_from(place.clamp(0, last)).ok(),
            Self::Reflect => Some(reflected(place, count)),
            Self::Symmetric => {
                let folded = place.rem_euclid(2 * (last + 1));
                usize::try_from(folded.min(2 * last + 1 - folded)).ok()
            }
        }
    }
}

/// Writes an image with margins. `fill` is the constant colour, a level for each channel or one for all.
pub(crate) fn pad(
    from: &Pixels<&[u8]>,
    margins: Margins,
    beyond: Beyond,
    fill: &[u8],
    to: &mut [u8],
) {
    let channels = usize::from(from.channels);
    let (width, height) = (from.size.width as usize, from.size.height as usize);
    let (left, right) = (margins.left as usize, margins.right as usize);
    let place = |at: usize, before: u32| i64::try_from(at).unwrap_or(i64::MAX) - i64::from(before);
    let paint = |pixel: &mut [u8]| {
        for (channel, byte) in pixel.iter_mut().enumerate() {
            *byte = fill.get(channel).or(fill.first()).copied().unwrap_or(0);
        }
    };
    for (row, line) in to.chunks_exact_mut((left + width + right) * channels).enumerate() {
        let Some(row) = beyond.shown(place(row, margins.top), height) else {
            line.chunks_exact_mut(channels).for_each(paint);
            continue;
        };
        let from = &from.bytes[row * width * channels..][..width * channels];
        line[left * channels..][..from.len()].copy_from_slice(from);
        for column in (0..left).chain(left + width..left + width + right) {
            let pixel = &mut line[column * channels..][..channels];
            match beyond.shown(place(column, margins.left), width) {
                Some(column) => pixel.copy_from_slice(&from[column * channels..][..channels]),
                None => paint(pixel),
            }
        }
    }
}
