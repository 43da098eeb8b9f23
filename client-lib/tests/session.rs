//! The loader against a scripted daemon: epochs, holds, seeks, state, ends and broken descriptors.

#[path = "support/stub.rs"]
mod stub;

use std::time::Duration;

use forebay_client::{Error, Loader, Position};
use forebay_protocol::frames::{Fault, FaultKind};
use stub::{Script, Stub};

fn attach(stub: &Stub) -> Loader {
    Loader::builder(stub.path.as_path()).rank(0, 1).attach().unwrap()
}

fn first_index(batch: &forebay_client::Batch) -> i64 {
    batch.require("index").unwrap().as_slice::<i64>().unwrap()[0]
}

fn epoch_of(loader: &mut Loader) -> Vec<i64> {
    let mut seen = Vec::new();
    while let Some(batch) = loader.next_batch().unwrap() {
        seen.extend_from_slice(batch.require("index").unwrap().as_slice::<i64>().unwrap());
    }
    seen
}

#[test]
fn epochs_follow_each_other_to_the_last() {
    let stub = Stub::start(Script::default());
    let mut loader = attach(&stub);
    assert_eq!(loader.batches_per_epoch(), 6);
    for (epoch, first) in [(0, 0), (1, 1_000_000), (2, 2_000_000)] {
        let expected: Vec<i64> = (first..first + 24).collect();
        assert_eq!(epoch_of(&mut loader), expected);
        let position = loader.state(0).unwrap().position;
        assert_eq!((position.epoch, position.samples), (epoch + 1, 0));
    }
    for _ in 0..2 {
        assert_eq!(loader.next_batch().unwrap_err(), Error::EpochsFinished { epochs: 3 });
    }
    assert_eq!(loader.wait_statistics().batches(), 18);
    drop(loader);
    let report = stub.finish();
    assert!(report.goodbye && report.pidfd && report.violations.is_empty());
    assert!(report.seeks.is_empty(), "no epoch was left early");
    assert_eq!(report.still_held, 0);
}

#[test]
fn tensors_are_read_by_name_type_and_row() {
    let stub = Stub::start(Script::default());
    let mut loader = attach(&stub);
    let batch = loader.next_batch().unwrap().unwrap();
    let image = batch.require("image").unwrap();
    assert_eq!(image.shape(), [4, 3, 5]);
    assert_eq!(image.bytes().len(), 60);
    assert_eq!(image.bytes()[15..30], [1; 15]);
    assert!(image.as_slice::<f32>().is_err());
    let text = batch.tensor("text").unwrap().ragged().unwrap();
    let lengths: Vec<usize> =
        (0..text.len()).map(|row| text.row::<u16>(row).unwrap().len()).collect();
    assert_eq!(lengths, [0, 1, 2, 0]);
    assert_eq!(text.row::<u16>(2).unwrap(), [2, 2]);
    assert!(text.row::<u16>(4).is_err());
    let error = batch.require("imgae").unwrap_err().to_string();
    assert!(error.contains("index, image, text"), "{error}");
}

#[test]
fn hold_batches_may_be_kept_and_no_more() {
    let stub = Stub::start(Script::default());
    let mut loader = attach(&stub);
    let mut kept = Vec::new();
    for _ in 0..4 {
        kept.push(loader.next_batch().unwrap().unwrap());
    }
    let error = loader.next_batch().unwrap_err();
    assert_eq!(error, Error::HoldLimit { held: 4, hold: 3, slots: 5 });
    assert!(error.to_string().contains("copy"));
    // Any one that is dropped makes room; the others keep their bytes.
    kept.remove(1);
    for number in 4..6 {
        let batch = loader.next_batch().unwrap().unwrap();
        assert_eq!(first_index(&batch), number * 4);
    }
    let firsts: Vec<i64> = kept.iter().map(first_index).collect();
    assert_eq!(firsts, [0, 8, 12]);
    drop(loader);
    assert_eq!(first_index(&kept[2]), 12, "views outlive the loader");
    assert!(stub.finish().violations.is_empty());
}

