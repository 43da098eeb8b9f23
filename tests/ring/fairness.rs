//! Clients of one daemon that take batches as fast as they come get equal shares of it, however many they are, whenever they
//! attach and whatever their samples cost. Shares are counted, not times: a busy machine makes all of them slower alike.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use forebay_client::Builder;
use forebay_tests::{Daemon, TestDir, data, wait_until};
use serde_json::Value;

/// Equal clients: the most that one may get of what another gets.
const EQUAL: f64 = 1.15;
const BATCHES: u64 = 100;

/// A client on a thread that takes batches without end.
struct Client {
    taken: Arc<AtomicU64>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Client {
    fn start(builder: Builder) -> Self {
        let (taken, ends) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (count, end) = (Arc::clone(&taken), Arc::clone(&ends));
        let run = move || {
            let mut loader = builder.attach().unwrap();
            while !end.load(Ordering::Relaxed) {
                loader.begin_epoch().unwrap();
                while !end.load(Ordering::Relaxed) && loader.next_batch().unwrap().is_some() {
                    count.fetch_add(1, Ordering::Relaxed);
                }
            }
        };
        Self { taken, ends, thread: Some(thread::spawn(run)) }
    }

    fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || thread::panicking(), "a client failed");
    }
}

fn taken(clients: &[Client]) -> Vec<u64> {
    clients.iter().map(Client::taken).collect()
}

/// What each client takes from now on until one has taken `BATCHES`. A client that gets less than the equal part by then
/// is starved: nothing waits for it.
fn shares(clients: &[Client]) -> Vec<u64> {
    let before = taken(clients);
    let since = || taken(clients).iter().zip(&before).map(|(now, then)| now - then).collect();
    wait_until("one client has its batches", || {
        let counts: Vec<u64> = since();
        counts.iter().any(|count| *count >= BATCHES)
    });
    since()
}

fn assert_equal(shares: &[u64], what: &str) {
    let (most, least) = (shares.iter().max().unwrap(), shares.iter().min().unwrap());
    let ratio = *most as f64 / (*least).max(1) as f64;
    assert!(ratio <= EQUAL, "{what}: {shares:?}, {ratio:.2}");
}

/// Two work threads that a row holds for so long: what is shared is their time, and it costs the machine none.
fn stage(milliseconds: f64) -> String {
    let delay = format!("{{ op = \"delay\", milliseconds = {milliseconds:?} }}");
    format!("{{ name = \"work\", concurrency = 2, operations = [{delay}] }}")
}

fn stream(dir: &TestDir, name: &str, milliseconds: f64, keys: &str) -> std::path::PathBuf {
    let folder = dir.path("data");
    data::stack(&folder, 4096);
    let keys = format!("listen.max_sessions = 16\nring.slots = 4\n{keys}");
    let text = data::staged_config(&folder, &keys, &stage(milliseconds));
    dir.config(&format!("{name}.toml"), &text)
}

fn serve(dir: &TestDir, configs: &[&Path]) -> Daemon {
    Daemon::serve_with(dir, configs, &[])
}

#[test]
fn equal_clients_get_equal_shares_from_two_to_sixteen_of_them() {
    for clients in [2, 4, 16] {
        let dir = TestDir::new();
        let daemon = serve(&dir, &[&stream(&dir, "train", 1.0, "")]);
        let clients: Vec<Client> =
            (0..clients).map(|rank| Client::start(daemon.loader(rank, clients))).collect();
        wait_until("all have begun", || taken(&clients).iter().all(|taken| *taken >= 4));
        assert_equal(&shares(&clients), &format!("{} clients", clients.len()));
    }
}

#[test]
fn late_clients_get_the_shares_of_those_before_them() {
    let dir = TestDir::new();
    let daemon = serve(&dir, &[&stream(&dir, "train", 1.0, "")]);
    let mut clients: Vec<Client> =
        (0..2).map(|rank| Client::start(daemon.loader(rank, 4))).collect();
    wait_until("the first have used much", || {
        taken(&clients).iter().all(|taken| *taken >= 2 * BATCHES)
    });
    clients.extend((2..4).map(|rank| Client::start(daemon.loader(rank, 4))));
    wait_until("all have begun", || taken(&clients).iter().all(|taken| *taken >= 4));
    assert_equal(&shares(&clients), "two of them late");
}

/// The time that the work threads have spent on a stream's rows.
fn worked_seconds(stats: &Value, stream: usize) -> f64 {
    let stages = stats["streams"][stream]["stages"].as_array().unwrap();
    stages.last().unwrap()["busy_seconds"].as_f64().unwrap()
}

/// Rows of one stream cost twenty times those of the other: both get the same time.
#[test]
fn a_client_with_dear_samples_gets_the_time_of_one_with_cheap_ones() {
    let dir = TestDir::new();
    let configs = [stream(&dir, "dear", 10.0, ""), stream(&dir, "cheap", 0.5, "")];
    let daemon = serve(&dir, &configs.each_ref().map(|config| config.as_path()));
    let clients = ["dear", "cheap"].map(|name| Client::start(daemon.loader_of(name)));
    wait_until("both have begun", || taken(&clients).iter().all(|taken| *taken >= 4));
    let before = daemon.stats(&dir);
    let dear = clients[0].taken();
    wait_until("the dear one has some batches", || clients[0].taken() >= dear + 50);
    let now = daemon.stats(&dir);
    let [dear, cheap] =
        [0, 1].map(|stream| worked_seconds(&now, stream) - worked_seconds(&before, stream));
    let ratio = dear.max(cheap) / dear.min(cheap);
    assert!(ratio <= EQUAL, "{dear:.2} s for dear rows, {cheap:.2} s for cheap ones");
}
