//! Memory as 64-bit words, over which the rings are generic.

use crate::sync::AtomicU64;

/// A fixed number of shared 64-bit words, initially zero.
pub trait Words: Send + Sync {
    /// The word at `index`.
    ///
    /// # Panics
    /// When the index is not below [`count`](Self::count).
    fn word(&self, index: usize) -> &AtomicU64;

    /// The number of words.
    fn count(&self) -> usize;
}

/// Words on the heap, for tests and models.
#[derive(Debug)]
pub struct HeapWords(Vec<AtomicU64>);

impl HeapWords {
    /// `count` words, all zero.
    #[must_use]
    pub fn new(count: usize) -> Self {
        Self((0..count).map(|_| AtomicU64::new(0)).collect())
    }
}

impl Words for HeapWords {
    fn word(&self, index: usize) -> &AtomicU64 {
        &self.0[index]
    }

    fn count(&self) -> usize {
        self.0.len()
    }
}

impl<W: Words + ?Sized> Words for std::sync::Arc<W> {
    fn word(&self, index: usize) -> &AtomicU64 {
        (**self).word(index)
    }

    fn count(&self) -> usize {
        (**self).count()
    }
}
