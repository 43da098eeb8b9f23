//! Renders folded stacks as a flame graph: one self-contained SVG for any browser.
//!
//! A frame's width is its share of the total, and its callees are above it; a tooltip shows the details. The usual
//! crate for this has the licence CDDL, which the wheel cannot include.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Pixels.
const WIDTH: f64 = 1200.0;
const MARGIN: f64 = 10.0;
const FRAME_HEIGHT: f64 = 17.0;
const HEAD_HEIGHT: f64 = 62.0;
/// The mean width of a letter in the frames' font.
const LETTER_WIDTH: f64 = 6.6;
/// Narrower frames are omitted: a pointer cannot hit them.
const MIN_WIDTH: f64 = 0.3;
/// Deeper stacks are truncated.
const MAX_FRAMES_DEEP: usize = 200;

/// Stacks with a title and a unit.
#[derive(Debug, Default)]
pub struct Stacks {
    /// The text above the graph.
    pub title: String,
    /// The unit of the weights: `us` or `samples`.
    pub unit: String,
    root: Frame,
}

#[derive(Debug, Default)]
struct Frame {
    weight: u64,
    callees: BTreeMap<String, Frame>,
}

impl Stacks {
    /// Parses lines of `outermost;…;innermost weight`; other lines are skipped.
    pub fn parse(text: &str) -> Self {
        let mut stacks = Self::default();
        for line in text.lines() {
            if let Some(title) = line.strip_prefix("# title: ") {
                stacks.title = title.to_owned();
            } else if let Some(unit) = line.strip_prefix("# unit: ") {
                stacks.unit = unit.to_owned();
            } else if let Some((stack, weight)) = line.rsplit_once(' ')
                && let Ok(weight) = weight.parse::<u64>()
            {
                stacks.add(stack, weight);
            }
        }
        stacks
    }

    fn add(&mut self, stack: &str, weight: u64) {
        let mut frame = &mut self.root;
        frame.weight = frame.weight.saturating_add(weight);
        for name in stack.split(';').take(MAX_FRAMES_DEEP) {
            frame = frame.callees.entry(name.to_owned()).or_default();
            frame.weight = frame.weight.saturating_add(weight);
        }
    }

    /// The sum of all weights.
    pub fn total(&self) -> u64 {
        self.root.weight
    }

    /// Renders the SVG.
    pub fn svg(&self) -> String {
        let depth = self.root.depth();
        #[expect(clippy::cast_precision_loss, reason = "pixels")]
        let height = HEAD_HEIGHT + FRAME_HEIGHT * depth as f64 + MARGIN;
        let mut svg = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
             <svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
             viewBox=\"0 0 {WIDTH} {height}\" font-family=\"ui-monospace, Menlo, Consolas, monospace\" font-size=\"11\">\n\
             <style>rect {{ stroke: #fffdf8; stroke-width: 0.6 }} g:hover rect {{ stroke: #222; stroke-width: 1.2 }} \
             text {{ fill: #1b1b1b }} g text {{ pointer-events: none }}</style>\n\
             <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#fffdf8\"/>\n"
        );
        let title = escaped(&clipped(&self.title, WIDTH - 2.0 * MARGIN, 8.6));
        // Writing to a string cannot fail.
        let _ = writeln!(
            svg,
            "<text x=\"{MARGIN}\" y=\"24\" font-size=\"14\" font-weight=\"bold\">{title}</text>"
        );
        let _ = writeln!(
            svg,
            "<text x=\"{MARGIN}\" y=\"44\">Width is the share of {} in all. Rest the pointer on a frame for its figures.</text>",
            self.weight_text(self.root.weight)
        );
        let base = height - MARGIN - FRAME_HEIGHT;
        self.draw(&mut svg, "all", &self.root, (MARGIN, WIDTH - 2.0 * MARGIN), base);
        svg.push_str("</svg>\n");
        svg
    }

    fn draw(&self, svg: &mut String, name: &str, frame: &Frame, (x, width): (f64, f64), y: f64) {
        if width < MIN_WIDTH {
            return;
        }
        #[expect(clippy::cast_precision_loss, reason = "a share")]
        let share = |weight: u64, whole: u64| weight as f64 / whole.max(1) as f64;
        let figures = format!(
            "{name}: {}, {:.1} %",
            self.weight_text(frame.weight),
            100.0 * share(frame.weight, self.root.weight)
        );
        let _ = writeln!(
            svg,
            "<g><title>{}</title><rect x=\"{x:.2}\" y=\"{y:.1}\" width=\"{width:.2}\" height=\"{FRAME_HEIGHT}\" \
             rx=\"2\" fill=\"{}\"/><text x=\"{:.2}\" y=\"{:.1}\">{}</text></g>",
            escaped(&figures),
            colour(name),
            x + 3.0,
            y + 12.5,
            escaped(&clipped(name, width - 6.0, LETTER_WIDTH))
        );
        let mut at = x;
        for (name, callee) in &frame.callees {
            let callee_width = width * share(callee.weight, frame.weight);
            self.draw(svg, name, callee, (at, callee_width), y - FRAME_HEIGHT);
            at += callee_width;
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "for a person")]
    fn weight_text(&self, weight: u64) -> String {
        match self.unit.as_str() {
            "us" if weight >= 1_000_000 => format!("{:.2} s", weight as f64 / 1e6),
            "us" => format!("{:.2} ms", weight as f64 / 1e3),
            unit => format!("{weight} {unit}"),
        }
    }
}

