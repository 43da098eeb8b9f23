use std::os::fd::AsFd;
use std::sync::Arc;

use forebay_storage::location::{ByteRange, FileId, Location, Transform, Unit as Kind};

use crate::ground::gate::{Age, ByteGate};
use crate::ground::units::*;

type Name = &'static str;

struct World {
    units: Arc<Units<Name>>,
    gate: Arc<ByteGate>,
    waker: Arc<Waker>,
}

fn world() -> World {
    let waker = Arc::new(Waker::new().unwrap());
    let gate = Arc::new(ByteGate::new(100, Arc::clone(&waker), true));
    World { units: Arc::new(Units::new(Arc::clone(&waker))), gate, waker }
}

impl World {
    fn want(&self, block: u64) -> [Wanted<Name>; 1] {
        let range = ByteRange { offset: block * 10, length: Some(10) };
        let unit = Kind::Block(Transform::None);
        [self.units.want(Location { file: FileId(0), range, unit })]
    }

    fn permit(&self, bytes: u64) -> BytePermit {
        let age = Age { next_to_publish: Arc::default(), order: 0, row: 0 };
        self.gate.acquire(&age, bytes).unwrap()
    }

    fn claim(&self, wanted: &mut [Wanted<Name>; 1]) -> Option<Claim<Name>> {
        wanted[0].claim(&self.units, Some(&mut self.permit(10)), 10)
    }

    /// A row that has read its unit.
    fn read(&self, block: u64) -> [Wanted<Name>; 1] {
        let mut row = self.want(block);
        let (hold, _) = self.claim(&mut row).unwrap().complete(vec![0; 10]);
        Wanted::give(&mut row, hold);
        row
    }

    fn rang(&self) -> bool {
        rustix::io::read(self.waker.as_fd(), &mut [0u8; 8]).is_ok()
    }
}

#[test]
fn rows_share_one_buffer_whose_bytes_are_released_by_the_last_row() {
    let world = world();
    let [mut first, mut second, mut third] = [0, 0, 1].map(|block| world.want(block));
    let claim = world.claim(&mut first).unwrap();
    assert!(world.claim(&mut second).is_none(), "it is read already");
    assert_eq!(world.gate.in_use(), 10, "what is not claimed is given back");
    assert_eq!(Wanted::look(&mut second), Standing::Reading(0));
    assert_eq!(Wanted::look(&mut third), Standing::Absent);
    assert_eq!(second[0].unit().wait("second"), Ok(()));
    let (hold, mut waiting) = claim.complete(b"the bytes!".to_vec());
    Wanted::give(&mut first, hold);
    let (name, hold) = waiting.pop().unwrap();
    assert_eq!((name, waiting.len()), ("second", 0));
    assert_eq!(first[0].hold.as_ref().unwrap().as_ref(), b"the bytes!");
    assert_eq!(hold.as_ref().as_ptr(), first[0].hold.as_ref().unwrap().as_ref().as_ptr());
    assert_eq!(second[0].unit().wait("late"), Err("late"));
    let mut late = world.want(0);
    assert_eq!(Wanted::look(&mut late), Standing::Held);
    drop((first, second, late));
    assert_eq!(world.gate.in_use(), 10);
    drop(hold);
    assert_eq!(world.gate.in_use(), 0);
}

#[test]
fn rows_waiting_for_a_failed_read_are_returned() {
    let world = world();
    let mut rows = [0, 0].map(|block| world.want(block));
    let claim = world.claim(&mut rows[0]);
    for name in ["one", "other"] {
        assert_eq!(rows[1][0].unit().wait(name), Ok(()));
    }
    assert!(!world.rang() && world.units.take_returned().is_empty());
    drop(claim);
    assert!(world.rang());
    assert_eq!(world.units.take_returned(), ["one", "other"]);
    assert_eq!((Wanted::look(&mut rows[1]), world.gate.in_use()), (Standing::Absent, 0));
    assert!(world.claim(&mut rows[1]).is_some());
}

#[test]
fn latest_kept_unit_is_evicted_first_and_a_held_one_never() {
    let world = world();
    let (_first, _second) = (world.want(0), world.want(1));
    let (held, second) = (world.read(0), world.read(1));
    let (_third, third) = (world.want(2), world.read(2));
    drop((second, third));
    assert_eq!(world.gate.in_use(), 30, "they are kept for rows to come");
    assert!(world.units.evict());
    assert_eq!(Wanted::look(&mut world.want(1)), Standing::Held);
    assert_eq!(Wanted::look(&mut world.want(2)), Standing::Absent);
    assert!(world.units.evict());
    assert!(!world.units.evict());
    assert_eq!(world.gate.in_use(), 10);
    drop(held);
    assert!(world.units.evict());
    assert_eq!(world.gate.in_use(), 0);
}

/// Without the wake-up a row that waits for bytes would wait forever: the bytes are kept for later rows.
#[test]
fn last_hold_of_a_kept_unit_wakes_the_engine_if_a_row_waits_for_bytes() {
    let world = world();
    let _later = world.want(0);
    let (one, mut other) = (world.read(0), world.want(0));
    assert_eq!(Wanted::look(&mut other), Standing::Held);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| world.permit(95));
        while !world.gate.is_awaited() {
            std::thread::yield_now();
        }
        // The waiter itself has woken the engine.
        while !world.rang() {
            std::thread::yield_now();
        }
        assert!(!world.units.evict());
        drop(one);
        assert!(!world.rang(), "another holds it");
        drop(other);
        assert!(world.rang());
        assert!(world.units.evict());
        world.gate.grant();
        drop(waits.join().unwrap());
    });
}

#[test]
fn bytes_of_a_unit_are_free_before_its_last_hold_wakes_the_engine() {
    let world = world();
    let _later = world.want(0);
    let mut row = world.read(0);
    let mut hold = row[0].hold.take().unwrap();
    let gate = hold.let_go();
    assert!(gate.is_some() && world.units.evict());
    assert_eq!(world.gate.in_use(), 0);
}

#[test]
fn unwanted_units_leave_the_table() {
    let world = world();
    let kept = world.want(7);
    for block in 0..10 * MIN_SWEEP as u64 {
        drop(world.want(block));
    }
    assert!(lock(&world.units.table).units.len() <= MIN_SWEEP);
    assert!(Arc::ptr_eq(kept[0].unit(), world.want(7)[0].unit()));
}

#[test]
fn row_that_needs_a_unit_twice_reads_it_once() {
    let world = world();
    let [one] = world.want(0);
    let [other] = world.want(0);
    let mut row = [one, other];
    let mut permit = world.permit(20);
    let claims: Vec<_> =
        row.iter_mut().filter_map(|one| one.claim(&world.units, Some(&mut permit), 10)).collect();
    drop(permit);
    assert_eq!((claims.len(), world.gate.in_use()), (1, 10));
    for claim in claims {
        Wanted::give(&mut row, claim.complete(vec![1; 10]).0);
    }
    assert_eq!(Wanted::look(&mut row), Standing::Held);
}
