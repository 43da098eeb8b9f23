//! The server and the baseline of `scripts/bench/storage`.
//!
//! `storage_speed serve FOLDER [MS [EVERY SLOW_MS]]` serves a folder on loopback, with a page for each folder and
//! ranges, and prints its port: a thread per connection, `sendfile`. The response for a file begins after MS
//! milliseconds, each EVERYth after SLOW_MS. `storage_speed bare URL SECONDS [keep]` reads the objects of a page with
//! `object_store` only, on a runtime per core, with 1 to 64 concurrent requests, and prints a line of JSON for each:
//! bytes per second and CPU seconds per GB. Bytes are dropped, or with `keep` copied to a buffer of 128 MiB, which
//! starts over when it is full: a consumer has to copy them, too.

use std::error::Error;
use std::fs::File;
use std::io::{BufRead, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::StreamExt;
use http_body_util::BodyExt;
use nix::sys::resource::{UsageWho, getrusage};
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
    HttpResponseBody, HttpService,
};
use object_store::http::HttpBuilder;
use object_store::path::Path as Key;
use object_store::{ClientOptions, ObjectStoreExt};
use rustix::fs::sendfile;

type Failure = Box<dyn Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", folder, delays @ ..] => serve(folder.into(), Delays::parse(delays)?),
        ["bare", url, seconds] => bare(url, Duration::from_secs_f64(seconds.parse()?), 0),
        ["bare", url, seconds, "keep"] => {
            bare(url, Duration::from_secs_f64(seconds.parse()?), 128 << 20)
        }
        _ => {
            Err("storage_speed serve FOLDER [MS [EVERY SLOW_MS]] | bare URL SECONDS [keep]".into())
        }
    }
}

/// How long the response for a file is delayed.
#[derive(Debug, Default)]
struct Delays {
    usual: Duration,
    /// Every how many responses, and how long.
    slow: Option<(u64, Duration)>,
    answers: AtomicU64,
}

impl Delays {
    fn parse(words: &[&str]) -> Result<Self, Failure> {
        let numbers = words.iter().map(|word| word.parse()).collect::<Result<Vec<u64>, _>>()?;
        let mut delays = Self::default();
        match numbers[..] {
            [] => {}
            [usual] => delays.usual = Duration::from_millis(usual),
            [usual, every, slow] => {
                delays.usual = Duration::from_millis(usual);
                delays.slow = Some((every.max(1), Duration::from_millis(slow)));
            }
            _ => return Err("serve FOLDER [MS [EVERY SLOW_MS]]".into()),
        }
        Ok(delays)
    }

    fn wait(&self) {
        // Relaxed: a count.
        let answer = self.answers.fetch_add(1, Ordering::Relaxed) + 1;
        let slow = self.slow.filter(|(every, _)| answer.is_multiple_of(*every));
        let delay = slow.map_or(self.usual, |(_, slow)| slow);
        if !delay.is_zero() {
            std::thread::sleep(delay);
        }
    }
}

fn serve(root: PathBuf, delays: Delays) -> Result<(), Failure> {
    let delays = Arc::new(delays);
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?.port());
    for stream in listener.incoming().flatten() {
        let (root, delays) = (root.clone(), Arc::clone(&delays));
        // A disconnected client ends its thread.
        std::thread::spawn(move || drop(answer_all(&stream, &root, &delays)));
    }
    Ok(())
}

fn answer_all(mut stream: &TcpStream, root: &Path, delays: &Delays) -> Result<(), Failure> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream);
    loop {
        let (mut target, mut range, mut line) = (String::new(), None, String::new());
        let mut head_alone = false;
        loop {
            line.clear();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            let text = line.trim_end().to_ascii_lowercase();
            if let Some(bytes) = text.strip_prefix("range: bytes=") {
                range = bytes.split_once('-').map(|(from, to)| (from.to_owned(), to.to_owned()));
            } else if target.is_empty() {
                head_alone = line.starts_with("HEAD ");
                target = line.split(' ').nth(1).unwrap_or("/").to_owned();
            } else if text.is_empty() {
                break;
            }
        }
        let path = root.join(target.trim_matches('/'));
        if path.is_dir() {
            let names = std::fs::read_dir(&path)?.map(|entry| {
                let entry = entry?;
                let slash = if entry.file_type()?.is_dir() { "/" } else { "" };
                let name = format!("{}{slash}", entry.file_name().to_string_lossy());
                Ok(format!("<a href=\"{name}\">{name}</a>\n"))
            });
            let page = names.collect::<std::io::Result<String>>()?;
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", page.len());
            stream.write_all(format!("{head}{page}").as_bytes())?;
            continue;
        }
        let Ok(file) = File::open(&path) else {
            stream.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")?;
            continue;
        };
        delays.wait();
        let length = file.metadata()?.len();
        let (mut offset, end, status) = match &range {
            None => (0, length, "200 OK".to_owned()),
            Some((from, to)) => {
                let from: u64 = from.parse()?;
                let end = to.parse().map_or(length, |last: u64| length.min(last + 1));
                let found = format!("bytes {from}-{}/{length}", end.saturating_sub(1));
                (from, end, format!("206 Partial Content\r\ncontent-range: {found}"))
            }
        };
        let date = "last-modified: Thu, 01 Jan 2026 00:00:00 GMT";
        let bytes = end.saturating_sub(offset);
        let tag = format!("etag: \"{length}\"\r\naccept-ranges: bytes");
        write!(stream, "HTTP/1.1 {status}\r\n{date}\r\n{tag}\r\ncontent-length: {bytes}\r\n\r\n")?;
        while offset < end && !head_alone {
            let left = usize::try_from(end - offset)?;
            sendfile(stream, &file, Some(&mut offset), left)?;
        }
    }
}

