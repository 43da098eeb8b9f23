//! The messages of an answer, as gRPC has them in the frames of HTTP/2: whether it is compressed (u8), the length (u32, the
//! highest byte first), the message.
//!
//! tonic collects a message in fresh memory, of which each page costs a fault: a third of the time that a row takes to
//! receive. Here its memory is used again.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, TE};
use http::uri::{PathAndQuery, Uri};
use http::{HeaderValue, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body, Incoming};
use hyper::client::conn::http2::SendRequest;
use prost::Message as _;
use tonic::{Code, Status};

use crate::buffers::Buffers;
use crate::messages::{FlightData, Ticket};

const HEAD_BYTES: usize = 5;
const DO_GET: PathAndQuery =
    PathAndQuery::from_static("/arrow.flight.protocol.FlightService/DoGet");

/// Where requests are sent, and what their answers need.
#[derive(Debug, Clone)]
pub(super) struct Asks {
    pub(super) sender: SendRequest<tonic::body::Body>,
    pub(super) origin: Uri,
    /// The most bytes of a message.
    pub(super) most: usize,
    pub(super) buffers: Arc<Buffers>,
}

impl Asks {
    /// Asks for the rows of a ticket.
    ///
    /// # Errors
    /// The feeder refuses, or the connection is lost.
    pub(super) async fn rows(
        &mut self,
        ticket: &Ticket,
    ) -> Result<AnswerMessages<Incoming>, Status> {
        let mut message = vec![0; HEAD_BYTES];
        let length = u32::try_from(ticket.encoded_len()).unwrap_or(u32::MAX);
        message[1..].copy_from_slice(&length.to_be_bytes());
        // A vector has room for every message.
        let _ = ticket.encode(&mut message);
        let mut parts = self.origin.clone().into_parts();
        parts.path_and_query = Some(DO_GET);
        let uri = Uri::from_parts(parts).map_err(|error| Status::internal(error.to_string()))?;
        let mut request = http::Request::post(uri)
            .body(tonic::body::Body::new(Full::new(Bytes::from(message))))
            .map_err(|error| Status::internal(error.to_string()))?;
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert(TE, HeaderValue::from_static("trailers"));
        let answer = self.sender.send_request(request).await;
        let answer = answer.map_err(|error| Status::from_error(Box::new(error)))?;
        let status = Status::from_header_map(answer.headers());
        // An answer of headers alone.
        let has_ended = status.is_some();
        refuse(status)?;
        match answer.status() {
            StatusCode::OK => {
                let buffers = Arc::clone(&self.buffers);
                let messages = AnswerMessages::new(answer.into_body(), self.most, buffers);
                Ok(AnswerMessages { has_ended, ..messages })
            }
            // What answers is something else than a feeder: it is refused as one that has other rows.
            other => Err(Status::failed_precondition(format!("it answered {other}"))),
        }
    }
}

fn refuse(status: Option<Status>) -> Result<(), Status> {
    status.filter(|status| status.code() != Code::Ok).map_or(Ok(()), Err)
}

/// The messages of an answer.
#[derive(Debug)]
pub(super) struct AnswerMessages<B> {
    body: B,
    most: usize,
    buffers: Arc<Buffers>,
    /// What is left of the newest frame.
    frame: Bytes,
    has_ended: bool,
}

impl<B> AnswerMessages<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: std::error::Error + Send + Sync + 'static,
{
    fn new(body: B, most: usize, buffers: Arc<Buffers>) -> Self {
        Self { body, most, buffers, frame: Bytes::new(), has_ended: false }
    }

    /// The next message; `None`: the answer has ended.
    ///
    /// # Errors
    /// The feeder says why it has ended too early, the connection is lost, or the message is too long or malformed.
    pub(super) async fn next(&mut self) -> Result<Option<FlightData>, Status> {
        let mut head = Vec::with_capacity(HEAD_BYTES);
        while head.len() < HEAD_BYTES {
            if self.frame.is_empty() && !self.next_frame().await? {
                return if head.is_empty() { Ok(None) } else { Err(cut_off()) };
            }
            let taken = self.frame.len().min(HEAD_BYTES - head.len());
            head.extend_from_slice(&self.frame.split_to(taken));
        }
        let length = head.last_chunk().map_or(0, |length| u32::from_be_bytes(*length)) as usize;
        if head.first() != Some(&0) {
            return Err(Status::unimplemented("a message is compressed, and none is asked for"));
        }
        if length > self.most {
            let most = self.most;
            return Err(Status::out_of_range(format!(
                "a message has {length} bytes, and the rows of one {most} at most"
            )));
        }
        let message = self.bytes(length).await?;
        let message = FlightData::decode(message);
        message.map(Some).map_err(|error| Status::invalid_argument(error.to_string()))
    }

    async fn bytes(&mut self, length: usize) -> Result<Bytes, Status> {
        if self.frame.len() >= length {
            return Ok(self.frame.split_to(length));
        }
        let mut message = self.buffers.take(length);
        while message.len() < length {
            if self.frame.is_empty() && !self.next_frame().await? {
                return Err(cut_off());
            }
            let taken = self.frame.len().min(length - message.len());
            message.extend_from_slice(&self.frame.split_to(taken));
        }
        Ok(self.buffers.lend(message))
    }

