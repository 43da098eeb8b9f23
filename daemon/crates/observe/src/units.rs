//! Numbers with units, for display.

/// A share as a percentage.
pub(crate) fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// A time with a suitable unit.
pub(crate) fn duration(seconds: f64) -> String {
    match seconds < 1e-4 {
        true => format!("{:.1} µs", seconds * 1e6),
        false => format!("{:.2} ms", seconds * 1e3),
    }
}

/// A size with a suitable unit, such as `1.2 GiB`.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "for a person")]
pub fn format_bytes(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 {
        format!("{bytes} B")
    } else {
        format!("{value:.1} {}", units[unit]).replace(".0 ", " ")
    }
}
