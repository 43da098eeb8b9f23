//! Requests for files, over servers that send exact bytes: links that move, expire and lead elsewhere, pauses and turns.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use http::header::RETRY_AFTER;
use http::{HeaderMap, StatusCode};
use object_store::GetOptions;
use object_store::client::{HttpClient, HttpError, HttpRequest, HttpResponse, HttpService};
use object_store::path::Path as Key;

use super::limits::{Service, note};
use super::{HubClient, Repository, RepositoryName};
use crate::RemoteObjects;
use crate::keys::RemoteKeys;
use crate::pace::Pace;
use crate::scripted_server::{ScriptedServer, Step, answer};
use crate::trace::Trace;
use forebay_keys::{Section, Value};
use forebay_storage::error::StorageError;
use forebay_storage::location::{FileId, FileTable, Location};
use forebay_storage::version::ObjectStamp;
use forebay_storage::{RetryClass, Storage};

const COMMIT: &str = "0123456789012345678901234567890123456789";

/// The files `a` and `b`, as the listing has them.
#[derive(Debug)]
struct Files;

const NAMES: [&str; 2] = ["a", "b"];
const BODIES: [&str; 2] = ["bytes of a", "bytes of b"];

impl FileTable for Files {
    fn append_path(&self, file: FileId, path: &mut Vec<u8>) {
        path.extend_from_slice(NAMES[usize::try_from(file.0).unwrap()].as_bytes());
    }

    fn stamp(&self, file: FileId) -> Option<ObjectStamp> {
        let place = usize::try_from(file.0).unwrap();
        let tag = format!("hash of {}", NAMES[place]);
        Some(ObjectStamp::new(BODIES[place].len() as u64, Some(&tag)))
    }
}

/// A file, as a storage host sends it.
fn body(tag: &str, place: usize) -> Step {
    let body = BODIES[place];
    let length = body.len();
    answer(format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nETag: \"{tag}\"\r\n\r\n{body}"))
}

fn status(status: u16, headers: &str) -> Step {
    answer(format!("HTTP/1.1 {status} X\r\nContent-Length: 0\r\n{headers}\r\n"))
}

/// A redirect to a signed link.
fn link(storage: &ScriptedServer, place: usize, signature: u32) -> Step {
    let (port, name) = (storage.port, NAMES[place]);
    status(
        302,
        &format!(
            "Location: http://127.0.0.1:{port}/{signature}/{name}?x=y\r\nX-Linked-ETag: \"hash of {name}\"\r\n\
             X-Linked-Size: 10\r\n"
        ),
    )
}

/// The dataset's folder of the files, at this endpoint.
fn open(endpoint: &ScriptedServer) -> RemoteObjects {
    let url = format!("hf://datasets/lab/cats@{COMMIT}/data");
    let endpoint = format!("http://127.0.0.1:{}", endpoint.port);
    let variable = |name: &str| (name == "HF_ENDPOINT").then(|| endpoint.clone().into());
    RemoteObjects::open_in(Path::new(&url), &Section::default(), &variable).unwrap()
}

fn read(storage: &RemoteObjects, place: u64) -> Result<String, StorageError> {
    let mut buffer = Vec::new();
    storage.read(&Files, Location::whole(FileId(place)), u64::MAX, &mut buffer)?;
    Ok(String::from_utf8(buffer).unwrap())
}

#[test]
fn link_that_is_signed_anew_may_lead_to_a_host_with_other_tags() {
    let steps = vec![body("m1", 0), status(403, ""), body("m2", 0), body("m2", 0), Step::Hold];
    let host = ScriptedServer::new(vec![steps]);
    let endpoint =
        ScriptedServer::new(vec![vec![link(&host, 0, 1), link(&host, 0, 2), Step::Hold]]);
    let storage = open(&endpoint);
    for _ in 0..3 {
        assert_eq!(read(&storage, 0).unwrap(), BODIES[0]);
    }
    assert_eq!((endpoint.counts(), host.counts()), (vec![2], vec![4]));
}

#[test]
fn repeated_response_is_not_taken_for_the_first_of_the_next_file() {
    let first = vec![body("m1", 0), body("m1", 0), Step::Hold];
    let host = ScriptedServer::new(vec![first, vec![body("m2", 1), body("m2", 1), Step::Hold]]);
    let endpoint =
        ScriptedServer::new(vec![vec![link(&host, 0, 1), link(&host, 1, 1), Step::Hold]]);
    let storage = open(&endpoint);
    assert_eq!(
        [0, 1, 1].map(|place| read(&storage, place).unwrap()),
        ["bytes of a", "bytes of b", "bytes of b"]
    );
    assert_eq!((endpoint.counts(), host.counts()), (vec![2], vec![2, 2]));
}

