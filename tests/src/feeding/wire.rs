//! HTTP/2 and gRPC by hand, as far as a feeder and its peers use them: whoever sends this keeps what rules it likes.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

/// What a client sends first.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Kinds of frames.
pub const DATA: u8 = 0;
/// See [`DATA`].
pub const HEADERS: u8 = 1;
/// See [`DATA`].
pub const RESET: u8 = 3;
/// See [`DATA`].
pub const SETTINGS: u8 = 4;
/// See [`DATA`].
pub const PING: u8 = 6;
/// See [`DATA`].
pub const GOAWAY: u8 = 7;
/// See [`DATA`].
pub const WINDOW: u8 = 8;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const ACK: u8 = 1;

/// A frame.
#[derive(Debug, Clone)]
pub struct Frame {
    /// What it is.
    pub kind: u8,
    /// Its flags.
    pub flags: u8,
    /// Its stream.
    pub stream: u32,
    /// Its payload.
    pub payload: Vec<u8>,
}

impl Frame {
    /// Whether it is the last one of its stream.
    pub fn ends_stream(&self) -> bool {
        self.kind == RESET || (self.kind <= HEADERS && self.flags & END_STREAM != 0)
    }
}

/// One end of a connection.
#[derive(Debug)]
pub struct Ends {
    /// The connection.
    pub socket: TcpStream,
    unread: Vec<u8>,
}

impl Ends {
    /// Of a connection whose preface is sent or read.
    pub fn new(socket: TcpStream) -> Self {
        socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        socket.set_nodelay(true).unwrap();
        Self { socket, unread: Vec::new() }
    }

    /// Sends a frame. False: the connection has ended.
    pub fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> bool {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let head = [&length[1..], &[kind, flags], &stream.to_be_bytes()].concat();
        self.socket.write_all(&[&head, payload].concat()).is_ok()
    }

    /// The next frame; `Ok(None)`: none has come for a moment. Answers settings and pings.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn frame(&mut self) -> Result<Option<Frame>, String> {
        while !self.has_frame() {
            let mut buffer = [0; 64 << 10];
            match self.socket.read(&mut buffer) {
                Ok(0) => return Err("the connection is closed".to_owned()),
                Ok(count) => self.unread.extend_from_slice(&buffer[..count]),
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) =>
                {
                    return Ok(None);
                }
                Err(error) => return Err(error.to_string()),
            }
        }
        let length = self.length();
        let rest = self.unread.split_off(9 + length);
        let whole = std::mem::replace(&mut self.unread, rest);
        let stream = u32::from_be_bytes(whole[5..9].try_into().unwrap()) & 0x7fff_ffff;
        let frame = Frame { kind: whole[3], flags: whole[4], stream, payload: whole[9..].to_vec() };
        if matches!(frame.kind, SETTINGS | PING) && frame.flags & ACK == 0 {
            let answer: &[u8] = if frame.kind == PING { &frame.payload } else { &[] };
            self.send(frame.kind, ACK, 0, answer);
        }
        Ok(Some(frame))
    }

    fn length(&self) -> usize {
        u32::from_be_bytes([0, self.unread[0], self.unread[1], self.unread[2]]) as usize
    }

    fn has_frame(&self) -> bool {
        self.unread.len() >= 9 && self.unread.len() >= 9 + self.length()
    }

    /// Sends headers: each name with its value as it is.
    pub fn send_headers(&mut self, stream: u32, is_last: bool, headers: &[(&str, &str)]) -> bool {
        let text = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
        let one = |(name, value): &(&str, &str)| [vec![0], text(name), text(value)].concat();
        let block: Vec<u8> = headers.iter().flat_map(one).collect();
        self.send(HEADERS, END_HEADERS | u8::from(is_last), stream, &block)
    }

    /// Sends a message's bytes in frames of 16 KiB.
    pub fn send_data(&mut self, stream: u32, is_last: bool, bytes: &[u8]) -> bool {
        let count = bytes.len().div_ceil(16 << 10);
        bytes.chunks(16 << 10).enumerate().all(|(number, piece)| {
            let flags = u8::from(is_last && number + 1 == count);
            self.send(DATA, flags, stream, piece)
        })
    }
}

/// A message of gRPC.
pub fn grpc(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    [&[0], &length[..], message].concat()
}

/// A number of Protocol Buffers.
pub fn number(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value > 127 {
        bytes.push(value.to_le_bytes()[0] | 128);
        value >>= 7;
    }
    bytes.push(value.to_le_bytes()[0]);
    bytes
}

/// A field of bytes.
pub fn field(tag: u64, bytes: &[u8]) -> Vec<u8> {
    [number(tag << 3 | 2), number(bytes.len() as u64), bytes.to_vec()].concat()
}

