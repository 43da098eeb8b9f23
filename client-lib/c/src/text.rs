//! Strings in both directions: arguments, and texts that the caller frees.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int};

use crate::registry::{self, Registry};
use crate::status::{Failure, Status, ffi_guard};

/// Reads an optional string.
///
/// # Safety
/// `text` is null, or points to bytes with a null byte at their end, which stay as they are for `'text`.
pub(crate) unsafe fn optional<'text>(
    name: &str,
    text: *const c_char,
) -> Result<Option<&'text str>, Failure> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: not null, and the rest is the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    let text = text.to_str().map_err(|error| {
        Failure::argument(format!("`{name}` is not UTF-8 from byte {} on", error.valid_up_to()))
    })?;
    Ok(Some(text))
}

/// Reads a required string.
///
/// # Safety
/// As [`optional`].
pub(crate) unsafe fn required<'text>(
    name: &str,
    text: *const c_char,
) -> Result<&'text str, Failure> {
    // SAFETY: the caller's promise is the same.
    unsafe { optional(name, text) }?.ok_or_else(|| Failure::argument(format!("`{name}` is null")))
}

/// Checks an output pointer.
pub(crate) fn check_place<T>(name: &str, place: *const T) -> Result<(), Failure> {
    if place.is_null() || !place.is_aligned() {
        return Err(Failure::argument(format!("`{name}` is null or not aligned for its type")));
    }
    Ok(())
}

/// Writes null to an output pointer, so that a failed call leaves no old value there.
///
/// # Safety
/// `place` is null or may be written to.
pub(crate) unsafe fn clear<T>(place: *mut *mut T, name: &str) -> Result<(), Failure> {
    check_place(name, place)?;
    // SAFETY: checked to be neither null nor misaligned, and the rest is the caller's promise.
    unsafe { place.write(std::ptr::null_mut()) };
    Ok(())
}

/// Returns a text to the caller, who frees it.
///
/// # Safety
/// `place` is null or may be written to.
pub(crate) unsafe fn write_text(
    registry: &Registry,
    text: String,
    place: *mut *mut c_char,
) -> Result<Status, Failure> {
    check_place("text", place)?;
    let text = CString::new(text).map_err(|_| Failure {
        status: Status::Protocol,
        message: "the daemon's statistics contain a null byte".into(),
    })?;
    // SAFETY: checked to be neither null nor misaligned, and the rest is the caller's promise.
    unsafe { place.write(registry.add_text(text)) };
    Ok(Status::Ok)
}

/// Frees a text: see the header.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_text_free(text: *mut c_char) -> c_int {
    ffi_guard(|| {
        if !text.is_null() {
            registry::remove_text(text.addr())?;
        }
        Ok(Status::Ok)
    })
}
