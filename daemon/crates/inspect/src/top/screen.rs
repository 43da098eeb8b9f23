//! The whole screen: one daemon, the table of all daemons, or a message if there is nothing to show; and the help over
//! it.

use ratatui::Frame;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::layout::Rect;
use ratatui::text::Line;
use ratatui::widgets::{Block, Clear};

use super::page::{Page, footed};
use super::parts::wrap;
use super::snapshot::Snapshot;
use super::{overview, view};

/// The contents of the screen.
#[derive(Debug, Default)]
pub(super) struct Screen {
    /// Sorted by rank.
    pub snapshots: Vec<Snapshot>,
    /// The index of the selected snapshot.
    pub selected: usize,
    /// Whether the table of all is shown.
    pub is_overview: bool,
    pub has_help: bool,
    /// The message if there is nothing to show.
    pub why_empty: String,
}

const HELP: &[&str] = &[
    "q, Ctrl-C        quit; Esc goes back from an opened rank",
    "tab, arrows      another daemon or session",
    "a                all ranks of this host, or one",
    "enter            open the selected rank",
    "",
    "all values       the mean of the last 4 seconds",
    "3.1 of 16 busy   running tasks of the maximum",
    "████░░▸ 62 %     share of time in which the next stage had",
    "                 input; low: it starves",
    "waits 12 %       the share of the trainer's time without data",
    "ring             █ ready  ▓ with the trainer  ░ filling  · free",
    "work             work threads that work for the session",
    "◂                the slow rank",
];

/// Draws the screen.
pub(super) fn draw(frame: &mut Frame<'_>, screen: &Screen) {
    let area = frame.area();
    match screen.snapshots.get(screen.selected) {
        None => {
            let [body, foot] = footed(area);
            let mut page = Page::new(frame, body);
            for line in wrap(&screen.why_empty, page.width().saturating_sub(2)) {
                page.line(format!(" {line}"));
            }
            frame.render_widget(Line::from(" q quit"), foot);
        }
        Some(_) if screen.is_overview => {
            overview::draw(frame, area, &screen.snapshots, screen.selected);
        }
        Some(snapshot) => {
            view::draw(frame, area, snapshot, (screen.selected, screen.snapshots.len()))
        }
    }
    if screen.has_help {
        help(frame, area);
    }
}

fn help(frame: &mut Frame<'_>, area: Rect) {
    let height = u16::try_from(HELP.len() + 2).unwrap_or(u16::MAX).min(area.height);
    let width = 66.min(area.width);
    let place = Rect {
        x: area.x + (area.width - width) / 2,
        y: area.y + (area.height - height) / 2,
        width,
        height,
    };
    frame.render_widget(Clear, place);
    let block = Block::bordered().title(" help ");
    let mut page = Page::new(frame, block.inner(place));
    HELP.iter().for_each(|line| page.line(format!(" {line}")));
    frame.render_widget(block, place);
}

/// The screen as plain text of `columns` columns and at most `rows` rows.
pub(super) fn as_text(screen: &Screen, columns: u16, rows: u16) -> String {
    let mut terminal = match Terminal::new(TestBackend::new(columns, rows)) {
        Ok(terminal) => terminal,
        Err(never) => match never {},
    };
    match terminal.draw(|frame| draw(frame, screen)) {
        Ok(_) => {}
        Err(never) => match never {},
    }
    let buffer = terminal.backend().buffer();
    let mut text = String::new();
    for row in 0..buffer.area.height {
        let mut line = String::new();
        let mut covered = 0;
        for column in 0..buffer.area.width {
            let Some(cell) = buffer.cell((column, row)) else { continue };
            // A wide character covers the cell after it.
            if covered == 0 {
                line.push_str(cell.symbol());
                covered = super::parts::width(cell.symbol());
            }
            covered = covered.saturating_sub(1);
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests;
