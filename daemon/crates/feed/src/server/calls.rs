//! A connection's calls: `GetFlightInfo` and `DoGet` of Arrow Flight.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use forebay_engine::{FedRows, FeedRequest, SupplyFailure};
use forebay_protocol::identity::Identity;
use futures_util::Stream;
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use prost::Message as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tonic::body::Body;
use tonic::server::Grpc;
use tonic::{Request, Response, Status};

use super::sending::Answers;
use super::turns::Turn;
use super::{ServedStream, Shared};
use crate::buffers::Buffers;
use crate::codec::Messages;
use crate::ipc;
use crate::messages::{
    Answer, COMMAND, Failure, FailureKind, FlightData, FlightDescriptor, FlightInfo, Ticket,
};
use crate::ticket;

/// The most bytes of a request.
const MAX_REQUEST_BYTES: usize = 64 << 10;
/// The longest reason or traceback that is sent.
const MAX_REASON_BYTES: usize = 16 << 10;

/// Answers one peer's calls.
#[derive(Debug, Clone)]
pub(super) struct Calls {
    shared: Arc<Shared>,
    /// The number of this peer.
    peer: u64,
    /// Requests of this peer.
    requests: Arc<Semaphore>,
    most: u32,
    answers: Answers,
}

impl Calls {
    pub(super) fn new(shared: Arc<Shared>, peer: u64, answers: Answers) -> Self {
        let most = shared.streams.iter().map(|stream| stream.info.requests).max().unwrap_or(1);
        Self { shared, peer, requests: Arc::new(Semaphore::new(most as usize)), most, answers }
    }

    /// The streams of HTTP/2 that a peer may have open: some are open besides requests of rows, and some that were reset.
    pub(super) fn most_requests(&self) -> u32 {
        2 * self.most + 8
    }

    fn info(&self, wanted: &FlightDescriptor) -> Result<FlightInfo, Status> {
        let stream = match wanted.kind {
            COMMAND => self.stream_of_identity(&wanted.command)?,
            _ => self.stream_of_name(wanted.path.first().map_or("", String::as_str))?,
        };
        let metadata = serde_json::to_vec(&stream.info).unwrap_or_default();
        Ok(FlightInfo {
            schema: ipc::encapsulated(&stream.schema).into(),
            descriptor: Some(wanted.clone()),
            endpoints: Vec::new(),
            total_records: i64::try_from(stream.samples).unwrap_or(-1),
            total_bytes: -1,
            metadata: metadata.into(),
        })
    }

    fn stream_of_name(&self, name: &str) -> Result<&ServedStream, Status> {
        let streams = &self.shared.streams;
        let found = match name {
            "" => streams.first(),
            name => streams.iter().find(|stream| stream.info.stream == name),
        };
        found.ok_or_else(|| {
            let names: Vec<&str> = streams.iter().map(|one| one.info.stream.as_str()).collect();
            Status::not_found(format!("no stream `{name}` here; there are {}", names.join(", ")))
        })
    }

    /// The stream with an identity; otherwise the differences from the stream of the same name, or of the one that there
    /// is.
    fn stream_of_identity(&self, command: &[u8]) -> Result<&ServedStream, Status> {
        let text = std::str::from_utf8(command)
            .map_err(|_| Status::invalid_argument("the command is no text"))?;
        let (name, identity) = text.split_once('\n').unwrap_or(("", text));
        let streams = &self.shared.streams;
        if let Some(same) = streams.iter().find(|stream| stream.info.identity == identity) {
            return Ok(same);
        }
        let other = match streams.as_slice() {
            [only] => only,
            _ => self.stream_of_name(name)?,
        };
        let difference = differences(&other.info.identity, identity);
        Err(Status::failed_precondition(format!(
            "stream `{}` of this feeder differs from the daemon's: {difference}",
            other.info.stream
        )))
    }

