//! Records each thread's spans in bounded memory that is allocated before the recording starts.
//!
//! Without an active recording, a thread reads one atomic per event. With one, it writes a few words to its chunk of
//! the [`Recording`]. One atomic addition assigns a chunk, so no thread waits for another, including threads of low
//! priority. Events without a free chunk are dropped and counted. Threads pass times that they measure anyway.
//!
//! This module stores and returns events; the engine decides when to record, [`text`] and [`folded`] export.

pub mod folded;
pub mod text;

use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use forebay_protocol::clock::monotonic_ns;
use forebay_protocol::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// The maximum number of events in a recording.
pub const MAX_EVENTS: usize = CHUNKS * CHUNK_EVENTS;
/// The maximum size of a recording: its events, and the text exported from them.
pub const RECORDING_BYTES: u64 = 32 << 20;

/// Events per chunk.
const CHUNK_EVENTS: usize = 256;
const CHUNKS: usize = 600;
const EVENT_WORDS: usize = 5;

/// Shorter spans of the engine in a session are not recorded, because there are many.
const MIN_ADVANCE: Duration = Duration::from_micros(10);

/// The current recording, if any. One per daemon.
#[derive(Debug, Default)]
pub struct Recorder {
    is_on: AtomicBool,
    /// Set from the request until the recording's memory is freed.
    is_taken: AtomicBool,
    current: ArcSwapOption<Recording>,
}

/// The permit for the daemon's only recording; another recording can begin after it is dropped.
#[derive(Debug)]
pub struct RecordingPermit(Arc<Recorder>);

impl RecordingPermit {
    /// Ends the recording: no further event is started.
    pub fn stop(&self) {
        self.0.stop();
    }
}

impl Drop for RecordingPermit {
    fn drop(&mut self) {
        self.0.stop();
        // Release: pairs with the acquire in `take`. The memory is freed before another recording allocates.
        self.0.is_taken.store(false, Ordering::Release);
    }
}

impl Recorder {
    /// Whether a recording is active; checked for every sample.
    pub fn is_on(&self) -> bool {
        // Relaxed: a thread that sees the change late misses an event at the edge.
        self.is_on.load(Ordering::Relaxed)
    }

    /// The permit to record, unless it is already taken.
    pub fn take(self: &Arc<Self>) -> Option<RecordingPermit> {
        // Acquire: pairs with the release in the permit's drop.
        let taken =
            self.is_taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
        taken.ok().map(|_| RecordingPermit(Arc::clone(self)))
    }

    /// Starts writing events to `recording`.
    pub fn start(&self, recording: &Arc<Recording>) {
        self.current.store(Some(Arc::clone(recording)));
        self.is_on.store(true, Ordering::Relaxed);
    }

    /// Ends the recording; events in progress are completed.
    pub fn stop(&self) {
        self.is_on.store(false, Ordering::Relaxed);
        self.current.store(None);
    }

    /// Records a completed span. Called only while [`is_on`](Self::is_on) returns true.
    pub fn span(&self, track: Track, start: Instant, took: Duration, what: What) {
        if let Some(recording) = self.current.load().as_ref() {
            let start_ns = recording.ns(start);
            let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
            recording.push(track, start_ns, start_ns.saturating_add(took), what);
        }
    }

    /// Records that the engine advanced a session, except for very short spans.
    pub fn advanced(&self, session: u64, begun: Instant, took: Duration) {
        if took >= MIN_ADVANCE {
            self.span(Track::Engine, begun, took, What { session, ..What::of(Kind::Advance) });
        }
    }

    /// When the active recording began.
    pub fn begun(&self) -> Option<Instant> {
        self.current.load().as_ref().map(|recording| recording.anchor)
    }

    /// Like [`span`](Self::span), with times on the monotonic clock.
    pub fn span_ns(&self, track: Track, start_ns: u64, end_ns: u64, what: What) {
        if let Some(recording) = self.current.load().as_ref() {
            recording.push(track, start_ns, end_ns.max(start_ns), what);
        }
    }
}

/// The thread of an event; each track has one writer at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Track {
    /// The engine thread.
    Engine,
    /// A work thread: its group and its number.
    Work(usize, usize),
    /// A fetch lane: its stream and its number.
    Lane(usize, usize),
}

