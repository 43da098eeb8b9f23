//! The requests of one thread to the hub: files, pages of listings, and a revision's commit.
//!
//! A file's request goes to the endpoint, or with a known link to where the link leads:
//! ```text
//! link unknown ──ask the endpoint──► it sends the file, or a link ──ask the link's host──► it sends the file
//! link known   ──ask the link's host──► it sends the file, or refuses: the link has expired and is forgotten; once more
//!                                       (the endpoint redirects instead, if the repository has a new name now)
//! ```
//! Only the endpoint gets the token.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::StreamExt;
use http::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, ETAG,
    LOCATION, RANGE,
};
use http::{HeaderMap, Method, StatusCode, Uri};
use object_store::client::{HttpClient, HttpRequest, HttpRequestBody, HttpResponse};
use object_store::path::Path as Key;
use object_store::{
    Attribute, Attributes, Error, GetOptions, GetRange, GetResult, GetResultPayload, ObjectMeta,
};
use serde::Deserialize;
use url::Url;

use super::limits::{self, Service};
use super::links::Link;
use super::name::{Kind, is_commit};
use super::repository::Repository;
use super::tree::next_page;
use crate::client::{AsGiven, shown};
use crate::pace::Pace;
use crate::trace::{Refusal, Trace};
use forebay_storage::error::RetryClass;

/// The most redirects from the endpoint to itself, as for a repository with a new name.
const MAX_REDIRECTS: usize = 5;

/// The most links that a read tries: another thread's link may expire in between.
const MAX_LINKS_TRIED: u32 = 3;

/// See the module's head.
#[derive(Debug, Clone)]
pub(crate) struct HubClient {
    http: HttpClient,
    repository: Arc<Repository>,
    /// Spreads the requests over time, if that is configured. The turn is taken here, before the last look at the pauses.
    pace: Option<Arc<Pace>>,
}

/// A page of a listing, and the URL of the next one.
pub(crate) type Page = (Bytes, Option<String>);

/// What the endpoint says of a file, in the responses from the first to the last redirect.
#[derive(Debug, Default)]
struct Said {
    bytes: Option<u64>,
    tag: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Revision {
    sha: String,
}

/// The error of a call whose words are in the trace.
fn failed(what: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::Generic { store: "hub", source: what.into() }
}

/// Ends a call with these words.
fn refused(what: String, class: RetryClass) -> Error {
    let error = failed(what.clone());
    Trace::update(|trace| trace.refusal = Some(Refusal { what, class, retry_after: None }));
    error
}

/// Ends a call while the server allows no requests.
fn refuse_in_pause(server: &str, service: Service) -> Result<(), Error> {
    let Some(left) = limits::left(server, service) else { return Ok(()) };
    let what = format!(
        "{server} allows no requests for {} s more: a rate limit is reached",
        left.as_secs() + 1
    );
    let error = failed(what.clone());
    let refusal = Refusal { what, class: RetryClass::Outage, retry_after: Some(left) };
    Trace::update(|trace| {
        let limit_bytes = trace.limit_bytes;
        *trace = Trace { limit_bytes, refusal: Some(refusal), ..Trace::default() };
    });
    Err(error)
}

fn text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name)?.to_str().ok()
}

fn number(headers: &HeaderMap, name: &str) -> Option<u64> {
    text(headers, name)?.trim().parse().ok()
}

/// Where a redirect leads.
fn location_of(headers: &HeaderMap) -> Result<&str, Error> {
    let location = text(headers, LOCATION.as_str()).filter(|location| !location.trim().is_empty());
    let what = "it redirects without a usable header Location: is HF_ENDPOINT the hub?";
    location.ok_or_else(|| refused(what.to_owned(), RetryClass::Never))
}

/// Whether a kept link no longer works. Storage hosts differ in the status for a signature that has expired.
fn is_stale(status: StatusCode) -> bool {
    matches!(status.as_u16(), 400 | 401 | 403 | 404 | 410)
}

impl HubClient {
    pub(crate) const fn new(
        http: HttpClient,
        repository: Arc<Repository>,
        pace: Option<Arc<Pace>>,
    ) -> Self {
        Self { http, repository, pace }
    }

