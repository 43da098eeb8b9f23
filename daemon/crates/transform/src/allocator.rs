//! Configures glibc's allocator so that large buffers are returned to the kernel when they are freed.
//!
//! By default it raises the mmap threshold to the size of freed blocks, up to 32 MiB, and keeps up to twice as much for
//! each thread: the memory of large images would never be returned. `unsafe` is needed because it is a C call; its
//! reason: decision 0024.

#![allow(unsafe_code)]

/// Larger blocks are mapped individually and unmapped when they are freed.
#[cfg(target_env = "gnu")]
const MAPPED_FROM_BYTES: nix::libc::c_int = 1 << 20;
/// Free memory that is kept at the end of each heap.
#[cfg(target_env = "gnu")]
const KEPT_FREE_BYTES: nix::libc::c_int = 4 << 20;

/// Sets both sizes for this process. Other allocators are unchanged.
pub fn give_back_large_buffers() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt takes two numbers, may be called at any time from any thread, and refuses unknown parameters.
    unsafe {
        nix::libc::mallopt(nix::libc::M_MMAP_THRESHOLD, MAPPED_FROM_BYTES);
        nix::libc::mallopt(nix::libc::M_TRIM_THRESHOLD, KEPT_FREE_BYTES);
    }
}
