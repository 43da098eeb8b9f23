//! For tests: a server on loopback that serves a folder as a bucket (S3, Google) and as a web site, with injected
//! faults.
//!
//! Blocking and simple: a thread per connection. Signatures are not checked; tests against real implementations do
//! that.

mod answers;

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forebay_keys::{Located, Section, Value};

use super::RemoteKeys;
use super::address::{percent_decode, percent_decode_bytes};
use super::names::text_of;
use answers::Answer;
pub use answers::Request;

/// What happens to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// It is answered.
    None,
    /// It is answered after a delay.
    Delay(Duration),
    /// Another response: status, seconds of `Retry-After`, body.
    Status(u16, Option<u32>, String),
    /// The connection ends without a response.
    Close,
    /// No response, as long as the server lives.
    Silence,
    /// This many bytes of the body, then nothing.
    Stall(usize),
    /// This many bytes of the body, then the connection ends.
    Short(usize),
    /// Content-Length is this much larger than the body.
    Longer(usize),
    /// This many bytes follow the body.
    Behind(usize),
    /// The response has another ETag.
    OtherTag,
    /// The whole object in response to a range, with status 200.
    WholeForRange,
    /// A page of a listing begins with the last entry of the previous page; a web page has each link twice.
    Repeats,
    /// A redirect.
    Redirect(String),
    /// A header of megabytes.
    HugeHeader,
    /// A body without an end.
    Endless,
}

/// Chooses the fault of each request.
pub type Weather = Box<dyn FnMut(&Request) -> Fault + Send>;

/// See the module's head.
pub struct Server {
    port: u16,
    shared: Arc<Shared>,
}

struct Shared {
    root: PathBuf,
    weather: Mutex<Weather>,
    requests: AtomicU64,
    is_open: AtomicBool,
    connections: Mutex<Vec<TcpStream>>,
    /// Entries per page of a listing.
    page: usize,
    /// Bytes per second of a connection, if limited.
    bandwidth: Option<u64>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Server on port {}", self.port)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Server {
    /// Serves a folder, without faults.
    #[must_use]
    pub fn of(folder: &Path) -> Self {
        Self::at(folder, 0)
    }

    /// As [`of`](Self::of), on a port; 0: any.
    #[must_use]
    pub fn at(folder: &Path, port: u16) -> Self {
        Self::new(folder, port, 7, None)
    }

    /// As [`at`](Self::at), with pages as long as a provider's, and a limit on a connection's bytes per second.
    #[must_use]
    pub fn for_users(folder: &Path, port: u16, bandwidth: Option<u64>) -> Self {
        Self::new(folder, port, 1000, bandwidth)
    }

    fn new(folder: &Path, port: u16, page: usize, bandwidth: Option<u64>) -> Self {
        let shared = Arc::new(Shared {
            root: folder.to_owned(),
            weather: Mutex::new(Box::new(|_| Fault::None)),
            requests: AtomicU64::new(0),
            is_open: AtomicBool::new(false),
            connections: Mutex::default(),
            page,
            bandwidth,
        });
        let mut server = Self { port, shared };
        server.open();
        server
    }

    /// Sets the faults of the following requests.
    pub fn set_weather(&self, weather: impl FnMut(&Request) -> Fault + Send + 'static) {
        *lock(&self.shared.weather) = Box::new(weather);
    }

