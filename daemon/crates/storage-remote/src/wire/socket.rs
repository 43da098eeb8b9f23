//! A socket with a read-ahead buffer, plain or with TLS.

use std::io::{self, BufRead, Read};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustls::ClientConnection;
use rustls::pki_types::ServerName;
use tokio::io::Interest;
use tokio::net::TcpStream;

/// Sizes of one read: past the head's end, and of encrypted TLS records.
const AHEAD_BYTES: usize = 16 << 10;
const ENCRYPTED_BYTES: usize = 64 << 10;

#[derive(Debug)]
pub(super) struct Socket {
    stream: TcpStream,
    tls: Option<Box<Tls>>,
    /// Read but not taken: the bytes from `start` on.
    ahead: Vec<u8>,
    start: usize,
}

#[derive(Debug)]
struct Tls {
    connection: ClientConnection,
    /// Read but not decrypted: the bytes from `start` on.
    encrypted: Vec<u8>,
    start: usize,
}

impl Tls {
    /// Decrypts some of the read bytes. False: more bytes must be read.
    fn decrypt(&mut self) -> io::Result<bool> {
        if self.start == self.encrypted.len() {
            return Ok(false);
        }
        let mut rest = &self.encrypted[self.start..];
        let taken = self.connection.read_tls(&mut rest)?;
        self.start += taken;
        self.connection.process_new_packets().map_err(io::Error::other)?;
        Ok(true)
    }

    /// Appends decrypted bytes, at most `most`. `None`: there are none; zero bytes: the server has ended the
    /// connection.
    fn take(&mut self, buffer: &mut Vec<u8>, most: usize) -> io::Result<Option<usize>> {
        let mut reader = self.connection.reader();
        match reader.fill_buf() {
            Ok(chunk) => {
                let length = chunk.len().min(most);
                buffer.extend_from_slice(&chunk[..length]);
                reader.consume(length);
                Ok(Some(length))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            // Without a closing message: handled as a plain connection that is closed.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(Some(0)),
            Err(error) => Err(error),
        }
    }

    fn make_room(&mut self) {
        self.encrypted.clear();
        self.start = 0;
        self.encrypted.reserve(ENCRYPTED_BYTES);
    }
}

impl Socket {
    /// Over a connected stream; with TLS, the server must prove its name.
    ///
    /// # Errors
    /// The other end is not that server, or ends the connection.
    pub(super) async fn new(
        stream: TcpStream,
        tls: Option<(Arc<rustls::ClientConfig>, &str)>,
    ) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        let tls = tls.map(|(config, host)| {
            let host = host.trim_start_matches('[').trim_end_matches(']');
            let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
            let connection = ClientConnection::new(config, name).map_err(io::Error::other)?;
            Ok::<_, io::Error>(Box::new(Tls { connection, encrypted: Vec::new(), start: 0 }))
        });
        let mut socket = Self { stream, tls: tls.transpose()?, ahead: Vec::new(), start: 0 };
        while socket.tls.as_ref().is_some_and(|tls| tls.connection.is_handshaking()) {
            socket.flush().await?;
            let Some(tls) = socket.tls.as_mut().filter(|tls| tls.connection.is_handshaking())
            else {
                break;
            };
            if !tls.decrypt()? {
                tls.make_room();
                if read_when_ready(&socket.stream, &mut tls.encrypted).await? == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
        }
        socket.flush().await?;
        Ok(socket)
    }

    /// Sends the bytes that TLS has produced.
    async fn flush(&mut self) -> io::Result<()> {
        let mut text = Vec::new();
        if let Some(tls) = &mut self.tls {
            while tls.connection.wants_write() {
                tls.connection.write_tls(&mut text)?;
            }
        }
        self.send_bytes(&text).await
    }

