//! Draws the stages: a box for each, a bar for the queue after it, and the trainer at the end. If the boxes do not fit
//! in a row, each stage has a line.

use ratatui::layout::Rect;
use ratatui::style::{Color, Style, Stylize as _};
use ratatui::text::{Line, Span};
use ratatui::widgets::Block;

use super::super::table::{percent, time};
use super::page::Page;
use super::parts::{bar, cut, left};
use super::snapshot::Figures;
use forebay_observe::StageReport;

/// The width of a queue between two boxes.
const LINK_COLUMNS: u16 = 9;
/// The width of a queue's bar.
const BAR_CELLS: usize = 6;
const MIN_BOX_COLUMNS: u16 = 16;
const MAX_BOX_COLUMNS: u16 = 34;
const BOX_ROWS: u16 = 5;
/// The width of a hot spot in a box or a line.
const HOT_COLUMNS: usize = 14;

/// Draws the stages and the trainer.
pub(super) fn draw(page: &mut Page<'_, '_>, figures: &Figures) {
    let boxes = u16::try_from(figures.stages().len() + 1).unwrap_or(u16::MAX);
    let width = u16::try_from(page.width()).unwrap_or(u16::MAX);
    let links = LINK_COLUMNS.saturating_mul(boxes - 1);
    let box_columns = (width.saturating_sub(links.saturating_add(2)) / boxes).min(MAX_BOX_COLUMNS);
    if box_columns >= MIN_BOX_COLUMNS && page.room() > BOX_ROWS + 6 {
        in_boxes(page, figures, box_columns);
    } else {
        in_lines(page, figures);
    }
}

/// Whether the verdict names this stage.
fn is_limit(figures: &Figures, name: &str) -> bool {
    let limit = &figures.verdict().limit;
    limit == name || (limit == "storage" && name == "fetch")
}

fn occupancy_color(share: f64) -> Color {
    match share {
        ..0.2 => Color::Red,
        ..0.5 => Color::Yellow,
        _ => Color::Green,
    }
}

/// The share of the time in which the queue after a stage is not empty.
pub(super) fn occupancy(stage: &StageReport) -> Option<f64> {
    stage.queue.as_ref().map(|queue| queue.occupancy_rate)
}

fn stage_words(figures: &Figures, stage: &StageReport) -> [String; 3] {
    let hot = stage.python.as_ref().and_then(|python| {
        let spot = python.hot_callee()?;
        let (_, name) = spot.name.rsplit_once('.').unwrap_or(("", &spot.name));
        Some(cut(&format!("{} {name}", percent(spot.share)), HOT_COLUMNS))
    });
    [
        format!("{:.1} of {} busy", figures.busy(stage), stage.concurrency),
        format!("mean {}", time(stage.ave_time)),
        // For a Python stage, the hot spot of its function.
        hot.unwrap_or_else(|| format!("p99 {}", time(stage.p99_time))),
    ]
}

fn trainer_words(figures: &Figures) -> [String; 3] {
    let Some(session) = &figures.session else {
        return ["not attached".to_owned(), String::new(), String::new()];
    };
    let step = session
        .step_seconds()
        .map_or("takes nothing".to_owned(), |step| format!("step {}", time(step)));
    let ready = format!("{} ready for it", session.slots()[0]);
    [format!("waits {}", percent(session.wait_share)), step, ready]
}

fn in_boxes(page: &mut Page<'_, '_>, figures: &Figures, columns: u16) {
    let area = page.rows(BOX_ROWS);
    let mut x = area.x + 1;
    let one_box = |page: &mut Page<'_, '_>, x: u16, name: &str, words: [String; 3]| {
        let place = Rect { x, width: columns, ..area };
        let mut block =
            Block::bordered().title(format!(" {} ", cut(name, usize::from(columns) - 4)));
        if is_limit(figures, name) {
            block = block.border_style(Style::new().fg(Color::Yellow).bold());
        }
        let inner = block.inner(place);
        page.frame().render_widget(block, place);
        for (row, text) in (0..).zip(words) {
            let line = Rect { y: inner.y + row, height: 1, ..inner };
            page.frame().render_widget(Line::from(format!(" {text}")), line);
        }
    };
    for stage in figures.stages() {
        one_box(page, x, &stage.name, stage_words(figures, stage));
        x += columns;
        let share = occupancy(stage).unwrap_or(0.0);
        let mut spans = vec![Span::raw(" ")];
        spans.extend(bar(share, BAR_CELLS, occupancy_color(share)));
        spans.push(Span::raw("▸"));
        let link = Rect { x, y: area.y + 2, width: LINK_COLUMNS, height: 1 };
        page.frame().render_widget(Line::from(spans), link);
        let below = Rect { y: area.y + 3, ..link };
        let words = occupancy(stage).map_or(String::new(), percent);
        page.frame().render_widget(Line::from(format!(" {words:>5}")).dim(), below);
        x += LINK_COLUMNS;
    }
    one_box(page, x, "trainer", trainer_words(figures));
}

fn in_lines(page: &mut Page<'_, '_>, figures: &Figures) {
    let name_columns = page.width().saturating_sub(64).clamp(8, 24);
    let name_span = |name: &str| {
        let span = Span::raw(format!(" {} ", left(name, name_columns)));
        if is_limit(figures, name) { span.fg(Color::Yellow).bold() } else { span }
    };
    for stage in figures.stages() {
        let [busy, mean, p99] = stage_words(figures, stage);
        let mut spans =
            vec![name_span(&stage.name), Span::raw(format!("{busy:<16}{mean:<16}{p99:<15}▸ "))];
        if let Some(share) = occupancy(stage) {
            spans.extend(bar(share, BAR_CELLS, occupancy_color(share)));
            spans.push(Span::raw(format!(" {:>5}", percent(share))));
        }
        page.line(Line::from(spans));
    }
    let [wait, step, _] = trainer_words(figures);
    page.line(Line::from(vec![name_span("trainer"), Span::raw(format!("{wait:<16}{step}"))]));
}
