//! The options of a loader: `forebay_options` of the header.

#![allow(unsafe_code)]

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use forebay_client::{Builder, Loader, State, Target};
use forebay_protocol::sync::{AtomicBool, Ordering};

use crate::status::Failure;
use crate::text::{check_place, optional, required};

/// One override of a key of the configuration.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Override {
    /// The dotted key.
    pub key: *const c_char,
    /// Its value as JSON text.
    pub json: *const c_char,
}

/// The options of a loader; the header documents each field.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
#[allow(missing_docs, reason = "documented where its users look, in forebay.h")]
pub struct Options {
    pub size: usize,
    pub target: *const c_char,
    pub stream: *const c_char,
    pub json: *const c_char,
    pub folder: *const c_char,
    pub overrides: *const Override,
    pub override_count: usize,
    pub state: *const c_char,
    pub force: c_int,
    pub rank: u32,
    pub world_size: u32,
    pub timeout_seconds: f64,
    pub program: *const c_char,
    pub interrupt: Option<extern "C" fn(*mut c_void) -> c_int>,
    pub interrupt_context: *mut c_void,
    pub shared: *const c_char,
    pub trainer: *const c_char,
    pub batch_size: u32,
}

/// The caller's context pointer, which is sent between threads.
struct Context(*mut c_void);

// SAFETY: this library passes the pointer back and never dereferences it; the header says that the callback is called on
// the waiting thread.
unsafe impl Send for Context {}

impl Context {
    fn pointer(&self) -> *mut c_void {
        self.0
    }
}

/// Checks a pointer to a struct of the caller, and its size, which tells whether header and library match.
///
/// # Safety
/// `place` is null, or its first member, the size, may be read.
pub(crate) unsafe fn check_struct<T>(
    name: &str,
    initialiser: &str,
    place: *const T,
) -> Result<(), Failure> {
    check_place(name, place)?;
    // SAFETY: checked to be neither null nor misaligned, and the rest is the caller's promise.
    let size = unsafe { place.cast::<usize>().read() };
    if size == size_of::<T>() {
        return Ok(());
    }
    Err(Failure::argument(format!(
        "`{name}->size` is {size} and this library, {}, has {}: initialise it with `{initialiser}`, or compile the program \
         with the header of this release",
        env!("CARGO_PKG_VERSION"),
        size_of::<T>()
    )))
}

/// Reads the options.
///
/// # Safety
/// `options` is null or points to what the header says.
pub(crate) unsafe fn read(
    options: *const Options,
    closing: &Arc<AtomicBool>,
) -> Result<Builder, Failure> {
    // SAFETY: the caller's promise; after the check the caller knows the same struct.
    let options = unsafe {
        check_struct("options", "forebay_options options = FOREBAY_OPTIONS_INIT", options)?;
        options.read()
    };

    // SAFETY: the caller's promise covers every string of the struct.
    let mut builder = Loader::builder(unsafe { target(&options) }?);
    match (options.rank, options.world_size) {
        (0, 0) => {}
        (rank, 0) => {
            return Err(Failure::argument(format!(
                "rank {rank} was given without `world_size`; give both, or leave both 0 for the launcher's values"
            )));
        }
        (rank, world_size) => builder = builder.rank(rank, world_size),
    }
    // SAFETY: as above.
    if let Some(state) = unsafe { optional("state", options.state) }? {
        builder = builder.state(State::from_json(state)?, options.force != 0);
    }
    if options.timeout_seconds != 0.0 {
        let timeout = Duration::try_from_secs_f64(options.timeout_seconds).map_err(|error| {
            Failure::argument(format!("`timeout_seconds` = {}: {error}", options.timeout_seconds))
        })?;
        builder = builder.timeout(timeout);
    }
    if options.override_count > 0 {
        check_place("overrides", options.overrides)?;
    }
    for index in 0..options.override_count {
        // SAFETY: the caller's promise: `override_count` overrides of two strings each.
        let (key, json) = unsafe {
            let entry = options.overrides.add(index).read();
            (required("overrides[].key", entry.key)?, required("overrides[].json", entry.json)?)
        };
        builder = builder.override_key(key, json);
    }
    if !options.program.is_null() {
        // SAFETY: not null, and the rest is the caller's promise.
        let program = unsafe { CStr::from_ptr(options.program) };
        builder = builder.program(Path::new(OsStr::from_bytes(program.to_bytes())));
    }
    // SAFETY: as above.
    let (shared, trainer) =
        unsafe { (optional("shared", options.shared)?, optional("trainer", options.trainer)?) };
    if let Some(name) = shared {
        builder = builder.shared(name);
    }
    builder = builder.trainer(trainer.unwrap_or_default());
    if options.batch_size > 0 {
        builder = builder.batch_size(options.batch_size);
    }
    let closing = Arc::clone(closing);
    let (callback, context) = (options.interrupt, Context(options.interrupt_context));
    Ok(builder.interrupt(move || {
        // Relaxed: an independent flag.
        closing.load(Ordering::Relaxed)
            || callback.is_some_and(|callback| callback(context.pointer()) != 0)
    }))
}

/// The target of the attach.
///
/// # Safety
/// The strings are null or end with a null byte.
unsafe fn target(options: &Options) -> Result<Target, Failure> {
    // SAFETY: the caller's promise.
    let (target, stream, json, folder) = unsafe {
        (
            optional("target", options.target)?,
            optional("stream", options.stream)?,
            optional("json", options.json)?,
            optional("folder", options.folder)?,
        )
    };
    match (target, stream, json, folder) {
        (None, None, Some(json), folder) => Ok(Target::json(json, folder.map(Path::new))),
        (_, _, Some(_), _) => Err(Failure::argument(
            "`json` is a whole configuration: leave `target` and `stream` null beside it",
        )),
        (_, _, None, Some(_)) => Err(Failure::argument(
            "`folder` is where relative paths of `json` start, and `json` is null; paths of a file start at its folder",
        )),
        (None, stream, None, None) => Ok(Target::Stream(stream.map(str::to_owned))),
        (Some(word), stream, None, None) => match (Target::parse(word), stream) {
            (target, None) => Ok(target),
            (Target::Socket(path, _), Some(stream)) => {
                Ok(Target::Socket(path, Some(stream.to_owned())))
            }
            (_, Some(stream)) => Err(Failure::argument(format!(
                "stream `{stream}` was given beside `{word}`, which is no socket; leave `stream` null for a configuration, \
                 and `target` for a stream of `forebay run`"
            ))),
        },
    }
}
