//! Forwards the private daemon's log to this process's standard error.
//!
//! The daemon writes to a pipe; the supervisor's thread forwards it, drops what standard error has no room for, and
//! keeps the last lines.

use std::collections::VecDeque;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::process::ChildStderr;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// The number of lines that are kept.
const TAIL_LINES: usize = 8;
/// The maximum number of bytes that are kept of a line.
const MAX_LINE_BYTES: usize = 400;
/// The size that a writable pipe accepts without blocking (PIPE_BUF).
const CHUNK_BYTES: usize = 4096;

/// One daemon's log.
#[derive(Debug)]
pub(super) struct LogRelay {
    /// `None` once the daemon has closed it.
    pipe: Option<ChildStderr>,
    tail: VecDeque<String>,
    line: Vec<u8>,
}

impl LogRelay {
    pub(super) fn new(pipe: Option<ChildStderr>) -> Self {
        let pipe = pipe.filter(|pipe| fcntl(pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).is_ok());
        Self { pipe, tail: VecDeque::new(), line: Vec::new() }
    }

    /// The pipe, to be polled.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().map(AsFd::as_fd)
    }

    /// Forwards what is available.
    pub(super) fn forward(&mut self) {
        let mut bytes = [0; CHUNK_BYTES];
        while let Some(pipe) = &mut self.pipe {
            match pipe.read(&mut bytes) {
                Ok(0) => self.pipe = None,
                Ok(length) => {
                    write_to_stderr(&bytes[..length]);
                    self.record(&bytes[..length]);
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                Err(_) => self.pipe = None,
            }
        }
    }

    fn record(&mut self, bytes: &[u8]) {
        for byte in bytes {
            if *byte != b'\n' {
                if self.line.len() < MAX_LINE_BYTES {
                    self.line.push(*byte);
                }
                continue;
            }
            let line = String::from_utf8_lossy(&self.line).trim().to_owned();
            self.line.clear();
            if line.is_empty() {
                continue;
            }
            if self.tail.len() == TAIL_LINES {
                self.tail.pop_front();
            }
            self.tail.push_back(line);
        }
    }

    /// The last lines, to be appended to a message; empty when there are none.
    pub(super) fn tail(&self) -> String {
        if self.tail.is_empty() {
            return String::new();
        }
        let lines: Vec<&str> = self.tail.iter().map(String::as_str).collect();
        format!("; the last lines of its log:\n  {}", lines.join("\n  "))
    }
}

/// Writes only if there is room: a full standard error must not block its caller.
pub(crate) fn write_to_stderr(bytes: &[u8]) {
    let stderr = std::io::stderr();
    let mut watched = [PollFd::new(stderr.as_fd(), PollFlags::POLLOUT)];
    if poll(&mut watched, PollTimeout::ZERO).is_ok_and(|ready| ready > 0) {
        let _ = nix::unistd::write(&stderr, bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn last_lines_are_kept_and_long_lines_truncated() {
        let script =
            "for i in 1 2 3 4 5 6 7 8 9; do echo line $i >&2; done; printf '%01000d\\n' 7 >&2";
        let mut child =
            Command::new("sh").args(["-c", script]).stderr(Stdio::piped()).spawn().unwrap();
        let mut relay = LogRelay::new(child.stderr.take());
        child.wait().unwrap();
        relay.forward();
        assert!(relay.descriptor().is_none(), "the other end is closed");
        let tail = relay.tail();
        assert!(tail.contains("line 3") && !tail.contains("line 2"), "{tail}");
        assert!(tail.len() < 600, "{tail}");
    }
}
