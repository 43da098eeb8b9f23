//! Against torchaudio's own results, which `make-fixtures.py` made.

use super::*;

/// Numbers that Python makes exactly alike.
fn sound() -> Vec<f32> {
    (0..1600_u64)
        .map(|number| {
            let drawn = (number * 1_103_515_245 + 12_345) % (1 << 31) / 128;
            #[expect(clippy::cast_precision_loss, reason = "24 bits")]
            let share = drawn as f32 / 16_777_216.0;
            share - 0.5
        })
        .collect()
}

fn transform(n_fft: usize, win: usize, hop: usize, power: f64, center: bool) -> Transform {
    Transform {
        n_fft,
        hop,
        power,
        center,
        log: Logarithm::Off,
        most_bytes: u64::MAX,
        window: window(win, n_fft),
        fft: RealFftPlanner::new().plan_fft_forward(n_fft),
        mel: None,
    }
}

fn compare(name: &str, made: &Transform, frames: usize) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("src/operations/spectrogram/fixtures")
        .join(format!("{name}.f32"));
    let expected = std::fs::read(path).unwrap();
    let mut out = Vec::new();
    let sound: Vec<[u8; 4]> = sound().into_iter().map(f32::to_ne_bytes).collect();
    assert_eq!(made.run(&sound, &mut out).unwrap(), frames, "{name}");
    assert_eq!(out.len(), expected.len(), "{name}");
    let floats = |bytes: &[u8]| -> Vec<f32> {
        bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    };
    for (own, theirs) in floats(&out).iter().zip(floats(&expected)) {
        assert!((own - theirs).abs() <= 1e-4 * theirs.abs().max(1.0), "{name}: {own} for {theirs}");
    }
}

#[test]
fn spectrograms_are_torchaudios() {
    compare("plain", &transform(400, 400, 200, 2.0, true), 9);
    compare("magnitude", &transform(128, 100, 60, 1.0, false), 25);
    let form = mel::Form {
        sample_rate: 16_000,
        n_fft: 400,
        n_mels: 40,
        f_min: 0.0,
        f_max: 8000.0,
        norm: MelNorm::Off,
        mel_scale: MelScale::Htk,
    };
    let mel = Some(MelFilters::new(&form));
    compare("mel", &Transform { mel, ..transform(400, 400, 200, 2.0, true) }, 9);
    let form = mel::Form {
        sample_rate: 22_050,
        n_fft: 512,
        n_mels: 24,
        f_min: 50.0,
        norm: MelNorm::Slaney,
        mel_scale: MelScale::Slaney,
        ..form
    };
    let mel = Some(MelFilters::new(&form));
    compare("mel-slaney", &Transform { mel, ..transform(512, 500, 200, 1.0, true) }, 9);
}

#[test]
fn logarithms_have_a_floor_and_short_sounds_are_refused() {
    let log = Transform { log: Logarithm::Ten, ..transform(16, 16, 8, 2.0, true) };
    let mut out = Vec::new();
    assert_eq!(log.run(&[[0; 4]; 32], &mut out).unwrap(), 5);
    assert!(out.as_chunks::<4>().0.iter().all(|bytes| f32::from_ne_bytes(*bytes) == -10.0));
    let refused = log.run(&[[0; 4]; 8], &mut out).unwrap_err().0;
    assert!(refused.contains("8 samples, too few for a frame of 16"), "{refused}");
    assert!(log.run(&[], &mut out).is_err());
}

#[test]
fn a_spectrogram_larger_than_the_limit_is_refused() {
    let limited = Transform { most_bytes: 5 * 9 * 4 - 1, ..transform(16, 16, 8, 2.0, true) };
    let refused = limited.run(&[[0; 4]; 32], &mut Vec::new()).unwrap_err().0;
    assert!(refused.contains("5 frames of 9 values has 180 bytes"), "{refused}");
    assert!(refused.contains("dataset.limits.inflated_bytes is 179"), "{refused}");
    let enough = Transform { most_bytes: 180, ..limited };
    assert_eq!(enough.run(&[[0; 4]; 32], &mut Vec::new()).unwrap(), 5);
}
