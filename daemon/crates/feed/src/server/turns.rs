//! Whose request is made next: peers take turns, each stream for itself.
//!
//! A stream has as many places as its session has slots for rows. The states of a request:
//! ```text
//!   Waits ─a place is free, its peer has less than its share, and it is its peer's turn─► Begun ─dropped─► gone
//!     └─ dropped: its peer has reset it, or is gone ─────────────────────────────────────────────────────────►
//! ```
//! A request is `Begun` until its answer is sent: a peer that reads slowly keeps its own places, and no more. The peers
//! that have any request share three quarters of the places, a place each at least; the others are for the next one that
//! comes. Of one peer's requests the urgent ones come first; no peer's come before another's for it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// The requests of all peers to a stream.
#[derive(Debug)]
pub(super) struct Turns {
    places: usize,
    state: Mutex<State>,
}

/// A request: it waits, or has a place. Leaves either once it is dropped.
#[derive(Debug)]
pub(super) struct Turn {
    turns: Arc<Turns>,
    peer: u64,
    number: u64,
    rows: u64,
    begins: Option<oneshot::Receiver<()>>,
}

#[derive(Debug, Default)]
struct State {
    /// Those with a request that waits or is begun.
    peers: BTreeMap<u64, Peer>,
    begun: usize,
    waiting_rows: u64,
    /// Whose request was begun last.
    last: u64,
    next_number: u64,
}

#[derive(Debug, Default)]
struct Peer {
    begun: usize,
    urgent: VecDeque<Waiting>,
    others: VecDeque<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    number: u64,
    rows: u64,
    begins: oneshot::Sender<()>,
}

impl Peer {
    fn waits(&self) -> bool {
        !self.urgent.is_empty() || !self.others.is_empty()
    }

    fn next(&mut self) -> Option<Waiting> {
        self.urgent.pop_front().or_else(|| self.others.pop_front())
    }

    /// Removes a request that waits. False: it does not.
    fn withdraw(&mut self, number: u64) -> bool {
        [&mut self.urgent, &mut self.others].into_iter().any(|queue| {
            let place = queue.iter().position(|waiting| waiting.number == number);
            place.and_then(|place| queue.remove(place)).is_some()
        })
    }
}

impl State {
    /// The places that each peer may have now.
    fn share(&self, places: usize) -> usize {
        (places - places / 4).checked_div(self.peers.len()).unwrap_or(places).max(1)
    }

    /// Whose turn it is, of those that wait and have less than their share.
    fn next_peer(&self, places: usize) -> Option<u64> {
        let share = self.share(places);
        let may =
            |(number, peer): (&u64, &Peer)| (peer.waits() && peer.begun < share).then_some(*number);
        let mut after = self.peers.range(self.last.saturating_add(1)..);
        after.find_map(may).or_else(|| self.peers.range(..=self.last).find_map(may))
    }

    fn begin(&mut self, places: usize) {
        while self.begun < places {
            let Some(number) = self.next_peer(places) else { return };
            let Some(peer) = self.peers.get_mut(&number) else { return };
            let Some(waiting) = peer.next() else { return };
            peer.begun += 1;
            self.begun += 1;
            self.last = number;
            self.waiting_rows -= waiting.rows;
            // One that has gone meanwhile leaves its place when it is dropped.
            let _ = waiting.begins.send(());
        }
    }
}

