//! Responses that belong to another file, servers that refuse `HEAD`, and names that cannot be paths.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::scripted_server::{ScriptedServer, Step, answer};
use super::testing::{Fault, Server};
use super::{RemoteObjects, Storage};
use forebay_storage::conformance::Paths;
use forebay_storage::listing::{Directories, EntryKind};
use forebay_storage::location::{FileId, Location};
use forebay_storage::version::ObjectIdentity;

fn file(tag: &str, body: &str) -> Step {
    let length = body.len();
    answer(format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nETag: \"{tag}\"\r\n\r\n{body}"))
}

struct Site {
    server: ScriptedServer,
    storage: RemoteObjects,
    files: Paths,
}

impl Site {
    fn of(connections: Vec<Vec<Step>>) -> Self {
        let server = ScriptedServer::new(connections);
        let url = format!("http://127.0.0.1:{}/data", server.port);
        let storage = RemoteObjects::open(Path::new(&url), &<_>::default()).unwrap();
        Self { server, storage, files: Paths::new(["a", "b", "c"]) }
    }

    fn read(&self, number: u64) -> String {
        let mut buffer = Vec::new();
        let location = Location::whole(FileId(number));
        self.storage.read(&self.files, location, u64::MAX, &mut buffer).unwrap();
        String::from_utf8(buffer).unwrap()
    }
}

#[test]
fn repeated_response_is_not_matched_to_the_next_file() {
    let stray = || file("1", "bytes of a");
    let first = vec![file("1", "bytes of a"), stray(), Step::Hold];
    let site = Site::of(vec![first, vec![file("2", "bytes of b"), Step::Hold]]);
    assert_eq!([site.read(0), site.read(1)], ["bytes of a", "bytes of b"]);
    assert_eq!(site.server.counts(), [2, 1]);
}

/// Neither a tag nor a time: nothing could tell the two files' responses apart.
#[test]
fn connection_of_a_response_without_tag_and_time_is_not_used_again() {
    let bare = |body: &str| answer(format!("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{body}"));
    let first = vec![bare("bytes of a"), bare("bytes of a"), Step::Hold];
    let site = Site::of(vec![first, vec![bare("bytes of b"), Step::Hold]]);
    assert_eq!([site.read(0), site.read(1)], ["bytes of a", "bytes of b"]);
    assert_eq!(site.server.counts(), [1, 1]);
}

#[test]
fn response_that_differs_from_the_files_first_one_is_requested_again() {
    let answers = [("1", "bytes of a"), ("2", "bytes of b"), ("3", "bytes of c")];
    let mut first: Vec<_> = answers.iter().map(|(tag, body)| file(tag, body)).collect();
    // For the second file, late and after another response.
    first.extend([file("1", "bytes of a"), Step::Hold]);
    let second = vec![file("2", "bytes of b"), file("2", "bytes of b"), Step::Hold];
    let site = Site::of(vec![first, second]);
    let read = [0, 1, 2, 1, 1].map(|number| site.read(number));
    assert_eq!(read.map(|body| body.as_bytes()[9]), *b"abcbb");
    assert_eq!(site.server.counts(), [4, 2]);
}

#[test]
fn replaced_file_is_read_as_it_is_now() {
    let first = vec![file("1", "before"), file("2", "after"), Step::Hold];
    let second = vec![file("2", "after"), file("2", "after"), Step::Hold];
    let site = Site::of(vec![first, second]);
    assert_eq!([0, 0, 0].map(|number| site.read(number)), ["before", "after", "after"]);
    assert_eq!(site.server.counts(), [2, 2]);
}

#[test]
fn equal_headers_of_different_files_cause_one_repeated_request() {
    let same = |body| file("one second", body);
    let first = vec![same("bytes of a"), same("bytes of b"), Step::Hold];
    let second = vec![same("bytes of b"), same("bytes of c"), same("bytes of a"), Step::Hold];
    let site = Site::of(vec![first, second]);
    let read = [0, 1, 2, 0].map(|number| site.read(number));
    assert_eq!(read.map(|body| body.as_bytes()[9]), *b"abca");
    assert_eq!(site.server.counts(), [2, 3]);
}

fn shown(scheme: &str, folder: &Path) -> (Server, RemoteObjects) {
    let server = Server::of(folder);
    let url = server.url(scheme, "data");
    let storage = RemoteObjects::open(Path::new(&url), &server.keys(&url, None)).unwrap();
    (server, storage)
}

