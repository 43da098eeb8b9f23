use std::os::fd::AsFd;

use forebay_protocol::layout::SlotLayout;
use forebay_protocol::segment::Segment;
use forebay_protocol::slots::split_rows;
use forebay_protocol::tensor::{DType, TensorSpec};

use crate::ground::row_cells::RowCells;
use crate::ground::shared_rows::*;

type Name = &'static str;

const ROW_BYTES: u64 = 16;
const KEPT_BYTES: u64 = ROW_BYTES + BESIDE_BYTES;

struct World {
    rows: Arc<SharedRows<Name>>,
    cells: RowCells,
    waker: Arc<Waker>,
}

/// Rows of [`ROW_BYTES`], and a window for so many.
fn world(kept_rows: u64) -> World {
    let tensor = TensorSpec::dense("x", DType::U8, &[ROW_BYTES]);
    let layout = Arc::new(SlotLayout::new(&[tensor], 2).unwrap());
    let segment = Segment::create("data", layout.slot_bytes()).unwrap();
    let writers = split_rows(segment.map().unwrap(), &layout, 1).remove(0);
    let waker = Arc::new(Waker::new().unwrap());
    let rows = Arc::new(SharedRows::new(kept_rows * KEPT_BYTES, Arc::clone(&waker)));
    World { rows, cells: RowCells::new(writers), waker }
}

fn key(sample: u64) -> RowKey {
    RowKey { sample, pass: 0 }
}

impl World {
    fn leads(&self, sample: u64, takers: usize) -> Lead<Name> {
        match self.rows.want(key(sample), "leader", takers) {
            Want::Leads("leader", lead) => lead,
            other => panic!("{other:?}"),
        }
    }

    fn follows(&self, sample: u64, name: Name) {
        assert!(matches!(self.rows.want(key(sample), name, 9), Want::Follows));
    }

    fn copies(&self, sample: u64) -> Option<Arc<KeptRow>> {
        match self.rows.want(key(sample), "copy", 0) {
            Want::Copies("copy", row) => Some(row),
            Want::Leads(_, lead) => {
                lead.fail();
                None
            }
            other => panic!("{other:?}"),
        }
    }

    /// Makes a row whose bytes are its sample's number.
    fn make(&self, sample: u8, lead: Lead<Name>) -> Vec<Name> {
        let mut cell = self.cells.cell(0);
        cell.writer.bytes_mut(0).fill(sample);
        lead.complete(&mut cell)
    }

    /// The bytes of a kept row.
    fn bytes_of(&self, row: &KeptRow) -> Vec<u8> {
        let mut cell = self.cells.cell(1);
        row.write_to(&mut cell);
        cell.writer.bytes_mut(0).to_vec()
    }

    fn rang(&self) -> bool {
        rustix::io::read(self.waker.as_fd(), &mut [0u8; 8]).is_ok()
    }

    fn kept_bytes(&self) -> u64 {
        self.rows.window.bytes.load(Ordering::Relaxed)
    }
}

#[test]
fn row_is_made_once_for_those_that_follow_and_kept_for_those_that_come_later() {
    let world = world(4);
    let lead = world.leads(7, 3);
    world.follows(7, "second");
    assert_eq!(world.make(7, lead), ["second"]);
    assert_eq!(world.kept_bytes(), KEPT_BYTES, "two are still to come");
    let third = world.copies(7).unwrap();
    assert_eq!(world.bytes_of(&third), [7; 16]);
    let fourth = world.copies(7).unwrap();
    assert_eq!(world.kept_bytes(), KEPT_BYTES, "it is still being copied");
    drop((third, fourth));
    assert_eq!(world.kept_bytes(), 0, "the last has taken it");
    assert!(world.copies(7).is_none());
    let report = world.rows.report().unwrap();
    assert_eq!((report.num_made, report.num_copied, report.num_copied_later), (2, 1, 2));
}

#[test]
fn row_that_nobody_wants_later_is_not_kept() {
    let world = world(4);
    let lead = world.leads(7, 1);
    world.follows(7, "second");
    assert_eq!(world.make(7, lead), ["second"]);
    let lead = world.leads(8, 0);
    assert!(world.make(8, lead).is_empty());
    assert_eq!(world.kept_bytes(), 0);
}

#[test]
fn followers_of_a_row_that_is_not_made_are_admitted_again() {
    let world = world(4);
    let lead = world.leads(7, 2);
    world.follows(7, "second");
    world.follows(7, "third");
    assert!(!world.rang());
    drop(lead);
    assert!(world.rang(), "the engine is woken");
    assert_eq!(world.rows.take_returned(), ["second", "third"]);
    // The first of them leads now.
    drop(world.leads(7, 0));
    assert!(!world.rang(), "nobody followed");
}

#[test]
fn followers_of_a_row_that_failed_are_returned_and_the_row_is_tried_anew() {
    let world = world(4);
    let lead = world.leads(7, 1);
    world.follows(7, "second");
    assert_eq!(lead.fail(), ["second"]);
    assert_eq!(world.kept_bytes(), 0);
    assert!(world.make(7, world.leads(7, 0)).is_empty());
}

#[test]
fn window_gives_up_the_oldest_rows_and_is_never_exceeded() {
    let world = world(2);
    for sample in 0..3 {
        world.make(sample, world.leads(sample.into(), 9));
    }
    assert_eq!(world.kept_bytes(), 2 * KEPT_BYTES);
    assert!(world.copies(0).is_none(), "the oldest");
    let held = [world.copies(1).unwrap(), world.copies(2).unwrap()];
    // The bytes of rows that are being copied are not free.
    world.make(3, world.leads(3, 9));
    assert!(world.copies(3).is_none());
    assert_eq!(world.kept_bytes(), 2 * KEPT_BYTES);
    drop(held);
    world.make(4, world.leads(4, 9));
    assert!(world.copies(4).is_some());
    world.rows.clear();
    assert_eq!(world.kept_bytes(), 0);
}

#[test]
fn row_larger_than_the_window_is_not_kept() {
    let world = world(0);
    let lead = world.leads(7, 2);
    world.follows(7, "second");
    assert_eq!(world.make(7, lead), ["second"]);
    assert!(world.copies(7).is_none());
}

#[test]
fn followers_whose_batch_is_cancelled_leave() {
    let world = world(4);
    let (first, second) = (world.leads(1, 1), world.leads(2, 1));
    world.follows(1, "a");
    world.follows(1, "b");
    world.follows(2, "a");
    world.follows(2, "c");
    drop(second);
    let taken = world.rows.take_followers(|name| *name == "a");
    assert_eq!(taken, ["a", "a"], "those of a row that was not made as well");
    assert_eq!(world.make(1, first), ["b"]);
    assert_eq!(world.rows.take_returned(), ["c"]);
}

#[test]
fn places_of_rows_that_all_have_taken_are_forgotten() {
    let world = world(100);
    // The first stays: its place is before all others'.
    world.make(0, world.leads(0, 9));
    for sample in 1..10_000 {
        world.make(1, world.leads(sample, 1));
        assert!(world.copies(sample).is_some());
    }
    assert!(world.rows.table().kept.len() <= 2 * MIN_SWEEP);
    assert!(world.copies(0).is_some());
}
