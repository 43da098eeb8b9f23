//! This program, started again with a hidden command.
//!
//! It is the program that runs, even if its file has been replaced since, as an upgrade does: another version would have
//! other messages.

use std::ffi::{CString, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// The kernel's link to the program of the process that opens it.
const OWN: &str = "/proc/self/exe";

/// The command that starts it, called as this process was.
pub(crate) fn command() -> Command {
    let mut command = Command::new(OWN);
    if let Some(name) = called() {
        command.arg0(name);
    }
    command
}

/// Names this process after its program, as lists of processes show it. The kernel has named it after the link.
pub(crate) fn take_name() {
    let called = called().unwrap_or_default();
    let name = Path::new(&called).file_name().and_then(|name| CString::new(name.as_bytes()).ok());
    if let Some(name) = name {
        // A longer name is cut off, as the kernel would.
        let _ = nix::sys::prctl::set_name(&name);
    }
}

fn called() -> Option<OsString> {
    std::env::args_os().next().filter(|name| !name.is_empty())
}
