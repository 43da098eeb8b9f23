//! The rings under the model checker: every interleaving within three preemptions and every reordering that the memory
//! model allows.

use std::sync::Arc;

use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

use crate::ids::{BatchNumber, Generation, Position, SlotIndex};
use crate::publish::{Descriptor, PublishReader, PublishWriter, publish_words};
use crate::returns::{ReturnReader, ReturnWord, ReturnWriter, return_words};
use crate::words::HeapWords;

fn descriptor(sequence: u64) -> Descriptor {
    Descriptor {
        sequence: BatchNumber(sequence),
        slot: SlotIndex(u16::try_from(sequence % 2).unwrap()),
        generation: Generation(1 + sequence / 2),
        payload_bytes: 0,
        epoch: 0,
        position_after: Position { epoch: 0, samples: sequence + 1 },
        seek_serial: 0,
        rows: 1,
        substitutes: 0,
        batches_after: 0,
        last_of_epoch: false,
        replayed: false,
        tensors: Vec::new(),
    }
}

fn model(test: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(test);
}

type Memory = Arc<HeapWords>;

/// The daemon's ends of the rings of so many slots, and the client's.
#[expect(clippy::type_complexity, reason = "two ends of two rings")]
fn rings(
    slots: u16,
) -> ((PublishWriter<Memory>, ReturnReader<Memory>), (PublishReader<Memory>, ReturnWriter<Memory>))
{
    let publish = Arc::new(HeapWords::new(publish_words(slots, 0)));
    let back = Arc::new(HeapWords::new(return_words(slots)));
    let writer = PublishWriter::new(Arc::clone(&publish), slots, 0);
    let daemon = (writer, ReturnReader::new(Arc::clone(&back), slots));
    (daemon, (PublishReader::new(publish).unwrap(), ReturnWriter::new(back, slots)))
}

/// When the count is seen, the published entry and the slot's bytes are complete.
#[test]
fn loom_visible_batch_is_complete() {
    model(|| {
        let words = Arc::new(HeapWords::new(publish_words(2, 0)));
        let data = Arc::new(AtomicU64::new(0));
        let mut writer = PublishWriter::new(Arc::clone(&words), 2, 0);
        let reader = PublishReader::new(words).unwrap();
        let slot_bytes = Arc::clone(&data);
        let daemon = thread::spawn(move || {
            for sequence in 0..2 {
                slot_bytes.store(sequence + 1, Ordering::Relaxed);
                writer.publish(&descriptor(sequence));
            }
        });
        let published = reader.published();
        for sequence in 0..published {
            assert_eq!(reader.read(sequence).unwrap(), descriptor(sequence));
        }
        assert!(data.load(Ordering::Relaxed) >= published);
        daemon.join().unwrap();
    });
}

/// When the count is seen, the returned word is complete, without a fence on the daemon's side; and an entry is
/// overwritten only after the client has read it.
#[test]
fn loom_visible_return_is_complete() {
    model(|| {
        let ((mut writer, mut returns), (reader, mut client)) = rings(1);
        writer.publish(&descriptor(0));
        let word = ReturnWord { slot: SlotIndex(1), generation: Generation(7) };
        let trainer = thread::spawn(move || {
            assert_eq!(reader.read(0).unwrap(), descriptor(0));
            client.give_back(word, &reader);
        });
        if let Some(found) = returns.take_return().unwrap() {
            assert_eq!(found, word);
            writer.publish(&descriptor(1));
        }
        trainer.join().unwrap();
    });
}

/// No wake-up is lost on publish: if the client finds nothing after announcing its sleep, the daemon rings the doorbell.
#[test]
fn loom_no_wake_up_is_lost_on_publish() {
    model(|| {
        let ((mut writer, returns), (reader, mut client)) = rings(2);
        let daemon = thread::spawn(move || {
            writer.publish(&descriptor(0));
            returns.client_sleeps()
        });
        client.announce_sleep(&reader);
        let seen = reader.published() == 1;
        let rang = daemon.join().unwrap();
        assert!(seen || rang, "the client sleeps and the daemon does not ring");
    });
}

/// No wake-up is lost on return: if the daemon finds nothing after requesting a wake-up, the client rings the doorbell.
#[test]
fn loom_no_wake_up_is_lost_on_return() {
    model(|| {
        let ((writer, mut returns), (reader, mut client)) = rings(2);
        let word = ReturnWord { slot: SlotIndex(1), generation: Generation(7) };
        let trainer = thread::spawn(move || client.give_back(word, &reader));
        writer.ask_wake_at(1, false);
        let found = returns.take_return().unwrap();
        let rang = trainer.join().unwrap();
        assert!(found == Some(word) || rang, "the daemon sleeps and the client does not ring");
        if found.is_none() {
            assert_eq!(returns.take_return().unwrap(), Some(word));
        }
    });
}

/// No wake-up is lost when the daemon no longer looks by itself: if it finds nothing after saying so, a client that goes
/// to sleep rings the doorbell.
#[test]
fn loom_no_wake_up_is_lost_on_sleep() {
    model(|| {
        let ((writer, mut returns), (reader, mut client)) = rings(2);
        let word = ReturnWord { slot: SlotIndex(1), generation: Generation(7) };
        writer.ask_wake_at(u64::MAX, true);
        let trainer = thread::spawn(move || {
            assert!(!client.give_back(word, &reader), "not due");
            client.announce_sleep(&reader)
        });
        writer.ask_wake_at(u64::MAX, false);
        let found = returns.take_return().unwrap();
        let rang = trainer.join().unwrap();
        assert!(found == Some(word) || rang, "both sleep, and the return is not seen");
    });
}
