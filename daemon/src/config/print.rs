//! A resolved configuration as TOML, with every default written out: what `check` prints.

use std::fmt::{self, Write as _};
use std::path::Path;
use std::time::Duration;

use super::model::{BadSampleBudget, Concurrency, Config, FinishedOn, OutputConfig, StageConfig};
use super::value::{Located, Value};

impl Config {
    /// The configuration as TOML in which every key has its value; keys whose default is absence are left out.
    /// Reading it gives the same configuration.
    #[must_use]
    pub fn resolved_toml(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = self.write_resolved(&mut text);
        text
    }

    fn write_resolved(&self, out: &mut String) -> fmt::Result {
        let dataset = &self.dataset;
        writeln!(out, "[dataset]\nformat = {}", quoted(&dataset.format))?;
        write_path(out, "path", Some(&dataset.path))?;
        write_path(out, "classes", dataset.classes.as_deref())?;
        write_path(out, "ids", dataset.ids.as_deref())?;
        if let Some(limit) = dataset.limit {
            writeln!(out, "limit = {limit}")?;
        }
        write_path(out, "index", dataset.index.as_deref())?;
        writeln!(out, "read_timeout = {}", time(dataset.read_timeout))?;
        let limits = &dataset.limits;
        writeln!(out, "\n[limits]\nsample_bytes = {}", bytes(limits.sample_bytes))?;
        writeln!(out, "pixels = {}", limits.pixels)?;
        writeln!(out, "inflated_bytes = {}", bytes(limits.inflated_bytes))?;

        let order = &self.order;
        writeln!(out, "\n[order]\nseed = {}\nshuffle = {}", order.seed, order.shuffle)?;
        if let Some(epochs) = order.epochs {
            writeln!(out, "epochs = {epochs}")?;
        }

        writeln!(out, "\n[batch]\nsize = {}", self.batch.size)?;
        writeln!(out, "last = {}", quoted(self.batch.last.word()))?;

        writeln!(out, "\n[[stage]]\nname = \"fetch\"")?;
        writeln!(out, "concurrency = {}", self.fetch.concurrency)?;
        for stage in &self.stages {
            write_stage(out, stage)?;
        }
        if !self.output.is_empty() {
            writeln!(out, "\n[output]")?;
            for field in &self.output {
                write_output(out, field)?;
            }
        }

        let ring = &self.ring;
        writeln!(out, "\n[ring]\nslots = {}\nhold = {}", ring.slots, ring.hold)?;
        writeln!(out, "memory = {}", bytes(ring.memory_bytes))?;

        writeln!(out, "\n[errors]")?;
        writeln!(out, "on_bad_sample = {}", quoted(self.errors.on_bad_sample.word()))?;
        match self.errors.budget {
            BadSampleBudget::Count(count) => writeln!(out, "budget = {count}")?,
            BadSampleBudget::Share(share) => {
                writeln!(out, "budget = {}", quoted(&percent_text(share)))?;
            }
        }

        write_path(out, "quarantine", self.errors.quarantine.as_deref())?;
        writeln!(out, "stall_after = {}", time(self.errors.stall_after))?;

        let cpu = &self.cpu;
        let cores = cpu.cores.as_ref().map_or_else(
            || "auto".to_owned(),
            |cores| cores.iter().map(u32::to_string).collect::<Vec<_>>().join(","),
        );
        writeln!(out, "\n[cpu]\ncores = \"{cores}\"")?;
        if let Some(limit) = cpu.limit {
            writeln!(out, "limit = {}", quoted(&percent_text(limit)))?;
        }
        writeln!(out, "policy = {}\nnice = {}", quoted(cpu.policy.word()), cpu.nice)?;

        let listen = &self.listen;
        writeln!(out, "\n[listen]")?;
        write_path(out, "socket", Some(listen.socket.as_deref().unwrap_or(Path::new("auto"))))?;
        writeln!(out, "allow_uids = {:?}", listen.allow_uids)?;
        if let Some(group) = listen.group {
            writeln!(out, "group = {group}")?;
        }
        writeln!(out, "max_sessions = {}", listen.max_sessions)?;
        if let Some(address) = listen.metrics {
            writeln!(out, "metrics = \"{address}\"")?;
        }
        writeln!(out, "metrics_from = {}", quoted(listen.metrics_from.word()))?;

        writeln!(out, "\n[session]\nallow_headspace = {}", self.session.allow_headspace)?;
        writeln!(out, "\n[security]\nconfine = {}", quoted(self.security.confine.word()))
    }
}

