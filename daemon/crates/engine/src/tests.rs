//! The engine with its threads over real segments. The test acts as the client: it takes, checks and returns batches.

use std::collections::VecDeque;
use std::future::Future;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_affinity::PoolOptions;
use forebay_protocol::frames::{Attach, Attached, DaemonFrame, RestartPolicy, RowKey};
use forebay_protocol::ids::{Position, SampleId};
use forebay_protocol::publish::{Descriptor, PublishReader};
use forebay_protocol::returns::{ReturnWord, ReturnWriter};
use forebay_protocol::segment::{Access, Mapping, Segment, open_segment};
use forebay_protocol::slots::{RowWriter, split_rows};
use forebay_protocol::socket::Connection;
use forebay_protocol::words::Words;
use tokio::sync::mpsc;

use super::*;
use crate::ground::shared_rows::SharedRows;
use crate::ground::waker::Waker;
use crate::ground::work::{Claim, SessionWork};
use forebay_config::{Config, CpuPolicy, Override};
use forebay_dataset::OpenOptions;
use forebay_formats::testing::npy_bytes;
use forebay_observe::Clock;
use forebay_order::{DrawKey, Draws, substitute};
use forebay_transform::batch::{BatchCaller, BatchOperation};

mod batches;
mod fetching;
mod replays;
mod schedules;
mod stalls;
mod substitutes;
mod supplying;
mod trainers;
mod units;
mod verdicts;

/// The limit after which a test counts as hung; no other time limit fails a test.
const WATCHDOG: Duration = Duration::from_secs(60);
const SAMPLES: u64 = 64;
const ROUNDS: u32 = 4000;

/// Every fifth sample is not a valid array.
fn is_bad(sample: u64) -> bool {
    sample % 5 == 1
}

/// A folder of arrays of four numbers, each equal to the sample's number, and a stream over it.
fn open_stream(folder: &Path, bad_samples: bool, more: &str) -> Arc<Stream> {
    open_stream_with(folder, bad_samples, more, Vec::new())
}

fn open_stream_with(
    folder: &Path,
    bad_samples: bool,
    more: &str,
    operations: Vec<Box<dyn BatchOperation>>,
) -> Arc<Stream> {
    write_samples(&folder.join("data"), bad_samples);
    let text = format!(
        "[dataset]\nformat = \"npy\"\npath = \"data\"\nindex = \"index\"\n[order]\nshuffle = false\n[batch]\nsize = 8\n\
         [errors]\non_bad_sample = \"substitute\"\nbudget = 1000000\n{more}"
    );
    let config = read_config(folder, &text, &[]);
    Arc::new(
        Stream::open_with(
            config,
            forebay_formats::open_configured,
            3,
            OpenOptions::default(),
            Clock::system(),
            operations,
        )
        .unwrap(),
    )
}

/// A stream over good samples through one stage, with other keys and a clock.
fn stream_with(folder: &Path, keys: &[&str], clock: Clock) -> Arc<Stream> {
    stream_called("stream", folder, keys, clock)
}

fn stream_called(name: &str, folder: &Path, keys: &[&str], clock: Clock) -> Arc<Stream> {
    write_samples(&folder.join("data"), false);
    let text = "[dataset]\nformat = \"npy\"\npath = \"data\"\nindex = \"index\"\n[order]\nshuffle = false\n\
                [batch]\nsize = 8\n[ring]\nslots = 3\n[[stage]]\nname = \"work\"\noperations = []\n";
    let mut config = read_config(folder, text, keys);
    name.clone_into(&mut config.name);
    open_config(config, clock).unwrap()
}

/// The stream of a configuration, for three threads.
fn open_config(config: Config, clock: Clock) -> Result<Arc<Stream>, StreamError> {
    let open = forebay_formats::open_configured;
    Stream::open(config, open, 3, OpenOptions::default(), clock).map(Arc::new)
}

fn read_config(folder: &Path, text: &str, keys: &[&str]) -> Config {
    let path = folder.join("stream.toml");
    std::fs::write(&path, text).unwrap();
    let overrides: Vec<_> = keys.iter().map(|key| Override::from_argument(key).unwrap()).collect();
    Config::from_file(&path, &overrides).unwrap()
}

