//! One feeder's connection: connects, compares identities, sends requests, hands rows over.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use forebay_engine::SupplyFailure;
use http::uri::PathAndQuery;
use hyper::body::Incoming;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use prost::Message as _;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tonic::body::Body;
use tonic::client::Grpc;
use tonic::{Code, Request, Status};

use crate::client::Shared;
use crate::client::answer::Asks;
use crate::client::table::ToSend;
use crate::codec::Messages;
use crate::discovery::Feeder;
use crate::ipc::Received;
use crate::messages::{
    Answer, COMMAND, FailureKind, FlightData, FlightDescriptor, FlightInfo, StreamInfo, Ticket,
};
use crate::server::is_loopback;
use crate::sockets::{Connection, PING_LIMIT, PING_PERIOD, prepare};
use crate::spread::feeder_key;
use crate::ticket;

/// How long connecting, and the first answer, may take.
const CONNECT: Duration = Duration::from_secs(5);
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// A request without any message for so long is given up, and so is a connection whose requests have waited so long in sum
/// since the last message.
const STALLED: Duration = Duration::from_secs(60);
/// The state of a feeder that takes no further requests.
const DRAINS: &str = "the feeder takes no further requests";
/// The most characters of a failure's texts that are kept.
const MOST_TEXT: usize = 16 << 10;
/// How often it is looked whether anybody still wants the rows of a request.
const LOOK_PERIOD: Duration = Duration::from_millis(100);
/// How long rows stay with a feeder that refuses a request: otherwise they would be asked of it again at once.
const REFUSED: Duration = Duration::from_millis(100);
/// The most characters of a feeder's refusal that are shown.
const MOST_REFUSAL: usize = 4 << 10;
/// Beyond the rows of a message.
const BESIDE_BYTES: usize = 5 << 20;
const MAX_FRAME: u32 = 256 << 10;

