//! The screen of one daemon and one of its sessions. 80×24 shows all of it; a larger terminal has taller plots and more
//! space for notices, a smaller one shows the most important parts.

use std::collections::VecDeque;

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Style, Stylize as _};
use ratatui::text::{Line, Span};
use ratatui::widgets::{RenderDirection, Sparkline};

use super::super::stats::explanation;
use super::super::table::{percent, span};
use super::page::{Page, footed};
use super::parts::{
    bar, cpu_words, cut, grouped, label, left, memory_share, memory_words, right, ring_cells,
    ring_legend, styled, wrap,
};
use super::pipeline;
use super::snapshot::{Figures, Notice, NoticeKind, Session, Snapshot};
use forebay_observe::SessionReport;

/// Below this size the small screen is drawn.
const MIN_COLUMNS: u16 = 60;
const MIN_ROWS: u16 = 18;
/// The maximum number of lines of the verdict's sentence.
const SENTENCE_LINES: usize = 6;

/// Draws one snapshot; `place`: its number and the number of all.
pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, snapshot: &Snapshot, place: (usize, usize)) {
    let [body, foot] = footed(area);
    let mut page = Page::new(frame, body);
    let is_small = area.width < MIN_COLUMNS || area.height < MIN_ROWS;
    title(&mut page, snapshot, place);
    lost(&mut page, snapshot);
    match &snapshot.figures {
        None if snapshot.lost.is_none() => page.line(" waiting for the daemon's first answer"),
        None => {}
        Some(figures) if is_small => small(&mut page, figures),
        Some(figures) => full(&mut page, figures),
    }
    footer(frame, foot, place.1 > 1);
}

fn title(page: &mut Page<'_, '_>, snapshot: &Snapshot, (number, count): (usize, usize)) {
    let mut text = " forebay".to_owned();
    match snapshot.session() {
        Some(session) => text.push_str(&format!(
            "  {}, rank {} of {}{}, {}",
            session.report.stream,
            session.report.rank,
            session.report.world_size,
            session.report.of_trainer(),
            progress_words(&session.report)
        )),
        None => text.push_str(&format!("  {}", snapshot.socket)),
    }
    let mut end = String::from(" ");
    if let Some(figures) = snapshot.figures.as_ref().filter(|_| page.width() >= MIN_COLUMNS.into())
    {
        end.push_str(&format!("process {} ", figures.report().pid));
    }
    if count > 1 {
        end.push_str(&format!(" {}/{count} ", number + 1));
    }
    let room = page.width();
    let text = left(&text, room.saturating_sub(end.len()));
    page.line(styled(cut(&format!("{text}{end}"), room), Style::new().reversed()));
}

/// The current epoch, the number of epochs, and the remaining times.
fn progress_words(session: &SessionReport) -> String {
    let Some(progress) = &session.progress else {
        return format!("epoch {}", session.position.epoch);
    };
    let of = progress.epochs.map_or_else(String::new, |epochs| format!(" of {epochs}"));
    let left = progress.seconds_left.filter(|left| *left > 0.0);
    let left = left.map_or_else(String::new, |left| format!(", {} left", span(left)));
    format!("epoch {}{of}{left}", progress.epoch)
}

fn lost(page: &mut Page<'_, '_>, snapshot: &Snapshot) {
    if let Some((reason, seconds)) = &snapshot.lost {
        let text = format!("no answer for {seconds:.0} s, retrying: {reason}");
        for line in wrap(&text, page.width().saturating_sub(2)).into_iter().take(3) {
            page.line(styled(format!(" {line}"), Style::new().fg(Color::Red).bold()));
        }
        if snapshot.figures.is_some() {
            page.line(Line::from(" last figures:").dim());
        }
    }
}

