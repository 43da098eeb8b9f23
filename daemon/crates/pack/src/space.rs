//! Checks the free space before a result is begun.

use forebay_observe::format_bytes;
use rustix::fs::statvfs;

use crate::error::PackError;
use crate::folder::Unfinished;
use crate::reading::Reading;

/// The number of samples whose sizes are taken for those of all, spread evenly.
const MEASURED: u64 = 64;
/// An estimate may be too high by a quarter.
const TRUSTED: (u64, u64) = (3, 4);

/// # Errors
/// The rest of the result hardly fits, or a sample cannot be read.
pub(crate) fn check(reading: &Reading<'_>, folder: &Unfinished, all: u64) -> Result<(), PackError> {
    let Ok(space) = statvfs(folder.path()) else { return Ok(()) };
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    let (from, mut thread) = (folder.samples(), reading.thread());
    let rest = all - from;
    let measured = rest.min(MEASURED);
    let mut bytes = 0_u64;
    for place in 0..measured {
        let number = from
            + u64::try_from(u128::from(rest) * u128::from(place) / u128::from(measured))
                .unwrap_or(0);
        let values = thread.sample(number)?.values;
        bytes += values.iter().map(|value| value.bytes() as u64).sum::<u64>();
    }
    let needed = u128::from(bytes) * u128::from(rest) / u128::from(measured.max(1));
    let needed = u64::try_from(needed).unwrap_or(u64::MAX);
    match needed / TRUSTED.1 * TRUSTED.0 > free {
        true => Err(PackError::NoSpace {
            folder: folder.path().to_owned(),
            needed: format_bytes(needed),
            free: format_bytes(free),
        }),
        false => Ok(()),
    }
}
