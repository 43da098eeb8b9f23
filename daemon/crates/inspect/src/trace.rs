//! `forebay trace`: the activity of a running daemon's threads, as a file for Perfetto.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use crate::output::print_line;
use anyhow::{Context as _, bail};
use clap::Args;
use forebay_protocol::observing::{MAX_RECORDING_SECONDS, Recording};
use forebay_protocol::sealed::read_sealed;
use serde_json::Value;

use super::observer::{Observer, the_socket};

/// The maximum size of a recording that a daemon sends.
const MAX_TEXT_BYTES: u64 = 256 << 20;

/// Arguments of `forebay trace`.
#[derive(Debug, Args)]
pub struct TraceArguments {
    /// The daemon's socket; default: FOREBAY_SOCKET, else the only daemon of this user.
    #[arg(value_name = "SOCKET")]
    socket: Option<PathBuf>,
    /// How long to record, at most 60.
    #[arg(long, default_value_t = 5.0, value_name = "SECONDS")]
    seconds: f64,
    /// The file to write: open it at ui.perfetto.dev or chrome://tracing.
    #[arg(short, long, default_value = "trace.json", value_name = "FILE")]
    output: PathBuf,
    /// Merge a trace exported by PyTorch's profiler, on one clock. It may be written during the recording.
    #[arg(long, value_name = "FILE")]
    merge: Option<PathBuf>,
    /// An existing trace to merge; does not contact a daemon.
    #[arg(long, value_name = "FILE", requires = "merge", conflicts_with_all = ["socket", "seconds"])]
    recorded: Option<PathBuf>,
}

/// `forebay trace`.
pub fn trace(arguments: &TraceArguments) -> anyhow::Result<ExitCode> {
    let path = &arguments.output;
    let writing = || format!("{}: cannot write", path.display());
    let ours = match &arguments.recorded {
        Some(recorded) => read_trace(recorded)?,
        None => {
            let text = record(arguments.socket.as_deref(), arguments.seconds, |milliseconds| {
                Recording::Trace { milliseconds }
            })?;
            // Written first: the recording is kept even if the other trace cannot be read.
            std::fs::write(path, &text).with_context(writing)?;
            serde_json::from_slice(&text).context("the daemon's recording")?
        }
    };
    let summary = summary(&ours, path);
    if let Some(other) = &arguments.merge {
        let both = merged(ours, read_trace(other)?);
        let mut file = BufWriter::new(File::create(path).with_context(writing)?);
        serde_json::to_writer(&mut file, &both).with_context(writing)?;
        file.flush().with_context(writing)?;
    }
    print_line(summary)?;
    Ok(ExitCode::SUCCESS)
}

/// Requests a recording of `seconds` from the daemon, and returns its text.
pub(crate) fn record(
    socket: Option<&Path>,
    seconds: f64,
    recording: impl FnOnce(u32) -> Recording,
) -> anyhow::Result<Vec<u8>> {
    let milliseconds = in_milliseconds(seconds)?;
    let observer = Observer::connect(&the_socket(socket)?)?;
    let takes = Duration::from_millis(milliseconds.into());
    let recorded = observer.record(recording(milliseconds), takes)?;
    read_sealed(recorded, MAX_TEXT_BYTES).context("the daemon's recording")
}

/// The length of a recording, in milliseconds.
fn in_milliseconds(seconds: f64) -> anyhow::Result<u32> {
    if !(seconds >= 0.001 && seconds <= f64::from(MAX_RECORDING_SECONDS)) {
        bail!(
            "--seconds {seconds}: a recording takes from 0.001 to {MAX_RECORDING_SECONDS} seconds"
        );
    }
    let length = Duration::from_secs_f64(seconds).as_millis();
    Ok(u32::try_from(length).unwrap_or(1).max(1))
}

fn summary(trace: &Value, path: &Path) -> String {
    let other = &trace["otherData"];
    let events = other["events"].as_u64().unwrap_or(0);
    let mut text =
        format!("{}: {events} events; open it at https://ui.perfetto.dev", path.display());
    if let Some(dropped) = other["events_dropped"].as_u64().filter(|dropped| *dropped > 0) {
        text.push_str(&format!(
            "\n{dropped} events were dropped: the buffer was full; record for a shorter time"
        ));
    }
    text
}