    fn rows(&self, wanted: &Ticket) -> Result<Rows, Status> {
        let ticket = ticket::Ticket::read(&wanted.ticket)
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        let streams = self.shared.streams.iter();
        let found = streams.enumerate().find(|(_, stream)| stream.digest == ticket.identity);
        let Some((number, stream)) = found else {
            return Err(Status::failed_precondition(
                "the ticket's identity is that of no stream of this feeder; ask with GetFlightInfo",
            ));
        };
        let most = stream.info.rows as usize;
        if ticket.rows.len() > most {
            let count = ticket.rows.len();
            return Err(Status::invalid_argument(format!(
                "a ticket has at most {most} rows here (feed.rows), and this one has {count}"
            )));
        }
        if let Some(beyond) = ticket.rows.iter().find(|row| row.sample >= stream.samples) {
            return Err(Status::invalid_argument(format!(
                "there are {} samples, and no sample {}",
                stream.samples, beyond.sample
            )));
        }
        let Ok(permit) = Arc::clone(&self.requests).try_acquire_owned() else {
            return Err(Status::resource_exhausted(format!(
                "{} requests of this daemon are under way, the most",
                self.most
            )));
        };
        let (schema, rows) = (stream.schema.clone(), stream.rows.clone());
        let turns = Arc::clone(&self.shared.turns[number]);
        let mut turn = turns.enter(self.peer, ticket.rows.len() as u64, ticket.is_urgent);
        let asked = async move {
            turn.begins().await;
            let (reply, answer) = oneshot::channel();
            let request = FeedRequest { rows: ticket.rows, reply };
            let ended = || Status::unavailable("the feeder ends");
            rows.send(request).await.map_err(|_| ended())?;
            let mut fed = answer.await.map_err(|_| ended())?;
            fed.waiting += turns.waiting_rows();
            Ok((fed, turn))
        };
        let buffers = Arc::clone(&self.shared.buffers);
        Ok(Rows { state: State::Schema(schema, Box::pin(asked)), buffers, _permit: permit })
    }
}

/// Names each difference of two identities: this feeder's and the daemon's.
fn differences(here: &str, there: &str) -> String {
    let (Ok(here), Ok(there)) = (here.parse::<Identity>(), there.parse::<Identity>()) else {
        return "the daemon's identity cannot be read".to_owned();
    };
    let missing = "nothing";
    let of_here = here.keys().filter(|key| here.get(key) != there.get(key));
    let of_there = there.keys().filter(|key| here.get(key).is_none());
    let text = |key: &str| {
        let value = |identity: &Identity| identity.get(key).unwrap_or(missing).to_owned();
        format!("{key} is {} here and {} there", value(&here), value(&there))
    };
    of_here.chain(of_there).map(text).collect::<Vec<_>>().join("; ")
}

type Asked = Pin<Box<dyn Future<Output = Result<Made, Status>> + Send>>;
/// Rows, with their place among the requests of all peers: the slot of the rows is free before the place is.
type Made = (FedRows, Turn);

/// The answer to a ticket.
struct Rows {
    state: State,
    buffers: Arc<Buffers>,
    _permit: OwnedSemaphorePermit,
}

enum State {
    Schema(Bytes, Asked),
    Waits(Asked),
    Sends(Made, VecDeque<usize>),
    Done,
}

impl Rows {
    fn next_message(&self, (fed, _): &Made, places: &mut VecDeque<usize>) -> FlightData {
        let (batch, rows) = ipc::batch(fed, places.make_contiguous(), &self.buffers);
        let sent = places.drain(..rows).filter_map(|place| u32::try_from(place).ok()).collect();
        let answer = Answer { rows: sent, ..Answer::default() };
        FlightData {
            header: batch.header.into(),
            metadata: answer.encode_to_vec().into(),
            body: batch.body,
        }
    }

    fn last_message((fed, _): &Made) -> FlightData {
        let failures = fed.failures.iter().map(|(row, failure)| describe(*row, failure)).collect();
        let answer = Answer { failures, waiting: fed.waiting, is_last: true, rows: Vec::new() };
        FlightData { metadata: answer.encode_to_vec().into(), ..FlightData::default() }
    }
}

fn describe(row: usize, failure: &SupplyFailure) -> Failure {
    let cut = |text: &str| {
        let mut end = text.len().min(MAX_REASON_BYTES);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text[..end].to_owned()
    };
    let row = u32::try_from(row).unwrap_or(u32::MAX);
    let plain = |kind: FailureKind, reason: &str| Failure {
        row,
        kind: kind.into(),
        reason: cut(reason),
        ..Failure::default()
    };
    match failure {
        SupplyFailure::Defect(reason) => plain(FailureKind::Defect, reason),
        SupplyFailure::Elsewhere(reason) => plain(FailureKind::Elsewhere, reason),
        SupplyFailure::Raised { stage, summary, text } => Failure {
            text: cut(text),
            stage: u32::try_from(*stage).unwrap_or(0),
            ..plain(FailureKind::Raised, summary)
        },
    }
}

