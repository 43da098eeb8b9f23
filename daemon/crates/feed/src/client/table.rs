//! The feeders that are known, and how many rows each is asked for.
//!
//! A feeder's window is the most rows that are asked of it at a time. It says with each answer how many rows it has still
//! to make: the window grows while it would run dry, and shrinks while rows wait there that others could make.

use std::collections::BTreeSet;
use std::sync::Arc;

use forebay_engine::RowTaker;
use forebay_observe::FeederReport;
use forebay_protocol::frames::RowKey;
use tokio::sync::mpsc;

use crate::client::Shared;
use crate::discovery::Feeder;
use crate::messages::StreamInfo;
use crate::spread::{feeder_key, pick};

/// Rows per core in a feeder's first window.
const ROWS_PER_CORE: usize = 4;
/// Of those that wait at a feeder, rows per core that keep it busy until the next request comes.
const WAITING_PER_CORE: u64 = 4;
/// From so many feeders on, each begins with one request.
const MANY: usize = 8;
const MAX_WINDOW: usize = 1024;

/// A request to a feeder.
#[derive(Debug)]
pub(super) struct ToSend {
    pub(super) rows: Vec<RowKey>,
    pub(super) is_urgent: bool,
    pub(super) taker: RowTaker,
    /// Dropped with the request.
    pub(super) _outstanding: Outstanding,
}

/// Rows asked of a feeder and not answered.
#[derive(Debug)]
pub(super) struct Outstanding {
    shared: Arc<Shared>,
    feeder: u64,
    rows: usize,
}

impl Drop for Outstanding {
    fn drop(&mut self) {
        if let Some(known) = self.shared.table().known(self.feeder) {
            known.outstanding = known.outstanding.saturating_sub(self.rows);
            known.requests = known.requests.saturating_sub(1);
        }
        self.shared.wake_engine();
    }
}

#[derive(Debug)]
enum State {
    /// It is being connected to, or waits for the next attempt; why the last one failed.
    Waits(Option<String>),
    Serving(mpsc::UnboundedSender<ToSend>),
    SetAside(String),
}

#[derive(Debug)]
pub(super) struct Known {
    feeder: Feeder,
    key: u64,
    state: State,
    cores: usize,
    most_rows: usize,
    window: usize,
    outstanding: usize,
    /// The requests that it takes at a time, and those that it has.
    most_requests: usize,
    requests: usize,
    /// Places of rows that are not sent yet.
    placed: usize,
    rows: u64,
    received_bytes: u64,
}

/// See the module's head.
#[derive(Debug, Default)]
pub(crate) struct Table {
    known: Vec<Known>,
    /// The keys of the feeders that have a task.
    running: BTreeSet<u64>,
}

impl Known {
    fn is_serving(&self) -> bool {
        matches!(self.state, State::Serving(_))
    }

    fn room(&self) -> usize {
        self.room_within(self.window)
    }

    /// The room for rows that another feeder has had for too long: as many more than the window as a request may have. Otherwise rows that are
    /// made ahead would take all of it, and the oldest batch would wait for them.
    fn room_for_overdue(&self) -> usize {
        self.room_within(self.window + self.most_rows)
    }

    fn room_within(&self, window: usize) -> usize {
        if !self.is_serving() {
            return 0;
        }
        // It refuses more requests than it takes at a time, however few rows they have.
        let requests = self.most_requests.saturating_sub(self.requests);
        let unsent = (requests * self.most_rows).saturating_sub(self.placed);
        window.saturating_sub(self.outstanding).min(unsent)
    }

    fn most_window(&self) -> usize {
        MAX_WINDOW.min(self.most_rows.saturating_mul(self.most_requests))
    }

    fn place(&mut self) {
        self.outstanding += 1;
        self.placed += 1;
    }
}

impl Table {
    pub(super) fn known(&mut self, key: u64) -> Option<&mut Known> {
        self.known.iter_mut().find(|known| known.key == key)
    }

    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    pub(super) fn room(&self) -> usize {
        self.known.iter().map(Known::room).sum()
    }

    pub(super) fn is_reachable(&self) -> bool {
        self.known.iter().any(Known::is_serving)
    }

