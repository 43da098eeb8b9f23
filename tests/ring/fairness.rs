//! Clients of one daemon that take batches as fast as they come get equal shares of it, however many they are, whenever they
//! attach, whatever their samples cost and whatever others do: take few, seek, evaluate now and then. Shares are counted, not
//! times: a busy machine makes all of them slower alike.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use forebay_client::{Builder, Loader, Position};
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
        Self::doing(builder, |_, _, _| {})
    }

    /// A client that takes a batch for every `others` batches of another one: less than its share.
    fn slower(builder: Builder, other: &Self, others: u64) -> Self {
        let other = Arc::clone(&other.taken);
        let first = other.load(Ordering::Relaxed);
        Self::doing(builder, move |_, taken, ends| {
            let is_early = || other.load(Ordering::Relaxed) < first + taken * others;
            while is_early() && !ends.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_micros(200));
            }
        })
    }

    /// `between` runs after each batch, with the number of batches so far and whether the client is to end.
    fn doing(
        builder: Builder,
        mut between: impl FnMut(&mut Loader, u64, &AtomicBool) + Send + 'static,
    ) -> Self {
        let (taken, ends) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (count, end) = (Arc::clone(&taken), Arc::clone(&ends));
        let run = move || {
            let mut loader = builder.attach().unwrap();
            while !end.load(Ordering::Relaxed) {
                loader.begin_epoch().unwrap();
                while !end.load(Ordering::Relaxed) && loader.next_batch().unwrap().is_some() {
                    let taken = count.fetch_add(1, Ordering::Relaxed) + 1;
                    between(&mut loader, taken, &end);
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

/// Whether shares are equal, else what they are.
fn are_equal(shares: &[u64], what: &str) -> Result<(), String> {
    let (most, least) = (shares.iter().max().unwrap(), shares.iter().min().unwrap());
    let ratio = *most as f64 / (*least).max(1) as f64;
    require(ratio <= EQUAL, || format!("{what}: {shares:?}, {ratio:.2}"))
}

fn require(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(otherwise()) }
}

/// Repeats a failed measurement up to five times, each with a new daemon: a busy machine disturbs some of them.
fn measure(once: impl Fn() -> Result<(), String>) {
    let mut wrong = Vec::new();
    for _ in 0..5 {
        match once() {
            Ok(()) => return,
            Err(words) => wrong.push(words),
        }
    }
    panic!("{}", wrong.join("\n"));
}

/// Two work threads that a row holds for so long: what is shared is their time, and it costs the machine none.
fn stage(milliseconds: f64) -> String {
    let delay = format!("{{ op = \"delay\", milliseconds = {milliseconds:?} }}");
    format!("{{ name = \"work\", concurrency = 2, operations = [{delay}] }}")
}

fn stream(dir: &TestDir, name: &str, milliseconds: f64, keys: &str) -> std::path::PathBuf {
    let folder = dir.path("data");
    data::stack(&folder, 4096);
    let keys = format!("listen.max_sessions = 16\nring.slots = 12\n{keys}");
    let text = data::staged_config(&folder, &keys, &stage(milliseconds));
    dir.config(&format!("{name}.toml"), &text)
}

fn serve(dir: &TestDir, configs: &[&Path]) -> Daemon {
    Daemon::serve_with(dir, configs, &[])
}

#[test]
fn equal_clients_get_equal_shares_from_two_to_sixteen_of_them() {
    for clients in [2, 4, 16] {
        measure(|| {
            let dir = TestDir::new();
            let daemon = serve(&dir, &[&stream(&dir, "train", 1.0, "")]);
            let clients: Vec<Client> =
                (0..clients).map(|rank| Client::start(daemon.loader(rank, clients))).collect();
            wait_until("all have begun", || taken(&clients).iter().all(|taken| *taken >= 4));
            are_equal(&shares(&clients), &format!("{} clients", clients.len()))
        });
    }
}

#[test]
fn late_clients_get_the_shares_of_those_before_them() {
    measure(|| {
        let dir = TestDir::new();
        let daemon = serve(&dir, &[&stream(&dir, "train", 1.0, "")]);
        let mut clients: Vec<Client> =
            (0..2).map(|rank| Client::start(daemon.loader(rank, 4))).collect();
        wait_until("the first have used much", || {
            taken(&clients).iter().all(|taken| *taken >= 2 * BATCHES)
        });
        clients.extend((2..4).map(|rank| Client::start(daemon.loader(rank, 4))));
        wait_until("all have begun", || taken(&clients).iter().all(|taken| *taken >= 4));
        are_equal(&shares(&clients), "two of them late")
    });
}

/// Four take all they can get; the others take a batch for every two to six of these, so each needs less than its share.
#[test]
fn clients_that_need_less_than_their_share_get_it_beside_those_that_take_all() {
    measure(|| {
        let dir = TestDir::new();
        let daemon = serve(&dir, &[&stream(&dir, "train", 1.0, "")]);
        let mut clients: Vec<Client> =
            (0..4).map(|rank| Client::start(daemon.loader(rank, 16))).collect();
        wait_until("the greedy have begun", || taken(&clients).iter().all(|taken| *taken >= 4));
        for rank in 4..16 {
            let others = 2 + u64::from(rank % 5);
            clients.push(Client::slower(daemon.loader(rank, 16), &clients[0], others));
        }
        wait_until("all have begun", || taken(&clients).iter().all(|taken| *taken >= 2));
        let shares = shares(&clients);
        are_equal(&shares[..4], "those that take all")?;
        for (rank, share) in shares.iter().enumerate().skip(4) {
            let wanted = shares[0] / (2 + rank as u64 % 5);
            require(*share + 1 >= wanted * 9 / 10, || {
                format!("rank {rank} got {share} of {wanted}: {shares:?}")
            })?;
        }
        Ok(())
    });
}

/// Work that a seek discards counts as the seeker's.
#[test]
fn a_client_that_seeks_takes_nothing_from_the_others() {
    measure(|| {
        let dir = TestDir::new();
        let daemon = serve(&dir, &[&stream(&dir, "train", 1.0, "")]);
        let mut clients: Vec<Client> =
            (0..3).map(|rank| Client::start(daemon.loader(rank, 4))).collect();
        clients.push(Client::doing(daemon.loader(3, 4), |loader, taken, _| {
            if taken % 3 == 0 {
                loader.seek(Position::default()).unwrap();
            }
        }));
        wait_until("all have begun", || taken(&clients).iter().all(|taken| *taken >= 4));
        let before = daemon.stats(&dir);
        are_equal(&shares(&clients)[..3], "those that do not seek")?;
        let now = daemon.stats(&dir);
        let times: Vec<f64> = (0..4).map(|rank| worked(&now, &before, "train", rank)).collect();
        let mean = times[..3].iter().sum::<f64>() / 3.0;
        require(times[3] <= EQUAL * mean, || format!("the seeker had more: {times:?}"))
    });
}

#[test]
fn an_evaluation_beside_training_does_not_wait_for_it() {
    measure(|| {
        let dir = TestDir::new();
        let configs = [stream(&dir, "train", 1.0, ""), stream(&dir, "val", 1.0, "")];
        let daemon = serve(&dir, &configs.each_ref().map(|config| config.as_path()));
        let train = Client::start(daemon.loader_of("train"));
        wait_until("training has begun", || train.taken() >= 4);
        let val = Client::slower(daemon.loader_of("val"), &train, 9);
        wait_until("the evaluation has begun", || val.taken() >= 1);
        let clients = [train, val];
        let shares = shares(&clients);
        require(shares[1] + 2 >= shares[0] / 9, || format!("the evaluation waits: {shares:?}"))
    });
}

/// The time that work threads have spent for a rank of a stream.
fn worked(now: &Value, before: &Value, stream: &str, rank: u64) -> f64 {
    let seconds = |stats: &Value| {
        let sessions = stats["sessions"].as_array().unwrap();
        let is_it = |one: &&Value| one["stream"] == stream && one["rank"] == rank;
        sessions.iter().find(is_it).unwrap()["work_seconds"].as_f64().unwrap()
    };
    seconds(now) - seconds(before)
}

/// Rows of one stream cost a hundred times those of the other: both get the same time.
#[test]
fn a_client_with_dear_samples_gets_the_time_of_one_with_cheap_ones() {
    measure(|| {
        let dir = TestDir::new();
        let configs = [stream(&dir, "dear", 20.0, ""), stream(&dir, "cheap", 0.2, "")];
        let daemon = serve(&dir, &configs.each_ref().map(|config| config.as_path()));
        let clients = ["dear", "cheap"].map(|name| Client::start(daemon.loader_of(name)));
        wait_until("both have begun", || taken(&clients).iter().all(|taken| *taken >= 4));
        let before = daemon.stats(&dir);
        let dear = clients[0].taken();
        wait_until("the dear one has some batches", || clients[0].taken() >= dear + 50);
        let now = daemon.stats(&dir);
        let [dear, cheap] = ["dear", "cheap"].map(|stream| worked(&now, &before, stream, 0));
        let ratio = dear.max(cheap) / dear.min(cheap);
        require(ratio <= EQUAL, || {
            format!("{dear:.2} s for dear rows, {cheap:.2} s for cheap ones")
        })
    });
}
