//! Every interleaving, within three pre-emptions, of leases that end on the trainer's threads with a daemon that fills
//! slots, dies and is replaced.
//!
//! A slot's bytes are a cell that loom watches: a daemon that writes while a view may still be read is a race, and fails.

use std::sync::Arc as PlainArc;

use forebay_protocol::ids::{BatchNumber, Generation, Position, SlotIndex};
use forebay_protocol::lease::{SlotState, SlotTable};
use forebay_protocol::publish::{Descriptor, PublishReader, PublishWriter, publish_words};
use forebay_protocol::returns::{ReturnReader, ReturnWord, ReturnWriter, return_words};
use forebay_protocol::words::HeapWords;
use loom::cell::UnsafeCell;
use loom::sync::{Arc, Mutex};
use loom::thread;

use crate::leases::{Leases, Returns};

const SLOTS: u16 = 2;

/// What lies in a slot: nothing but who touches it when.
struct SlotBytes(UnsafeCell<()>);

// SAFETY: nothing is read or written through the pointers; loom only notes the accesses.
#[expect(unsafe_code, reason = "loom's cell is how a race is found")]
unsafe impl Sync for SlotBytes {}

type Memory = PlainArc<[SlotBytes; SLOTS as usize]>;

fn memory() -> Memory {
    PlainArc::new(std::array::from_fn(|_| SlotBytes(UnsafeCell::new(()))))
}

fn access(memory: &Memory, slot: SlotIndex) {
    memory[usize::from(slot.0)].0.with(|_| ());
}

/// The client's end of one daemon's rings; doorbells are not modelled here.
struct DaemonRings {
    returns: ReturnWriter<PlainArc<HeapWords>>,
    publish: PublishReader<PlainArc<HeapWords>>,
}

impl Returns for DaemonRings {
    fn give_back(&mut self, word: ReturnWord) -> bool {
        self.returns.give_back(word, &self.publish)
    }

    fn ring_doorbell(&self) {}
}

/// A daemon: its table of slots and its ends of the rings.
struct Daemon {
    table: SlotTable,
    memory: Memory,
    publish: PublishWriter<PlainArc<HeapWords>>,
    returns: ReturnReader<PlainArc<HeapWords>>,
    published: u64,
}

impl Daemon {
    fn start(table: SlotTable, memory: &Memory) -> (Self, DaemonRings) {
        let published = PlainArc::new(HeapWords::new(publish_words(SLOTS, 0)));
        let returned = PlainArc::new(HeapWords::new(return_words(SLOTS)));
        let daemon = Self {
            table,
            memory: PlainArc::clone(memory),
            publish: PublishWriter::new(PlainArc::clone(&published), SLOTS, 0),
            returns: ReturnReader::new(PlainArc::clone(&returned), SLOTS),
            published: 0,
        };
        let publish = PublishReader::new(published).unwrap();
        (daemon, DaemonRings { returns: ReturnWriter::new(returned, SLOTS), publish })
    }

    /// A first daemon, which has filled all slots, and a client that has taken both.
    fn with_a_client(memory: &Memory) -> (Self, Arc<Mutex<Leases<DaemonRings>>>, [Arc<Lease>; 2]) {
        let (mut daemon, rings) = Self::start(SlotTable::new(SLOTS), memory);
        daemon.turn();
        let taken = [0, 1].map(|sequence| rings.publish.read(sequence).unwrap());
        let leases = Arc::new(Mutex::new(Leases::new(rings, SLOTS)));
        let held = taken.map(|batch| Lease::begin(&leases, memory, &batch));
        (daemon, leases, held)
    }

    /// Takes back what came, and fills what is free.
    fn turn(&mut self) {
        while let Some(word) = self.returns.take_return().unwrap() {
            self.table.accept_return(word).unwrap();
        }
        while let Some((slot, generation)) = self.table.begin_fill() {
            self.memory[usize::from(slot.0)].0.with_mut(|_| ());
            self.table.publish(slot);
            self.publish.publish(&descriptor(self.published, slot, generation));
            self.published += 1;
        }
    }
}

