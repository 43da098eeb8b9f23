//! Golden bytes: the encoding changes only together with the protocol version.

use proptest::prelude::*;

use super::*;
use crate::cuts::{Cut, Pools};
use crate::finish::Finish;
use crate::frames::{
    Attach, Attached, ClientFrame, ConfigSource, DaemonFrame, Fault, FaultKind, Leased, NamesOf,
    NamesRequest, PROTOCOL_VERSION, Positioned, PythonSource, Reattach, Restart, RestartPolicy,
    RowKey, RowsRequest, Start,
};
use crate::identity::Identity;
use crate::ids::Position;
use crate::layout::SlotLayout;
use crate::observing::{Recording, ReplayRequest, ReplayState, SessionSteps};
use crate::pixel_values::Normalization;
use crate::tensor::{DType, Extent, MAX_NAME_BYTES, MAX_TENSORS, Padding, TensorSpec};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn attached() -> Box<Attached> {
    let text = TensorSpec {
        extent: Extent::Ragged { max_row_bytes: 64, compact: true },
        padding: Some(Padding { multiple_of: 8, value_bits: 0.5_f64.to_bits() }),
        ..TensorSpec::dense("t", DType::U8, &[])
    };
    let by = Normalization { mean: vec![0.5], std: vec![0.25] };
    let image = TensorSpec {
        channels_last: true,
        finish: Some(Finish { mixes: 2, ..Finish::new(DType::F32, [2, 3, 1], false, Some(&by)) }),
        ..TensorSpec::dense("g", DType::U8, &[2, 3, 1])
    };
    let shaped = TensorSpec {
        row_shapes: vec![vec![3, 2], vec![2, 2]],
        ..TensorSpec::dense("i", DType::BF16, &[3, 2])
    };
    Box::new(Attached {
        session: 1,
        stream: "s".to_owned(),
        tensors: vec![shaped, text, image],
        batch_size: 4,
        slots: 8,
        hold: 6,
        slot_bytes: 4096,
        publish_bytes: 8192,
        return_bytes: 256,
        start: Positioned { serial: 0, position: at(2, 8), batches_left: 5, batches_of_epoch: 6 },
        batches_per_epoch: 7,
        samples_per_epoch: 28,
        epochs: Some(9),
        dataset_fingerprint: [0xaa; 32],
        config_fingerprint: [0xbb; 32],
        stream_version: 1,
        restart_policy: RestartPolicy::BySupervisor,
        identity: Identity::default().with("k", "v"),
        python_sources: vec![PythonSource {
            stage: "p".to_owned(),
            target: "m:f".to_owned(),
            file: "/m".to_owned(),
            digest: "d".to_owned(),
        }],
        pools: Some(Pools { pool: 10, samples: 28, cut: CUT }),
    })
}

fn at(epoch: u64, samples: u64) -> Position {
    Position { epoch, samples }
}

const CUT: Cut = Cut { from: 1, world_size: 2, budget: 3, multiple_of: 4, max_rows: 5 };

fn attach() -> Attach {
    Attach {
        stream: None,
        rank: 1,
        world_size: 2,
        position: at(3, 4),
        substitutes: 5,
        trainer: "a".to_owned(),
        batch_size: Some(6),
        cuts: Vec::new(),
    }
}

/// Checks the bytes of each frame against a word of `golden`, in the same order.
fn assert_pinned<F>(frames: impl IntoIterator<Item = F>, golden: &str)
where
    F: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug,
{
    let mut golden = golden.split_whitespace();
    for frame in frames {
        let bytes = encode(&frame).unwrap();
        assert_eq!(Some(&*hex(&bytes)), golden.next(), "{frame:?}");
        assert_eq!(decode::<F>(&bytes).unwrap(), frame);
    }
    assert_eq!(golden.next(), None);
}

