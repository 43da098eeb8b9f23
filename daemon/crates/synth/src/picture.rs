//! Paints one photograph-like image: smooth colour fields, texture at seven scales, objects with soft edges, grain.
//!
//! An image is a pure function of (seed, index, class): only integers are used, so every machine paints the same bytes.
//! The class determines the objects' colour, shape and stripes, which a small network can learn; position, size,
//! rotation, light and background are drawn for each image. The generator has separate random numbers, so that
//! generated data does not change with the order of samples or the draws of operations. The parent module encodes and
//! writes files.

/// Texture is summed in sixteenths of a level, so that the weak fine octaves are not rounded away.
const LEVEL: i32 = 16;

/// Cell sizes in pixels and the amplitudes in levels of the texture's octaves. The amplitude falls more slowly than the
/// cell size, as in photographs of foliage and fabric; tuned so that the standard set has about 110 kB per file.
const TEXTURE_OCTAVES: [(usize, i32); 7] =
    [(128, 30), (64, 24), (32, 20), (16, 18), (8, 19), (4, 25), (2, 31)];

/// The octaves for the slow change of tint between the red and the blue channel.
const TINT_OCTAVES: [(usize, i32); 3] = [(64, 16), (16, 8), (4, 5)];

/// Positions on the colour wheel of [`hue_color`].
const HUES: i32 = 1536;

/// Unit vectors of eight rotations within a right angle, in 1/256: (cosine, sine).
const TURNS: [(i32, i32); 8] =
    [(256, 0), (251, 50), (237, 98), (213, 142), (181, 181), (142, 213), (98, 237), (50, 251)];

/// Red, green, blue in levels.
type Color = [i32; 3];

/// SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
pub(super) struct Randomness(u64);

impl Randomness {
    /// An independent sequence for every pair of seed and index.
    pub(super) fn new(seed: u64, index: u64) -> Self {
        let mut mixed = Self(seed);
        let start = mixed.next() ^ index.wrapping_mul(0xD134_2543_DE82_EF95);
        Self(start)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        value ^ (value >> 31)
    }

    /// A whole number in `low..=high`; `low` if the range is empty.
    pub(super) fn between(&mut self, low: i32, high: i32) -> i32 {
        let span = i64::from(high).saturating_sub(i64::from(low)).max(0) + 1;
        let high_half = i64::from((self.next() >> 32) as u32);
        let offset = (high_half * span) >> 32;
        low.saturating_add(i32::try_from(offset).unwrap_or(0))
    }
}

/// One scale of texture: random values at the corners of square cells, interpolated smoothly between them.
struct Octave {
    cell: usize,
    columns: usize,
    corners: Vec<i32>,
    /// Smoothstep at each pixel of a cell, 0 to 256.
    weights: Vec<i32>,
}

impl Octave {
    fn new(
        randomness: &mut Randomness,
        (width, height): (usize, usize),
        cell: usize,
        amplitude: i32,
    ) -> Self {
        let columns = width.div_ceil(cell) + 1;
        let lines = height.div_ceil(cell) + 1;
        let reach = amplitude * LEVEL;
        let corners = (0..columns * lines).map(|_| randomness.between(-reach, reach)).collect();
        let weights = (0..cell)
            .map(|pixel| {
                let t = i32::try_from(pixel * 256 / cell).unwrap_or(0);
                (t * t * (3 * 256 - 2 * t)) >> 16
            })
            .collect();
        Self { cell, columns, corners, weights }
    }

    /// Adds this octave's values for line `y` to `row`, in sixteenths of a level.
    fn add_row(&self, y: usize, row: &mut [i32], scratch: &mut Vec<i32>) {
        let first = (y / self.cell) * self.columns;
        let top = &self.corners[first..first + self.columns];
        let bottom = &self.corners[first + self.columns..first + 2 * self.columns];
        let down = self.weights[y % self.cell];
        scratch.clear();
        scratch.extend(
            top.iter().zip(bottom).map(|(top, bottom)| top + (((bottom - top) * down) >> 8)),
        );
        for (segment, corners) in row.chunks_mut(self.cell).zip(scratch.windows(2)) {
            let (left, step) = (corners[0], corners[1] - corners[0]);
            for (value, weight) in segment.iter_mut().zip(&self.weights) {
                *value += left + ((step * weight) >> 8);
            }
        }
    }
}

