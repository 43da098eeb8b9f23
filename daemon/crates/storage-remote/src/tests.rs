//! The conformance suites for each provider's protocol, and failing servers.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use forebay_observe::Clock;
use forebay_storage::version::ObjectStamp;

use super::testing::{Fault, Server};
use super::{RemoteObjects, Storage, StorageError};
use forebay_storage::conformance::{self, Fixture, Paths, part};
use forebay_storage::listing::{Directories, EntryKind};
use forebay_storage::location::{FileId, FileTable, Location};
use forebay_storage::{Patience, PatientStorage, RetryClass};

const WHOLE: Location = Location::whole(FileId(0));

struct Bucket {
    scheme: &'static str,
    folder: tempfile::TempDir,
    server: Server,
    stall: Option<&'static str>,
}

impl Bucket {
    /// A client that gives up early.
    fn impatient(scheme: &'static str) -> Self {
        Self { stall: Some("2s"), ..Self::of(scheme) }
    }

    fn of(scheme: &'static str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let server = Server::of(folder.path());
        fs::create_dir(folder.path().join("data")).unwrap();
        Self { scheme, folder, server, stall: None }
    }

    fn try_open(&self, name: &str) -> Result<RemoteObjects, StorageError> {
        let url = self.server.url(self.scheme, name);
        let endpoint = format!("http://127.0.0.1:{}", self.server.port());
        let variable = |name: &str| (name == "HF_ENDPOINT").then(|| endpoint.clone().into());
        let keys = self.server.keys(&url, self.stall);
        RemoteObjects::open_in(Path::new(&url), &keys, &variable)
    }

    fn open(&self) -> RemoteObjects {
        self.try_open("data").unwrap()
    }

    fn path(&self, path: &str) -> std::path::PathBuf {
        self.folder.path().join("data").join(path)
    }
}

impl Fixture for Bucket {
    fn storage(&self) -> Arc<dyn Storage> {
        Arc::new(self.open())
    }

    fn put(&self, path: &str, bytes: &[u8]) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    fn remove(&self, path: &str) {
        fs::remove_file(self.path(path)).unwrap();
    }

    fn forbid(&self, _path: &str) -> bool {
        false
    }

    fn has_folders(&self) -> bool {
        false
    }

    fn repeat_names(&self) -> bool {
        self.server.set_weather(|_| Fault::Repeats);
        true
    }
}

#[test]
fn objects_in_s3_conform() {
    conformance::run(|| Bucket::of("s3"));
}

#[test]
fn objects_in_google_cloud_storage_conform() {
    conformance::run(|| Bucket::of("gs"));
}

#[test]
fn files_on_a_web_server_conform() {
    conformance::run(|| Bucket::of("http"));
}

#[test]
fn files_on_the_hub_conform() {
    conformance::run(|| Bucket::of("hf"));
}