/// The kind of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A stage ran on a row.
    Stage = 1,
    /// A stage failed on a row.
    FailedStage = 2,
    /// A complete batch was finished: batch operations ran, ragged rows were compacted.
    Compaction = 3,
    /// A thread was throttled by `cpu.limit` or a shared quota.
    HeldBack = 4,
    /// A row was read.
    Fetch = 5,
    /// A row could not be read.
    FailedFetch = 6,
    /// A read waited for the byte budget.
    WaitForBytes = 7,
    /// The engine advanced a session.
    Advance = 8,
    /// A batch was created: opened to published.
    Batch = 9,
    /// The number of a ring's slots by state.
    Ring = 10,
    /// The trainer's time from taking one batch to taking the next.
    Step = 11,
    /// The trainer waited for a batch.
    Wait = 12,
    /// A worker ran the user's function on a row; written by the calling thread.
    Python = 13,
    /// A worker ran the user's function on a complete batch; the place is that of a stage after the last one.
    PythonBatch = 14,
}

impl Kind {
    const ALL: [Self; 14] = [
        Self::Stage,
        Self::FailedStage,
        Self::Compaction,
        Self::HeldBack,
        Self::Fetch,
        Self::FailedFetch,
        Self::WaitForBytes,
        Self::Advance,
        Self::Batch,
        Self::Ring,
        Self::Step,
        Self::Wait,
        Self::Python,
        Self::PythonBatch,
    ];

    /// Whether it is the time of a worker rather than of a thread.
    pub fn is_of_worker(self) -> bool {
        matches!(self, Self::Python | Self::PythonBatch)
    }

    fn from_number(number: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u64 == number)
    }
}

/// An event without its times; fields that the kind does not use are 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct What {
    /// The kind of the event.
    pub kind: Kind,
    /// The session's number; the lowest 24 bits are stored.
    pub session: u64,
    /// The batch's number in the session, in order of opening; for a step or a wait the batch that ends it, in order of
    /// publishing. The lowest 40 bits are stored.
    pub batch: u64,
    /// The stage, or the slot of a batch; below 2^24. For a worker of a Python stage, [`worker_place`].
    pub place: usize,
    /// The row, or the number of a batch's rows.
    pub row: usize,
    /// The sample; a batch's number in order of publishing; a ring's four counts, 16 bits each; the number of batches
    /// in a step.
    pub detail: u64,
}

impl What {
    /// An event of this kind with all fields 0.
    pub fn of(kind: Kind) -> Self {
        Self { kind, session: 0, batch: 0, place: 0, row: 0, detail: 0 }
    }
}

/// The number of workers of a stage that have distinct tracks.
const WORKERS: usize = 1 << 14;

/// The `place` of a row in a worker, from the stage and the number of the worker.
pub fn worker_place(stage: usize, worker: usize) -> usize {
    stage * WORKERS + worker % WORKERS
}

/// An event of a recording; times on the monotonic clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// The thread of the event.
    pub track: Track,
    /// In nanoseconds.
    pub start_ns: u64,
    /// In nanoseconds.
    pub end_ns: u64,
    /// What was recorded.
    pub what: What,
}

/// The number of tracks.
#[derive(Debug, Clone)]
pub struct Sizes {
    /// By group.
    pub work: [usize; 2],
    /// By stream.
    pub lanes: Vec<usize>,
}

/// The memory of one recording.
#[derive(Debug)]
pub struct Recording {
    words: Box<[AtomicU64]>,
    chunks: Box<[Chunk]>,
    /// Chunks assigned, including failed attempts.
    claimed: AtomicU64,
    dropped: AtomicU64,
    /// Sorted.
    tracks: Vec<Track>,
    /// For each track, its current chunk and the number of its events there; initially [`NO_CHUNK`].
    cursors: Box<[AtomicU64]>,
    anchor: Instant,
    anchor_ns: u64,
}

#[derive(Debug, Default)]
struct Chunk {
    owner: AtomicU32,
    events: AtomicU32,
}

const NO_CHUNK: u64 = u64::MAX;

impl Recording {
    /// Allocates memory for [`MAX_EVENTS`] and touches all of it, which takes milliseconds: not for the engine thread.
    pub fn allocate(sizes: Sizes) -> Self {
        Self::with_chunks(sizes, CHUNKS)
    }

