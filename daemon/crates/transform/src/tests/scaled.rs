//! `scaled = "auto"`: that it is used, how far it changes the pixels, and that stages do not matter.

use super::*;

const OFF: &str = r#"{ op = "decode-image" }"#;
const AUTO: &str = r#"{ op = "decode-image", scaled = "auto" }"#;

/// Peak signal-to-noise ratio in decibels.
fn psnr(left: &[u8], right: &[u8]) -> f64 {
    assert_eq!(left.len(), right.len());
    let sum: f64 =
        left.iter().zip(right).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2)).sum();
    10.0 * (255.0 * 255.0 * left.len() as f64 / sum).log10()
}

fn rows(decode: &str, then: &str, file: &[u8], sample: u64) -> Vec<u8> {
    image_row(&one_stage(&format!("{decode}, {then}"), ""), file, sample)
}

/// Slopes and soft edges: like a reduced photograph, without the noise of single pixels.
fn smooth(width: usize, height: usize) -> Vec<u8> {
    let mut pixels = Vec::with_capacity(width * height * 3);
    for y in 0..height {
        for x in 0..width {
            for channel in 0..3 {
                let wave = |at: usize, period: f64| (at as f64 / period).sin();
                let period = 25.0 + 8.0 * channel as f64;
                let value = 128.0 + 60.0 * wave(x, period) + 50.0 * wave(y, period + 9.0);
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "between 18 and 238"
                )]
                pixels.push(value as u8);
            }
        }
    }
    pixels
}

#[test]
fn pixels_change_little_and_only_if_the_result_is_much_smaller() {
    let file = jpeg(&smooth(640, 483), 640, 483, 3);
    for (size, changes) in [(400, false), (242, false), (241, true), (120, true), (60, true)] {
        let then = format!(
            r#"{{ op = "resize", size = {size} }}, {{ op = "center-crop", size = {size} }}"#
        );
        let (off, auto) = (rows(OFF, &then, &file, 0), rows(AUTO, &then, &file, 0));
        assert_eq!(off != auto, changes, "{size}");
        assert!(psnr(&off, &auto) > 38.0, "{size}: {} dB", psnr(&off, &auto));
    }
    let nearest = r#"{ op = "resize", size = [40, 40], interpolation = "nearest" }"#;
    assert_eq!(rows(OFF, nearest, &file, 0), rows(AUTO, nearest, &file, 0));
}

#[test]
fn scaled_decoding_does_not_move_crops() {
    let file = jpeg(&smooth(643, 485), 643, 485, 3);
    let then = r#"{ op = "random-resized-crop", size = 40 }, { op = "random-horizontal-flip" }"#;
    for sample in 0..20 {
        let (off, auto) = (rows(OFF, then, &file, sample), rows(AUTO, then, &file, sample));
        assert!(psnr(&off, &auto) > 34.0, "{sample}: {} dB", psnr(&off, &auto));
    }
}

#[test]
fn stages_do_not_matter() {
    let file = photograph();
    let plans = [
        [
            "",
            r#"{ op = "random-resized-crop", size = 17 }"#,
            r#"{ op = "random-horizontal-flip" }"#,
        ],
        [r#"{ op = "random-crop", size = [100, 120] }"#, r#"{ op = "resize", size = 31 }"#, ""],
        ["", r#"{ op = "resize", size = 33 }"#, r#"{ op = "random-crop", size = 20 }"#],
        [
            r#"{ op = "random-crop", size = [99, 140] }"#,
            "",
            r#"{ op = "resize", size = [20, 20] }"#,
        ],
    ];
    for [first, second, third] in plans {
        let list = |parts: &[&str]| {
            parts.iter().filter(|part| !part.is_empty()).copied().collect::<Vec<_>>().join(", ")
        };
        let size = r#"{ op = "center-crop", size = 16 }"#;
        let together = one_stage(&list(&[AUTO, first, second, third, size]), "");
        let apart = [list(&[AUTO, first]), list(&[second]), list(&[third, size])]
            .map(|operations| format!("[[stage]]\noperations = [{operations}]\n"))
            .concat();
        for sample in 0..8 {
            let row = image_row(&together, &file, sample);
            assert!(row == image_row(&apart, &file, sample), "{first} {second} {third} {sample}");
        }
    }
}

#[test]
fn rotated_file_is_reduced_only_if_its_pixels_stay_in_place() {
    let turn =
        |operation: &str| operation.replace("decode-image\"", "decode-image\", orientation = true");
    let then = r#"{ op = "resize", size = [30, 30] }"#;
    // 3: upside down. 160×120 is a multiple of 4 by 4 pixels, 158×118 of 2 by 2, 157×119 of neither.
    for (width, height, changes) in [(160_u16, 120_u16, true), (158, 118, true), (157, 119, false)]
    {
        let stored = jpeg(&smooth(width.into(), height.into()), width, height, 3);
        let file = with_orientation(&stored, 3);
        let (off, auto) = (rows(&turn(OFF), then, &file, 0), rows(&turn(AUTO), then, &file, 0));
        assert_eq!(off != auto, changes, "{width}x{height}");
        assert!(psnr(&off, &auto) > 34.0, "{width}x{height}: {} dB", psnr(&off, &auto));
    }
}

/// As the digest of the small pipeline: if this one changes, the stream version must be raised.
#[test]
fn rows_of_a_reduced_pipeline_have_their_golden_digest() {
    let file = jpeg(&gradient(643, 485, 3), 643, 485, 3);
    let mut hasher = blake3::Hasher::new();
    for sample in 0..16 {
        let then = r#"{ op = "random-resized-crop", size = 48 }"#;
        hasher.update(&rows(AUTO, then, &file, sample));
    }
    assert_eq!(&hasher.finalize().to_hex()[..16], "0f8a7addfaa3caca");
}