#[test]
fn bytes_of_every_client_frame_are_pinned() {
    assert_eq!(PROTOCOL_VERSION, 11, "a new version: pin its bytes beside the old ones' history");
    let start = Start {
        config: ConfigSource::File("a".into()),
        overrides: vec![("b".into(), "1".into())],
        local_world_size: 2,
        local_rank: 1,
    };
    let leased = vec![Leased { slot: 7, generation: 8 }];
    let frames = [
        ClientFrame::Hello { protocol: 1, release: "0.1".into() },
        ClientFrame::Start(start),
        ClientFrame::Attach(attach()),
        ClientFrame::Seek { serial: 1, position: at(2, 3), substitutes: 4, cuts: vec![CUT] },
        ClientFrame::Stats,
        ClientFrame::Goodbye,
        ClientFrame::Restart(Restart {
            local_world_size: 2,
            local_rank: 1,
            reason: "x".into(),
            signal: Some(11),
        }),
        ClientFrame::Reattach(Reattach { attach: attach(), serial: 6, leased }),
        ClientFrame::Steps,
        ClientFrame::Replay(ReplayRequest::Check { session: 1, batches: 2 }),
        ClientFrame::Replay(ReplayRequest::Arm { session: 1, at: 2, batches: 3, steps: 4 }),
        ClientFrame::Replay(ReplayRequest::Commit { session: 1 }),
        ClientFrame::Replay(ReplayRequest::Cancel { session: 1 }),
        ClientFrame::Record(Recording::Trace { milliseconds: 5 }),
        ClientFrame::Record(Recording::Profile { milliseconds: 5, hertz: 99 }),
        ClientFrame::AttachNamed(attach()),
        ClientFrame::Names(NamesRequest { request: 1, of: NamesOf::Classes { from: 2 } }),
        ClientFrame::Names(NamesRequest { request: 1, of: NamesOf::Files { samples: vec![3] } }),
        ClientFrame::Names(NamesRequest { request: 1, of: NamesOf::Labels { from: 4 } }),
        ClientFrame::AttachRows { stream: Some("s".into()) },
        ClientFrame::Ask(RowsRequest {
            request: 1,
            rows: vec![RowKey { sample: 2, pass: 3 }],
            by_id: true,
        }),
    ];
    let golden = "
        00000000010000000300000000000000302e31
        01000000000000000100000000000000610100000000000000010000000000000062010000000000000031\
          0200000001000000
        02000000000100000002000000030000000000000004000000000000000500000000000000\
          01000000000000006101060000000000000000000000
        030000000100000000000000020000000000000003000000000000000400000000000000\
          010000000000000001000000000000000200000003000000000000000400000005000000
        04000000
        05000000
        060000000200000001000000010000000000000078010b000000
        07000000000100000002000000030000000000000004000000000000000500000000000000\
          010000000000000061010600000000000000000000000600000000000000010000000000000007000800000000000000
        08000000
        090000000000000001000000000000000200
        09000000010000000100000000000000020000000000000003000400000000000000
        09000000020000000100000000000000
        09000000030000000100000000000000
        0a0000000000000005000000
        0a000000010000000500000063000000
        0b000000000100000002000000030000000000000004000000000000000500000000000000\
          01000000000000006101060000000000000000000000
        0c0000000100000000000000000000000200000000000000
        0c0000000100000000000000010000000100000000000000\
          0300000000000000
        0c0000000100000000000000020000000400000000000000
        0d00000001010000000000000073
        0e000000010000000000000001000000000000000200000000000000\
          030000000000000001";
    assert_pinned(frames, golden);
}

#[test]
fn bytes_of_every_daemon_frame_are_pinned() {
    let steps = SessionSteps {
        session: 1,
        stream: "s".into(),
        rank: 2,
        world_size: 3,
        published: 4,
        taken: 5,
        taken_at_ns: 6,
        waited_ns: 7,
        position: at(8, 9),
        batches_left: 10,
        batches_per_epoch: 11,
        epochs: None,
        slots: 12,
        hold: 13,
        replay: ReplayState::Armed { at: 14, committed: true },
    };
    let frames = [
        DaemonFrame::Welcome { protocol: 1, release: "0".into(), streams: vec!["train".into()] },
        DaemonFrame::Attached(attached()),
        DaemonFrame::Positioned(Positioned {
            serial: 1,
            position: at(0, 0),
            batches_left: 2,
            batches_of_epoch: 3,
        }),
        DaemonFrame::StatsPart { last: true, text: "{}".into() },
        DaemonFrame::Fault(Fault { kind: FaultKind::Taken, message: "x".into() }),
        DaemonFrame::Goodbye,
        DaemonFrame::Kept,
        DaemonFrame::Steps(vec![steps]),
        DaemonFrame::Recorded,
        DaemonFrame::AttachedNamed { terms: attached(), names: ["a", "b", "c"].map(str::to_owned) },
        DaemonFrame::Names { request: 1, total: 2, names: vec![b"a".to_vec(), vec![0xff]] },
        DaemonFrame::Unanswered {
            request: 1,
            row: 2,
            fault: Fault { kind: FaultKind::Taken, message: "x".into() },
        },
    ];
    let terms = "\
        0100000000000000010000000000000073030000000000000001000000000000006909000000\
        02000000000000000300000000000000020000000000000000000000000000\
        0200000000000000020000000000000003000000000000000200000000000000020000000000000002000000000000000200000000000000\
        01000000000000007400000000\
        00000000000000000100000040000000000000000100000108000000000000000000e03f0000000000000000\
        0100000000000000670000000003000000000000000200000000000000\
        030000000000000001000000000000000000000001010a0000000300000000000000010000000000000002000000000000000300000000\
        000000000100000000000000000000000000e03f000000000000d03f02000000000000000000000000\
        040000000800060000100000000000000020000000000000\
        0001000000000000000000000000000002000000000000000800000000000000050000000000000006000000000000000700000000\
        0000001c00000000000000010900000000000000aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\
        bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb0100000001000000\
        01000000000000000100000000000000\
        6b010000000000000076\
        01000000000000000100000000000000700300\
        0000000000006d3a6602000000000000002f6d010000000000000064\
        010a000000000000001c0000000000000001000000000000000200000003000000000000000400000005000000";
    let golden = format!(
        "
        000000000100000001000000000000003001000000000000000500000000000000747261696e
        01000000{terms}
        0200000001000000000000000000000000000000000000000000000002000000000000000300000000000000
        030000000102000000000000007b7d
        0400000005000000010000000000000078
        05000000
        06000000
        0700000001000000000000000100000000000000010000000000000073020000000300000004000000000000000500000000\
          00000006000000000000000700000000000000080000000000000009000000000000000a000000000000000b000000000000\
          00000c000d00030000000e0000000000000001
        08000000
        09000000{terms}010000000000000061010000000000000062010000000000000063
        0a000000010000000000000002000000000000000200000000000000010000000000000061\
          0100000000000000ff
        0b00000001000000000000000200000005000000010000000000000078"
    );
    assert_pinned(frames, &golden);
}

