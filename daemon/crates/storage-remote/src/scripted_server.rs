//! For tests: a server that sends exact bytes, regardless of the request.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// One step on a connection, which is closed after the last.
#[derive(Debug, Clone)]
pub(super) enum Step {
    /// Waits for a whole request and sends these bytes.
    Answer(Vec<u8>),
    /// Sends bytes without a request.
    Say(Vec<u8>),
    /// Waits for a whole request.
    Listen,
    /// Waits until the other end has closed the connection, up to a time limit.
    Hold,
}

/// Answers a request with these bytes.
pub(super) fn answer(bytes: impl AsRef<[u8]>) -> Step {
    Step::Answer(bytes.as_ref().to_vec())
}

/// An HTTP/1.1 response with a body.
pub(super) fn ok(body: &str) -> Step {
    let tag: String = body.bytes().take(32).map(|byte| format!("{byte:x}")).collect();
    let length = body.len();
    answer(format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nETag: \"{tag}\"\r\n\r\n{body}"))
}

/// Each connection follows its own list of steps; its requests are recorded.
#[derive(Debug)]
pub(super) struct ScriptedServer {
    pub(super) port: u16,
    asked: Arc<Mutex<Vec<Vec<String>>>>,
}

impl ScriptedServer {
    /// The first connections follow these steps; further ones are closed.
    pub(super) fn new(connections: Vec<Vec<Step>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let shared = Arc::clone(&asked);
        std::thread::spawn(move || {
            for (number, stream) in listener.incoming().flatten().enumerate() {
                shared.lock().unwrap().push(Vec::new());
                let steps = connections.get(number).cloned().unwrap_or_default();
                let shared = Arc::clone(&shared);
                std::thread::spawn(move || {
                    let note = |request| shared.lock().unwrap()[number].push(request);
                    for step in steps {
                        if play(&stream, &step, note).is_none() {
                            break;
                        }
                    }
                });
            }
        });
        Self { port, asked }
    }

    /// The requests of each connection so far.
    pub(super) fn asked(&self) -> Vec<Vec<String>> {
        self.asked.lock().unwrap().clone()
    }

    /// The number of requests of each connection so far.
    pub(super) fn counts(&self) -> Vec<usize> {
        self.asked().iter().map(Vec::len).collect()
    }
}

fn play(mut stream: &TcpStream, step: &Step, note: impl Fn(String)) -> Option<()> {
    match step {
        Step::Answer(bytes) => {
            note(request(stream)?);
            stream.write_all(bytes).ok()
        }
        Step::Say(bytes) => stream.write_all(bytes).ok(),
        Step::Listen => {
            note(request(stream)?);
            Some(())
        }
        Step::Hold => {
            stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            while stream.read(&mut [0; 1024]).ok()? > 0 {}
            None
        }
    }
}

/// A request without a body.
fn request(mut stream: &TcpStream) -> Option<String> {
    let mut text = Vec::new();
    let mut byte = [0];
    while !text.ends_with(b"\r\n\r\n") {
        if stream.read(&mut byte).ok()? == 0 {
            return None;
        }
        text.push(byte[0]);
    }
    String::from_utf8(text).ok()
}
