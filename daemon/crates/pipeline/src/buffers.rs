//! Buffers that a work thread keeps from sample to sample.

/// The largest that is kept (64 MiB); a larger one is given back after its sample.
pub(crate) const KEPT_BYTES: usize = 64 << 20;

/// Gives back a buffer that an unusually large sample took.
pub(crate) fn trim(buffer: &mut Vec<u8>) {
    if buffer.capacity() > KEPT_BYTES {
        *buffer = Vec::new();
    }
}

/// The first `bytes` of a buffer, which only grows: what is there is overwritten, not cleared.
pub(crate) fn prepare(buffer: &mut Vec<u8>, bytes: usize) -> &mut [u8] {
    if buffer.len() < bytes {
        buffer.resize(bytes, 0);
    }
    &mut buffer[..bytes]
}
