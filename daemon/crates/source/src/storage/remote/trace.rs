//! What the last request of a call met: kept beside the call, because the crate's errors do not tell statuses, request ids
//! and hosts apart.

use std::cell::RefCell;
use std::time::Duration;

use super::wire::Answered;

/// See the module's head.
#[derive(Debug, Default)]
pub(super) struct Trace {
    /// Bytes of a response that is read whole, such as a page of a listing.
    pub(super) limit_bytes: u64,
    /// The host that was asked last.
    pub(super) host: String,
    /// Whether that was for credentials.
    pub(super) is_credentials: bool,
    /// The number of the keys that it was signed with, where a command gives them.
    pub(super) keys_number: u64,
    /// Why a command gives none.
    pub(super) no_keys: Option<String>,
    /// Whether it was for a part of an object.
    pub(super) has_range: bool,
    /// Its answer, if there was one.
    pub(super) status: Option<u16>,
    /// The error's name in the answer, such as `NoSuchKey`.
    pub(super) code: Option<String>,
    /// The error in words.
    pub(super) message: Option<String>,
    pub(super) request_id: Option<String>,
    pub(super) retry_after: Option<Duration>,
    /// The region that the bucket is in, where the server says so.
    pub(super) region: Option<String>,
    /// The host that it redirects to.
    pub(super) redirect: Option<String>,
    /// The object's length as an answer to a range beyond it tells.
    pub(super) total_bytes: Option<u64>,
    /// What became of the connection.
    pub(super) transport: Option<String>,
    /// The answer, if its body is read from its connection.
    pub(super) answered: Option<Answered>,
}

tokio::task_local! {
    static CURRENT: RefCell<Trace>;
}

impl Trace {
    /// Runs a call, and gives what its last request met.
    pub(super) async fn of<T>(limit_bytes: u64, call: impl Future<Output = T>) -> (T, Self) {
        let start = RefCell::new(Self { limit_bytes, ..Self::default() });
        let traced = async {
            let result = call.await;
            (result, CURRENT.with(RefCell::take))
        };
        CURRENT.scope(start, traced).await
    }

    /// Changes the current call's. Outside of a call nothing is kept.
    pub(super) fn update<T>(change: impl FnOnce(&mut Self) -> T) -> Option<T> {
        CURRENT.try_with(|current| change(&mut current.borrow_mut())).ok()
    }
}
