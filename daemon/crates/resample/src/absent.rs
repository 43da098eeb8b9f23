//! In place of the resampler where there is none for the processor.

use crate::request::{Filter, Shown, Source, Target};

/// There is none.
#[derive(Debug)]
pub enum Resampler {}

impl Resampler {
    /// Always `None`.
    #[must_use]
    pub const fn new() -> Option<Self> {
        None
    }

    /// Never called.
    pub fn prepare(
        &mut self,
        _from: (u32, u32),
        _columns: Shown,
        _rows: Shown,
        _filter: Filter,
        _to: (u32, u32),
        _mirror: bool,
    ) -> bool {
        match *self {}
    }

    /// Never called.
    pub fn resample(
        &mut self,
        _source: &Source<'_>,
        _columns: Shown,
        _rows: Shown,
        _filter: Filter,
        _target: &mut Target<'_>,
    ) -> bool {
        match *self {}
    }

    /// Bytes of memory that it holds.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        match *self {}
    }

    /// Gives memory back.
    pub fn trim(&mut self) {
        match *self {}
    }
}
