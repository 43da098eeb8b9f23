//! Writes the patches of an image in the order of the reference: patches that are merged to a token follow each other, and
//! a patch has its channels one after the other, each as often as the model's time has steps.

use super::size::PatchGrid;
use crate::image::Normalization;
use forebay_media::size::Size;

/// The value of each level of each channel, as bytes of a float32.
#[derive(Debug)]
pub(super) struct Levels(Box<[[[u8; 4]; 256]; 3]>);

impl Levels {
    /// The arithmetic is that of Transformers: a level is scaled in double precision and rounded to single, in which
    /// the mean is subtracted.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "rounded to single precision as the reference does"
    )]
    pub(super) fn new(normalization: &Normalization) -> Self {
        let value = |channel: usize, level: usize| {
            let of = |numbers: &[f64]| numbers.get(channel).copied().unwrap_or_default() as f32;
            let scaled = (f64::from(u8::try_from(level).unwrap_or(u8::MAX)) * (1.0 / 255.0)) as f32;
            ((scaled - of(&normalization.mean)) / of(&normalization.std)).to_ne_bytes()
        };
        let table =
            std::array::from_fn(|channel| std::array::from_fn(|level| value(channel, level)));
        Self(Box::new(table))
    }
}

impl PatchGrid {
    /// Appends the patches of an image, whose pixels are height × width × 3 bytes; both sides are multiples of the patches
    /// that are merged.
    pub(super) fn write(self, pixels: &[u8], size: Size, levels: &Levels, out: &mut Vec<u8>) {
        let (side, merge) = (self.patch_size as usize, self.merge_size as usize);
        let times = self.temporal_patch_size as usize;
        let (rows, columns) = self.sides(size);
        let (rows, columns, width) = (rows as usize, columns as usize, size.width as usize);
        let plane = side * side;
        let before = out.len();
        out.resize(before + rows * columns * 3 * times * plane * 4, 0);
        let mut patches = out[before..].as_chunks_mut::<4>().0.chunks_exact_mut(3 * times * plane);
        let windows =
            (0..rows / merge).flat_map(|row| (0..columns / merge).map(move |column| (row, column)));
        for (row, column) in windows {
            for inner in 0..merge * merge {
                let Some(patch) = patches.next() else { return };
                let top = (row * merge + inner / merge) * side;
                let left = (column * merge + inner % merge) * side;
                for y in 0..side {
                    let line = &pixels[((top + y) * width + left) * 3..][..side * 3];
                    for (x, pixel) in line.as_chunks::<3>().0.iter().enumerate() {
                        for (channel, level) in pixel.iter().enumerate() {
                            patch[channel * times * plane + y * side + x] =
                                levels.0[channel][usize::from(*level)];
                        }
                    }
                }
                for channel in patch.chunks_exact_mut(times * plane) {
                    let (first, others) = channel.split_at_mut(plane);
                    others.chunks_exact_mut(plane).for_each(|other| other.copy_from_slice(first));
                }
            }
        }
    }
}
