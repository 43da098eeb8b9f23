//! One suite for every kind of memory that the rings support: heap words, sealed memfds and named
//! segments.

#![cfg(not(loom))]

use std::collections::VecDeque;
use std::os::fd::AsFd;

use forebay_protocol::ids::{BatchNumber, Generation, Position, SlotIndex};
use forebay_protocol::lease::{LeaseViolation, SlotState, SlotTable};
use forebay_protocol::publish::{
    Descriptor, PublishError, PublishReader, PublishWriter, TensorEntry, publish_words,
};
use forebay_protocol::returns::{ReturnReader, ReturnWord, ReturnWriter, return_words};
use forebay_protocol::segment::{Access, Mapping, Segment, open_named_segment, open_segment};
use forebay_protocol::sync::Ordering;
use forebay_protocol::tensor::{DType, MAX_RANK, MAX_TENSORS};
use forebay_protocol::words::{HeapWords, Words};

const SLOTS: u16 = 5;
const TENSORS: usize = 2;

/// A kind of memory: creates the two ends of one zeroed segment of `words` words.
trait Memory {
    type End: Words + 'static;

    fn pair(words: usize, client: Access) -> (Self::End, Self::End);
}

/// Words on the heap that both ends share.
struct Heap;

impl Memory for Heap {
    type End = std::sync::Arc<HeapWords>;

    fn pair(words: usize, _client: Access) -> (Self::End, Self::End) {
        let words = std::sync::Arc::new(HeapWords::new(words));
        (words.clone(), words)
    }
}

/// A sealed memfd, mapped twice.
struct Memfd;

impl Memory for Memfd {
    type End = Mapping;

    fn pair(words: usize, client: Access) -> (Mapping, Mapping) {
        let bytes = words as u64 * 8;
        let segment = Segment::create("conformance", bytes).unwrap();
        let daemon = segment.map().unwrap();
        segment.seal(client).unwrap();
        let client = open_segment(segment.descriptor().as_fd(), "conformance", bytes, client);
        (daemon, client.unwrap())
    }
}

/// A name in /dev/shm, opened twice.
struct Named;

impl Memory for Named {
    type End = Mapping;

    fn pair(words: usize, _client: Access) -> (Mapping, Mapping) {
        let bytes = words as u64 * 8;
        let named = Segment::create_named("conformance", bytes).unwrap();
        let client = open_named_segment(named.name().unwrap(), "conformance", bytes);
        (named.map().unwrap(), client.unwrap())
    }
}

/// Both rings, both sides.
struct Rings<W> {
    publish_writer: PublishWriter<W>,
    publish_reader: PublishReader<W>,
    return_writer: ReturnWriter<W>,
    return_reader: ReturnReader<W>,
    table: SlotTable,
}

fn rings<M: Memory>() -> Rings<M::End> {
    let (daemon, client) = M::pair(publish_words(SLOTS, TENSORS), Access::ReadOnly);
    let (daemon_returns, client_returns) = M::pair(return_words(SLOTS), Access::ReadWrite);
    Rings {
        publish_writer: PublishWriter::new(daemon, SLOTS, TENSORS),
        publish_reader: PublishReader::new(client).unwrap(),
        return_writer: ReturnWriter::new(client_returns, SLOTS),
        return_reader: ReturnReader::new(daemon_returns, SLOTS),
        table: SlotTable::new(SLOTS),
    }
}

/// A descriptor whose fields all differ.
fn descriptor(sequence: u64, slot: SlotIndex, generation: Generation) -> Descriptor {
    let tensor = |index: u64| TensorEntry {
        dtype: DType::ALL[usize::try_from((sequence + index) % 13).unwrap()],
        ragged: index == 1,
        offset_bytes: sequence * 1000 + index,
        length_bytes: sequence * 2000 + index,
        table_offset_bytes: index * 512,
        rank: 8,
        dims: std::array::from_fn(|axis| sequence + index * 10 + axis as u64),
    };
    Descriptor {
        sequence: BatchNumber(sequence),
        slot,
        generation,
        payload_bytes: sequence + 1,
        epoch: sequence + 2,
        position_after: Position { epoch: sequence + 3, samples: sequence + 4 },
        seek_serial: sequence + 5,
        rows: sequence + 6,
        substitutes: sequence + 7,
        batches_after: sequence + 8,
        last_of_epoch: sequence.is_multiple_of(2),
        replayed: sequence.is_multiple_of(3),
        tensors: vec![tensor(0), tensor(1)],
    }
}