    /// A file or a part of it; with `head` only its size and tag.
    ///
    /// # Errors
    /// There is no usable response; the trace says why.
    pub(crate) async fn get_opts(
        &self,
        key: &Key,
        options: GetOptions,
    ) -> Result<GetResult, Error> {
        let slot = self.repository.links.slot(key.as_ref());
        let range = options.range.as_ref();
        for tries in 1.. {
            let mut held = slot.link.lock().await;
            // A file of a commit never changes; one of a bucket may have changed since its link was made.
            let may_be_known = !options.head || self.repository.has_revisions();
            let known = held.clone().filter(|_| may_be_known);
            let (link, answer) = match known.clone() {
                Some(link) => (link, None),
                None => {
                    let method = if options.head { Method::HEAD } else { Method::GET };
                    let (link, answer) = self.resolve(key, method, range).await?;
                    (slot.know(&mut held, link), answer)
                }
            };
            drop(held);
            if options.head
                && let Some(bytes) = link.bytes
            {
                return Ok(result_of(key, bytes, 0..0, link.tag.clone(), None));
            }
            let first_byte = GetRange::Bounded(0..1);
            let range = if options.head { Some(&first_byte) } else { range };
            let response = match answer.filter(|_| !options.head) {
                Some(response) => response,
                None => {
                    self.ask(Service::Files, Method::GET, &link.url, range, link.is_own).await?
                }
            };
            let status = response.status();
            let has_moved = link.is_own && status.is_redirection();
            if (is_stale(status) || has_moved) && known.is_some() && tries < MAX_LINKS_TRIED {
                slot.forget(&link).await;
                continue;
            }
            return self.finish(key, response, range, &link);
        }
        unreachable!("the last try returns")
    }

    /// Asks the endpoint where a file is. If it sends the file itself, the response is returned, too.
    async fn resolve(
        &self,
        key: &Key,
        method: Method,
        range: Option<&GetRange>,
    ) -> Result<(Link, Option<HttpResponse>), Error> {
        let endpoint = &self.repository.endpoint;
        let mut url = self.repository.file_url(key.as_ref());
        let mut said = Said::default();
        for _ in 0..MAX_REDIRECTS {
            let response =
                self.ask(Service::Files, method.clone(), url.as_str(), range, true).await?;
            let (status, headers) = (response.status(), response.headers());
            said.add(headers, self.repository.name.kind);
            if !status.is_redirection() {
                if !status.is_success() {
                    self.refuse(&response, true);
                    return Err(failed("refused"));
                }
                if method == Method::HEAD {
                    said.bytes = said.bytes.or_else(|| number(headers, CONTENT_LENGTH.as_str()));
                }
                said.tag = said.tag.or_else(|| text(headers, ETAG.as_str()).map(str::to_owned));
                return Ok((said.link(url.to_string(), true), Some(response)));
            }
            let location = location_of(headers)?;
            let Ok(target) = url.join(location) else {
                return Err(refused(
                    "it redirects to what is no URL".to_owned(),
                    RetryClass::Never,
                ));
            };
            if endpoint.is_own(&target) {
                url = target;
                continue;
            }
            if let Some(why) = endpoint.refusal(&target) {
                return Err(refused(why, RetryClass::Never));
            }
            // The signature belongs to the URL as it was sent.
            let is_whole = Uri::try_from(location).is_ok_and(|uri| names_host_of(&uri, &target));
            let exact = if is_whole { location.to_owned() } else { target.to_string() };
            return Ok((said.link(exact, false), None));
        }
        Err(refused("it redirects in a circle".to_owned(), RetryClass::Never))
    }

    /// Makes one request, unless the server has asked for a pause.
    async fn ask(
        &self,
        service: Service,
        method: Method,
        url: &str,
        range: Option<&GetRange>,
        is_own: bool,
    ) -> Result<HttpResponse, Error> {
        let uri = Uri::try_from(url).map_err(|error| failed(error.to_string()))?;
        let server = uri.authority().map(ToString::to_string).unwrap_or_default();
        refuse_in_pause(&server, service)?;
        if let Some(pace) = &self.pace {
            pace.turn().await;
            // A pause may have begun meanwhile.
            refuse_in_pause(&server, service)?;
        }
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        *request.method_mut() = method;
        *request.uri_mut() = uri;
        request.extensions_mut().insert(AsGiven);
        let headers = request.headers_mut();
        headers.insert(ACCEPT_ENCODING, http::HeaderValue::from_static("identity"));
        if let Some(range) = range {
            let value = http::HeaderValue::try_from(range.to_string());
            headers.insert(RANGE, value.map_err(|error| failed(error.to_string()))?);
        }
        if is_own && let Some(token) = self.repository.token() {
            headers.insert(AUTHORIZATION, token.header().clone());
        }
        let response =
            self.http.execute(request).await.map_err(|error| failed(error.to_string()))?;
        limits::note(&server, service, response.status(), response.headers());
        if let Some(pause) = limits::left(&server, service) {
            Trace::update(|trace| trace.retry_after = Some(pause));
        }
        Ok(response)
    }

