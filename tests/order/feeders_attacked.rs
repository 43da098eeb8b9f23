//! Feeders and daemons under peers that break rules: each lives and says what it met, and a good peer goes on.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use forebay_tests::feeding::liar::{Liar, Lie, flight_data};
use forebay_tests::feeding::wire::{Peer, field, grpc, messages};
use forebay_tests::feeding::{Feeder, addresses};
use forebay_tests::{DEADLINE, TestDir, data, program, wait_until};
use serde_json::Value;

use crate::feeders::{bench, digest, supplied};

/// Samples of a megabyte each.
fn large_rows(dir: &TestDir, count: u64) -> PathBuf {
    data::sparse_rows(&dir.path("data"), count, 1 << 20);
    dir.config("train.toml", &data::stack_config(&dir.path("data"), "order.epochs = 1"))
}

/// Rows of the feeder alone.
fn bench_of(dir: &TestDir, config: &Path, address: &str) -> Value {
    bench(dir, config, &[&addresses([address]), "feeders.local=never"])
}

/// Rows that a good peer gets, one request after the other, until one peer of so many that do not read is cut off, and
/// until all are.
fn rows_beside(feeder: &Feeder, slow: u64) -> (u64, u64) {
    let mut good = Peer::connect(&feeder.address, 1 << 20);
    good.learn("train");
    let are_cut = AtomicU64::new(0);
    // Some take nothing at all, others the beginning of each answer.
    let peer = |number: u64| {
        let mut peer =
            Peer::connect(&feeder.address, if number.is_multiple_of(2) { 70_000 } else { 0 });
        peer.learn("train");
        for _ in 0..4 {
            peer.ask(&[0, 1, 2, 3]);
        }
        peer
    };
    let peers: Vec<Peer> = (0..slow).map(peer).collect();
    let before = feeder.memory().1;
    let (mut rows, mut until_one) = (0, None);
    std::thread::scope(|scope| {
        for mut peer in peers {
            let are_cut = &are_cut;
            scope.spawn(move || {
                while peer.read(false).is_ok() {}
                assert!(peer.ended.len() == 1, "an answer that nobody read has ended");
                are_cut.fetch_add(1, Ordering::SeqCst);
            });
        }
        let begun = Instant::now();
        while are_cut.load(Ordering::SeqCst) < slow {
            assert!(begun.elapsed() < DEADLINE, "who does not read is not cut off");
            let asked = good.ask(&[4, 5, 6, 7]);
            while !good.ended.contains(&asked) {
                good.read(true).unwrap();
            }
            let answer = good.received.remove(&asked).unwrap();
            assert!(answer.len() > 4 << 20, "{}", answer.len());
            if are_cut.load(Ordering::SeqCst) > 0 {
                until_one.get_or_insert(rows);
            }
            rows += 4;
            // Four places: their slots, and a message in the making of each.
            let held = feeder.memory().1.saturating_sub(before);
            assert!(held < 80 << 20, "{} MiB", held >> 20);
        }
    });
    (until_one.unwrap_or(rows), rows)
}

#[test]
fn peers_that_do_not_read_keep_no_place_from_one_that_does_and_are_cut_off() {
    let dir = TestDir::new();
    let config = large_rows(&dir, 32);
    let expected = bench(&dir, &config, &[]);
    let feeder = Feeder::start(&dir, &config, &["feed.requests=4", "feed.rows=4"]);
    let (beside_one, _) = rows_beside(&feeder, 1);
    assert!(beside_one >= 40, "{beside_one} rows beside one that does not read");
    feeder.wait_for_log("it has not read an answer for 10 s");
    // They have all places, until the good one waits.
    let (_, beside_many) = rows_beside(&feeder, 6);
    assert!(beside_many >= 4, "{beside_many}");
    feeder.wait_for_log("it has not read an answer for 2 s");
    // Every place is free again.
    assert_eq!(digest(&bench_of(&dir, &config, &feeder.address)), digest(&expected));
}

