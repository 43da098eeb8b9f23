//! The HTML, CSS and JavaScript of the live page and of reports, which draw with the same code. The files are part of the
//! program; none of them loads anything but each other, `/stats.json` and
//! `/history.json`.

pub(crate) const LIVE_HTML: &str = include_str!("page/page.html");
pub(crate) const CSS: &str = include_str!("page/page.css");
/// How numbers are written, and what a page knows of the daemon's history.
pub(crate) const METRICS_JS: &str = include_str!("page/metrics.js");
/// The elements that both pages are made of.
pub(crate) const PARTS_JS: &str = include_str!("page/parts.js");
/// Lines over time.
pub(crate) const CHART_JS: &str = include_str!("page/chart.js");
pub(crate) const LIVE_JS: &str = include_str!("page/page.js");
/// Pictures and values of samples.
pub(crate) const SAMPLES_JS: &str = include_str!("page/samples.js");
pub(crate) const REPORT_HTML: &str = include_str!("page/report.html");
pub(crate) const REPORT_JS: &str = include_str!("page/report.js");
pub(crate) const ICON: &str = include_str!("page/icon.svg");
