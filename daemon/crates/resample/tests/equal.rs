//! All pixels equal fast_image_resize's.

use forebay_resample::{AnyResampler, Filter, Form, Packed, Resampler, Shown, Source, Target};

/// Draws that are equal in every run.
struct Draws(u64);

impl Draws {
    fn below(&mut self, limit: u32) -> u32 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        u32::try_from(((self.0 >> 32) * u64::from(limit)) >> 32).unwrap()
    }

    fn fraction(&mut self) -> f64 {
        f64::from(self.below(1 << 20)) / f64::from(1 << 20)
    }
}

/// A side that often keeps its length.
const KEPT: u32 = 17;

/// An image, a part of it, and the target's parameters.
#[derive(Debug, Clone, Copy)]
struct Case {
    image: (u32, u32),
    /// Left, top, width and height of the used part.
    view: [u32; 4],
    columns: Shown,
    rows: Shown,
    to: (u32, u32),
    filter: Filter,
}

impl Case {
    fn drawn(draws: &mut Draws) -> Self {
        let side = |draws: &mut Draws| match draws.below(4) {
            0 => draws.below(12) + 1,
            _ => draws.below(90) + 1,
        };
        let image = (side(draws), side(draws));
        let view = [draws.below(image.0), draws.below(image.1)];
        let view = [
            view[0],
            view[1],
            1 + draws.below(image.0 - view[0]),
            1 + draws.below(image.1 - view[1]),
        ];
        let shown = |draws: &mut Draws, length: u32| {
            let length = f64::from(length);
            match draws.below(4) {
                0 => Shown { start: 0.0, length },
                // Full length if the target has that length.
                3 => Shown { start: 0.0, length: length.min(f64::from(KEPT)) },
                1 => {
                    let start = (draws.fraction() * length).floor();
                    Shown { start, length: length - start }
                }
                _ => {
                    let start = draws.fraction() * length * 0.9;
                    Shown { start, length: (length - start) * (draws.fraction() * 0.9 + 0.1) }
                }
            }
        };
        let filter =
            [Filter::Bilinear, Filter::CatmullRom, Filter::Lanczos3][draws.below(3) as usize];
        let (columns, rows) = (shown(draws, view[2]), shown(draws, view[3]));
        let to = |draws: &mut Draws| if draws.below(3) == 0 { KEPT } else { side(draws) };
        Self { image, view, columns, rows, to: (to(draws), to(draws)), filter }
    }

    /// The result of fast_image_resize.
    fn expected(&self, pixels: &[u8]) -> Vec<u8> {
        let [left, top, width, height] = self.view;
        let from = Packed {
            pixels,
            channels: 3,
            size: self.image,
            corner: (left, top),
            view: (width, height),
        };
        let mut result = vec![0; (self.to.0 * self.to.1 * 3) as usize];
        AnyResampler::default()
            .resample(&from, self.columns, self.rows, self.filter, self.to, &mut result)
            .unwrap();
        result
    }
}

/// Converts pixels to planar rows.
fn planar(pixels: &[u8], pixels_of_a_part: usize) -> Vec<u8> {
    pixels
        .chunks(pixels_of_a_part * 3)
        .flat_map(|part| {
            (0..3).flat_map(move |colour| part.iter().skip(colour).step_by(3).copied())
        })
        .collect()
}

/// The expected result in a form, mirrored or upended.
fn formed(pixels: &[u8], width: usize, form: Form, mirror: bool, upend: bool) -> Vec<u8> {
    let mut lines: Vec<Vec<[u8; 3]>> =
        pixels.chunks(width * 3).map(|line| line.as_chunks::<3>().0.to_vec()).collect();
    if upend {
        lines.reverse();
    }
    if mirror {
        lines.iter_mut().for_each(|line| line.reverse());
    }
    let result: Vec<u8> = lines.concat().concat();
    let all = result.len() / 3;
    if form == Form::Planar { planar(&result, all) } else { result }
}

