//! Buffers that a work thread keeps from sample to sample.

/// Samples of about the same size soon need no larger buffer.
const GROWTH_BYTES: usize = 64 << 10;

/// The first `count` elements of a buffer, which only grows: old contents are overwritten, not cleared.
pub fn prepare<T: Copy + Default>(buffer: &mut Vec<T>, count: usize) -> &mut [T] {
    if buffer.len() < count {
        // Without copying old contents, and with little spare capacity: the memory is accounted for.
        if buffer.capacity() < count {
            *buffer = Vec::new();
            buffer.reserve_exact(count.next_multiple_of(GROWTH_BYTES / size_of::<T>()));
        }
        buffer.resize(count, T::default());
    }
    &mut buffer[..count]
}
