//! Discovery with a clock and a resolver of the test's own, and real files.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use super::*;

fn ip(last: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, last])
}

fn hosts(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn discovery(words: &[&str]) -> Discovery {
    Discovery::new(Sources::new(&hosts(words), None).unwrap())
}

fn from_file(path: &Path) -> Discovery {
    Discovery::new(Sources { addresses: Vec::new(), file: Some(path.to_owned()) })
}

fn addresses(discovery: &Discovery) -> Vec<String> {
    discovery.feeders().iter().map(|feeder| feeder.address.to_string()).collect()
}

#[test]
fn addresses_are_read_with_and_without_a_port() {
    for (text, host, port) in [
        ("feeders.default.svc", "feeders.default.svc", 9461),
        ("feeders:80", "feeders", 80),
        ("10.0.0.1", "10.0.0.1", 9461),
        ("10.0.0.1:5", "10.0.0.1", 5),
        ("fd00::1", "fd00::1", 9461),
        ("[fd00::1]", "fd00::1", 9461),
        ("[fd00::1]:7", "fd00::1", 7),
    ] {
        let read = HostPort::read(text, "here").unwrap();
        assert_eq!((read.host(), read.port()), (host, port), "{text}");
    }
    for text in [
        "", ":1", "a:", "a:0", "a:65536", "a:b", "[::1", "[::1]x", "[a]:1", "a b", "a/b", "ü",
        "1:2:3",
    ] {
        let error = HostPort::read(text, "feeders.addresses").unwrap_err().to_string();
        assert!(error.starts_with("feeders.addresses: ") && error.contains("HOST:PORT"), "{error}");
    }
}

#[test]
fn every_address_of_a_name_is_a_feeder_and_names_are_looked_up_every_five_seconds() {
    let mut discovery = discovery(&["feeders.svc:1000"]);
    let begin = Instant::now();
    let [name] = &discovery.poll(begin)[..] else { panic!("one name is due") };
    let name = name.clone();
    // Until the result is there, the name is not looked up a second time, however long that takes.
    assert!(discovery.poll(begin + Duration::from_secs(60)).is_empty());
    discovery.looked_up(&name, Ok(vec![ip(2), ip(1), "fd00::1".parse().unwrap(), ip(2)]), begin);
    assert_eq!(addresses(&discovery), ["10.0.0.1:1000", "10.0.0.2:1000", "[fd00::1]:1000"]);
    assert_eq!(&*discovery.feeders()[0].host, "feeders.svc");
    let generation = discovery.generation();
    assert!(discovery.poll(begin + LOOKUP_INTERVAL - Duration::from_millis(1)).is_empty());
    assert_eq!(discovery.poll(begin + LOOKUP_INTERVAL), std::slice::from_ref(&name));
    let same = vec![ip(1), ip(2), "fd00::1".parse().unwrap()];
    discovery.looked_up(&name, Ok(same), begin + LOOKUP_INTERVAL);
    assert_eq!(discovery.generation(), generation, "the same set in another order is no change");
    discovery.looked_up(&name, Ok(vec![ip(3)]), begin + LOOKUP_INTERVAL);
    assert_eq!(addresses(&discovery), ["10.0.0.3:1000"]);
    assert!(discovery.generation() > generation);
}

#[test]
fn failed_lookup_keeps_the_addresses_for_a_minute() {
    let mut discovery = discovery(&["feeders"]);
    let begin = Instant::now();
    let name = discovery.poll(begin).remove(0);
    discovery.looked_up(&name, Ok(vec![ip(1)]), begin);
    for after in [5_u64, 30, 60] {
        let now = begin + Duration::from_secs(after);
        assert_eq!(discovery.poll(now), std::slice::from_ref(&name));
        let found = if after == 30 { Ok(Vec::new()) } else { Err(io::Error::other("no answer")) };
        discovery.looked_up(&name, found, now);
        assert_eq!(addresses(&discovery), ["10.0.0.1:9461"], "{after}");
    }
    let now = begin + KEEP_ADDRESSES + Duration::from_secs(1);
    discovery.poll(now);
    assert!(discovery.feeders().is_empty());
    discovery.looked_up(&name, Ok(vec![ip(4)]), now + Duration::from_secs(1));
    assert_eq!(addresses(&discovery), ["10.0.0.4:9461"]);
}

#[test]
fn names_fail_independently_of_each_other() {
    let mut discovery = discovery(&["one", "two", "10.0.0.9"]);
    let begin = Instant::now();
    assert_eq!(addresses(&discovery), ["10.0.0.9:9461"], "a number needs no lookup");
    let due = discovery.poll(begin);
    assert_eq!(due.len(), 2);
    discovery.looked_up(&due[1], Ok(vec![ip(2)]), begin);
    assert_eq!(addresses(&discovery), ["10.0.0.2:9461", "10.0.0.9:9461"]);
    // The first one hangs.
    assert_eq!(discovery.poll(begin + LOOKUP_INTERVAL), [due[1].clone()]);
}

#[test]
fn address_under_two_names_is_one_feeder() {
    let mut discovery = discovery(&["one", "two", "10.0.0.1:9461"]);
    let begin = Instant::now();
    for name in discovery.poll(begin) {
        discovery.looked_up(&name, Ok(vec![ip(1)]), begin);
    }
    assert_eq!(addresses(&discovery), ["10.0.0.1:9461"]);
    assert_eq!(&*discovery.feeders()[0].host, "one");
}

#[test]
fn file_is_read_again_when_it_changes_and_kept_when_it_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("feeders");
    let mut discovery = from_file(&path);
    let now = Instant::now();
    // Whoever writes it may come later.
    assert!(discovery.poll(now).is_empty() && discovery.feeders().is_empty());
    fs::write(&path, "# a job's feeders\n\n10.0.0.1:5 # the first\n  10.0.0.2\n").unwrap();
    discovery.poll(now);
    assert_eq!(addresses(&discovery), ["10.0.0.1:5", "10.0.0.2:9461"]);
    let generation = discovery.generation();
    discovery.poll(now);
    assert_eq!(discovery.generation(), generation);
    let new = folder.path().join("new");
    fs::write(&new, "10.0.0.3\n").unwrap();
    fs::rename(&new, &path).unwrap();
    discovery.poll(now);
    assert_eq!(addresses(&discovery), ["10.0.0.3:9461"]);
    fs::remove_file(&path).unwrap();
    discovery.poll(now);
    assert_eq!(addresses(&discovery), ["10.0.0.3:9461"]);
    fs::write(&path, "").unwrap();
    discovery.poll(now);
    assert!(discovery.feeders().is_empty(), "an empty file is an empty set");
}

