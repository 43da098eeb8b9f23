//! Answers on their way to a peer, and how long the peer lets them wait.
//!
//! The states of an answer, as its body tells them:
//! ```text
//!   Waits for the peer ─its window has room: the next piece is asked for─► Made ─a piece is handed over─► Waits for the peer
//!           └─ for longer than the limit: the connection ends, and its answers with it
//! ```
//! HTTP/2 asks for the next piece once the peer's window has room for it, so a piece that waits is one that the peer does
//! not read. A message is handed over in pieces: a slow link takes some in time, even of a large row.

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::{BufMut as _, Bytes, BytesMut};
use futures_util::Stream;
use http::HeaderMap;
use hyper::body::{Body, Frame};
use prost::Message as _;
use tonic::Status;

use crate::messages::FlightData;

/// The bytes of a piece.
const PIECE: usize = 256 << 10;
/// The key of [`FlightData::body`]: field 1000, with a length.
const BODY_KEY: [u8; 2] = [0xc2, 0x3e];

/// The answers of a connection.
#[derive(Debug, Clone, Default)]
pub(super) struct Answers(Arc<Mutex<Sent>>);

#[derive(Debug, Default)]
struct Sent {
    /// By answer: when the piece was made that its peer has still to take.
    waits: HashMap<u64, Instant>,
    next: u64,
}

impl Answers {
    fn sent(&self) -> MutexGuard<'_, Sent> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An answer of these messages.
    pub(super) fn body<M>(&self, messages: M) -> tonic::body::Body
    where
        M: Stream<Item = Result<FlightData, Status>> + Send + Unpin + 'static,
    {
        let mut sent = self.sent();
        sent.next += 1;
        let number = sent.next;
        // A window without room from the start is none that has been read.
        sent.waits.insert(number, Instant::now());
        drop(sent);
        let (pieces, is_done) = (VecDeque::new(), false);
        tonic::body::Body::new(Answer { messages, pieces, is_done, answers: self.clone(), number })
    }

    /// Whether an answer waits for its peer for longer than this.
    pub(super) fn are_unread(&self, limit: Duration) -> bool {
        let now = Instant::now();
        self.sent().waits.values().any(|since| now.saturating_duration_since(*since) >= limit)
    }
}

struct Answer<M> {
    messages: M,
    /// What is left of a message.
    pieces: VecDeque<Bytes>,
    is_done: bool,
    answers: Answers,
    number: u64,
}

impl<M> Drop for Answer<M> {
    fn drop(&mut self) {
        self.answers.sent().waits.remove(&self.number);
    }
}

/// A message of gRPC in pieces: what comes before its body is written, the body itself is not copied.
fn pieces(message: FlightData) -> VecDeque<Bytes> {
    let mut body = message.body;
    let head = FlightData { body: Bytes::new(), ..message };
    let mut of_body = BytesMut::new();
    if !body.is_empty() {
        of_body.put_slice(&BODY_KEY);
        // It has room for every length.
        let _ = prost::encode_length_delimiter(body.len(), &mut of_body);
    }
    let length = head.encoded_len() + of_body.len() + body.len();
    let mut first = BytesMut::with_capacity(5 + head.encoded_len() + of_body.len());
    first.put_u8(0);
    first.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    let _ = head.encode(&mut first);
    first.put_slice(&of_body);
    let mut pieces = VecDeque::from([first.freeze()]);
    while !body.is_empty() {
        pieces.push_back(body.split_to(body.len().min(PIECE)));
    }
    pieces
}

fn trailers(status: &Status) -> Frame<Bytes> {
    let mut headers = HeaderMap::new();
    // What has no place in a header is left out.
    let _ = status.add_header(&mut headers);
    Frame::trailers(headers)
}

impl<M> Body for Answer<M>
where
    M: Stream<Item = Result<FlightData, Status>> + Unpin,
{
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        if this.is_done {
            return Poll::Ready(None);
        }
        if this.pieces.is_empty() {
            this.answers.sent().waits.remove(&this.number);
            match Pin::new(&mut this.messages).poll_next(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Ok(message))) => this.pieces = pieces(message),
                Poll::Ready(end) => {
                    this.is_done = true;
                    let status = end.and_then(Result::err).unwrap_or_else(|| Status::ok(""));
                    return Poll::Ready(Some(Ok(trailers(&status))));
                }
            }
        }
        let piece = this.pieces.pop_front().unwrap_or_default();
        this.answers.sent().waits.insert(this.number, Instant::now());
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_the_message() {
        for length in [0, 1, 200, PIECE, PIECE + 1, 3 * PIECE + 7] {
            let body: Vec<u8> = (0..length).map(|at| at.to_le_bytes()[0]).collect();
            let message = FlightData {
                header: Bytes::from_static(b"header"),
                metadata: Bytes::from_static(b"metadata"),
                body: body.into(),
            };
            let pieces = pieces(message.clone());
            assert!(pieces.iter().all(|piece| piece.len() <= PIECE));
            let whole: Vec<u8> = pieces.into_iter().flatten().collect();
            assert_eq!(
                whole[..5],
                [&[0], &u32::try_from(whole.len() - 5).unwrap().to_be_bytes()[..]].concat()
            );
            assert_eq!(FlightData::decode(&whole[5..]), Ok(message));
        }
    }
}
