//! Batches that the user keeps.

use forebay_client::{Batch, Error};
use forebay_tests::taken::{ids, sorted, take_epoch};
use forebay_tests::{Daemon, Taken, TestDir, data};

fn serve(keys: &str) -> (TestDir, Daemon) {
    let dir = TestDir::new();
    data::images(&dir.path("images"), 80, 4);
    let config = dir.config("train.toml", &data::image_config(&dir.path("images"), keys));
    let daemon = Daemon::serve(&dir, &config);
    (dir, daemon)
}

#[test]
fn held_batches_stay_as_they_are_while_others_flow() {
    let (_place, daemon) = serve("order.epochs = 3\nring.slots = 6\nring.hold = 3");
    let mut loader = daemon.loader(0, 1).attach().unwrap();
    let mut held: Vec<(Batch, Taken)> = Vec::new();
    let mut all = Vec::new();
    for epoch in 0..3 {
        let mut number = 0;
        while let Some(batch) = loader.next_batch().unwrap() {
            let taken = Taken::of(&batch);
            all.push(taken.clone());
            // One of each epoch is kept to the end.
            if number == 4 {
                held.push((batch, taken));
            }
            number += 1;
        }
        assert_eq!((number, held.len()), (10, epoch + 1));
        for (batch, taken) in &held {
            assert_eq!(&Taken::of(batch), taken);
        }
    }
    assert_eq!(loader.held(), 3);
    for epoch in all.chunks(10) {
        assert_eq!(sorted(ids(epoch)), (0..80).collect::<Vec<_>>());
    }
    // Views outlive the session and the daemon.
    drop(loader);
    drop(daemon);
    for (batch, taken) in &held {
        assert_eq!(&Taken::of(batch), taken);
    }
}

#[test]
fn beyond_the_hold_limit_an_error_says_what_to_do_and_dropping_one_mends_it() {
    let (_place, daemon) = serve("ring.slots = 5\nring.hold = 3");
    let mut loader = daemon.loader(0, 1).attach().unwrap();
    let mut held: Vec<Batch> = Vec::new();
    // The batch just taken is in use; the others are kept.
    for _ in 0..4 {
        held.push(loader.next_batch().unwrap().unwrap());
    }
    let before: Vec<Taken> = held.iter().map(Taken::of).collect();
    for _ in 0..3 {
        let Err(Error::HoldLimit { held: count, hold: 3, slots: 5 }) = loader.next_batch() else {
            panic!("a fifth batch beside four that are held");
        };
        assert_eq!(count, 4);
    }
    let message = loader.next_batch().unwrap_err().to_string();
    assert!(message.contains("ring.hold") && message.contains("ring.slots"), "{message}");
    assert_eq!(held.iter().map(Taken::of).collect::<Vec<_>>(), before);
    // The oldest need not go first.
    held.remove(2);
    let fifth = loader.next_batch().unwrap().unwrap();
    held.push(fifth);
    let Err(Error::HoldLimit { .. }) = loader.next_batch() else { panic!("four are held again") };
    held.clear();
    assert_eq!(loader.held(), 0);
    assert_eq!(take_epoch(&mut loader).len(), 5);
}

#[test]
fn clones_of_a_batch_hold_one_slot_until_the_last_is_gone() {
    let (dir, daemon) = serve("ring.slots = 4");
    let mut loader = daemon.loader(0, 1).attach().unwrap();
    let batch = loader.next_batch().unwrap().unwrap();
    let clone = batch.clone();
    let taken = Taken::of(&batch);
    drop(batch);
    assert_eq!(loader.held(), 1);
    forebay_tests::wait_until("the ring is full", || {
        let stats = daemon.stats(&dir);
        (&stats["sessions"][0]["slots_ready"], &stats["sessions"][0]["slots_leased"])
            == (&3.into(), &1.into())
    });
    assert_eq!(Taken::of(&clone), taken);
    // Another thread may be the last.
    std::thread::spawn(move || drop(clone)).join().unwrap();
    assert_eq!(loader.held(), 0);
}

#[test]
fn a_batch_that_was_given_back_is_not_reported_as_held() {
    let (dir, daemon) = serve("ring.slots = 4");
    let mut loader = daemon.loader(0, 1).attach().unwrap();
    // One is fewer than the client rings for while others are ready.
    drop(loader.next_batch().unwrap());
    forebay_tests::wait_until("the ring is full again", || {
        let session = &daemon.stats(&dir)["sessions"][0];
        (&session["slots_ready"], &session["slots_leased"]) == (&4.into(), &0.into())
    });
}

#[test]
fn a_batch_kept_beyond_its_loader_keeps_its_bytes_while_the_daemon_fills_all_other_memory() {
    let (_place, daemon) = serve("ring.slots = 3");
    let mut loader = daemon.loader(0, 1).attach().unwrap();
    let kept: Vec<Batch> = (0..2).map(|_| loader.next_batch().unwrap().unwrap()).collect();
    let expected: Vec<Taken> = kept.iter().map(Taken::of).collect();
    drop(loader);
    // A new session's slots, each many times over.
    let mut loader = daemon.loader(0, 1).attach().unwrap();
    for epoch in 0..4 {
        assert_eq!(take_epoch(&mut loader).len(), 10);
        assert_eq!(kept.iter().map(Taken::of).collect::<Vec<_>>(), expected, "epoch {epoch}");
    }
    // Kept batches count against no limit of the session that took them no more.
    assert_eq!(loader.held(), 0);
    drop((loader, daemon));
    assert_eq!(kept.iter().map(Taken::of).collect::<Vec<_>>(), expected);
}
