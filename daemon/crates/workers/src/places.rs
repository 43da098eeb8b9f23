//! The places of workers: the process at each place, the threads that prepare its calls, and the thread that calls it.
//!
//! A worker's arena has two sides, each with room for one call. A thread that has a side writes its call there while
//! another thread's call runs from the other side, and sends it at once, so that the worker continues without waiting.
//! When the first call is answered, the turn passes on: its thread reads the results while the next call runs. A
//! function on complete batches, whose calls are large, uses one side.
//!
//! ```text
//!   side   Free ──`side`──► Taken: written, called, read ──dropped──► Free
//!   turn   Free ──`turn`, by a thread that has a side──► Taken ──`open`: its call is sent──► Open
//!            ▲                                             ▲                                  │ the next thread's call is sent
//!            └──────────────────── dropped: answered, or the worker is lost ◄─────────────────┴──► Taken again
//! ```
//! If its call was not sent ahead, a thread that waits for a turn moves to another place as soon as one is idle, and
//! writes its call again. A call that was sent ahead is lost with its worker and repeated. If a worker is lost while
//! results of the previous call are read, that call is repeated too: the worker may have corrupted them as it ended.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::arena::SIDES;
use crate::worker::{Link, Prepared, Worker};

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Places {
    state: Mutex<Vec<Place>>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Place {
    /// By side; unused sides are marked as taken from the start.
    taken: [bool; SIDES],
    is_called: bool,
    /// `None` while a thread has it for a call.
    worker: Option<Worker>,
    link: Option<Arc<Link>>,
    /// Whether the current call is sent, and no call after it.
    is_open: bool,
    /// The side whose call was sent ahead: its thread has the next turn.
    next: Option<usize>,
    /// Number of workers lost so far.
    losses: u64,
}

impl Place {
    /// Whether a thread may take the turn. `ahead`: the side from which its call was sent ahead; `None`: not sent.
    fn is_idle_for(&self, ahead: Option<usize>) -> bool {
        !self.is_called && self.next == ahead
    }

    fn free_side(&self) -> Option<usize> {
        self.taken.iter().position(|is_taken| !is_taken)
    }
}

impl Places {
    pub(crate) fn new(count: u32, sides: usize) -> Self {
        let place =
            || Place { taken: std::array::from_fn(|side| side >= sides), ..Place::default() };
        Self { state: Mutex::new((0..count).map(|_| place()).collect()), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Place>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'s>(&self, state: MutexGuard<'s, Vec<Place>>) -> MutexGuard<'s, Vec<Place>> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a worker at an empty place. It is not ready, so no call is written for it: its first message is stored
    /// where the call would be.
    pub(crate) fn put(&self, place: usize, worker: Worker) {
        self.lock()[place].worker = Some(worker);
    }

    /// A side of an idle place if there is one, searched from `first` on.
    pub(crate) fn side(&self, first: usize) -> Side<'_> {
        let mut state = self.lock();
        loop {
            let count = state.len();
            let numbers = (0..count).map(|number| (first + number) % count);
            let free = numbers.filter_map(|place| Some((place, state[place].free_side()?)));
            let load = |place: &Place| {
                (!place.is_idle_for(None), place.taken.iter().filter(|is_taken| **is_taken).count())
            };
            if let Some((place, side)) = free.min_by_key(|(place, _)| load(&state[*place])) {
                state[place].taken[side] = true;
                return Side { places: self, place, side };
            }
            state = self.wait(state);
        }
    }

    /// Takes the turn at a side's place, or at an idle one, to which the side moves. Returns the call's number, if it
    /// was sent ahead and its worker still exists.
    pub(crate) fn turn<'p>(
        &'p self,
        side: &mut Side<'p>,
        prepared: Option<&Prepared>,
    ) -> (Turn<'p>, Option<u64>) {
        let mut state = self.lock();
        let mut ahead: Option<(Arc<Link>, u64)> = None;
        loop {
            let is_idle = |place: &Place| {
                place.is_idle_for(None)
                    && place.worker.as_ref().is_some_and(Worker::is_ready)
                    && place.free_side().is_some()
            };
            if ahead.is_none()
                && !state[side.place].is_idle_for(None)
                && let Some(idle) = state.iter().position(is_idle)
                && let Some(free) = state[idle].free_side()
            {
                state[side.place].taken[side.side] = false;
                state[idle].taken[free] = true;
                (side.place, side.side) = (idle, free);
                self.changed.notify_all();
            }
            let place = &mut state[side.place];
            if place.is_idle_for(ahead.as_ref().map(|_| side.side)) {
                place.is_called = true;
                place.next = None;
                let worker = place.worker.take();
                let is_there = |link: &Arc<Link>| {
                    worker.as_ref().is_some_and(|it| Arc::ptr_eq(it.link(), link))
                };
                let sent = ahead.filter(|(link, _)| is_there(link)).map(|(_, call)| call);
                return (Turn { places: self, place: side.place, worker, is_lost: false }, sent);
            }
            if let (true, Some(link), Some(prepared)) = (place.is_open, &place.link, prepared)
                && prepared.is_for(link, side.side)
                && let Ok(call) = link.send(prepared)
            {
                ahead = Some((Arc::clone(link), call));
                place.is_open = false;
                place.next = Some(side.side);
            }
            state = self.wait(state);
        }
    }

    /// Called when the call at a place is sent: the next one may be sent.
    pub(crate) fn open(&self, place: usize, link: &Arc<Link>) {
        let mut state = self.lock();
        state[place].link = Some(Arc::clone(link));
        state[place].is_open = true;
        drop(state);
        self.changed.notify_all();
    }
}

