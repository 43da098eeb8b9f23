//! Rows of a second engine, carried inside the process: the seam between the engine and whatever carries rows.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering as Plain};
use std::sync::{Mutex, PoisonError};

use super::*;
use crate::actors::supply::{RowAsked, RowTaker, Supplier};
use crate::core::feeding::FeedRequest;
use crate::tests::stalls::pause;
use forebay_observe::SupplyReport;

/// What the carrier does with requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Carrier {
    Carries,
    /// Every other request is lost, as with its connection.
    Loses,
    /// Requests are not answered, and not given back either.
    IsSilent,
    /// The first byte of each row is another one.
    Falsifies,
}

/// A supplier whose rows a second engine makes.
#[derive(Debug)]
struct InProcess {
    queue: mpsc::UnboundedSender<(Vec<RowAsked>, RowTaker)>,
    outstanding: Arc<AtomicUsize>,
    asked: AtomicU64,
    is_set_aside: AtomicBool,
    reasons: Mutex<Vec<String>>,
}

/// As many as both engines together do not have open.
const WINDOW: usize = 12;

impl Supplier for InProcess {
    fn room(&self) -> usize {
        WINDOW.saturating_sub(self.outstanding.load(Plain::SeqCst))
    }

    fn is_reachable(&self) -> bool {
        !self.is_set_aside.load(Plain::SeqCst)
    }

    fn supply(&self, rows: &[RowAsked], _: bool, taker: RowTaker) {
        // As for several feeders.
        let (even, odd): (Vec<usize>, Vec<usize>) = (0..rows.len()).partition(|row| row % 2 == 0);
        for places in [even, odd] {
            for places in places.chunks(4) {
                self.asked.fetch_add(places.len() as u64, Plain::SeqCst);
                self.outstanding.fetch_add(places.len(), Plain::SeqCst);
                let rows = places.iter().map(|place| rows[*place]).collect();
                let _ = self.queue.send((rows, taker.split(places)));
            }
        }
    }

    fn supply_again(&self, _: RowAsked, _: u64, _: RowTaker) -> bool {
        false
    }

    fn set_aside(&self, feeder: u64, reason: &str) {
        assert_eq!(feeder, 7);
        self.is_set_aside.store(true, Plain::SeqCst);
        self.reasons.lock().unwrap_or_else(PoisonError::into_inner).push(reason.to_owned());
    }

    fn report(&self) -> SupplyReport {
        SupplyReport::default()
    }
}

/// Starts a second engine over the same data, and has it make rows for the first one.
fn supply(
    engine: &SharedEngine,
    feeder: &Arc<Stream>,
    carrier: Carrier,
    check_one_in: u64,
) -> Arc<InProcess> {
    let (queue, mut wanted) = mpsc::unbounded_channel::<(Vec<RowAsked>, RowTaker)>();
    let (outstanding, asked) = (Arc::new(AtomicUsize::new(0)), AtomicU64::new(0));
    let supplier = Arc::new(InProcess {
        queue,
        outstanding: Arc::clone(&outstanding),
        asked,
        is_set_aside: AtomicBool::new(false),
        reasons: Mutex::default(),
    });
    Engine::set_supplier_checked(engine, 0, Arc::clone(&supplier) as _, check_one_in);
    let maker = start(feeder, 1 << 20);
    let waker = engine.borrow().supply_waker();
    tokio::task::spawn_local(async move {
        let session = maker.borrow_mut().open_feed(0, 4).unwrap();
        let mut kept = Vec::new();
        let mut number = 0;
        while let Some((rows, taker)) = wanted.recv().await {
            number += 1;
            let count = rows.len();
            let ended = {
                let (outstanding, waker) = (Arc::clone(&outstanding), waker.clone());
                move || {
                    outstanding.fetch_sub(count, Plain::SeqCst);
                    waker.wake();
                }
            };
            match carrier {
                Carrier::IsSilent => {
                    kept.push(taker);
                    continue;
                }
                Carrier::Loses if number % 2 == 0 => {
                    drop(taker);
                    ended();
                    continue;
                }
                _ => {}
            }
            while maker.borrow().feed_room(&session) == 0 {
                tokio::task::yield_now().await;
            }
            let (reply, answer) = tokio::sync::oneshot::channel();
            let rows = rows.iter().map(|row| row.key).collect();
            maker.borrow_mut().feed(&session, FeedRequest { rows, reply }).unwrap();
            tokio::task::spawn_local(async move {
                let fed = answer.await.unwrap();
                for row in 0..fed.rows {
                    if let Some(failure) = fed.failures.get(&row) {
                        taker.fail(row, failure.clone());
                        continue;
                    }
                    let mut made = fed.row(row);
                    let write = |out: &mut crate::SuppliedRow<'_>| {
                        for column in 0..out.columns().len() {
                            let mut bytes = made.column(column).to_vec();
                            if carrier == Carrier::Falsifies && column == 0 {
                                bytes[0] ^= 1;
                            }
                            out.write(column, &bytes)?;
                        }
                        Ok(())
                    };
                    taker.finish(row, 7, write).unwrap();
                }
                drop((fed, taker));
                ended();
            });
        }
    });
    supplier
}

const STAGE: &str = "[[stage]]\nname = \"work\"\noperations = []\n";

fn local(word: &str) -> String {
    format!("{STAGE}[feeders]\nlocal = \"{word}\"\n")
}

