//! The private daemon's log on its way to this process's standard error.
//!
//! The daemon writes into a pipe; the keeper's thread passes on what came, drops what standard error has no room for, and
//! remembers the last lines.

use std::collections::VecDeque;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::process::ChildStderr;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// The lines that are remembered.
const LAST_LINES: usize = 8;
/// The most bytes of a line that are remembered.
const LINE_BYTES: usize = 400;
/// What a pipe takes without waiting once it says that it has room (PIPE_BUF).
const CHUNK_BYTES: usize = 4096;

/// One daemon's log.
#[derive(Debug)]
pub(super) struct LogRelay {
    /// `None` once the daemon has closed it.
    pipe: Option<ChildStderr>,
    last: VecDeque<String>,
    line: Vec<u8>,
}

impl LogRelay {
    pub(super) fn new(pipe: Option<ChildStderr>) -> Self {
        let pipe = pipe.filter(|pipe| fcntl(pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).is_ok());
        Self { pipe, last: VecDeque::new(), line: Vec::new() }
    }

    /// To be waited for.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().map(AsFd::as_fd)
    }

    /// Passes on what is there.
    pub(super) fn pass_on(&mut self) {
        let mut bytes = [0; CHUNK_BYTES];
        while let Some(pipe) = &mut self.pipe {
            match pipe.read(&mut bytes) {
                Ok(0) => self.pipe = None,
                Ok(length) => {
                    write_to_stderr(&bytes[..length]);
                    self.remember(&bytes[..length]);
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                Err(_) => self.pipe = None,
            }
        }
    }

    fn remember(&mut self, bytes: &[u8]) {
        for byte in bytes {
            if *byte != b'\n' {
                if self.line.len() < LINE_BYTES {
                    self.line.push(*byte);
                }
                continue;
            }
            let line = String::from_utf8_lossy(&self.line).trim().to_owned();
            self.line.clear();
            if line.is_empty() {
                continue;
            }
            if self.last.len() == LAST_LINES {
                self.last.pop_front();
            }
            self.last.push_back(line);
        }
    }

    /// The last lines as the end of a sentence; empty when there are none.
    pub(super) fn last_words(&self) -> String {
        if self.last.is_empty() {
            return String::new();
        }
        let lines: Vec<&str> = self.last.iter().map(String::as_str).collect();
        format!("; the last lines of its log:\n  {}", lines.join("\n  "))
    }
}

/// Writes if there is room: a program whose standard error nobody reads shall not lose its daemon for it.
fn write_to_stderr(bytes: &[u8]) {
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
    fn the_last_lines_are_remembered_and_long_ones_cut() {
        let script =
            "for i in 1 2 3 4 5 6 7 8 9; do echo line $i >&2; done; printf '%01000d\\n' 7 >&2";
        let mut child =
            Command::new("sh").args(["-c", script]).stderr(Stdio::piped()).spawn().unwrap();
        let mut relay = LogRelay::new(child.stderr.take());
        child.wait().unwrap();
        relay.pass_on();
        assert!(relay.descriptor().is_none(), "the other end is closed");
        let words = relay.last_words();
        assert!(words.contains("line 3") && !words.contains("line 2"), "{words}");
        assert!(words.len() < 600, "{words}");
    }
}
