//! The page around the plots: one file, no script, nothing from a network, well-formed as XML too.

use super::markup::escape;

/// Colours that mean the same in every plot; told apart by those who see few colours (after Okabe and Ito).
pub(super) mod color {
    /// What arrives.
    pub(in crate::cli::report) const THROUGHPUT: &str = "#0b4f7d";
    /// The trainer waits.
    pub(in crate::cli::report) const WAIT: &str = "#d55e00";
    /// The loader disturbs the trainer.
    pub(in crate::cli::report) const DISTURB: &str = "#e69f00";
    /// The trainer works.
    pub(in crate::cli::report) const TRAINER: &str = "#8a94a0";
    /// Processor time.
    pub(in crate::cli::report) const CPU: &str = "#555f6b";
    /// The stages in their order; more than so many begin anew.
    const STAGES: [&str; 6] = ["#56b4e9", "#0072b2", "#009e73", "#cc79a7", "#8c6d31", "#b5a400"];

    /// A stage's, by its place in the pipeline.
    pub(in crate::cli::report) fn stage(number: usize) -> &'static str {
        STAGES[number % STAGES.len()]
    }
}

const STYLE: &str = "
:root { color-scheme: light }
* { box-sizing: border-box }
body { margin: 0; background: #f4f5f7; color: #1f2933; font: 15px/1.5 system-ui, 'Segoe UI', Helvetica, Arial, 'DejaVu Sans', sans-serif; font-variant-numeric: tabular-nums }
main { max-width: 1240px; margin: 0 auto; padding: 28px 20px }
h1 { font-size: 15px; font-weight: 600; color: #52606d; margin: 0 0 4px }
.verdict { font-size: 25px; line-height: 1.3; font-weight: 650; margin: 0 0 20px; max-width: 62em }
h2 { font-size: 16px; margin: 0 0 8px }
.note { color: #52606d; font-size: 13px; margin: 0 0 8px }
.grid { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(520px, 100%), 1fr)); gap: 16px; margin: 16px 0 }
section { background: #fff; border: 1px solid #dfe3e8; border-radius: 8px; padding: 16px 18px; overflow: hidden }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(160px, 1fr)); gap: 12px }
.tile { background: #fff; border: 1px solid #dfe3e8; border-radius: 8px; padding: 10px 14px }
.tile b { display: block; font-size: 22px; line-height: 1.3 }
.tile span { color: #52606d; font-size: 13px }
table { border-collapse: collapse; width: 100%; font-size: 14px }
th, td { text-align: right; padding: 4px 8px; border-bottom: 1px solid #e8ebef; vertical-align: top }
th { color: #52606d; font-weight: 600 }
th:first-child, td:first-child { text-align: left; padding-left: 0 }
table.facts td { text-align: left; overflow-wrap: anywhere }
table.facts td:first-child { color: #52606d; white-space: nowrap; width: 1%; padding-right: 18px }
pre { margin: 0; font: 12.5px/1.45 ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace; white-space: pre-wrap; overflow-wrap: anywhere }
svg.plot { width: 100%; height: auto; display: block }
svg text { font: 12px system-ui, 'Segoe UI', Helvetica, Arial, 'DejaVu Sans', sans-serif; font-variant-numeric: tabular-nums; fill: #3e4c59; paint-order: stroke; stroke: #fff; stroke-width: 3px; stroke-linejoin: round }
svg text.label { fill: #52606d }
svg text.name { font-weight: 600; font-size: 14px; fill: #1f2933 }
svg .grid { stroke: #e4e7eb; stroke-width: 1 }
svg .line { fill: none; stroke-width: 2; stroke-linejoin: round }
svg .mark { stroke: #1f2933; stroke-width: 1; stroke-dasharray: 4 3 }
svg .box { fill: #fff; stroke-width: 2 }
svg .limit { stroke-width: 5 }
svg .rest { fill: #e4e7eb }
svg .arrow { fill: #7b8794 }
.legend { margin: 6px 0 0; font-size: 13px; color: #3e4c59 }
.entry { margin-right: 14px; white-space: nowrap }
.swatch { width: 10px; height: 10px; margin-right: 6px }
footer { color: #52606d; font-size: 13px }
@media print { body { background: #fff; font-size: 12px } main { max-width: none; padding: 0 } section, .tile { break-inside: avoid; border-color: #c5ccd3 } .grid { grid-template-columns: 1fr 1fr } }
";

/// A whole page: what it is about, the sentence at its head, and what stands below.
pub(super) fn page(title: &str, sentence: &str, body: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\" xmlns=\"http://www.w3.org/1999/xhtml\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\"/>\n\
         <title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n\
         <p class=\"verdict\">{}</p>\n{body}<footer>forebay {}</footer>\n</main>\n</body>\n</html>\n",
        escape(&capitalized(sentence)),
        env!("CARGO_PKG_VERSION"),
        title = escape(title),
    )
}

/// A sentence as a headline.
fn capitalized(sentence: &str) -> String {
    let mut characters = sentence.chars();
    characters
        .next()
        .map_or_else(String::new, |first| first.to_uppercase().chain(characters).collect())
}

/// A part of the page with a heading; its content is markup.
pub(super) fn section(heading: &str, note: &str, content: &str) -> String {
    let note = if note.is_empty() {
        String::new()
    } else {
        format!("<p class=\"note\">{}</p>\n", escape(note))
    };
    format!("<section>\n<h2>{}</h2>\n{note}{content}</section>\n", escape(heading))
}

/// Sections beside each other.
pub(super) fn grid(sections: &[String]) -> String {
    format!("<div class=\"grid\">\n{}</div>\n", sections.concat())
}

/// Figures that stand out: values and names.
pub(super) fn tiles(figures: &[(String, &str)]) -> String {
    let tiles = figures.iter().map(|(value, name)| {
        format!("<div class=\"tile\"><b>{}</b><span>{}</span></div>\n", escape(value), escape(name))
    });
    format!("<div class=\"tiles\">\n{}</div>\n", tiles.collect::<String>())
}

/// Names and values.
pub(super) fn facts<'a>(facts: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let rows = facts.map(|(name, value)| {
        format!("<tr><td>{}</td><td>{}</td></tr>\n", escape(name), escape(value))
    });
    format!("<table class=\"facts\"><tbody>\n{}</tbody></table>\n", rows.collect::<String>())
}

/// A table with a heading for each column.
pub(super) fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let cells = |tag: &str, cells: &mut dyn Iterator<Item = &str>| {
        cells.map(|cell| format!("<{tag}>{}</{tag}>", escape(cell))).collect::<String>()
    };
    let body: String = rows
        .iter()
        .map(|row| format!("<tr>{}</tr>\n", cells("td", &mut row.iter().map(String::as_str))))
        .collect();
    let head = cells("th", &mut header.iter().copied());
    format!("<table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table>\n")
}
