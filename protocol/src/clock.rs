//! The clock that daemon and client share: CLOCK_MONOTONIC, the same for all processes of a machine.

use nix::time::{ClockId, clock_gettime};

/// Nanoseconds since an arbitrary point in time, the same for every process of this machine.
#[must_use]
pub fn monotonic_ns() -> u64 {
    // The clock exists on every Linux; its numbers are not negative.
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |time| {
        u64::try_from(time.tv_sec() * 1_000_000_000 + time.tv_nsec()).unwrap_or(0)
    })
}