impl Frame {
    fn depth(&self) -> usize {
        1 + self.callees.values().map(Self::depth).max().unwrap_or(0)
    }
}

/// The part of a name that fits.
fn clipped(name: &str, width: f64, letter_width: f64) -> String {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "letters in a few hundred pixels"
    )]
    let fits = (width / letter_width).max(0.0) as usize;
    if name.chars().count() <= fits {
        return name.to_owned();
    }
    if fits < 3 {
        return String::new();
    }
    name.chars().take(fits - 1).chain(['…']).collect()
}

fn escaped(text: &str) -> String {
    let safe = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    // XML forbids control characters.
    safe.replace('"', "&quot;").replace(char::is_control, " ")
}

/// A warm colour that depends on the name only.
fn colour(name: &str) -> String {
    // FNV-1a.
    let hash = name
        .bytes()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    format!("hsl({}, {}%, {}%)", 8 + hash % 42, 72 + hash / 64 % 18, 62 + hash / 4096 % 12)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# title: where <time> & \"space\" went\n# unit: us\nwork;train;decode 3000\n\
                        work;train;crop 1000\nfetch;Vec<u8>::read 4000000\nnonsense\n";

    #[test]
    fn widths_are_shares_and_tooltips_have_numbers() {
        let stacks = Stacks::parse(TEXT);
        assert_eq!((stacks.total(), stacks.root.depth()), (4_004_000, 4));
        let svg = stacks.svg();
        assert!(svg.contains("<title>train: 4.00 ms, 0.1 %</title>"), "{svg}");
        assert!(svg.contains("<title>decode: 3.00 ms, 0.1 %</title>"), "{svg}");
        assert!(svg.contains("Vec&lt;u8&gt;::read: 4.00 s, 99.9 %"), "{svg}");
        assert!(svg.contains("where &lt;time&gt; &amp; &quot;space&quot; went"), "{svg}");
        // Every element is closed.
        assert_eq!(svg.matches("<g>").count(), svg.matches("</g>").count());
        assert_eq!(svg.matches("<text").count(), svg.matches("</text>").count());
    }

    #[test]
    fn empty_input_gives_a_valid_graph() {
        let svg = Stacks::parse("").svg();
        assert!(
            svg.contains("<title>all: 0 , 0.0 %</title>") && svg.ends_with("</svg>\n"),
            "{svg}"
        );
    }

    #[test]
    fn names_are_truncated_to_their_frames() {
        assert_eq!(clipped("decode", 60.0, 6.6), "decode");
        assert_eq!(clipped("decode", 30.0, 6.6), "dec…");
        assert_eq!(clipped("decode", 10.0, 6.6), "");
        assert_eq!(clipped("decode", -3.0, 6.6), "");
    }
}
