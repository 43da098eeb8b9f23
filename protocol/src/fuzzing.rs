//! Fuzz targets: one function for each parser of this crate that reads a peer's bytes.
//!
//! Not part of the protocol. `fuzz/` calls these with a fuzzer's bytes, the tests with the files of `fuzz/corpus`. A
//! target must not panic; further properties are asserted.

use crate::frames::{ClientFrame, DaemonFrame};
use crate::layout::SlotLayout;
use crate::lease::SlotTable;
use crate::publish::{PublishReader, publish_words};
use crate::returns::{ReturnReader, return_words};
use crate::sync::Ordering;
use crate::tensor::TensorSpec;
use crate::wire::{decode, encode};
use crate::words::{HeapWords, Words};

/// A fuzz target.
pub type Target = fn(&[u8]);

/// Every target with its name, which is also its folder in `fuzz/corpus`.
pub const TARGETS: [(&str, Target); 4] = [
    ("frames", frames),
    ("publish_ring", publish_ring),
    ("return_ring", return_ring),
    ("tensors", tensors),
];

/// A control frame of either side. Bytes that decode must encode to the same bytes.
///
/// # Panics
/// The bytes decode and do not encode to the same bytes.
pub fn frames(bytes: &[u8]) {
    if let Ok(frame) = decode::<ClientFrame>(bytes) {
        assert_eq!(encode(&frame).as_deref(), Ok(bytes), "{frame:?}");
    }
    if let Ok(frame) = decode::<DaemonFrame>(bytes) {
        assert_eq!(encode(&frame).as_deref(), Ok(bytes), "{frame:?}");
    }
}

/// The tensors that a daemon announces, laid out in a slot.
pub fn tensors(bytes: &[u8]) {
    if let Ok((tensors, rows)) = decode::<(Vec<TensorSpec>, u32)>(bytes) {
        let _ = SlotLayout::new(&tensors, rows);
    }
}

/// A publish segment with arbitrary content, read as a client reads it.
pub fn publish_ring(bytes: &[u8]) {
    let words = filled(publish_words(4, 2), bytes);
    let Ok(reader) = PublishReader::new(words) else {
        return;
    };
    let published = reader.published();
    for sequence in (0..8).chain(published.saturating_sub(8)..published) {
        let _ = reader.read(sequence);
    }
    let _ = (reader.wake_at(), reader.looks_soon(), reader.progress());
}

/// A return segment that changes arbitrarily while a daemon reads it; each step of the fuzzer's bytes is one write.
///
/// # Panics
/// The number of slots changes.
pub fn return_ring(bytes: &[u8]) {
    const SLOTS: u16 = 4;
    let words = std::sync::Arc::new(HeapWords::new(return_words(SLOTS)));
    let mut reader = ReturnReader::new(std::sync::Arc::clone(&words), SLOTS);
    let mut slots = SlotTable::new(SLOTS);
    for step in bytes.chunks_exact(9) {
        let (place, value) = (usize::from(step[0]) % words.count(), number(&step[1..]));
        // Relaxed: one thread.
        words.word(place).store(value, Ordering::Relaxed);
        if let Some((slot, _)) = slots.begin_fill() {
            if step[0] & 0x80 == 0 { slots.publish(slot) } else { slots.abandon(slot) }
        }
        while let Ok(Some(word)) = reader.take_return() {
            if slots.accept_return(word).is_err() {
                return;
            }
        }
        let _ = (reader.client_sleeps(), reader.claimed_taken(), reader.claimed_taken_at_ns());
        let counts = [
            crate::lease::SlotState::Free,
            crate::lease::SlotState::Filling,
            crate::lease::SlotState::Published,
        ]
        .map(|state| slots.count(state));
        assert_eq!(counts.iter().sum::<usize>(), usize::from(SLOTS), "{counts:?}");
    }
}

fn filled(count: usize, bytes: &[u8]) -> HeapWords {
    let words = HeapWords::new(count);
    // The header is in the first page and the entries follow it; the fuzzer's bytes reach both.
    let (head, entries) = bytes.split_at(bytes.len().min(256));
    for (index, chunk) in head.chunks(8).enumerate() {
        words.word(index).store(number(chunk), Ordering::Relaxed);
    }
    for (index, chunk) in entries.chunks(8).enumerate().take(count - 512) {
        words.word(512 + index).store(number(chunk), Ordering::Relaxed);
    }
    words
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().take(8).rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Replays the seed corpus and the fuzzers' findings.
///
/// # Panics
/// A target panics, or has no corpus.
pub fn replay_corpus(targets: &[(&str, Target)]) {
    let corpus = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus");
    for (name, target) in targets {
        let mut files = 0;
        for entry in std::fs::read_dir(corpus.join(name)).expect("a folder") {
            let path = entry.expect("an entry").path();
            let bytes = std::fs::read(&path).expect("a file");
            let ended = std::panic::catch_unwind(|| target(&bytes));
            assert!(ended.is_ok(), "{} makes {name} panic", path.display());
            files += 1;
        }
        assert!(files >= 3, "{name} has a corpus of {files} files");
    }
}

#[test]
fn parsers_do_not_panic_on_the_corpus() {
    replay_corpus(&TARGETS);
}
