//! Real files, and what OpenSSL says of them where it is installed.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use super::*;

fn request(folder: &Path) -> KeysRequest {
    KeysRequest {
        folder: folder.to_owned(),
        feeder_names: vec!["*.feeders.svc".to_owned(), "10.0.0.1".to_owned()],
        trainer_names: vec!["spiffe://cluster/ns/train/sa/job".to_owned()],
        days: DEFAULT_DAYS,
    }
}

fn contents(folder: &Path) -> Vec<Vec<u8>> {
    Name::ALL.iter().map(|name| fs::read(folder.join(name.file())).unwrap()).collect()
}

#[test]
fn files_are_for_their_owner_alone_and_nothing_else_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("a/keys");
    make(&request(&keys)).unwrap();
    assert_eq!(fs::metadata(&keys).unwrap().permissions().mode() & 0o777, 0o700);
    let mut found: Vec<_> = fs::read_dir(&keys).unwrap().map(|entry| entry.unwrap()).collect();
    found.sort_by_key(std::fs::DirEntry::file_name);
    let names: Vec<_> =
        found.iter().map(|entry| entry.file_name().into_string().unwrap()).collect();
    let wanted = ["ca.crt", "ca.key", "feeder.crt", "feeder.key", "trainer.crt", "trainer.key"];
    assert_eq!(names, wanted);
    for entry in found {
        assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{entry:?}");
    }
}

#[test]
fn no_file_is_overwritten_and_none_is_written_beside_one_that_exists() {
    let folder = tempfile::tempdir().unwrap();
    for name in Name::ALL {
        let keys = folder.path().join(name.file());
        fs::create_dir(&keys).unwrap();
        fs::write(keys.join(name.file()), "mine").unwrap();
        let error = make(&request(&keys)).unwrap_err().to_string();
        assert!(error.contains(name.file()) && error.contains("--renew"), "{error}");
        assert_eq!(fs::read(keys.join(name.file())).unwrap(), b"mine");
        assert_eq!(fs::read_dir(&keys).unwrap().count(), 1);
    }
    let dangling = folder.path().join("dangling");
    fs::create_dir(&dangling).unwrap();
    std::os::unix::fs::symlink("/nowhere", dangling.join("trainer.key")).unwrap();
    assert!(matches!(make(&request(&dangling)), Err(KeysError::Exists(_))));
}

#[test]
fn file_that_appears_in_between_is_not_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ca.key");
    fs::write(&path, "mine").unwrap();
    assert!(matches!(write_new(&path, "other"), Err(KeysError::Exists(_))));
    assert_eq!(fs::read(&path).unwrap(), b"mine");
}

#[test]
fn renewal_keeps_the_authority_and_replaces_the_rest() {
    let folder = tempfile::tempdir().unwrap();
    make(&request(folder.path())).unwrap();
    let before = contents(folder.path());
    // What an interrupted renewal leaves.
    fs::write(folder.path().join(".feeder.key.new"), "half").unwrap();
    renew(&request(folder.path())).unwrap();
    let after = contents(folder.path());
    for ((name, old), new) in Name::ALL.iter().zip(&before).zip(&after) {
        let is_authority = matches!(name, Name::CaCertificate | Name::CaKey);
        assert_eq!(old == new, is_authority, "{name:?}");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 6);
}

#[test]
fn renewal_without_its_authority_is_refused_and_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    make(&request(folder.path())).unwrap();
    let other = tempfile::tempdir().unwrap();
    make(&request(other.path())).unwrap();
    let key = folder.path().join("ca.key");
    let own = fs::read(&key).unwrap();
    for wrong in [fs::read(other.path().join("ca.key")).unwrap(), b"garbage".to_vec(), Vec::new()] {
        fs::write(&key, wrong).unwrap();
        let before = contents(folder.path());
        let error = renew(&request(folder.path())).unwrap_err();
        assert!(matches!(error, KeysError::Authority { .. }), "{error}");
        assert_eq!(contents(folder.path()), before);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 6);
    }
    fs::remove_file(&key).unwrap();
    let error = renew(&request(folder.path())).unwrap_err().to_string();
    assert!(error.contains("ca.key"), "{error}");
    fs::write(&key, own).unwrap();
    renew(&request(folder.path())).unwrap();
}

#[test]
fn names_that_no_certificate_can_have_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["", "a b", "ü.de", "*", "a.*", "spiffe://a/b"] {
        let keys = folder.path().join("keys");
        let request = KeysRequest { feeder_names: vec![name.to_owned()], ..request(&keys) };
        assert!(matches!(make(&request), Err(KeysError::Name(_))), "{name}");
        assert_eq!(fs::read_dir(&keys).unwrap().count(), 0);
    }
    for days in [0, 366] {
        let request = KeysRequest { days, ..request(&folder.path().join("keys")) };
        assert!(matches!(make(&request), Err(KeysError::Days(_))));
    }
    let many = vec!["a".to_owned(); 64];
    let request = KeysRequest { trainer_names: many, ..request(&folder.path().join("keys")) };
    assert!(matches!(make(&request), Err(KeysError::ManyNames(64))));
}

#[test]
fn openssl_verifies_the_certificates_for_their_purposes_only() {
    let folder = tempfile::tempdir().unwrap();
    make(&request(folder.path())).unwrap();
    let verify = |purpose: &str, file: &str| {
        let ca = folder.path().join("ca.crt");
        Command::new("openssl")
            .args(["verify", "-x509_strict", "-purpose", purpose, "-CAfile"])
            .args([&ca, &folder.path().join(file)])
            .output()
    };
    if Command::new("openssl").arg("version").output().is_err() {
        println!("skipped: openssl is not installed");
        return;
    }
    for (purpose, file, is_good) in [
        ("sslserver", "feeder.crt", true),
        ("sslclient", "feeder.crt", false),
        ("sslclient", "trainer.crt", true),
        ("sslserver", "trainer.crt", false),
    ] {
        let output = verify(purpose, file).unwrap();
        assert_eq!(output.status.success(), is_good, "{purpose} {file} {output:?}");
    }
    let shown = Command::new("openssl")
        .args(["x509", "-noout", "-text", "-in"])
        .arg(folder.path().join("feeder.crt"))
        .output()
        .unwrap();
    let text = String::from_utf8(shown.stdout).unwrap();
    let names = "DNS:feeder.forebay.internal, DNS:*.feeders.svc, IP Address:10.0.0.1";
    assert!(text.contains(names), "{text}");
}
