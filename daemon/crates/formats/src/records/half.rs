//! Half-precision numbers.

/// Converts an IEEE 754 half.
pub(crate) fn f16_value(bits: u16) -> f64 {
    let (exponent, fraction) = (bits >> 10 & 0x1f, f64::from(bits & 0x3ff));
    let value = match exponent {
        0 => fraction * 2_f64.powi(-24),
        0x1f if fraction == 0.0 => f64::INFINITY,
        0x1f => f64::NAN,
        exponent => (1024.0 + fraction) * 2_f64.powi(i32::from(exponent) - 25),
    };
    if bits >> 15 == 1 { -value } else { value }
}

#[test]
fn half_values_match_numpy() {
    for (bits, value) in [
        (0x3c00, 1.0),
        (0xc000, -2.0),
        (0x7bff, 65504.0),
        (1, 5.960_464_477_539_063e-8),
        (0x3555, 0.333_251_953_125),
    ] {
        assert!((f16_value(bits) - value).abs() < 1e-12, "{bits:x}");
    }
    assert!(f16_value(0x7e00).is_nan() && f16_value(0xfc00).is_infinite());
}
