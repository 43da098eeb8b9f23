//! HTTP/1.1 connections that the reading thread drives itself: a response's body goes from the socket to its
//! destination, without a client's tasks and buffers in between.
//!
//! They serve requests for data if no proxy is configured; all other requests go through the client of `client`. The
//! states of a connection; one thread at a time owns it and moves it:
//! ```text
//! Idle ──exchange──► Sent ──its head is complete──► Answered ──its body is read to the end──► Idle
//! ▲                  │ fails, or is dropped           │ is dropped, or the server closes it
//! └─ connect         └───────────► closed ◄───────────┘
//! ```
//! Until the end of the head the thread waits in its runtime, so that a second request can run meanwhile; for the body
//! it waits in the system.

mod chunks;
mod socket;

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use http::header::{
    CONNECTION, CONTENT_LENGTH, CONTENT_RANGE, ETAG, HOST, HeaderName, LAST_MODIFIED,
    TRANSFER_ENCODING, USER_AGENT,
};
use http::{HeaderMap, HeaderValue, StatusCode, Version};
use object_store::client::HttpRequest;
use tokio::net::TcpStream;

use self::socket::Socket;
use super::address::is_metadata;

// Also used by the client for all other requests.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
pub(super) const IDLE_TIMEOUT: Duration = Duration::from_secs(20);
/// Limit of a response's header fields.
pub(super) const MAX_HEADERS: usize = 100;
pub(super) const USER_AGENT_TEXT: &str = concat!("forebay/", env!("CARGO_PKG_VERSION"));
/// Limit of a response's head.
const MAX_HEAD_BYTES: usize = 128 << 10;
/// Size of the pieces in which a body is passed on.
const PIECE_BYTES: usize = 64 << 10;
/// Time after which a name is resolved again.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(30);

/// Marks a request whose URL is signed as it is, and sent unchanged.
#[derive(Debug, Clone, Copy)]
pub(super) struct AsGiven;

/// Resolved names, for all connections of a storage, which use the addresses of a name in turn.
#[derive(Debug, Default)]
pub(super) struct Addresses {
    known: Mutex<HashMap<String, (Instant, Vec<SocketAddr>)>>,
    turn: AtomicUsize,
}

/// The idle connections of one pooled client, to any host.
#[derive(Debug)]
pub(super) struct Wires {
    idle: Mutex<Vec<Wire>>,
    addresses: Arc<Addresses>,
    tls: Arc<rustls::ClientConfig>,
    /// Headers of each request.
    headers: HeaderMap,
    /// A server that sends nothing for this long has failed.
    stall: Duration,
}

#[derive(Debug)]
struct Wire {
    /// Whether TLS is used, host and port.
    origin: (bool, String, u16),
    socket: Socket,
    /// Buffer for a body that is passed on piece by piece.
    piece: Vec<u8>,
    /// Digests of the last request's target and of its response's headers about the file.
    last: Option<(u64, u64)>,
    idle_since: Instant,
}

/// A response whose head is read and whose body is not.
#[derive(Debug)]
pub(super) struct Answered {
    wire: Wire,
    home: Arc<Wires>,
    /// Unread bytes of the body.
    left_bytes: u64,
    /// Whether the body is chunked: only an error's text is read then.
    is_chunked: bool,
    can_be_kept: bool,
    /// Whether the connection was new.
    pub(super) is_first: bool,
    /// Whether the headers about the file equal the previous response's on this connection, which was for another file.
    pub(super) repeats_last: bool,
}

/// A response's status and headers.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
}

/// Why there is no response.
#[derive(Debug)]
pub(super) enum WireError {
    /// No connection.
    Connect(String),
    /// The server closed the connection.
    Closed(String),
    /// The response is malformed.
    Malformed(String),
}

impl Addresses {
    fn known(&self) -> MutexGuard<'_, HashMap<String, (Instant, Vec<SocketAddr>)>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The addresses of a host, rotated by one each time.
    async fn of(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
        let key = format!("{host}:{port}");
        let known = self.known().get(&key).filter(|(at, _)| at.elapsed() < LOOKUP_TIMEOUT).cloned();
        let mut found = match known {
            Some((_, found)) => found,
            None => {
                let bare = host.trim_start_matches('[').trim_end_matches(']');
                let found = tokio::net::lookup_host((bare, port)).await;
                let found: Vec<SocketAddr> =
                    found.map_err(|error| format!("looking up {host}: {error}"))?.collect();
                if found.is_empty() {
                    return Err(format!("looking up {host}: it has no address"));
                }
                if found.iter().any(|address| is_metadata(address.ip())) {
                    return Err(format!(
                        "{host} resolves to a metadata service of this machine's cloud"
                    ));
                }
                self.known().insert(key, (Instant::now(), found.clone()));
                found
            }
        };
        // Relaxed: any order will do.
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % found.len();
        found.rotate_left(turn);
        Ok(found)
    }

