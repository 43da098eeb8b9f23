//! Runs of samples that are dear to read one by one and cheap together.

/// The blocks of a dataset, and what they save.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SampleBlocks {
    /// The first sample of each, ascending from 0.
    pub firsts: Vec<u64>,
    /// What the pages of one take in memory at most.
    pub most_bytes: u64,
    /// What unpacking a page takes beside what it unpacks to, for each thousand bytes of that, at most.
    pub scratch_per_thousand: u64,
    /// The bytes of all values that lie in pages.
    pub used_bytes: u64,
    /// An epoch's where each value is read by itself.
    pub alone: PageBytes,
    /// An epoch's where each block is read once.
    pub together: PageBytes,
}

/// The bytes of pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PageBytes {
    /// As they lie in files.
    pub packed: u64,
    /// What they unpack to.
    pub unpacked: u64,
}

impl PageBytes {
    /// One page more.
    pub(super) fn add(&mut self, packed: u64, unpacked: u64) {
        self.packed = self.packed.saturating_add(packed);
        self.unpacked = self.unpacked.saturating_add(unpacked);
    }
}