#[test]
fn feeder_lives_through_garbage_floods_of_resets_and_tickets_that_are_none() {
    let dir = TestDir::new();
    let config = dir.image_stream(61, 4, "order.epochs = 6");
    let expected = bench(&dir, &config, &[]);
    let feeder = Feeder::start(&dir, &config, &[]);
    let (is_over, floods) = (AtomicBool::new(false), AtomicU64::new(0));
    let report = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) {
                reset_rapidly(&feeder.address);
                floods.fetch_add(1, Ordering::SeqCst);
            }
        });
        scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) {
                throw_garbage(&feeder.address);
            }
        });
        wait_until("a flood has ended", || floods.load(Ordering::SeqCst) > 0);
        let report = bench_of(&dir, &config, &feeder.address);
        is_over.store(true, Ordering::SeqCst);
        report
    });
    assert_eq!(digest(&report), digest(&expected));
    assert!(supplied(&report) >= 6 * 56, "{}", report["supply"]);
    feeder.wait_for_log("a daemon's connection ended");
    send_tickets_that_are_none(&feeder.address);
    assert!(forebay_tests::is_running(feeder.child.id()));
    assert_eq!(digest(&bench_of(&dir, &config, &feeder.address)), digest(&expected));
}

/// Asks for rows and gives them up at once, until the connection is cut off or for some thousand times.
fn reset_rapidly(address: &str) {
    let mut peer = Peer::connect(address, 1 << 20);
    peer.learn("train");
    for _ in 0..3000 {
        let asked = peer.ask(&[0, 1, 2, 3]);
        if !peer.reset(asked) {
            return;
        }
    }
    while peer.read(true).is_ok_and(|came| came) {}
}

fn throw_garbage(address: &str) {
    let preface = forebay_tests::feeding::wire::PREFACE;
    let frame = [preface, &[0xff; 4000]].concat();
    let pieces: [&[u8]; 5] =
        [b"GET / HTTP/1.1\r\n\r\n", &[0x16, 3, 1, 2, 0], &[0xff; 70_000], &preface[..9], &frame];
    for bytes in pieces {
        let mut socket = TcpStream::connect(address).unwrap();
        let _ = socket.write_all(bytes);
        let _ = socket.shutdown(std::net::Shutdown::Write);
        let _ = socket.read_to_end(&mut Vec::new());
    }
}

fn send_tickets_that_are_none(address: &str) {
    let mut peer = Peer::connect(address, 1 << 20);
    peer.learn("train");
    let sound = peer.ticket(&[0, 1]);
    let mut other_rows = sound.clone();
    other_rows[5] ^= 1;
    let mut many = sound.clone();
    many[24..28].fill(0xff);
    let tickets = [
        Vec::new(),
        vec![0xff; 28],
        sound[..sound.len() - 1].to_vec(),
        other_rows,
        many,
        peer.ticket(&[61]),
        peer.ticket(&[u64::MAX]),
        peer.ticket(&vec![0; 256]),
        vec![0; 70_000],
    ];
    for ticket in tickets {
        let asked = peer.call("DoGet", &field(1, &ticket));
        while !peer.ended.contains(&asked) {
            peer.read(true).unwrap();
        }
        assert!(!peer.received.contains_key(&asked), "{} bytes are a ticket", ticket.len());
    }
    for method in ["DoPut", "DoAction", ""] {
        let asked = peer.call(method, &[]);
        while !peer.ended.contains(&asked) {
            peer.read(true).unwrap();
        }
    }
    let asked = peer.ask(&[0, 60]);
    while !peer.ended.contains(&asked) {
        peer.read(true).unwrap();
    }
    assert!(messages(&peer.received[&asked]).len() >= 3, "schema, rows and the end");
}