/// The right to write a call at a place, and to read its results.
#[derive(Debug)]
pub(crate) struct Side<'p> {
    places: &'p Places,
    place: usize,
    side: usize,
}

impl Side<'_> {
    /// The index of the side in the arena.
    pub(crate) fn number(&self) -> usize {
        self.side
    }

    /// The link to the worker that is there now.
    pub(crate) fn link(&self) -> Option<Arc<Link>> {
        self.places.lock()[self.place].link.clone()
    }

    /// Number of workers lost there so far.
    pub(crate) fn losses(&self) -> u64 {
        self.places.lock()[self.place].losses
    }
}

impl Drop for Side<'_> {
    fn drop(&mut self) {
        self.places.lock()[self.place].taken[self.side] = false;
        self.places.changed.notify_all();
    }
}

/// The right to call the worker of a place, or to start one there.
#[derive(Debug)]
pub(crate) struct Turn<'p> {
    places: &'p Places,
    place: usize,
    /// `None`: the place has no process.
    pub(crate) worker: Option<Worker>,
    is_lost: bool,
}

impl Turn<'_> {
    pub(crate) fn place(&self) -> usize {
        self.place
    }

    /// Ends the turn in which the worker was lost.
    pub(crate) fn lose(mut self) {
        self.worker = None;
        self.is_lost = true;
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.places.lock();
        let place = &mut state[self.place];
        place.link = self.worker.as_ref().map(|worker| Arc::clone(worker.link()));
        place.worker = self.worker.take();
        place.is_open = false;
        place.losses += u64::from(self.is_lost);
        place.is_called = false;
        drop(state);
        self.places.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::call::CallBuffer;

    #[test]
    fn sides_of_idle_places_come_first() {
        let places = Places::new(2, SIDES);
        let mut first = places.side(1);
        assert_eq!((first.place, first.side), (1, 0));
        let (turn, _) = places.turn(&mut first, None);
        assert_eq!(turn.place(), 1);
        let second = places.side(1);
        assert_eq!(second.place, 0);
        let third = places.side(1);
        assert_eq!((third.place, third.side), (0, 1));
        let fourth = places.side(1);
        assert_eq!((fourth.place, fourth.side), (1, 1));
    }

    #[test]
    fn single_side_is_shared_and_waiting_ends_when_it_is_free() {
        let places = Places::new(1, 1);
        let held = places.side(0);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| places.side(0).number());
            drop(held);
            assert_eq!(waits.join().unwrap(), 0);
        });
    }

    #[test]
    fn turn_passes_to_the_thread_that_prepared_the_next_call() {
        let places = Places::new(1, SIDES);
        let (mut first, mut second) = (places.side(0), places.side(0));
        let (turn, _) = places.turn(&mut first, None);
        std::thread::scope(|scope| {
            let next = scope.spawn(|| places.turn(&mut second, None).0.place());
            drop(turn);
            assert_eq!(next.join().unwrap(), 0);
        });
        // The results of the first call are read all the while.
        assert_eq!(first.number(), 0);
    }

    #[test]
    fn call_sent_ahead_gets_the_next_turn() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let link = Link::of(near);
        let places = Places::new(1, SIDES);
        let (mut first, mut second) = (places.side(0), places.side(0));
        let call = (&CallBuffer::default(), &[0; 16][..]);
        let prepared = Prepared::write(&link, second.number(), call).unwrap();
        let (turn, _) = places.turn(&mut first, None);
        let order = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (_turn, _) = places.turn(&mut second, Some(&prepared));
                order.lock().unwrap().push("sent ahead");
            });
            // Nothing is sent before the first call.
            places.open(0, &link);
            let mut message = [0; 40];
            far.read_exact(&mut message).unwrap();
            assert_eq!(message[..8], 1_u64.to_le_bytes());
            drop(turn);
            let (_turn, _) = places.turn(&mut first, None);
            order.lock().unwrap().push("after it");
        });
        assert_eq!(*order.lock().unwrap(), ["sent ahead", "after it"]);
    }
}
