//! The functions of the header on a batch and its tensors.
//!
//! No Rust reference to a slot's bytes is formed here: the caller gets addresses and may write through them.
//!
//! # Safety
//! Pointers are as the header says: null, or valid for their use. Handles may have any value.

#![allow(unsafe_code)]
#![allow(
    clippy::missing_safety_doc,
    reason = "one contract for all: the head of this file and the header"
)]

use std::ffi::{c_char, c_int, c_void};

use forebay_client::{Batch, DType, Tensor};
use forebay_protocol::tensor::{MAX_NAME_BYTES, MAX_RANK};

use crate::options::check_struct;
use crate::registry;
use crate::status::{Failure, Status, ffi_guard};
use crate::text::{clear, required};

/// `forebay_batch` of the header: an opaque handle, never dereferenced.
#[derive(Debug)]
#[repr(C)]
pub struct BatchHandle {
    nothing: [u8; 0],
}

/// `forebay_batch_info` of the header.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
#[allow(missing_docs, reason = "documented where its users look, in forebay.h")]
pub struct BatchInfo {
    pub size: usize,
    pub rows: u64,
    pub number: u64,
    pub epoch: u64,
    pub epoch_after: u64,
    pub samples_after: u64,
    pub payload_bytes: u64,
    pub tensor_count: u32,
    pub is_last_of_epoch: c_int,
}

/// `forebay_dtype` of the header, which is DLPack's `DLDataType`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
#[allow(missing_docs, reason = "documented where its users look, in forebay.h")]
pub struct ElementType {
    pub code: u8,
    pub bits: u8,
    pub lanes: u16,
}

/// `forebay_tensor` of the header.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
#[allow(missing_docs, reason = "documented where its users look, in forebay.h")]
pub struct TensorInfo {
    pub size: usize,
    pub data: *mut c_void,
    pub bytes: u64,
    pub shape: [i64; MAX_RANK],
    pub strides: [i64; MAX_RANK],
    pub offsets: *const u64,
    pub lengths: *const u64,
    pub dtype: ElementType,
    pub rank: i32,
    pub row_rank: i32,
    pub row_shape: [i64; MAX_RANK],
    pub channels_last: c_int,
    pub name: [c_char; MAX_NAME_BYTES + 1],
}

impl ElementType {
    /// The codes of `DLDataTypeCode` in DLPack's `dlpack.h`.
    fn of(dtype: DType) -> Self {
        let code = match dtype {
            DType::I8 | DType::I16 | DType::I32 | DType::I64 => 0,
            DType::U8 | DType::U16 | DType::U32 | DType::U64 => 1,
            DType::F16 | DType::F32 | DType::F64 => 2,
            DType::BF16 => 4,
            DType::Bool => 6,
        };
        // At most 64.
        let bits = u8::try_from(dtype.size_bytes() * 8).unwrap_or(0);
        Self { code, bits, lanes: 1 }
    }
}

fn describe(tensor: Tensor<'_>) -> Result<TensorInfo, Failure> {
    let too_large = |_| Failure {
        status: Status::Protocol,
        message: format!("tensor `{}` is larger than this machine can address", tensor.name()),
    };
    let mut shape = [0; MAX_RANK];
    let mut strides = [0; MAX_RANK];
    let rank = tensor.shape().len();
    let mut stride: i64 = 1;
    for (place, extent) in tensor.shape().iter().enumerate().rev() {
        shape[place] = i64::try_from(*extent).map_err(too_large)?;
        strides[place] = stride;
        // The product is at most the bytes of the slot, but for a tensor without elements.
        stride = stride.saturating_mul(shape[place]);
    }
    let mut row_shape = [0; MAX_RANK];
    let mut row_rank = 0;
    let (offsets, lengths) = match tensor.ragged() {
        Some(ragged) => {
            for (place, extent) in row_shape.iter_mut().zip(ragged.row_shape()) {
                *place = i64::try_from(*extent).map_err(too_large)?;
                row_rank += 1;
            }
            let (table, lengths_at) = ragged.table();
            // Both halves of the table lie inside the slot.
            (table.cast_const(), table.wrapping_add(lengths_at).cast_const())
        }
        None => (std::ptr::null(), std::ptr::null()),
    };
    let mut name = [0; MAX_NAME_BYTES + 1];
    for (place, byte) in name[..MAX_NAME_BYTES].iter_mut().zip(tensor.name().bytes()) {
        // The type is signed on one machine and unsigned on the other; the bits are the byte's.
        *place = c_char::from_ne_bytes([byte]);
    }
    Ok(TensorInfo {
        size: size_of::<TensorInfo>(),
        data: tensor.pointer().cast(),
        bytes: tensor.length_bytes() as u64,
        shape,
        strides,
        offsets,
        lengths,
        dtype: ElementType::of(tensor.dtype()),
        // At most MAX_RANK.
        rank: i32::try_from(rank).unwrap_or(0),
        row_rank,
        row_shape,
        channels_last: tensor.spec().channels_last.into(),
        name,
    })
}