    fn with_chunks(sizes: Sizes, chunks: usize) -> Self {
        let mut tracks = vec![Track::Engine];
        for (group, threads) in sizes.work.iter().enumerate() {
            tracks.extend((0..*threads).map(|number| Track::Work(group, number)));
        }
        for (stream, lanes) in sizes.lanes.iter().enumerate() {
            tracks.extend((0..*lanes).map(|lane| Track::Lane(stream, lane)));
        }
        Self {
            words: (0..chunks * CHUNK_EVENTS * EVENT_WORDS).map(|_| AtomicU64::new(0)).collect(),
            chunks: (0..chunks).map(|_| Chunk::default()).collect(),
            claimed: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            cursors: tracks.iter().map(|_| AtomicU64::new(NO_CHUNK)).collect(),
            tracks,
            anchor: Instant::now(),
            anchor_ns: monotonic_ns(),
        }
    }

    /// Converts an instant to the monotonic clock, which `Instant` reads on Linux.
    pub fn ns(&self, instant: Instant) -> u64 {
        let nanoseconds = |length: Duration| u64::try_from(length.as_nanos()).unwrap_or(u64::MAX);
        match instant.checked_duration_since(self.anchor) {
            Some(after) => self.anchor_ns.saturating_add(nanoseconds(after)),
            None => self.anchor_ns.saturating_sub(nanoseconds(self.anchor - instant)),
        }
    }

    /// When the recording began.
    pub fn begun_ns(&self) -> u64 {
        self.anchor_ns
    }

    /// Events dropped because no chunk was free.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    fn push(&self, track: Track, start_ns: u64, end_ns: u64, what: What) {
        let Some(room) = self.room_for(track) else {
            // Relaxed, here and for the words: readers synchronise with the release below.
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let (chunk, used) = room;
        let place = what.place as u64 & 0xff_ffff;
        let event = [
            start_ns,
            end_ns,
            what.detail,
            (what.batch & 0xff_ffff_ffff) << 24 | what.session & 0xff_ffff,
            (what.row as u64 & 0xffff_ffff) << 32 | place << 8 | what.kind as u64,
        ];
        let first = (chunk * CHUNK_EVENTS + used) * EVENT_WORDS;
        for (word, value) in self.words[first..first + EVENT_WORDS].iter().zip(event) {
            word.store(value, Ordering::Relaxed);
        }
        // Release: pairs with the acquire in `events`.
        self.chunks[chunk].events.fetch_add(1, Ordering::Release);
    }

    /// The chunk for a track's next event, and its index there. Each track has one writer, so only the counter of
    /// chunks is contended.
    fn room_for(&self, track: Track) -> Option<(usize, usize)> {
        let number = self.tracks.binary_search(&track).ok()?;
        let cursor = &self.cursors[number];
        let at = cursor.load(Ordering::Relaxed);
        let (chunk, used) = (at >> 32, at & 0xffff_ffff);
        let (chunk, used) = if at == NO_CHUNK || used == CHUNK_EVENTS as u64 {
            // A failed attempt also increments the counter, too slowly to overflow 64 bits.
            let chunk = self.claimed.fetch_add(1, Ordering::Relaxed);
            let owner = &self.chunks.get(usize::try_from(chunk).ok()?)?.owner;
            owner.store(u32::try_from(number).unwrap_or(0), Ordering::Relaxed);
            (chunk, 0)
        } else {
            (chunk, used)
        };
        cursor.store(chunk << 32 | (used + 1), Ordering::Relaxed);
        Some((usize::try_from(chunk).ok()?, usize::try_from(used).ok()?))
    }

