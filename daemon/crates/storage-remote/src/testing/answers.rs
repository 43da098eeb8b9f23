//! The server's responses for a folder: objects, parts of objects, listings as S3 and Google send them and as a page.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use crate::names::bytes_of;

/// A request, as passed to the function that chooses its fault.
#[derive(Debug, Clone)]
pub struct Request {
    /// Such as `GET`.
    pub method: String,
    /// Decoded, without the query; bytes that are not UTF-8 as characters of a private plane.
    pub path: String,
    /// Decoded.
    pub query: HashMap<String, String>,
    /// Names in lower case.
    pub headers: HashMap<String, String>,
    /// Counted from 0 over all connections.
    pub number: u64,
}

impl Request {
    /// Whether a folder is listed.
    #[must_use]
    pub fn is_listing(&self) -> bool {
        self.query.contains_key("list-type") || self.path.ends_with('/')
    }
}

/// A response; `headers` are whole lines.
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) headers: String,
    pub(super) body: Vec<u8>,
}

const MODIFIED: &str = "Last-Modified: Wed, 21 Oct 2015 07:28:00 GMT\r\n";

/// Answers a request for a path below the folder `root`. `page`: entries per page of a listing.
pub(super) fn answer(root: &Path, request: &Request, page: usize) -> Answer {
    let path = request.path.trim_start_matches('/');
    let query = |name: &str| request.query.get(name).map_or("", String::as_str);
    if request.query.contains_key("list-type") {
        let token = query("continuation-token").parse().unwrap_or(0);
        return xml(s3_listing(&entries(root, query("prefix")), query("prefix"), token, page));
    }
    if let Some(folder) = path.strip_prefix("api/buckets/lab/bucket/tree") {
        return hub_page(root, folder.trim_start_matches('/'), request, page);
    }
    if let Some(key) = path.strip_prefix("buckets/lab/bucket/resolve/") {
        return hub_link(root, key, request);
    }
    if let Some((hash, key)) = path.strip_prefix("xet/").and_then(|path| path.split_once('/')) {
        let is_current = std::fs::read(root.join(key)).is_ok_and(|bytes| tag(&bytes) == hash);
        let range = request.headers.get("range").map(String::as_str);
        let refused = Answer { status: 403, headers: String::new(), body: vec![] };
        return if is_current { object(root, key, range) } else { refused };
    }
    // A bucket is part of the path; a web site has none.
    let key = path.strip_prefix("bucket/").unwrap_or(path);
    if path.is_empty() || path.ends_with('/') {
        return web_page(root, key);
    }
    if key == path && root.join(key).is_dir() {
        let headers = format!("Location: {}/\r\n", request.path);
        return Answer { status: 301, headers, body: vec![] };
    }
    object(root, key, request.headers.get("range").map(String::as_str))
}

/// As [`answer`], with repeated entries.
pub(super) fn repeating(root: &Path, request: &Request, page: usize) -> Answer {
    let mut request = request.clone();
    let names = ["continuation-token", "cursor"];
    let name = names.into_iter().find(|name| request.query.contains_key(*name));
    if let Some(token) = name.and_then(|name| request.query.get_mut(name)) {
        let start: usize = token.parse().unwrap_or(0);
        *token = start.saturating_sub(1).to_string();
        return answer(root, &request, page + 1);
    }
    let mut answer = answer(root, &request, page);
    if request.path.ends_with('/') {
        answer.body = answer.body.repeat(2);
    }
    answer
}

/// A page of the hub's recursive listing of a folder.
fn hub_page(root: &Path, folder: &str, request: &Request, page: usize) -> Answer {
    let (mut listed, mut waiting) = (Vec::new(), vec![format!("{folder}/")]);
    while let Some(prefix) = waiting.pop() {
        for (path, bytes) in entries(root, prefix.trim_start_matches('/')) {
            let name = path.trim_end_matches('/');
            match bytes {
                Some(bytes) => listed.push(serde_json::json!({
                    "type": "file", "path": name, "size": bytes.len(), "xetHash": tag(&bytes),
                })),
                None => {
                    listed.push(serde_json::json!({ "type": "directory", "path": name }));
                    waiting.push(path);
                }
            }
        }
    }
    if listed.is_empty() {
        let headers = "X-Error-Code: EntryNotFound\r\n".to_owned();
        return Answer { status: 404, headers, body: vec![] };
    }
    let start: usize = request.query.get("cursor").map_or(0, |text| text.parse().unwrap_or(0));
    let end = (start + page).min(listed.len());
    let next = (end < listed.len())
        .then(|| format!("Link: <?recursive=true&cursor={end}>; rel=\"next\"\r\n"));
    let body = serde_json::to_vec(&listed[start.min(end)..end]).unwrap();
    Answer { status: 200, headers: next.unwrap_or_default(), body }
}

