//! Plots as SVG inside the page, drawn here: courses over time, histograms of times, bars.
//!
//! One width, one font, one grid. Axes begin at zero but for the logarithmic one of times. What is drawn is told in the
//! `title` of each plot too, for those who do not see it.

use super::markup::{escape, number, short_time};

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 230.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 42.0;

/// A line in a course.
pub(super) struct Series {
    pub(super) name: String,
    pub(super) color: &'static str,
    pub(super) points: Vec<(f64, f64)>,
}

/// Courses over one axis of seconds.
pub(super) struct Course {
    pub(super) title: String,
    pub(super) y_label: &'static str,
    /// The axis goes so far; none: as far as the greatest value.
    pub(super) y_most: Option<f64>,
    pub(super) series: Vec<Series>,
}

/// Steps of 1, 2 or 5 that part an axis up to `most` into four to nine.
fn ticks(most: f64) -> Vec<f64> {
    if !most.is_finite() || most <= 0.0 {
        return vec![0.0, 1.0];
    }
    let rough = most / 5.0;
    let decade = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * decade);
    let step = step.into_iter().find(|step| *step >= rough * 0.999).unwrap_or(decade * 10.0);
    let mut ticks = vec![0.0];
    while ticks.last().is_some_and(|last| *last < most * 0.999) && ticks.len() < 12 {
        #[expect(clippy::cast_precision_loss, reason = "a dozen")]
        ticks.push(step * ticks.len() as f64);
    }
    ticks
}

/// Starts a plot: everything after it is drawn on its grid; [`close`] ends it.
fn open(title: &str, height: f64) -> String {
    let title = escape(title);
    format!(
        "<svg class=\"plot\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" xmlns=\"http://www.w3.org/2000/svg\">\
         <title>{title}</title>\n"
    )
}

fn close() -> &'static str {
    "</svg>\n"
}

fn text(x: f64, y: f64, anchor: &str, words: &str) -> String {
    format!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{}</text>\n", escape(words))
}

fn rectangle(x: f64, y: f64, width: f64, height: f64, color: &str, title: &str) -> String {
    format!(
        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{color}\"><title>{}</title></rect>\n",
        width.max(0.0),
        height.max(0.0),
        escape(title)
    )
}

/// The vertical axis with its grid, and where a value lies on it.
fn vertical(
    svg: &mut String,
    most: f64,
    label: &str,
    show: fn(f64) -> String,
) -> impl Fn(f64) -> f64 + use<> {
    let marks = ticks(most);
    let top = marks.last().copied().unwrap_or(1.0);
    let place =
        move |value: f64| TOP + (HEIGHT - TOP - BOTTOM) * (1.0 - (value / top).clamp(0.0, 1.0));
    for mark in marks {
        let y = place(mark);
        svg.push_str(&format!(
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\n",
            WIDTH - RIGHT
        ));
        svg.push_str(&text(LEFT - 7.0, y + 4.0, "end", &show(mark)));
    }
    let middle = (TOP + HEIGHT - BOTTOM) / 2.0;
    svg.push_str(&format!(
        "<text class=\"label\" transform=\"translate(13 {middle:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
        escape(label)
    ));
    place
}

fn horizontal_label(svg: &mut String, label: &str) {
    let words = escape(label);
    let x = (LEFT + WIDTH - RIGHT) / 2.0;
    let y = HEIGHT - 6.0;
    svg.push_str(&format!(
        "<text class=\"label\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{words}</text>\n"
    ));
}

/// Draws courses over time.
pub(super) fn course(course: &Course) -> String {
    let mut svg = open(&course.title, HEIGHT);
    let all = || course.series.iter().flat_map(|series| series.points.iter().copied());
    let most = course.y_most.unwrap_or_else(|| all().map(|(_, y)| y).fold(0.0, f64::max));
    let place_y = vertical(&mut svg, most, course.y_label, number);
    let end = all().map(|(x, _)| x).fold(0.0, f64::max).max(1e-9);
    let place_x = |seconds: f64| LEFT + (WIDTH - LEFT - RIGHT) * (seconds / end).clamp(0.0, 1.0);
    for mark in ticks(end).into_iter().filter(|mark| *mark <= end * 1.001) {
        svg.push_str(&text(place_x(mark), HEIGHT - BOTTOM + 16.0, "middle", &number(mark)));
    }
    horizontal_label(&mut svg, "time in seconds");
    for series in &course.series {
        if series.points.is_empty() {
            continue;
        }
        let points: Vec<String> = series
            .points
            .iter()
            .map(|(x, y)| format!("{:.1},{:.1}", place_x(*x), place_y(*y)))
            .collect();
        svg.push_str(&format!(
            "<polyline class=\"line\" stroke=\"{}\" points=\"{}\"><title>{}</title></polyline>\n",
            series.color,
            points.join(" "),
            escape(&series.name)
        ));
    }
    svg.push_str(close());
    if course.series.len() > 1 {
        svg.push_str(&legend(
            course.series.iter().map(|series| (series.name.as_str(), series.color)),
        ));
    }
    svg
}