    /// The rows of one request to a feeder.
    pub(super) fn most_rows(&self, feeder: usize) -> usize {
        self.known[feeder].most_rows.max(1)
    }

    /// Takes a place at the feeder of a unit: one of two, the less loaded one, or else one with room.
    pub(super) fn place(&mut self, unit: u64) -> Option<usize> {
        let serving: Vec<usize> =
            (0..self.known.len()).filter(|number| self.known[*number].room() > 0).collect();
        let keys: Vec<u64> = serving.iter().map(|number| self.known[*number].key).collect();
        let load = |place: usize| {
            let known = &self.known[serving[place]];
            known.outstanding * 256 / known.window.max(1)
        };
        let chosen = *serving.get(pick(unit, &keys, load)?)?;
        // Until the request is sent.
        self.known[chosen].place();
        Some(chosen)
    }

    /// A serving feeder with room for an overdue row besides the one that has it.
    pub(super) fn place_besides(&mut self, first: u64) -> Option<usize> {
        let others = self.known.iter().enumerate().filter(|(_, known)| known.key != first);
        let (chosen, room) = others
            .map(|(place, known)| (place, known.room_for_overdue()))
            .max_by_key(|one| one.1)?;
        (room > 0).then(|| {
            self.known[chosen].place();
            chosen
        })
    }

    /// Sends a request, whose rows have places. False: the feeder has gone.
    pub(super) fn send(
        &mut self,
        shared: &Arc<Shared>,
        feeder: usize,
        rows: Vec<RowKey>,
        is_urgent: bool,
        taker: RowTaker,
    ) -> bool {
        let known = &mut self.known[feeder];
        known.placed = known.placed.saturating_sub(rows.len());
        let State::Serving(queue) = &known.state else {
            known.outstanding = known.outstanding.saturating_sub(rows.len());
            return false;
        };
        taker.note_feeder(known.key);
        known.requests += 1;
        let outstanding =
            Outstanding { shared: Arc::clone(shared), feeder: known.key, rows: rows.len() };
        let to_send = ToSend { rows, is_urgent, taker, _outstanding: outstanding };
        if let Err(unsent) = queue.send(to_send) {
            // The table is locked, which `Outstanding` locks: dropped by another thread's task.
            drop_later(unsent.0);
            return false;
        }
        true
    }

    /// Takes over a list of feeders; returns those for which a task is to be started: one that left the list and comes back
    /// soon still has its task.
    pub(super) fn follow(&mut self, feeders: &[Feeder]) -> Vec<Feeder> {
        self.known.retain(|known| feeders.contains(&known.feeder));
        let is_new = |feeder: &&Feeder| !self.known.iter().any(|known| known.feeder == **feeder);
        let mut new: Vec<Feeder> = feeders.iter().filter(is_new).cloned().collect();
        self.known.extend(new.iter().map(|feeder| Known {
            feeder: feeder.clone(),
            key: feeder_key(feeder),
            state: State::Waits(None),
            cores: 0,
            most_rows: 1,
            window: 0,
            outstanding: 0,
            most_requests: 1,
            requests: 0,
            placed: 0,
            rows: 0,
            received_bytes: 0,
        }));
        new.retain(|feeder| self.running.insert(feeder_key(feeder)));
        new
    }

    /// Whether a feeder gets rows now.
    pub(super) fn is_serving(&mut self, key: u64) -> bool {
        self.known(key).is_some_and(|known| known.is_serving())
    }

    /// Whether a feeder is still listed, and may get rows. Otherwise its task ends.
    pub(super) fn goes_on(&mut self, key: u64) -> bool {
        let is_set_aside = |known: &mut Known| matches!(known.state, State::SetAside(_));
        let goes_on = self.known(key).is_some_and(|known| !is_set_aside(known));
        if !goes_on {
            self.running.remove(&key);
        }
        goes_on
    }