    /// Records the words for a response that is no success.
    fn refuse(&self, response: &HttpResponse, is_own: bool) {
        let status = response.status();
        let code = text(response.headers(), "x-error-code").map(shown).filter(|_| is_own);
        let message = text(response.headers(), "x-error-message").map(shown).filter(|_| is_own);
        let sentence = match is_own {
            true => self.repository.refusal(status, code.as_deref().unwrap_or_default()),
            false if is_stale(status) => Some((
                format!(
                    "the hub's storage refuses a link that the hub has just signed, with {}",
                    status.as_u16()
                ),
                RetryClass::Outage,
            )),
            false => None,
        };
        Trace::update(|trace| {
            trace.refusal =
                sentence.map(|(what, class)| Refusal { what, class, retry_after: None });
            trace.code = trace.code.take().or(code);
            trace.message = trace.message.take().or(message);
        });
    }

    /// The result of a response with a file.
    fn finish(
        &self,
        key: &Key,
        response: HttpResponse,
        range: Option<&GetRange>,
        link: &Link,
    ) -> Result<GetResult, Error> {
        let (status, headers) = (response.status(), response.headers());
        if status.is_redirection() {
            let why = "the hub's storage redirects once more, which is not followed";
            return Err(refused(why.to_owned(), RetryClass::File));
        }
        if !status.is_success() {
            self.refuse(&response, link.is_own);
            return Err(failed("refused"));
        }
        let (got, bytes) = match (status, range) {
            (StatusCode::PARTIAL_CONTENT, Some(_)) => {
                let text = text(headers, CONTENT_RANGE.as_str()).unwrap_or_default();
                part_of(text).ok_or_else(|| failed("the response's Content-Range is malformed"))?
            }
            (StatusCode::OK, None) => {
                let bytes = number(headers, CONTENT_LENGTH.as_str())
                    .ok_or_else(|| failed("the response has no Content-Length"))?;
                (0..bytes, bytes)
            }
            _ => {
                return Err(failed(format!(
                    "status {} for a request of that kind",
                    status.as_u16()
                )));
            }
        };
        let is_as_asked = match range {
            Some(GetRange::Bounded(range)) => got.start == range.start && got.end <= range.end,
            Some(GetRange::Offset(offset)) => got.start == *offset && got.end == bytes,
            Some(GetRange::Suffix(_)) | None => true,
        };
        if !is_as_asked {
            return Err(failed("the response has another range than was asked for"));
        }
        let tag = self.tag_of(headers, link);
        let mut result = result_of(key, bytes, got, tag, text(headers, CONTENT_ENCODING.as_str()));
        let stream = response.into_body().bytes_stream();
        let stream = stream.map(|chunk| chunk.map_err(|error| failed(error.to_string())));
        result.payload = GetResultPayload::Stream(stream.boxed());
        Ok(result)
    }

    /// The file's tag as the listing has it; another one if the response may belong to another file.
    fn tag_of(&self, headers: &HeaderMap, link: &Link) -> Option<String> {
        let own = text(headers, ETAG.as_str());
        if link.is_own {
            let mut said = Said::default();
            said.add(headers, self.repository.name.kind);
            return said.tag.or_else(|| own.map(str::to_owned));
        }
        let about = |trace: &mut Trace| {
            let answered = trace.answered.as_ref()?;
            Some((answered.is_first, answered.repeats_last))
        };
        let (is_first, repeats_last) = Trace::update(about).flatten().unwrap_or((true, false));
        link.tag_of(own, is_first, repeats_last)
    }

    /// The present commit of the revision that the URL names.
    ///
    /// # Errors
    /// There is no usable response; the trace says why.
    pub(crate) async fn commit(&self) -> Result<String, Error> {
        let url = self.repository.revision_url();
        let (body, _) = self.api(url.as_str()).await?;
        let revision: Revision =
            serde_json::from_slice(&body).map_err(|error| failed(error.to_string()))?;
        Some(revision.sha)
            .filter(|sha| is_commit(sha))
            .ok_or_else(|| failed("the response has no commit"))
    }

    /// A page of a listing.
    ///
    /// # Errors
    /// There is no usable response; the trace says why.
    pub(crate) async fn page(&self, url: &str) -> Result<Page, Error> {
        let (body, headers) = self.api(url).await?;
        let Some(next) = next_page(&headers) else { return Ok((body, None)) };
        let next = Url::parse(url)
            .and_then(|url| url.join(next))
            .map_err(|error| failed(error.to_string()))?;
        if !self.repository.endpoint.is_own(&next) {
            let host = next.host_str().unwrap_or_default();
            let what =
                format!("the next page of its listing is at {host}, which is not the endpoint");
            return Err(refused(what, RetryClass::Never));
        }
        Ok((body, Some(next.to_string())))
    }