/// Names with their colours.
pub(super) fn legend<'a>(entries: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let entries = entries.map(|(name, color)| {
        format!(
            "<span class=\"entry\"><svg class=\"swatch\" viewBox=\"0 0 10 10\" xmlns=\"http://www.w3.org/2000/svg\">\
             <rect width=\"10\" height=\"10\" rx=\"2\" fill=\"{color}\"/></svg>{}</span>",
            escape(name)
        )
    });
    format!("<p class=\"legend\">{}</p>\n", entries.collect::<Vec<_>>().join(" "))
}

/// Times of tasks, on a logarithmic axis.
pub(super) struct Histogram<'a> {
    pub(super) title: String,
    pub(super) color: &'static str,
    /// The longest time of each bucket in seconds, and the tasks in it.
    pub(super) times: &'a [(f64, u64)],
    /// Names and times that are marked by a line.
    pub(super) marks: Vec<(&'static str, f64)>,
    /// The axis, so that several plots can be compared.
    pub(super) range: (i32, i32),
}

/// Bars of a decade.
const BARS_A_DECADE: f64 = 12.0;

/// The whole decades that hold all times.
pub(super) fn decades<'a>(times: impl Iterator<Item = &'a (f64, u64)>) -> (i32, i32) {
    let (least, most) = times
        .filter(|(seconds, _)| *seconds > 0.0)
        .fold((f64::MAX, f64::MIN), |(least, most), (seconds, _)| {
            (least.min(*seconds), most.max(*seconds))
        });
    if least > most {
        return (-6, 0);
    }
    #[expect(clippy::cast_possible_truncation, reason = "decades of a time")]
    let [first, last] = [least.log10().floor() as i32, most.log10().ceil() as i32];
    (first, last.max(first + 1))
}

/// Draws how many tasks took how long.
#[expect(clippy::cast_precision_loss, reason = "figures")]
pub(super) fn histogram(histogram: &Histogram<'_>) -> String {
    let mut svg = open(&histogram.title, HEIGHT);
    let (first, last) = histogram.range;
    let count = f64::from(last - first) * BARS_A_DECADE;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "decades of a time"
    )]
    let mut bars = vec![0u64; count as usize];
    let bar_of = |seconds: f64| (seconds.max(1e-12).log10() - f64::from(first)) * BARS_A_DECADE;
    for (seconds, tasks) in histogram.times {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
        let bar = bar_of(*seconds).clamp(0.0, count - 1.0) as usize;
        bars[bar] += tasks;
    }
    let total = bars.iter().sum::<u64>().max(1) as f64;
    let most = bars.iter().max().copied().unwrap_or(0) as f64 / total * 100.0;
    let place_y = vertical(&mut svg, most, "tasks in %", number);
    let bar_width = (WIDTH - LEFT - RIGHT) / count;
    let base = HEIGHT - BOTTOM;
    for (number_of_bar, tasks) in bars.iter().enumerate().filter(|(_, tasks)| **tasks > 0) {
        let y = place_y(*tasks as f64 / total * 100.0);
        let to = 10f64.powf(f64::from(first) + (number_of_bar as f64 + 1.0) / BARS_A_DECADE);
        svg.push_str(&rectangle(
            LEFT + number_of_bar as f64 * bar_width,
            y,
            (bar_width - 1.0).max(0.5),
            (base - y).max(1.0),
            histogram.color,
            &format!("{tasks} tasks up to {}", short_time(to)),
        ));
    }
    let place_x = |seconds: f64| LEFT + bar_of(seconds).clamp(0.0, count) * bar_width;
    for decade in first..=last {
        let seconds = 10f64.powi(decade);
        svg.push_str(&text(place_x(seconds), base + 16.0, "middle", &short_time(seconds)));
    }
    for (place, (name, seconds)) in (0u8..).zip(&histogram.marks) {
        let x = place_x(*seconds);
        svg.push_str(&format!(
            "<line class=\"mark\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{base}\"/>\n"
        ));
        let (x, anchor) = if x > WIDTH * 0.75 { (x - 4.0, "end") } else { (x + 4.0, "start") };
        let words = format!("{name} {}", short_time(*seconds));
        svg.push_str(&text(x, TOP + 10.0 + 14.0 * f64::from(place), anchor, &words));
    }
    horizontal_label(&mut svg, "time of a task, logarithmic");
    svg.push_str(close());
    svg
}