    /// A feeder serves from now on.
    pub(super) fn serves(
        &mut self,
        key: u64,
        info: &StreamInfo,
        queue: mpsc::UnboundedSender<ToSend>,
    ) -> bool {
        let others = self.known.iter().filter(|known| known.is_serving()).count();
        let Some(known) = self.known(key) else { return false };
        if matches!(known.state, State::SetAside(_)) {
            return false;
        }
        known.state = State::Serving(queue);
        known.cores = (info.cores as usize).clamp(1, 4096);
        known.most_rows = (info.rows as usize).clamp(1, crate::ticket::MAX_ROWS);
        known.most_requests = (info.requests as usize).clamp(1, MAX_WINDOW);
        // With many feeders a request each keeps this host's rows from waiting there while its own cores are idle.
        let first = match others < MANY {
            true => (known.cores * ROWS_PER_CORE).max(2 * known.most_rows),
            false => known.most_rows,
        };
        known.window = first.min(known.most_window());
        true
    }

    /// A feeder's connection has ended; says why.
    pub(super) fn waits(&mut self, key: u64, reason: Option<String>) {
        if let Some(known) = self.known(key).filter(|one| !matches!(one.state, State::SetAside(_)))
        {
            known.state = State::Waits(reason);
        }
    }

    /// A feeder gets no more rows.
    pub(super) fn set_aside(&mut self, key: u64, reason: &str) {
        let Some(known) = self.known(key) else { return };
        if matches!(known.state, State::SetAside(_)) {
            return;
        }
        tracing::error!(
            feeder = %known.feeder.address,
            "this feeder gets no more rows: {reason}; its libraries, data or hardware differ, compare `forebay doctor` on both hosts"
        );
        known.state = State::SetAside(reason.to_owned());
    }

    /// Counts an answer, and adapts the window. `waiting`: the rows that the feeder has still to make, of `limit` that it
    /// takes at most.
    pub(super) fn answered(&mut self, key: u64, rows: usize, bytes: usize, waiting: Option<u64>) {
        let Some(known) = self.known(key) else { return };
        known.rows += rows as u64;
        known.received_bytes += bytes as u64;
        let Some(waiting) = waiting else { return };
        let cores = known.cores as u64;
        if waiting < cores {
            known.window = (known.window + known.most_rows).min(known.most_window());
        } else if waiting > cores * WAITING_PER_CORE + known.most_rows as u64 {
            let least = (2 * known.cores).max(known.most_rows);
            known.window = known.window.saturating_sub(known.most_rows / 2).max(least);
        }
    }

    pub(super) fn report(&self) -> Vec<FeederReport> {
        let report = |known: &Known| FeederReport {
            address: known.feeder.address.to_string(),
            state: match &known.state {
                State::Waits(None) => "connecting".to_owned(),
                State::Waits(Some(reason)) => reason.clone(),
                State::Serving(_) => "serving".to_owned(),
                State::SetAside(reason) => format!("set aside: {reason}"),
            },
            cores: u32::try_from(known.cores).unwrap_or(u32::MAX),
            num_rows: known.rows,
            received_bytes: known.received_bytes,
            num_outstanding: known.outstanding as u64,
            window_rows: known.window as u64,
        };
        self.known.iter().map(report).collect()
    }
}

fn drop_later(unsent: ToSend) {
    // On the connection's runtime nothing holds the lock while it waits.
    std::thread::spawn(move || drop(unsent));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overdue_rows_exceed_the_window_of_another_feeder_by_those_of_a_request() {
        let feeders = [1, 2].map(|host| Feeder {
            address: ([127, 0, 0, host], 9461).into(),
            host: "feeders".into(),
        });
        let mut table = Table::default();
        table.follow(&feeders);
        let keys = feeders.each_ref().map(feeder_key);
        let info = StreamInfo { cores: 1, rows: 4, requests: 16, ..StreamInfo::default() };
        let queues = keys.map(|key| {
            let (queue, requests) = mpsc::unbounded_channel();
            assert!(table.serves(key, &info, queue));
            requests
        });
        // Rows that are made ahead fill both windows: two requests each.
        assert_eq!(std::iter::from_fn(|| table.place(7)).count(), 2 * 8);
        assert_eq!(table.room(), 0);
        let overdue: Vec<_> = std::iter::from_fn(|| table.place_besides(keys[0])).collect();
        assert_eq!(overdue, [1; 4]);
        drop(queues);
    }
}
