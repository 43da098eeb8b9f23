//! Works on all samples of a dataset on several threads, and receives the results in the order of the samples.
//!
//! The samples are divided into chunks. States of a chunk, and who moves it:
//!
//! ```text
//! unclaimed -> claimed   a thread, under the lock: always the lowest unclaimed one
//! claimed   -> ended     the same thread, after it has given the results of all of its samples in pieces
//! ended     -> taken     the receiver, once all chunks before it are taken
//! ```
//! The receiver takes the pieces of the first chunk that is not taken as they come, and keeps those of later ones. A thread
//! waits while more than [`KEPT_BYTES`] are kept, except that of the first chunk if the receiver has taken all that it gave:
//! so one of the two can always go on. A failure of a thread or of the receiver ends all.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem::take;
use std::ops::{ControlFlow, Range};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forebay_dataset::Dataset;

/// The number of samples of a chunk, at least.
const CHUNK_SAMPLES: u64 = 64;
/// The most bytes that are kept of chunks after the first one.
const KEPT_BYTES: usize = 64 << 20;
/// The longest pause between two reports.
const REPORT_PERIOD: Duration = Duration::from_millis(50);

/// The results of consecutive samples.
pub trait Piece: Send {
    /// Their memory.
    fn bytes(&self) -> usize;
}

/// Gives a piece of a chunk to the receiver; `Break`: the pass has ended.
pub type Give<'g, P> = &'g mut dyn FnMut(P) -> ControlFlow<()>;

/// The first sample of each chunk from `from` on, and the number of samples, of those that are used. Samples that share
/// pages are in one chunk.
pub fn starts(dataset: &dyn Dataset, from: u64) -> Vec<u64> {
    let all = dataset.kept_count();
    let mut starts = vec![from];
    let mut add = |next: u64| {
        if starts.last().is_some_and(|last| next >= last + CHUNK_SAMPLES) && next < all {
            starts.push(next);
        }
    };
    match dataset.blocks() {
        Some(blocks) => {
            let number = |id| dataset.kept().map_or(id, |kept| kept.number_of(id));
            blocks.firsts.into_iter().map(number).for_each(&mut add);
        }
        None => (0..=all.saturating_sub(from) / CHUNK_SAMPLES)
            .for_each(|chunk| add(from + chunk * CHUNK_SAMPLES)),
    }
    starts.push(all.max(from));
    starts
}

/// A pass over the samples.
#[derive(Debug)]
pub struct Pass {
    /// The first sample of each chunk, and the number of samples; see [`starts`].
    pub starts: Vec<u64>,
    /// The number of threads.
    pub threads: usize,
}

struct State<P, E> {
    /// The lowest unclaimed chunk.
    next: usize,
    /// The first chunk that is not taken.
    first: usize,
    /// Pieces that are not taken.
    pieces: BTreeMap<usize, VecDeque<P>>,
    kept_bytes: usize,
    ended: BTreeSet<usize>,
    failure: Option<E>,
    is_over: bool,
    working: usize,
}

struct Board<P, E> {
    state: Mutex<State<P, E>>,
    changed: Condvar,
}

impl<P: Piece, E> Board<P, E> {
    fn lock(&self) -> MutexGuard<'_, State<P, E>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn claim(&self, chunks: usize) -> Option<usize> {
        let mut state = self.lock();
        if state.is_over || state.next == chunks {
            return None;
        }
        state.next += 1;
        Some(state.next - 1)
    }

    fn give(&self, chunk: usize, piece: P) -> ControlFlow<()> {
        let mut state = self.lock();
        let bytes = piece.bytes();
        // The receiver takes what it has of the first chunk, whatever else is kept.
        let has_turn = |state: &State<P, E>| {
            chunk == state.first && state.pieces.get(&chunk).is_none_or(VecDeque::is_empty)
        };
        while !state.is_over && !has_turn(&state) && state.kept_bytes + bytes > KEPT_BYTES {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.is_over {
            return ControlFlow::Break(());
        }
        state.kept_bytes += bytes;
        state.pieces.entry(chunk).or_default().push_back(piece);
        self.changed.notify_all();
        ControlFlow::Continue(())
    }

    fn end(&self, chunk: usize, outcome: Result<(), E>) {
        let mut state = self.lock();
        match outcome {
            Ok(()) => {
                state.ended.insert(chunk);
            }
            Err(error) => {
                state.failure.get_or_insert(error);
                state.is_over = true;
            }
        }
        self.changed.notify_all();
    }
}

/// Ends a thread, also after a panic.
struct ThreadEnd<'a, P: Piece, E>(&'a Board<P, E>);

impl<P: Piece, E> Drop for ThreadEnd<'_, P, E> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.working -= 1;
        state.is_over |= std::thread::panicking();
        self.0.changed.notify_all();
    }
}

/// Ends the pass when the receiver leaves it, also after a panic.
struct ReceiverEnd<'a, P: Piece, E>(&'a Board<P, E>);

