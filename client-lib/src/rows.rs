//! Rows on request: batches of the samples that the caller names, in place of a stream's order.
//!
//! A row is a function of the stream, its sample and its pass, so a request has no state: when the daemon dies, the same
//! request is sent to the next one. One request is open at a time.

use std::sync::Arc;
use std::time::{Duration, Instant};

pub use forebay_protocol::frames::RowKey;
use forebay_protocol::frames::{
    Attached, ClientFrame, DaemonFrame, MAX_ROWS_OF_REQUEST, RowsRequest,
};
use forebay_protocol::publish::PublishReader;
use forebay_protocol::segment::Mapping;
use nix::poll::PollFlags;

use crate::batch::Batch;
use crate::error::Error;
use crate::job::{sample_count, selected_count};
use crate::link::{Ending, Link, check_version, unexpected};
use crate::patience::Patience;
use crate::ring::{Ring, Segments};
use crate::supervisor::{NextDaemon, Supervisor};

/// The duration of one wait for the supervisor.
const SLICE: Duration = Duration::from_millis(50);
const WAITED_FOR: &str = "the rows that were asked for";

/// A session whose batches are the rows that are asked for. [`crate::builder::Builder::attach_rows`] opens it.
#[derive(Debug)]
pub struct Rows {
    // Declared before the link: `drop` detaches the ring, then the link sends `Goodbye` when it is dropped.
    ring: Arc<Ring>,
    link: Link,
    publish: Arc<PublishReader<Mapping>>,
    terms: Arc<Attached>,
    stream: Option<String>,
    /// The number of the last request.
    request: u64,
    /// Batches read from the present ring.
    read: u64,
    /// Requests to the present daemon that were given up: it still answers them.
    given_up: usize,
    /// The time spent in waits for rows.
    waited: Duration,
    /// Why the session has ended.
    lost: Option<Error>,
}

/// The answer to a request, so far.
enum Answer {
    Batch(Batch),
    Waiting,
    /// The daemon died; the request is to be sent again.
    Lost,
}

impl Rows {
    pub(crate) fn new(
        link: Link,
        terms: Attached,
        segments: Segments,
        stream: Option<String>,
    ) -> Result<Self, Error> {
        let (connection, fork_mark) = (Arc::clone(link.connection()), Arc::clone(link.fork_mark()));
        let (ring, publish) = Ring::open(&terms, segments, connection, fork_mark)?;
        if let Some(supervisor) = link.supervisor() {
            supervisor.on_attached(Arc::clone(&publish));
        }
        Ok(Self {
            ring: Arc::new(ring),
            link,
            publish,
            terms: Arc::new(terms),
            stream,
            request: 0,
            read: 0,
            given_up: 0,
            waited: Duration::ZERO,
            lost: None,
        })
    }

    /// The session's terms.
    #[must_use]
    pub fn terms(&self) -> &Attached {
        &self.terms
    }

    /// The maximum number of rows of a request.
    #[must_use]
    pub fn most_rows(&self) -> usize {
        (self.terms.batch_size as usize).min(MAX_ROWS_OF_REQUEST)
    }

    /// The private daemon's process id; it changes with a restart.
    #[must_use]
    pub fn private_process(&self) -> Option<u32> {
        self.link.supervisor().and_then(Supervisor::process_id)
    }

    /// Has rows made: a batch with a row for each key, in their order. An earlier batch that is held takes a slot.
    ///
    /// # Errors
    /// [`Error::BadSample`] and the other errors of a row that cannot be made: the session remains usable.
    /// [`Error::HoldLimit`] if too many batches are held; [`Error::Timeout`] without progress; [`Error::Config`] for
    /// keys that are too many, none, or not in the dataset; the errors of a connection that has ended.
    pub fn get(&mut self, keys: &[RowKey]) -> Result<Batch, Error> {
        self.get_as(keys, false)
    }

