//! A SOCK_SEQPACKET connection: each datagram is one frame, in order, with optional descriptors.
//!
//! Non-blocking on both sides; the connection's owner waits for readiness.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType,
    UnixAddr, accept4, bind, connect, listen, recvmsg, sendmsg, socket, socketpair,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::wire::{DOORBELL, MAX_FRAME_BYTES, WireError, decode, encode};

/// The maximum number of descriptors of a frame.
pub const MAX_DESCRIPTORS: usize = 4;
/// The kernel's maximum per datagram (SCM_MAX_FD). The receive buffer has room for all of them: if it is too small, the
/// kernel leaves unreported descriptors open in this process.
const KERNEL_MAX_DESCRIPTORS: usize = 253;

/// A failed operation on a connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SocketError {
    /// The peer closed the connection or died.
    #[error("the connection was closed by the other side")]
    Closed,
    /// An invalid frame.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The kernel refused a call.
    #[error("{call} on the control socket failed: {source}")]
    Call {
        /// The system call.
        call: &'static str,
        /// The kernel's reason.
        source: io::Error,
    },
    /// More descriptors or bytes than a frame's maximum.
    #[error("a control frame has more bytes or descriptors than allowed")]
    Oversize,
    /// The frame's descriptors could not be received.
    #[error(
        "the descriptors of a control frame could not be received: this process has as many files open as it may (ulimit \
         -n)"
    )]
    DescriptorsLost,
}

/// The result of [`Connection::receive`].
#[derive(Debug)]
pub enum Incoming<F> {
    /// A frame and its descriptors.
    Frame(F, Vec<OwnedFd>),
    /// A doorbell.
    Doorbell,
    /// Nothing is available.
    Empty,
}

/// One end of a connection.
#[derive(Debug)]
pub struct Connection {
    descriptor: OwnedFd,
}

fn failed(call: &'static str, error: Errno) -> SocketError {
    match error {
        Errno::EPIPE | Errno::ECONNRESET | Errno::ENOTCONN => SocketError::Closed,
        error => SocketError::Call { call, source: error.into() },
    }
}

/// A path that begins with `@` names an abstract socket: no file, removed with the listening process.
fn address(path: &Path) -> Result<UnixAddr, SocketError> {
    use std::os::unix::ffi::OsStrExt;
    let address = match path.as_os_str().as_bytes() {
        [b'@', name @ ..] => UnixAddr::new_abstract(name),
        _ => UnixAddr::new(path),
    };
    address.map_err(|error| failed("socket path", error))
}

const FLAGS: SockFlag = SockFlag::SOCK_CLOEXEC.union(SockFlag::SOCK_NONBLOCK);