#[test]
fn bytes_of_replay_states_are_pinned() {
    let states = [
        ReplayState::Idle,
        ReplayState::Checking { left: 1 },
        ReplayState::Checked,
        ReplayState::Armed { at: 1, committed: false },
        ReplayState::Running { first: Some(1), replayed: 2 },
        ReplayState::Done { first: 1, replayed: 2 },
        ReplayState::Refused { reason: "x".into() },
    ];
    let golden = "00000000 010000000100 02000000 03000000010000000000000000 \
                  040000000101000000000000000200000000000000 0500000001000000000000000200000000000000 \
                  06000000010000000000000078";
    assert_pinned(states, golden);
}

/// The maximum number of tensors, each with the longest name and the largest `Finish`.
#[test]
fn largest_schema_fits_a_frame() {
    let by = Normalization { mean: vec![0.5; 4], std: vec![0.25; 4] };
    let mut terms = attached();
    terms.tensors = (0..MAX_TENSORS)
        .map(|number| TensorSpec {
            channels_last: true,
            finish: Some(Finish::new(DType::F32, [2, 3, 4], false, Some(&by))),
            ..TensorSpec::dense(
                format!("{number:0>width$}", width = MAX_NAME_BYTES),
                DType::U8,
                &[2, 3, 4],
            )
        })
        .collect();
    SlotLayout::new(&terms.tensors, 1).unwrap();
    let bytes = encode(&DaemonFrame::Attached(terms)).unwrap();
    assert!(bytes.len() < MAX_FRAME_BYTES / 2, "{} bytes", bytes.len());
}

#[test]
fn hostile_length_is_an_error_not_an_allocation() {
    // StatsPart whose text claims 2^63 bytes.
    let mut bytes = vec![3, 0, 0, 0, 1];
    bytes.extend([0xff; 7]);
    bytes.push(0x7f);
    assert!(matches!(decode::<DaemonFrame>(&bytes), Err(WireError::Malformed { .. })));
}

#[test]
fn trailing_and_missing_bytes_are_errors() {
    let bytes = encode(&DaemonFrame::Attached(attached())).unwrap();
    for cut in 0..bytes.len() {
        assert!(decode::<DaemonFrame>(&bytes[..cut]).is_err(), "cut at {cut}");
    }
    let longer = [bytes.as_slice(), &[0]].concat();
    assert!(decode::<DaemonFrame>(&longer).is_err());
}

#[test]
fn too_large_frame_is_refused_by_the_sender() {
    let frame = DaemonFrame::StatsPart { last: true, text: "x".repeat(MAX_FRAME_BYTES) };
    assert!(matches!(encode(&frame), Err(WireError::TooLarge(_))));
}

proptest! {
    #[test]
    fn arbitrary_bytes_decode_or_fail_cleanly(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = decode::<ClientFrame>(&bytes);
        let _ = decode::<DaemonFrame>(&bytes);
    }
}
