use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use super::answer::{keys_of, words};
use super::*;

/// A command that counts its runs in a file and names the keys after them.
fn counting(folder: &Path, script: &str) -> (ProcessCredentials, PathBuf) {
    let (count, path) = (folder.join("count"), folder.join("command"));
    let text = format!(
        "echo x >> {count}; n=$(wc -l < {count})\n{script}\nprintf '{{\"Version\": 1, \"AccessKeyId\": \"K%d\", \
         \"SecretAccessKey\": \"hidden\", \"Expiration\": \"2999-01-01T00:00:00Z\"}}' $n\n",
        count = count.display()
    );
    std::fs::write(&path, text).unwrap();
    let arguments = vec!["sh".to_owned(), path.display().to_string()];
    let credentials = ProcessCredentials::new("research", arguments.clone());
    let (own, theirs) = UnixStream::pair().unwrap();
    std::thread::spawn(move || credential_helper::serve_stream(theirs));
    *credentials.helper.lock().unwrap() = Some(CredentialHelper::over(own, &arguments));
    (credentials, count)
}

fn runs(count: &Path) -> usize {
    std::fs::read_to_string(count).unwrap_or_default().lines().count()
}

fn later(credentials: &ProcessCredentials) {
    let mut known = credentials.known();
    known.asked = known.asked.and_then(|asked| asked.checked_sub(PAUSE));
}

fn key(credentials: &ProcessCredentials) -> (String, u64) {
    let (keys, number) = credentials.get().unwrap();
    (keys.key_id.clone(), number)
}

#[test]
fn keys_are_requested_once_and_again_before_they_expire() {
    let folder = tempfile::tempdir().unwrap();
    let (credentials, count) = counting(folder.path(), "");
    for _ in 0..3 {
        assert_eq!(key(&credentials), ("K1".to_owned(), 1));
    }
    assert_eq!(runs(&count), 1);
    later(&credentials);
    assert_eq!(key(&credentials).0, "K1", "they do not expire soon");
    let soon = SystemTime::now() + Duration::from_secs(200);
    let set = |due: SystemTime, expires: SystemTime| {
        let mut known = credentials.known();
        let keys = known.keys.as_mut().unwrap();
        (keys.due, keys.expires) = (Some(due), Some(expires));
    };
    set(SystemTime::now(), soon);
    // While another thread runs the command, the old keys are used.
    let helper = credentials.helper.lock().unwrap();
    assert_eq!(key(&credentials).0, "K1");
    drop(helper);
    assert_eq!(key(&credentials), ("K2".to_owned(), 2));
    later(&credentials);
    set(SystemTime::now(), SystemTime::now());
    assert_eq!(key(&credentials), ("K3".to_owned(), 3));
    assert_eq!(runs(&count), 3);
}

#[test]
fn refused_keys_are_renewed_but_not_for_a_late_refusal() {
    let folder = tempfile::tempdir().unwrap();
    let (credentials, count) = counting(folder.path(), "");
    assert_eq!(key(&credentials), ("K1".to_owned(), 1));
    credentials.refused(1);
    assert_eq!(key(&credentials).0, "K1", "the command has just been run");
    later(&credentials);
    assert_eq!(key(&credentials), ("K2".to_owned(), 2));
    later(&credentials);
    credentials.refused(1);
    assert_eq!(key(&credentials).0, "K2", "a late response to a request with the first keys");
    assert_eq!(runs(&count), 2);
}

#[test]
fn failed_command_is_reported_and_earlier_keys_are_used_until_they_expire() {
    let folder = tempfile::tempdir().unwrap();
    let script = "[ $n != 2 ] || { echo 'no session' >&2; exit 5; }";
    let (credentials, count) = counting(folder.path(), script);
    assert_eq!(key(&credentials).0, "K1");
    later(&credentials);
    {
        let mut known = credentials.known();
        known.keys.as_mut().unwrap().due = Some(SystemTime::now());
    }
    assert_eq!(key(&credentials).0, "K1", "the second run has failed");
    assert_eq!(runs(&count), 2);
    credentials.known().keys.as_mut().unwrap().expires = Some(SystemTime::now());
    for _ in 0..3 {
        let why = credentials.get().unwrap_err();
        assert_eq!(
            why,
            "the credential_process `sh` of profile `research` ended with status 5: \"no session\""
        );
    }
    assert_eq!(runs(&count), 2, "many threads do not run it one after the other");
    later(&credentials);
    assert_eq!(key(&credentials).0, "K3");
}

#[test]
fn command_line_is_split_as_by_a_shell() {
    let of = |line: &str| words(line).unwrap();
    assert_eq!(of("  aws sts  --x "), ["aws", "sts", "--x"]);
    assert_eq!(
        of(r#"/a/"b c"/d 'e "f' "g\"h\i" j\ k '' $HOME"#),
        ["/a/b c/d", "e \"f", "g\"h\\i", "j k", "", "$HOME"]
    );
    assert_eq!((words("a 'b"), words("a \"b"), words("a\\")), (None, None, None));
    assert_eq!(of(""), [""; 0]);
}

#[test]
fn output_must_be_keys_and_is_not_shown() {
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    let good = r#"{"Version": 1, "AccessKeyId": "AKIA", "SecretAccessKey": "SECRET", "SessionToken": "T=+/",
        "Expiration": "2023-11-14T23:13:20+00:00"}"#;
    let keys = keys_of(good, now).unwrap();
    assert_eq!(
        (keys.credential.key_id.as_str(), keys.credential.token.as_deref()),
        ("AKIA", Some("T=+/"))
    );
    let at = |seconds| Some(now + Duration::from_secs(seconds));
    assert_eq!((keys.due, keys.expires), (at(3300), at(3600)));
    let short = good.replace("23:13:20", "22:13:30");
    assert_eq!(keys_of(&short, now).unwrap().due, at(5));
    let without = good.replace("Expiration", "Else").replace("SessionToken", "Other");
    let keys = keys_of(&without, now).unwrap();
    assert!(keys.due.is_none() && keys.expires.is_none() && keys.credential.token.is_none());
    for (old, new, says) in [
        ("{", "SECRET", "invalid JSON (line 1"),
        ("1,", "2,", "\"Version\": 1"),
        ("AccessKeyId", "Else", "no `AccessKeyId`"),
        ("\"SECRET\"", "7", "a `SecretAccessKey` that is not a word"),
        ("SECRET", "SEC\\nRET", "a `SecretAccessKey` that is not a word"),
        ("SECRET", "", "no `SecretAccessKey`"),
        ("2023-11-14T", "SECRET", "not a time such as"),
        ("23:13", "21:13", "have expired"),
    ] {
        let why = keys_of(&good.replacen(old, new, 1), now).unwrap_err();
        assert!(why.contains(says) && !why.contains("SECRET"), "{why}");
    }
}