fn write_samples(data: &Path, bad_samples: bool) {
    std::fs::create_dir_all(data).unwrap();
    for sample in 0..SAMPLES {
        let elements: Vec<u8> = (0..4).flat_map(|_| sample.to_le_bytes()).collect();
        let mut bytes = npy_bytes("<i8", false, "(4,)", &elements);
        if sample % 7 == 3 {
            // Not read directly into the row: its bytes must be swapped first.
            let elements: Vec<u8> = (0..4).flat_map(|_| sample.to_be_bytes()).collect();
            bytes = npy_bytes(">i8", false, "(4,)", &elements);
        }
        if bad_samples && is_bad(sample) {
            bytes[0] = 0;
        }
        std::fs::write(data.join(format!("{sample:03}.npy")), bytes).unwrap();
    }
}

fn start(stream: &Arc<Stream>, fetch_bytes: u64) -> SharedEngine {
    start_pool(stream, fetch_bytes, pool())
}

fn pool() -> PoolOptions {
    PoolOptions {
        threads: 3,
        max_threads: 6,
        fallback_threads: 3,
        policy: CpuPolicy::Normal,
        nice: 0,
        granted_cores: 3.0,
        spare_cores: None,
        limit_cores: None,
        cores: Vec::new(),
        refused_cores: Vec::new(),
        ring_cores: Vec::new(),
    }
}

fn idle_pool() -> PoolOptions {
    PoolOptions { policy: CpuPolicy::Idle, ..pool() }
}

fn start_pool(stream: &Arc<Stream>, fetch_bytes: u64, pool: PoolOptions) -> SharedEngine {
    start_within(stream, budgets(fetch_bytes), pool)
}

/// No sample of most tests needs more than `covered_bytes`.
const fn budgets(fetch_bytes: u64) -> ByteBudgets {
    ByteBudgets { fetch_bytes, work_bytes: 1 << 30, covered_bytes: 8 << 20 }
}

fn start_within(stream: &Arc<Stream>, budgets: ByteBudgets, pool: PoolOptions) -> SharedEngine {
    let engine =
        Engine::start(vec![Arc::clone(stream)], pool, budgets, stream.clock.clone()).unwrap();
    let shared = Rc::clone(&engine);
    tokio::task::spawn_local(async move { run_on_wake(shared).await });
    engine
}

/// Runs a test on a separate engine thread, under the watchdog.
fn on_engine_thread<F: Future<Output = ()>>(test: impl FnOnce() -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let local = tokio::task::LocalSet::new();
    let outcome = local.block_on(&runtime, async { tokio::time::timeout(WATCHDOG, test()).await });
    // Threads of a hung test must not keep it from failing.
    runtime.shutdown_background();
    if outcome.is_err() {
        std::mem::forget(local);
        panic!("the engine made no progress for {WATCHDOG:?}");
    }
}

struct Client {
    engine: SharedEngine,
    number: u64,
    terms: Box<Attached>,
    data: Mapping,
    publish: PublishReader<Mapping>,
    returns: ReturnWriter<Mapping>,
    read: u64,
    serial: u64,
    bad_samples: bool,
    frames: mpsc::Receiver<DaemonFrame>,
    /// Keeps the engine's doorbells from failing.
    _peer: Connection,
}

impl Client {
    fn attach(engine: &SharedEngine, bad_samples: bool) -> Self {
        Self::attach_as(engine, bad_samples, 0, 1)
    }

    /// As the last rank of a world: [`check`](Self::check) then expects the same of a batch.
    fn attach_as(engine: &SharedEngine, bad_samples: bool, rank: u32, world_size: u32) -> Self {
        let position = Position::default();
        let request = Attach {
            stream: None,
            rank,
            world_size,
            position,
            substitutes: 0,
            trainer: String::new(),
            batch_size: None,
            cuts: Vec::new(),
        };
        Self::attach_with(engine, bad_samples, &request)
    }

    /// As a trainer with this name.
    fn attach_trainer(engine: &SharedEngine, bad_samples: bool, name: &str) -> Self {
        let request = Attach {
            stream: None,
            rank: 0,
            world_size: 1,
            position: Position::default(),
            substitutes: 0,
            trainer: name.to_owned(),
            batch_size: None,
            cuts: Vec::new(),
        };
        Self::attach_with(engine, bad_samples, &request)
    }

