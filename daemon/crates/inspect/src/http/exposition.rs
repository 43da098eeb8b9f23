//! Prometheus' text format: families of samples, and their serialisation.
//!
//! <https://prometheus.io/docs/instrumenting/exposition_formats/>, version 0.0.4. Implemented here, because the metrics
//! are already counted elsewhere: `docs/decisions/0019-prometheus-text-by-hand.md`.

use std::collections::HashMap;
use std::fmt::Write as _;

/// The type of a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Never decreases while the daemon runs.
    Counter,
    /// A state, which may increase and decrease.
    Gauge,
    /// Cumulative buckets, their sum and their count.
    Histogram,
}

impl Kind {
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// Names and values of a sample's labels.
pub(super) type Labels = Vec<(&'static str, String)>;

/// A metric name with its samples. A family without samples still has its HELP and TYPE lines.
#[derive(Debug, Clone)]
pub(super) struct Family {
    pub name: &'static str,
    pub kind: Kind,
    help: &'static str,
    /// The suffix of the name, the formatted labels, and the value.
    samples: Vec<(&'static str, String, f64)>,
}

impl Family {
    pub(super) const fn new(name: &'static str, kind: Kind, help: &'static str) -> Self {
        Self { name, kind, help, samples: Vec::new() }
    }

    pub(super) fn add(&mut self, labels: &Labels, value: f64) {
        self.samples.push(("", written(labels, None), value));
    }

    /// Adds a histogram: the number of values up to each bound, then the sum and the count of all.
    pub(super) fn add_histogram(
        &mut self,
        labels: &Labels,
        buckets: impl Iterator<Item = (f64, f64)>,
        count: f64,
        sum: f64,
    ) {
        for (bound, at_most) in buckets.chain([(f64::INFINITY, count)]) {
            let bound = number(bound);
            self.samples.push(("_bucket", written(labels, Some(&bound)), at_most));
        }
        self.samples.push(("_sum", written(labels, None), sum));
        self.samples.push(("_count", written(labels, None), count));
    }
}

#[cfg(test)]
impl Family {
    /// The names of the labels of all samples.
    pub(crate) fn label_names(&self) -> impl Iterator<Item = &str> {
        let parts = self.samples.iter().flat_map(|(_, labels, _)| labels.split(['{', ',', '}']));
        parts.filter_map(|part| Some(part.split_once('=')?.0))
    }
}

/// Writes families, and prevents counters from decreasing.
///
/// Metrics are read while they are updated, and some are a product of two metrics, so a counter may come out slightly
/// lower than before. A scraper would treat this as a restart and count everything again, so the last exported value is
/// kept.
#[derive(Debug, Default)]
pub(super) struct Writer {
    /// By series; only existing counters.
    last_exported: HashMap<String, f64>,
}

impl Writer {
    pub(super) fn write(&mut self, families: &[Family]) -> String {
        let mut text = String::new();
        let mut exported = HashMap::with_capacity(self.last_exported.len());
        for family in families {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "# HELP {} {}", family.name, family.help);
            let _ = writeln!(text, "# TYPE {} {}", family.name, family.kind.word());
            for (suffix, labels, value) in &family.samples {
                let series = format!("{}{suffix}{labels}", family.name);
                let mut value = *value;
                if family.kind != Kind::Gauge {
                    value = value.max(self.last_exported.get(&series).copied().unwrap_or(0.0));
                }
                let _ = writeln!(text, "{series} {}", number(value));
                if family.kind != Kind::Gauge {
                    exported.insert(series, value);
                }
            }
        }
        // This also drops series that no longer exist.
        self.last_exported = exported;
        text
    }
}

fn written(labels: &Labels, bound: Option<&str>) -> String {
    let labels = labels.iter().map(|(name, value)| (*name, value.as_str()));
    let all = labels.chain(bound.map(|bound| ("le", bound)));
    let parts: Vec<String> =
        all.map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
    if parts.is_empty() { String::new() } else { format!("{{{}}}", parts.join(",")) }
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn number(value: f64) -> String {
    if value == f64::INFINITY { "+Inf".to_owned() } else { format!("{value}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counter_never_decreases_and_ended_series_are_dropped() {
        let family = |kind, values: &[(&str, f64)]| {
            let mut family = Family::new("x_total", kind, "Words.");
            for (label, value) in values {
                family.add(&vec![("a", (*label).to_owned())], *value);
            }
            [family]
        };
        let mut writer = Writer::default();
        let mut told = |kind, values: &[(&str, f64)]| {
            let text = writer.write(&family(kind, values));
            text.lines().skip(2).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(told(Kind::Counter, &[("1", 5.0), ("2", 7.0)])[0], "x_total{a=\"1\"} 5");
        assert_eq!(told(Kind::Counter, &[("1", 4.5)]), ["x_total{a=\"1\"} 5"]);
        assert_eq!(told(Kind::Counter, &[("2", 6.0)]), ["x_total{a=\"2\"} 6"]);
        assert_eq!(told(Kind::Gauge, &[("2", 1.0)]), ["x_total{a=\"2\"} 1"]);
    }

    #[test]
    fn label_values_are_escaped() {
        let mut family = Family::new("x", Kind::Gauge, "Words.");
        family.add(&vec![("a", "\"} 1\nx{b=\"\\".to_owned())], 0.5);
        let text = Writer::default().write(&[family]);
        assert_eq!(text, "# HELP x Words.\n# TYPE x gauge\nx{a=\"\\\"} 1\\nx{b=\\\"\\\\\"} 0.5\n");
    }
}
