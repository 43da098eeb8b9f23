//! Answers on their way to a peer, and how long the peer lets them wait.
//!
//! The states of an answer, as its body tells them:
//! ```text
//!   Waits for the peer ─its window has room: the next piece is asked for─► Made ─a piece is handed over─► Waits for the peer
//!           └─ for longer than the limit: the connection ends, and its answers with it
//! ```
//! HTTP/2 asks for the next piece once the peer's window has room for it, so a piece that waits is one that the peer does
//! not read. A message is handed over in pieces: a slow link takes some in time, even of a large row.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::{Buf as _, Bytes};
use hyper::body::{Body as HttpBody, Frame};
use tonic::Status;
use tonic::body::Body;

/// The bytes of a piece.
const PIECE: usize = 256 << 10;

/// The answers of a connection.
#[derive(Debug, Clone, Default)]
pub(super) struct Answers(Arc<Mutex<Sent>>);

#[derive(Debug, Default)]
struct Sent {
    /// By answer: since when its peer has not taken a piece.
    waits: HashMap<u64, Instant>,
    next: u64,
}

impl Answers {
    fn sent(&self) -> MutexGuard<'_, Sent> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches an answer.
    pub(super) fn watch(&self, body: Body) -> Body {
        let mut sent = self.sent();
        sent.next += 1;
        let number = sent.next;
        // A window without room from the start is none that has been read.
        sent.waits.insert(number, Instant::now());
        drop(sent);
        Body::new(Watched { body, rest: Bytes::new(), answers: self.clone(), number })
    }

    /// Whether an answer waits for its peer for longer than this.
    pub(super) fn are_unread(&self, limit: Duration) -> bool {
        let now = Instant::now();
        self.sent().waits.values().any(|since| now.saturating_duration_since(*since) >= limit)
    }
}

#[derive(Debug)]
struct Watched {
    body: Body,
    /// What is left of a message.
    rest: Bytes,
    answers: Answers,
    number: u64,
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.answers.sent().waits.remove(&self.number);
    }
}

impl HttpBody for Watched {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        if this.rest.is_empty() {
            this.answers.sent().waits.remove(&this.number);
            let frame = match Pin::new(&mut this.body).poll_frame(context) {
                Poll::Ready(Some(Ok(frame))) => frame,
                other => return other,
            };
            match frame.into_data() {
                Ok(data) => this.rest = data,
                Err(frame) => return Poll::Ready(Some(Ok(frame))),
            }
        }
        let piece = this.rest.split_to(this.rest.remaining().min(PIECE));
        this.answers.sent().waits.insert(this.number, Instant::now());
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }
}