    fn forget(&self, host: &str, port: u16) {
        self.known().remove(&format!("{host}:{port}"));
    }
}

impl Wires {
    /// Connections for requests with these headers.
    pub(super) fn new(
        addresses: Arc<Addresses>,
        mut tls: rustls::ClientConfig,
        headers: HeaderMap,
        stall: Duration,
    ) -> Self {
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        Self { idle: Mutex::default(), addresses, tls: Arc::new(tls), headers, stall }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Wire>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a request without a body, on a kept connection or, if that has ended meanwhile, on a new one.
    ///
    /// # Errors
    /// There is no response, or it is malformed.
    pub(super) async fn exchange(
        self: &Arc<Self>,
        request: &HttpRequest,
    ) -> Result<(Head, Answered), WireError> {
        let uri = request.uri();
        let is_tls = uri.scheme_str() == Some("https");
        let host = uri.host().unwrap_or_default();
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let origin = (is_tls, host.to_owned(), port);
        let text = self.text(request);
        if let Some(mut wire) = self.kept(&origin) {
            match wire.ask(&text).await {
                // The server may have closed the kept connection at this very moment.
                Err(WireError::Closed(_)) => self.idle().clear(),
                answer => return Ok(self.answered(request, wire, answer?)),
            }
        }
        let socket = self.connect(host, port, is_tls).await?;
        let (piece, idle_since) = (Vec::new(), Instant::now());
        let mut wire = Wire { origin, socket, piece, last: None, idle_since };
        let answer = wire.ask(&text).await?;
        Ok(self.answered(request, wire, answer))
    }

    /// An idle connection to a host. One that the server has ended, or on which an unsolicited response has arrived, is
    /// closed: that response would be matched to the next request.
    fn kept(&self, origin: &(bool, String, u16)) -> Option<Wire> {
        let mut idle = self.idle();
        idle.retain(|wire| wire.idle_since.elapsed() < IDLE_TIMEOUT);
        loop {
            let place = idle.iter().rposition(|wire| wire.origin == *origin)?;
            let mut wire = idle.swap_remove(place);
            if wire.socket.is_quiet() {
                return Some(wire);
            }
        }
    }

    async fn connect(&self, host: &str, port: u16, is_tls: bool) -> Result<Socket, WireError> {
        let mut why = String::new();
        for address in self.addresses.of(host, port).await.map_err(WireError::Connect)? {
            let stream = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await;
            match stream {
                Ok(Ok(stream)) => {
                    let tls = is_tls.then(|| (Arc::clone(&self.tls), host));
                    let socket = Socket::new(stream, tls).await;
                    return socket.map_err(|error| {
                        WireError::Connect(format!("connecting to {address}: {error}"))
                    });
                }
                Ok(Err(error)) => why = format!("connecting to {address}: {error}"),
                Err(_) => {
                    let seconds = CONNECT_TIMEOUT.as_secs();
                    why = format!("connecting to {address}: no response within {seconds} s");
                }
            }
        }
        self.addresses.forget(host, port);
        Err(WireError::Connect(why))
    }

    /// A request as it is sent.
    fn text(&self, request: &HttpRequest) -> Vec<u8> {
        let uri = request.uri();
        let mut target = uri.path_and_query().map_or("/", |target| target.as_str()).to_owned();
        // Both mean a space; some servers take `+` literally when they check a signature.
        let is_free = request.extensions().get::<AsGiven>().is_none();
        let query = target.split_once('?').filter(|(_, query)| is_free && query.contains('+'));
        if let Some((path, query)) = query {
            target = format!("{path}?{}", query.replace('+', "%20"));
        }
        let mut text = format!("{} {target} HTTP/1.1\r\n", request.method()).into_bytes();
        let headers = request.headers();
        let mut add = |name: &HeaderName, value: &[u8]| {
            text.extend_from_slice(name.as_str().as_bytes());
            text.extend_from_slice(b": ");
            text.extend_from_slice(value);
            text.extend_from_slice(b"\r\n");
        };
        if !headers.contains_key(HOST) {
            let host = uri.host().unwrap_or_default();
            match uri.port_u16() {
                Some(port) => add(&HOST, format!("{host}:{port}").as_bytes()),
                None => add(&HOST, host.as_bytes()),
            }
        }
        if !headers.contains_key(USER_AGENT) {
            add(&USER_AGENT, USER_AGENT_TEXT.as_bytes());
        }
        let more = self.headers.iter().filter(|(name, _)| !headers.contains_key(*name));
        for (name, value) in headers.iter().chain(more) {
            // A request without a body has no length.
            if name != CONTENT_LENGTH {
                add(name, value.as_bytes());
            }
        }
        text.extend_from_slice(b"\r\n");
        text
    }

    fn answered(
        self: &Arc<Self>,
        request: &HttpRequest,
        mut wire: Wire,
        (head, version): (Head, Version),
    ) -> (Head, Answered) {
        let mut lengths = head.headers.get_all(CONTENT_LENGTH).iter();
        let length = match (head.status, lengths.next(), lengths.next()) {
            (StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED, ..) => Some(0),
            (_, Some(length), None) => length.to_str().ok().and_then(|text| text.parse().ok()),
            _ => None,
        };
        // A response without a length is refused by `object_store`.
        let is_chunked = head.headers.contains_key(TRANSFER_ENCODING);
        let length = length.filter(|_| !is_chunked);
        let closes = |value: &HeaderValue| {
            value.to_str().is_ok_and(|value| value.to_ascii_lowercase().contains("close"))
        };
        // A second copy of a response without the file's tag or time would be taken for that of the next file of its length.
        let says_which = !matches!(head.status, StatusCode::OK | StatusCode::PARTIAL_CONTENT)
            || request.uri().query().is_some()
            || [ETAG, LAST_MODIFIED].iter().any(|name| head.headers.contains_key(name));
        let can_be_kept = length.is_some()
            && says_which
            && version == Version::HTTP_11
            && !head.headers.get_all(CONNECTION).iter().any(closes);
        let (target, said) = (digest(request.uri().path()), digest(said_of_file(&head)));
        let is_first = wire.last.is_none();
        let repeats_last =
            wire.last.is_some_and(|(last, said_last)| last != target && said_last == said);
        wire.last = Some((target, said));
        let (home, left_bytes) = (Arc::clone(self), length.unwrap_or(0));
        let answered =
            Answered { wire, home, left_bytes, is_chunked, can_be_kept, is_first, repeats_last };
        (head, answered)
    }
}

/// A response's headers about the file: tag, modification time and length.
fn said_of_file(head: &Head) -> [Option<&[u8]>; 3] {
    let text = |name: HeaderName| head.headers.get(name).map(HeaderValue::as_bytes);
    let of_part = text(CONTENT_RANGE);
    let whole = of_part.and_then(|range| range.rsplit(|byte| *byte == b'/').next());
    [text(ETAG), text(LAST_MODIFIED), whole.or_else(|| text(CONTENT_LENGTH))]
}

fn digest(value: impl Hash) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(value)
}