/// A bar of several parts: names, values, colours.
pub(super) struct Bar {
    pub(super) name: String,
    pub(super) parts: Vec<(String, f64, &'static str)>,
    /// What stands behind it.
    pub(super) value: String,
}

/// Draws horizontal bars on one scale.
pub(super) fn bars(title: &str, bars: &[Bar], most: f64) -> String {
    const ROW: f64 = 34.0;
    const NAME: f64 = 150.0;
    const VALUE: f64 = 78.0;
    #[expect(clippy::cast_precision_loss, reason = "a few bars")]
    let mut svg = open(title, ROW * bars.len() as f64 + 8.0);
    let scale = (WIDTH - NAME - VALUE) / most.max(1e-12);
    let mut y = 4.0;
    for bar in bars {
        svg.push_str(&text(NAME - 8.0, y + 21.0, "end", &bar.name));
        let mut x = NAME;
        for (name, value, color) in &bar.parts {
            let width = (value * scale).clamp(0.0, WIDTH - VALUE - x);
            svg.push_str(&rectangle(x, y + 5.0, width, ROW - 12.0, color, name));
            x += width;
        }
        svg.push_str(&text(x + 7.0, y + 21.0, "start", &bar.value));
        y += ROW;
    }
    svg.push_str(close());
    svg
}

/// Columns in order: names, values in milliseconds, colours.
#[expect(clippy::cast_precision_loss, reason = "figures")]
pub(super) fn columns(
    title: &str,
    y_label: &str,
    x_label: &str,
    columns: &[(String, f64, &str)],
) -> String {
    let mut svg = open(title, HEIGHT);
    let most = columns.iter().map(|(_, value, _)| *value).fold(0.0, f64::max);
    let place = vertical(&mut svg, most, y_label, number);
    let width = (WIDTH - LEFT - RIGHT) / columns.len().max(1) as f64;
    for (number_of_column, (name, value, color)) in columns.iter().enumerate() {
        let y = place(*value);
        svg.push_str(&rectangle(
            LEFT + number_of_column as f64 * width + width * 0.08,
            y,
            width * 0.84,
            HEIGHT - BOTTOM - y,
            color,
            &format!("{name}: {}", number(*value)),
        ));
    }
    horizontal_label(&mut svg, x_label);
    svg.push_str(close());
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_are_parted_by_round_numbers() {
        assert_eq!(ticks(10.0), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(ticks(0.7), [0.0, 0.2, 0.4, 0.6000000000000001, 0.8]);
        assert_eq!((ticks(0.0), ticks(f64::NAN)), (vec![0.0, 1.0], vec![0.0, 1.0]));
        for most in [1e-9, 0.3, 1.0, 4.9, 99.0, 1234.0, 1e12] {
            let marks = ticks(most);
            assert!(
                (3..=11).contains(&marks.len()) && marks[marks.len() - 1] >= most * 0.999,
                "{most}: {marks:?}"
            );
        }
    }

    #[test]
    fn decades_hold_all_times() {
        assert_eq!(decades([(0.002, 5), (0.9, 1)].iter()), (-3, 0));
        assert_eq!(decades([(0.002, 5)].iter()), (-3, -2));
        assert_eq!(decades([].iter()), (-6, 0));
    }

    #[test]
    fn a_histogram_holds_every_task() {
        let times = [(0.0011, 3), (0.0012, 2), (0.5, 5)];
        let plot = Histogram {
            title: "t".into(),
            color: "#000",
            times: &times,
            marks: vec![],
            range: decades(times.iter()),
        };
        let svg = histogram(&plot);
        let titles: Vec<u64> = svg
            .split("<title>")
            .filter_map(|part| part.split_once(" tasks up to ")?.0.parse().ok())
            .collect();
        assert_eq!(titles.iter().sum::<u64>(), 10, "{svg}");
    }
}