/// Returns the number of cases that the resampler supports.
fn compare(draws: &mut Draws, cases: usize, mut case: impl FnMut(&mut Draws) -> Case) -> usize {
    let Some(mut resampler) = Resampler::new() else { return cases };
    let mut done = 0;
    for _ in 0..cases {
        let case = case(draws);
        let pixels: Vec<u8> = match draws.below(3) {
            // Values whose sums overshoot.
            0 => (0..case.image.0 * case.image.1 * 3)
                .map(|_| if draws.below(2) == 0 { 0 } else { 255 })
                .collect(),
            _ => (0..case.image.0 * case.image.1 * 3)
                .map(|_| u8::try_from(draws.below(256)).unwrap())
                .collect(),
        };
        let expected = case.expected(&pixels);
        let lines = planar(&pixels, case.image.0 as usize);
        let [left, top, width, height] = case.view;
        for round in 0..4 {
            let form = |bit| if draws_bit(round, bit) { Form::Planar } else { Form::Interleaved };
            let (from, to) = (form(0), form(1));
            let (mirror, upend) = (draws.below(2) == 0, draws.below(2) == 0);
            let pitch_bytes = case.image.0 as usize * 3;
            let above = top as usize * pitch_bytes;
            // The colours of a part of a row are not contiguous in a planar row.
            let cut: Vec<u8>;
            let (pixels, pitch_bytes) = match from {
                Form::Interleaved => (&pixels[above + left as usize * 3..], pitch_bytes),
                Form::Planar => {
                    cut = lines[above..]
                        .chunks(case.image.0 as usize)
                        .flat_map(|line| &line[left as usize..(left + width) as usize])
                        .copied()
                        .collect();
                    (&cut[..], width as usize * 3)
                }
            };
            let source = Source { pixels, pitch_bytes, width, height, form: from };
            let mut result = vec![0xee; (case.to.0 * case.to.1 * 3) as usize];
            let mut target = Target {
                pixels: &mut result,
                width: case.to.0,
                height: case.to.1,
                form: to,
                mirror,
                upend,
            };
            if !resampler.resample(&source, case.columns, case.rows, case.filter, &mut target) {
                assert!(result.iter().all(|byte| *byte == 0xee), "{case:?}: something was written");
                continue;
            }
            done += 1;
            let expected = formed(&expected, case.to.0 as usize, to, mirror, upend);
            assert!(result == expected, "{case:?} {from:?} {to:?} {mirror} {upend}");
        }
    }
    done / 4
}

fn draws_bit(number: u32, bit: u32) -> bool {
    number >> bit & 1 == 1
}

#[test]
fn drawn_parts_and_sizes_give_the_same_pixels() {
    let done = compare(&mut Draws(1), 3000, Case::drawn);
    assert!(done > 1200, "{done}: too few were of the kind");
}

#[test]
fn random_resized_crops_give_the_same_pixels() {
    let draw = |draws: &mut Draws| {
        let image = (500, 375);
        let (width, height) = (40 + draws.below(460), 40 + draws.below(335));
        let view = [draws.below(501 - width), draws.below(376 - height), width, height];
        let side = [224, 176, 128][draws.below(3) as usize];
        let whole = |length: u32| Shown { start: 0.0, length: length.into() };
        let (columns, rows) = (whole(width), whole(height));
        Case { image, view, columns, rows, to: (side, side), filter: Filter::Bilinear }
    };
    let done = compare(&mut Draws(2), 150, draw);
    assert!(done > 140, "{done}: too few were of the kind");
}

#[test]
fn strongly_reduced_sides_are_not_supported() {
    let Some(mut resampler) = Resampler::new() else { return };
    let pixels = vec![7; 300 * 10 * 3];
    let source = Source {
        pixels: &pixels,
        pitch_bytes: 900,
        width: 300,
        height: 10,
        form: Form::Interleaved,
    };
    let mut resample = |columns: f64, to: u32| {
        let mut result = vec![1; (to * 7 * 3) as usize];
        let mut target = Target {
            pixels: &mut result,
            width: to,
            height: 7,
            form: Form::Planar,
            mirror: false,
            upend: false,
        };
        let columns = Shown { start: 0.0, length: columns };
        let rows = Shown { start: 0.0, length: 10.0 };
        let is_done = resampler.resample(&source, columns, rows, Filter::Bilinear, &mut target);
        assert!(result.iter().all(|byte| *byte == if is_done { 7 } else { 1 }));
        is_done
    };
    assert!(resample(300.0, 120));
    assert!(!resample(300.0, 40), "far apart");
    assert!(resample(120.0, 120), "a copy");
    assert!(!resample(300.5, 120), "beyond the source");
}