    /// A response of the hub's API.
    async fn api(&self, url: &str) -> Result<(Bytes, HeaderMap), Error> {
        let mut url = url.to_owned();
        for _ in 0..MAX_REDIRECTS {
            let response = self.ask(Service::Api, Method::GET, &url, None, true).await?;
            let status = response.status();
            if status.is_redirection() {
                let location = location_of(response.headers())?;
                let target = Url::parse(&url).and_then(|url| url.join(location)).ok();
                match target.filter(|target| self.repository.endpoint.is_own(target)) {
                    Some(target) => url = target.to_string(),
                    None => {
                        let what = "its API redirects to another server, which is not followed";
                        return Err(refused(what.to_owned(), RetryClass::Never));
                    }
                }
                continue;
            }
            if !status.is_success() {
                self.refuse(&response, true);
                return Err(failed("refused"));
            }
            let headers = response.headers().clone();
            let body =
                response.into_body().bytes().await.map_err(|error| failed(error.to_string()))?;
            return Ok((body, headers));
        }
        Err(refused("its API redirects in a circle".to_owned(), RetryClass::Never))
    }
}

impl Said {
    fn add(&mut self, headers: &HeaderMap, kind: Kind) {
        let tag = match kind {
            Kind::Dataset => text(headers, "x-linked-etag"),
            // The listing of a bucket has this hash.
            Kind::Bucket => text(headers, "x-xet-hash"),
        };
        self.tag = tag.map(str::to_owned).or(self.tag.take());
        self.bytes = number(headers, "x-linked-size").or(self.bytes);
    }

    fn link(self, url: String, is_own: bool) -> Link {
        let Self { bytes, tag } = self;
        Link::new(url, is_own, bytes, tag)
    }
}

fn result_of(
    key: &Key,
    size: u64,
    range: std::ops::Range<u64>,
    e_tag: Option<String>,
    encoding: Option<&str>,
) -> GetResult {
    let last_modified = chrono::DateTime::UNIX_EPOCH;
    let mut attributes = Attributes::new();
    if let Some(encoding) = encoding {
        attributes.insert(Attribute::ContentEncoding, encoding.to_owned().into());
    }
    GetResult {
        payload: GetResultPayload::Stream(futures_util::stream::empty().boxed()),
        meta: ObjectMeta { location: key.clone(), last_modified, size, e_tag, version: None },
        range,
        attributes,
        extensions: http::Extensions::default(),
    }
}

/// Whether both ways of reading a URL find the same server in it.
fn names_host_of(uri: &Uri, url: &Url) -> bool {
    uri.scheme_str() == Some(url.scheme())
        && uri.host() == url.host_str()
        && uri.port_u16() == url.port()
        && uri.authority().is_some_and(|authority| !authority.as_str().contains('@'))
}

/// The range and the whole length in `bytes 0-9/100`.
fn part_of(text: &str) -> Option<(std::ops::Range<u64>, u64)> {
    let (range, whole) = text.trim().strip_prefix("bytes ")?.split_once('/')?;
    let (start, last) = range.split_once('-')?;
    let (start, last, whole): (u64, u64, u64) =
        (start.parse().ok()?, last.parse().ok()?, whole.parse().ok()?);
    (start <= last && last < whole).then(|| (start..last + 1, whole))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_range_is_read_exactly() {
        assert_eq!(part_of("bytes 0-9/100"), Some((0..10, 100)));
        for wrong in [
            "",
            "bytes",
            "bytes 0-9",
            "bytes 9-0/100",
            "bytes 0-100/100",
            "bytes */100",
            "bytes 0-9/*",
            "bytes -1-9/100",
            "0-9/100",
            "bytes 0-18446744073709551615/18446744073709551615",
        ] {
            assert_eq!(part_of(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn link_is_sent_unchanged_only_if_both_parsers_find_its_host() {
        let agrees = |text: &str| {
            Uri::try_from(text).is_ok_and(|uri| names_host_of(&uri, &Url::parse(text).unwrap()))
        };
        assert!(agrees("https://cdn.hf.co/x?a=b+c&d='e'"));
        assert!(agrees("http://127.0.0.1:81/x"));
        for text in
            ["https://me@cdn.hf.co/x", "https://cdn.hf.co\\@evil.com/x", "https://CDN.hf.co/x"]
        {
            assert!(!agrees(text), "{text}");
        }
    }
}