impl<W: Words> Rings<W> {
    /// Fills and publishes a slot, if one is free.
    fn publish(&mut self) -> Option<Descriptor> {
        let (slot, generation) = self.table.begin_fill()?;
        let batch = descriptor(self.publish_writer.published(), slot, generation);
        self.table.publish(slot);
        self.publish_writer.publish(&batch);
        Some(batch)
    }

    fn give_back(&mut self, batch: &Descriptor) -> bool {
        let word = ReturnWord { slot: batch.slot, generation: batch.generation };
        self.return_writer.give_back(word, &self.publish_reader)
    }

    /// The daemon's results for all available returns.
    fn accept(&mut self) -> Vec<Result<SlotIndex, LeaseViolation>> {
        let mut judged = Vec::new();
        while let Some(word) = self.return_reader.take_return().unwrap() {
            judged.push(self.table.accept_return(word));
        }
        judged
    }
}

fn descriptors_arrive_complete_and_in_order_over_many_rounds<M: Memory>() {
    let mut rings = rings::<M>();
    let mut held = VecDeque::new();
    let mut read = 0;
    for round in 0..200 {
        // Uneven steps, so that slots and entries drift apart.
        for _ in 0..=round % 3 {
            held.extend(rings.publish());
        }
        while read < rings.publish_reader.published() {
            let place = usize::try_from(rings.publish_reader.published() - read).unwrap();
            let expected = &held[held.len() - place];
            assert_eq!(&rings.publish_reader.read(read).unwrap(), expected);
            read += 1;
        }
        // Returned in a different order.
        if round % 2 == 1 {
            for batch in held.drain(..held.len() / 2 + 1).rev().collect::<Vec<_>>() {
                rings.give_back(&batch);
            }
            assert!(rings.accept().iter().all(Result::is_ok));
        }
        let published = rings.table.count(SlotState::Published);
        assert_eq!(published, held.len());
    }
    assert!(read > 100, "{read}");
}

fn full_ring_stops_the_daemon_and_one_return_wakes_it<M: Memory>() {
    let mut rings = rings::<M>();
    let batches: Vec<Descriptor> = std::iter::from_fn(|| rings.publish()).collect();
    assert_eq!(batches.len(), usize::from(SLOTS));
    assert!(!rings.give_back(&batches[0]), "no wake-up was requested");
    rings.publish_writer.ask_wake_at(2, false);
    assert!(rings.give_back(&batches[1]), "the second return is due");
    assert!(!rings.give_back(&batches[2]), "and rings once");
    assert_eq!(rings.accept().len(), 3);
    assert!(rings.publish().is_some());
}

fn sleep_and_progress_are_visible_to_the_other_side<M: Memory>() {
    let mut rings = rings::<M>();
    assert!(!rings.return_reader.client_sleeps());
    assert!(!rings.return_writer.announce_sleep(&rings.publish_reader), "nothing was returned");
    assert!(rings.return_reader.client_sleeps());
    rings.return_writer.announce_wake();
    assert!(!rings.return_reader.client_sleeps());
    let batch = rings.publish().unwrap();
    rings.publish_writer.ask_wake_at(u64::MAX, true);
    assert!(!rings.give_back(&batch));
    let mut announce = || rings.return_writer.announce_sleep(&rings.publish_reader);
    assert!(!announce(), "the daemon looks without a doorbell");
    rings.publish_writer.ask_wake_at(u64::MAX, false);
    assert!(announce(), "a return went without a doorbell");
    assert!(!announce(), "and rings once");
    rings.publish_writer.show_progress(41);
    assert_eq!(rings.publish_reader.progress(), 41);
    rings.return_writer.show_taken(7, 8);
    rings.return_writer.show_waited(9);
    assert_eq!(rings.return_reader.claimed_taken(), 7);
    assert_eq!(rings.return_reader.claimed_taken_at_ns(), 8);
    assert_eq!(rings.return_reader.claimed_waited_ns(), 9);
}

fn false_returns_are_rejected_and_change_nothing<M: Memory>() {
    let mut rings = rings::<M>();
    let batch = rings.publish().unwrap();
    let mut older = batch.clone();
    older.generation.0 += 1;
    let mut stranger = batch.clone();
    stranger.slot.0 = SLOTS;
    for word in [&older, &stranger, &batch, &batch] {
        rings.give_back(word);
    }
    let judged = rings.accept();
    assert!(matches!(judged[0], Err(LeaseViolation::WrongGeneration { .. })));
    assert!(matches!(judged[1], Err(LeaseViolation::NoSuchSlot { .. })));
    assert_eq!(judged[2], Ok(batch.slot));
    assert!(matches!(judged[3], Err(LeaseViolation::NotHeld { .. })));
    assert_eq!(rings.table.count(SlotState::Free), usize::from(SLOTS));
}

