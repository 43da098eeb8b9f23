//! Rotations, affine transformations and perspective: each pixel of the result is sampled from its position in the
//! image.
//!
//! Positions are computed like torchvision's grids and torch's `grid_sample`, step by step in single precision.

use super::{Pixels, ROUNDING, rounded, rounded_down, single};
use forebay_keys::words;
use forebay_media::size::Size;

words! {
    /// How a pixel is sampled from the pixels around a position.
    pub(crate) enum Picked {
        /// The nearest pixel.
        Nearest = "nearest",
        /// A weighted mean of the four surrounding pixels.
        Bilinear = "bilinear",
    }
}

/// An affine transformation: rotation, shear and scaling about a centre, then a translation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AffineShape {
    /// Degrees, clockwise.
    pub angle: f64,
    /// Pixels to the right and down.
    pub translate: [f64; 2],
    pub scale: f64,
    /// Degrees, along the rows and across them.
    pub shear: [f64; 2],
    /// Pixels from the centre of the image.
    pub center: [f64; 2],
}

/// Maps a pixel of the result to its position in the image, both relative to the centre: `x' = m₀x + m₁y + m₂`, `y' =
/// m₃x + m₄y + m₅`.
pub(crate) fn inverse_affine(shape: &AffineShape) -> [f64; 6] {
    let AffineShape { angle, translate, scale, shear, center: [cx, cy] } = *shape;
    // libm, not the system's functions: machines must agree to the last bit.
    let rotation = angle.to_radians();
    let [shear_x, shear_y] = shear.map(f64::to_radians);
    let (cos_y, tan_x) = (libm::cos(shear_y), libm::tan(shear_x));
    let a = libm::cos(rotation - shear_y) / cos_y;
    let b = -(a * tan_x + libm::sin(rotation));
    let c = libm::sin(rotation - shear_y) / cos_y;
    let d = libm::cos(rotation) - c * tan_x;
    let mut matrix = [d / scale, -b / scale, 0.0, -c / scale, a / scale, 0.0];
    let (x, y) = (cx + translate[0], cy + translate[1]);
    matrix[2] += cx - matrix[0] * x - matrix[1] * y;
    matrix[5] += cy - matrix[3] * x - matrix[4] * y;
    matrix
}

/// The size that contains a whole rotated image, as computed by torchvision's `expand`.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "sides of images; a float beyond the range saturates"
)]
pub(crate) fn expanded_size(matrix: &[f64; 6], size: Size) -> Size {
    let m = matrix.map(single);
    let half = [size.width as f32 * 0.5, size.height as f32 * 0.5];
    let side = |row: [f32; 3], half_side: f32| {
        let corners = [(-1.0, -1.0), (-1.0, 1.0), (1.0, 1.0), (1.0, -1.0)];
        let places = corners.map(|(x, y)| x * half[0] * row[0] + y * half[1] * row[1] + row[2]);
        // Truncated to 1/10,000 of a pixel, so that a rounding error does not add one.
        let cut = |place: f32| libm::truncf((place + half_side) * 10_000.0) * 1e-4;
        let last = libm::ceilf(cut(places.into_iter().fold(f32::MIN, f32::max)));
        let first = libm::floorf(cut(places.into_iter().fold(f32::MAX, f32::min)));
        ((last - first) as u32).max(1)
    };
    Size { width: side([m[0], m[1], m[2]], half[0]), height: side([m[3], m[4], m[5]], half[1]) }
}

/// The coefficients that map the corners `from` of an image to `to`; `None` if three of `to` are collinear.
///
/// A pixel of the result at x, y is at `(c₀x + c₁y + c₂) / (c₆x + c₇y + 1)`, `(c₃x + c₄y + c₅) / (c₆x + c₇y + 1)` in
/// the image.
pub(crate) fn perspective(from: [[f64; 2]; 4], to: [[f64; 2]; 4]) -> Option<[f64; 8]> {
    let mut rows = [[0.0; 9]; 8];
    for (pair, ([x, y], [u, v])) in
        rows.as_chunks_mut::<2>().0.iter_mut().zip(to.into_iter().zip(from))
    {
        pair[0] = [x, y, 1.0, 0.0, 0.0, 0.0, -u * x, -u * y, u];
        pair[1] = [0.0, 0.0, 0.0, x, y, 1.0, -v * x, -v * y, v];
    }
    // Gauss-Jordan elimination.
    for column in 0..8 {
        let largest =
            |a: &usize, b: &usize| rows[*a][column].abs().total_cmp(&rows[*b][column].abs());
        let pivot = (column..8).max_by(largest)?;
        if rows[pivot][column].abs() < 1e-9 {
            return None;
        }
        rows.swap(column, pivot);
        let divisor = rows[column][column];
        rows[column] = rows[column].map(|value| value / divisor);
        let used = rows[column];
        for (place, row) in rows.iter_mut().enumerate() {
            let factor = row[column];
            if place != column && factor != 0.0 {
                for (value, used) in row.iter_mut().zip(used) {
                    *value -= factor * used;
                }
            }
        }
    }
    Some(std::array::from_fn(|row| rows[row][8]))
}

