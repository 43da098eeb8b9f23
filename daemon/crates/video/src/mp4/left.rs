//! What the headers of a file may still announce.

use crate::error::{Result, refuse};
use crate::table::{MAX_PACKETS, MOST_REPEATED};

/// Packets and their bytes, so that a few bytes of headers list no millions of packets that the file cannot hold.
#[derive(Debug, Clone, Copy)]
pub(super) struct Left {
    file_bytes: u64,
    packets: u32,
    bytes: u64,
}

impl Left {
    pub(super) const fn of_file(file_bytes: u64) -> Self {
        let bytes = file_bytes.saturating_mul(MOST_REPEATED);
        Self { file_bytes, packets: MAX_PACKETS, bytes }
    }

    pub(super) const fn file_bytes(self) -> u64 {
        self.file_bytes
    }

    /// Takes packets of so many bytes, each of which counts as one at least.
    pub(super) fn take(&mut self, packets: usize, bytes: u64) -> Result<()> {
        let left = u32::try_from(packets).ok().and_then(|count| self.packets.checked_sub(count));
        let Some(left) = left else {
            return refuse!("it announces more packets than the limit of {MAX_PACKETS}");
        };
        let Some(left_bytes) = self.bytes.checked_sub(bytes.max(packets as u64)) else {
            return refuse!(
                "it announces packets of more bytes than {MOST_REPEATED} times its {}: the file is cut off, or its header \
                 is wrong",
                self.file_bytes
            );
        };
        (self.packets, self.bytes) = (left, left_bytes);
        Ok(())
    }
}
