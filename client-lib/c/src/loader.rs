//! The functions of the header on a loader.
//!
//! # Safety
//! Pointers are as the header says: null, or valid for their use. Handles may have any value.

#![allow(unsafe_code)]
#![allow(
    clippy::missing_safety_doc,
    reason = "one contract for all: the head of this file and the header"
)]

use std::ffi::{c_char, c_int};
use std::sync::Arc;

use forebay_client::{Batch, Error, Loader, Next, Position, State};
use forebay_protocol::sync::AtomicBool;
use serde_json::{Value, json};

use crate::batch::BatchHandle;
use crate::options::{self, Options, check_struct};
use crate::registry::{self, Registry, Session};
use crate::status::{Status, ffi_guard};
use crate::text::{self, clear};

/// `forebay_loader` of the header: an opaque handle, never dereferenced.
#[derive(Debug)]
#[repr(C)]
pub struct LoaderHandle {
    nothing: [u8; 0],
}

/// `forebay_loader_info` of the header.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
#[allow(missing_docs, reason = "documented where its users look, in forebay.h")]
pub struct LoaderInfo {
    pub size: usize,
    pub batches_per_epoch: u64,
    pub samples_per_epoch: u64,
    pub epochs: u64,
    pub held: u64,
    pub given_up: u64,
    pub restarts: u64,
    pub batch_size: u32,
    pub tensor_count: u32,
    pub slots: u32,
    pub hold: u32,
    pub rank: u32,
    pub world_size: u32,
    pub daemon_process: u32,
}

/// Calls a method of a loader that returns nothing.
fn call(loader: *mut LoaderHandle, work: impl FnOnce(&mut Loader) -> Result<(), Error>) -> c_int {
    ffi_guard(|| {
        registry::session(loader.addr())?.1.run(work)?;
        Ok(Status::Ok)
    })
}

/// Calls a method of a loader and returns its text to the caller.
///
/// # Safety
/// `place` is null or may be written to.
unsafe fn call_for_text(
    loader: *mut LoaderHandle,
    place: *mut *mut c_char,
    work: impl FnOnce(&mut Loader) -> Result<String, Error>,
) -> c_int {
    ffi_guard(|| {
        // SAFETY: the caller's promise.
        unsafe { clear(place, "text") }?;
        let (registry, session) = registry::session(loader.addr())?;
        let text = session.run(work)?;
        // SAFETY: the caller's promise.
        unsafe { text::write_text(registry, text, place) }
    })
}

/// Creates a handle of a batch and writes it to the caller's pointer.
///
/// # Safety
/// `place` was checked and may be written to.
unsafe fn write_batch(
    registry: &Registry,
    batch: Option<Batch>,
    place: *mut *mut BatchHandle,
) -> Status {
    let Some(batch) = batch else { return Status::End };
    let handle = registry.add_batch(batch);
    // SAFETY: the caller's promise.
    unsafe { place.write(std::ptr::without_provenance_mut(handle)) };
    Status::Ok
}

/// Opens a loader: see the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_loader_open(
    options: *const Options,
    loader: *mut *mut LoaderHandle,
) -> c_int {
    ffi_guard(|| {
        // SAFETY: the caller's promise, here and below.
        unsafe { clear(loader, "loader") }?;
        let closing = Arc::new(AtomicBool::new(false));
        // SAFETY: as above.
        let builder = unsafe { options::read(options, &closing) }?;
        let registry = Registry::for_opening()?;
        let handle = registry.add_loader(Session::new(builder.attach()?, closing));
        // SAFETY: as above; checked by `clear`.
        unsafe { loader.write(std::ptr::without_provenance_mut(handle)) };
        Ok(Status::Ok)
    })
}

/// Closes a loader: see the header.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_loader_close(loader: *mut LoaderHandle) -> c_int {
    ffi_guard(|| {
        if !loader.is_null() {
            registry::remove_session(loader.addr())?.close();
        }
        Ok(Status::Ok)
    })
}

/// The next batch: see the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_loader_next(
    loader: *mut LoaderHandle,
    batch: *mut *mut BatchHandle,
) -> c_int {
    ffi_guard(|| {
        // SAFETY: the caller's promise.
        unsafe { clear(batch, "batch") }?;
        let (registry, session) = registry::session(loader.addr())?;
        let next = session.run(Loader::next_batch)?;
        // SAFETY: as above; checked by `clear`.
        Ok(unsafe { write_batch(registry, next, batch) })
    })
}

