//! A table of all ranks of a host: a line for each session, the slow rank marked, and totals.

use forebay_protocol::counted::counted;
use std::collections::BTreeSet;

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Style, Stylize as _};
use ratatui::text::{Line, Span};

use super::super::table::percent;
use super::page::{Page, footed};
use super::parts::{cut, grouped, left, right, ring_cells, styled, wrap};
use super::snapshot::{Figures, Session, Snapshot, slowest};
use forebay_observe::format_bytes;

/// The width of the fixed columns; the rest is divided between the stream's name and the ring.
const FIXED_COLUMNS: usize = 69;

/// Draws the table; `selected` is the line that Enter opens.
pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, snapshots: &[Snapshot], selected: usize) {
    let [body, foot] = footed(area);
    let mut page = Page::new(frame, body);
    let daemons: BTreeSet<usize> = snapshots.iter().map(|snapshot| snapshot.key.daemon).collect();
    let sessions = snapshots.iter().filter(|snapshot| snapshot.session().is_some()).count();
    let title = format!(
        " forebay  {} of {}",
        counted(sessions, "session"),
        counted(daemons.len(), "daemon")
    );
    page.line(styled(left(&title, page.width()), Style::new().reversed()));
    let spare = page.width().saturating_sub(FIXED_COLUMNS);
    let stream = (spare / 2).clamp(6, 24);
    let widths = Widths { stream, ring: spare.saturating_sub(stream).clamp(4, 32) };
    page.line(styled(header(&widths), Style::new().dim()));
    let slow = slowest(snapshots);
    // The end of the table and the verdict stay visible, and so does the selected line.
    let room = usize::from(page.room().saturating_sub(6)).max(1);
    let first = selected.saturating_sub(room - 1);
    let mut daemon_before = None;
    for (number, snapshot) in snapshots.iter().enumerate().skip(first).take(room) {
        let is_first_of_daemon =
            daemon_before.replace(snapshot.key.daemon) != Some(snapshot.key.daemon);
        let mut line = row(snapshot, &widths, is_first_of_daemon, slow == Some(number));
        if number == selected {
            line = line.reversed();
        }
        page.line(line);
    }
    let left_out = snapshots.len().saturating_sub(first + room) + first;
    if left_out > 0 {
        page.line(Line::from(format!("  {left_out} more; arrows: scroll")).dim());
    }
    page.line(total(snapshots, &widths));
    page.blank();
    if let Some(snapshot) = snapshots.get(selected) {
        for line in
            wrap(&judgement(snapshot, slow == Some(selected)), page.width().saturating_sub(2))
        {
            page.line(styled(format!(" {line}"), Style::new().bold()));
        }
    }
    let keys = " q quit   ? help   arrows: select   enter: open";
    frame.render_widget(Line::from(cut(keys, foot.width.into())).dim(), foot);
}

struct Widths {
    stream: usize,
    ring: usize,
}

fn header(widths: &Widths) -> String {
    format!(
        " {:>4}  {}  {:>9}  {:>7}  {}  {:>4}  {:>9}  {:>9}  limit",
        "rank",
        left("stream", widths.stream),
        "samples/s",
        "wait",
        left("ring", widths.ring),
        "work",
        "CPU",
        "memory"
    )
}

