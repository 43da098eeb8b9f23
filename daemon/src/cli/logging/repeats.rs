//! Limits repeated warnings of one kind: the first ones are written, then one every few minutes with the number of
//! omitted ones. A kind is a place in the code, whatever the values in its lines. Errors are never omitted.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// The number of lines of a kind written within [`PAUSE`]; afterwards one per pause.
const BURST: u32 = 3;
/// The time after which another line of a kind may be written.
const PAUSE: Duration = Duration::from_secs(180);

/// The state of a kind.
#[derive(Debug)]
struct Kind {
    /// The number of lines that may still be written.
    left: u32,
    /// The last time at which `left` was raised or full.
    since: Instant,
    /// The number of omitted lines since the last written one.
    left_out: u64,
    written: Instant,
}

/// All kinds so far; their number is bounded by the warnings in the code.
#[derive(Debug)]
struct Kinds<Key>(HashMap<Key, Kind>);

/// The decision about a line.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    LeftOut,
    /// Written; the number of lines omitted before it, and the time in which they came.
    Written(u64, Duration),
}

impl<Key: std::hash::Hash + Eq> Kinds<Key> {
    fn decide(&mut self, key: Key, now: Instant) -> Fate {
        let fresh = Kind { left: BURST, since: now, left_out: 0, written: now };
        let kind = self.0.entry(key).or_insert(fresh);
        while kind.left < BURST && now.saturating_duration_since(kind.since) >= PAUSE {
            kind.left += 1;
            kind.since += PAUSE;
        }
        if kind.left == 0 {
            kind.left_out += 1;
            return Fate::LeftOut;
        }
        if kind.left == BURST {
            kind.since = now;
        }
        kind.left -= 1;
        let lasted = now.saturating_duration_since(std::mem::replace(&mut kind.written, now));
        Fate::Written(std::mem::take(&mut kind.left_out), lasted)
    }
}

/// A format that omits repeated warnings.
#[derive(Debug)]
pub(super) struct WithoutRepeats<Format> {
    format: Format,
    kinds: Mutex<Kinds<Identifier>>,
    /// Omitted lines that no later line has counted.
    uncounted: Arc<AtomicU64>,
}

impl<Format> WithoutRepeats<Format> {
    pub(super) fn new(format: Format, uncounted: Arc<AtomicU64>) -> Self {
        Self { format, kinds: Mutex::new(Kinds(HashMap::new())), uncounted }
    }
}

impl<S, N, Format> FormatEvent<S, N> for WithoutRepeats<Format>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    Format: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let metadata = event.metadata();
        if *metadata.level() != Level::WARN {
            return self.format.format_event(context, writer, event);
        }
        let mut kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        let fate = kinds.decide(metadata.callsite(), Instant::now());
        drop(kinds);
        let Fate::Written(left_out, lasted) = fate else {
            // Relaxed, both: a count for the last line.
            self.uncounted.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        };
        self.uncounted.fetch_sub(left_out, Ordering::Relaxed);
        self.format.format_event(context, writer.by_ref(), event)?;
        if left_out > 0 {
            let minutes = lasted.as_secs().div_ceil(60);
            writeln!(writer, "    … {left_out} more of this kind in the last {minutes} min")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_warning_is_written_a_few_times_with_the_number_omitted() {
        let begun = Instant::now();
        let mut kinds = Kinds(HashMap::new());
        let mut written = Vec::new();
        for line in 0..40 {
            let now = begun + Duration::from_secs(10 * line);
            // Other kinds are not affected.
            if line % 20 == 0 {
                assert!(matches!(kinds.decide("other", now), Fate::Written(0, _)));
            }
            if let Fate::Written(left_out, _) = kinds.decide("this", now) {
                written.push((line, left_out));
            }
        }
        assert_eq!(written, [(0, 0), (1, 0), (2, 0), (18, 15), (36, 17)]);
    }

    #[test]
    fn first_lines_are_written_again_after_a_long_pause() {
        let begun = Instant::now();
        let mut kinds = Kinds(HashMap::new());
        for _ in 0..5 {
            kinds.decide("this", begun);
        }
        let later = begun + 4 * PAUSE;
        assert_eq!(kinds.decide("this", later), Fate::Written(2, 4 * PAUSE));
        assert_eq!(kinds.decide("this", later), Fate::Written(0, Duration::ZERO));
        assert_eq!(kinds.decide("this", later), Fate::Written(0, Duration::ZERO));
        assert_eq!(kinds.decide("this", later), Fate::LeftOut);
    }
}