    fn attach_with(engine: &SharedEngine, bad_samples: bool, request: &Attach) -> Self {
        let (connection, peer) = Connection::pair().unwrap();
        let (outbox, frames) = mpsc::channel(64);
        let (number, terms) = engine
            .borrow_mut()
            .attach(
                request,
                SessionKind::Order,
                SessionMemory::Sealed,
                RestartPolicy::Never,
                Rc::new(connection),
                outbox,
            )
            .unwrap();
        let DaemonFrame::Attached(attached) = &terms.frame else {
            panic!("the terms of a session")
        };
        let [data, publish, returns] = terms.descriptors()[..] else { panic!("three segments") };
        let slots = attached.slots;
        let data_bytes = attached.slot_bytes * u64::from(slots);
        let client = Self {
            engine: Rc::clone(engine),
            number,
            terms: attached.clone(),
            data: open_segment(data, "data", data_bytes, Access::ReadWrite).unwrap(),
            publish: PublishReader::new(
                open_segment(publish, "publish", attached.publish_bytes, Access::ReadOnly).unwrap(),
            )
            .unwrap(),
            returns: ReturnWriter::new(
                open_segment(returns, "return", attached.return_bytes, Access::ReadWrite).unwrap(),
                slots,
            ),
            read: 0,
            serial: 0,
            bad_samples,
            frames,
            _peer: peer,
        };
        engine.borrow_mut().advance(number);
        client
    }

    /// The next batch, whichever seek it belongs to.
    async fn next(&mut self) -> Descriptor {
        // A client without a ready batch announces the slots that it has returned since the last doorbell.
        if self.publish.published() == self.read && self.returns.announce_sleep(&self.publish) {
            self.engine.borrow_mut().advance(self.number);
        }
        while self.publish.published() == self.read {
            tokio::task::yield_now().await;
            if let Ok(DaemonFrame::Fault(fault)) = self.frames.try_recv() {
                panic!("the session ended: {}", fault.message);
            }
        }
        self.returns.announce_wake();
        self.read += 1;
        // The engine derives from it the number of slots in circulation.
        self.returns.show_taken(self.read, forebay_protocol::clock::monotonic_ns());
        self.publish.read(self.read - 1).unwrap()
    }

    /// Returns published batches until the session ends; the reason of the end.
    async fn fault(&mut self) -> String {
        loop {
            if let Ok(DaemonFrame::Fault(fault)) = self.frames.try_recv() {
                return fault.message;
            }
            while self.read < self.publish.published() {
                self.read += 1;
                self.returns.show_taken(self.read, forebay_protocol::clock::monotonic_ns());
                let taken = self.publish.read(self.read - 1).unwrap();
                self.give_back(&taken);
            }
            if self.returns.announce_sleep(&self.publish) {
                self.engine.borrow_mut().advance(self.number);
            }
            tokio::task::yield_now().await;
            self.returns.announce_wake();
        }
    }

    fn give_back(&mut self, batch: &Descriptor) {
        let word = ReturnWord { slot: batch.slot, generation: batch.generation };
        if self.returns.give_back(word, &self.publish) {
            self.engine.borrow_mut().advance(self.number);
        }
    }

    fn seek(&mut self, samples: u64) {
        self.serial += 1;
        let position = Position { epoch: 0, samples };
        let seek = Seek { serial: self.serial, position, substitutes: 0, cuts: Vec::new() };
        self.engine.borrow_mut().seek(self.number, &[seek]);
    }

    /// Compares a batch with the order, substitutes included.
    fn check(&self, batch: &Descriptor) {
        let start = match batch.position_after.samples {
            0 => SAMPLES - batch.rows,
            samples => samples - batch.rows,
        };
        let base = self.terms.slot_bytes * u64::from(batch.slot.0);
        let word = |byte: u64| {
            let word = self.data.word(usize::try_from((base + byte) / 8).unwrap());
            word.load(forebay_protocol::sync::Ordering::Relaxed)
        };
        let (array, index) = (&batch.tensors[0], &batch.tensors[batch.tensors.len() - 1]);
        if array.ragged {
            assert_eq!(array.length_bytes, 32 * batch.rows, "the bytes of rows that lie together");
        }
        for row in 0..batch.rows {
            let wanted = start + row;
            let mut expected = wanted;
            let mut attempt = 0;
            while self.bad_samples && is_bad(expected) {
                let bad = SampleId(wanted);
                expected = substitute(SAMPLES, 0, batch.epoch, bad, attempt).unwrap().0;
                attempt += 1;
            }
            let place = format!("row {row} of the batch at {start} of epoch {}", batch.epoch);
            assert_eq!(word(index.offset_bytes + 8 * row), expected, "index in {place}");
            // Dense rows of 32 bytes are contiguous too.
            let first = array.offset_bytes + 32 * row;
            for byte in [first, first + 24] {
                assert_eq!(word(byte), expected, "data in {place}");
            }
            if array.ragged {
                let table = array.table_offset_bytes + 8 * row;
                assert_eq!(word(table), 4 * row, "offset of {place}");
            }
        }
    }
}