#[test]
fn sizes_and_tags_are_requested_by_get_if_head_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("data")).unwrap();
    fs::write(folder.path().join("data/file"), b"contents").unwrap();
    fs::write(folder.path().join("data/empty"), b"").unwrap();
    for status in [403, 405, 501] {
        let (server, storage) = shown("http", folder.path());
        let files = Paths::new(["file", "empty", "absent"]);
        let usual = storage.status(&files, FileId(0)).unwrap();
        assert!(matches!(&usual.identity, ObjectIdentity::Tag(tag) if !tag.is_empty()));
        for serves_parts in [true, false] {
            server.set_weather(move |request| match request.method.as_str() {
                "HEAD" => Fault::Status(status, None, String::new()),
                _ if !serves_parts => Fault::WholeForRange,
                _ => Fault::None,
            });
            let (_, storage) = (&server, &storage);
            assert_eq!(storage.status(&files, FileId(0)).unwrap(), usual);
            assert_eq!(storage.status(&files, FileId(1)).unwrap().bytes, 0);
            storage.status(&files, FileId(2)).unwrap_err();
        }
        // `HEAD` is not tried again.
        let before = server.requests();
        server.set_weather(|request| {
            assert_ne!(request.method, "HEAD");
            Fault::None
        });
        storage.status(&files, FileId(0)).unwrap();
        assert_eq!(server.requests(), before + 1);
    }
}

fn listed(storage: &RemoteObjects, folder: &[u8]) -> Vec<(Vec<u8>, bool)> {
    let mut found = Vec::new();
    let mut visit = |name: &[u8], kind| found.push((name.to_vec(), kind == EntryKind::Directory));
    storage.list(folder, &mut visit).unwrap();
    found.sort();
    found
}

#[test]
fn unusable_keys_hide_no_other_entries() {
    let folder = tempfile::tempdir().unwrap();
    let contents = |key| {
        format!(
            "<Contents><Key>{key}</Key><LastModified>2015-10-21T07:28:00.000Z</LastModified>\
                                  <ETag>&quot;1&quot;</ETag><Size>1</Size></Contents>"
        )
    };
    let page = format!(
        "<?xml version=\"1.0\"?><ListBucketResult>{}{}<CommonPrefixes><Prefix>data//</Prefix></CommonPrefixes>\
         <CommonPrefixes><Prefix>data/c/</Prefix></CommonPrefixes></ListBucketResult>",
        contents("data/a"),
        contents("data/../b"),
    );
    for scheme in ["s3", "gs"] {
        let (server, storage) = shown(scheme, folder.path());
        let page = page.clone();
        server.set_weather(move |_| Fault::Status(200, None, page.clone()));
        assert_eq!(listed(&storage, b""), [(b"a".to_vec(), false), (b"c".to_vec(), true)]);
    }
}

#[test]
fn names_that_are_not_utf8_are_listed_and_read() {
    let folder = tempfile::tempdir().unwrap();
    let names: [&[u8]; 3] = [b"plain", b"\xff.npy", "\u{10ffff}".as_bytes()];
    let below = folder.path().join("data").join(OsStr::from_bytes(b"c\xfe"));
    fs::create_dir_all(&below).unwrap();
    for name in names {
        fs::write(below.join(OsStr::from_bytes(name)), name).unwrap();
    }
    let (_server, storage) = shown("http", folder.path());
    assert_eq!(listed(&storage, b""), [(b"c\xfe".to_vec(), true)]);
    let mut expected = names.map(|name| (name.to_vec(), false));
    expected.sort();
    assert_eq!(listed(&storage, b"c\xfe"), expected);
    for name in names {
        let path = [b"c\xfe/", name].concat();
        let files = OneFile(path.clone());
        let mut buffer = Vec::new();
        storage.read(&files, Location::whole(FileId(0)), u64::MAX, &mut buffer).unwrap();
        assert_eq!(buffer, name);
        assert_eq!(storage.status(&files, FileId(0)).unwrap().bytes, name.len() as u64);
        assert!(storage.full_path(&path).as_os_str().as_bytes().ends_with(&path));
    }
}

#[derive(Debug)]
struct OneFile(Vec<u8>);

impl forebay_storage::location::FileTable for OneFile {
    fn append_path(&self, _file: FileId, path: &mut Vec<u8>) {
        path.extend_from_slice(&self.0);
    }
}
