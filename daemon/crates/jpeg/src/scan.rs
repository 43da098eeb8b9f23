//! The entropy-coded data of a scan without stuffing (T.81, B.1.1.5), and the positions of its restart markers.

use crate::request::Unsure;

/// Padding after the data, so that eight bytes can be read from every position.
const SLACK: usize = 8;

/// Reused across files.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    /// Zeros follow the data.
    data: Vec<u8>,
    /// The start of each restart interval except the first in `data`.
    restarts: Vec<usize>,
}

impl Scan {
    /// Removes the stuffing from the data after `start`, up to the end of the image.
    ///
    /// # Errors
    /// The data contains anything but restart markers in order and the end of the image, or the number of intervals
    /// differs.
    pub(crate) fn read(
        &mut self,
        file: &[u8],
        start: usize,
        intervals: usize,
    ) -> Result<(), Unsure> {
        self.data.clear();
        self.restarts.clear();
        let mut rest = file.get(start..).unwrap_or_default();
        // Exactly, as in `Decoder::most_scratch_bytes`.
        self.data.reserve_exact(rest.len() + SLACK);
        loop {
            let Some(plain) = memchr::memchr(0xff, rest) else {
                return Err(Unsure("no end of the image"));
            };
            match rest.get(plain + 1) {
                Some(0x00) => self.data.extend_from_slice(&rest[..=plain]),
                Some(marker @ 0xd0..=0xd7) => {
                    self.data.extend_from_slice(&rest[..plain]);
                    if usize::from(*marker & 7) != self.restarts.len() % 8 {
                        return Err(Unsure("restart markers out of their order"));
                    }
                    if self.intervals() == intervals {
                        return Err(Unsure("too many restart markers"));
                    }
                    self.restarts.push(self.data.len());
                }
                Some(0xd9) => {
                    self.data.extend_from_slice(&rest[..plain]);
                    self.data.extend_from_slice(&[0; SLACK]);
                    let is_whole = self.intervals() == intervals;
                    return is_whole.then_some(()).ok_or(Unsure("too few restart markers"));
                }
                _ => return Err(Unsure("a marker within the data")),
            }
            rest = &rest[plain + 2..];
        }
    }

    /// The data, followed by zeros.
    pub(crate) fn data(&self) -> &[u8] {
        &self.data
    }

    /// Without the zeros.
    pub(crate) fn data_bytes(&self) -> usize {
        self.data.len() - SLACK
    }

    /// The number of restart intervals.
    fn intervals(&self) -> usize {
        self.restarts.len() + 1
    }

    /// Start and end of a restart interval.
    pub(crate) fn interval(&self, number: usize) -> Option<(usize, usize)> {
        let begin = match number {
            0 => 0,
            later => *self.restarts.get(later - 1)?,
        };
        let end = self.restarts.get(number).copied();
        Some((begin, end.unwrap_or(self.data_bytes())))
    }

    pub(crate) fn bytes(&self) -> usize {
        self.data.capacity() + self.restarts.capacity() * size_of::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stuffing_is_removed_and_restarts_are_recorded() {
        let mut scan = Scan::default();
        let file = [1, 0xff, 0, 2, 0xff, 0xd0, 3, 0xff, 0xd1, 0xff, 0xd9, 7];
        scan.read(&file, 0, 3).unwrap();
        assert_eq!(scan.data()[..4], [1, 0xff, 2, 3]);
        assert_eq!(
            [0, 1, 2, 3].map(|n| scan.interval(n)),
            [Some((0, 3)), Some((3, 4)), Some((4, 4)), None]
        );
        assert!(scan.read(&file, 0, 2).is_err(), "too many");
        assert!(scan.read(&file, 0, 4).is_err(), "too few");
        for strange in [&file[..9], &file[..10], &[0xff, 0xd1, 0xff, 0xd9], &[0xff, 0xff, 0xd9]] {
            assert!(scan.read(strange, 0, 3).is_err(), "{strange:x?}");
        }
    }
}