    async fn send_bytes(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.stream.try_write(bytes) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.stream.writable().await?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Sends a text.
    ///
    /// # Errors
    /// The connection has ended.
    pub(super) async fn send(&mut self, text: &[u8]) -> io::Result<()> {
        match &mut self.tls {
            None => self.send_bytes(text).await,
            Some(tls) => {
                io::Write::write_all(&mut tls.connection.writer(), text)?;
                self.flush().await
            }
        }
    }

    /// Read but not taken bytes.
    pub(super) fn ahead(&self) -> &[u8] {
        &self.ahead[self.start..]
    }

    /// Takes this many read-ahead bytes.
    pub(super) fn take_ahead(&mut self, bytes: usize) {
        self.start += bytes;
        if self.start == self.ahead.len() {
            self.ahead.clear();
            self.start = 0;
        }
    }

    /// Reads more ahead, waiting in the runtime. Zero bytes: the server has ended the connection.
    ///
    /// # Errors
    /// The connection fails.
    pub(super) async fn read_ahead(&mut self) -> io::Result<usize> {
        self.ahead.reserve(AHEAD_BYTES);
        let Some(tls) = &mut self.tls else {
            return read_when_ready(&self.stream, &mut self.ahead).await;
        };
        loop {
            if let Some(read) = tls.take(&mut self.ahead, AHEAD_BYTES)? {
                return Ok(read);
            }
            if !tls.decrypt()? {
                tls.make_room();
                if read_when_ready(&self.stream, &mut tls.encrypted).await? == 0 {
                    return Ok(0);
                }
            }
        }
    }

    /// Appends at most `most` bytes, and no more than the buffer has room for; waits in the system for the first. Zero:
    /// the server has ended the connection.
    ///
    /// # Errors
    /// The connection fails, or receives nothing for the time `stall`.
    pub(super) fn read(
        &mut self,
        buffer: &mut Vec<u8>,
        most: u64,
        stall: Duration,
    ) -> io::Result<usize> {
        let room = buffer.capacity() - buffer.len();
        let most = usize::try_from(most).unwrap_or(usize::MAX).min(room);
        if !self.ahead().is_empty() {
            let length = most.min(self.ahead().len());
            buffer.extend_from_slice(&self.ahead()[..length]);
            self.take_ahead(length);
            return Ok(length);
        }
        let Some(tls) = &mut self.tls else {
            let before = buffer.len();
            let read = read_waiting(&self.stream, buffer, stall)?;
            if read > most {
                // These bytes stay unread, for the next reader.
                self.ahead.extend_from_slice(&buffer[before + most..]);
                buffer.truncate(before + most);
                return Ok(most);
            }
            return Ok(read);
        };
        loop {
            if let Some(read) = tls.take(buffer, most)? {
                return Ok(read);
            }
            if !tls.decrypt()? {
                tls.make_room();
                if read_waiting(&self.stream, &mut tls.encrypted, stall)? == 0 {
                    return Ok(0);
                }
            }
        }
    }
}

impl Socket {
    /// Copies received bytes to `place`, without waiting. Zero: the server has ended the connection.
    ///
    /// # Errors
    /// `WouldBlock`: nothing has been received. Otherwise the connection fails.
    pub(super) fn read_now(&mut self, place: &mut [u8]) -> io::Result<usize> {
        if !self.ahead().is_empty() {
            let length = place.len().min(self.ahead().len());
            place[..length].copy_from_slice(&self.ahead()[..length]);
            self.take_ahead(length);
            return Ok(length);
        }
        let Some(tls) = &mut self.tls else {
            return Ok(rustix::io::retry_on_intr(|| {
                rustix::io::read(self.stream.as_fd(), &mut *place)
            })?);
        };
        loop {
            match tls.connection.reader().read(place) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                read => return read,
            }
            if !tls.decrypt()? {
                tls.make_room();
                let read =
                    || rustix::io::read(self.stream.as_fd(), spare_capacity(&mut tls.encrypted));
                if rustix::io::retry_on_intr(read)? == 0 {
                    return Ok(0);
                }
            }
        }
    }

    /// Whether there are no unread bytes and the server has not ended the connection.
    pub(super) fn is_quiet(&mut self) -> bool {
        let is_decrypted = self.tls.as_mut().is_none_or(|tls| {
            tls.start == tls.encrypted.len()
                && tls
                    .connection
                    .reader()
                    .fill_buf()
                    .is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
        });
        let mut sockets = [PollFd::new(&self.stream, PollFlags::IN)];
        is_decrypted
            && self.ahead().is_empty()
            && matches!(poll(&mut sockets, Some(&Timespec::default())), Ok(0))
    }

    /// Waits until bytes arrive.
    ///
    /// # Errors
    /// None arrive for this long.
    pub(super) fn wait(&self, stall: Duration) -> io::Result<()> {
        wait(&self.stream, stall)
    }
}

/// Appends what the kernel has, at most what the buffer has room for, waiting in the runtime.
async fn read_when_ready(stream: &TcpStream, buffer: &mut Vec<u8>) -> io::Result<usize> {
    loop {
        stream.readable().await?;
        let read = stream.try_io(Interest::READABLE, || Ok(read_now(stream, buffer)?));
        match read {
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) => {}
            read => return read,
        }
    }
}

/// As [`read_when_ready`], waiting in the system.
fn read_waiting(stream: &TcpStream, buffer: &mut Vec<u8>, stall: Duration) -> io::Result<usize> {
    loop {
        match read_now(stream, buffer) {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => wait(stream, stall)?,
            read => return Ok(read?),
        }
    }
}

fn read_now(stream: &TcpStream, buffer: &mut Vec<u8>) -> Result<usize, Errno> {
    rustix::io::read(stream.as_fd(), spare_capacity(buffer))
}

fn wait(stream: &TcpStream, stall: Duration) -> io::Result<()> {
    let time_out = Timespec::try_from(stall).ok();
    let mut sockets = [PollFd::new(stream, PollFlags::IN)];
    match poll(&mut sockets, time_out.as_ref()) {
        Ok(0) => {
            let seconds = stall.as_secs_f32();
            let what = format!("nothing was received for {seconds} s");
            Err(io::Error::new(io::ErrorKind::TimedOut, what))
        }
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