/// The hub's redirect to a file's storage, which has another name of this machine.
fn hub_link(root: &Path, key: &str, request: &Request) -> Answer {
    let Ok(bytes) = std::fs::read(root.join(key)) else {
        let headers = "X-Error-Code: EntryNotFound\r\n".to_owned();
        return Answer { status: 404, headers, body: vec![] };
    };
    let port = request.headers.get("host").and_then(|host| host.split_once(':')).unwrap().1;
    let mut url = url::Url::parse(&format!("http://localhost:{port}")).unwrap();
    let hash = tag(&bytes);
    url.path_segments_mut().unwrap().extend(["xet", &hash]).extend(key.split('/'));
    let length = bytes.len();
    let headers =
        format!("Location: {url}?sig=a+b\r\nX-Xet-Hash: {hash}\r\nX-Linked-Size: {length}\r\n");
    Answer { status: 302, headers, body: vec![] }
}

fn xml(body: String) -> Answer {
    let headers = "Content-Type: application/xml\r\n".to_owned();
    Answer { status: 200, headers, body: body.into_bytes() }
}

fn tag(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex()[..16].to_owned()
}

fn object(root: &Path, key: &str, range: Option<&str>) -> Answer {
    let leads_out = key.split('/').any(|part| part == "..");
    let path = root.join(OsString::from_vec(bytes_of(key)));
    let Some(bytes) = std::fs::read(path).ok().filter(|_| !leads_out) else {
        let body = b"<Error><Code>NoSuchKey</Code><Message>no such key</Message></Error>".to_vec();
        let headers = "x-amz-request-id: 4442587F\r\n".to_owned();
        return Answer { status: 404, headers, body };
    };
    let tag = format!("ETag: \"{}\"\r\n", tag(&bytes));
    let headers = format!("{MODIFIED}{tag}x-amz-request-id: 4442587F\r\n");
    let bounds = range.and_then(|range| range.strip_prefix("bytes=")?.split_once('-'));
    let Some((start, end)) = bounds else { return Answer { status: 200, headers, body: bytes } };
    let start: usize = start.parse().unwrap_or(usize::MAX);
    let end = end.parse().map_or(bytes.len(), |last: usize| bytes.len().min(last + 1));
    if start >= bytes.len() {
        let headers = format!("{headers}Content-Range: bytes */{}\r\n", bytes.len());
        return Answer { status: 416, headers, body: vec![] };
    }
    let range = format!("Content-Range: bytes {start}-{}/{}\r\n", end - 1, bytes.len());
    Answer { status: 206, headers: headers + &range, body: bytes[start..end].to_vec() }
}

/// Full names below a prefix that ends with a slash; folders have an entry, too, without bytes.
fn entries(root: &Path, prefix: &str) -> Vec<(String, Option<Vec<u8>>)> {
    let mut found = BTreeMap::new();
    let folder = root.join(prefix);
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = format!("{prefix}{}", entry.file_name().to_str().unwrap());
        if entry.path().is_dir() {
            found.insert(format!("{name}/"), None);
        } else {
            found.insert(name, std::fs::read(entry.path()).ok());
        }
    }
    found.into_iter().collect()
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}

type Entries = [(String, Option<Vec<u8>>)];

fn s3_listing(entries: &Entries, prefix: &str, start: usize, page: usize) -> String {
    let end = entries.len().min(start + page);
    let parts = entries[start.min(end)..end].iter().map(|(name, bytes)| match bytes {
        Some(bytes) => format!(
            "<Contents><Key>{}</Key><LastModified>2015-10-21T07:28:00.000Z</LastModified><ETag>&quot;{}&quot;</ETag>\
             <Size>{}</Size></Contents>",
            escape(name),
            tag(bytes),
            bytes.len()
        ),
        None => format!("<CommonPrefixes><Prefix>{}</Prefix></CommonPrefixes>", escape(name)),
    });
    let parts: String = parts.collect();
    let next = if end < entries.len() {
        format!("<NextContinuationToken>{end}</NextContinuationToken>")
    } else {
        String::new()
    };
    format!(
        "<?xml version=\"1.0\"?><ListBucketResult><Name>bucket</Name><Prefix>{}</Prefix><IsTruncated>{}</IsTruncated>\
         {next}{parts}</ListBucketResult>",
        escape(prefix),
        end < entries.len()
    )
}

/// A page as nginx sends it.
fn web_page(root: &Path, folder: &str) -> Answer {
    let folder = folder.trim_end_matches('/');
    let Ok(entries) = std::fs::read_dir(root.join(OsString::from_vec(bytes_of(folder)))) else {
        return Answer { status: 404, headers: String::new(), body: vec![] };
    };
    let mut links = vec!["<a href=\"../\">../</a>".to_owned()];
    for entry in entries.flatten() {
        let slash = if entry.path().is_dir() { "/" } else { "" };
        let name = entry.file_name();
        let encoded: String = name
            .as_bytes()
            .iter()
            .map(|byte| match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-' | b'_' => {
                    char::from(*byte).to_string()
                }
                byte => format!("%{byte:02X}"),
            })
            .collect();
        links.push(format!("<a href=\"{encoded}{slash}\">{}</a>", name.display()));
    }
    let body = format!("<html><body><pre>{}</pre></body></html>", links.join("\n"));
    Answer {
        status: 200,
        headers: "Content-Type: text/html\r\n".to_owned(),
        body: body.into_bytes(),
    }
}
