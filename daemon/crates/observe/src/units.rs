//! Numbers with units, for people.

/// A size for a person, such as `1.2 GiB`.
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
