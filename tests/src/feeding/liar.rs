//! A feeder that says to each daemon that it serves its rows, and answers tickets as it is told to.

use std::io::Read as _;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::wire::{
    DATA, Ends, HEADERS, PREFACE, RESET, SETTINGS, WINDOW, field, fields, grpc, messages,
};

/// What it answers to a ticket.
#[derive(Debug, Clone)]
pub enum Lie {
    /// These bytes, whether they are messages or not, and then the end with a status.
    Bytes(Vec<u8>, &'static str),
    /// No message, and a status with a message.
    Status(&'static str, &'static str),
    /// No message at all, while the connection lives.
    Silence,
    /// The stream is reset.
    Reset,
    /// The connection is closed in the middle.
    Closes,
}

/// See the module's head. It serves until the process ends.
#[derive(Debug, Clone)]
pub struct Liar {
    /// Where it listens.
    pub address: String,
    /// Connections, and tickets, so far.
    pub connections: Arc<AtomicU64>,
    /// See [`connections`](Self::connections).
    pub tickets: Arc<AtomicU64>,
}

/// A message of rows: Arrow's header and body, and the message of ours beside them.
pub fn flight_data(header: &[u8], metadata: &[u8], body: &[u8]) -> Vec<u8> {
    grpc(&[field(2, header), field(3, metadata), field(1000, body)].concat())
}

impl Liar {
    /// Listens. `names` is what it says of itself instead of cores, rows and requests at a time.
    pub fn start(names: &'static str, lie: Lie) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let liar = Self { address, connections: Arc::default(), tickets: Arc::default() };
        let counts = liar.clone();
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                counts.connections.fetch_add(1, Ordering::SeqCst);
                let (lie, counts) = (lie.clone(), counts.clone());
                std::thread::spawn(move || {
                    let mut preface = vec![0; PREFACE.len()];
                    let mut socket = socket;
                    if socket.read_exact(&mut preface).is_ok() {
                        converse(Ends::new(socket), names, &lie, &counts);
                    }
                });
            }
        });
        liar
    }
}

fn converse(mut ends: Ends, names: &str, lie: &Lie, counts: &Liar) {
    ends.send(SETTINGS, 0, 0, &[]);
    let mut asked: Vec<(u32, Vec<u8>)> = Vec::new();
    loop {
        let frame = match ends.frame() {
            Ok(Some(frame)) => frame,
            Ok(None) => continue,
            Err(_) => return,
        };
        if frame.kind == DATA {
            let taken = u32::try_from(frame.payload.len()).unwrap();
            if taken > 0 {
                ends.send(WINDOW, 0, 0, &taken.to_be_bytes());
            }
            match asked.iter_mut().find(|(stream, _)| *stream == frame.stream) {
                Some((_, bytes)) => bytes.extend(&frame.payload),
                None => asked.push((frame.stream, frame.payload.clone())),
            }
        }
        if frame.kind > HEADERS || !frame.ends_stream() {
            continue;
        }
        let Some(place) = asked.iter().position(|(stream, _)| *stream == frame.stream) else {
            continue;
        };
        let (stream, bytes) = asked.remove(place);
        // A daemon asks for no rows before it knows what there is.
        if stream == 1 {
            let info = info(&fields(&messages(&bytes)[0])[&2], names);
            begin(&mut ends, stream);
            ends.send_data(stream, false, &grpc(&field(7, info.as_bytes())));
            ends.send_headers(stream, true, &[("grpc-status", "0")]);
            continue;
        }
        counts.tickets.fetch_add(1, Ordering::SeqCst);
        match lie {
            Lie::Bytes(bytes, status) => {
                begin(&mut ends, stream);
                ends.send_data(stream, false, bytes);
                ends.send_headers(stream, true, &[("grpc-status", status)]);
            }
            Lie::Status(status, message) => {
                begin(&mut ends, stream);
                let trailers = [("grpc-status", *status), ("grpc-message", message)];
                ends.send_headers(stream, true, &trailers);
            }
            Lie::Silence => begin(&mut ends, stream),
            Lie::Reset => drop(ends.send(RESET, 0, stream, &2_u32.to_be_bytes())),
            Lie::Closes => {
                begin(&mut ends, stream);
                ends.send(DATA, 0, stream, &[0, 0, 0]);
                return;
            }
        }
    }
}

fn begin(ends: &mut Ends, stream: u32) {
    ends.send_headers(stream, false, &[(":status", "200"), ("content-type", "application/grpc")]);
}

/// It serves whatever the daemon wants.
fn info(command: &[u8], names: &str) -> String {
    let command = String::from_utf8_lossy(command);
    let (stream, identity) = command.split_once('\n').unwrap();
    let head = serde_json::json!({ "stream": stream, "release": "\u{1b}[2J", "identity": identity, "digest": "" });
    let head = head.to_string();
    format!("{},{names}}}", head.trim_end_matches('}'))
}