    /// The events so far, each track's in order.
    pub fn events(&self) -> impl Iterator<Item = Event> {
        let claimed = usize::try_from(self.claimed.load(Ordering::Relaxed)).unwrap_or(usize::MAX);
        self.chunks.iter().enumerate().take(claimed).flat_map(move |(number, chunk)| {
            // Acquire: pairs with the release in `push`.
            let events = chunk.events.load(Ordering::Acquire) as usize;
            let owner = chunk.owner.load(Ordering::Relaxed) as usize;
            (0..events.min(CHUNK_EVENTS)).filter_map(move |event| {
                let first = (number * CHUNK_EVENTS + event) * EVENT_WORDS;
                let word = |index: usize| self.words[first + index].load(Ordering::Relaxed);
                let (numbers, rest) = (word(3), word(4));
                Some(Event {
                    track: *self.tracks.get(owner)?,
                    start_ns: word(0),
                    end_ns: word(1),
                    what: What {
                        kind: Kind::from_number(rest & 0xff)?,
                        session: numbers & 0xff_ffff,
                        batch: numbers >> 24,
                        place: usize::try_from(rest >> 8 & 0xff_ffff).ok()?,
                        row: usize::try_from(rest >> 32).ok()?,
                        detail: word(2),
                    },
                })
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes() -> Sizes {
        Sizes { work: [2, 1], lanes: vec![2, 1] }
    }

    #[test]
    fn no_memory_or_events_without_a_recording() {
        let recorder = Arc::new(Recorder::default());
        assert!(!recorder.is_on() && !recorder.current.load().is_some());
        recorder.span(Track::Engine, Instant::now(), Duration::ZERO, What::of(Kind::Advance));
        let permit = recorder.take().unwrap();
        assert!(recorder.take().is_none(), "one at a time");
        let recording = Arc::new(Recording::with_chunks(sizes(), 1));
        recorder.start(&recording);
        assert!(recorder.is_on() && recorder.current.load().is_some());
        drop(permit);
        assert!(!recorder.is_on() && !recorder.current.load().is_some());
        recorder.span(Track::Engine, Instant::now(), Duration::ZERO, What::of(Kind::Advance));
        assert_eq!((recording.events().count(), Arc::strong_count(&recording)), (0, 1));
        assert!(recorder.take().is_some());
    }

    #[test]
    fn events_are_returned_with_their_tracks() {
        let recorder = Arc::new(Recorder::default());
        let recording = Arc::new(Recording::with_chunks(sizes(), 16));
        recorder.start(&recording);
        let begun = Instant::now();
        let written: Vec<(Track, What)> = recording
            .tracks
            .iter()
            .enumerate()
            .map(|(number, track)| {
                let what = What {
                    kind: Kind::ALL[number],
                    session: 3 + number as u64,
                    batch: (1 << 39) + number as u64,
                    place: (1 << 23) + number,
                    row: (1 << 31) + number,
                    detail: u64::MAX - number as u64,
                };
                (*track, what)
            })
            .collect();
        assert_eq!(written.len(), 7);
        for (track, what) in &written {
            recorder.span(*track, begun, Duration::from_millis(5), *what);
        }
        let read: Vec<Event> = recording.events().collect();
        assert_eq!(read.iter().map(|event| (event.track, event.what)).collect::<Vec<_>>(), written);
        for event in read {
            assert_eq!(event.start_ns, recording.ns(begun));
            assert_eq!(event.end_ns - event.start_ns, 5_000_000);
        }
        // An event of an unknown track is dropped and counted.
        recorder.span(Track::Work(0, 2), begun, Duration::ZERO, What::of(Kind::Stage));
        recorder.span(Track::Lane(0, 2), begun, Duration::ZERO, What::of(Kind::Fetch));
        assert_eq!((recording.events().count(), recording.dropped()), (7, 2));
    }

    #[test]
    fn dropped_events_are_counted_and_do_not_affect_others() {
        let recording = Recording::with_chunks(sizes(), 2);
        std::thread::scope(|scope| {
            for number in 0..2 {
                let recording = &recording;
                scope.spawn(move || {
                    for row in 0..CHUNK_EVENTS + 10 {
                        let what = What { row, ..What::of(Kind::Stage) };
                        recording.push(Track::Work(0, number), 1, 2, what);
                    }
                });
            }
        });
        let mut events: Vec<Event> = recording.events().collect();
        // The division of the two chunks between the threads depends on a race.
        assert!(events.len() > CHUNK_EVENTS && recording.dropped() >= 20, "{}", events.len());
        assert_eq!(events.len() as u64 + recording.dropped(), 2 * (CHUNK_EVENTS as u64 + 10));
        events.sort_by_key(|event| event.track);
        for of_a_track in events.chunk_by(|one, next| one.track == next.track) {
            assert!(of_a_track.iter().enumerate().all(|(row, event)| event.what.row == row));
        }
    }

    #[test]
    fn instant_before_the_recording_is_converted_exactly() {
        let recording = Recording::with_chunks(sizes(), 1);
        let before = recording.anchor - Duration::from_millis(3);
        assert_eq!(recording.ns(before) + 3_000_000, recording.begun_ns());
    }
}