impl Stream for Rows {
    type Item = Result<FlightData, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let (state, item) = match std::mem::replace(&mut self.state, State::Done) {
            State::Schema(header, asked) => {
                let message = FlightData { header, ..FlightData::default() };
                (State::Waits(asked), Ok(message))
            }
            State::Waits(mut asked) => match asked.as_mut().poll(context) {
                Poll::Pending => {
                    self.state = State::Waits(asked);
                    return Poll::Pending;
                }
                Poll::Ready(Err(status)) => (State::Done, Err(status)),
                Poll::Ready(Ok(made)) => {
                    let failed = &made.0.failures;
                    let mut places: VecDeque<usize> =
                        (0..made.0.rows).filter(|row| !failed.contains_key(row)).collect();
                    if places.is_empty() {
                        (State::Done, Ok(Self::last_message(&made)))
                    } else {
                        let message = self.next_message(&made, &mut places);
                        (State::Sends(made, places), Ok(message))
                    }
                }
            },
            State::Sends(made, mut places) if !places.is_empty() => {
                let message = self.next_message(&made, &mut places);
                (State::Sends(made, places), Ok(message))
            }
            State::Sends(made, _) => (State::Done, Ok(Self::last_message(&made))),
            State::Done => return Poll::Ready(None),
        };
        self.state = state;
        Poll::Ready(Some(item))
    }
}

/// A call as a service of tonic's.
struct Call<F>(F);

type Answered<T> = Pin<Box<dyn Future<Output = Result<Response<T>, Status>> + Send>>;

impl<F, I, O> tower_service::Service<Request<I>> for Call<F>
where
    F: FnMut(I) -> Result<O, Status>,
    O: Send + 'static,
{
    type Response = Response<O>;
    type Error = Status;
    type Future = Answered<O>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<I>) -> Self::Future {
        let answer = (self.0)(request.into_inner()).map(Response::new);
        Box::pin(std::future::ready(answer))
    }
}

/// The ticket of a call.
async fn read_ticket(request: http::Request<Incoming>) -> Result<Ticket, Status> {
    let body = Limited::new(request.into_body(), MAX_REQUEST_BYTES).collect().await;
    let body = body.map_err(|_| Status::invalid_argument("the ticket is too long, or cut off"))?;
    let bytes = body.to_bytes();
    // A message of gRPC: whether it is compressed, its length as u32, and itself.
    let (head, message) = bytes.split_at_checked(5).unwrap_or_default();
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    if head != [&[0][..], &length.to_be_bytes()].concat() {
        return Err(Status::invalid_argument(
            "the call has not one message that is not compressed",
        ));
    }
    Ticket::decode(bytes.slice(5..)).map_err(|error| Status::invalid_argument(error.to_string()))
}

async fn do_get(calls: Calls, request: http::Request<Incoming>) -> http::Response<Body> {
    let rows = match read_ticket(request).await {
        Ok(ticket) => calls.rows(&ticket),
        Err(status) => Err(status),
    };
    let body = match rows {
        Ok(rows) => calls.answers.body(rows),
        Err(status) => return status.into_http(),
    };
    let mut response = http::Response::new(body);
    let kind = http::HeaderValue::from_static("application/grpc");
    response.headers_mut().insert(http::header::CONTENT_TYPE, kind);
    response
}

impl hyper::service::Service<http::Request<Incoming>> for Calls {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, request: http::Request<Incoming>) -> Self::Future {
        let calls = self.clone();
        Box::pin(async move {
            Ok(match request.uri().path() {
                "/arrow.flight.protocol.FlightService/GetFlightInfo" => {
                    let info = Call(move |wanted: FlightDescriptor| calls.info(&wanted));
                    let codec = Messages::<FlightInfo, FlightDescriptor>::default();
                    limited(codec).unary(info, request).await
                }
                "/arrow.flight.protocol.FlightService/DoGet" => do_get(calls, request).await,
                _ => Status::unimplemented(
                    "a feeder answers GetFlightInfo and DoGet; see docs/design/feeders.md",
                )
                .into_http(),
            })
        })
    }
}

fn limited<Sent, Received>(codec: Messages<Sent, Received>) -> Grpc<Messages<Sent, Received>>
where
    Sent: prost::Message + Send + 'static,
    Received: prost::Message + Default + Send + 'static,
{
    Grpc::new(codec).max_decoding_message_size(MAX_REQUEST_BYTES)
}