#[test]
fn rows_of_another_engine_are_those_made_here() {
    for word in ["also", "last", "never"] {
        on_engine_thread(|| async {
            let folder = tempfile::tempdir().unwrap();
            let stream = open_stream(folder.path(), true, &local(word));
            let feeder = open_stream(folder.path(), true, STAGE);
            let engine = start(&stream, 1 << 20);
            let supplier = supply(&engine, &feeder, Carrier::Carries, u64::MAX);
            let mut client = Client::attach(&engine, true);
            for _ in 0..6 * SAMPLES / 8 {
                let batch = client.next().await;
                client.check(&batch);
                client.give_back(&batch);
            }
            let report = engine.borrow().report().streams[0].supply.clone().unwrap();
            assert!(report.num_supplied > 0 && report.num_failed > 0, "{word}: {report:?}");
            if word == "never" {
                assert_eq!(engine.borrow().report().stages[1].num_tasks, 0, "nothing is made here");
            }
            assert!(supplier.asked.load(Plain::SeqCst) >= report.num_supplied);
        });
    }
}

#[test]
fn rows_of_lost_connections_come_back_and_count_no_attempt() {
    on_engine_thread(|| async {
        let folder = tempfile::tempdir().unwrap();
        let stream = open_stream(folder.path(), true, &local("never"));
        let feeder = open_stream(folder.path(), true, STAGE);
        let engine = start(&stream, 1 << 20);
        supply(&engine, &feeder, Carrier::Loses, u64::MAX);
        let mut client = Client::attach(&engine, true);
        for _ in 0..4 * SAMPLES / 8 {
            let batch = client.next().await;
            client.check(&batch);
            client.give_back(&batch);
        }
        let report = engine.borrow().report();
        let supply = report.streams[0].supply.clone().unwrap();
        assert!(supply.num_lost > 0, "{supply:?}");
        assert!(report.stalls.is_empty() && report.streams[0].outage.is_none());
    });
}

#[test]
fn silent_supplier_is_given_up_when_its_rows_are_overdue() {
    on_engine_thread(|| async {
        let folder = tempfile::tempdir().unwrap();
        let stream = stream_with(folder.path(), &[], Clock::manual());
        let feeder = stream_with(folder.path(), &[], Clock::manual());
        let engine = start(&stream, 1 << 20);
        let supplier = supply(&engine, &feeder, Carrier::IsSilent, u64::MAX);
        let mut client = Client::attach(&engine, false);
        while supplier.asked.load(Plain::SeqCst) < 4 {
            pause().await;
        }
        // Its oldest rows are waited for, as long as the clock stands.
        assert_eq!(engine.borrow().report().sessions[0].batches_published, 0);
        for _ in 0..2 * SAMPLES / 8 {
            engine.borrow().clock.advance(Duration::from_secs(5));
            let batch = client.next().await;
            client.check(&batch);
            client.give_back(&batch);
        }
        let report = engine.borrow().report().streams[0].supply.clone().unwrap();
        assert_eq!(report.num_supplied, 0);
        assert!(report.num_made_here_instead >= 4, "{report:?}");
    });
}

#[test]
fn supplier_whose_rows_differ_is_set_aside_and_the_batches_are_right() {
    on_engine_thread(|| async {
        let folder = tempfile::tempdir().unwrap();
        let stream = open_stream(folder.path(), false, STAGE);
        let feeder = open_stream(folder.path(), false, STAGE);
        let engine = start(&stream, 1 << 20);
        let supplier = supply(&engine, &feeder, Carrier::Falsifies, 1);
        let mut client = Client::attach(&engine, false);
        for _ in 0..4 * SAMPLES / 8 {
            let batch = client.next().await;
            client.check(&batch);
            client.give_back(&batch);
        }
        assert!(!supplier.is_reachable());
        let reasons = supplier.reasons.lock().unwrap();
        assert!(reasons[0].contains("differs from the one made here"), "{reasons:?}");
    });
}

#[test]
fn rows_of_a_client_that_has_left_are_not_made() {
    on_engine_thread(|| async {
        let folder = tempfile::tempdir().unwrap();
        let engine = start(&open_stream(folder.path(), false, STAGE), 1 << 20);
        let session = engine.borrow_mut().open_feed(0, 4).unwrap();
        let room = engine.borrow().feed_room(&session);
        let keys = |first: u64| {
            (first..first + 4).map(|sample| RowKey { sample, pass: 0 }).collect::<Vec<_>>()
        };
        // More than there are slots; nobody waits for most of them.
        for round in 0..4 {
            let mut answers = Vec::new();
            for request in 0..room as u64 {
                let (reply, answer) = tokio::sync::oneshot::channel();
                let rows = keys(request * 4);
                engine.borrow_mut().feed(&session, FeedRequest { rows, reply }).unwrap();
                answers.push(answer);
            }
            let last = answers.pop().unwrap();
            if round % 2 == 0 {
                answers.clear();
            }
            let fed = last.await.unwrap();
            assert_eq!((fed.rows, fed.failures.len()), (4, 0));
            for row in 0..4_u8 {
                let first = u8::try_from(room - 1).unwrap() * 4;
                assert_eq!(fed.row(row.into()).column(0)[0], first + row);
            }
            drop((answers, fed));
            while engine.borrow().feed_room(&session) < room {
                pause().await;
            }
        }
    });
}