/// The minimal HTTP client for `object_store`.
#[derive(Debug)]
struct Plain(reqwest::Client);

impl HttpConnector for Plain {
    fn connect(&self, _options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Self(self.0.clone())))
    }
}

#[async_trait]
impl HttpService for Plain {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let fail = |error| HttpError::new(HttpErrorKind::Unknown, error);
        let (parts, _) = request.into_parts();
        let url = parts.uri.to_string().parse::<reqwest::Url>();
        let url = url.map_err(|error| HttpError::new(HttpErrorKind::Request, error))?;
        let mut sent = reqwest::Request::new(parts.method, url);
        *sent.headers_mut() = parts.headers;
        let response: http::Response<_> = self.0.execute(sent).await.map_err(fail)?.into();
        let (parts, body) = response.into_parts();
        Ok(HttpResponse::from_parts(parts, HttpResponseBody::new(body.map_err(fail))))
    }
}

fn cpu_seconds() -> f64 {
    let usage = getrusage(UsageWho::RUSAGE_SELF);
    usage.map_or(0.0, |usage| {
        let seconds =
            |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 * 1e-6;
        seconds(usage.user_time()) + seconds(usage.system_time())
    })
}

fn bare(url: &str, time: Duration, kept_bytes: usize) -> Result<(), Failure> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    // One per runtime: kept connections belong to it.
    let client = || {
        let builder = reqwest::Client::builder().tls_backend_preconfigured(tls.clone());
        builder.no_proxy().http1_only().build()
    };
    let base = url::Url::parse(url)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let page = client()?.get(url).send();
    let page = runtime.block_on(async { page.await?.text().await })?;
    let folder = base.path().trim_matches('/').to_owned();
    let names = page.split("href=\"").skip(1).filter_map(|rest| rest.split('"').next());
    let keys: Vec<Key> = names.map(|name| Key::from(format!("{folder}/{name}"))).collect();
    let cores = std::thread::available_parallelism()?.get();
    for at_once in [1, 2, 4, 8, 16, 32, 64] {
        let (bytes, turn) = (AtomicU64::new(0), AtomicUsize::new(0));
        let (begin, cpu_before) = (Instant::now(), cpu_seconds());
        let read = |readers: usize| -> Result<(), Failure> {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let store = HttpBuilder::new()
                .with_url(&base[..url::Position::BeforePath])
                .with_client_options(ClientOptions::new().with_allow_http(true))
                .with_http_connector(Plain(client()?))
                .build()?;
            let reader = || async {
                let (mut memory, mut place) = (vec![0_u8; kept_bytes / at_once], 0);
                while begin.elapsed() < time {
                    // Relaxed, here and below: counts.
                    let key = &keys[turn.fetch_add(1, Ordering::Relaxed) % keys.len()];
                    let mut body = store.get(key).await?.into_stream();
                    while let Some(chunk) = body.next().await {
                        let chunk = chunk?;
                        bytes.fetch_add(chunk.len() as u64, Ordering::Relaxed);
                        if kept_bytes > 0 {
                            place = if place + chunk.len() > memory.len() { 0 } else { place };
                            memory[place..place + chunk.len()].copy_from_slice(&chunk);
                            place += chunk.len();
                        }
                    }
                }
                Ok::<(), object_store::Error>(())
            };
            let readers = (0..readers).map(|_| reader());
            runtime.block_on(futures_util::future::try_join_all(readers))?;
            Ok(())
        };
        std::thread::scope(|scope| {
            let threads = (0..cores.min(at_once)).map(|core| {
                let readers = at_once / cores + usize::from(core < at_once % cores);
                {
                    let read = &read;
                    scope.spawn(move || read(readers))
                }
            });
            let threads: Vec<_> = threads.collect();
            threads.into_iter().try_for_each(|thread| thread.join().unwrap_or(Err("".into())))
        })?;
        let bytes = bytes.load(Ordering::Relaxed) as f64;
        let per_second = bytes / begin.elapsed().as_secs_f64();
        let per_gb = (cpu_seconds() - cpu_before) / bytes * 1e9;
        println!(
            "{{\"at_once\": {at_once}, \"bytes_per_second\": {per_second:.0}, \"cpu_seconds_per_gb\": {per_gb:.3}}}"
        );
    }
    Ok(())
}
