//! Buffers that a work thread keeps from sample to sample.

/// The largest that is kept (64 MiB); a larger one is given back after its sample.
pub(crate) const KEPT_BYTES: usize = 64 << 20;

/// Gives back a buffer that an unusually large sample took.
pub(crate) fn trim<T>(buffer: &mut Vec<T>) {
    if buffer.capacity() * size_of::<T>() > KEPT_BYTES {
        *buffer = Vec::new();
    }
}

/// The first `count` elements of a buffer, which only grows: what is there is overwritten, not cleared.
pub(crate) fn prepare<T: Copy + Default>(buffer: &mut Vec<T>, count: usize) -> &mut [T] {
    if buffer.len() < count {
        buffer.resize(count, T::default());
    }
    &mut buffer[..count]
}