/// Maps positions in an image of this size by the inverse of an [`inverse_affine`]. With `expand` they are relative to
/// the corner of the rotated image, where torchvision places boxes.
pub(crate) fn forward_affine(
    matrix: &[f64; 6],
    size: Size,
    expand: bool,
) -> impl Fn([f64; 2]) -> [f64; 2] {
    let [a, b, c, d, e, f] = *matrix;
    let determinant = a * e - b * d;
    let (width, height) = (f64::from(size.width), f64::from(size.height));
    let half = [width * 0.5, height * 0.5];
    let turned = move |[x, y]: [f64; 2]| {
        let (x, y) = (x - half[0] - c, y - half[1] - f);
        [(e * x - b * y) / determinant, (a * y - d * x) / determinant]
    };
    let corners = [[0.0, 0.0], [0.0, height], [width, height], [width, 0.0]].map(turned);
    let least = |axis: usize| corners.iter().map(|corner| corner[axis]).fold(f64::MAX, f64::min);
    let origin = if expand { [-least(0), -least(1)] } else { half };
    move |place| {
        let [x, y] = turned(place);
        [x + origin[0], y + origin[1]]
    }
}

/// Maps positions in an image by the inverse of a [`perspective`].
pub(crate) fn forward_perspective(coefficients: &[f64; 8]) -> impl Fn([f64; 2]) -> [f64; 2] {
    let [a, b, c, d, e, f, g, h] = *coefficients;
    // The adjugate of the matrix is its inverse up to a factor, which the division cancels.
    let inverse = [
        [e - f * h, c * h - b, b * f - c * e],
        [f * g - d, a - c * g, c * d - a * f],
        [d * h - e * g, b * g - a * h, a * e - b * d],
    ];
    move |[x, y]| {
        let [across, down, divisor] = inverse.map(|[by_x, by_y, by_1]| by_x * x + by_y * y + by_1);
        [across / divisor, down / divisor]
    }
}

/// Maps pixels of the result to positions in the image.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Projection {
    /// See [`inverse_affine`].
    Affine([f64; 6]),
    /// See [`perspective`].
    Perspective([f64; 8]),
}

/// Fills `to`, of size `size`, with the image sampled at each pixel's position. The area outside the image is black, or
/// has the colour `fill`: a level for each channel or one for all.
///
/// At the edge, torchvision's interpolation with a fill counts the part outside the image twice, and so does this one.
pub(crate) fn warp(
    from: &Pixels<&[u8]>,
    projection: &Projection,
    picked: Picked,
    fill: Option<&[f64]>,
    size: Size,
    to: &mut [u8],
) {
    match from.channels {
        1 => warp_each::<1>(from, projection, picked, fill, size, to),
        3 => warp_each::<3>(from, projection, picked, fill, size, to),
        _ => warp_each::<4>(from, projection, picked, fill, size, to),
    }
}

