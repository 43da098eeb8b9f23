//! The loader with a scripted daemon: the frames that it sends and refuses. The behaviour with real daemons is tested
//! in `tests/`.

#[path = "support/stub.rs"]
mod stub;

use forebay_client::{Error, Loader, Position};
use stub::{Script, Stub};

fn attach(stub: &Stub) -> Loader {
    Loader::builder(stub.path.as_path()).rank(0, 1).attach().unwrap()
}

#[test]
fn only_an_epoch_left_early_costs_a_seek() {
    let stub = Stub::start(Script::default());
    let mut loader = attach(&stub);
    loader.next_batch().unwrap().unwrap();
    let position = loader.position();
    assert_eq!((position.epoch, position), (0, loader.state(0).unwrap().position));
    assert!(position.samples > 0 && loader.is_open());
    loader.begin_epoch().unwrap();
    assert_eq!(loader.position(), Position { epoch: 1, samples: 0 });
    // The second is left after its last batch and before its `None`, the third is read to its end.
    for _ in 0..6 {
        loader.next_batch().unwrap().unwrap();
    }
    loader.begin_epoch().unwrap();
    while loader.next_batch().unwrap().is_some() {}
    assert_eq!(loader.next_batch().unwrap_err(), Error::EpochsFinished { epochs: 3 });
    let state = loader.state(100);
    assert!(matches!(state, Err(Error::Config(_))), "{state:?}");
    drop(loader);
    let report = stub.finish();
    assert_eq!(report.seeks, [Position { epoch: 1, samples: 0 }]);
    assert!(report.goodbye && report.pidfd && report.violations.is_empty(), "{report:?}");
    assert_eq!(report.still_held, 0);
}

#[test]
fn tensors_are_read_by_name_type_and_row() {
    let stub = Stub::start(Script::default());
    let mut loader = attach(&stub);
    let batch = loader.next_batch().unwrap().unwrap();
    let image = batch.require("image").unwrap();
    assert_eq!(image.shape(), [4, 3, 5]);
    assert_eq!(image.bytes()[15..30], [1; 15]);
    assert!(image.as_slice::<f32>().is_err());
    let text = batch.tensor("text").unwrap().ragged().unwrap();
    let lengths: Vec<usize> =
        (0..text.len()).map(|row| text.row::<u16>(row).unwrap().len()).collect();
    assert_eq!(lengths, [0, 1, 2, 0]);
    assert_eq!(text.row::<u16>(2).unwrap(), [2, 2]);
    assert!(text.row::<u16>(4).is_err());
    assert!(image.padded().unwrap().is_none());
    let padded = batch.tensor("text").unwrap().padded().unwrap().unwrap();
    assert_eq!((padded.shape(), padded.lengths()), (vec![4, 4], &[0, 1, 2, 0][..]));
    let expected = [7, 7, 7, 7, 1, 7, 7, 7, 2, 2, 7, 7, 7, 7, 7, 7];
    assert_eq!(padded.to_vec::<u16>().unwrap(), expected);
    assert!(padded.to_vec::<f32>().is_err() && padded.write(&mut [0; 31]).is_err());
    let error = batch.require("imgae").unwrap_err().to_string();
    assert!(error.contains("index, image, text"), "{error}");
}

#[test]
fn state_of_another_stream_is_refused_with_each_difference() {
    let stub = Stub::start(Script::default());
    let mut loader = attach(&stub);
    let mut state = loader.state(0).unwrap();
    state.dataset = "00".repeat(32);
    state.stream_version = 7;
    let Err(Error::StateMismatch(message)) = loader.load_state(&state, false) else {
        panic!("another data set was accepted");
    };
    for part in ["dataset differs", "0000", "dada", "saved 7, present 1"] {
        assert!(message.contains(part), "{part} is not in: {message}");
    }
    assert!(!message.contains("configuration differs"), "{message}");
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
fn program_that_exits_at_once_is_reported_with_its_status() {
    let config = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
    let attach = |program: &str| Loader::builder(config.path()).program(program).attach();
    let Err(Error::DaemonLost(message)) = attach("/bin/false") else {
        panic!("`false` is no daemon");
    };
    assert!(message.contains("status 1"), "{message}");
    let absent = Loader::builder("absent.toml").program("/bin/false").attach();
    assert!(matches!(absent, Err(Error::Config(message)) if message.contains("absent.toml")));
}