impl Wire {
    /// Sends a request and reads the head of its response.
    async fn ask(&mut self, text: &[u8]) -> Result<(Head, Version), WireError> {
        let closed = |error: io::Error| WireError::Closed(format!("the connection: {error}"));
        self.socket.send(text).await.map_err(closed)?;
        loop {
            let ahead = self.socket.ahead();
            let mut places = [httparse::EMPTY_HEADER; MAX_HEADERS];
            let mut head = httparse::Response::new(&mut places);
            match head.parse(ahead) {
                Ok(httparse::Status::Complete(end)) if end <= MAX_HEAD_BYTES => {
                    let version = match head.version {
                        Some(1) => Version::HTTP_11,
                        _ => Version::HTTP_10,
                    };
                    let read = head_of(&head).map_err(WireError::Malformed)?;
                    self.socket.take_ahead(end);
                    // Responses such as "100 Continue" precede the final response.
                    if !read.status.is_informational() {
                        return Ok((read, version));
                    }
                    continue;
                }
                Ok(httparse::Status::Partial) if ahead.len() < MAX_HEAD_BYTES => {}
                Ok(_) => {
                    let limit = MAX_HEAD_BYTES >> 10;
                    return Err(WireError::Malformed(format!(
                        "the response's headers are above {limit} KiB"
                    )));
                }
                Err(error) => {
                    return Err(WireError::Malformed(format!("the response is not HTTP: {error}")));
                }
            }
            let has_begun = !ahead.is_empty();
            match self.socket.read_ahead().await {
                Ok(0) if has_begun => {
                    let what = "the connection was closed within the response's headers";
                    return Err(WireError::Malformed(what.to_owned()));
                }
                Ok(0) => return Err(WireError::Closed("connection closed".to_owned())),
                Ok(_) => {}
                Err(error) => return Err(closed(error)),
            }
        }
    }
}