/// The fields of a message that have bytes; none has others before them than short numbers.
pub fn fields(mut message: &[u8]) -> BTreeMap<u64, Vec<u8>> {
    let mut found = BTreeMap::new();
    let take_number = |message: &mut &[u8]| {
        let end = message.iter().position(|byte| *byte < 128).unwrap();
        let bytes = &message[..=end];
        *message = &message[end + 1..];
        bytes.iter().rev().fold(0, |sum, byte| sum << 7 | u64::from(byte & 127))
    };
    while !message.is_empty() {
        let key = take_number(&mut message);
        let value = take_number(&mut message);
        if key & 7 == 2 {
            let (bytes, rest) = message.split_at(usize::try_from(value).unwrap());
            found.insert(key >> 3, bytes.to_vec());
            message = rest;
        }
    }
    found
}

/// A client of a feeder that asks and reads as it likes.
#[derive(Debug)]
pub struct Peer {
    /// Its connection.
    pub ends: Ends,
    next: u32,
    digest: Vec<u8>,
    /// By stream: the bytes so far.
    pub received: BTreeMap<u32, Vec<u8>>,
    /// Streams that have ended.
    pub ended: Vec<u32>,
}

impl Peer {
    /// Connects; `window`: the bytes of each answer that it takes unless it says that it takes more.
    pub fn connect(address: &str, window: u32) -> Self {
        let mut ends = Ends::new(TcpStream::connect(address).unwrap());
        ends.socket.write_all(PREFACE).unwrap();
        ends.send(SETTINGS, 0, 0, &[&[0, 4], &window.to_be_bytes()[..]].concat());
        // Answers share the connection's window.
        ends.send(WINDOW, 0, 0, &(1_u32 << 30).to_be_bytes());
        let (received, ended) = (BTreeMap::new(), Vec::new());
        Self { ends, next: 1, digest: Vec::new(), received, ended }
    }

    /// Begins a call; returns its stream.
    pub fn call(&mut self, method: &str, message: &[u8]) -> u32 {
        let stream = self.next;
        self.next += 2;
        let path = format!("/arrow.flight.protocol.FlightService/{method}");
        let headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", &path),
            (":authority", "feeder"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
        ];
        self.ends.send_headers(stream, false, &headers);
        self.ends.send_data(stream, true, &grpc(message));
        stream
    }

    /// Asks for rows of a stream's first pass; returns the call's stream.
    pub fn ask(&mut self, samples: &[u64]) -> u32 {
        let ticket = self.ticket(samples);
        self.call("DoGet", &field(1, &ticket))
    }

    /// A ticket for rows of the first pass.
    pub fn ticket(&self, samples: &[u64]) -> Vec<u8> {
        let count = u32::try_from(samples.len()).unwrap();
        let rows = samples.iter().flat_map(|sample| [sample.to_le_bytes(), [0; 8]].concat());
        let head = [b"FBT1", &self.digest[..], &1_u32.to_le_bytes(), &count.to_le_bytes()].concat();
        head.into_iter().chain(rows).collect()
    }

    /// Learns what the feeder serves.
    pub fn learn(&mut self, stream: &str) {
        let call = self.call("GetFlightInfo", &[vec![8, 1], field(3, stream.as_bytes())].concat());
        self.ends.send(WINDOW, 0, call, &(1_u32 << 20).to_be_bytes());
        while !self.ended.contains(&call) {
            self.read(false).unwrap();
        }
        let text = String::from_utf8_lossy(&self.received[&call]).into_owned();
        let (_, rest) = text.split_once("\"digest\":\"").unwrap_or_else(|| panic!("{text:?}"));
        let byte = |at: usize| u8::from_str_radix(&rest[at..at + 2], 16).unwrap();
        self.digest = (0..32).step_by(2).map(byte).collect();
    }

    /// Reads what has come; with `takes` it says for each piece that it takes as much again. False: nothing came.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn read(&mut self, takes: bool) -> Result<bool, String> {
        let Some(frame) = self.ends.frame()? else { return Ok(false) };
        if frame.kind == GOAWAY {
            return Err(format!("GOAWAY: {:?}", String::from_utf8_lossy(&frame.payload)));
        }
        if frame.kind == DATA {
            let taken = u32::try_from(frame.payload.len()).unwrap();
            self.received.entry(frame.stream).or_default().extend(&frame.payload);
            if takes && taken > 0 {
                for stream in [0, frame.stream] {
                    self.ends.send(WINDOW, 0, stream, &taken.to_be_bytes());
                }
            }
        }
        if frame.ends_stream() {
            self.ended.push(frame.stream);
        }
        Ok(true)
    }

    /// Gives a call up.
    pub fn reset(&mut self, stream: u32) -> bool {
        self.ends.send(RESET, 0, stream, &8_u32.to_be_bytes())
    }
}

/// The messages of an answer.
pub fn messages(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    while bytes.len() >= 5 {
        let length = u32::from_be_bytes(bytes[1..5].try_into().unwrap()) as usize;
        let Some(message) = bytes.get(5..5 + length) else { break };
        found.push(message.to_vec());
        bytes = &bytes[5 + length..];
    }
    found
}