fn write_stage(out: &mut String, stage: &StageConfig) -> fmt::Result {
    writeln!(out, "\n[[stage]]\nname = {}", quoted(&stage.name))?;
    match stage.concurrency {
        Concurrency::Auto => writeln!(out, "concurrency = \"auto\"")?,
        Concurrency::Threads(threads) => writeln!(out, "concurrency = {threads}")?,
    }
    if stage.operations.is_empty() {
        return writeln!(out, "operations = []");
    }
    writeln!(out, "operations = [")?;
    for operation in &stage.operations {
        writeln!(out, "  {},", inline(&operation.value))?;
    }
    writeln!(out, "]")
}

fn write_output(out: &mut String, field: &OutputConfig) -> fmt::Result {
    let mut parts = Vec::new();
    if let Some(dtype) = field.dtype {
        parts.push(format!("dtype = {}", quoted(dtype.name())));
    }
    if let Some(layout) = field.layout {
        parts.push(format!("layout = {}", quoted(layout.word())));
    }
    for (key, values) in [("mean", &field.mean), ("std", &field.std)] {
        if let Some(values) = values {
            parts.push(format!("{key} = {values:?}"));
        }
    }
    if field.on == FinishedOn::Gpu {
        // The default has no meaning for a field that is no image.
        parts.push(format!("on = {}", quoted(field.on.word())));
    }
    if let Some(max_bytes) = field.ragged_max_bytes {
        parts.push(format!("ragged = true, max_bytes = {}", bytes(max_bytes)));
        parts.push(format!("compact = {}", field.compact));
    }
    writeln!(out, "{} = {{ {} }}", key(&field.field), parts.join(", "))
}

fn write_path(out: &mut String, key: &str, path: Option<&Path>) -> fmt::Result {
    match path {
        Some(path) => writeln!(out, "{key} = {}", quoted(&path.to_string_lossy())),
        None => Ok(()),
    }
}

/// A share as a percentage, rounded where the multiplication's own error would show.
fn percent_text(share: f64) -> String {
    format!("{}%", (share * 1e11).round() / 1e9)
}

/// A string in TOML's quotes, with `${` kept from expanding when it is read again.
fn quoted(text: &str) -> String {
    toml::Value::String(text.replace("${", "$${")).to_string()
}

fn key(text: &str) -> String {
    let bare =
        !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
    if bare { text.to_owned() } else { quoted(text) }
}

/// A byte count in the largest binary unit that divides it.
fn bytes(count: u64) -> String {
    let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    match units.iter().find(|(_, shift)| count > 0 && count.is_multiple_of(1 << shift)) {
        Some((unit, shift)) => format!("\"{}{unit}\"", count >> shift),
        None => format!("\"{count}B\""),
    }
}

/// A time in the largest unit that says it exactly: seconds, milliseconds, or a fraction of seconds.
fn time(span: Duration) -> String {
    match (span.subsec_nanos(), span.as_millis()) {
        (0, _) => format!("\"{}s\"", span.as_secs()),
        (nanos, millis) if nanos % 1_000_000 == 0 => format!("\"{millis}ms\""),
        (nanos, _) => format!("\"{}.{nanos:09}s\"", span.as_secs()),
    }
}

/// A value on one line.
fn inline(value: &Value) -> String {
    let list = |items: Vec<String>| items.join(", ");
    match value {
        Value::Bool(value) => value.to_string(),
        Value::Integer(value) => value.to_string(),
        // Rust's debug form always has a point or an exponent, as TOML wants it.
        Value::Float(value) => format!("{value:?}"),
        Value::String(text) => quoted(text),
        Value::Array(items) => {
            format!("[{}]", list(items.iter().map(|Located { value, .. }| inline(value)).collect()))
        }
        Value::Table(entries) if entries.is_empty() => "{}".to_owned(),
        Value::Table(entries) => {
            let pair = |(name, located): &(String, Located)| {
                format!("{} = {}", key(name), inline(&located.value))
            };
            format!("{{ {} }}", list(entries.iter().map(pair).collect()))
        }
    }
}
