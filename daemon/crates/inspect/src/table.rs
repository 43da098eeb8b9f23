//! Text tables.

/// Formats rows as columns; the first column is left-aligned, the others are right-aligned.
pub fn columns(header: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = header.iter().map(|name| name.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    let mut line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut line = String::from(" ");
        for (index, (cell, width)) in cells.zip(&widths).enumerate() {
            line +=
                &if index == 0 { format!(" {cell:<width$}") } else { format!("  {cell:>width$}") };
        }
        text.push_str(line.trim_end());
        text.push('\n');
    };
    line(&mut header.iter().copied());
    for row in rows {
        line(&mut row.iter().map(String::as_str));
    }
    text
}

/// A time in seconds with a suitable unit.
pub fn time(seconds: f64) -> String {
    if seconds >= 1.0 {
        format!("{seconds:.2} s")
    } else if seconds >= 1e-3 {
        format!("{:.2} ms", seconds * 1e3)
    } else {
        format!("{:.1} µs", seconds * 1e6)
    }
}

/// A duration as seconds, minutes, hours or days.
pub fn span(seconds: f64) -> String {
    let (value, unit) = match seconds {
        ..59.5 => return format!("{seconds:.0} s"),
        ..3570.0 => (seconds / 60.0, "min"),
        ..172_800.0 => (seconds / 3600.0, "h"),
        _ => (seconds / 86_400.0, "days"),
    };
    if value < 9.95 { format!("{value:.1} {unit}") } else { format!("{value:.0} {unit}") }
}

/// A share as a percentage.
pub fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

#[cfg(test)]
mod tests {
    #[test]
    fn spans_have_a_suitable_unit() {
        let spans =
            [0.0, 59.4, 59.6, 216.0, 1110.0, 3569.0, 3571.0, 7.5 * 3600.0, 30.0 * 3600.0, 4e5];
        let words = [
            "0 s", "59 s", "1.0 min", "3.6 min", "18 min", "59 min", "1.0 h", "7.5 h", "30 h",
            "4.6 days",
        ];
        assert_eq!(spans.map(super::span), words);
    }

    #[test]
    fn columns_are_aligned() {
        let rows =
            [vec!["a".to_owned(), "1".to_owned()], vec!["long".to_owned(), "1000".to_owned()]];
        assert_eq!(
            super::columns(&["n", "µs"], &rows),
            "  n       µs\n  a        1\n  long  1000\n"
        );
    }
}
