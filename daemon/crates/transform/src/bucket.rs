//! The buckets of `batch.buckets`: the shapes of batches, and the one that each sample belongs to.

use std::cmp::Reverse;
use std::sync::Arc;

use forebay_config::Config;
use forebay_media::size::Size;
use forebay_order::ByLength;
use forebay_protocol::ids::SampleId;

/// The bucket of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bucket {
    /// Its place in the configuration's list.
    pub number: usize,
    /// Its shape.
    pub size: Size,
}

/// The buckets, and which one a sample belongs to. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Buckets {
    sizes: Arc<[Size]>,
    of: Assignment,
}

#[derive(Debug, Clone)]
enum Assignment {
    /// By the numbers in the order's table.
    Table(Arc<ByLength>),
    /// All samples that are run are of this one.
    One(usize),
}

/// The shapes of a configuration's buckets; empty: it has none.
#[must_use]
pub fn bucket_sizes(config: &Config) -> Vec<Size> {
    let buckets = config.batch.buckets.iter().flatten();
    buckets.map(|bucket| Size { width: bucket.width, height: bucket.height }).collect()
}

/// The bucket of the nearest aspect ratio: of the picture, resized to cover the bucket, the least is cut away. Among buckets
/// of one aspect ratio the largest that the picture fills, or else the smallest; then the first. `None`: there are none.
#[must_use]
pub fn nearest_bucket(sizes: &[Size], picture: Size) -> Option<usize> {
    // The ratio of the aspect ratios, which is at least 1, is a fraction of two products below 2^64.
    let ratio = |bucket: Size| {
        let one = u64::from(picture.width) * u64::from(bucket.height);
        let other = u64::from(picture.height) * u64::from(bucket.width);
        (one.max(other), one.min(other))
    };
    let area = |size: Size| u64::from(size.width) * u64::from(size.height);
    let preference = |bucket: Size| {
        let is_filled = picture.width >= bucket.width && picture.height >= bucket.height;
        // Filled ones come first, the largest of them; then the smallest.
        if is_filled { (0, Reverse(area(bucket)), 0) } else { (1, Reverse(0), area(bucket)) }
    };
    let places = sizes.iter().copied().enumerate();
    let nearest = places.min_by(|(_, one), (_, other)| {
        let ((most, least), (other_most, other_least)) = (ratio(*one), ratio(*other));
        let (left, right) = (
            u128::from(most) * u128::from(other_least),
            u128::from(other_most) * u128::from(least),
        );
        left.cmp(&right).then_with(|| preference(*one).cmp(&preference(*other)))
    });
    nearest.map(|(place, _)| place)
}

impl Buckets {
    /// These shapes, with a table of the number of each sample's.
    #[must_use]
    pub fn of_table(sizes: Vec<Size>, table: Arc<ByLength>) -> Self {
        Self { sizes: sizes.into(), of: Assignment::Table(table) }
    }

    /// These shapes, of which all samples have one.
    #[must_use]
    pub fn of_one(sizes: Vec<Size>, number: usize) -> Self {
        Self { sizes: sizes.into(), of: Assignment::One(number) }
    }

    /// The bucket of a sample.
    #[must_use]
    pub fn of(&self, sample: SampleId) -> Option<Bucket> {
        let number = match &self.of {
            Assignment::Table(table) => usize::try_from(table.length(sample.0)).ok()?,
            Assignment::One(number) => *number,
        };
        self.sizes.get(number).map(|size| Bucket { number, size: *size })
    }
}

/// The size of a picture that is resized to cover a bucket: one side is the bucket's, the other at least, rounded to the
/// nearest.
pub(crate) fn covering(bucket: Size, picture: Size) -> Size {
    // Of sides below 2^16 by limits of buckets, and below 2^32: the products fit.
    let scaled = |side: u32, to: u32, of: u32| {
        let (side, to, of) = (u64::from(side), u64::from(to), u64::from(of.max(1)));
        u32::try_from((2 * side * to + of) / (2 * of)).unwrap_or(u32::MAX)
    };
    let is_wider = u64::from(picture.width) * u64::from(bucket.height)
        >= u64::from(picture.height) * u64::from(bucket.width);
    if is_wider {
        let width = scaled(picture.width, bucket.height, picture.height);
        Size { width: width.max(bucket.width), ..bucket }
    } else {
        let height = scaled(picture.height, bucket.width, picture.width);
        Size { height: height.max(bucket.height), ..bucket }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn size(width: u32, height: u32) -> Size {
        Size { width, height }
    }

    #[test]
    fn pictures_go_to_the_nearest_aspect_ratio() {
        let sizes =
            [size(512, 512), size(640, 384), size(384, 640), size(256, 256), size(768, 768)];
        let nearest = |width, height| nearest_bucket(&sizes, size(width, height)).unwrap();
        assert_eq!(nearest(4000, 2500), 1);
        assert_eq!(nearest(100, 2500), 2);
        // Between 1 and 5 : 3 the geometric mean decides: 1.29.
        assert_eq!([nearest(1290, 1000), nearest(1292, 1000)], [4, 1]);
        assert_eq!([nearest(1000, 1290), nearest(1000, 1292)], [4, 2]);
        // The largest square that is filled, or else the smallest.
        assert_eq!([nearest(900, 900), nearest(700, 700), nearest(600, 511)], [4, 0, 3]);
        assert_eq!(nearest(8, 8), 3);
        assert_eq!(nearest(u32::MAX, u32::MAX), 4);
        assert_eq!(nearest_bucket(&[], size(1, 1)), None);
        assert_eq!(nearest_bucket(&[size(4, 4), size(4, 4)], size(9, 9)), Some(0));
    }

    #[test]
    fn a_covering_picture_is_cut_on_one_side_at_most() {
        for (picture, expected) in [
            (size(4000, 2000), size(768, 384)),
            (size(2000, 4000), size(640, 1280)),
            (size(640, 384), size(640, 384)),
            (size(641, 384), size(641, 384)),
            (size(10, 6), size(640, 384)),
            (size(1000, 601), size(640, 385)),
            (size(1, u32::MAX), size(640, u32::MAX)),
        ] {
            let found = covering(size(640, 384), picture);
            assert_eq!(found, expected, "{picture:?}");
        }
        for width in 1..60 {
            for height in 1..60 {
                let found = covering(size(40, 24), size(width, height));
                assert!(found.width >= 40 && found.height >= 24);
                assert!(found.width == 40 || found.height == 24);
            }
        }
    }
}