#[expect(clippy::cast_precision_loss, reason = "sides of images")]
fn warp_each<const N: usize>(
    from: &Pixels<&[u8]>,
    projection: &Projection,
    picked: Picked,
    fill: Option<&[f64]>,
    size: Size,
    to: &mut [u8],
) {
    let (half_width, half_height) = (from.size.width as f32 * 0.5, from.size.height as f32 * 0.5);
    let fill = fill.map(|fill| {
        std::array::from_fn(|channel| single(*fill.get(channel).or(fill.first()).unwrap_or(&0.0)))
    });
    let source = Source::<N> {
        pixels: from.bytes.as_chunks::<N>().0,
        width: from.size.width,
        height: from.size.height,
        fill,
    };
    // Converts a position of torch's grid, from −1 to 1, to pixels.
    let in_pixels = |x: f32, y: f32| ((x + 1.0) * half_width - 0.5, (y + 1.0) * half_height - 0.5);
    let to = to.as_chunks_mut::<N>().0;
    match projection {
        Projection::Affine(matrix) => {
            let [a, b, c] = [matrix[0], matrix[1], matrix[2]].map(|m| single(m) / half_width);
            let [d, e, f] = [matrix[3], matrix[4], matrix[5]].map(|m| single(m) / half_height);
            let first_x = (1.0 - size.width as f32) * 0.5;
            let first_y = (1.0 - size.height as f32) * 0.5;
            let place = |column: f32, row: f32| {
                let (x, y) = (first_x + column, first_y + row);
                in_pixels(x * a + y * b + c, x * d + y * e + f)
            };
            source.pick_all(picked, size, place, to);
        }
        Projection::Perspective(coefficients) => {
            let [a, b, c, d, e, f, g, h] = coefficients.map(single);
            let (half_x, half_y) = (size.width as f32 * 0.5, size.height as f32 * 0.5);
            let [a, b, c] = [a, b, c].map(|value| value / half_x);
            let [d, e, f] = [d, e, f].map(|value| value / half_y);
            let place = |column: f32, row: f32| {
                let (x, y) = (column + 0.5, row + 0.5);
                let divisor = x * g + y * h + 1.0;
                in_pixels((x * a + y * b + c) / divisor - 1.0, (x * d + y * e + f) / divisor - 1.0)
            };
            source.pick_all(picked, size, place, to);
        }
    }
}

/// Number of positions computed at a time.
const AT_ONCE: usize = 32;

/// The nearest integer, half to even.
#[inline(always)]
fn whole(value: f32) -> u32 {
    (value + ROUNDING).to_bits().wrapping_sub(ROUNDING.to_bits())
}

/// The image from which pixels are sampled.
struct Source<'p, const N: usize> {
    pixels: &'p [[u8; N]],
    width: u32,
    height: u32,
    fill: Option<[f32; N]>,
}