impl Turns {
    pub(super) fn new(places: usize) -> Arc<Self> {
        Arc::new(Self { places: places.max(1), state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters a peer's request of so many rows.
    pub(super) fn enter(self: &Arc<Self>, peer: u64, rows: u64, is_urgent: bool) -> Turn {
        let (sender, begins) = oneshot::channel();
        let mut state = self.state();
        let number = state.next_number;
        state.next_number += 1;
        state.waiting_rows += rows;
        let of_peer = state.peers.entry(peer).or_default();
        let queue = if is_urgent { &mut of_peer.urgent } else { &mut of_peer.others };
        queue.push_back(Waiting { number, rows, begins: sender });
        state.begin(self.places);
        drop(state);
        Turn { turns: Arc::clone(self), peer, number, rows, begins: Some(begins) }
    }

    /// Whether others wait while a peer has a place.
    pub(super) fn do_others_wait(&self, peer: u64) -> bool {
        let state = self.state();
        let has_place = state.peers.get(&peer).is_some_and(|peer| peer.begun > 0);
        has_place && state.peers.iter().any(|(other, of_other)| *other != peer && of_other.waits())
    }

    /// Rows of requests that wait.
    pub(super) fn waiting_rows(&self) -> u64 {
        self.state().waiting_rows
    }
}

impl Turn {
    /// Waits for its turn.
    pub(super) async fn begins(&mut self) {
        if let Some(begins) = self.begins.take() {
            let _ = begins.await;
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = self.turns.state();
        let Some(peer) = state.peers.get_mut(&self.peer) else { return };
        if peer.withdraw(self.number) {
            state.waiting_rows -= self.rows;
        } else {
            peer.begun -= 1;
            state.begun -= 1;
        }
        let peer = &state.peers[&self.peer];
        if peer.begun == 0 && !peer.waits() {
            state.peers.remove(&self.peer);
        }
        state.begin(self.turns.places);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_begun(turn: &mut Turn) -> bool {
        turn.begins.as_mut().is_some_and(|begins| begins.try_recv().is_ok())
    }

    fn enter(turns: &Arc<Turns>, peer: u64, count: usize) -> VecDeque<Turn> {
        (0..count).map(|_| turns.enter(peer, 4, false)).collect()
    }

    fn begun(turns: &Turns, peer: u64) -> usize {
        turns.state().peers.get(&peer).map_or(0, |peer| peer.begun)
    }

    #[test]
    fn one_peer_leaves_places_to_those_that_come() {
        let turns = Turns::new(16);
        let slow = enter(&turns, 1, 40);
        assert_eq!((begun(&turns, 1), turns.waiting_rows()), (12, 28 * 4));
        let good = enter(&turns, 2, 40);
        assert_eq!((begun(&turns, 1), begun(&turns, 2)), (12, 4));
        assert!(turns.do_others_wait(1) && turns.do_others_wait(2) && !turns.do_others_wait(3));
        // The slow one's places come to the other only when it loses them.
        drop(slow);
        assert_eq!((begun(&turns, 2), turns.waiting_rows()), (12, 28 * 4));
        drop(good);
        let state = turns.state();
        assert_eq!((state.peers.len(), state.begun, state.waiting_rows), (0, 0, 0));
    }

    #[test]
    fn peers_take_turns_whatever_they_have_waiting() {
        let turns = Turns::new(4);
        let mut first = enter(&turns, 1, 1000);
        let mut second = enter(&turns, 2, 10);
        let mut counts = [0, 0];
        for _ in 0..40 {
            for (count, of_peer) in counts.iter_mut().zip([&mut first, &mut second]) {
                // Each sends the answers that are made.
                let done = of_peer.iter_mut().position(is_begun);
                if let Some(done) = done {
                    *count += 1;
                    drop(of_peer.remove(done));
                }
            }
            if counts[1] == 10 {
                break;
            }
        }
        assert_eq!(counts[1], 10);
        assert!(counts[0] <= 16, "the other one was given {} turns meanwhile", counts[0]);
    }

    #[test]
    fn urgent_requests_come_before_others_of_their_peer_alone() {
        let turns = Turns::new(1);
        let busy = turns.enter(9, 1, false);
        let (mut plain, mut urgent) = (turns.enter(1, 1, false), turns.enter(1, 1, true));
        let mut other = turns.enter(2, 1, false);
        drop(busy);
        assert!(is_begun(&mut urgent) && !is_begun(&mut plain) && !is_begun(&mut other));
        let more = turns.enter(1, 1, true);
        drop(urgent);
        assert!(is_begun(&mut other) && !is_begun(&mut plain));
        drop((other, more));
        assert!(is_begun(&mut plain));
    }

    #[test]
    fn requests_that_are_given_up_leave_nothing() {
        let turns = Turns::new(4);
        for round in 0..1000_u64 {
            let turn = turns.enter(round % 7, 16, round % 2 == 0);
            let kept = turns.enter(7, 16, false);
            drop((turn, kept));
        }
        let state = turns.state();
        assert_eq!((state.peers.len(), state.begun, state.waiting_rows), (0, 0, 0));
    }
}
