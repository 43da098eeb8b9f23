//! A client that comes back to a daemon and says what it holds: what is not so is refused, and nobody else notices.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use forebay_protocol::frames::{
    Attach, Attached, ClientFrame, DaemonFrame, Fault, FaultKind, Leased, PROTOCOL_VERSION,
    Reattach, Restart,
};
use forebay_protocol::ids::Position;
use forebay_protocol::segment::{Access, Segment};
use forebay_protocol::socket::{Connection, Incoming};
use forebay_tests::taken::take_epoch;
use forebay_tests::{DEADLINE, Daemon, TestDir, data, wait_until};

/// The descriptors and the leases that a client says it holds, and how the daemon has to refuse them.
type Lie<'a> = (Vec<OwnedFd>, Vec<(u16, u64)>, FaultKind, &'a str);

/// A client of a few lines.
struct Raw(Connection);

impl Raw {
    fn connect(daemon: &Daemon) -> Self {
        let raw = Self(Connection::connect(&daemon.socket).unwrap());
        raw.send(&ClientFrame::Hello { protocol: PROTOCOL_VERSION, release: "raw".into() }, &[]);
        assert!(matches!(raw.answer(), Some((DaemonFrame::Welcome { .. }, _))));
        raw
    }

    fn send(&self, frame: &ClientFrame, descriptors: &[BorrowedFd<'_>]) {
        self.0.send(frame, descriptors).unwrap();
    }

    /// `None`: the daemon closed the connection.
    fn answer(&self) -> Option<(DaemonFrame, Vec<OwnedFd>)> {
        let end = std::time::Instant::now() + DEADLINE;
        loop {
            match self.0.receive() {
                Ok(Incoming::Frame(frame, descriptors)) => return Some((frame, descriptors)),
                Ok(_) => std::thread::sleep(Duration::from_millis(1)),
                Err(_) => return None,
            }
            assert!(std::time::Instant::now() < end, "no answer came");
        }
    }

    fn attached(&self) -> (Box<Attached>, Vec<OwnedFd>) {
        match self.answer() {
            Some((DaemonFrame::Attached(terms), descriptors)) => (terms, descriptors),
            other => panic!("{other:?}"),
        }
    }

    fn refused(&self) -> Fault {
        match self.answer() {
            Some((DaemonFrame::Fault(fault), _)) => {
                assert!(self.answer().is_none(), "the connection is over");
                fault
            }
            other => panic!("{other:?}"),
        }
    }
}

fn request(rank: u32) -> Attach {
    Attach {
        stream: None,
        rank,
        world_size: 2,
        position: Position { epoch: 0, samples: 16 },
        substitutes: 0,
    }
}

fn reattach(leased: &[(u16, u64)]) -> ClientFrame {
    let leased = leased.iter().map(|&(slot, generation)| Leased { slot, generation }).collect();
    ClientFrame::Reattach(Reattach { attach: request(1), serial: 4, leased })
}

#[test]
fn lies_about_memory_and_slots_are_refused_with_a_reason_and_other_sessions_go_on() {
    let dir = TestDir::new();
    data::stack(&dir.path("data"), 80);
    let keys = "ring.slots = 4\nlisten.max_sessions = 3";
    let config = dir.config("train.toml", &data::stack_config(&dir.path("data"), keys));
    let daemon = Daemon::serve(&dir, &config);
    let mut neighbour = daemon.loader(0, 2).attach().unwrap();
    let expected = take_epoch(&mut neighbour);
    // Memory of an honest session that has ended.
    let raw = Raw::connect(&daemon);
    raw.send(&ClientFrame::Attach(request(1)), &[]);
    let (terms, honest) = raw.attached();
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
    let restart = Restart { local_world_size: 1, local_rank: 0, reason: String::new() };
    raw.send(&ClientFrame::Restart(restart), &[honest[0].as_fd()]);
    assert_eq!(raw.refused().kind, FaultKind::Protocol);
    // The truth is taken: three of four slots are held, so one batch at a time is made.
    let raw = Raw::connect(&daemon);
    raw.send(&reattach(&[(0, 7), (2, 1 << 40), (3, 1)]), &[honest[0].as_fd()]);
    let (terms, _) = raw.attached();
    assert_eq!((terms.start.serial, terms.start.position.samples), (4, 16));
    wait_until("the free slot is filled", || {
        let stats = daemon.stats(&dir);
        let session = &stats["sessions"][1];
        session["slots_ready"] == 1 && session["slots_leased"] == 3
    });
    neighbour.seek(Position::default()).unwrap();
    assert_eq!(take_epoch(&mut neighbour), expected);
}