#[test]
fn a_clone_keeps_the_slot() {
    let stub = Stub::start(Script::default());
    let mut loader = attach(&stub);
    let batch = loader.next_batch().unwrap().unwrap();
    let clone = batch.clone();
    drop(batch);
    assert_eq!(loader.held(), 1);
    drop(clone);
    assert_eq!(loader.held(), 0);
}

#[test]
fn an_epoch_left_early_is_given_up_and_counted() {
    let stub = Stub::start(Script::default());
    let mut loader = attach(&stub);
    for _ in 0..2 {
        loader.next_batch().unwrap().unwrap();
    }
    let middle = loader.state(0).unwrap().position;
    assert_eq!((middle.epoch, middle.samples), (0, 8));
    loader.begin_epoch().unwrap();
    assert_eq!(loader.given_up(), 4);
    assert_eq!(epoch_of(&mut loader)[0], 1_000_000);
    // Left after the last batch and before its `None`: nothing is given up and no seek is sent.
    for _ in 0..6 {
        loader.next_batch().unwrap().unwrap();
    }
    assert_eq!(loader.begin_epoch().unwrap_err(), Error::EpochsFinished { epochs: 3 });
    assert_eq!(loader.given_up(), 4);
    drop(loader);
    let report = stub.finish();
    assert_eq!(report.seeks, [Position { epoch: 1, samples: 0 }]);
    assert!(report.violations.is_empty());
}

#[test]
fn a_state_goes_on_in_the_middle_at_attach_and_later() {
    let stub = Stub::start(Script::default());
    let mut loader = attach(&stub);
    for _ in 0..9 {
        loader.next_batch().unwrap();
    }
    // Six of epoch 0, its end, two of epoch 1.
    let state = loader.state(0).unwrap();
    assert_eq!((state.position.epoch, state.position.samples), (1, 8));
    assert_eq!(state.substitutes, 2);
    assert_eq!(loader.state(1).unwrap().position.samples, 4);
    assert_eq!(loader.state(2).unwrap().position.samples, 0);
    assert_eq!(loader.state(3).unwrap().position.samples, 20);
    assert!(loader.state(100).is_err());
    loader.load_state(&state, false).unwrap();
    assert_eq!(epoch_of(&mut loader)[0], 1_000_008);
    drop(loader);
    drop(stub.finish());

    let stub = Stub::start(Script::default());
    let mut loader =
        Loader::builder(stub.path.as_path()).state(state.clone(), false).attach().unwrap();
    assert_eq!(loader.state(0).unwrap(), state);
    loader.set_epoch(1).unwrap();
    loader.load_state(&state, false).unwrap();
    assert_eq!(epoch_of(&mut loader).len(), 16);
    loader.set_epoch(0).unwrap();
    assert_eq!(epoch_of(&mut loader)[0], 0);
    drop(loader);
    let report = stub.finish();
    assert_eq!(report.attached_at, Some(state.position));
    assert_eq!(report.seeks.len(), 1, "only the seek back was sent");
}

#[test]
fn a_state_of_another_stream_is_refused_with_each_difference() {
    let stub = Stub::start(Script::default());
    let mut loader = attach(&stub);
    let mut state = loader.state(0).unwrap();
    state.dataset = "00".repeat(32);
    state.stream_version = 7;
    state.position.samples = 4;
    let Err(Error::StateMismatch(message)) = loader.load_state(&state, false) else {
        panic!("another data set was accepted");
    };
    assert!(
        message.contains("dataset differs") && message.contains("0000") && message.contains("dada")
    );
    assert!(message.contains("saved 7, present 1") && !message.contains("configuration differs"));
    loader.load_state(&state, true).unwrap();
    assert_eq!(first_index(&loader.next_batch().unwrap().unwrap()), 4);
}