#[test]
fn wrong_lines_of_a_file_are_ignored_and_the_others_used() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("feeders");
    fs::write(&path, "10.0.0.1\nno host:x\n\0\n10.0.0.2:0\r\n10.0.0.4\r\n").unwrap();
    let mut discovery = from_file(&path);
    discovery.poll(Instant::now());
    assert_eq!(addresses(&discovery), ["10.0.0.1:9461", "10.0.0.4:9461"]);
    fs::write(&path, [0xff, 0xfe]).unwrap();
    discovery.poll(Instant::now());
    assert_eq!(addresses(&discovery).len(), 2, "what is no text changes nothing");
}

#[test]
fn names_in_a_file_are_looked_up_and_stay_looked_up_when_the_file_changes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("feeders");
    fs::write(&path, "one\ntwo\n").unwrap();
    let mut discovery = from_file(&path);
    let now = Instant::now();
    let due = discovery.poll(now);
    assert_eq!(due.len(), 2);
    discovery.looked_up(&due[0], Ok(vec![ip(1)]), now);
    discovery.looked_up(&due[1], Ok(vec![ip(2)]), now);
    fs::write(&path, "two\nthree\n10.0.0.7\n").unwrap();
    let due_now = discovery.poll(now);
    assert_eq!(due_now.iter().map(HostPort::host).collect::<Vec<_>>(), ["three"]);
    assert_eq!(addresses(&discovery), ["10.0.0.2:9461", "10.0.0.7:9461"]);
    // The result of a lookup of a name that is gone.
    discovery.looked_up(&due[0], Ok(vec![ip(1)]), now);
    assert_eq!(addresses(&discovery), ["10.0.0.2:9461", "10.0.0.7:9461"]);
}

#[test]
fn endless_file_and_pipe_are_refused_without_waiting() {
    let mut endless = from_file(Path::new("/dev/zero"));
    endless.poll(Instant::now());
    assert!(endless.feeders().is_empty());
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let mut discovery = from_file(&pipe);
    discovery.poll(Instant::now());
    assert!(discovery.feeders().is_empty());
}

#[test]
fn set_is_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("feeders");
    let lines: String = (0..MAX_FEEDERS + 10)
        .map(|number| format!("10.1.{}.{}\n", number / 256, number % 256))
        .collect();
    fs::write(&path, lines).unwrap();
    let mut discovery = from_file(&path);
    discovery.poll(Instant::now());
    assert_eq!(discovery.feeders().len(), MAX_FEEDERS);
    let names: String = (0..200).map(|number| format!("name{number}\n")).collect();
    fs::write(&path, names).unwrap();
    assert_eq!(discovery.poll(Instant::now()).len(), MAX_NAMES);
    let many = vec!["a".to_owned(); MAX_NAMES + 1];
    let error = Sources::new(&many, None).unwrap_err().to_string();
    assert!(error.contains("65 addresses"), "{error}");
}

#[test]
fn variable_replaces_addresses_and_file() {
    let configured = Sources::new(&hosts(&["one"]), Some("/a/file".into())).unwrap();
    for empty in [None, Some(""), Some(" , ")] {
        assert_eq!(configured.clone().with_variable(empty).unwrap(), configured);
    }
    let replaced = configured.clone().with_variable(Some("n1:5,n2\n 10.0.0.1")).unwrap();
    let found: Vec<&str> = replaced.addresses.iter().map(HostPort::host).collect();
    assert_eq!(found, ["n1", "n2", "10.0.0.1"]);
    assert_eq!(replaced.file, None);
    let error = configured.with_variable(Some("n1:x")).unwrap_err().to_string();
    assert!(error.starts_with("FOREBAY_FEEDERS: "), "{error}");
}

#[test]
fn system_finds_this_machine() {
    let found = look_up(&HostPort::read("localhost", "here").unwrap()).unwrap();
    assert!(!found.is_empty() && found.iter().all(IpAddr::is_loopback), "{found:?}");
}