/// CPU and memory belong to the daemon: they are in its first line.
fn row(
    snapshot: &Snapshot,
    widths: &Widths,
    is_first_of_daemon: bool,
    is_slowest: bool,
) -> Line<'static> {
    let nothing = || snapshot.socket.rsplit('/').next().unwrap_or("").to_owned();
    let Some(figures) = snapshot.figures.as_ref().filter(|_| snapshot.lost.is_none()) else {
        let seconds = snapshot.lost.as_ref().map_or(0.0, |(_, seconds)| *seconds);
        let name = snapshot.session().map_or_else(nothing, |session| session.report.label());
        let rank =
            snapshot.session().map_or("–".to_owned(), |session| session.report.rank.to_string());
        let text = if snapshot.lost.is_some() {
            format!("no answer for {seconds:.0} s, retrying")
        } else {
            "waiting for the first answer".to_owned()
        };
        let text = format!(" {rank:>4}  {}  {text}", left(&name, widths.stream));
        return styled(text, Style::new().fg(Color::Red));
    };
    let (cpu, memory) = if is_first_of_daemon { own(figures) } else { Default::default() };
    let Some(session) = &figures.session else {
        let text = format!(" {:>4}  {}", "–", left(&nothing(), widths.stream));
        let middle = left("  no trainer", 2 + 9 + 2 + 7 + 2 + widths.ring + 2 + 4);
        return Line::from(format!(
            "{text}{middle}  {cpu:>9}  {memory:>9}  {}",
            figures.verdict().limit
        ));
    };
    let mark = if is_slowest { "◂" } else { " " };
    let wait = Span::raw(format!("{:>6}{mark}", percent(session.wait_share)));
    let mut spans = vec![
        Span::raw(format!(
            " {:>4}  {}  {:>9}  ",
            session.report.rank,
            left(&session.report.label(), widths.stream),
            grouped(session.samples_per_second)
        )),
        if is_slowest { wait.fg(Color::Red).bold() } else { wait },
        Span::raw("  "),
    ];
    let cells = ring_cells(session.slots(), widths.ring);
    let taken: usize = cells.iter().map(Span::width).sum();
    spans.extend(cells);
    let pad = " ".repeat(widths.ring - taken.min(widths.ring));
    let work = threads(session.work_threads());
    let limit = &figures.verdict().limit;
    spans.push(Span::raw(format!("{pad}  {work:>4}  {cpu:>9}  {memory:>9}  {limit}")));
    Line::from(spans)
}

fn own(figures: &Figures) -> (String, String) {
    let cpu = if figures.cpu_budget_cores() > 0.0 {
        format!("{:.1}/{:.1}", figures.cpu_cores(), figures.cpu_budget_cores())
    } else {
        format!("{:.1}", figures.cpu_cores())
    };
    (cpu, format_bytes(figures.report().resident_bytes))
}

/// A number of threads in four columns.
fn threads(number: f64) -> String {
    if number < 99.95 { format!("{number:.1}") } else { format!("{number:.0}") }
}

/// The sum over all daemons that respond.
fn total(snapshots: &[Snapshot], widths: &Widths) -> Line<'static> {
    let (mut rate, mut work, mut cpu, mut budget, mut bytes) = (0.0, 0.0, 0.0, 0.0, 0);
    let mut daemons = BTreeSet::new();
    for snapshot in snapshots.iter().filter(|snapshot| snapshot.lost.is_none()) {
        let Some(figures) = &snapshot.figures else { continue };
        rate += snapshot.session().map_or(0.0, |session| session.samples_per_second);
        work += snapshot.session().map_or(0.0, Session::work_threads);
        if daemons.insert(snapshot.key.daemon) {
            cpu += figures.cpu_cores();
            budget += figures.cpu_budget_cores();
            bytes += figures.report().resident_bytes;
        }
    }
    let text = format!(
        " {}  {:>9}  {:>7}  {}  {:>4}  {:>9}  {:>9}",
        left("together", 6 + widths.stream),
        grouped(rate),
        "",
        left("", widths.ring),
        threads(work),
        right(&format!("{cpu:.1}/{budget:.1}"), 9),
        format_bytes(bytes)
    );
    styled(text, Style::new().bold())
}

fn judgement(snapshot: &Snapshot, is_slowest: bool) -> String {
    let name = snapshot.session().map_or_else(
        || snapshot.socket.clone(),
        |session| format!("rank {} of {}", session.report.rank, session.report.label()),
    );
    let what = match (&snapshot.lost, &snapshot.figures) {
        (Some((reason, _)), _) => reason.clone(),
        (None, None) => "no answer yet".to_owned(),
        (None, Some(figures)) => figures.verdict().sentence.clone(),
    };
    let mark = if is_slowest { " (◂ the slowest)" } else { "" };
    format!("{name}{mark}: {what}")
}