#[test]
fn published_batches_are_handed_over_before_the_error() {
    let fault = Fault { kind: FaultKind::BadSample, message: "`a.jpg` is cut off".into() };
    let stub = Stub::start(Script { end_after: Some((4, Some(fault))), ..Script::default() });
    let mut loader = attach(&stub);
    let path = stub.path.clone();
    assert_eq!(stub.finish().published, 4);
    for number in 0..4 {
        let batch = loader.next_batch().unwrap().unwrap();
        assert_eq!(first_index(&batch), number * 4);
    }
    for _ in 0..2 {
        assert_eq!(loader.next_batch().unwrap_err(), Error::BadSample("`a.jpg` is cut off".into()));
    }
    assert!(matches!(
        Loader::attach(path),
        Err(Error::DaemonLost(message)) if message.contains("stub.sock")
    ));
}

#[test]
fn a_daemon_that_vanishes_is_lost_after_its_last_batch() {
    let stub = Stub::start(Script { end_after: Some((1, None)), ..Script::default() });
    let mut loader = attach(&stub);
    let held = loader.next_batch().unwrap().unwrap();
    assert!(matches!(loader.next_batch(), Err(Error::DaemonLost(_))));
    assert!(matches!(loader.seek(Position::default()), Err(Error::DaemonLost(_))));
    assert_eq!(first_index(&held), 0);
}

#[test]
fn a_stall_ends_in_a_time_out_that_says_what_was_waited_for() {
    let stub = Stub::start(Script { stall_after: Some(2), ..Script::default() });
    let mut loader =
        Loader::builder(stub.path.as_path()).timeout(Duration::from_millis(120)).attach().unwrap();
    for _ in 0..2 {
        loader.next_batch().unwrap().unwrap();
    }
    let error = loader.next_batch().unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }));
    let message = error.to_string();
    assert!(message.contains("stream `train` (epoch 0, 4 batches left)"), "{message}");
}

#[test]
fn an_interrupt_ends_a_wait_and_the_loader_goes_on() {
    let stub = Stub::start(Script { stall_after: Some(1), ..Script::default() });
    let mut loader = attach(&stub);
    loader.next_batch().unwrap().unwrap();
    loader.set_interrupt(|| true);
    assert!(matches!(loader.next_batch(), Err(Error::Interrupted(_))));
    loader.set_interrupt(|| false);
    assert_eq!(loader.stats().unwrap(), "{\"a\":1}");
}

#[test]
fn another_protocol_is_refused() {
    let stub = Stub::start(Script { protocol: 99, ..Script::default() });
    let Err(Error::Version(message)) = Loader::attach(stub.path.as_path()) else {
        panic!("protocol 99 was accepted");
    };
    assert!(message.contains("protocol 99"), "{message}");
}

#[test]
fn descriptors_that_leave_their_slot_are_refused() {
    let spoils: [fn(&mut forebay_protocol::publish::Descriptor); 10] = [
        |batch| batch.slot.0 = 5,
        |batch| batch.rows = 5,
        |batch| batch.tensors[0].offset_bytes = 1 << 40,
        |batch| batch.tensors[1].length_bytes = u64::MAX,
        |batch| batch.tensors[1].dims[1] = 4,
        |batch| batch.tensors[2].length_bytes += 2,
        |batch| batch.tensors[2].dims[0] += 1,
        |batch| batch.tensors[2].table_offset_bytes = 8,
        |batch| batch.tensors[0].rank = 2,
        |batch| batch.tensors.truncate(2),
    ];
    for (number, spoil) in spoils.into_iter().enumerate() {
        let stub = Stub::start(Script { spoil: Some(spoil), ..Script::default() });
        let result = attach(&stub).next_batch();
        assert!(matches!(result, Err(Error::Protocol(_))), "spoil {number}: {result:?}");
    }
}

#[test]
fn a_program_that_exits_at_once_is_reported_with_its_status() {
    let config = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
    let attach = |program: &str| Loader::builder(config.path()).program(program).attach();
    let Err(Error::DaemonLost(message)) = attach("/bin/false") else {
        panic!("`false` is no daemon");
    };
    assert!(message.contains("status 1"), "{message}");
    let absent = Loader::builder("absent.toml").program("/bin/false").attach();
    assert!(matches!(absent, Err(Error::Config(message)) if message.contains("absent.toml")));
}
