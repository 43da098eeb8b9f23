//! Every key that any table was asked for on this thread, so that a test can compare them with the documentation.

use std::cell::RefCell;
use std::collections::BTreeSet;

thread_local! {
    static KEYS: RefCell<BTreeSet<String>> = const { RefCell::new(BTreeSet::new()) };
}

/// Remembers a key's full path.
pub(super) fn record(path: String) {
    KEYS.with_borrow_mut(|keys| keys.insert(path));
}

/// Gives all that were recorded and forgets them.
pub(super) fn take() -> BTreeSet<String> {
    KEYS.take()
}