    /// Waits for a frame with bytes. False: the answer has ended as it should.
    async fn next_frame(&mut self) -> Result<bool, Status> {
        if self.has_ended {
            return Ok(false);
        }
        while let Some(frame) = self.body.frame().await {
            let frame = frame.map_err(|error| Status::from_error(Box::new(error)))?;
            match frame.into_data() {
                Ok(data) if data.is_empty() => {}
                Ok(data) => {
                    self.frame = data;
                    return Ok(true);
                }
                Err(other) => {
                    let trailers = other.into_trailers().unwrap_or_default();
                    let status = Status::from_header_map(&trailers);
                    self.has_ended = true;
                    return refuse(Some(status.unwrap_or_else(cut_off))).map(|()| false);
                }
            }
        }
        Err(cut_off())
    }
}

fn cut_off() -> Status {
    Status::internal("the answer is cut off")
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::stream;
    use http_body_util::StreamBody;
    use hyper::body::Frame;
    use hyper_util::rt::{TokioExecutor, TokioIo};

    use super::*;

    fn message(length: usize) -> FlightData {
        let body: Vec<u8> = (0..length).map(|at| at.to_le_bytes()[0]).collect();
        FlightData {
            header: Bytes::from_static(b"header"),
            body: body.into(),
            ..FlightData::default()
        }
    }

    fn framed(message: &FlightData) -> Vec<u8> {
        let length = u32::try_from(message.encoded_len()).unwrap();
        [&[0][..], &length.to_be_bytes(), &message.encode_to_vec()].concat()
    }

    /// The messages of bytes that come in frames of so many, with trailers after them.
    async fn read(
        bytes: &[u8],
        step: usize,
        end: Option<Status>,
    ) -> Result<Vec<FlightData>, Status> {
        let pieces = bytes.chunks(step).map(|piece| Frame::data(Bytes::copy_from_slice(piece)));
        let trailers = end.map(|status| {
            let mut headers = http::HeaderMap::new();
            status.add_header(&mut headers).unwrap();
            Frame::trailers(headers)
        });
        let frames: Vec<Result<_, Infallible>> = pieces.chain(trailers).map(Ok).collect();
        let body = StreamBody::new(stream::iter(frames));
        let mut messages = AnswerMessages::new(body, 1000, Arc::default());
        let mut found = Vec::new();
        while let Some(message) = messages.next().await? {
            found.push(message);
        }
        Ok(found)
    }

    #[tokio::test]
    async fn messages_come_out_of_frames_of_any_size() {
        let sent = [0, 1, 300, 7, 900].map(message);
        let bytes: Vec<u8> = sent.iter().flat_map(framed).collect();
        for step in 1..bytes.len() + 2 {
            assert_eq!(read(&bytes, step, Some(Status::ok(""))).await.unwrap(), sent, "{step}");
        }
    }

    #[tokio::test]
    async fn answers_that_do_not_end_as_they_should_are_refused() {
        let bytes = framed(&message(300));
        let code = |found: Result<Vec<FlightData>, Status>| found.unwrap_err().code();
        for end in 1..bytes.len() {
            assert_eq!(code(read(&bytes[..end], 100, Some(Status::ok(""))).await), Code::Internal);
        }
        assert_eq!(code(read(&bytes, 100, None).await), Code::Internal);
        let refused = Some(Status::failed_precondition("no"));
        assert_eq!(code(read(&bytes, 100, refused).await), Code::FailedPrecondition);
        let long = framed(&message(1001));
        assert_eq!(code(read(&long, 100, None).await), Code::OutOfRange);
        assert_eq!(code(read(&[&[1], &bytes[1..]].concat(), 100, None).await), Code::Unimplemented);
        assert_eq!(code(read(&[0, 0, 0, 0, 1, 9], 6, None).await), Code::InvalidArgument);
    }
    /// Asks a server that answers each request with this.
    async fn ask(
        status: StatusCode,
        end: Option<Status>,
        body: Vec<u8>,
    ) -> Result<Option<FlightData>, Status> {
        let (near, far) = tokio::io::duplex(1 << 16);
        let answer = hyper::service::service_fn(move |request: http::Request<Incoming>| {
            assert_eq!(request.uri().path(), DO_GET.path());
            let mut answer = http::Response::new(Full::new(Bytes::from(body.clone())));
            *answer.status_mut() = status;
            if let Some(end) = &end {
                end.add_header(answer.headers_mut()).unwrap();
            }
            std::future::ready(Ok::<_, Infallible>(answer))
        });
        let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        tokio::spawn(server.serve_connection(TokioIo::new(far), answer));
        let client = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
        let (sender, driver) = client.handshake(TokioIo::new(near)).await.unwrap();
        tokio::spawn(driver);
        let origin = Uri::from_static("http://feeder/");
        let mut asks = Asks { sender, origin, most: 1000, buffers: Arc::default() };
        asks.rows(&Ticket { ticket: Bytes::from_static(b"ticket") }).await?.next().await
    }

    #[tokio::test]
    async fn answers_of_headers_alone_and_of_what_is_no_feeder_are_told_apart() {
        let code =
            |found: Result<Option<FlightData>, Status>| found.map_err(|status| status.code());
        assert_eq!(ask(StatusCode::OK, Some(Status::ok("")), Vec::new()).await.unwrap(), None);
        let busy = Some(Status::resource_exhausted("busy"));
        assert_eq!(code(ask(StatusCode::OK, busy, Vec::new()).await), Err(Code::ResourceExhausted));
        let refused = ask(StatusCode::BAD_GATEWAY, None, b"<html>".to_vec()).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition);
        assert_eq!(refused.message(), "it answered 502 Bad Gateway");
        let whole = framed(&message(300));
        assert_eq!(ask(StatusCode::OK, None, whole.clone()).await.unwrap(), Some(message(300)));
        assert_eq!(code(ask(StatusCode::OK, None, whole[..9].to_vec()).await), Err(Code::Internal));
    }
}
