//! A stub for processors that the resampler does not support.

use crate::request::{Filter, Shown, Source, Target};

/// Has no values.
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

    /// Bytes of memory.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        match *self {}
    }

    /// Frees memory.
    pub fn trim(&mut self) {
        match *self {}
    }
}