#[test]
fn strangers_are_refused_and_named_and_a_trainer_goes_on() {
    let dir = TestDir::new();
    let config = dir.image_stream(40, 4, "order.epochs = 2");
    let expected = bench(&dir, &config, &[]);
    for folder in ["keys", "others"] {
        program::run(&mut dir.forebay(&["keys", folder]));
    }
    let tls = |of: &str, side: &str, folder: &str| {
        let file = |name: &str| dir.path(&format!("{folder}/{name}")).display().to_string();
        let (ca, cert, key) =
            (file("ca.crt"), file(&format!("{side}.crt")), file(&format!("{side}.key")));
        let name = if side == "trainer" { ", name = \"feeder.forebay.internal\"" } else { "" };
        format!("{of}.tls={{ ca = \"{ca}\", cert = \"{cert}\", key = \"{key}\"{name} }}")
    };
    let own = tls("feed", "feeder", "keys");
    let feeder = Feeder::start(&dir, &config, &[&own, "feed.allow=[\"trainer.forebay.internal\"]"]);
    let closed = Feeder::start(&dir, &config, &[&own, "feed.allow=[\"*.elsewhere.example\"]"]);
    let good = tls("feeders", "trainer", "keys");
    let stranger = tls("feeders", "trainer", "others");
    let attempts: [(&Feeder, &[&str], &str); 3] = [
        (&feeder, &[], "a daemon's connection ended: "),
        (&feeder, &[&stranger], "a daemon's connection ended: "),
        (&closed, &[&good], "trainer.forebay.internal"),
    ];
    for (feeder, settings, words) in attempts {
        let listed = addresses([feeder.address.as_str()]);
        let report = bench(&dir, &config, &[settings, &[&listed[..]]].concat());
        assert_eq!((digest(&report), supplied(&report)), (digest(&expected), 0));
        feeder.wait_for_log(words);
    }
    let listed = addresses([feeder.address.as_str()]);
    let report = bench(&dir, &config, &[&good, &listed, "feeders.local=never"]);
    assert_eq!(digest(&report), digest(&expected));
    assert!(supplied(&report) >= 2 * 40 - 8, "{}", report["supply"]);
}

/// Four cores that take 16 requests of 16 rows.
const USUAL: &str = "\"cores\":4,\"rows\":16,\"requests\":16";

/// What is said of an answer with one row's failure alone.
const ELSEWHERE: &str = "its answer lacks 15 of 16 rows";

/// A stream with a liar among its feeders has the digest that it has without, and its daemon says what it met.
fn survives(
    dir: &TestDir,
    (config, expected): (&Path, &Value),
    (liar, words, is_silent): (&Liar, &str, bool),
) {
    // A row that a feeder cannot make, or does not, is made here.
    let is_made_here = is_silent || words == ELSEWHERE;
    let local = if is_made_here { "feeders.local=last" } else { "feeders.local=never" };
    let good = Feeder::start(dir, config, &[]);
    let listed = addresses([liar.address.as_str(), &good.address]);
    // A stream may be over before the liar has been asked.
    wait_until(&format!("the liar is met and {words:?} said"), || {
        let mut command = dir.forebay(&["bench", "--json", "--digest", "--set", local]);
        let finished = program::run(command.args(["--set", &listed]).arg(config));
        let report = finished.json();
        let log = &finished.stderr;
        assert_eq!(digest(&report), digest(expected), "{words}");
        let is_forged = |line: &str| line.starts_with("forged");
        assert!(!log.contains('\u{1b}') && !log.lines().any(is_forged), "{log}");
        let is_met = liar.tickets.load(Ordering::SeqCst) > 0 || !words.is_empty();
        // One that is silent is given up after a minute: this stream is over before.
        let is_named = is_silent || log.contains(&liar.address);
        is_met && log.contains(words) && is_named
    });
}

