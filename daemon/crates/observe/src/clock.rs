//! The clock of the engine and the metrics, as an argument: the machine's monotonic clock, or one that a test advances.
//!
//! It measures time only. Waiting (a condition variable, a timer of the runtime, the kernel's scheduler) stays on the
//! machine's clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A handle to a clock; clones share it. The system clock costs one predictable branch more than [`Instant::now`].
#[derive(Debug, Clone, Default)]
pub struct Clock(Option<Arc<ManualClock>>);

#[derive(Debug)]
struct ManualClock {
    start: Instant,
    advanced_ns: AtomicU64,
}

impl Clock {
    /// The machine's monotonic clock.
    #[must_use]
    pub const fn system() -> Self {
        Self(None)
    }

    /// A clock that only [`advance`](Self::advance) moves.
    #[must_use]
    pub fn manual() -> Self {
        Self(Some(Arc::new(ManualClock { start: Instant::now(), advanced_ns: AtomicU64::new(0) })))
    }

    /// The current time.
    #[inline]
    #[must_use]
    pub fn now(&self) -> Instant {
        match &self.0 {
            None => Instant::now(),
            // Acquire: pairs with the release in `advance`, so that a thread that reads a time sees the writes before
            // it.
            Some(manual) => {
                manual.start + Duration::from_nanos(manual.advanced_ns.load(Ordering::Acquire))
            }
        }
    }

    /// The time since `earlier`; zero if that is in the future.
    #[inline]
    #[must_use]
    pub fn elapsed(&self, earlier: Instant) -> Duration {
        self.now().saturating_duration_since(earlier)
    }

    /// Advances a manual clock.
    ///
    /// # Panics
    /// On the system clock.
    pub fn advance(&self, by: Duration) {
        let manual = self.0.as_ref().expect("the system clock cannot be advanced");
        let by = u64::try_from(by.as_nanos()).expect("centuries");
        // Release: pairs with the acquire in `now`.
        manual.advanced_ns.fetch_add(by, Ordering::Release);
    }
}
