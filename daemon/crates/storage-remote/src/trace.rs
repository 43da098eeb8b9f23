//! A record of the last request of a call. It is kept separately because `object_store`'s errors do not contain status,
//! request id and host.

use std::cell::RefCell;
use std::time::Duration;

use super::pages::LeftOut;
use super::wire::Answered;
use forebay_storage::error::RetryClass;

/// See the module's head.
#[derive(Debug, Default)]
pub(super) struct Trace {
    /// Limit of a response that is read whole, such as a page of a listing.
    pub(super) limit_bytes: u64,
    /// The host of the request.
    pub(super) host: String,
    /// Whether the request was for credentials.
    pub(super) is_credentials: bool,
    /// The number of the keys that signed it, if a command provides them.
    pub(super) keys_number: u64,
    /// Why the command provides no keys.
    pub(super) no_keys: Option<String>,
    /// Whether it requested a part of an object.
    pub(super) has_range: bool,
    /// The response's status, if there was a response.
    pub(super) status: Option<u16>,
    /// The error code in the response, such as `NoSuchKey`.
    pub(super) code: Option<String>,
    /// The error's message.
    pub(super) message: Option<String>,
    pub(super) request_id: Option<String>,
    pub(super) retry_after: Option<Duration>,
    /// The bucket's region, if the server reports it.
    pub(super) region: Option<String>,
    /// The host of a redirect.
    pub(super) redirect: Option<String>,
    /// The object's length, from the response to a range past its end.
    pub(super) total_bytes: Option<u64>,
    /// Names that were left out of a page of a listing.
    pub(super) left_out: Option<LeftOut>,
    /// Why the connection failed.
    pub(super) transport: Option<String>,
    /// What the store's own client says of the failure, instead of the general words.
    pub(super) refusal: Option<Refusal>,
    /// The response, if its body is read from its connection.
    pub(super) answered: Option<Answered>,
}

/// A failure in the words of a store's client.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) what: String,
    pub(super) class: RetryClass,
    pub(super) retry_after: Option<Duration>,
}

tokio::task_local! {
    static CURRENT: RefCell<Trace>;
}

impl Trace {
    /// Runs a call and returns the trace of its last request, too.
    pub(super) async fn of<T>(limit_bytes: u64, call: impl Future<Output = T>) -> (T, Self) {
        let start = RefCell::new(Self { limit_bytes, ..Self::default() });
        let traced = async {
            let result = call.await;
            (result, CURRENT.with(RefCell::take))
        };
        CURRENT.scope(start, traced).await
    }

    /// Changes the current call's trace. Outside of a call nothing is recorded.
    pub(super) fn update<T>(change: impl FnOnce(&mut Self) -> T) -> Option<T> {
        CURRENT.try_with(|current| change(&mut current.borrow_mut())).ok()
    }
}
