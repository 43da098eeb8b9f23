//! Small parts of the screen: bars, cells of a ring, wrapped text.

use ratatui::style::{Color, Style, Stylize as _};
use ratatui::text::{Line, Span};

use forebay_observe::format_bytes;

/// The cells for ready, leased, filling and free slots, distinguishable without colours.
pub(super) const SLOT_CELLS: [(char, Color, &str); 4] = [
    ('█', Color::Green, "ready"),
    ('▓', Color::Blue, "leased"),
    ('░', Color::Yellow, "filling"),
    ('·', Color::DarkGray, "free"),
];

/// A bar of `cells` cells for a share of 0 to 1.
pub(super) fn bar(share: f64, cells: usize, color: Color) -> [Span<'static>; 2] {
    let full = part(share, cells);
    [
        Span::styled("█".repeat(full), Style::new().fg(color)),
        Span::styled("░".repeat(cells - full), Style::new().fg(Color::DarkGray)),
    ]
}

/// The share of the cells; 0 only for a share of 0.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a share of a screen's width"
)]
fn part(share: f64, cells: usize) -> usize {
    let exact = share.clamp(0.0, 1.0) * cells as f64;
    let least = usize::from(share > 0.01);
    (exact.round() as usize).max(least).min(cells)
}

/// A cell for each slot; a ring wider than the space is drawn in proportion.
#[expect(clippy::cast_precision_loss, reason = "a share of a screen's width")]
pub(super) fn ring_cells(slots: [u64; 4], room: usize) -> Vec<Span<'static>> {
    let total: u64 = slots.iter().sum();
    let mut drawn = 0;
    let mut cells = Vec::new();
    for ((character, color, _), count) in SLOT_CELLS.iter().zip(slots) {
        let wanted = match usize::try_from(count) {
            Ok(count) if total <= room as u64 => count,
            _ => part(count as f64 / total.max(1) as f64, room),
        };
        let count = wanted.min(room - drawn);
        drawn += count;
        cells.push(Span::styled(character.to_string().repeat(count), Style::new().fg(*color)));
    }
    cells
}

/// The slots as text, each with its cell.
pub(super) fn ring_legend(slots: [u64; 4]) -> Vec<Span<'static>> {
    let parts = SLOT_CELLS.iter().zip(slots).flat_map(|((character, color, name), count)| {
        [
            Span::styled(format!("  {character}"), Style::new().fg(*color)),
            Span::raw(format!(" {count} {name}")),
        ]
    });
    parts.collect()
}

/// The use and the budget; without a budget, only the use.
pub(super) fn cpu_words(used: f64, budget: f64) -> String {
    if budget > 0.0 {
        format!("{used:.2} of {budget:.2} cores")
    } else {
        format!("{used:.2} cores")
    }
}

/// The use divided by the budget.
#[expect(clippy::cast_precision_loss, reason = "a share")]
pub(super) fn memory_share(used: u64, budget: u64) -> f64 {
    if budget == 0 { 0.0 } else { used as f64 / budget as f64 }
}

/// The use and the budget.
pub(super) fn memory_words(used: u64, budget: u64) -> String {
    if budget == 0 {
        format_bytes(used)
    } else {
        format!("{} of {}", format_bytes(used), format_bytes(budget))
    }
}

/// A whole number with grouped thousands.
pub(super) fn grouped(number: f64) -> String {
    let digits = format!("{:.0}", number.max(0.0));
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The width of a text in cells.
pub(super) fn width(text: &str) -> usize {
    Span::raw(text).width()
}

/// The text in at most `cells` cells; an ellipsis replaces the rest.
pub(super) fn cut(text: &str, cells: usize) -> String {
    if width(text) <= cells {
        return text.to_owned();
    }
    let mut kept = String::new();
    for character in text.chars() {
        kept.push(character);
        if width(&kept) + 1 > cells {
            kept.pop();
            break;
        }
    }
    if cells > 0 {
        kept.push('…');
    }
    kept
}

/// The text left-aligned in exactly `cells` cells.
pub(super) fn left(text: &str, cells: usize) -> String {
    let text = cut(text, cells);
    let pad = cells.saturating_sub(width(&text));
    text + &" ".repeat(pad)
}

/// The text right-aligned in exactly `cells` cells.
pub(super) fn right(text: &str, cells: usize) -> String {
    let text = cut(text, cells);
    " ".repeat(cells.saturating_sub(width(&text))) + &text
}

/// Wraps the text to lines of at most `cells` cells, between words, or within words that are longer.
pub(super) fn wrap(text: &str, cells: usize) -> Vec<String> {
    let cells = cells.max(1);
    let mut lines = Vec::new();
    let mut line = String::new();
    for word in text.split(' ') {
        let space = usize::from(!line.is_empty());
        if width(&line) + space + width(word) <= cells {
            if space > 0 {
                line.push(' ');
            }
            line.push_str(word);
            continue;
        }
        if !line.is_empty() {
            lines.push(std::mem::take(&mut line));
        }
        for character in word.chars() {
            line.push(character);
            if width(&line) > cells && line.chars().count() > 1 {
                line.pop();
                lines.push(std::mem::take(&mut line));
                line.push(character);
            }
        }
    }
    lines.push(line);
    lines
}

/// A dimmed label in a separate column.
pub(super) fn label(text: &str) -> Span<'static> {
    Span::from(format!(" {text:<10}")).dim()
}

/// A line with one span.
pub(super) fn styled(text: impl Into<String>, style: Style) -> Line<'static> {
    Line::from(Span::styled(text.into(), style))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_wrapped_between_words_and_inside_long_ones() {
        assert_eq!(wrap("the stage is the limit", 9), ["the stage", "is the", "limit"]);
        assert_eq!(wrap("see /data/long/path now", 10), ["see", "/data/long", "/path now"]);
        assert_eq!(wrap("図図図図図", 5), ["図図", "図図", "図"]);
        assert_eq!(wrap("ab", 0), ["a", "b"]);
    }

    #[test]
    fn text_is_truncated_to_its_cells() {
        assert_eq!(
            (cut("preprocess", 10), cut("preprocess", 6)),
            ("preprocess".into(), "prepr…".into())
        );
        assert_eq!((cut("図図図", 4), cut("abc", 0)), ("図…".into(), String::new()));
        assert_eq!((left("ab", 4), right("ab", 4)), ("ab  ".into(), "  ab".into()));
    }

    #[test]
    fn ring_has_a_cell_for_each_slot_if_they_fit() {
        let text = |slots, room| -> String {
            ring_cells(slots, room).iter().map(|span| span.content.as_ref()).collect()
        };
        assert_eq!(text([3, 2, 1, 2], 20), "███▓▓░··");
        assert_eq!(text([100, 50, 0, 50], 8), "████▓▓··");
        assert_eq!(text([0, 0, 0, 0], 8), "");
    }

    #[test]
    fn numbers_are_grouped() {
        assert_eq!(
            (grouped(0.4), grouped(999.6), grouped(1_234_567.0)),
            ("0".into(), "1,000".into(), "1,234,567".into())
        );
    }
}
