//! Makes tokens of all texts on several threads, and receives them in the order of the texts.
//!
//! The texts are divided into chunks. States of a chunk, and who moves it:
//!
//! ```text
//! unclaimed -> claimed   a thread, under the lock: always the lowest unclaimed one
//! claimed   -> ended     the same thread, after it has given all of its texts in pieces
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

use forebay_protocol::tensor::DType;

use forebay_dataset::Dataset;
use forebay_dataset::error::DatasetError;

/// The number of texts of a chunk, at least.
const CHUNK_TEXTS: u64 = 64;
/// The bytes of tokens from which on a piece is given.
const PIECE_BYTES: usize = 1 << 20;
/// The most bytes that are kept of chunks after the first one.
const KEPT_BYTES: usize = 64 << 20;
/// How many texts that are left out are named.
pub(super) const NAMED: usize = 3;
/// The longest pause between two reports.
const REPORT_PERIOD: Duration = Duration::from_millis(50);

/// The tokens of consecutive texts.
#[derive(Debug, Default)]
pub(super) struct MadeTexts {
    /// In the type of the files, little endian.
    pub(super) ids: Vec<u8>,
    /// The number of tokens of each text; 0 for one that is left out.
    pub(super) lengths: Vec<u32>,
    /// Those that are left out: their place among these texts, and of the first ones the name and the reason.
    pub(super) left_out: Vec<(usize, Option<String>)>,
}

impl MadeTexts {
    /// Adds a text.
    ///
    /// # Errors
    /// It has more tokens than Megatron's index counts, or one that the type does not have.
    pub(super) fn add(&mut self, ids: &[u32], dtype: DType) -> Result<(), String> {
        let Ok(length) = i32::try_from(ids.len()) else {
            return Err(format!("it has {} tokens, more than 2³¹", ids.len()));
        };
        let most = if dtype.size_bytes() == 2 { 0xffff } else { i32::MAX.cast_unsigned() };
        if let Some(id) = ids.iter().find(|id| **id > most) {
            return Err(format!(
                "it has the token {id}, and the tokenizer's vocabulary ends before it"
            ));
        }
        self.lengths.push(length.cast_unsigned());
        match dtype.size_bytes() {
            2 => self.ids.extend(ids.iter().flat_map(|id| id.to_le_bytes().into_iter().take(2))),
            _ => self.ids.extend(ids.iter().flat_map(|id| id.to_le_bytes())),
        }
        Ok(())
    }

    /// Adds a text without tokens.
    pub(super) fn leave_out(&mut self, name: impl FnOnce() -> String) {
        let name = (self.left_out.len() < NAMED).then(name);
        self.left_out.push((self.lengths.len(), name));
        self.lengths.push(0);
    }

    /// Whether it is to be given.
    pub(super) const fn is_large(&self) -> bool {
        self.bytes() >= PIECE_BYTES
    }

    /// The memory of its texts.
    const fn bytes(&self) -> usize {
        self.ids.len()
            + self.lengths.len() * size_of::<u32>()
            + self.left_out.len() * size_of::<(usize, Option<String>)>()
    }
}

/// Gives a piece of a chunk to the receiver; `Break`: the pass has ended.
pub(super) type Give<'g> = &'g mut dyn FnMut(MadeTexts) -> ControlFlow<()>;

/// The first text of each chunk from `from` on, and the number of texts. Samples that share pages are in one chunk.
pub(super) fn starts(dataset: &dyn Dataset, from: u64) -> Vec<u64> {
    let all = dataset.sample_count();
    let mut starts = vec![from];
    let mut add = |next: u64| {
        if starts.last().is_some_and(|last| next >= last + CHUNK_TEXTS) && next < all {
            starts.push(next);
        }
    };
    match dataset.blocks() {
        Some(blocks) => blocks.firsts.into_iter().for_each(&mut add),
        None => (0..=all.saturating_sub(from) / CHUNK_TEXTS)
            .for_each(|chunk| add(from + chunk * CHUNK_TEXTS)),
    }
    starts.push(all.max(from));
    starts
}

/// The chunks, and the number of threads.
pub(super) struct Pass {
    pub(super) starts: Vec<u64>,
    pub(super) threads: usize,
}

#[derive(Default)]
struct State {
    /// The lowest unclaimed chunk.
    next: usize,
    /// The first chunk that is not taken.
    first: usize,
    /// Pieces that are not taken.
    pieces: BTreeMap<usize, VecDeque<MadeTexts>>,
    kept_bytes: usize,
    ended: BTreeSet<usize>,
    failure: Option<DatasetError>,
    is_over: bool,
    working: usize,
}