/// One object with its stamp in the index.
#[derive(Debug)]
struct Indexed(&'static str, ObjectStamp);

impl FileTable for Indexed {
    fn append_path(&self, _file: FileId, path: &mut Vec<u8>) {
        path.extend_from_slice(self.0.as_bytes());
    }

    fn stamp(&self, _file: FileId) -> Option<ObjectStamp> {
        Some(self.1)
    }
}

fn indexed(storage: &RemoteObjects, name: &'static str) -> Indexed {
    let mut stamp = None;
    let mut visit = |found: &[u8], kind: EntryKind| {
        if let (true, EntryKind::Object(known)) = (found == name.as_bytes(), kind) {
            stamp = Some(known);
        }
    };
    Directories::list(storage, b"", &mut visit).unwrap();
    Indexed(name, stamp.unwrap())
}

fn read(
    storage: &RemoteObjects,
    files: &Indexed,
    location: Location,
) -> Result<Vec<u8>, StorageError> {
    let mut buffer = Vec::new();
    storage.read(files, location, u64::MAX, &mut buffer).map(|()| buffer)
}

#[test]
fn indexed_object_is_opened_without_a_request_and_read_by_one() {
    let bucket = Bucket::of("s3");
    bucket.put("file", b"0123456789");
    let storage = bucket.open();
    let files = indexed(&storage, "file");
    let before = bucket.server.requests();
    let opened = storage.open(&files, WHOLE).unwrap();
    assert_eq!((opened.length_bytes, bucket.server.requests()), (10, before));
    let mut buffer = b"before".to_vec();
    storage.read_opened(&files, opened, &mut buffer).unwrap();
    assert_eq!(
        (buffer.as_slice(), bucket.server.requests()),
        (&b"before0123456789"[..], before + 1)
    );
    assert_eq!(read(&storage, &files, part(3, Some(4))).unwrap(), b"3456");
    assert!(read(&storage, &files, part(8, Some(3))).unwrap_err().is_bad_sample());
}

#[test]
fn changed_object_is_named() {
    let bucket = Bucket::of("s3");
    bucket.put("file", b"0123456789");
    let storage = bucket.open();
    let files = indexed(&storage, "file");
    for (bytes, said) in [(&b"abcdefghij"[..], "another tag"), (b"0123", "had 10 bytes and has 4")]
    {
        bucket.put("file", bytes);
        for location in [WHOLE, part(2, Some(2)), part(7, Some(2))] {
            let error = read(&storage, &files, location).unwrap_err();
            let text = error.to_string();
            assert!(
                text.contains("s3://bucket/data/file") && text.contains("has changed"),
                "{text}"
            );
            assert!(text.contains(said) || location.range.length.is_some(), "{text}");
            assert_eq!((error.class(), error.is_bad_sample()), (RetryClass::Never, false));
        }
    }
    bucket.remove("file");
    let error = read(&storage, &files, WHOLE).unwrap_err();
    assert_eq!(error.class(), RetryClass::File, "{error}");
}

/// Each kind of fault once, then none: the error, then the bytes.
#[test]
fn temporary_faults_are_outages_and_bytes_are_never_wrong() {
    let bucket = Bucket::impatient("s3");
    let bytes: Vec<u8> = (0..50_000_u32).flat_map(u32::to_le_bytes).collect();
    bucket.put("file", &bytes);
    let storage = bucket.open();
    let files = indexed(&storage, "file");
    let slow_down = "<Error><Code>SlowDown</Code><Message>Reduce</Message></Error>".to_owned();
    for (fault, class, said) in [
        (Fault::Status(503, Some(7), slow_down), RetryClass::Outage, "503 SlowDown \"Reduce\""),
        (Fault::Status(500, None, String::new()), RetryClass::Outage, "500 Internal Server Error"),
        (Fault::Status(429, None, String::new()), RetryClass::Outage, "429"),
        (Fault::Close, RetryClass::Outage, "no response"),
        (Fault::Silence, RetryClass::Outage, "no response"),
        (Fault::Stall(1000), RetryClass::Outage, "no response"),
        (Fault::Short(1000), RetryClass::Outage, "the body ends 199000 bytes early"),
        (Fault::Longer(5), RetryClass::File, "200005"),
        (Fault::HugeHeader, RetryClass::Outage, "no response"),
        (Fault::OtherTag, RetryClass::Never, "another tag"),
        (
            Fault::Redirect("http://169.254.169.254/x?secret=1".into()),
            RetryClass::Never,
            "redirect to 169.254.169.254",
        ),
        (
            Fault::Status(403, None, String::new()),
            RetryClass::Never,
            "without credentials may not do that",
        ),
    ] {
        bucket.server.set_weather({
            let fault = fault.clone();
            move |_| fault.clone()
        });
        let error = read(&storage, &files, WHOLE).unwrap_err();
        let text = error.to_string();
        assert_eq!(error.class(), class, "{fault:?}: {text}");
        assert!(text.contains("s3://bucket/data/file") && text.contains(said), "{fault:?}: {text}");
        assert!(!text.contains("secret"), "{text}");
        let asked = matches!(fault, Fault::Status(503, ..)).then_some(Duration::from_secs(7));
        assert_eq!(error.retry_after(), asked);
        bucket.server.set_weather(|_| Fault::None);
        assert_eq!(read(&storage, &files, WHOLE).unwrap(), bytes, "after {fault:?}");
    }
}

#[test]
fn whole_object_in_response_to_a_range_is_refused() {
    let bucket = Bucket::impatient("s3");
    bucket.put("file", b"0123456789");
    let storage = bucket.open();
    let files = indexed(&storage, "file");
    for (fault, class) in
        [(Fault::WholeForRange, RetryClass::File), (Fault::Endless, RetryClass::Outage)]
    {
        bucket.server.set_weather(move |_| fault.clone());
        let error = read(&storage, &files, part(2, Some(3))).unwrap_err();
        assert_eq!(error.class(), class, "{error}");
    }
}

/// At a start the engine does not retry rows: the read itself is repeated.
#[test]
fn read_at_a_start_is_repeated_after_an_unusable_response() {
    let bucket = Bucket::impatient("s3");
    bucket.put("file", b"0123456789");
    let storage = bucket.open();
    let files = indexed(&storage, "file");
    let patience = Patience::at_first_start("train", Duration::from_secs(60), Clock::system());
    let patient = PatientStorage { storage: &storage, patience: &patience };
    for fault in [Fault::WholeForRange, Fault::Short(1), Fault::Longer(3), Fault::Close] {
        let mut fault = Some(fault);
        bucket.server.set_weather(move |_| fault.take().unwrap_or(Fault::None));
        let opened = patient.open(&files, part(2, Some(5))).unwrap();
        let mut buffer = b"before".to_vec();
        patient.read_opened(&files, opened, &mut buffer).unwrap();
        assert_eq!(buffer, b"before23456");
    }
    let denied = Fault::Status(403, None, String::new());
    bucket.server.set_weather(move |_| denied.clone());
    let opened = patient.open(&files, WHOLE).unwrap();
    let error = patient.read_opened(&files, opened, &mut Vec::new()).unwrap_err();
    assert_eq!(error.class(), RetryClass::Never);
}

#[test]
fn unreachable_server_is_asked_again() {
    let mut bucket = Bucket::impatient("s3");
    bucket.put("file", b"0123456789");
    let storage = bucket.open();
    let files = indexed(&storage, "file");
    bucket.server.close();
    let error = read(&storage, &files, WHOLE).unwrap_err();
    assert!(
        error.class() == RetryClass::Outage && error.to_string().contains("refused"),
        "{error}"
    );
    bucket.server.open();
    assert_eq!(read(&storage, &files, WHOLE).unwrap(), b"0123456789");
}

#[test]
fn closed_idle_connection_causes_no_error() {
    let mut bucket = Bucket::of("s3");
    bucket.put("file", b"0123456789");
    let storage = bucket.open();
    let files = indexed(&storage, "file");
    for _ in 0..20 {
        assert_eq!(read(&storage, &files, WHOLE).unwrap(), b"0123456789");
        bucket.server.close();
        bucket.server.open();
    }
}

#[test]
fn listings_survive_a_failing_page_and_end_if_pages_repeat() {
    let bucket = Bucket::impatient("s3");
    for number in 0..30 {
        bucket.put(&format!("{number:02}"), b"x");
    }
    let storage = bucket.open();
    let list = || {
        let mut names = Vec::new();
        let mut visit = |name: &[u8], _| names.push(String::from_utf8(name.to_vec()).unwrap());
        Directories::list(&storage, b"", &mut visit).map(|_| names)
    };
    let unavailable = Fault::Status(503, None, String::new());
    bucket.server.set_weather(move |request| {
        if request.number % 3 == 1 { unavailable.clone() } else { Fault::None }
    });
    let expected: Vec<_> = (0..30).map(|number| format!("{number:02}")).collect();
    assert_eq!(list().unwrap(), expected);
    let page = "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>same</NextContinuationToken>\
                </ListBucketResult>";
    bucket.server.set_weather(move |_| Fault::Status(200, None, page.to_owned()));
    let error = list().unwrap_err();
    assert!(error.to_string().contains("does not end"), "{error}");
    bucket.server.set_weather(|_| Fault::Endless);
    assert!(list().unwrap_err().to_string().contains("longer than its limit"));
}

#[test]
fn a_listing_leaves_a_long_pause_to_its_caller() {
    let bucket = Bucket::impatient("s3");
    bucket.put("a", b"x");
    let storage = bucket.open();
    bucket.server.set_weather(|_| Fault::Status(503, Some(60), String::new()));
    let before = bucket.server.requests();
    let error = Directories::list(&storage, b"", &mut |_, _| {}).unwrap_err();
    assert_eq!(bucket.server.requests() - before, 1, "it is not asked again");
    assert_eq!(
        (error.class(), error.retry_after()),
        (RetryClass::Outage, Some(Duration::from_secs(60)))
    );
}

#[test]
fn urls_without_objects_and_of_metadata_services_are_refused() {
    for scheme in ["s3", "http"] {
        let bucket = Bucket::of(scheme);
        bucket.put("data/x", b"x");
        let storage = bucket.try_open("nothing").unwrap();
        let error = Directories::list(&storage, b"", &mut |_, _| {}).unwrap_err();
        assert!(matches!(error, StorageError::Vanished { .. }), "{error}");
        assert!(error.to_string().contains("/nothing has vanished"), "{error}");
    }
    for url in ["http://169.254.169.254/latest/meta-data", "https://metadata.google.internal/x"] {
        let keys = forebay_keys::Section::default();
        let error = RemoteObjects::open(Path::new(url), &keys).unwrap_err();
        assert!(error.to_string().contains("never holds data"), "{error}");
        assert_eq!(error.class(), RetryClass::Never);
    }
}

#[test]
fn url_of_an_object_is_a_file_and_paths_are_relative_to_its_folder() {
    for scheme in ["s3", "http"] {
        let bucket = Bucket::of(scheme);
        bucket.put("array.npy", b"contents");
        let storage = bucket.try_open("data/array.npy").unwrap();
        assert!(Directories::root_is_file(&storage));
        let mut buffer = Vec::new();
        storage.read(&Paths::new(["array.npy"]), WHOLE, u64::MAX, &mut buffer).unwrap();
        assert_eq!(buffer, b"contents");
        bucket.put("v1.0/file", b"x");
        assert!(!Directories::root_is_file(&bucket.try_open("data/v1.0").unwrap()));
    }
}

#[test]
fn dropped_response_holds_no_resources() {
    let bucket = Bucket::of("http");
    bucket.put("file", &[7; 1 << 20]);
    let storage = bucket.open();
    let opened = storage.open(&Paths::new(["file"]), WHOLE).unwrap();
    assert_eq!(opened.length_bytes, 1 << 20);
    drop(opened);
    let mut buffer = Vec::new();
    storage.read(&Paths::new(["file"]), WHOLE, u64::MAX, &mut buffer).unwrap();
    assert_eq!(buffer, [7; 1 << 20]);
    assert!(matches!(
        storage.open(&Paths::new(["file"]), part(1, Some(0))).unwrap(),
        opened if opened.length_bytes == 0
    ));
}

#[test]
fn late_requests_are_hedged_within_the_budget() {
    const READS: u64 = 600;
    for scheme in ["s3", "http"] {
        let bucket = Bucket::of(scheme);
        let bytes: Vec<u8> = (0..5000_u32).flat_map(u32::to_le_bytes).collect();
        bucket.put("file", &bytes);
        let storage = bucket.open();
        // Less than the stall: without room in the budget the response is awaited.
        bucket.server.set_weather(|request| match request.number {
            number if number > 200 && number % 25 == 0 => Fault::Delay(Duration::from_millis(150)),
            _ => Fault::None,
        });
        let (files, mut buffer) = (Paths::new(["file"]), Vec::new());
        for _ in 0..READS {
            storage.read(&files, WHOLE, 1 << 20, &mut buffer).unwrap();
            assert_eq!(buffer, bytes);
        }
        let report = storage.properties().requests.unwrap().report();
        assert_eq!((report.num_requests, report.num_failures), (READS, 0));
        assert!((1..=READS / 20).contains(&report.num_hedges), "{}", report.line());
    }
}