fn full(page: &mut Page<'_, '_>, figures: &Figures) {
    // Courses grow with the screen: one more row per six.
    let course_rows = (1 + page.room().saturating_sub(23) / 6).min(6);
    match &figures.session {
        Some(session) => courses(page, session, course_rows),
        None => page.line(" no trainer attached"),
    }
    page.blank();
    pipeline::draw(page, figures);
    if let Some(requests) = figures.requests() {
        let line = format!(" storage   {}", requests.line());
        page.line(cut(&line, page.width()));
    }
    if let Some(supply) = figures.supply() {
        page.line(cut(&format!(" feeders   {}", supply.line()), page.width()));
    }
    if let Some(sharing) = figures.sharing() {
        page.line(cut(&format!(" sharing   {}", sharing.line()), page.width()));
    }
    if let Some(cache) = figures.cache() {
        let line = format!(" cache     {}", cache.line());
        page.line(cut(&line, page.width()));
    }
    if let Some(index) = figures.jpeg_index().filter(|_| page.room() >= 14) {
        let line = format!(" JPEG      {}", index.line());
        page.line(cut(&line, page.width()));
    }
    if let Some(datasets) = figures.datasets_line() {
        page.line(cut(&format!(" datasets  {datasets}"), page.width()));
    }
    if page.room() >= 14 {
        page.blank();
    }
    if let Some(session) = &figures.session {
        ring(page, session);
    }
    use_of_budgets(page, figures);
    page.blank();
    verdict(page, figures);
    page.blank();
    notices(page, &figures.notices());
}

/// Throughput and wait: the current value and the course, the latest point at the right.
fn courses(page: &mut Page<'_, '_>, session: &Session, rows: u16) {
    let points = &session.course.samples_per_second;
    let greatest = points.iter().copied().fold(0.0, f64::max);
    let words = [
        format!("{} now", grouped(session.samples_per_second)),
        format!("{} at most", grouped(greatest)),
    ];
    course(page, rows, "samples/s", &words, (points, greatest), Color::Cyan);
    let words = [format!("{} now", percent(session.wait_share)), "full height 100 %".to_owned()];
    course(page, rows, "wait", &words, (&session.course.wait_share, 1.0), Color::Red);
}

/// A course with its legend at the left; the legend may have a second line.
fn course(
    page: &mut Page<'_, '_>,
    rows: u16,
    name: &str,
    [now, scale]: &[String; 2],
    (points, greatest): (&VecDeque<f64>, f64),
    color: Color,
) {
    const LEGEND: u16 = 26;
    let area = page.rows(rows);
    let mut legend = Page::new(page.frame(), Rect { width: area.width.min(LEGEND), ..area });
    legend.line(Line::from(vec![label(name), Span::from(right(now, 13)).bold()]));
    legend.line(Line::from(right(scale, 24)).dim());
    let area = Rect {
        x: area.x + LEGEND.min(area.width),
        width: area.width.saturating_sub(LEGEND + 1),
        ..area
    };
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 1000")]
    let heights: Vec<u64> = points
        .iter()
        .rev()
        .map(|point| if greatest > 0.0 { (point / greatest * 1000.0) as u64 } else { 0 })
        .collect();
    let course = Sparkline::default()
        .data(heights)
        .max(1000)
        .direction(RenderDirection::RightToLeft)
        .style(Style::new().fg(color));
    page.frame().render_widget(course, area);
}

fn ring(page: &mut Page<'_, '_>, session: &Session) {
    let legend = ring_legend(session.slots());
    let taken: usize = legend.iter().map(Span::width).sum();
    let mut spans = vec![label("ring")];
    spans.extend(ring_cells(session.slots(), page.width().saturating_sub(taken + 12)));
    spans.extend(legend);
    page.line(Line::from(spans));
}

/// CPU and memory.
fn use_of_budgets(page: &mut Page<'_, '_>, figures: &Figures) {
    let cpu = cpu_words(figures.cpu_cores(), figures.cpu_budget_cores());
    let share = if figures.cpu_budget_cores() > 0.0 {
        figures.cpu_cores() / figures.cpu_budget_cores()
    } else {
        0.0
    };
    let mut spans = vec![label("CPU")];
    spans.extend(bar(share, 8, budget_color(share)));
    spans.push(Span::raw(format!(" {}", left(&cpu, 19))));
    let memory = memory_words(figures.report().resident_bytes, figures.memory_ceiling_bytes());
    let share = memory_share(figures.report().resident_bytes, figures.memory_ceiling_bytes());
    spans.push(Span::from(" memory ").dim());
    spans.extend(bar(share, 8, budget_color(share)));
    spans.push(Span::raw(format!(" {memory}")));
    page.line(Line::from(spans));
    if let Some(words) = python_words(figures) {
        page.line(Line::from(vec![label("Python"), Span::raw(words)]));
    }
}

/// The use of the workers, in addition to the daemon's.
fn python_words(figures: &Figures) -> Option<String> {
    figures.python_cores().map(|cores| format!("{cores:.2} cores in workers, beside the daemon"))
}

fn budget_color(share: f64) -> Color {
    if share > 0.95 { Color::Yellow } else { Color::Cyan }
}

