//! The size of an image in patches, as `smart_resize` of Qwen2-VL computes it.

use forebay_media::size::Size;

/// The largest ratio of an image's sides.
const MAX_RATIO: f64 = 200.0;

/// The least and the most pixels of an image.
#[derive(Debug, Clone, Copy)]
pub(super) struct PixelBudget {
    pub least: u64,
    pub most: u64,
}

/// How an image is divided into patches.
#[derive(Debug, Clone, Copy)]
pub(super) struct PatchGrid {
    pub patch_size: u32,
    pub merge_size: u32,
    pub temporal_patch_size: u32,
}

impl PatchGrid {
    /// The number of values of a patch.
    pub(super) fn patch_values(self) -> u64 {
        3 * u64::from(self.temporal_patch_size) * u64::from(self.patch_size).pow(2)
    }

    /// The bytes of a patch.
    pub(super) fn patch_bytes(self) -> u64 {
        self.patch_values() * 4
    }

    /// The number of patches of so many pixels.
    pub(super) fn patches(self, pixels: u64) -> u64 {
        pixels / u64::from(self.patch_size).pow(2)
    }

    /// The rows and columns of patches of an image that fits the grid.
    pub(super) const fn sides(self, size: Size) -> (u32, u32) {
        (size.height / self.patch_size, size.width / self.patch_size)
    }

    /// The number of which both sides are multiples.
    fn factor(self) -> f64 {
        f64::from(self.patch_size) * f64::from(self.merge_size)
    }

    /// An upper bound for the pixels of an image that [`fit`](Self::fit) gives.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a bound, rounded up, that saturates"
    )]
    pub(super) fn largest_pixels(self, budget: PixelBudget) -> u64 {
        let (factor, least, most) = (self.factor(), budget.least as f64, budget.most as f64);
        // A side that is reduced to no patch becomes one.
        let reduced = factor * (most * MAX_RATIO).sqrt();
        // Both sides of an enlarged image are rounded up.
        let sides = (least * MAX_RATIO).sqrt() + (least / MAX_RATIO).sqrt();
        let enlarged = least + factor * sides + factor * factor;
        most.max(reduced).max(enlarged).ceil() as u64
    }

    /// The size to which an image is resized: multiples of patches that are merged, within the budget, in the image's
    /// proportions. The arithmetic is Python's, so that the sizes are those of the reference.
    ///
    /// # Errors
    /// The sides are too different.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "sides of images and budgets are far below 2^53, and `largest_pixels` bounds the result"
    )]
    pub(super) fn fit(self, image: Size, budget: PixelBudget) -> Result<Size, String> {
        let (height, width) = (f64::from(image.height), f64::from(image.width));
        let ratio = height.max(width) / height.min(width);
        if ratio > MAX_RATIO {
            return Err(format!(
                "{}x{} pixels: one side is {ratio:.1} times the other, and at most {MAX_RATIO} times is allowed",
                image.width, image.height
            ));
        }
        let (factor, least, most) = (self.factor(), budget.least as f64, budget.most as f64);
        // Python rounds halves to even numbers.
        let round = |side: f64| (side / factor).round_ties_even() * factor;
        let (mut rows, mut columns) = (round(height), round(width));
        if rows * columns > most {
            let beta = (height * width / most).sqrt();
            let reduced = |side: f64| ((side / beta / factor).floor() * factor).max(factor);
            (rows, columns) = (reduced(height), reduced(width));
        } else if rows * columns < least {
            let beta = (least / (height * width)).sqrt();
            let enlarged = |side: f64| (side * beta / factor).ceil() * factor;
            (rows, columns) = (enlarged(height), enlarged(width));
        }
        Ok(Size { width: columns as u32, height: rows as u32 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Widths, heights, and `smart_resize` of Transformers 5.23 with factors of 28 pixels and its default budget: printed
    /// by `fixtures/patches.py`.
    const SIZES: &str = include_str!("../../../fixtures/patches-sizes.txt");

    const GRID: PatchGrid = PatchGrid { patch_size: 14, merge_size: 2, temporal_patch_size: 2 };
    const BUDGET: PixelBudget = PixelBudget { least: 3136, most: 1_003_520 };

    #[test]
    fn sizes_are_those_of_the_reference() {
        let mut count = 0;
        for line in SIZES.lines().filter(|line| !line.starts_with('#')) {
            let numbers: Vec<u32> =
                line.split_whitespace().map(|number| number.parse().unwrap()).collect();
            let [width, height, to_width, to_height] = numbers[..] else { panic!("{line}") };
            let found = GRID.fit(Size { width, height }, BUDGET).unwrap();
            assert_eq!(found, Size { width: to_width, height: to_height }, "{line}");
            let pixels = u64::from(found.width) * u64::from(found.height);
            assert!(pixels <= GRID.largest_pixels(BUDGET), "{line}");
            count += 1;
        }
        assert!(count >= 500, "{count}");
    }

    #[test]
    fn sides_that_are_too_different_are_refused() {
        let fit = |width, height| GRID.fit(Size { width, height }, BUDGET);
        assert!(fit(2000, 10).is_ok());
        let reason = fit(2001, 10).unwrap_err();
        assert_eq!(
            reason,
            "2001x10 pixels: one side is 200.1 times the other, and at most 200 times is allowed"
        );
    }

    #[test]
    fn no_image_has_more_pixels_than_the_bound() {
        for budget in
            [BUDGET, PixelBudget { least: 1, most: 1 }, PixelBudget { least: 9000, most: 9000 }]
        {
            let largest = GRID.largest_pixels(budget);
            for (long, short) in [(1, 1), (200, 1), (6000, 30), (13, 12), (4000, 21), (65_000, 400)]
            {
                for size in
                    [Size { width: long, height: short }, Size { width: short, height: long }]
                {
                    let Size { width, height } = GRID.fit(size, budget).unwrap();
                    assert!(u64::from(width) * u64::from(height) <= largest, "{size:?} {budget:?}");
                }
            }
        }
    }
}