fn descriptor(sequence: u64, slot: SlotIndex, generation: Generation) -> Descriptor {
    Descriptor {
        sequence: BatchNumber(sequence),
        slot,
        generation,
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

/// One batch in the trainer's hands: its last clone gives the slot back, on whatever thread that is.
struct Lease {
    leases: Arc<Mutex<Leases<DaemonRings>>>,
    memory: Memory,
    slot: SlotIndex,
    generation: Generation,
}

impl Lease {
    fn begin(
        leases: &Arc<Mutex<Leases<DaemonRings>>>,
        memory: &Memory,
        batch: &Descriptor,
    ) -> Arc<Self> {
        assert!(leases.lock().unwrap().begin(batch.slot, batch.generation), "held already");
        Arc::new(Self {
            leases: Arc::clone(leases),
            memory: PlainArc::clone(memory),
            slot: batch.slot,
            generation: batch.generation,
        })
    }

    fn read(&self) {
        access(&self.memory, self.slot);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.leases.lock().unwrap().end(self.slot, self.generation);
    }
}

fn model(preemptions: usize, test: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(test);
}

/// Two threads hold one batch and a third holds another: no slot is written before its last reader is done.
#[test]
fn loom_a_slot_is_refilled_only_after_its_last_view_is_dropped() {
    model(3, || {
        let memory = memory();
        let (mut daemon, _leases, [shared, other]) = Daemon::with_a_client(&memory);
        let clone = Arc::clone(&shared);
        let reader = thread::spawn(move || {
            clone.read();
            drop(clone);
            other.read();
        });
        let filling = thread::spawn(move || {
            daemon.turn();
            daemon
        });
        shared.read();
        drop(shared);
        reader.join().unwrap();
        let mut daemon = filling.join().unwrap();
        daemon.turn();
        assert_eq!(daemon.published, 4, "a slot did not come back");
    });
}

/// The daemon dies while a thread of the trainer drops one batch and another batch is held: the next daemon fills free
/// slots only and gets each announced slot back exactly once.
#[test]
fn loom_the_next_daemon_finds_every_slot_either_free_or_held() {
    model(3, || {
        let memory = memory();
        let (daemon, leases, [going, kept]) = Daemon::with_a_client(&memory);
        drop(daemon);
        let other_thread = thread::spawn(move || {
            going.read();
            drop(going);
        });
        // The loader, as in its recovery.
        leases.lock().unwrap().detach();
        let held = leases.lock().unwrap().announce_held();
        assert!(held.iter().any(|held| held.slot == kept.slot.0), "what is held was not announced");
        let (mut daemon, rings) =
            Daemon::start(SlotTable::with_held(SLOTS, &held).unwrap(), &memory);
        let filling = thread::spawn(move || {
            daemon.turn();
            daemon
        });
        leases.lock().unwrap().attach(rings);
        kept.read();
        other_thread.join().unwrap();
        let mut daemon = filling.join().unwrap();
        daemon.turn();
        assert_eq!(daemon.table.count(SlotState::Free), 0);
        assert_eq!(daemon.published, 1, "the dropped slot was not filled once");
        kept.read();
        drop(kept);
        daemon.turn();
        assert_eq!(daemon.published, 2, "the held slot did not come back");
    });
}

/// The next daemon dies too, before its rings arrive: slots dropped meanwhile are free for the one after it.
#[test]
fn loom_a_slot_dropped_between_two_daemons_is_not_lost() {
    model(3, || {
        let memory = memory();
        let (daemon, leases, [going, gone]) = Daemon::with_a_client(&memory);
        drop((daemon, gone));
        let other_thread = thread::spawn(move || drop(going));
        leases.lock().unwrap().detach();
        let _to_one_that_dies = leases.lock().unwrap().announce_held();
        leases.lock().unwrap().detach();
        let held = leases.lock().unwrap().announce_held();
        let (mut daemon, rings) =
            Daemon::start(SlotTable::with_held(SLOTS, &held).unwrap(), &memory);
        leases.lock().unwrap().attach(rings);
        daemon.turn();
        other_thread.join().unwrap();
        daemon.turn();
        assert_eq!(daemon.published, 2);
    });
}