impl<P: Piece, E> Drop for ReceiverEnd<'_, P, E> {
    fn drop(&mut self) {
        self.0.lock().is_over = true;
        self.0.changed.notify_all();
    }
}

impl Pass {
    /// Calls `receive` with the pieces in the order of the texts, and with `None` at least every [`REPORT_PERIOD`].
    /// `worker` makes what one thread works with.
    ///
    /// # Errors
    /// The first error of a thread or of `receive`.
    pub fn run<P: Piece, E: Send, W>(
        &self,
        worker: impl Fn() -> W + Sync,
        receive: &mut dyn FnMut(Option<P>) -> Result<(), E>,
    ) -> Result<(), E>
    where
        W: FnMut(Range<u64>, Give<'_, P>) -> Result<(), E>,
    {
        let chunks = self.starts.len().saturating_sub(1);
        let threads = self.threads.clamp(1, chunks.max(1));
        let state = State {
            next: 0,
            first: 0,
            pieces: BTreeMap::new(),
            kept_bytes: 0,
            ended: BTreeSet::new(),
            failure: None,
            is_over: false,
            working: threads,
        };
        let board = Board { state: Mutex::new(state), changed: Condvar::new() };
        let work = || {
            let _end = ThreadEnd(&board);
            let mut worker = worker();
            while let Some(chunk) = board.claim(chunks) {
                let samples = self.starts[chunk]..self.starts[chunk + 1];
                let outcome = worker(samples, &mut |piece| board.give(chunk, piece));
                board.end(chunk, outcome);
            }
        };
        std::thread::scope(|scope| {
            let _end = ReceiverEnd(&board);
            for _ in 0..threads {
                scope.spawn(work);
            }
            Self::receive(&board, chunks, receive)
        })?;
        board.lock().failure.take().map_or(Ok(()), Err)
    }

    fn receive<P: Piece, E>(
        board: &Board<P, E>,
        chunks: usize,
        receive: &mut dyn FnMut(Option<P>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut state = board.lock();
        loop {
            if state.is_over || state.first == chunks {
                return Ok(());
            }
            let first = state.first;
            let pieces = state.pieces.get_mut(&first).map(take).unwrap_or_default();
            if pieces.is_empty() && state.ended.remove(&first) {
                state.pieces.remove(&first);
                state.first += 1;
                board.changed.notify_all();
                continue;
            }
            if pieces.is_empty() {
                let waited = board.changed.wait_timeout(state, REPORT_PERIOD);
                drop(waited.unwrap_or_else(PoisonError::into_inner));
                receive(None)?;
                state = board.lock();
                continue;
            }
            state.kept_bytes -= pieces.iter().map(Piece::bytes).sum::<usize>();
            board.changed.notify_all();
            drop(state);
            for piece in pieces {
                receive(Some(piece))?;
            }
            state = board.lock();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// A sample's number, and the memory that its result is said to take.
    struct Made(u64, usize);

    impl Piece for Made {
        fn bytes(&self) -> usize {
            self.1
        }
    }

    fn failure() -> String {
        "on purpose".to_owned()
    }

    /// Chunks of 3 samples; a piece is one sample.
    fn run(
        threads: usize,
        is_bad: impl Fn(u64) -> bool + Sync,
        receive: &mut dyn FnMut(Option<Made>) -> Result<(), String>,
    ) -> Result<(), String> {
        let pass = Pass { starts: (0..=300).step_by(3).collect(), threads };
        let worker = || {
            |samples: Range<u64>, give: Give<'_, Made>| {
                for sample in samples {
                    if is_bad(sample) {
                        return Err(failure());
                    }
                    // Later chunks have to wait for their turn.
                    if give(Made(sample, KEPT_BYTES / 8)).is_break() {
                        return Ok(());
                    }
                }
                Ok(())
            }
        };
        pass.run(worker, receive)
    }

    #[test]
    fn results_are_received_in_the_order_of_samples() {
        for threads in [1, 2, 7] {
            let mut found = Vec::new();
            let receive = &mut |made: Option<Made>| {
                found.extend(made.map(|Made(sample, _)| sample));
                Ok(())
            };
            run(threads, |_| false, receive).unwrap();
            assert_eq!(found, (0..300).collect::<Vec<_>>());
        }
    }

    #[test]
    fn failures_end_all_threads() {
        for bad in [0, 1, 150, 299] {
            let received = AtomicU64::new(0);
            let receive = &mut |made: Option<Made>| {
                received.fetch_add(made.is_some().into(), Ordering::Relaxed);
                Ok(())
            };
            let error = run(4, |sample| sample == bad, receive).unwrap_err();
            assert!(error.contains("on purpose"), "{error}");
            assert!(received.into_inner() <= bad);
            let mut left = bad;
            let receive = &mut |made: Option<Made>| match made {
                Some(_) if left == 0 => Err(failure()),
                made => {
                    left -= u64::from(made.is_some());
                    Ok(())
                }
            };
            assert!(run(4, |_| false, receive).is_err());
        }
    }
}