fn read_trace(path: &Path) -> anyhow::Result<Value> {
    let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
    if bytes.starts_with(&[0x1f, 0x8b]) {
        bail!("{}: it is compressed; unpack it with gunzip first", path.display());
    }
    let trace: Value = serde_json::from_slice(&bytes)
        .with_context(|| format!("{}: not a trace in JSON", path.display()))?;
    // The format also permits a bare list of events.
    let trace = match trace {
        Value::Array(events) => serde_json::json!({ "traceEvents": events }),
        other => other,
    };
    if !trace["traceEvents"].is_array() {
        bail!("{}: no `traceEvents` list; export it with export_chrome_trace", path.display());
    }
    Ok(trace)
}

/// One trace with all events. The times of `other` are converted to the base of `ours`; process numbers of `ours` that
/// `other` uses, too, are replaced by free ones.
fn merged(mut ours: Value, mut other: Value) -> Value {
    let base = |trace: &Value| trace["baseTimeNanoseconds"].as_i64().unwrap_or(0);
    // In microseconds; the bases usually differ by whole seconds, so that no precision is lost.
    #[expect(clippy::cast_precision_loss, reason = "whole microseconds, as the events' own times")]
    let shift = (base(&other) - base(&ours)) as f64 / 1000.0;
    let list = |trace: &mut Value| match trace["traceEvents"].take() {
        Value::Array(events) => events,
        _ => Vec::new(),
    };
    let (mut theirs, mut events) = (list(&mut other), list(&mut ours));
    if shift != 0.0 {
        for event in &mut theirs {
            // Metadata have no time.
            if event["ph"] != "M"
                && let Some(ts) = event["ts"].as_f64()
            {
                event["ts"] = (ts + shift).into();
            }
        }
    }
    // In containers, two processes may have the same number.
    let own = ours["otherData"]["pid"].clone();
    if theirs.iter().any(|event| event["pid"] == own) {
        for event in events.iter_mut().filter(|event| event["pid"] == own) {
            event["pid"] = (FREE_PROCESS + own.as_u64().unwrap_or(0)).into();
        }
    }
    events.append(&mut theirs);
    if let (Some(ours), Some(other)) = (ours.as_object_mut(), other.as_object()) {
        for (key, value) in other.iter().filter(|(key, _)| *key != "traceEvents") {
            ours.entry(key.clone()).or_insert_with(|| value.clone());
        }
        ours.insert("traceEvents".to_owned(), events.into());
    }
    ours
}

/// Above the numbers of real processes.
const FREE_PROCESS: u64 = 500_000_000;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn other_trace_is_moved_to_this_traces_clock() {
        let ours = json!({
            "baseTimeNanoseconds": 2_000_000_000_000_u64,
            "traceEvents": [{"ph": "X", "pid": 5, "ts": 1.5, "dur": 1}],
            "otherData": {"pid": 5},
        });
        let event = |ts: f64| json!({"ph": "X", "pid": 6, "ts": ts});
        for (base, ts) in [(Some(2_000_000_000_000_u64), 7.25), (Some(0), 2_000_000_007.25)] {
            let other = json!({
                "baseTimeNanoseconds": base, "traceEvents": [event(ts)], "traceName": "torch",
            });
            let both = merged(ours.clone(), other);
            assert_eq!(both["traceEvents"], json!([ours["traceEvents"][0], event(7.25)]));
            assert_eq!(
                (&both["traceName"], &both["otherData"]["pid"]),
                (&"torch".into(), &5.into())
            );
        }
        // Traces of older releases have no base: their times are since the epoch.
        let both = merged(ours.clone(), json!({"traceEvents": [event(2_000_000_001.0)]}));
        assert_eq!(both["traceEvents"][1]["ts"], 1.0);
        assert_eq!(both["baseTimeNanoseconds"], ours["baseTimeNanoseconds"]);
    }

    #[test]
    fn processes_with_the_same_number_stay_separate() {
        let ours = json!({"traceEvents": [{"ph": "X", "pid": 5}], "otherData": {"pid": 5}});
        let other = json!({"traceEvents": [{"ph": "X", "pid": 5}]});
        let both = merged(ours, other);
        assert_ne!(both["traceEvents"][0]["pid"], both["traceEvents"][1]["pid"]);
    }

    #[test]
    fn lengths_out_of_bounds_are_refused() {
        for seconds in [0.0, -1.0, 61.0, f64::NAN, f64::INFINITY] {
            assert!(in_milliseconds(seconds).unwrap_err().to_string().contains("60 seconds"));
        }
        assert_eq!(in_milliseconds(0.25).unwrap(), 250);
    }
}
