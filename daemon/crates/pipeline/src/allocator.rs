//! How glibc's allocator keeps freed memory: large buffers go back to the kernel when they are freed.
//!
//! By itself it raises the size from which it maps memory to that of what is freed, up to 32 MiB, and then keeps as much
//! twice over for each thread: what large images took would never come back. `unsafe` is needed because it is a C call;
//! why it is made: decision 0024.

#![allow(unsafe_code)]

/// Larger memory is mapped for itself and unmapped when it is freed.
#[cfg(target_env = "gnu")]
const MAPPED_FROM_BYTES: nix::libc::c_int = 1 << 20;
/// Of smaller memory so much is kept free at the end of each heap.
#[cfg(target_env = "gnu")]
const KEPT_FREE_BYTES: nix::libc::c_int = 4 << 20;

/// Fixes both sizes for this process. Other allocators are left as they are.
pub fn give_back_large_buffers() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt takes two numbers, may be called at any time from any thread, and refuses what it does not know.
    unsafe {
        nix::libc::mallopt(nix::libc::M_MMAP_THRESHOLD, MAPPED_FROM_BYTES);
        nix::libc::mallopt(nix::libc::M_TRIM_THRESHOLD, KEPT_FREE_BYTES);
    }
}