#[test]
fn feeders_that_lie_are_named_and_change_no_digest() {
    let dir = TestDir::new();
    let config = dir.image_stream(61, 4, "order.epochs = 4");
    let expected = bench(&dir, &config, &[]);
    let other = TestDir::new();
    let other_config = large_rows(&other, 4);
    let other_shape = answer_of(&other, &other_config, &[0]);
    let many_rows = answer_of(&dir, &config, &[0, 1, 2, 3]);
    let last = [0x20, 1];
    let broken = "an answer cannot be read";
    // A failure of row 0, of another host's disk, whose text would clear a terminal and forge a line of the log.
    let text = field(3, b"\x1b[2Jevil\nforged line\r\x07");
    let failed = [field(2, &[vec![8, 0, 16, 0], text].concat()), last.to_vec()].concat();
    let beyond = field(2, &[8, 200, 1, 16, 0]);
    let lies: Vec<(&str, Lie, &str)> = vec![
        (USUAL, Lie::Bytes(vec![0xff; 3000], "0"), ""),
        (USUAL, Lie::Bytes(vec![0, 0xff, 0xff, 0xff, 0xff, 1], "0"), ""),
        (USUAL, Lie::Bytes(grpc(&[0xff; 100]), "0"), ""),
        (USUAL, Lie::Bytes(flight_data(&[0xff; 64], &field(1, &[0]), &[1; 64]), "0"), broken),
        (USUAL, Lie::Bytes(flight_data(&[], &field(1, &vec![0; 100_000]), &[]), "0"), broken),
        (USUAL, Lie::Bytes(flight_data(&[], &beyond, &[]), "0"), broken),
        (USUAL, Lie::Bytes(flight_data(&[], &last, &[]), "0"), "its answer lacks"),
        (USUAL, Lie::Bytes(flight_data(&[], &failed, &[]), "0"), ELSEWHERE),
        (USUAL, Lie::Bytes(other_shape, "0"), ""),
        ("\"cores\":1,\"rows\":1,\"requests\":4", Lie::Bytes(many_rows, "0"), broken),
        (USUAL, Lie::Status("9", "%1B[2Jevil%1B[2J%0Aforged line%0D%07"), "evil [2J forged line"),
        (USUAL, Lie::Status("8", "busy"), ""),
        (USUAL, Lie::Status("14", "away"), ""),
        (USUAL, Lie::Silence, ""),
        (USUAL, Lie::Reset, ""),
        (USUAL, Lie::Closes, ""),
        ("\"cores\":4294967295,\"rows\":4294967295,\"requests\":4294967295", Lie::Closes, ""),
        ("\"cores\":\"many\"", Lie::Reset, "it is no feeder of Forebay's"),
    ];
    for (names, lie, words) in lies {
        let liar = Liar::start(names, lie.clone());
        survives(&dir, (&config, &expected), (&liar, words, matches!(lie, Lie::Silence)));
        let connections = liar.connections.load(Ordering::SeqCst);
        let tickets = liar.tickets.load(Ordering::SeqCst);
        assert_eq!(tickets > 0, !names.contains("many"), "{lie:?}");
        // It has one connection at a time, whose requests are limited.
        assert!(tickets <= 200 * connections, "{tickets} tickets of {connections}: {lie:?}");
    }
}

/// What a real feeder answers.
fn answer_of(dir: &TestDir, config: &Path, samples: &[u64]) -> Vec<u8> {
    let feeder = Feeder::start(dir, config, &[]);
    let mut peer = Peer::connect(&feeder.address, 1 << 20);
    peer.learn("train");
    let asked = peer.ask(samples);
    while !peer.ended.contains(&asked) {
        peer.read(true).unwrap();
    }
    peer.received.remove(&asked).unwrap()
}

#[test]
fn what_listens_and_is_no_feeder_is_named() {
    let dir = TestDir::new();
    let config = dir.image_stream(40, 4, "order.epochs = 2");
    let expected = bench(&dir, &config, &[]);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for mut socket in listener.incoming().flatten() {
            let _ = socket.write_all(b"SSH-2.0-OpenSSH_9.6\r\n\x1b[2J\xff\xff\xff\xff");
        }
    });
    let report = bench(&dir, &config, &[&addresses([address.as_str()])]);
    assert_eq!((digest(&report), supplied(&report)), (digest(&expected), 0));
    let state = report["supply"]["feeders"][0]["state"].as_str().unwrap();
    assert!(!state.is_empty() && !state.contains('\u{1b}'), "{state:?}");
}
