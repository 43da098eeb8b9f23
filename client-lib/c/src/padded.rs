//! `forebay_batch_pad` of the header: the rows of a ragged tensor as one array in the caller's memory.
//!
//! # Safety
//! Pointers are as the header says: null, or valid for their use. Handles may have any value.

#![allow(unsafe_code)]
#![allow(
    clippy::missing_safety_doc,
    reason = "one contract for all: the head of this file and the header"
)]

use std::ffi::{c_char, c_int, c_void};

use forebay_client::Error;
use forebay_protocol::tensor::MAX_RANK;

use crate::batch::BatchHandle;
use crate::options::check_struct;
use crate::registry;
use crate::status::{Failure, Status, ffi_guard};
use crate::text::required;

/// `forebay_padded` of the header.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
#[allow(missing_docs, reason = "documented where its users look, in forebay.h")]
pub struct PaddedInfo {
    pub size: usize,
    pub data: *mut c_void,
    pub lengths: *mut i64,
    pub bytes: u64,
    pub shape: [i64; MAX_RANK],
    pub rank: i32,
}

/// A tensor's padded rows: see the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_batch_pad(
    batch: *const BatchHandle,
    name: *const c_char,
    padded: *mut PaddedInfo,
) -> c_int {
    ffi_guard(|| {
        // SAFETY: the caller's promise.
        let mut info = unsafe {
            check_struct("padded", "forebay_padded padded = FOREBAY_PADDED_INIT", padded)?;
            padded.read()
        };
        let (_, batch) = registry::batch(batch.addr())?;
        // SAFETY: the caller's promise.
        let name = unsafe { required("name", name) }?;
        let Some(rows) = batch.require(name)?.padded()? else {
            let message = format!(
                "tensor `{name}` is not padded: set batch.pad = \"batch\", which pads arrays whose rows differ in length"
            );
            return Err(Failure { status: Status::NoSuchTensor, message });
        };
        let bytes = rows.length_bytes();
        if !info.data.is_null() {
            if info.bytes < bytes as u64 {
                return Err(Failure::argument(format!(
                    "`padded.bytes` = {}, and the padded rows of `{name}` are {bytes} bytes",
                    info.bytes
                )));
            }
            // SAFETY: the caller's promise: as much memory as `bytes` says, which nobody else uses; it need not be
            // initialised for bytes that are written before they are read.
            let to = unsafe {
                info.data.cast::<u8>().write_bytes(0, bytes);
                std::slice::from_raw_parts_mut(info.data.cast::<u8>(), bytes)
            };
            rows.write(to)?;
        }
        if !info.lengths.is_null() {
            for (row, length) in rows.lengths().iter().enumerate() {
                let length = i64::try_from(*length).map_err(|_| too_large(name))?;
                // SAFETY: the caller's promise: room for a number of each row, aligned as C has it.
                unsafe { info.lengths.add(row).write(length) };
            }
        }
        let shape = rows.shape();
        info.shape = [0; MAX_RANK];
        for (place, extent) in info.shape.iter_mut().zip(&shape) {
            *place = i64::try_from(*extent).map_err(|_| too_large(name))?;
        }
        (info.bytes, info.rank) = (bytes as u64, i32::try_from(shape.len()).unwrap_or(0));
        // SAFETY: as above, and the caller knows the same struct.
        unsafe { padded.write(info) };
        Ok(Status::Ok)
    })
}

fn too_large(name: &str) -> Failure {
    Failure::from(Error::Protocol(format!(
        "tensor `{name}` is larger than this machine can address"
    )))
}