/// Keeps a feeder connected until it is no longer listed.
pub(super) async fn keep(shared: Arc<Shared>, feeder: Feeder) {
    let key = feeder_key(&feeder);
    let mut pause = FIRST_PAUSE;
    let mut said = String::new();
    while shared.table().goes_on(key) {
        let (has_served, reason) = serve(&shared, &feeder, key).await;
        if has_served {
            (pause, said) = (FIRST_PAUSE, String::new());
        }
        if said != reason {
            tracing::warn!(feeder = %feeder.address, host = &*feeder.host, "{reason}; trying again");
            said.clone_from(&reason);
        }
        shared.table().waits(key, Some(reason));
        shared.wake_engine();
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Connects and serves until the connection ends: whether it was ever of use, and why it ended.
async fn serve(shared: &Arc<Shared>, feeder: &Feeder, key: u64) -> (bool, String) {
    let opened = async {
        let (sender, driver) = connect(shared, feeder).await?;
        let driver = tokio::spawn(driver);
        let authority = feeder.address.to_string();
        let origin = http::Uri::builder().scheme("http").authority(authority).path_and_query("/");
        let origin = origin.build().map_err(|error| error.to_string())?;
        let most = shared.row_bytes.saturating_add(BESIDE_BYTES);
        let buffers = Arc::clone(&shared.buffers);
        let asks = Asks { sender, origin, most, buffers };
        let info = ask_info(shared, &asks).await?;
        Ok::<_, String>((asks, driver, info))
    };
    let (asks, driver, info) = match tokio::time::timeout(CONNECT, opened).await {
        Ok(Ok(opened)) => opened,
        Ok(Err(reason)) => return (false, reason),
        Err(_) => return (false, format!("no answer within {} s", CONNECT.as_secs())),
    };
    // Bounded by the feeder's window.
    let (queue, requests) = mpsc::unbounded_channel();
    if !shared.table().serves(key, &info, queue) {
        return (false, "no longer wanted".to_owned());
    }
    tracing::info!(feeder = %feeder.address, host = &*feeder.host, cores = info.cores, "a feeder serves");
    shared.wake_engine();
    send_all(shared, key, asks, driver, requests).await
}

type Driver = Pin<Box<dyn Future<Output = Result<(), hyper::Error>> + Send>>;

async fn connect(shared: &Shared, feeder: &Feeder) -> Result<(SendRequest<Body>, Driver), String> {
    let Feeder { address, host } = feeder;
    if shared.tls.is_none() && !shared.allow_plain && !is_loopback(address) {
        return Err(
            "a plain connection to another host is refused: set feeders.tls (`forebay keys` makes the files), or \
             feeders.allow_plain = true where the network encrypts"
                .to_owned(),
        );
    }
    let socket = TcpStream::connect(address).await;
    let socket = socket.map_err(|error| format!("cannot connect: {error}"))?;
    prepare(&socket).map_err(|error| error.to_string())?;
    let connection = match &shared.tls {
        None => Connection::Plain(socket),
        Some(tls) => {
            let name = tls.server_name(host).map_err(|error| error.to_string())?;
            let connector = tokio_rustls::TlsConnector::from(tls.current());
            let connected = connector.connect(name, socket).await;
            Connection::Client(Box::new(connected.map_err(|error| tls.explain(&error))?))
        }
    };
    let (sender, driver) = Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .initial_stream_window_size(shared.window)
        .initial_connection_window_size(shared.window)
        .max_frame_size(MAX_FRAME)
        .keep_alive_interval(Some(PING_PERIOD))
        .keep_alive_timeout(PING_LIMIT)
        .keep_alive_while_idle(true)
        .handshake(TokioIo::new(connection))
        .await
        .map_err(|error| error.to_string())?;
    Ok((sender, Box::pin(driver)))
}

/// Compares identities.
async fn ask_info(shared: &Shared, asks: &Asks) -> Result<StreamInfo, String> {
    let mut calls = Grpc::with_origin(Channel(asks.sender.clone()), asks.origin.clone());
    let command = format!("{}\n{}", shared.stream, shared.identity);
    let wanted = FlightDescriptor { kind: COMMAND, command: command.into(), path: Vec::new() };
    let path = PathAndQuery::from_static("/arrow.flight.protocol.FlightService/GetFlightInfo");
    calls.ready().await.map_err(|error| error.to_string())?;
    let codec = Messages::<FlightDescriptor, FlightInfo>::default();
    let answer = calls.unary(Request::new(wanted), path, codec).await;
    let answer = answer.map_err(|status| explained(&status))?.into_inner();
    let info: StreamInfo = serde_json::from_slice(&answer.metadata)
        .map_err(|_| "it does not say what it serves: it is no feeder of Forebay's".to_owned())?;
    if info.identity != shared.identity {
        return Err("it says that it serves other rows".to_owned());
    }
    Ok(info)
}

/// Whether the feeder itself says no.
fn is_refusal(status: &Status) -> bool {
    matches!(status.code(), Code::FailedPrecondition | Code::InvalidArgument | Code::NotFound)
}

fn explained(status: &Status) -> String {
    let message = line(status.message(), MOST_REFUSAL);
    if is_refusal(status) { message } else { format!("{}: {message}", status.code()) }
}

/// What an error says, and what it came from.
fn whole(error: &hyper::Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        text.push_str(&format!(": {inner}"));
        source = inner.source();
    }
    text
}

/// Sends requests until the connection ends: whether it was of use until then, and why it did.
async fn send_all(
    shared: &Arc<Shared>,
    key: u64,
    asks: Asks,
    mut driver: tokio::task::JoinHandle<Result<(), hyper::Error>>,
    mut requests: mpsc::UnboundedReceiver<ToSend>,
) -> (bool, String) {
    let mut under_way = tokio::task::JoinSet::new();
    let unanswered = Arc::new(Unanswered::default());
    let (mut is_open, mut is_sound) = (true, false);
    let reason = loop {
        tokio::select! {
            request = requests.recv(), if is_open => match request {
                Some(request) => {
                    let unanswered = Arc::clone(&unanswered);
                    under_way.spawn(ask(Arc::clone(shared), key, asks.clone(), (request, unanswered)));
                }
                // It was set aside, or is no longer listed.
                None => is_open = false,
            },
            ended = &mut driver => {
                break match ended {
                    Ok(Ok(())) => "the feeder has closed the connection".to_owned(),
                    Ok(Err(error)) => format!("the connection is lost: {}", whole(&error)),
                    Err(error) => error.to_string(),
                };
            }
            Some(answered) = under_way.join_next() => {
                // A feeder that answers nonsense or nothing is asked again after longer and longer pauses.
                match answered {
                    Ok(Ok(has_rows)) => is_sound |= has_rows,
                    Ok(Err(reason)) => {
                        is_sound = false;
                        break reason;
                    }
                    Err(error) => break error.to_string(),
                }
            }
        }
        let is_of_use = is_open && shared.table().is_serving(key);
        if !is_of_use && under_way.is_empty() {
            break if is_open { DRAINS } else { "no longer wanted" }.to_owned();
        }
    };
    // Nothing is sent to it from here on; what was asked comes back to the engine.
    shared.table().waits(key, Some(reason.clone()));
    requests.close();
    driver.abort();
    (is_sound, reason)
}

/// How long requests of a connection have waited in sum since its last message, and got none.
#[derive(Default)]
struct Unanswered(Mutex<Duration>);

impl Unanswered {
    fn is_answered(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Duration::ZERO;
    }

    fn add(&self, waited: Duration) -> Duration {
        let mut sum = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *sum = sum.saturating_add(waited);
        *sum
    }
}

/// Asks for rows and writes them, until nobody wants them: then the stream is reset, and the feeder stops making them.
/// Whether rows came.
async fn ask(
    shared: Arc<Shared>,
    key: u64,
    asks: Asks,
    (request, unanswered): (ToSend, Arc<Unanswered>),
) -> Result<bool, String> {
    let begun = tokio::time::Instant::now();
    let has_rows = tokio::select! {
        answered = ask_for(&shared, key, asks, (&request, &unanswered)) => answered?,
        () = until_unwanted(&request) => false,
    };
    // Its rows were made elsewhere, or it had no place for them: each request is in order, all of them together are not.
    if !has_rows && unanswered.add(begun.elapsed()) >= STALLED {
        return Err(format!(
            "its requests have waited {} s together, and it sent no row",
            STALLED.as_secs()
        ));
    }
    Ok(has_rows)
}

async fn until_unwanted(request: &ToSend) {
    while (0..request.rows.len()).any(|row| request.taker.is_wanted(row)) {
        tokio::time::sleep(LOOK_PERIOD).await;
    }
}

async fn ask_for(
    shared: &Arc<Shared>,
    key: u64,
    mut asks: Asks,
    (request, unanswered): (&ToSend, &Unanswered),
) -> Result<bool, String> {
    let ticket = ticket::Ticket {
        identity: shared.digest,
        is_urgent: request.is_urgent,
        rows: request.rows.clone(),
    };
    if asks.sender.ready().await.is_err() {
        // It drains, or the connection is lost: the rows come back to the engine.
        shared.table().waits(key, Some(DRAINS.to_owned()));
        return Ok(false);
    }
    let silent = || format!("it sent nothing for {} s", STALLED.as_secs());
    let ticket = Ticket { ticket: ticket.to_bytes().into() };
    let answer = tokio::time::timeout(STALLED, asks.rows(&ticket)).await;
    let mut messages = match answer.map_err(|_| silent())? {
        Ok(messages) => messages,
        // The rows come back to the engine.
        Err(status) if status.code() == Code::ResourceExhausted => {
            tokio::time::sleep(REFUSED).await;
            return Ok(false);
        }
        Err(status) if !is_refusal(&status) => {
            shared.table().waits(key, Some(DRAINS.to_owned()));
            return Ok(false);
        }
        Err(status) => return Err(explained(&status)),
    };
    // By row: whether it has an answer.
    let mut answered = vec![false; request.rows.len()];
    loop {
        let next = tokio::time::timeout(STALLED, messages.next()).await;
        let next = next.map_err(|_| silent())?;
        let Some(message) = next.map_err(|status| explained(&status))? else {
            // Rows without an answer would be asked of it again and again.
            let missing = answered.iter().filter(|answered| !**answered).count();
            return match missing {
                0 => Ok(true),
                _ => Err(format!("its answer lacks {missing} of {} rows", answered.len())),
            };
        };
        if !message.metadata.is_empty() {
            unanswered.is_answered();
        }
        take(shared, key, request, message, &mut answered)?;
    }
}

/// Writes the rows of a message, and notes which have an answer.
fn take(
    shared: &Shared,
    key: u64,
    request: &ToSend,
    message: FlightData,
    answered: &mut [bool],
) -> Result<(), String> {
    let broken = || "an answer cannot be read".to_owned();
    if message.metadata.is_empty() {
        // The schema: the identity says what it is.
        return Ok(());
    }
    let answer = Answer::decode(message.metadata).map_err(|_| broken())?;
    let bytes = message.body.len();
    // None of its rows is written unless all are of the request.
    let failed = answer.failures.iter().map(|failure| failure.row);
    for place in answer.rows.iter().copied().chain(failed) {
        *answered.get_mut(place as usize).ok_or_else(broken)? = true;
    }
    if !answer.rows.is_empty() {
        let received = Received::read(&message.header, message.body, &shared.columns);
        let received = received.filter(|rows| rows.rows == answer.rows.len()).ok_or_else(broken)?;
        for (row, place) in answer.rows.iter().enumerate() {
            request.taker.finish(*place as usize, key, |out| {
                for (number, column) in shared.columns.iter().enumerate() {
                    let bytes = received.row(column, number, row).ok_or_else(broken)?;
                    out.write(number, bytes)?;
                }
                Ok(())
            })?;
        }
    }
    for failure in answer.failures {
        let (place, stage) = (failure.row as usize, failure.stage as usize);
        let (reason, text) = (line(&failure.reason, MOST_TEXT), lines(&failure.text, MOST_TEXT));
        let reason = match FailureKind::try_from(failure.kind) {
            Ok(FailureKind::Defect) => SupplyFailure::Defect(reason),
            Ok(FailureKind::Raised) => SupplyFailure::Raised { stage, summary: reason, text },
            _ => SupplyFailure::Elsewhere(reason),
        };
        request.taker.fail(place, reason);
    }
    let waiting = answer.is_last.then_some(answer.waiting);
    shared.table().answered(key, answer.rows.len(), bytes, waiting);
    Ok(())
}

/// The beginning of a feeder's text, of at most so many characters, as one line: it goes to logs and terminals.
fn line(text: &str, most: usize) -> String {
    text.chars().take(most).map(|one| if one.is_control() { ' ' } else { one }).collect()
}

/// The same of a text that may have several lines.
fn lines(text: &str, most: usize) -> String {
    let is_kept = |one: char| !one.is_control() || "\n\t".contains(one);
    text.chars().take(most).map(|one| if is_kept(one) { one } else { ' ' }).collect()
}

/// A connection as a service of tonic's.
#[derive(Debug, Clone)]
struct Channel(SendRequest<Body>);

impl tower_service::Service<http::Request<Body>> for Channel {
    type Response = http::Response<Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, hyper::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}
