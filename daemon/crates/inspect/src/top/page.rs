//! The area of the screen that views draw, line by line.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::Line;

/// An area of the screen that is filled from top to bottom.
pub(super) struct Page<'a, 'b> {
    frame: &'a mut Frame<'b>,
    area: Rect,
    next: u16,
}

impl<'a, 'b> Page<'a, 'b> {
    pub(super) fn new(frame: &'a mut Frame<'b>, area: Rect) -> Self {
        Self { frame, area, next: 0 }
    }

    pub(super) fn width(&self) -> usize {
        self.area.width.into()
    }

    /// The number of free rows.
    pub(super) fn room(&self) -> u16 {
        self.area.height.saturating_sub(self.next)
    }

    pub(super) fn line<'c>(&mut self, line: impl Into<Line<'c>>) {
        let area = self.rows(1);
        if !area.is_empty() {
            self.frame.render_widget(line.into(), area);
        }
    }

    pub(super) fn blank(&mut self) {
        self.rows(1);
    }

    /// The next rows, fewer if they do not fit.
    pub(super) fn rows(&mut self, count: u16) -> Rect {
        let count = count.min(self.room());
        let area = Rect { y: self.area.y + self.next, height: count, ..self.area };
        self.next += count;
        area
    }

    pub(super) fn frame(&mut self) -> &mut Frame<'b> {
        self.frame
    }
}

/// The area without its last line, and that line.
pub(super) fn footed(area: Rect) -> [Rect; 2] {
    let height = area.height.saturating_sub(1);
    [Rect { height, ..area }, Rect { y: area.y + height, height: area.height - height, ..area }]
}