/// Writes a tensor's description to the caller's struct.
///
/// # Safety
/// `place` is null or may be read and written as the struct of the header.
unsafe fn write_tensor<'batch>(
    place: *mut TensorInfo,
    find: impl FnOnce() -> Result<Tensor<'batch>, Failure>,
) -> Result<Status, Failure> {
    // SAFETY: the caller's promise.
    unsafe { check_struct("tensor", "forebay_tensor tensor = FOREBAY_TENSOR_INIT", place) }?;
    let found = describe(find()?)?;
    // SAFETY: as above, and the caller knows the same struct.
    unsafe { place.write(found) };
    Ok(Status::Ok)
}

/// The description of a batch: see the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_batch_get_info(
    batch: *const BatchHandle,
    info: *mut BatchInfo,
) -> c_int {
    ffi_guard(|| {
        // SAFETY: the caller's promise.
        unsafe { check_struct("info", "forebay_batch_info info = FOREBAY_BATCH_INFO_INIT", info) }?;
        let (_, batch) = registry::batch(batch.addr())?;
        let after = batch.position_after();
        let found = BatchInfo {
            size: size_of::<BatchInfo>(),
            rows: batch.rows(),
            number: batch.number(),
            epoch: batch.epoch(),
            epoch_after: after.epoch,
            samples_after: after.samples,
            payload_bytes: batch.payload_bytes(),
            // At most 64.
            tensor_count: u32::try_from(batch.specs().len()).unwrap_or(u32::MAX),
            is_last_of_epoch: batch.is_last_of_epoch().into(),
        };
        // SAFETY: as above, and the caller knows the same struct.
        unsafe { info.write(found) };
        Ok(Status::Ok)
    })
}

/// A tensor by its index: see the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_batch_get_tensor(
    batch: *const BatchHandle,
    index: u32,
    tensor: *mut TensorInfo,
) -> c_int {
    ffi_guard(|| {
        let (_, batch) = registry::batch(batch.addr())?;
        let find = || at(&batch, index);
        // SAFETY: the caller's promise.
        unsafe { write_tensor(tensor, find) }
    })
}

fn at(batch: &Batch, index: u32) -> Result<Tensor<'_>, Failure> {
    let mut tensors = batch.tensors();
    let count = tensors.len();
    usize::try_from(index).ok().and_then(|index| tensors.nth(index)).ok_or_else(|| Failure {
        status: Status::NoSuchTensor,
        message: format!("tensor {index} was requested and the batch has {count}, counted from 0"),
    })
}

/// A tensor by its name: see the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_batch_find_tensor(
    batch: *const BatchHandle,
    name: *const c_char,
    tensor: *mut TensorInfo,
) -> c_int {
    ffi_guard(|| {
        let (_, batch) = registry::batch(batch.addr())?;
        // SAFETY: the caller's promise.
        let name = unsafe { required("name", name) }?;
        // SAFETY: the caller's promise.
        unsafe { write_tensor(tensor, || batch.require(name).map_err(Failure::from)) }
    })
}

/// A second handle: see the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_batch_retain(
    batch: *const BatchHandle,
    second: *mut *mut BatchHandle,
) -> c_int {
    ffi_guard(|| {
        // SAFETY: the caller's promise.
        unsafe { clear(second, "second") }?;
        let (registry, batch) = registry::batch(batch.addr())?;
        let handle = registry.add_batch(batch);
        // SAFETY: as above.
        unsafe { second.write(std::ptr::without_provenance_mut(handle)) };
        Ok(Status::Ok)
    })
}

/// Releases a handle: see the header.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_batch_release(batch: *mut BatchHandle) -> c_int {
    ffi_guard(|| {
        if !batch.is_null() {
            drop(registry::remove_batch(batch.addr())?);
        }
        Ok(Status::Ok)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `DLDataTypeCode` of dlpack.h, version 1.0: kDLInt 0, kDLUInt 1, kDLFloat 2, kDLBfloat 4, kDLBool 6.
    #[test]
    fn element_types_are_dlpacks() {
        let found = DType::ALL.map(|dtype| {
            let ElementType { code, bits, lanes } = ElementType::of(dtype);
            assert_eq!(lanes, 1);
            (dtype.name(), code, bits)
        });
        let expected = [
            ("uint8", 1, 8),
            ("int8", 0, 8),
            ("uint16", 1, 16),
            ("int16", 0, 16),
            ("int32", 0, 32),
            ("int64", 0, 64),
            ("uint32", 1, 32),
            ("uint64", 1, 64),
            ("float16", 2, 16),
            ("bfloat16", 4, 16),
            ("float32", 2, 32),
            ("float64", 2, 64),
            ("bool", 6, 8),
        ];
        assert_eq!(found, expected);
    }
}