/// Bad samples, seeks, batches kept and returned out of order, two stages with limits and a tight byte budget: each
/// delivered row is the one that the order names.
#[test]
fn rows_are_intact_and_in_order_under_seeks_and_substitutes() {
    take_and_seek("");
}

/// The same while work threads compact ragged rows, also of batches that are cancelled meanwhile.
#[test]
fn rows_are_intact_when_ragged_rows_are_compacted_under_seeks() {
    take_and_seek("[output]\narray = { ragged = true, max_bytes = \"512B\", compact = true }\n");
}

/// A slot whose rows are being compacted is not free, and a request that no thread has taken yet is withdrawn:
/// otherwise the slot's next batch would be compacted while it is written.
#[test]
fn cancelled_compaction_does_not_affect_the_slots_next_batch() {
    let folder = tempfile::tempdir().unwrap();
    let output = "[[stage]]\nname = \"work\"\noperations = []\n\
                  [output]\narray = { ragged = true, max_bytes = \"512B\", compact = true }\n";
    let stream = open_stream(folder.path(), false, output);
    let data = Segment::create("data", stream.layout().slot_bytes()).unwrap();
    let rows = split_rows(data.map().unwrap(), &stream.layout, 1);
    let work = session_work(&stream, rows);
    let slot = &work.slots[0];
    slot.open(0, 8);
    assert!(slot.withdraw_finishing());
    assert!(slot.finished().is_none());
    assert!(slot.withdraw_finishing());
    assert!(work.claim(0).is_none(), "the wish was taken back");
    assert!(slot.finished().is_none());
    assert!(matches!(work.claim(0), Some(Claim::Batch { slot: 0 })));
    assert!(!slot.withdraw_finishing(), "a thread is at it");
    slot.finish(&stream, &BatchCaller::plain(0));
    assert!(slot.withdraw_finishing());
}

fn session_work(stream: &Arc<Stream>, rows: Vec<Vec<RowWriter>>) -> SessionWork {
    let waker = Arc::new(Waker::new().unwrap());
    let shared_rows = Arc::new(SharedRows::new(0, waker));
    SessionWork::new(1, Arc::clone(stream), None, shared_rows, rows)
}

/// Lowered threads may starve in the middle of a row, with every place of its stage taken.
#[test]
fn stage_full_of_starving_threads_has_room_for_the_other_group() {
    let folder = tempfile::tempdir().unwrap();
    let stage = "[[stage]]\nname = \"work\"\nconcurrency = 2\noperations = []\n";
    let stream = open_stream(folder.path(), false, stage);
    let data = Segment::create("data", stream.layout().slot_bytes()).unwrap();
    let rows = split_rows(data.map().unwrap(), &stream.layout, 1);
    let work = session_work(&stream, rows);
    work.slots[0].open(0, 8);
    (0..8).for_each(|row| work.slots[0].mark_ready(0, row));
    assert!(work.claim(0).is_some() && work.claim(0).is_some());
    assert!(work.claim(0).is_none(), "two at once");
    assert!(work.claim(1).is_some() && work.claim(1).is_some());
    assert!(work.claim(1).is_none(), "two at once");
}

/// Rows wait that no thread of the lowered group takes, and no other event follows: the switch itself must wake the
/// fallback pool.
#[test]
fn fallback_pool_is_woken_by_the_switch() {
    on_engine_thread(|| async {
        let folder = tempfile::tempdir().unwrap();
        let stage =
            "[[stage]]\nname = \"work\"\nconcurrency = 1\noperations = []\n[ring]\nslots = 4\n";
        let stream = open_stream(folder.path(), false, stage);
        // Simulates a lowered thread that starves in the middle of a row.
        assert!(stream.stages[0].gate.enter(0));
        let engine = start_pool(&stream, 1 << 20, idle_pool());
        let pool = engine.borrow().pool_shared();
        let mut client = Client::attach(&engine, false);
        // Further rows wait for these, as reads are fast.
        while stream.stages[0].input.report().num_items < 2 * 8 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // By now the thread that made the last row ready has checked for sleepers.
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(client.publish.published(), 0);
        pool.set_fallback(true);
        let batch = client.next().await;
        client.check(&batch);
    });
}

