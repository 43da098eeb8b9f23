//! Measures a storage that serves requests, from this machine: the latency of a response, and the gain of more
//! concurrent requests.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use forebay_engine::Stream;
use forebay_observe::{RequestReport, format_bytes};

use super::reading::{Rate, Reading, WORTHWHILE, read, unreadable};
use crate::cli::doctor::finding::{Finding, Weight};

/// The tried numbers of concurrent requests; the series ends if more of them are not faster.
const AT_ONCE: [u32; 5] = [1, 4, 16, 64, 256];
/// The share of refused requests at which the server counts as overloaded.
const REFUSED: f64 = 0.01;

/// The result for a number of concurrent requests.
struct Level {
    at_once: u32,
    rate: Rate,
    requests: RequestReport,
}

impl Level {
    /// Whether its share of refused requests is higher than with one request at a time.
    fn is_refused(&self, alone: &Level) -> bool {
        self.requests.refused_share() >= REFUSED + 2.0 * alone.requests.refused_share()
    }
}

pub(super) fn measure(stream: &Stream, time: Duration, turn: &AtomicU64) -> Reading {
    let mut levels: Vec<Level> = Vec::new();
    for at_once in AT_ONCE {
        let before = stream.requests().unwrap_or_default();
        let rate = read(stream, at_once, time, turn);
        let requests = stream.requests().unwrap_or_default().since(&before);
        let brings_more = levels
            .last()
            .is_none_or(|last| rate.per_second() > last.rate.per_second() * WORTHWHILE);
        levels.push(Level { at_once, rate, requests });
        if !brings_more || levels.last().is_some_and(|level| level.is_refused(&levels[0])) {
            break;
        }
    }
    let read: u64 = levels.iter().map(|level| level.rate.samples).sum();
    let bytes: u64 = levels.iter().map(|level| level.rate.bytes).sum();
    let Some(bytes_per_sample) = bytes.checked_div(read) else {
        return unreadable(&levels.into_iter().map(|level| level.rate).collect::<Vec<_>>());
    };
    let finding = judge(&levels, bytes_per_sample, stream.config().reads());
    Reading { findings: vec![finding], bytes_per_sample }
}

/// `configured`: the minimum and the maximum number of concurrent reads.
fn judge(levels: &[Level], bytes_per_sample: u64, (fewest, most): (u32, u32)) -> Finding {
    let alone = &levels[0];
    let best = levels
        .iter()
        .filter(|level| !level.is_refused(alone))
        .max_by(|a, b| a.rate.per_second().total_cmp(&b.rate.per_second()))
        .unwrap_or(alone);
    let tried = levels.iter().map(|level| {
        let rate = level.rate.per_second();
        format!("{} at once {rate:.0} samples/s", level.at_once)
    });
    let state = format!(
        "an answer of {} begins after {:.1} ms (99 %: {:.1} ms); {} ({}/s at {})",
        format_bytes(bytes_per_sample),
        alone.requests.p50_first_byte * 1e3,
        alone.requests.p99_first_byte * 1e3,
        tried.collect::<Vec<_>>().join(", "),
        format_bytes(best.rate.bytes_per_second()),
        best.at_once,
    );
    let refused = levels.iter().find(|level| level.is_refused(alone));
    let set = format!("[[stage]] name = \"fetch\", concurrency = {}", best.at_once);
    match refused {
        Some(level) if most > best.at_once => {
            let share = level.requests.refused_share() * 100.0;
            let state = format!("{state}; of {} at once {share:.0} % are refused", level.at_once);
            Finding::new(Weight::Costly, "storage", state, set)
        }
        _ if alone.requests.refused_share() >= REFUSED => {
            let share = alone.requests.refused_share() * 100.0;
            let state =
                format!("{state}; {share:.0} % are refused (429 or 503), even one at a time");
            Finding::new(Weight::Costly, "storage", state, "ask its operator for more room")
        }
        // "auto" finds it automatically.
        _ if fewest == most && most < best.at_once => Finding::new(
            Weight::Minor,
            "storage",
            state,
            format!("if `storage` is the limit: {set}"),
        ),
        _ => Finding::good("storage", state),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn level(at_once: u32, samples: u64, refused: u64) -> Level {
        let rate =
            Rate { samples, bytes: samples * 1000, seconds: 1.0, mean_seconds: 0.03, error: None };
        let requests = RequestReport {
            num_requests: samples + refused,
            num_refused: refused,
            p50_first_byte: 0.030,
            p99_first_byte: 0.045,
            ..RequestReport::default()
        };
        Level { at_once, rate, requests }
    }

    #[test]
    fn more_requests_are_advised_if_faster_and_fewer_if_refused() {
        let levels = [level(1, 30, 0), level(4, 120, 0), level(16, 480, 0), level(64, 500, 0)];
        let found = judge(&levels, 1000, (16, 256));
        assert_eq!(found.weight, Weight::Good);
        assert!(found.state.contains("begins after 30.0 ms (99 %: 45.0 ms); 1 at once 30"));
        let found = judge(&levels, 1000, (4, 4));
        assert_eq!(found.weight, Weight::Minor);
        assert!(found.remedy.unwrap().ends_with("concurrency = 64"));
        let levels = [level(1, 30, 0), level(4, 120, 0), level(16, 200, 50)];
        let found = judge(&levels, 1000, (16, 256));
        assert_eq!(found.weight, Weight::Costly);
        assert!(found.state.ends_with("of 16 at once 20 % are refused"), "{}", found.state);
        assert!(found.remedy.unwrap().ends_with("concurrency = 4"));
        let found = judge(&[level(1, 30, 3), level(4, 120, 11)], 1000, (16, 256));
        assert_eq!(found.weight, Weight::Costly);
        assert!(found.state.ends_with("9 % are refused (429 or 503), even one at a time"));
    }
}
