//! The HTML, CSS and JavaScript of the live page and of reports, which share the drawing code. The files are part of
//! the program; they load only each other, `/stats.json` and `/history.json`.

#[cfg(feature = "http")]
pub(crate) const LIVE_HTML: &str = include_str!("page/page.html");
pub(crate) const CSS: &str = include_str!("page/page.css");
/// Formats numbers and stores the daemon's history.
pub(crate) const METRICS_JS: &str = include_str!("page/metrics.js");
/// Elements that both pages use.
pub(crate) const PARTS_JS: &str = include_str!("page/parts.js");
/// Line charts.
pub(crate) const CHART_JS: &str = include_str!("page/chart.js");
#[cfg(feature = "http")]
pub(crate) const LIVE_JS: &str = include_str!("page/page.js");
/// Images and values of samples.
pub(crate) const SAMPLES_JS: &str = include_str!("page/samples.js");
pub(crate) const REPORT_HTML: &str = include_str!("page/report.html");
pub(crate) const REPORT_JS: &str = include_str!("page/report.js");
pub(crate) const ICON: &str = include_str!("page/icon.svg");
