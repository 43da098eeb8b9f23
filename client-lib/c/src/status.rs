//! Error codes, each thread's last error, and the guard that stops panics.

#![allow(unsafe_code)]

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use forebay_client::Error;

macro_rules! statuses {
    ($($(#[$documentation:meta])* $variant:ident = $code:literal, $constant:literal, $name:literal;)+) => {
        /// What a function returns: `forebay_status` of the header.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(i32)]
        pub enum Status {
            $($(#[$documentation])* $variant = $code,)+
        }

        impl Status {
            /// Each status, the constant of the header, and its name.
            pub(crate) const ALL: &'static [(Self, &'static str, &'static CStr)] =
                &[$((Self::$variant, $constant, $name),)+];
        }
    };
}

statuses! {
    /// Done.
    Ok = 0, "FOREBAY_OK", c"ok";
    /// The epoch has ended.
    End = 1, "FOREBAY_END", c"end";
    /// Nothing is ready.
    Waiting = 2, "FOREBAY_WAITING", c"waiting";
    /// An argument is null, stale or invalid.
    Argument = -1, "FOREBAY_ERROR_ARGUMENT", c"argument";
    /// As [`Error::Config`].
    Config = -2, "FOREBAY_ERROR_CONFIG", c"config";
    /// As [`Error::BadSample`].
    BadSample = -3, "FOREBAY_ERROR_BAD_SAMPLE", c"bad-sample";
    /// As [`Error::Storage`].
    Storage = -4, "FOREBAY_ERROR_STORAGE", c"storage";
    /// As [`Error::Memory`].
    Memory = -5, "FOREBAY_ERROR_MEMORY", c"memory";
    /// As [`Error::Taken`].
    Taken = -6, "FOREBAY_ERROR_TAKEN", c"taken";
    /// As [`Error::Version`].
    Version = -7, "FOREBAY_ERROR_VERSION", c"version";
    /// As [`Error::DaemonLost`].
    DaemonLost = -8, "FOREBAY_ERROR_DAEMON_LOST", c"daemon-lost";
    /// As [`Error::Timeout`].
    Timeout = -9, "FOREBAY_ERROR_TIMEOUT", c"timeout";
    /// As [`Error::HoldLimit`].
    HoldLimit = -10, "FOREBAY_ERROR_HOLD_LIMIT", c"hold-limit";
    /// As [`Error::StateMismatch`].
    StateMismatch = -11, "FOREBAY_ERROR_STATE_MISMATCH", c"state-mismatch";
    /// As [`Error::EpochsFinished`].
    EpochsFinished = -12, "FOREBAY_ERROR_EPOCHS_FINISHED", c"epochs-finished";
    /// As [`Error::Forked`].
    Forked = -13, "FOREBAY_ERROR_FORKED", c"forked";
    /// As [`Error::Interrupted`].
    Interrupted = -14, "FOREBAY_ERROR_INTERRUPTED", c"interrupted";
    /// As [`Error::Closed`].
    Closed = -15, "FOREBAY_ERROR_CLOSED", c"closed";
    /// As [`Error::NoSuchTensor`].
    NoSuchTensor = -16, "FOREBAY_ERROR_NO_SUCH_TENSOR", c"no-such-tensor";
    /// As [`Error::Protocol`].
    Protocol = -17, "FOREBAY_ERROR_PROTOCOL", c"protocol";
    /// An internal error.
    Internal = -18, "FOREBAY_ERROR_INTERNAL", c"internal";
    /// As [`Error::Stage`].
    Stage = -19, "FOREBAY_ERROR_STAGE", c"stage";
}

/// The failure of a function.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: Status,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn argument(message: impl Into<String>) -> Self {
        Self { status: Status::Argument, message: message.into() }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let status = match &error {
            Error::Config(_) => Status::Config,
            Error::BadSample(_) => Status::BadSample,
            Error::Stage(_) => Status::Stage,
            Error::Storage(_) => Status::Storage,
            Error::Memory(_) => Status::Memory,
            Error::Taken(_) => Status::Taken,
            Error::Version(_) => Status::Version,
            Error::DaemonLost(_) => Status::DaemonLost,
            Error::Timeout { .. } => Status::Timeout,
            Error::HoldLimit { .. } => Status::HoldLimit,
            Error::StateMismatch(_) => Status::StateMismatch,
            Error::EpochsFinished { .. } => Status::EpochsFinished,
            Error::Forked => Status::Forked,
            Error::Interrupted(_) => Status::Interrupted,
            Error::Closed => Status::Closed,
            Error::NoSuchTensor(_) => Status::NoSuchTensor,
            Error::Protocol(_) => Status::Protocol,
            _ => Status::Internal,
        };
        Self { status, message: error.to_string() }
    }
}

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

/// Runs the body of a function of the header. A failure or a panic becomes an error code and this thread's last error.
pub(crate) fn ffi_guard(work: impl FnOnce() -> Result<Status, Failure>) -> c_int {
    // No inconsistent state is used after a panic: the loader is poisoned (`registry`), and the tables of handles change
    // in single operations.
    let failure = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(status)) => return status as c_int,
        Ok(Err(failure)) => failure,
        Err(panic) => describe_panic(panic),
    };
    // A null byte would truncate the message.
    let message = CString::new(failure.message.replace('\0', "\u{fffd}")).unwrap_or_default();
    // Fails only while the thread ends.
    let _ = LAST_ERROR.try_with(|last| last.replace(message));
    failure.status as c_int
}