impl<const N: usize> Source<'_, N> {
    #[inline(always)]
    fn pick_all(
        &self,
        picked: Picked,
        size: Size,
        place: impl Fn(f32, f32) -> (f32, f32),
        to: &mut [[u8; N]],
    ) {
        #[expect(clippy::cast_precision_loss, reason = "sides of images")]
        let coordinate = |index: usize| index as f32;
        let has_neighbours = self.width > 1 && self.height > 1;
        for (row, line) in to.chunks_exact_mut(size.width as usize).enumerate() {
            for (block, pixels) in line.chunks_mut(AT_ONCE).enumerate() {
                let places: [_; AT_ONCE] = std::array::from_fn(|at| {
                    place(coordinate(block * AT_ONCE + at), coordinate(row))
                });
                match picked {
                    Picked::Bilinear if has_neighbours => self.bilinear_line(pixels, &places),
                    _ => {
                        for (pixel, (x, y)) in pixels.iter_mut().zip(places) {
                            *pixel = match picked {
                                Picked::Nearest => self.nearest(x, y),
                                Picked::Bilinear => self.bilinear(x, y),
                            };
                        }
                    }
                }
            }
        }
    }

    /// The colour outside the image.
    #[inline(always)]
    fn beyond(&self) -> [u8; N] {
        self.fill.map_or([0; N], |fill| fill.map(rounded))
    }

    #[inline(always)]
    fn nearest(&self, x: f32, y: f32) -> [u8; N] {
        // Negative, too large and NaN values become coordinates outside every image.
        let (column, row) = (whole(x), whole(y));
        if column >= self.width || row >= self.height {
            return self.beyond();
        }
        self.pixels[row as usize * self.width as usize + column as usize]
    }

    /// As [`Self::bilinear`] for consecutive pixels whose four neighbours are all in the image: in steps that compilers
    /// can vectorise. Other pixels are sampled one at a time.
    #[inline(always)]
    #[expect(clippy::cast_precision_loss, reason = "sides of images")]
    fn bilinear_line(&self, to: &mut [[u8; N]], places: &[(f32, f32); AT_ONCE]) {
        let (width, height) = (self.width as f32, self.height as f32);
        let mut is_within = [false; AT_ONCE];
        let mut corners = [0; AT_ONCE];
        let mut weights = [[0.0; AT_ONCE]; 4];
        for at in 0..AT_ONCE {
            // One more than the position, as in `bilinear`.
            let (x, y) = (places[at].0 + 1.0, places[at].1 + 1.0);
            is_within[at] = (x >= 1.0) & (y >= 1.0) & (x < width) & (y < height);
            let (x, y) = if is_within[at] { (x, y) } else { (1.0, 1.0) };
            let (right, below) = (rounded_down(x), rounded_down(y));
            let (east, south) = (x - right, y - below);
            let (west, north) = (1.0 - east, 1.0 - south);
            corners[at] = (whole(below) - 1) * self.width + whole(right) - 1;
            weights[0][at] = west * north;
            weights[1][at] = east * north;
            weights[2][at] = west * south;
            weights[3][at] = east * south;
        }
        let line = self.width as usize;
        let mut neighbours = [[[0.0; AT_ONCE]; 4]; N];
        for (at, corner) in corners.into_iter().enumerate() {
            let above = &self.pixels[corner as usize..][..2];
            let under = &self.pixels[corner as usize + line..][..2];
            for channel in 0..N {
                neighbours[channel][0][at] = f32::from(above[0][channel]);
                neighbours[channel][1][at] = f32::from(above[1][channel]);
                neighbours[channel][2][at] = f32::from(under[0][channel]);
                neighbours[channel][3][at] = f32::from(under[1][channel]);
            }
        }
        let mixed: [[u8; AT_ONCE]; N] = neighbours.each_ref().map(|of| {
            std::array::from_fn(|at| {
                rounded(
                    of[0][at] * weights[0][at]
                        + of[1][at] * weights[1][at]
                        + of[2][at] * weights[2][at]
                        + of[3][at] * weights[3][at],
                )
            })
        });
        for (at, to) in to.iter_mut().enumerate() {
            *to = if is_within[at] {
                std::array::from_fn(|channel| mixed[channel][at])
            } else {
                self.bilinear(places[at].0, places[at].1)
            };
        }
    }

    #[inline(always)]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "within the image and a pixel around it"
    )]
    fn bilinear(&self, x: f32, y: f32) -> [u8; N] {
        let is_near = |place: f32, side: u32| place > -1.0 && place < side as f32;
        if !(is_near(x, self.width) && is_near(y, self.height)) {
            return self.beyond();
        }
        // One more than the pixel to the left and above: not negative, so truncation is rounding down.
        let (right, below) = ((x + 1.0) as u32, (y + 1.0) as u32);
        let (east, south) = (x + 1.0 - right as f32, y + 1.0 - below as f32);
        let (west, north) = (1.0 - east, 1.0 - south);
        let weights = [west * north, east * north, west * south, east * south];
        let line = self.width as usize;
        if right > 0 && below > 0 && right < self.width && below < self.height {
            let corner = (below as usize - 1) * line + right as usize - 1;
            let above = &self.pixels[corner..][..2];
            let under = &self.pixels[corner + line..][..2];
            return std::array::from_fn(|channel| {
                rounded(
                    f32::from(above[0][channel]) * weights[0]
                        + f32::from(above[1][channel]) * weights[1]
                        + f32::from(under[0][channel]) * weights[2]
                        + f32::from(under[1][channel]) * weights[3],
                )
            });
        }
        let places = [(0, 0), (1, 0), (0, 1), (1, 1)];
        let (mut sums, mut inside) = ([0.0; N], 0.0);
        for ((to_right, to_below), weight) in places.into_iter().zip(weights) {
            let (column, row) =
                ((right + to_right).wrapping_sub(1), (below + to_below).wrapping_sub(1));
            if column < self.width && row < self.height {
                let pixel = self.pixels[row as usize * line + column as usize];
                for (sum, level) in sums.iter_mut().zip(pixel) {
                    *sum += f32::from(level) * weight;
                }
                inside += weight;
            }
        }
        let Some(fill) = self.fill else { return sums.map(rounded) };
        std::array::from_fn(|channel| {
            rounded((sums[channel] - fill[channel]) * inside + fill[channel])
        })
    }
}
