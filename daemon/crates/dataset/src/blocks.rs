//! Runs of samples that are expensive to read individually and cheap together.

/// The blocks of a dataset, and the bytes that they save.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SampleBlocks {
    /// The first sample of each block, ascending from 0.
    pub firsts: Vec<u64>,
    /// The maximum size of one block's pages in memory, in bytes.
    pub most_bytes: u64,
    /// The maximum memory for unpacking a page besides the result, in bytes per thousand bytes of result.
    pub scratch_per_thousand: u64,
    /// The total size of all values in pages, in bytes.
    pub used_bytes: u64,
    /// The bytes of an epoch if each value is read individually.
    pub alone: PageBytes,
    /// The bytes of an epoch if each block is read once.
    pub together: PageBytes,
}

/// Sizes of pages, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PageBytes {
    /// Compressed, as in the files.
    pub packed: u64,
    /// Unpacked.
    pub unpacked: u64,
}

impl PageBytes {
    /// Adds a page.
    pub fn add(&mut self, packed: u64, unpacked: u64) {
        self.packed = self.packed.saturating_add(packed);
        self.unpacked = self.unpacked.saturating_add(unpacked);
    }
}