#[test]
fn kept_link_at_the_endpoint_that_begins_to_redirect_is_resolved_anew() {
    let moved = || status(307, "Location: /datasets/lab/dogs/resolve/x/data/a\r\n");
    let own = || body("hash of a", 0);
    let steps = vec![own(), moved(), moved(), own(), own(), Step::Hold];
    let endpoint = ScriptedServer::new(vec![steps]);
    let storage = open(&endpoint);
    for _ in 0..3 {
        assert_eq!(read(&storage, 0).unwrap(), BODIES[0]);
    }
    let asked = endpoint.asked().concat();
    let is_moved: Vec<_> = asked.iter().map(|request| request.contains("/dogs/")).collect();
    assert_eq!(is_moved, [false, false, false, true, true]);
}

#[test]
fn redirect_without_a_location_is_refused_at_once() {
    for headers in ["", "Location: \r\n", "Location: \u{e4}\r\n"] {
        let endpoint = ScriptedServer::new(vec![vec![status(302, headers), Step::Hold]]);
        let storage = open(&endpoint);
        let error = read(&storage, 0).unwrap_err();
        assert_eq!(error.class(), RetryClass::Never, "{error}");
        assert!(error.to_string().contains("without a usable header Location"), "{error}");
        assert_eq!(endpoint.counts(), [1]);
    }
}

/// Counts requests.
#[derive(Debug, Clone, Default)]
struct Counter(Arc<AtomicU64>);

#[async_trait]
impl HttpService for Counter {
    async fn call(&self, _request: HttpRequest) -> Result<HttpResponse, HttpError> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Ok(HttpResponse::new(bytes::Bytes::new().into()))
    }
}

#[test]
fn request_that_waits_for_its_turn_is_not_sent_in_a_pause_that_begins_meanwhile() {
    let (name, _) = RepositoryName::parse("datasets/lab/cats").unwrap();
    let server = "127.0.0.1:1";
    let variable = |name: &str| (name == "HF_ENDPOINT").then(|| format!("http://{server}").into());
    let repository = Arc::new(Repository::new(name, true, variable).unwrap());
    let counter = Counter::default();
    // The second request waits a second for its turn.
    let pace = Some(Pace::of("test-of-pauses", 1.0));
    let hub = HubClient::new(HttpClient::new(counter.clone()), repository, pace);
    let key = Key::from("a");
    let ask = || async {
        let (result, trace) = Trace::of(u64::MAX, hub.get_opts(&key, GetOptions::default())).await;
        (result.is_ok(), trace.refusal.map(|refusal| refusal.what).unwrap_or_default())
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        ask().await;
        assert_eq!(counter.0.load(Ordering::SeqCst), 1);
        let begin = async {
            let headers = HeaderMap::from_iter([(RETRY_AFTER, "100".parse().unwrap())]);
            note(server, Service::Files, StatusCode::TOO_MANY_REQUESTS, &headers);
        };
        let ((is_ok, what), ()) = futures_util::future::join(ask(), begin).await;
        assert!(!is_ok && what.contains("allows no requests for"), "{what}");
    });
    assert_eq!(counter.0.load(Ordering::SeqCst), 1);
}

#[test]
fn repositories_of_an_endpoint_share_its_turns() {
    let keys = vec![("requests_per_second".to_owned(), Value::Float(1.0).into())];
    let section = Section::new("storage", Value::Table(keys).into(), Path::new("/")).unwrap();
    let keys = RemoteKeys::of(&section).unwrap();
    let pace = |url: &str, endpoint: &str| {
        let address = crate::address::Address::parse(url).unwrap();
        let variable = |name: &str| (name == "HF_ENDPOINT").then(|| endpoint.into());
        crate::stores::Stores::new(&address, &keys, &variable).unwrap().pace_of_hub().unwrap()
    };
    let (one, other) = ("http://127.0.0.1:2", "http://127.0.0.1:3");
    let cats = pace("hf://datasets/lab/cats/x", one);
    assert!(cats.shares_turns_of(&pace("hf://buckets/lab/box", &format!("{one}/"))));
    assert!(!cats.shares_turns_of(&pace("hf://datasets/lab/cats/x", other)));
}