struct Board {
    state: Mutex<State>,
    changed: Condvar,
}

impl Board {
    fn lock(&self) -> MutexGuard<'_, State> {
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

    fn give(&self, chunk: usize, piece: MadeTexts) -> ControlFlow<()> {
        let mut state = self.lock();
        let bytes = piece.bytes();
        // The receiver takes what it has of the first chunk, whatever else is kept.
        let has_turn = |state: &State| {
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

    fn end(&self, chunk: usize, outcome: Result<(), DatasetError>) {
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
struct ThreadEnd<'a>(&'a Board);

impl Drop for ThreadEnd<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.working -= 1;
        state.is_over |= std::thread::panicking();
        self.0.changed.notify_all();
    }
}

/// Ends the pass when the receiver leaves it, also after a panic.
struct ReceiverEnd<'a>(&'a Board);

impl Drop for ReceiverEnd<'_> {
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
    pub(super) fn run<W>(
        &self,
        worker: impl Fn() -> W + Sync,
        receive: &mut dyn FnMut(Option<MadeTexts>) -> Result<(), DatasetError>,
    ) -> Result<(), DatasetError>
    where
        W: FnMut(Range<u64>, Give<'_>) -> Result<(), DatasetError>,
    {
        let chunks = self.starts.len().saturating_sub(1);
        let threads = self.threads.clamp(1, chunks.max(1));
        let state = State { working: threads, ..State::default() };
        let board = Board { state: Mutex::new(state), changed: Condvar::new() };
        let work = || {
            let _end = ThreadEnd(&board);
            let mut worker = worker();
            while let Some(chunk) = board.claim(chunks) {
                let texts = self.starts[chunk]..self.starts[chunk + 1];
                let outcome = worker(texts, &mut |piece| board.give(chunk, piece));
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

    fn receive(
        board: &Board,
        chunks: usize,
        receive: &mut dyn FnMut(Option<MadeTexts>) -> Result<(), DatasetError>,
    ) -> Result<(), DatasetError> {
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
            state.kept_bytes -= pieces.iter().map(MadeTexts::bytes).sum::<usize>();
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
    use std::io;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    fn failure() -> DatasetError {
        let source = io::Error::other("on purpose");
        DatasetError::System { path: "x".into(), action: "testing", source }
    }

    /// Chunks of 3 texts; a text has as many tokens as its number says, and a piece is one text.
    fn run(
        threads: usize,
        is_bad: impl Fn(u64) -> bool + Sync,
        receive: &mut dyn FnMut(Option<MadeTexts>) -> Result<(), DatasetError>,
    ) -> Result<(), DatasetError> {
        let pass = Pass { starts: (0..=300).step_by(3).collect(), threads };
        let worker = || {
            |texts: Range<u64>, give: Give<'_>| {
                for text in texts {
                    if is_bad(text) {
                        return Err(failure());
                    }
                    let mut made = MadeTexts::default();
                    made.lengths.push(u32::try_from(text).unwrap());
                    // Later chunks have to wait for their turn.
                    made.ids.resize(KEPT_BYTES / 8, 0);
                    if give(made).is_break() {
                        return Ok(());
                    }
                }
                Ok(())
            }
        };
        pass.run(worker, receive)
    }

    #[test]
    fn texts_are_received_in_their_order() {
        for threads in [1, 2, 7] {
            let mut found = Vec::new();
            let receive = &mut |made: Option<MadeTexts>| {
                found.extend(made.into_iter().flat_map(|made| made.lengths));
                Ok(())
            };
            run(threads, |_| false, receive).unwrap();
            assert_eq!(found, (0..300).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_token_outside_of_the_type_is_refused() {
        let mut made = MadeTexts::default();
        assert!(made.add(&[1, 70_000], DType::U16).unwrap_err().contains("70000"));
        assert!(made.add(&[u32::MAX], DType::I32).is_err());
        made.add(&[1, 70_000], DType::I32).unwrap();
        assert_eq!((made.lengths, made.ids.len()), (vec![2], 8));
    }

    #[test]
    fn failures_end_all_threads() {
        for bad in [0, 1, 150, 299] {
            let received = AtomicU64::new(0);
            let receive = &mut |made: Option<MadeTexts>| {
                received.fetch_add(made.is_some().into(), Ordering::Relaxed);
                Ok(())
            };
            let error = run(4, |text| text == bad, receive).unwrap_err().to_string();
            assert!(error.contains("on purpose"), "{error}");
            assert!(received.into_inner() <= bad);
            let mut left = bad;
            let receive = &mut |made: Option<MadeTexts>| match made {
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