/// The outlines that classes cycle through.
#[derive(Clone, Copy)]
enum Outline {
    Disc,
    Box,
    Diamond,
    Ring,
    Cross,
    Bars,
}

const OUTLINES: [Outline; 6] =
    [Outline::Disc, Outline::Box, Outline::Diamond, Outline::Ring, Outline::Cross, Outline::Bars];

/// One object of the picture's class.
struct Object {
    outline: Outline,
    center: (i32, i32),
    /// Half the size in pixels.
    radius: i32,
    turn: (i32, i32),
    color: Color,
    /// Width of the stripes across the object, in pixels.
    stripe: i32,
}

impl Object {
    /// How much of the pixel at (`across`, `down`) from the centre the object covers, 0 to 256: a ramp two pixels wide,
    /// like a lens's.
    fn coverage(&self, across: i32, down: i32) -> i32 {
        let radius = self.radius;
        // The squared distance over twice the radius is the distance from the rim to first order, without a root.
        let inside_rim = |rim: i32| (rim * rim - across * across - down * down) / (2 * rim.max(1));
        let (along, aside) = self.turned(across, down);
        let depth = match self.outline {
            Outline::Disc => inside_rim(radius),
            Outline::Box => (radius * 7 / 8 - along.abs()).min(radius * 5 / 8 - aside.abs()),
            Outline::Diamond => (radius - along.abs() - aside.abs()) * 181 / 256,
            Outline::Ring => inside_rim(radius).min(-inside_rim(radius / 2)),
            Outline::Cross => {
                let arm =
                    |long: i32, short: i32| (radius - long.abs()).min(radius / 4 - short.abs());
                arm(along, aside).max(arm(aside, along))
            }
            Outline::Bars => {
                let pitch = (radius / 2).max(4);
                let within = (aside + 4 * pitch).rem_euclid(pitch);
                inside_rim(radius).min(pitch * 3 / 4 - within).min(within)
            }
        };
        ((depth + 1) * 128).clamp(0, 256)
    }

    fn turned(&self, across: i32, down: i32) -> (i32, i32) {
        let (cosine, sine) = self.turn;
        ((across * cosine + down * sine) >> 8, (down * cosine - across * sine) >> 8)
    }

    /// The object's colour at a position: stripes, and light from one side.
    fn shade(&self, across: i32, down: i32) -> Color {
        let (along, _) = self.turned(across, down);
        let stripe =
            if (along + 4096).rem_euclid(2 * self.stripe) < self.stripe { 18 } else { -18 };
        let light = -(across + down) * 24 / self.radius.max(1);
        self.color.map(|channel| channel + stripe + light)
    }
}

/// A colour at `hue` of [`HUES`]: `saturation` 0 gives `value` in all channels, 256 the pure colour.
fn hue_color(hue: i32, saturation: i32, value: i32) -> Color {
    let hue = hue.rem_euclid(HUES);
    let channel = |shift: i32| {
        let place = (hue + shift).rem_euclid(HUES);
        // A trapezoid over the wheel: rising for one sixth, full for two, falling for one, zero for two.
        let level = match place / 256 {
            0 => place,
            1 | 2 => 255,
            3 => 1023 - place,
            _ => 0,
        };
        value + (level - 128) * saturation / 256
    };
    [channel(2 * 256), channel(0), channel(4 * 256)]
}