/// The short line, and its explanation if there is space.
fn verdict(page: &mut Page<'_, '_>, figures: &Figures) {
    let cells = page.width().saturating_sub(2);
    let verdict = figures.verdict();
    let room = usize::from(page.room());
    let line = wrap(&verdict.line(), cells);
    let left = room.saturating_sub(line.len() + 1).min(SENTENCE_LINES);
    line.iter().take(room).for_each(|line| {
        page.line(styled(format!(" {line}"), Style::new().bold()));
    });
    if let Some(explanation) = explanation(verdict) {
        paragraph(page, explanation, left, Style::new());
    }
}

/// A text wrapped to at most `room` lines; an ellipsis ends a longer one.
fn paragraph(page: &mut Page<'_, '_>, text: &str, room: usize, style: Style) {
    let cells = page.width().saturating_sub(2);
    let lines = wrap(text, cells);
    let is_cut = lines.len() > room;
    for (number, line) in lines.into_iter().take(room).enumerate() {
        let line = if is_cut && number + 1 == room {
            cut(&format!("{} …", cut(&line, cells.saturating_sub(2))), cells)
        } else {
            line
        };
        page.line(styled(format!(" {line}"), style));
    }
}

/// As many whole notices as fit, and at least a part of the first.
fn notices(page: &mut Page<'_, '_>, notices: &[Notice]) {
    let cells = page.width().saturating_sub(2);
    let lines = |notice: &Notice| wrap(&notice.sentence, cells).len();
    let room = usize::from(page.room());
    let is_all = notices.iter().map(lines).sum::<usize>() <= room;
    // Reserves a line for the number of further notices.
    let mut left = if is_all { room } else { room.saturating_sub(1) };
    let mut shown = 0;
    for notice in notices {
        if shown > 0 && lines(notice) > left {
            break;
        }
        let style = Style::new().fg(match notice.kind {
            NoticeKind::Stall => Color::Red,
            NoticeKind::NotQuiet => Color::Yellow,
            NoticeKind::BadSample => Color::Magenta,
        });
        paragraph(page, &notice.sentence, left, style);
        left = left.saturating_sub(lines(notice));
        shown += 1;
    }
    if shown < notices.len() {
        let left_out = notices.len() - shown;
        page.line(Line::from(format!(" and {left_out} more; forebay stats shows all")).dim());
    }
}

/// The most important values, a line each, as many as fit.
fn small(page: &mut Page<'_, '_>, figures: &Figures) {
    let cells = page.width().saturating_sub(1);
    if let Some(session) = &figures.session {
        let rate = grouped(session.samples_per_second);
        page.line(format!(" {rate} samples/s, waits {}", percent(session.wait_share)));
        let mut spans = vec![Span::raw(" ")];
        spans.extend(ring_cells(session.slots(), cells.saturating_sub(12)));
        spans.push(Span::raw(format!(" {} ready", session.slots()[0])));
        page.line(Line::from(spans));
    } else {
        page.line(" no trainer attached");
    }
    page.line(format!(" limit: {}", figures.verdict().limit));
    for stage in figures.stages() {
        let occupancy = pipeline::occupancy(stage)
            .map_or(String::new(), |share| format!(" ▸ {}", percent(share)));
        page.line(format!(
            " {} {:.1} of {} busy{occupancy}",
            cut(&stage.name, 12),
            figures.busy(stage),
            stage.concurrency
        ));
    }
    page.line(format!(" {}", cpu_words(figures.cpu_cores(), figures.cpu_budget_cores())));
    if let Some(words) = python_words(figures) {
        page.line(cut(&format!(" Python {words}"), cells));
    }
    page.line(format!(
        " {}",
        memory_words(figures.report().resident_bytes, figures.memory_ceiling_bytes())
    ));
    if page.room() > 1 {
        verdict(page, figures);
        let notices = figures.notices();
        for notice in notices.iter().filter(|notice| notice.kind == NoticeKind::Stall) {
            let room = usize::from(page.room());
            paragraph(page, &notice.sentence, room, Style::new().fg(Color::Red));
        }
    }
}

/// As many keys as fit.
fn footer(frame: &mut Frame<'_>, area: Rect, has_others: bool) {
    let mut text = " q quit   ? help".to_owned();
    if has_others {
        text.push_str("   tab next   a all");
    }
    frame.render_widget(Line::from(cut(&text, area.width.into())).dim(), area);
}
