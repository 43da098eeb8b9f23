//! Bodies on the crate's own connections, from servers that send exact bytes.

use std::sync::Arc;
use std::time::Duration;

use object_store::client::HttpRequestBody;

use super::super::scripted_server::{ScriptedServer, Step, answer, ok};
use super::super::wire::Wires;
use super::*;

/// Reads a body of this length over connections with these steps.
fn take(steps: Vec<Step>, length_bytes: u64, target: Target<'_>) -> Result<(), String> {
    let server = ScriptedServer::new(vec![steps]);
    let tls = super::super::client::tls(false).unwrap();
    let stall = Duration::from_secs(1);
    let wires = Arc::new(Wires::new(Arc::default(), tls, http::HeaderMap::new(), stall));
    let url = format!("http://127.0.0.1:{}/", server.port);
    let request = http::Request::get(url).body(HttpRequestBody::empty()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (_, answered) = runtime.block_on(wires.exchange(&request)).unwrap();
    take_off_wire(answered, length_bytes, target).map_err(|stopped| match stopped {
        Stopped::Broken(trace) => trace.transport.unwrap_or_default(),
        Stopped::TooLong => "too long".to_owned(),
        Stopped::TooShort(missing) => format!("{missing} missing"),
        Stopped::Unwanted => "unwanted".to_owned(),
    })
}

/// Collects pieces, and lends a place for the bytes from 3 on.
#[derive(Default)]
struct Pieces {
    taken: Vec<u8>,
    wants: Option<usize>,
}

impl BodySink for Pieces {
    fn take(&mut self, piece: &[u8]) -> bool {
        self.taken.extend_from_slice(piece);
        self.wants.is_none_or(|most| self.taken.len() <= most)
    }

    fn lend(&mut self, read: &mut dyn FnMut(&mut [u8]) -> io::Result<usize>) -> Lent {
        if self.taken.len() < 3 {
            return Lent::NoBuffer;
        }
        if self.wants.is_some_and(|most| self.taken.len() > most) {
            return Lent::Unwanted;
        }
        let mut place = [0; 5];
        let read = read(&mut place);
        self.taken.extend_from_slice(&place[..*read.as_ref().unwrap_or(&0)]);
        Lent::Read(read)
    }
}

fn pieces(steps: Vec<Step>, length_bytes: u64) -> (Result<(), String>, Vec<u8>) {
    let mut pieces = Pieces::default();
    let taken = take(steps, length_bytes, Target::Pieces(&mut pieces));
    (taken, pieces.taken)
}

fn buffer(steps: Vec<Step>, length_bytes: u64) -> (Result<(), String>, Vec<u8>) {
    let mut buffer = Vec::with_capacity(usize::try_from(length_bytes).unwrap());
    let taken = take(steps, length_bytes, Target::Buffer(&mut buffer));
    (taken, buffer)
}

/// Bytes that arrive with the head, and bytes that arrive later.
fn slowly(body: &[u8]) -> Vec<Step> {
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
    let rest = body.chunks(2).skip(1).map(|piece| Step::Say(piece.to_vec()));
    let first = answer([head.as_bytes(), &body[..2.min(body.len())]].concat());
    std::iter::once(first).chain(rest).chain([Step::Hold]).collect()
}

#[test]
fn body_is_complete_regardless_of_its_pieces() {
    let body = b"0123456789abcdef";
    for steps in [slowly(body), vec![ok("0123456789abcdef"), Step::Hold]] {
        for take in [buffer, pieces] {
            assert_eq!(take(steps.clone(), 16), (Ok(()), body.to_vec()));
        }
    }
    assert_eq!(buffer(vec![ok(""), Step::Hold], 0), (Ok(()), Vec::new()));
}

#[test]
fn body_of_unexpected_length_is_refused_before_it_is_read() {
    for take in [buffer, pieces] {
        let refused = |what: &str| (Err(what.to_owned()), Vec::new());
        assert_eq!(take(vec![ok("0123456789"), Step::Hold], 7), refused("too long"));
        assert_eq!(take(vec![ok("0123456789"), Step::Hold], 12), refused("2 missing"));
    }
}

#[test]
fn body_that_ends_early_or_stops_is_an_error() {
    let head = "HTTP/1.1 200 OK\r\nContent-Length: 16\r\n\r\n";
    for take in [buffer, pieces] {
        for there in ["", "01", "0123456789"] {
            let text = format!("{head}{there}");
            let (taken, bytes) = take(vec![answer(&text)], 16);
            assert_eq!(taken, Err(format!("{} missing", 16 - there.len())));
            assert_eq!(bytes, there.as_bytes());
            let (taken, _) = take(vec![answer(&text), Step::Hold], 16);
            assert_eq!(taken, Err("nothing was received for 1 s".to_owned()));
        }
    }
}

#[test]
fn receiver_can_stop_reading() {
    for most in [1, 4] {
        let mut pieces = Pieces { wants: Some(most), ..Pieces::default() };
        let taken = take(slowly(b"0123456789"), 10, Target::Pieces(&mut pieces));
        assert_eq!(taken, Err("unwanted".to_owned()));
    }
}
