//! The entropy-coded data of a scan without their stuffing (T.81, B.1.1.5), and where their restart markers were.

use crate::request::Unsure;

/// Behind the data, so that eight bytes can be read from every position within them.
const SLACK: usize = 8;

/// Kept from file to file.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    /// Zeros follow the data.
    data: Vec<u8>,
    /// Where each restart interval but the first begins in `data`.
    restarts: Vec<usize>,
}

impl Scan {
    /// Takes the stuffing out of what follows `start`, up to the end of the image.
    ///
    /// # Errors
    /// When anything but restart markers in their order and the end of the image lies in the data, or when these are not
    /// so many intervals.
    pub(crate) fn read(
        &mut self,
        file: &[u8],
        start: usize,
        intervals: usize,
    ) -> Result<(), Unsure> {
        self.data.clear();
        self.restarts.clear();
        let mut rest = file.get(start..).unwrap_or_default();
        // Exactly, as `Decoder::most_scratch_bytes` says.
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

    /// The data and the zeros behind them.
    pub(crate) fn data(&self) -> &[u8] {
        &self.data
    }

    /// Without the zeros.
    pub(crate) fn data_bytes(&self) -> usize {
        self.data.len() - SLACK
    }

    /// How many restart intervals were read.
    fn intervals(&self) -> usize {
        self.restarts.len() + 1
    }

    /// Where a restart interval begins and ends.
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
    fn stuffing_goes_and_restarts_are_noted() {
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
