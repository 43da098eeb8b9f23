//! A process at its limit of open files: a separate test program, because the limit is per process.

use std::fs::File;
use std::os::fd::AsFd;

use forebay_protocol::frames::DaemonFrame;
use forebay_protocol::socket::{Connection, Incoming, SocketError};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

#[test]
fn lost_descriptors_are_distinguished_from_an_invalid_frame() {
    let (ours, theirs) = Connection::pair().unwrap();
    let null = File::open("/dev/null").unwrap();
    theirs.send(&DaemonFrame::Kept, &[null.as_fd(), null.as_fd()]).unwrap();
    theirs.send(&DaemonFrame::Kept, &[null.as_fd()]).unwrap();
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, 64, hard).unwrap();
    let files: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    let error = ours.receive::<DaemonFrame>().unwrap_err();
    assert!(matches!(error, SocketError::DescriptorsLost), "{error}");
    assert!(error.to_string().contains("ulimit -n"), "{error}");
    drop(files);
    let Ok(Incoming::Frame(DaemonFrame::Kept, received)) = ours.receive::<DaemonFrame>() else {
        panic!("the next frame is whole");
    };
    assert_eq!(received.len(), 1);
}