fn head_of(head: &httparse::Response<'_, '_>) -> Result<Head, String> {
    let status = StatusCode::from_u16(head.code.unwrap_or_default());
    let status = status.map_err(|_| "the response has no status".to_owned())?;
    let mut headers = HeaderMap::with_capacity(head.headers.len());
    for header in head.headers.iter() {
        let name = HeaderName::from_bytes(header.name.as_bytes());
        let value = HeaderValue::from_bytes(header.value);
        let (Ok(name), Ok(value)) = (name, value) else {
            return Err("the server sent a malformed header".to_owned());
        };
        headers.append(name, value);
    }
    Ok(Head { status, headers })
}

impl Answered {
    /// The host that responds.
    pub(super) fn host(&self) -> &str {
        &self.wire.origin.1
    }

    /// Unread bytes of the body.
    pub(super) const fn left_bytes(&self) -> u64 {
        self.left_bytes
    }

    /// Appends received bytes of the body, as many as the buffer has room for; waits if there are none. Zero bytes: the
    /// body is complete, or the server has ended the connection.
    ///
    /// # Errors
    /// The connection fails, or receives nothing for too long.
    pub(super) fn read(&mut self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        if self.left_bytes == 0 {
            return Ok(0);
        }
        let read = self.wire.socket.read(buffer, self.left_bytes, self.home.stall)?;
        self.left_bytes -= read as u64;
        Ok(read)
    }

    /// The text of an error, up to the limit; then the connection is given back if possible.
    pub(super) fn into_text(mut self, limit_bytes: usize) -> Vec<u8> {
        if self.is_chunked {
            self.left_bytes = limit_bytes as u64;
        }
        let wanted = usize::try_from(self.left_bytes).unwrap_or(usize::MAX);
        let mut text = Vec::with_capacity(wanted.min(limit_bytes));
        while text.len() < text.capacity()
            && !(self.is_chunked && chunks::is_whole(&text))
            && self.read(&mut text).is_ok_and(|read| read > 0)
        {}
        let text = if self.is_chunked { chunks::joined(&text) } else { text };
        self.end();
        text
    }

    /// Copies received bytes of the body to `place`, without waiting. Zero bytes: as for [`read`](Self::read).
    ///
    /// # Errors
    /// `WouldBlock`: nothing has been received. Otherwise the connection fails.
    pub(super) fn read_now(&mut self, place: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left_bytes).unwrap_or(usize::MAX).min(place.len());
        let read = self.wire.socket.read_now(&mut place[..most])?;
        self.left_bytes -= read as u64;
        Ok(read)
    }

    /// Waits until something may have been received.
    ///
    /// # Errors
    /// It takes too long.
    pub(super) fn wait(&self) -> io::Result<()> {
        self.wire.socket.wait(self.home.stall)
    }

    /// The next piece of the body; `None` corresponds to [`read`](Self::read)'s zero bytes.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub(super) fn piece(&mut self) -> io::Result<Option<&[u8]>> {
        let mut piece = std::mem::take(&mut self.wire.piece);
        piece.clear();
        piece.reserve(PIECE_BYTES);
        let read = self.read(&mut piece);
        self.wire.piece = piece;
        Ok((read? > 0).then_some(&self.wire.piece))
    }

    /// Gives the connection back if it can serve another request.
    pub(super) fn end(self) {
        let Self { mut wire, home, left_bytes, can_be_kept, .. } = self;
        // Bytes past the end of the body are unsolicited; later ones are detected before the connection is used again.
        if left_bytes == 0 && can_be_kept && wire.socket.ahead().is_empty() {
            wire.idle_since = Instant::now();
            home.idle().push(wire);
        }
    }
}

#[cfg(test)]
mod tests;
