//! The behaviour of a loader in a forked child. A separate program, so that no thread of another test holds a lock at
//! the fork.

#[path = "support/stub.rs"]
mod stub;

use forebay_client::{Error, Loader};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};
use stub::{Script, Stub};

/// The child's findings, as its exit status.
fn look_around(mut loader: Loader, batch: forebay_client::Batch) -> i32 {
    if loader.next_batch().err() != Some(Error::Forked) {
        return 1;
    }
    if loader.stats().err() != Some(Error::Forked) {
        return 2;
    }
    // Its memory is not mapped here.
    if batch.require("index").unwrap().as_slice::<i64>().err() != Some(Error::Forked) {
        return 3;
    }
    // Neither may reach the daemon.
    drop(batch);
    drop(loader);
    0
}

#[test]
#[allow(unsafe_code)]
fn child_can_neither_take_nor_return() {
    let stub = Stub::start(Script::default());
    let mut loader = Loader::attach(stub.path.as_path()).unwrap();
    let batch = loader.next_batch().unwrap().unwrap();
    // SAFETY: the child uses only memory that fork copies (glibc keeps its allocator usable) and ends by `_exit`.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            let status = look_around(loader, batch);
            // SAFETY: ends the child at once, without the parent's exit handlers.
            unsafe { nix::libc::_exit(status) };
        }
        ForkResult::Parent { child } => {
            assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0));
        }
    }
    let mut count = 1;
    while loader.next_batch().unwrap().is_some() {
        count += 1;
    }
    assert_eq!(count, 6, "the parent goes on as if nothing had been");
    // If the child had returned the slot, the daemon would have filled it again while the parent reads it.
    let indices = batch.require("index").unwrap();
    assert_eq!(indices.as_slice::<i64>().unwrap(), [0, 1, 2, 3]);
    drop(batch);
    drop(loader);
    let report = stub.finish();
    assert!(report.violations.is_empty(), "{:?}", report.violations);
}
