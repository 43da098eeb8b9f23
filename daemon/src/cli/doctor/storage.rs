//! Measures random reads of samples with one thread, the configured number, and twice that. If the kernel permits it,
//! the page cache of a file is dropped first. A storage that serves requests is measured by [`requests`].

mod reading;
mod requests;

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use self::reading::{Rate, WORTHWHILE, read, unreadable};
use super::finding::{Finding, Weight};
use forebay_engine::Stream;
use forebay_observe::format_bytes;

pub(super) use self::reading::Reading;

/// Reads for `seconds` at each concurrency.
pub(super) fn measure(stream: &Stream, seconds: f64) -> Reading {
    let Ok(time) = Duration::try_from_secs_f64(seconds) else { return Reading::default() };
    if time.is_zero() {
        return Reading::default();
    }
    let (configured, most) = stream.config().reads();
    let turn = AtomicU64::new(0);
    if stream.requests().is_some() {
        return requests::measure(stream, time, &turn);
    }
    let rates: Vec<Rate> =
        [1, configured, configured * 2].map(|at_once| read(stream, at_once, time, &turn)).into();
    let [one, now, twice] = &rates[..] else { return Reading::default() };
    let Some(bytes_per_sample) = now.bytes.checked_div(now.samples) else {
        return unreadable(&rates);
    };
    let state = format!(
        "a read of {} takes {:.2} ms; one at a time gives {:.0} samples/s, {configured} at once {:.0} ({}/s)",
        format_bytes(bytes_per_sample),
        one.mean_seconds * 1e3,
        one.per_second(),
        now.per_second(),
        format_bytes(now.bytes_per_second())
    );
    // "auto" tries this concurrency automatically.
    let finding = if configured * 2 > most && twice.per_second() > now.per_second() * WORTHWHILE {
        Finding::new(
            Weight::Minor,
            "storage",
            format!("{state}; {} at once give {:.0}", configured * 2, twice.per_second()),
            format!(
                "if `storage` is the limit: [[stage]] name = \"fetch\", concurrency = {}",
                configured * 2
            ),
        )
    } else {
        Finding::good("storage", state)
    };
    Reading { findings: vec![finding], bytes_per_sample }
}