    /// As [`get`](Self::get), where keys have the samples' ids, as batches have them in the field `index`: they differ from
    /// the numbers of the samples that are used if the configuration selects samples. Others are made as well.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn get_by_id(&mut self, keys: &[RowKey]) -> Result<Batch, Error> {
        self.get_as(keys, true)
    }

    fn get_as(&mut self, keys: &[RowKey], by_id: bool) -> Result<Batch, Error> {
        self.ring.check_process()?;
        self.check_keys(keys, by_id)?;
        if let Some(error) = &self.lost {
            return Err(error.clone());
        }
        let held = self.ring.held();
        if held > u64::from(self.terms.hold) {
            let (hold, slots) = (self.terms.hold, self.terms.slots);
            return Err(Error::HoldLimit { held, fields: String::new(), hold, slots });
        }
        if self.given_up >= usize::from(self.terms.slots) {
            // A queue of stale requests: the next session begins without them.
            self.link.hang_up();
        }
        let begun = Instant::now();
        let result = self.request(keys, by_id);
        self.waited += begun.elapsed();
        self.ring.show_waited(self.waited);
        if let Err(Error::Interrupted(_) | Error::Timeout { .. }) = &result {
            self.given_up += 1;
        }
        result
    }

    fn request(&mut self, keys: &[RowKey], by_id: bool) -> Result<Batch, Error> {
        let mut patience = Patience::begin(Instant::now());
        let mut progress = None;
        let mut is_sent = false;
        loop {
            if !is_sent {
                is_sent = self.reattach()? && self.ask(keys, by_id)?;
            }
            if is_sent {
                match self.look()? {
                    Answer::Batch(batch) => return Ok(batch),
                    Answer::Waiting => self.wait()?,
                    Answer::Lost => is_sent = false,
                }
            }
            let seen = Some((self.publish.progress(), self.restarts(), is_sent));
            if progress != seen {
                (progress, patience) = (seen, Patience::begin(Instant::now()));
            }
            let waited = patience.look(Instant::now());
            if waited >= self.link.timeout() {
                return Err(self.timeout_error(waited));
            }
        }
    }

    fn check_keys(&self, keys: &[RowKey], by_id: bool) -> Result<(), Error> {
        let most = self.most_rows();
        if keys.is_empty() || keys.len() > most {
            return Err(Error::Config(format!(
                "{} rows are asked for, and a request has 1 to {most}: as many as `batch.size`",
                keys.len()
            )));
        }
        let samples = match by_id {
            true => sample_count(&self.terms),
            false => selected_count(&self.terms),
        };
        match keys.iter().find(|key| key.sample >= samples) {
            Some(key) => Err(Error::Config(format!(
                "sample {} is asked for, and there are {samples} samples",
                key.sample
            ))),
            None => Ok(()),
        }
    }

    fn restarts(&self) -> u64 {
        self.link.supervisor().map_or(0, Supervisor::restarts)
    }

    /// Sends the next request. False: the daemon is gone.
    fn ask(&mut self, keys: &[RowKey], by_id: bool) -> Result<bool, Error> {
        self.request += 1;
        let request = RowsRequest { request: self.request, rows: keys.to_vec(), by_id };
        match self.link.send(&ClientFrame::Ask(request), &[]) {
            Ok(()) => Ok(true),
            Err(Error::DaemonLost(_)) if self.is_restartable() => {
                self.lose();
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Looks for the answer without waiting.
    fn look(&mut self) -> Result<Answer, Error> {
        while self.read < self.publish.published() {
            let descriptor =
                self.publish.read(self.read).map_err(|error| Error::Protocol(error.to_string()))?;
            self.read += 1;
            let is_asked = descriptor.seek_serial == self.request;
            let lease = self.ring.lease(descriptor)?;
            self.ring.show_taken(self.read);
            // The answer to an interrupted request is returned unread.
            if is_asked {
                return Ok(Answer::Batch(Batch {
                    lease: Arc::new(lease),
                    terms: Arc::clone(&self.terms),
                }));
            }
        }
        while let Some((frame, _)) = self.link.receive() {
            match frame {
                DaemonFrame::Unanswered { request, fault, .. } if request == self.request => {
                    return Err(fault.into());
                }
                DaemonFrame::Unanswered { .. } => {}
                other => return Err(unexpected(&other, "the rows that were asked for")),
            }
        }
        match self.link.ending() {
            None => Ok(Answer::Waiting),
            Some(Ending::Gone(_)) if self.is_restartable() => {
                self.lose();
                Ok(Answer::Lost)
            }
            Some(_) => Err(self.link.ending_error()),
        }
    }

    /// Waits for up to 50 ms, less if there is an event.
    fn wait(&mut self) -> Result<(), Error> {
        self.ring.announce_sleep();
        // Checked after the announcement: a batch that was published before it rang no doorbell.
        let is_ready = self.read < self.publish.published();
        let slice =
            if is_ready { Ok(()) } else { self.link.wait_slice(PollFlags::POLLIN, WAITED_FOR) };
        self.ring.announce_wake();
        slice
    }

    fn is_restartable(&self) -> bool {
        self.link.supervisor().is_some() && !matches!(self.link.ending(), Some(Ending::Final(_)))
    }

    /// The daemon is gone: leases of its ring return nothing any more.
    fn lose(&mut self) {
        self.ring.detach();
        if let Some(supervisor) = self.link.supervisor() {
            supervisor.report_loss(match self.link.ending() {
                Some(Ending::Gone(how)) => Some(how),
                _ => None,
            });
        }
    }

    /// Opens a session with the next daemon, if the last one is gone. False: there is none yet.
    fn reattach(&mut self) -> Result<bool, Error> {
        let Some(supervisor) = self.link.supervisor().filter(|one| one.is_down()) else {
            return match self.link.ending() {
                None => Ok(true),
                Some(Ending::Gone(_)) if self.is_restartable() => {
                    // The supervisor does not know yet.
                    if let Some(supervisor) = self.link.supervisor() {
                        supervisor.wait(SLICE);
                    }
                    self.link.check_interrupt(WAITED_FOR)?;
                    Ok(false)
                }
                Some(_) => Err(self.link.ending_error()),
            };
        };
        let connection = match supervisor.next_daemon() {
            NextDaemon::Ready(connection) => connection,
            NextDaemon::Lost(error) => return Err(error),
            NextDaemon::Pending => {
                supervisor.wait(SLICE);
                self.link.check_interrupt(WAITED_FOR)?;
                return Ok(false);
            }
        };
        self.link.replace(connection);
        match self.attach_to_next() {
            Ok(()) => Ok(true),
            Err(Error::DaemonLost(_)) => {
                self.lose();
                Ok(false)
            }
            Err(Error::Taken(reason) | Error::Memory(reason)) => {
                self.link.hang_up();
                if let Some(supervisor) = self.link.supervisor() {
                    supervisor.retry(reason);
                }
                self.lose();
                Ok(false)
            }
            Err(error @ (Error::Interrupted(_) | Error::Timeout { .. })) => {
                // The next call asks for a session again.
                self.link.hang_up();
                if let Some(supervisor) = self.link.supervisor() {
                    supervisor.retry(error.to_string());
                }
                self.lose();
                Err(error)
            }
            Err(error) => {
                if let Some(supervisor) = self.link.supervisor() {
                    supervisor.stop();
                }
                self.ring.detach();
                self.lost = Some(error.clone());
                Err(error)
            }
        }
    }

    fn attach_to_next(&mut self) -> Result<(), Error> {
        self.link.send(&ClientFrame::AttachRows { stream: self.stream.clone() }, &[])?;
        let (terms, descriptors) = loop {
            match self.link.next_frame("the next daemon to open the stream")? {
                (DaemonFrame::Welcome { protocol, release, .. }, _) => {
                    check_version(protocol, &release)?;
                }
                (DaemonFrame::Kept, descriptors) => self.link.save_restart_state(descriptors),
                (DaemonFrame::Attached(terms), descriptors) => break (terms, descriptors),
                (other, _) => return Err(unexpected(&other, "Attached")),
            }
        };
        let is_same = terms.tensors == self.terms.tensors
            && terms.dataset_fingerprint == self.terms.dataset_fingerprint
            && terms.config_fingerprint == self.terms.config_fingerprint;
        if !is_same {
            return Err(Error::StateMismatch(
                "the daemon was restarted with another stream: its rows are others".to_owned(),
            ));
        }
        let connection = Arc::clone(self.link.connection());
        let fork_mark = Arc::clone(self.link.fork_mark());
        let segments = Segments::Descriptors(descriptors);
        // New memory: batches that are held keep the old one.
        let (ring, publish) = Ring::open(&terms, segments, connection, fork_mark)?;
        if let Some(supervisor) = self.link.supervisor() {
            supervisor.on_attached(Arc::clone(&publish));
        }
        (self.ring, self.publish, self.read) = (Arc::new(ring), publish, 0);
        self.given_up = 0;
        self.terms = Arc::new(*terms);
        Ok(())
    }

    fn timeout_error(&self, waited: Duration) -> Error {
        match self.link.supervisor().filter(|supervisor| supervisor.is_down()) {
            Some(supervisor) => Error::DaemonLost(format!(
                "the daemon is gone ({}) and none replaced it within {:.0} s",
                supervisor.exit_reason(),
                waited.as_secs_f64()
            )),
            None => Error::Timeout {
                waited,
                waited_for: WAITED_FOR.to_owned(),
                daemon_says: "it makes no progress".to_owned(),
            },
        }
    }
}

impl Drop for Rows {
    fn drop(&mut self) {
        if self.ring.is_own_process() {
            self.ring.detach();
        }
    }
}
