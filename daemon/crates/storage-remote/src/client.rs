//! HTTP requests: no redirects, no metadata services, bounded headers and bodies, and a trace of each request. Requests
//! for data go over the connections of `wire` where possible.
//!
//! A client for data refuses hosts that [`is_metadata`] knows, by number and by name. A client for credentials may
//! connect to them: its addresses come from the environment, never from a dataset's path. It keeps no connection, since
//! several threads' runtimes use it.

use std::error::Error;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::header::{CONTENT_RANGE, LOCATION, RANGE, RETRY_AFTER};
use http::{HeaderMap, Method, StatusCode};
use http_body_util::{BodyExt, Limited};
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
    HttpResponseBody, HttpService,
};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::address::is_metadata;
use super::pace::Pace;
use super::trace::Trace;
pub(super) use super::wire::AsGiven;
use super::wire::{
    Addresses, Answered, CONNECT_TIMEOUT, Head, IDLE_TIMEOUT, MAX_HEADERS, USER_AGENT_TEXT,
    WireError, Wires,
};
use super::{names, pages};

/// Limit of an error's body and of a response with credentials.
const MAX_SMALL_BODY_BYTES: usize = 1 << 20;
/// Limit of an error's text in a message.
const MAX_MESSAGE_CHARS: usize = 160;

/// Settings that all clients of a storage share.
#[derive(Debug, Clone)]
pub(super) struct ClientTerms {
    /// A server that sends nothing for this long has failed.
    pub(super) stall: Duration,
    /// Headers of each request for data.
    pub(super) headers: HeaderMap,
    /// Whether names of files are bytes, as on a web server.
    pub(super) names_are_bytes: bool,
    /// Whether the server is on this machine: no proxy is used then.
    pub(super) is_loopback: bool,
    /// Includes the CA certificates.
    pub(super) tls: rustls::ClientConfig,
    /// Resolves the servers' names.
    pub(super) addresses: Arc<Addresses>,
    /// Spreads the requests over time, if that is configured.
    pub(super) pace: Option<Arc<Pace>>,
}

impl ClientTerms {
    /// Connections of one pooled client; `None`: a proxy is configured.
    fn wires(&self) -> Option<Arc<Wires>> {
        const PROXIES: [&str; 6] =
            ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"];
        let has_proxy =
            PROXIES.iter().any(|name| std::env::var_os(name).is_some_and(|url| !url.is_empty()));
        (self.is_loopback || !has_proxy).then(|| {
            let (addresses, tls) = (Arc::clone(&self.addresses), self.tls.clone());
            Arc::new(Wires::new(addresses, tls, self.headers.clone(), self.stall))
        })
    }
}

/// Makes clients for data, or for credentials.
#[derive(Debug, Clone)]
pub(super) struct Connector {
    pub(super) terms: Arc<ClientTerms>,
    pub(super) for_credentials: bool,
}

impl Connector {
    /// A client.
    /// # Errors
    /// It cannot be built.
    pub(super) fn client(&self) -> Result<HttpClient, String> {
        let mut builder = reqwest::Client::builder()
            .tls_backend_preconfigured(self.terms.tls.clone())
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(self.terms.stall)
            .pool_idle_timeout(IDLE_TIMEOUT)
            .http1_max_headers(MAX_HEADERS)
            .http1_only()
            .user_agent(USER_AGENT_TEXT);
        if self.terms.is_loopback {
            builder = builder.no_proxy();
        }
        builder = match self.for_credentials {
            true => builder.pool_max_idle_per_host(0),
            false => builder.dns_resolver(Guarded).default_headers(self.terms.headers.clone()),
        };
        let client = builder.build().map_err(|error| chain(&error.without_url()))?;
        let for_credentials = self.for_credentials;
        let wires = self.terms.wires().filter(|_| !for_credentials);
        let (stall, names_are_bytes) = (self.terms.stall, self.terms.names_are_bytes);
        let pace = self.terms.pace.clone().filter(|_| !for_credentials);
        let service = Service { client, wires, for_credentials, names_are_bytes, stall, pace };
        Ok(HttpClient::new(service))
    }
}