fn describe_panic(panic: Box<dyn std::any::Any + Send>) -> Failure {
    let words = match panic.downcast::<String>() {
        Ok(words) => *words,
        Err(panic) => match panic.downcast::<&'static str>() {
            Ok(words) => (*words).to_owned(),
            Err(panic) => {
                // Dropping an unknown payload may panic again.
                std::mem::forget(panic);
                "of an unknown kind".to_owned()
            }
        },
    };
    Failure {
        status: Status::Internal,
        message: format!("internal error: {words}; please report it"),
    }
}

/// The text of this thread's last error: see the header.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_last_error() -> *const c_char {
    // The text stays at this address until the next failure of this thread replaces it.
    LAST_ERROR.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// The name of a status: see the header.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_status_name(status: c_int) -> *const c_char {
    let known = Status::ALL.iter().find(|(known, _, _)| *known as c_int == status);
    known.map_or(c"unknown", |(_, _, name)| name).as_ptr()
}

/// The library's version: see the header.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => panic!("the version has a null byte"),
        };
    VERSION.as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last_error() -> String {
        // SAFETY: the function returns a text with a null byte at its end, which nothing replaces in the meantime.
        unsafe { CStr::from_ptr(forebay_last_error()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn panic_becomes_an_error() {
        assert_eq!(last_error(), "");
        let status = ffi_guard(|| panic!("{} on purpose", "a panic"));
        assert_eq!(status, Status::Internal as c_int);
        assert!(last_error().contains("a panic on purpose; please report"), "{}", last_error());
        let status = ffi_guard(|| std::panic::panic_any(17));
        assert_eq!(status, Status::Internal as c_int);
        assert!(last_error().contains("unknown kind"));
    }

    #[test]
    fn last_error_is_per_thread_and_survives_success() {
        let fail = |words: &'static str| ffi_guard(|| Err(Failure::argument(words)));
        assert_eq!(fail("here"), Status::Argument as c_int);
        std::thread::spawn(move || {
            assert_eq!(last_error(), "");
            fail("th\0ere");
            assert_eq!(last_error(), "th\u{fffd}ere");
        })
        .join()
        .unwrap();
        assert_eq!(ffi_guard(|| Ok(Status::Ok)), 0);
        assert_eq!(last_error(), "here");
    }
}
