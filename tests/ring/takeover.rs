//! A client that comes back to a daemon and says what it holds: false claims are refused, and other sessions are not affected.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use forebay_protocol::frames::{
    Attach, Attached, ClientFrame, DaemonFrame, FaultKind, Leased, Reattach, Restart,
};
use forebay_protocol::ids::Position;
use forebay_protocol::segment::{Access, Segment};
use forebay_tests::taken::take_epoch;
use forebay_tests::{Daemon, Raw, TestDir, wait_until};

/// The descriptors and the leases that a client says it holds, and how the daemon has to refuse them.
type Lie<'a> = (Vec<OwnedFd>, Vec<(u16, u64)>, FaultKind, &'a str);

/// The terms and segments of a session.
fn attached(raw: &Raw) -> (Box<Attached>, Vec<OwnedFd>) {
    match raw.answer() {
        Some((DaemonFrame::Attached(terms), descriptors)) => (terms, descriptors),
        other => panic!("{other:?}"),
    }
}

fn request(rank: u32) -> Attach {
    Attach {
        stream: None,
        rank,
        world_size: 2,
        position: Position { epoch: 0, samples: 16 },
        substitutes: 0,
        trainer: String::new(),
        batch_size: None,
        cuts: Vec::new(),
    }
}

fn reattach(leased: &[(u16, u64)]) -> ClientFrame {
    let leased = leased.iter().map(|&(slot, generation)| Leased { slot, generation }).collect();
    ClientFrame::Reattach(Reattach { attach: request(1), serial: 4, leased })
}

#[test]
fn lies_about_memory_and_slots_are_refused_with_a_reason_and_other_sessions_go_on() {
    let dir = TestDir::new();
    let config = dir.stack_stream(80, "ring.slots = 4\nlisten.max_sessions = 3");
    let daemon = Daemon::serve(&dir, &config);
    let mut neighbour = daemon.loader(0, 2).attach().unwrap();
    let expected = take_epoch(&mut neighbour);
    // Memory of an honest session that has ended.
    let raw = Raw::connect(&daemon);
    raw.send(&ClientFrame::Attach(request(1)), &[]);
    let (terms, honest) = attached(&raw);
    drop(raw);
    let bytes = terms.slot_bytes * u64::from(terms.slots);
    let segment = |bytes: u64, access: Option<Access>| {
        let segment = Segment::create("data", bytes).unwrap();
        if let Some(access) = access {
            segment.seal(access).unwrap();
        }
        segment.descriptor().try_clone_to_owned().unwrap()
    };
    let file = {
        let file = std::fs::File::create_new(dir.path("file")).unwrap();
        file.set_len(bytes).unwrap();
        OwnedFd::from(file)
    };
    let good = || honest[0].try_clone().unwrap();
    let lies: Vec<Lie<'_>> = vec![
        (vec![], vec![], FaultKind::Protocol, "descriptors"),
        (vec![good(), good()], vec![], FaultKind::Protocol, "2 descriptors"),
        (vec![segment(bytes, None)], vec![], FaultKind::Config, "sealed"),
        (
            vec![segment(bytes * 2, Some(Access::ReadWrite))],
            vec![],
            FaultKind::Config,
            "instead of",
        ),
        (vec![segment(bytes, Some(Access::ReadOnly))], vec![], FaultKind::Config, "sealed"),
        (vec![honest[1].try_clone().unwrap()], vec![], FaultKind::Config, "memory"),
        (vec![file], vec![], FaultKind::Config, "memory"),
        (vec![good()], vec![(4, 1)], FaultKind::Protocol, "slot 4"),
        (vec![good()], vec![(u16::MAX, 1)], FaultKind::Protocol, "slot 65535"),
        (vec![good()], vec![(1, 1), (1, 1)], FaultKind::Protocol, "twice"),
        (vec![good()], vec![(1, 0)], FaultKind::Protocol, "generation"),
        (vec![good()], vec![(1, 1 << 48)], FaultKind::Protocol, "generation"),
    ];
    for (descriptors, leased, kind, word) in lies {
        wait_until("the place is free", || {
            daemon.stats(&dir)["sessions"].as_array().unwrap().len() == 1
        });
        let raw = Raw::connect(&daemon);
        let descriptors: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
        raw.send(&reattach(&leased), &descriptors);
        let fault = raw.refused();
        assert_eq!(fault.kind, kind, "{word}: {}", fault.message);
        assert!(fault.message.contains(word), "{word}: {}", fault.message);
    }
    // Only a private daemon is started from a plan.
    let raw = Raw::connect(&daemon);
    let restart =
        Restart { local_world_size: 1, local_rank: 0, reason: String::new(), signal: None };
    raw.send(&ClientFrame::Restart(restart), &[honest[0].as_fd()]);
    assert_eq!(raw.refused().kind, FaultKind::Protocol);
    // The truth is taken: three of four slots are held, so one batch at a time is made.
    let raw = Raw::connect(&daemon);
    raw.send(&reattach(&[(0, 7), (2, 1 << 40), (3, 1)]), &[honest[0].as_fd()]);
    let (terms, _) = attached(&raw);
    assert_eq!((terms.start.serial, terms.start.position.samples), (4, 16));
    wait_until("the free slot is filled", || {
        let stats = daemon.stats(&dir);
        let session = &stats["sessions"][1];
        session["slots_ready"] == 1 && session["slots_leased"] == 3
    });
    neighbour.seek(Position::default()).unwrap();
    assert_eq!(take_epoch(&mut neighbour), expected);
}