impl HttpConnector for Connector {
    fn connect(&self, _options: &ClientOptions) -> object_store::Result<HttpClient> {
        let fail = |source: String| object_store::Error::Generic {
            store: "HTTP client",
            source: source.into(),
        };
        self.client().map_err(fail)
    }
}

/// TLS with servers whose certificates are signed by a CA of the system (or of `SSL_CERT_FILE` and `SSL_CERT_DIR`), or
/// of `AWS_CA_BUNDLE`; without certificates if no server needs TLS.
///
/// # Errors
/// There are no certificates, or the named file cannot be used.
pub(super) fn tls(is_needed: bool) -> Result<rustls::ClientConfig, String> {
    static SYSTEM: OnceLock<Vec<CertificateDer<'static>>> = OnceLock::new();
    let mut roots = rustls::RootCertStore::empty();
    if is_needed {
        let system = SYSTEM.get_or_init(|| rustls_native_certs::load_native_certs().certs);
        roots.add_parsable_certificates(system.iter().cloned());
    }
    if let Some(path) =
        std::env::var_os("AWS_CA_BUNDLE").filter(|path| is_needed && !path.is_empty())
    {
        let shown = path.to_string_lossy().into_owned();
        let unusable = |error: &dyn std::fmt::Display| format!("AWS_CA_BUNDLE {shown}: {error}");
        let found = CertificateDer::pem_file_iter(&path).map_err(|error| unusable(&error))?;
        for certificate in found {
            roots
                .add(certificate.map_err(|error| unusable(&error))?)
                .map_err(|error| unusable(&error))?;
        }
    }
    if is_needed && roots.is_empty() {
        return Err("no trusted CA certificates found on this machine: install the package ca-certificates, or set \
                    SSL_CERT_FILE to a file of them"
            .to_owned());
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

/// Resolves names by the system, except to a metadata service.
#[derive(Debug)]
struct Guarded;

impl Resolve for Guarded {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let host = name.as_str().to_owned();
            let found: Vec<SocketAddr> =
                tokio::net::lookup_host((host.as_str(), 0)).await?.collect();
            if found.iter().any(|address| is_metadata(address.ip())) {
                return Err(format!(
                    "{host} resolves to a metadata service of this machine's cloud"
                )
                .into());
            }
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

#[derive(Debug)]
struct Service {
    client: reqwest::Client,
    /// Connections for data; `None`: the client sends these requests, too.
    wires: Option<Arc<Wires>>,
    for_credentials: bool,
    names_are_bytes: bool,
    stall: Duration,
    pace: Option<Arc<Pace>>,
}

impl Service {
    /// The time-out of both kinds of connection restarts with each byte that the server sends.
    fn deadline(&self) -> Duration {
        CONNECT_TIMEOUT + 2 * self.stall
    }

    /// No response within the deadline.
    fn overdue(&self) -> HttpError {
        let what = format!("no response within {} s", self.deadline().as_secs_f32());
        transport(HttpErrorKind::Timeout, what)
    }

    /// Requests data over a connection whose response the thread reads itself.
    async fn by_wire(
        &self,
        wires: &Arc<Wires>,
        request: &HttpRequest,
    ) -> Result<HttpResponse, HttpError> {
        match tokio::time::timeout(self.deadline(), wires.exchange(request)).await {
            Ok(Ok((head, answered))) => Ok(noted(head, answered)),
            Ok(Err(WireError::Connect(what))) => Err(transport(HttpErrorKind::Connect, what)),
            Ok(Err(WireError::Closed(what))) => Err(transport(HttpErrorKind::Interrupted, what)),
            Ok(Err(WireError::Malformed(what))) => Err(transport(HttpErrorKind::Unknown, what)),
            Err(_) => Err(self.overdue()),
        }
    }

    async fn send(&self, request: HttpRequest) -> Result<http::Response<reqwest::Body>, HttpError> {
        let (parts, body) = request.into_parts();
        let url = parts.uri.to_string().parse::<reqwest::Url>();
        let mut url = url.map_err(|error| HttpError::new(HttpErrorKind::Request, error))?;
        // Both mean a space; some servers take `+` literally when they check a signature.
        let is_free = parts.extensions.get::<AsGiven>().is_none();
        if let Some(query) = url.query().filter(|query| is_free && query.contains('+')) {
            let query = query.replace('+', "%20");
            url.set_query(Some(&query));
        }
        let mut sent = reqwest::Request::new(parts.method, url);
        *sent.headers_mut() = parts.headers;
        *sent.body_mut() = body.as_bytes().map(|bytes| bytes.clone().into());
        match tokio::time::timeout(self.deadline(), self.client.execute(sent)).await {
            Ok(response) => response.map(Into::into).map_err(failure),
            Err(_) => Err(self.overdue()),
        }
    }
}

/// Records an error of the connection.
fn transport(kind: HttpErrorKind, what: String) -> HttpError {
    let what = shown(&what);
    Trace::update(|trace| trace.transport = Some(what.clone()));
    HttpError::new(kind, std::io::Error::other(what))
}

/// A response with `Content-Range` is a part of an object: some servers send it with status 200. `object_store`
/// compares the range.
fn partial(status: StatusCode, headers: &HeaderMap) -> StatusCode {
    match status == StatusCode::OK && headers.contains_key(CONTENT_RANGE) {
        true => StatusCode::PARTIAL_CONTENT,
        false => status,
    }
}

/// Records a response. The body of a success stays on its connection, in the trace; the body of an error is read.
fn noted(head: Head, answered: Answered) -> HttpResponse {
    Trace::update(|trace| note(trace, head.status, &head.headers));
    if head.status.is_success() {
        Trace::update(|trace| trace.answered = Some(answered));
    } else {
        let text = answered.into_text(MAX_SMALL_BODY_BYTES);
        Trace::update(|trace| note_error(trace, &text));
    }
    let mut response = HttpResponse::new(Bytes::new().into());
    *response.status_mut() = partial(head.status, &head.headers);
    *response.headers_mut() = head.headers;
    response
}

#[async_trait]
impl HttpService for Service {
    async fn call(&self, mut request: HttpRequest) -> Result<HttpResponse, HttpError> {
        if self.names_are_bytes
            && let Some(url) = names::plain_url(&request.uri().to_string())
        {
            let url = url.parse().map_err(|error| HttpError::new(HttpErrorKind::Request, error));
            *request.uri_mut() = url?;
        }
        let host = request.uri().host().unwrap_or_default().to_owned();
        let limit_bytes = Trace::update(|trace| {
            let (limit_bytes, keys_number) = (trace.limit_bytes, trace.keys_number);
            *trace = Trace {
                limit_bytes,
                keys_number,
                host,
                has_range: request.headers().contains_key(RANGE),
                is_credentials: self.for_credentials,
                ..Trace::default()
            };
            limit_bytes
        });
        if let Some(pace) = &self.pace {
            pace.turn().await;
        }
        if request.method() == Method::GET
            && limit_bytes == Some(u64::MAX)
            && let Some(wires) = &self.wires
        {
            return self.by_wire(wires, &request).await;
        }
        let is_page = request.uri().query().is_some_and(pages::is_page);
        let again = request.clone();
        let response = match self.send(request).await {
            // The server may have closed the kept connection at this very moment.
            Err(error)
                if matches!(error.kind(), HttpErrorKind::Request | HttpErrorKind::Interrupted) =>
            {
                self.send(again).await?
            }
            response => response?,
        };
        let (mut parts, body) = response.into_parts();
        Trace::update(|trace| note(trace, parts.status, &parts.headers));
        if !parts.status.is_success() {
            let body = Limited::new(body, MAX_SMALL_BODY_BYTES).collect().await;
            let body = body.map(http_body_util::Collected::to_bytes).unwrap_or_default();
            Trace::update(|trace| note_error(trace, &body));
            // `object_store` would include an error's text unchecked.
            return Ok(HttpResponse::from_parts(parts, Bytes::new().into()));
        }
        parts.status = partial(parts.status, &parts.headers);
        let limit = match (self.for_credentials, limit_bytes) {
            (false, Some(limit)) => usize::try_from(limit).unwrap_or(usize::MAX),
            _ => MAX_SMALL_BODY_BYTES,
        };
        let body =
            Limited::new(body, limit).map_err(|error| match error.downcast::<reqwest::Error>() {
                Ok(error) => failure(*error),
                Err(error) => {
                    Trace::update(|trace| {
                        trace.transport = Some("the response is longer than its limit".to_owned())
                    });
                    HttpError::new_boxed(HttpErrorKind::Decode, error)
                }
            });
        let body = HttpResponseBody::new(body);
        if !is_page {
            return Ok(HttpResponse::from_parts(parts, body));
        }
        let page = body.bytes().await?;
        let body = match std::str::from_utf8(&page).ok().and_then(pages::without_unusable) {
            Some((kept, left_out)) => {
                Trace::update(|trace| trace.left_out = Some(left_out));
                kept.into()
            }
            None => page.into(),
        };
        Ok(HttpResponse::from_parts(parts, body))
    }
}

/// Records what happened to the connection.
fn failure(error: reqwest::Error) -> HttpError {
    let error = error.without_url();
    let mut kind = match (error.is_timeout(), error.is_connect()) {
        (true, _) => HttpErrorKind::Timeout,
        (_, true) => HttpErrorKind::Connect,
        _ => HttpErrorKind::Unknown,
    };
    let what = chain(&error);
    if kind == HttpErrorKind::Unknown {
        let is_broken = ["connection closed", "reset", "broken pipe", "incomplete", "SendRequest"]
            .iter()
            .any(|sign| what.contains(sign));
        if is_broken {
            kind = HttpErrorKind::Interrupted;
        }
    }
    Trace::update(|trace| trace.transport = Some(what));
    HttpError::new(kind, error)
}

/// An error with its causes, without repetitions.
pub(super) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let said = cause.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        source = cause.source();
    }
    shown(&text)
}

/// A server's text for one line of a message. Text after a question mark is removed: it may be a signature.
pub(super) fn shown(text: &str) -> String {
    let words = text.split_whitespace().map(|word| match word.split_once('?') {
        Some((before, query)) if query.contains('=') => format!("{before}?…"),
        _ => word.to_owned(),
    });
    let line = words.collect::<Vec<_>>().join(" ");
    line.chars().filter(|char| !char.is_control()).take(MAX_MESSAGE_CHARS).collect()
}

fn note(trace: &mut Trace, status: StatusCode, headers: &HeaderMap) {
    let text = |name: &str| headers.get(name)?.to_str().ok().map(shown);
    trace.status = Some(status.as_u16());
    trace.request_id =
        ["x-amz-request-id", "x-ms-request-id", "x-guploader-uploadid", "x-request-id"]
            .into_iter()
            .find_map(text);
    trace.region = text("x-amz-bucket-region");
    trace.retry_after = text(RETRY_AFTER.as_str())
        .and_then(|seconds| seconds.parse().ok())
        .map(Duration::from_secs);
    trace.total_bytes =
        text(CONTENT_RANGE.as_str()).and_then(|range| range.strip_prefix("bytes */")?.parse().ok());
    trace.redirect = headers
        .get(LOCATION)
        .and_then(|location| url::Url::parse(location.to_str().ok()?).ok())
        .and_then(|url| url.host_str().map(str::to_owned));
}

fn note_error(trace: &mut Trace, body: &[u8]) {
    let text = String::from_utf8_lossy(body);
    let element = |name: &str| {
        let (_, rest) = text.split_once(&format!("<{name}>"))?;
        rest.split_once("</").map(|(value, _)| shown(value)).filter(|value| !value.is_empty())
    };
    trace.code = element("Code");
    trace.message = element("Message");
    trace.request_id = trace.request_id.take().or_else(|| element("RequestId"));
}