    /// The requests so far.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.shared.requests.load(Ordering::SeqCst)
    }

    /// The server's port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Ends all connections and accepts no new ones.
    pub fn close(&self) {
        self.shared.is_open.store(false, Ordering::SeqCst);
        // Wakes the thread that waits for a connection.
        drop(TcpStream::connect(("127.0.0.1", self.port)));
        while Arc::strong_count(&self.shared) > 1
            && TcpStream::connect(("127.0.0.1", self.port)).is_ok()
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        for connection in lock(&self.shared.connections).drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }

    /// Accepts connections again, on the same port.
    pub fn open(&mut self) {
        // A port that was just closed may be busy for a moment.
        let listener = loop {
            match TcpListener::bind(("127.0.0.1", self.port)) {
                Ok(listener) => break listener,
                Err(error) if self.port == 0 => panic!("no port: {error}"),
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        self.port = listener.local_addr().unwrap().port();
        self.shared.is_open.store(true, Ordering::SeqCst);
        let shared = Arc::clone(&self.shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if !shared.is_open.load(Ordering::SeqCst) {
                    return;
                }
                let _ = stream.set_nodelay(true);
                lock(&shared.connections).extend(stream.try_clone().ok());
                let shared = Arc::clone(&shared);
                std::thread::spawn(move || shared.serve(stream));
            }
        });
    }

    /// Points a configuration to this server: `url` as `dataset.path`, and the keys of `[storage]`.
    pub fn lead(&self, path: &mut PathBuf, storage: &mut Section, url: &str) {
        *path = url.into();
        *storage = self.keys(url, None);
        storage.resolve::<RemoteKeys>().unwrap();
    }

    /// The keys of `[storage]` that point a URL to this server, without credentials. Use a short `stall` only if the
    /// server does not respond: on a busy machine a response may take as long.
    #[must_use]
    pub fn keys(&self, url: &str, stall: Option<&str>) -> Section {
        let endpoint = format!("http://127.0.0.1:{}", self.port);
        let mut keys = vec![("anonymous".to_owned(), Value::Bool(true).into())];
        if let Some(stall) = stall {
            keys.push(("stall".to_owned(), Value::String(stall.to_owned()).into()));
        }
        if !url.starts_with("http") && !url.starts_with("hf:") {
            keys.push(("endpoint".to_owned(), Value::String(endpoint).into()));
        }
        let table: Located = Value::Table(keys).into();
        Section::new("storage", table, Path::new("/")).unwrap()
    }

    /// The folder `name` as a URL of the scheme; for `http` with this server's port.
    #[must_use]
    pub fn url(&self, scheme: &str, name: &str) -> String {
        match scheme {
            "http" => format!("http://127.0.0.1:{}/{name}", self.port),
            "hf" => format!("hf://buckets/lab/bucket/{name}"),
            scheme => format!("{scheme}://bucket/{name}"),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    fn serve(&self, stream: TcpStream) {
        let Ok(writer) = stream.try_clone() else { return };
        let mut reader = BufReader::new(stream);
        while let Some(request) = self.read(&mut reader) {
            if self.answer(&request, &writer).is_none() {
                break;
            }
        }
        let _ = writer.shutdown(Shutdown::Both);
    }

    fn read(&self, reader: &mut BufReader<TcpStream>) -> Option<Request> {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let mut words = line.split_whitespace();
        let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
        let mut headers = HashMap::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok()?;
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
        }
        let length = headers.get("content-length").and_then(|length| length.parse().ok());
        let mut body = vec![0; length.unwrap_or(0)];
        reader.read_exact(&mut body).ok()?;
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        let pair = |pair: &str| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            Some((percent_decode(name)?, percent_decode(&value.replace('+', " "))?))
        };
        let query = query.split('&').filter_map(pair).collect();
        let number = self.requests.fetch_add(1, Ordering::SeqCst);
        let path = text_of(&percent_decode_bytes(path)).into_owned();
        Some(Request { method, path, query, headers, number })
    }

    /// Answers; `None`: the connection ends.
    fn answer(&self, request: &Request, mut writer: &TcpStream) -> Option<()> {
        let fault = lock(&self.weather)(request);
        if let Fault::Delay(time) = fault {
            std::thread::sleep(time);
        }
        let mut answer = match &fault {
            Fault::Status(status, retry_after, body) => {
                let retry_after = retry_after.map(|seconds| format!("Retry-After: {seconds}\r\n"));
                let headers = retry_after.unwrap_or_default();
                Answer { status: *status, headers, body: body.clone().into_bytes() }
            }
            Fault::Close => return None,
            Fault::Silence => return self.wait(),
            Fault::Redirect(target) => {
                Answer { status: 302, headers: format!("Location: {target}\r\n"), body: vec![] }
            }
            Fault::WholeForRange => {
                let mut whole = request.clone();
                whole.headers.remove("range");
                answers::answer(&self.root, &whole, self.page)
            }
            Fault::Repeats => answers::repeating(&self.root, request, self.page),
            _ => answers::answer(&self.root, request, self.page),
        };
        if fault == Fault::OtherTag {
            answer.headers = answer.headers.replace("ETag: \"", "ETag: \"other-");
        }
        if fault == Fault::HugeHeader {
            answer.headers.push_str(&format!("X-Filler: {}\r\n", "x".repeat(4 << 20)));
        }
        let length = match fault {
            Fault::Longer(more) => answer.body.len() + more,
            Fault::Endless => usize::MAX / 2,
            _ => answer.body.len(),
        };
        let Answer { status, headers, body } = answer;
        let head = format!("HTTP/1.1 {status} X\r\nContent-Length: {length}\r\n{headers}\r\n");
        writer.write_all(head.as_bytes()).ok()?;
        if request.method == "HEAD" {
            return Some(());
        }
        match fault {
            Fault::Stall(bytes) => {
                writer.write_all(&body[..bytes.min(body.len())]).ok()?;
                return self.wait();
            }
            Fault::Short(bytes) => {
                writer.write_all(&body[..bytes.min(body.len())]).ok()?;
                return None;
            }
            Fault::Behind(bytes) => {
                writer.write_all(&[body, vec![b'x'; bytes]].concat()).ok()?;
            }
            _ => self.send(writer, &body)?,
        }
        if fault == Fault::Endless {
            loop {
                writer.write_all(&[b'x'; 1 << 16]).ok()?;
            }
        }
        (!matches!(fault, Fault::Longer(_))).then_some(())
    }

    fn send(&self, mut writer: &TcpStream, body: &[u8]) -> Option<()> {
        let Some(bandwidth) = self.bandwidth else { return writer.write_all(body).ok() };
        for piece in body.chunks(1 << 14) {
            writer.write_all(piece).ok()?;
            std::thread::sleep(Duration::from_secs_f64(piece.len() as f64 / bandwidth as f64));
        }
        Some(())
    }

    fn wait(&self) -> Option<()> {
        while self.is_open.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(10));
        }
        None
    }
}