/// While one row of a batch sleeps, the rows of all other slots are processed and none of them is published before it.
#[test]
fn slow_sample_delays_only_its_own_batch() {
    on_engine_thread(|| async {
        let folder = tempfile::tempdir().unwrap();
        let stage = "[[stage]]\nname = \"work\"\nconcurrency = 3\n\
                     operations = [{ op = \"delay\", milliseconds = 3000, probability = 0.02 }]\n[ring]\nslots = 4\n";
        let stream = open_stream(folder.path(), false, stage);
        let engine = start(&stream, 1 << 20);
        let pool = engine.borrow().pool_shared();
        let mut client = Client::attach(&engine, false);
        let finished = || pool.rows_finished.load(forebay_protocol::sync::Ordering::Relaxed);
        // The seed determines the draws: in some window of four batches exactly one row is slow.
        let mut is_hidden = false;
        for _ in 0..16 {
            let begun = finished();
            let published = client.publish.published();
            // Twice that is less than the slow row takes.
            tokio::time::sleep(Duration::from_millis(1000)).await;
            let behind = client.publish.published() - published;
            is_hidden |= finished() - begun >= 8 && behind == 0;
            if is_hidden {
                break;
            }
            let batch = client.next().await;
            client.check(&batch);
            client.give_back(&batch);
        }
        assert!(is_hidden, "no batch was filled behind a slow one");
    });
}

/// The two groups of threads are switched at any moment: no row is lost and no wake-up stays with the wrong group.
#[test]
fn no_batch_is_lost_while_the_groups_of_threads_alternate() {
    on_engine_thread(|| async {
        let folder = tempfile::tempdir().unwrap();
        let stage = "[[stage]]\nname = \"work\"\noperations = []\n[ring]\nslots = 4\n";
        let stream = open_stream(folder.path(), false, stage);
        let engine = start_pool(&stream, 1600, idle_pool());
        let pool = engine.borrow().pool_shared();
        assert!(pool.has_fallback());
        let mut client = Client::attach(&engine, false);
        let mut draws = Draws::new(DrawKey { seed: 2, epoch: 0, sample: 0 }, 0);
        for _ in 0..ROUNDS / 4 {
            if draws.below(2) == 0 {
                pool.set_fallback(!pool.is_fallback_active());
            }
            for _ in 0..draws.below(4) {
                tokio::task::yield_now().await;
            }
            let batch = client.next().await;
            client.check(&batch);
            client.give_back(&batch);
        }
    });
}

fn take_and_seek(output: &str) {
    on_engine_thread(|| async {
        let folder = tempfile::tempdir().unwrap();
        let stages = "[[stage]]\nname = \"first\"\nconcurrency = 1\noperations = []\n\
                      [[stage]]\nname = \"second\"\nconcurrency = 2\noperations = []\n\
                      [ring]\nslots = 5\n";
        let stream = open_stream(folder.path(), true, &format!("{stages}{output}"));
        let engine = start(&stream, 1600);
        let mut client = Client::attach(&engine, true);
        let mut draws = Draws::new(DrawKey { seed: 1, epoch: 0, sample: 0 }, 0);
        let mut held = VecDeque::new();
        for _ in 0..ROUNDS {
            let batch = client.next().await;
            if batch.seek_serial == client.serial {
                client.check(&batch);
            }
            held.push_back(batch);
            while held.len() > 3 || (!held.is_empty() && draws.below(3) > 0) {
                let place = if draws.below(2) == 0 { 0 } else { held.len() - 1 };
                let batch = held.remove(place).unwrap();
                client.give_back(&batch);
            }
            if draws.below(8) == 0 {
                for _ in 0..draws.below(40) {
                    tokio::task::yield_now().await;
                }
                client.seek(draws.below(SAMPLES / 8) * 8);
            }
        }
    });
}