/// The next batch if it is ready: see the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_loader_try_next(
    loader: *mut LoaderHandle,
    batch: *mut *mut BatchHandle,
) -> c_int {
    ffi_guard(|| {
        // SAFETY: the caller's promise.
        unsafe { clear(batch, "batch") }?;
        let (registry, session) = registry::session(loader.addr())?;
        let next = match session.try_run(Loader::try_next)? {
            None | Some(Next::Waiting) => return Ok(Status::Waiting),
            Some(Next::Batch(next)) => Some(next),
            Some(Next::End) => None,
        };
        // SAFETY: as above; checked by `clear`.
        Ok(unsafe { write_batch(registry, next, batch) })
    })
}

/// Waits for up to 50 ms: see the header.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_loader_wait(loader: *mut LoaderHandle) -> c_int {
    call(loader, Loader::wait)
}

/// Begins the next epoch: see the header.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_loader_begin_epoch(loader: *mut LoaderHandle) -> c_int {
    call(loader, Loader::begin_epoch)
}

/// Seeks to an epoch: see the header.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_loader_set_epoch(loader: *mut LoaderHandle, epoch: u64) -> c_int {
    call(loader, |loader| loader.set_epoch(epoch))
}

/// Seeks to a position: see the header.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_loader_seek(
    loader: *mut LoaderHandle,
    epoch: u64,
    samples: u64,
) -> c_int {
    call(loader, |loader| loader.seek(Position { epoch, samples }))
}

/// The state: see the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_loader_state(
    loader: *mut LoaderHandle,
    held_back: usize,
    json: *mut *mut c_char,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { call_for_text(loader, json, |loader| Ok(loader.state(held_back)?.to_json())) }
}

/// Resumes from a state: see the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_loader_load_state(
    loader: *mut LoaderHandle,
    json: *const c_char,
    force: c_int,
) -> c_int {
    ffi_guard(|| {
        let (_, session) = registry::session(loader.addr())?;
        // SAFETY: the caller's promise.
        let state = State::from_json(unsafe { text::required("json", json) }?)?;
        session.run(|loader| loader.load_state(&state, force != 0))?;
        Ok(Status::Ok)
    })
}

/// The statistics: see the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_loader_stats(
    loader: *mut LoaderHandle,
    json: *mut *mut c_char,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { call_for_text(loader, json, statistics) }
}

/// The daemon's statistics, and under `client` this loader's: as in Python, without `interpreter_lock_seconds`.
fn statistics(loader: &mut Loader) -> Result<String, Error> {
    let text = loader.stats()?;
    let mut statistics: Value = serde_json::from_str(&text).map_err(|error| {
        Error::Protocol(format!("the daemon's statistics are not JSON: {error}"))
    })?;
    let waits = loader.wait_statistics();
    let own = json!({
        "batches": waits.batches(),
        "batches_waited_for": waits.waited(),
        "bytes": waits.payload_bytes(),
        "held": loader.held(),
        "given_up": loader.given_up(),
        "restarts": loader.restarts(),
        "wait_seconds": {
            "total": waits.total().as_secs_f64(),
            "after_start": waits.after_start().as_secs_f64(),
            "p50": waits.quantile(0.5).as_secs_f64(),
            "p99": waits.quantile(0.99).as_secs_f64(),
        },
    });
    if let Some(object) = statistics.as_object_mut() {
        object.insert("client".into(), own);
    }
    Ok(statistics.to_string())
}

/// The terms of a session: see the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_loader_get_info(
    loader: *mut LoaderHandle,
    info: *mut LoaderInfo,
) -> c_int {
    ffi_guard(|| {
        // SAFETY: the caller's promise.
        unsafe {
            check_struct("info", "forebay_loader_info info = FOREBAY_LOADER_INFO_INIT", info)
        }?;
        let found = registry::session(loader.addr())?.1.run(|loader| Ok(describe(loader)))?;
        // SAFETY: as above, and the caller knows the same struct.
        unsafe { info.write(found) };
        Ok(Status::Ok)
    })
}

fn describe(loader: &Loader) -> LoaderInfo {
    let (terms, placement) = (loader.terms(), loader.placement());
    LoaderInfo {
        size: size_of::<LoaderInfo>(),
        batches_per_epoch: loader.batches_per_epoch(),
        samples_per_epoch: terms.samples_per_epoch,
        epochs: terms.epochs.unwrap_or(0),
        held: loader.held(),
        given_up: loader.given_up(),
        restarts: loader.restarts(),
        batch_size: terms.batch_size,
        // At most 64.
        tensor_count: u32::try_from(terms.tensors.len()).unwrap_or(u32::MAX),
        slots: terms.slots.into(),
        hold: terms.hold.into(),
        rank: placement.rank,
        world_size: placement.world_size,
        daemon_process: loader.private_process().unwrap_or(0),
    }
}