fn count_beyond_the_ring_is_an_overrun<M: Memory>() {
    let (daemon, client) = M::pair(return_words(SLOTS), Access::ReadWrite);
    let mut reader = ReturnReader::new(daemon, SLOTS);
    // The first word counts the returns.
    for claimed in [9, u64::MAX] {
        client.word(0).store(claimed, Ordering::Relaxed);
        assert_eq!(reader.take_return().unwrap_err().claimed, claimed);
    }
}

fn invalid_headers_and_descriptors_are_refused<M: Memory>() {
    let words = publish_words(SLOTS, TENSORS);
    let published = || {
        let (daemon, client) = M::pair(words, Access::ReadWrite);
        let mut writer = PublishWriter::new(daemon, SLOTS, TENSORS);
        writer.publish(&descriptor(0, SlotIndex(0), Generation(1)));
        client
    };
    assert!(PublishReader::new(published()).unwrap().read(0).is_ok());
    // Magic, capacity and entry size.
    for (word, value) in [(0, 0), (1, 0), (1, 1 << 40), (2, 1), (2, u64::MAX)] {
        let client = published();
        client.word(word).store(value, Ordering::Relaxed);
        assert!(matches!(PublishReader::new(client), Err(PublishError::Head)));
    }
    assert!(matches!(PublishReader::new(M::pair(8, Access::ReadWrite).1), Err(PublishError::Head)));
    // The first entry's sequence, its tensor count, its first tensor's type and dimensions.
    let first_entry = 512;
    let spoiled = [
        (0, 1),
        (8, MAX_TENSORS as u64 + 1),
        (8, u64::MAX),
        (16, 13),
        (16, (MAX_RANK as u64 + 1) << 16),
    ];
    for (word, value) in spoiled {
        let client = published();
        client.word(first_entry + word).store(value, Ordering::Relaxed);
        let reader = PublishReader::new(client).unwrap();
        assert!(
            matches!(reader.read(0), Err(PublishError::Malformed { .. })),
            "word {word} = {value}"
        );
    }
}

fn two_threads_pass_every_batch_once<M: Memory>() {
    const BATCHES: u64 = 5_000;
    let Rings {
        mut publish_writer,
        publish_reader,
        mut return_writer,
        mut return_reader,
        mut table,
    } = rings::<M>();
    let client = std::thread::spawn(move || {
        for sequence in 0..BATCHES {
            while publish_reader.published() <= sequence {
                std::thread::yield_now();
            }
            let batch = publish_reader.read(sequence).unwrap();
            assert_eq!(
                batch,
                descriptor(sequence, batch.slot, batch.generation),
                "a torn descriptor"
            );
            let word = ReturnWord { slot: batch.slot, generation: batch.generation };
            return_writer.give_back(word, &publish_reader);
        }
    });
    let mut accepted = 0;
    while accepted < BATCHES {
        if publish_writer.published() < BATCHES
            && let Some((slot, generation)) = table.begin_fill()
        {
            table.publish(slot);
            publish_writer.publish(&descriptor(publish_writer.published(), slot, generation));
        }
        match return_reader.take_return().unwrap() {
            Some(word) => {
                table.accept_return(word).unwrap();
                accepted += 1;
            }
            None => std::thread::yield_now(),
        }
        assert!(!client.is_finished() || accepted + u64::from(SLOTS) >= BATCHES);
    }
    client.join().unwrap();
    assert_eq!(table.count(SlotState::Free), usize::from(SLOTS));
}

macro_rules! suite {
    ($module:ident, $memory:ident: $($test:ident),+ $(,)?) => {
        mod $module {
            $(#[test]
            fn $test() {
                super::$test::<super::$memory>();
            })+
        }
    };
}

macro_rules! suites {
    ($($(#[$attribute:meta])* $module:ident: $memory:ident),+) => {$(
        $(#[$attribute])*
        suite! {
            $module, $memory:
            descriptors_arrive_complete_and_in_order_over_many_rounds,
            full_ring_stops_the_daemon_and_one_return_wakes_it,
            sleep_and_progress_are_visible_to_the_other_side,
            false_returns_are_rejected_and_change_nothing,
            count_beyond_the_ring_is_an_overrun,
            invalid_headers_and_descriptors_are_refused,
            two_threads_pass_every_batch_once,
        }
    )+};
}

suites! { heap: Heap, memfd: Memfd, named: Named }