impl Connection {
    /// A connected pair of sockets without a path.
    ///
    /// # Errors
    /// When the kernel refuses, for example at the limit of descriptors.
    pub fn pair() -> Result<(Self, Self), SocketError> {
        let (left, right) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, FLAGS)
            .map_err(|error| failed("socketpair", error))?;
        Ok((Self { descriptor: left }, Self { descriptor: right }))
    }

    /// Connects to a listening daemon. A path that begins with `@` names an abstract socket.
    ///
    /// # Errors
    /// When no process listens there or the path is too long (107 bytes).
    pub fn connect(path: &Path) -> Result<Self, SocketError> {
        let descriptor = socket(AddressFamily::Unix, SockType::SeqPacket, FLAGS, None)
            .map_err(|error| failed("socket", error))?;
        let address = address(path)?;
        connect(descriptor.as_raw_fd(), &address).map_err(|error| failed("connect", error))?;
        Ok(Self { descriptor })
    }

    /// Wraps an inherited or accepted socket and sets it to non-blocking and close-on-exec.
    ///
    /// # Errors
    /// When the descriptor's flags cannot be changed.
    pub fn from_descriptor(descriptor: OwnedFd) -> Result<Self, SocketError> {
        use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
        fcntl(&descriptor, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))
            .and_then(|_| fcntl(&descriptor, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)))
            .map_err(|error| failed("fcntl", error))?;
        Ok(Self { descriptor })
    }

    /// Converts to the descriptor, for a child that inherits it.
    #[must_use]
    pub fn into_descriptor(self) -> OwnedFd {
        self.descriptor
    }

    /// Sends a frame.
    ///
    /// # Errors
    /// [`SocketError::Call`] with `EAGAIN` when the socket is full; the frame is not sent then.
    pub fn send<F: Serialize>(
        &self,
        frame: &F,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), SocketError> {
        let bytes = encode(frame)?;
        let raw: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
        let rights = [ControlMessage::ScmRights(&raw)];
        let control: &[ControlMessage<'_>] = if raw.is_empty() { &[] } else { &rights };
        self.send_bytes(&bytes, control)
    }

    /// Sends a doorbell without waiting. A full socket is not an error: a wake-up is already pending.
    ///
    /// # Errors
    /// The peer has ended.
    pub fn ring(&self) -> Result<(), SocketError> {
        match self.send_bytes(&[DOORBELL], &[]) {
            Err(SocketError::Call { source, .. }) if source.kind() == io::ErrorKind::WouldBlock => {
                Ok(())
            }
            other => other,
        }
    }

    fn send_bytes(&self, bytes: &[u8], control: &[ControlMessage<'_>]) -> Result<(), SocketError> {
        let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
        loop {
            let slices = [io::IoSlice::new(bytes)];
            match sendmsg::<()>(self.descriptor.as_raw_fd(), &slices, control, flags, None) {
                Ok(_) => return Ok(()),
                Err(Errno::EINTR) => {}
                Err(error) => return Err(failed("sendmsg", error)),
            }
        }
    }

    /// Receives the next frame, without waiting.
    ///
    /// # Errors
    /// The peer has ended or sent an invalid frame.
    pub fn receive<F: DeserializeOwned>(&self) -> Result<Incoming<F>, SocketError> {
        let mut short = [0u8; 4096];
        let mut long = Vec::new();
        let Some(length) = self.next_length()? else {
            return Ok(Incoming::Empty);
        };
        let buffer = if length <= short.len() {
            &mut short[..]
        } else {
            long.resize(MAX_FRAME_BYTES, 0);
            &mut long[..]
        };
        let Some((length, descriptors)) = self.receive_into(buffer)? else {
            return Ok(Incoming::Empty);
        };
        if buffer[..length] == [DOORBELL] {
            return Ok(Incoming::Doorbell);
        }
        Ok(Incoming::Frame(decode(&buffer[..length])?, descriptors))
    }

    /// The length of the next frame, which stays in the socket; `None`: there is none.
    fn next_length(&self) -> Result<Option<usize>, SocketError> {
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_PEEK | MsgFlags::MSG_TRUNC;
        let mut peek = || nix::sys::socket::recv(self.descriptor.as_raw_fd(), &mut [0], flags);
        let mut length = retry(&mut peek);
        if length == Err(Errno::ECONNRESET) {
            // The peer closed with frames of this side unread. The kernel reports that once, before it delivers the
            // frames that the peer had sent, such as the reason.
            length = retry(peek);
        }
        match length {
            Ok(length) => Ok(Some(length)),
            Err(Errno::EAGAIN) => Ok(None),
            Err(error) => Err(failed("recv", error)),
        }
    }

    /// Receives a frame: its length and its descriptors; `None`: there is none.
    fn receive_into(
        &self,
        buffer: &mut [u8],
    ) -> Result<Option<(usize, Vec<OwnedFd>)>, SocketError> {
        let raw = self.descriptor.as_raw_fd();
        let mut space = nix::cmsg_space!([RawFd; KERNEL_MAX_DESCRIPTORS]);
        let flags = MsgFlags::MSG_CMSG_CLOEXEC | MsgFlags::MSG_DONTWAIT;
        let mut slices = [io::IoSliceMut::new(buffer)];
        let message = match recvmsg::<()>(raw, &mut slices, Some(&mut space), flags) {
            Ok(message) => message,
            // A reset since the peek is reported once, before the frames that were sent before it.
            Err(Errno::ECONNRESET) => return self.receive_into(buffer),
            Err(Errno::EAGAIN | Errno::EINTR) => return Ok(None),
            Err(error) => return Err(failed("recvmsg", error)),
        };
        let mut descriptors = Vec::new();
        if let Ok(messages) = message.cmsgs() {
            for control in messages {
                if let ControlMessageOwned::ScmRights(received) = control {
                    descriptors.extend(received.into_iter().map(own));
                }
            }
        }
        let too_many = descriptors.len() > MAX_DESCRIPTORS;
        if too_many || message.flags.contains(MsgFlags::MSG_TRUNC) {
            return Err(SocketError::Oversize);
        }
        // The space is sufficient for the kernel's maximum, so descriptors are missing for another reason.
        if message.flags.contains(MsgFlags::MSG_CTRUNC) {
            return Err(SocketError::DescriptorsLost);
        }
        match message.bytes {
            0 => Err(SocketError::Closed),
            length => Ok(Some((length, descriptors))),
        }
    }
}

fn retry<T>(mut call: impl FnMut() -> nix::Result<T>) -> nix::Result<T> {
    loop {
        match call() {
            Err(Errno::EINTR) => {}
            result => return result,
        }
    }
}

#[allow(unsafe_code)]
fn own(descriptor: RawFd) -> OwnedFd {
    // SAFETY: the kernel has just installed this descriptor for this call, and nothing else uses its number.
    unsafe { OwnedFd::from_raw_fd(descriptor) }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl AsRawFd for Connection {
    fn as_raw_fd(&self) -> RawFd {
        self.descriptor.as_raw_fd()
    }
}

/// A listening socket with a path. Dropping it does not remove the path, which its owner must do.
#[derive(Debug)]
pub struct Listener {
    descriptor: OwnedFd,
}

impl Listener {
    /// Listens at a path that does not exist yet. A path that begins with `@` names an abstract socket, which has no file.
    ///
    /// # Errors
    /// `EADDRINUSE` when the path exists, `ENAMETOOLONG` or `EINVAL` when it is longer than 107 bytes.
    pub fn bind(path: &Path) -> Result<Self, SocketError> {
        let descriptor = socket(AddressFamily::Unix, SockType::SeqPacket, FLAGS, None)
            .map_err(|error| failed("socket", error))?;
        let address = address(path)?;
        bind(descriptor.as_raw_fd(), &address).map_err(|error| failed("bind", error))?;
        let backlog = Backlog::new(64).map_err(|error| failed("listen", error))?;
        listen(&descriptor, backlog).map_err(|error| failed("listen", error))?;
        Ok(Self { descriptor })
    }

    /// The next waiting connection, or `None`.
    ///
    /// # Errors
    /// `EMFILE` and similar; the connection stays in the backlog.
    pub fn accept(&self) -> Result<Option<Connection>, SocketError> {
        match retry(|| accept4(self.descriptor.as_raw_fd(), FLAGS)) {
            Ok(raw) => Ok(Some(Connection { descriptor: own(raw) })),
            Err(Errno::EAGAIN | Errno::ECONNABORTED) => Ok(None),
            Err(error) => Err(failed("accept4", error)),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        self.descriptor.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::mman::{ProtFlags, mprotect};
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::frames::{ClientFrame, DaemonFrame};
    use crate::segment::{Access, Segment, open_segment};
    use crate::sync::Ordering;
    use crate::words::Words;

    #[test]
    fn frames_doorbells_and_descriptors_arrive_in_order() {
        let (daemon, client) = Connection::pair().unwrap();
        let segment = Segment::create("return", 4096).unwrap();
        segment.seal(Access::ReadWrite).unwrap();
        daemon.send(&DaemonFrame::Goodbye, &[segment.descriptor()]).unwrap();
        daemon.ring().unwrap();
        let Incoming::Frame(DaemonFrame::Goodbye, descriptors) = client.receive().unwrap() else {
            panic!("a frame was sent");
        };
        let mapped =
            open_segment(descriptors[0].as_fd(), "return", 4096, Access::ReadWrite).unwrap();
        mapped.word(3).store(9, Ordering::Relaxed);
        assert_eq!(segment.map().unwrap().word(3).load(Ordering::Relaxed), 9);
        assert!(matches!(client.receive::<DaemonFrame>().unwrap(), Incoming::Doorbell));
        assert!(matches!(client.receive::<DaemonFrame>().unwrap(), Incoming::Empty));
        drop(daemon);
        assert!(matches!(client.receive::<DaemonFrame>(), Err(SocketError::Closed)));
    }

    #[test]
    fn frame_sent_before_the_close_is_read_if_the_peer_left_frames_unread() {
        let (daemon, client) = Connection::pair().unwrap();
        client.send(&ClientFrame::Stats, &[]).unwrap();
        daemon.send(&DaemonFrame::Goodbye, &[]).unwrap();
        drop(daemon);
        let first = client.receive::<DaemonFrame>();
        assert!(matches!(first, Ok(Incoming::Frame(DaemonFrame::Goodbye, _))), "{first:?}");
        assert!(matches!(client.receive::<DaemonFrame>(), Err(SocketError::Closed)));
    }

    #[test]
    fn long_frame_arrives_complete() {
        let (daemon, client) = Connection::pair().unwrap();
        let text = "é".repeat(20_000);
        daemon.send(&DaemonFrame::StatsPart { last: true, text: text.clone() }, &[]).unwrap();
        let Incoming::Frame(DaemonFrame::StatsPart { text: received, .. }, _) =
            client.receive().unwrap()
        else {
            panic!("a frame was sent");
        };
        assert_eq!(received, text);
    }

    #[test]
    fn descriptors_beyond_the_limit_are_refused_and_closed() {
        let (daemon, client) = Connection::pair().unwrap();
        let (watched, sent) = Connection::pair().unwrap();
        let copies = [sent.as_fd(); MAX_DESCRIPTORS + 1];
        client.send(&ClientFrame::Stats, &copies).unwrap();
        assert!(matches!(daemon.receive::<ClientFrame>(), Err(SocketError::Oversize)));
        drop(sent);
        // Now no copy of the other end exists.
        assert!(matches!(watched.receive::<ClientFrame>(), Err(SocketError::Closed)));
    }

    #[test]
    fn full_socket_drops_doorbells() {
        let (daemon, client) = Connection::pair().unwrap();
        for _ in 0..10_000 {
            daemon.ring().unwrap();
        }
        assert!(matches!(client.receive::<ClientFrame>().unwrap(), Incoming::Doorbell));
    }

    #[test]
    fn read_only_peer_can_neither_map_for_writing_nor_resize() {
        let segment = Segment::create("publish", 4096).unwrap();
        let own_map = segment.map().unwrap();
        segment.seal(Access::ReadOnly).unwrap();
        assert!(open_segment(segment.descriptor(), "publish", 4096, Access::ReadWrite).is_err());
        assert!(nix::unistd::ftruncate(segment.descriptor(), 0).is_err());
        let reader = open_segment(segment.descriptor(), "publish", 4096, Access::ReadOnly).unwrap();
        own_map.word(1).store(5, Ordering::Relaxed);
        assert_eq!(reader.word(1).load(Ordering::Relaxed), 5);
        assert!(open_segment(segment.descriptor(), "publish", 8192, Access::ReadOnly).is_err());
        // Other ways in: mprotect, /proc/self/mem, and reopening the file.
        let page = std::ptr::from_ref(reader.word(0)).cast_mut();
        let page = std::ptr::NonNull::new(page.cast()).unwrap();
        let both = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        #[expect(unsafe_code, reason = "requests an access right that must be refused")]
        // SAFETY: the page is the reader's first. Nothing is written even if the kernel granted the right.
        let granted = unsafe { mprotect(page, 4096, both) };
        assert_eq!(granted, Err(Errno::EACCES));
        let place = std::ptr::from_ref(reader.word(1)) as u64;
        let memory = std::fs::OpenOptions::new().write(true).open("/proc/self/mem").unwrap();
        assert!(memory.write_at(&[9; 8], place).is_err());
        let path = format!("/proc/self/fd/{}", segment.descriptor().as_raw_fd());
        if let Ok(anew) = std::fs::OpenOptions::new().write(true).open(path) {
            assert!(anew.write_at(&[9; 8], 8).is_err());
            assert!(anew.set_len(0).is_err() && anew.set_len(8192).is_err());
        }
        assert_eq!(reader.word(1).load(Ordering::Relaxed), 5);
    }
}