/// Paints the picture into `rgb`: `width` × `height` pixels, rows from the top, 3 bytes each.
pub(super) fn paint(
    randomness: &mut Randomness,
    class: u32,
    classes: u32,
    size: (u16, u16),
    rgb: &mut Vec<u8>,
) {
    let (width, height) = (usize::from(size.0), usize::from(size.1));
    let (columns, lines) = (i32::from(size.0), i32::from(size.1));
    // Between a calm sky and a thicket, so that file sizes differ as for photographs.
    let busyness = randomness.between(30, 190);
    let octaves = |randomness: &mut Randomness, table: &[(usize, i32)]| -> Vec<Octave> {
        let build = |&(cell, amplitude): &(usize, i32)| {
            Octave::new(randomness, (width, height), cell, (amplitude * busyness / 100).max(1))
        };
        table.iter().map(build).collect()
    };
    let texture = octaves(randomness, &TEXTURE_OCTAVES);
    let tint = octaves(randomness, &TINT_OCTAVES);
    let grain = randomness.between(4, 12);

    let position = i64::from(class) * i64::from(HUES) / i64::from(classes.max(1));
    let class_hue = i32::try_from(position).unwrap_or(0);
    let background = |randomness: &mut Randomness| {
        let hue =
            if randomness.between(0, 1) == 0 { class_hue } else { randomness.between(0, HUES - 1) };
        let saturation = randomness.between(10, 70);
        let value = randomness.between(70, 190);
        hue_color(hue, saturation, value)
    };
    let (above, below) = (background(randomness), background(randomness));
    let objects = draw_objects(randomness, class, class_hue, (columns, lines));

    rgb.clear();
    rgb.reserve(width * height * 3);
    let mut texture_row = vec![0_i32; width];
    let mut tint_row = vec![0_i32; width];
    let mut color_row = vec![[0_i32; 3]; width];
    let mut scratch = Vec::new();
    for (line, y) in (0_i32..).zip(0..height) {
        texture_row.fill(0);
        tint_row.fill(0);
        texture.iter().for_each(|octave| octave.add_row(y, &mut texture_row, &mut scratch));
        tint.iter().for_each(|octave| octave.add_row(y, &mut tint_row, &mut scratch));
        let down = line * 256 / lines;
        let mut field: Color = [0; 3];
        for (channel, (above, below)) in field.iter_mut().zip(above.iter().zip(&below)) {
            *channel = above + (((below - above) * down) >> 8);
        }
        color_row.fill(field);
        for object in &objects {
            paint_object_row(object, line, &mut color_row);
        }
        let mut noise = 0_u64;
        for (x, ((color, texture), tint)) in
            color_row.iter().zip(&texture_row).zip(&tint_row).enumerate()
        {
            if x % 4 == 0 {
                noise = randomness.next();
            }
            // Two bytes give a triangular distribution about zero.
            let [one, two, ..] = noise.to_le_bytes();
            noise >>= 16;
            let speck = ((i32::from(one) + i32::from(two) - 255) * grain) >> 7;
            let shift = texture / LEVEL + speck;
            let tint = tint / LEVEL;
            rgb.extend(
                [color[0] + shift + tint, color[1] + shift, color[2] + shift - tint].map(to_byte),
            );
        }
    }
}

fn draw_objects(
    randomness: &mut Randomness,
    class: u32,
    class_hue: i32,
    (columns, lines): (i32, i32),
) -> Vec<Object> {
    let outline = OUTLINES[class as usize % OUTLINES.len()];
    let stripe = 3 + 3 * i32::try_from(class % 5).unwrap_or(0);
    let shorter = columns.min(lines);
    (0..randomness.between(2, 5))
        .map(|_| Object {
            outline,
            center: (randomness.between(0, columns), randomness.between(0, lines)),
            radius: randomness.between(shorter / 8, shorter / 3).max(2),
            turn: TURNS[usize::try_from(randomness.between(0, 7)).unwrap_or(0)],
            color: hue_color(
                class_hue + randomness.between(-6, 6),
                220,
                randomness.between(110, 150),
            ),
            stripe,
        })
        .collect()
}

fn paint_object_row(object: &Object, line: i32, row: &mut [Color]) {
    let down = line - object.center.1;
    // Bars, boxes and crosses stay within the disc of 5/4 radius about the centre.
    let reach = object.radius * 5 / 4 + 2;
    if down.abs() > reach {
        return;
    }
    let first = usize::try_from(object.center.0 - reach).unwrap_or(0);
    let span = usize::try_from(object.center.0 + reach).unwrap_or(0).saturating_sub(first);
    for (pixel, x) in row.iter_mut().skip(first).take(span).zip(i32::try_from(first).unwrap_or(0)..)
    {
        let across = x - object.center.0;
        let coverage = object.coverage(across, down);
        if coverage > 0 {
            let shade = object.shade(across, down);
            for (channel, shade) in pixel.iter_mut().zip(shade) {
                *channel += ((shade - *channel) * coverage) >> 8;
            }
        }
    }
}

fn to_byte(level: i32) -> u8 {
    u8::try_from(level.clamp(0, 255)).unwrap_or(u8::MAX)
}
