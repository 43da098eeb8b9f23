//! Scripted pipelines whose limit is known, and what the verdict says of them.
//!
//! Stages sleep (`delay`) or take CPU time (`spin`), storage is slowed by hand, and the trainer is a script. A case takes
//! a second or so; those that sleep run side by side. What is compared is the limit's name and what the sentence has to
//! say, never a time: beside busy neighbours everything takes longer, and the limit stays the same.

mod cases;

use std::collections::VecDeque;
use std::time::Instant;

use forebay_protocol::clock::monotonic_ns;

use super::*;
use crate::observe::DaemonReport;
use crate::storage::SlowFolder;

/// What a scripted trainer does with batches.
#[derive(Debug, Clone, Copy)]
struct Script {
    /// After each `burst` batches it works for so long.
    step_ms: u64,
    burst: u64,
    /// Batches that it keeps.
    holds: usize,
}

/// Takes whatever comes, at once.
const HUNGRY: Script = Script { step_ms: 0, burst: 1, holds: 0 };

/// One pipeline.
#[derive(Debug, Clone)]
struct Case {
    name: &'static str,
    /// Stages as `(name, threads, operation, milliseconds)`; no threads: `auto`.
    stages: &'static [(&'static str, u32, &'static str, f64)],
    /// Further keys, in TOML.
    keys: &'static str,
    batch: u32,
    slots: u32,
    /// A read's milliseconds, and one in how many reads takes them.
    slow_reads: Option<(u64, u64)>,
    script: Script,
    /// Cores that the daemon is told it may use; so many that none is short, unless cores are what the case is about.
    granted_cores: f64,
    limit_cores: Option<f64>,
    policy: CpuPolicy,
    /// All work threads on one core, with so many busy threads beside them.
    neighbours: Option<u32>,
    milliseconds: u64,
    limit: &'static str,
    says: &'static [&'static str],
}

/// What most cases have in common.
const CASE: Case = Case {
    name: "",
    stages: &[("work", 2, "delay", 1.0)],
    keys: "",
    batch: 8,
    slots: 4,
    slow_reads: None,
    script: HUNGRY,
    granted_cores: 64.0,
    limit_cores: None,
    policy: CpuPolicy::Normal,
    neighbours: None,
    milliseconds: 1200,
    limit: "",
    says: &[],
};

impl Case {
    fn stream(&self, folder: &Path) -> Arc<Stream> {
        let data = folder.join("data");
        std::fs::create_dir_all(&data).unwrap();
        for sample in 0..SAMPLES {
            let elements: Vec<u8> = (0..4).flat_map(|_| sample.to_le_bytes()).collect();
            let bytes = npy_bytes("<i8", false, "(4,)", &elements);
            std::fs::write(data.join(format!("{sample:03}.npy")), bytes).unwrap();
        }
        let mut text = format!(
            "dataset = {{ format = \"npy\", path = \"data\", index = \"index\" }}\nbatch.size = {}\nring.slots = {}\n{}\n",
            self.batch, self.slots, self.keys
        );
        for (name, threads, operation, milliseconds) in self.stages {
            let threads = if *threads == 0 { "\"auto\"".to_owned() } else { threads.to_string() };
            // An operation with a number is for one sample in so many: "delay/100".
            let (operation, probability) = match operation.split_once('/') {
                Some((operation, one_in)) => {
                    let probability = 1.0 / one_in.parse::<f64>().unwrap();
                    (operation, format!(", probability = {probability}"))
                }
                None => (*operation, String::new()),
            };
            text.push_str(&format!(
                "[[stage]]\nname = {name:?}\nconcurrency = {threads}\noperations = [{{ op = {operation:?}, milliseconds = \
                 {milliseconds:?}{probability} }}]\n"
            ));
        }
        let path = folder.join("stream.toml");
        std::fs::write(&path, text).unwrap();
        let config = Config::from_file(&path, &[]).unwrap();
        Arc::new(Stream::open(config, 2, &|_| std::ops::ControlFlow::Continue(())).unwrap())
    }

    /// Runs it; the figures at its end.
    fn run(&self) -> DaemonReport {
        let report = Rc::new(std::cell::RefCell::new(None));
        let shared = Rc::clone(&report);
        let folder = tempfile::tempdir().unwrap();
        let slow = self.slow_reads.map(|(milliseconds, one_in)| {
            SlowFolder::new(folder.path().join("data"), Duration::from_millis(milliseconds), one_in)
        });
        let core = self.neighbours.map(|_| last_core());
        let neighbours = Neighbours::start(self.neighbours.unwrap_or(0), core.unwrap_or(0));
        on_engine_thread(|| async {
            let stream = self.stream(folder.path());
            let threads = stream.thread_count();
            let pool = PoolOptions {
                threads,
                most_threads: threads * 2,
                rescue_threads: threads,
                policy: self.policy,
                nice: 0,
                granted_cores: self.granted_cores,
                limit_cores: self.limit_cores,
                cores: core.into_iter().collect(),
                refused_cores: Vec::new(),
            };
            let engine = Engine::start(vec![stream], pool, 1 << 20).unwrap();
            let bell = Rc::clone(&engine);
            tokio::task::spawn_local(async move { run_bell(bell).await });
            let mut trainer = Trainer::attach(&engine, self.script, 0, 1);
            trainer.train_for(Duration::from_millis(self.milliseconds)).await;
            let found = engine.borrow().report();
            *shared.borrow_mut() = Some(found);
        });
        drop((neighbours, slow));
        report.take().unwrap()
    }

    /// What is wrong with the verdict, if anything.
    fn judge(&self) -> Result<(), String> {
        let report = self.run();
        let verdict = &report.verdict;
        let lacks = self.says.iter().find(|words| !verdict.sentence.contains(**words));
        if verdict.limit == self.limit && lacks.is_none() {
            return Ok(());
        }
        let stages: Vec<String> = report.stages.iter().map(|stage| format!("{stage:?}")).collect();
        Err(format!(
            "{}: `{}` is the limit, not `{}`; {}\n  lacks: {lacks:?}\n  {:?}\n  {}\n",
            self.name,
            self.limit,
            verdict.limit,
            verdict.sentence,
            report.sessions,
            stages.join("\n  "),
        ))
    }
}

/// A client that trains by a script.
struct Trainer {
    client: Client,
    script: Script,
    held: VecDeque<Descriptor>,
    waited_ns: u64,
}

impl Trainer {
    fn attach(engine: &SharedEngine, script: Script, rank: u32, world_size: u32) -> Self {
        let client = Client::attach_as(engine, false, rank, world_size);
        Self { client, script, held: VecDeque::new(), waited_ns: 0 }
    }

    async fn train_for(&mut self, time: Duration) {
        let begun = Instant::now();
        while begun.elapsed() < time {
            self.train_once().await;
        }
    }

    async fn train_once(&mut self) {
        for _ in 0..self.script.burst {
            let batch = self.take().await;
            self.held.push_back(batch);
            while self.held.len() > self.script.holds {
                if let Some(oldest) = self.held.pop_front() {
                    self.client.give_back(&oldest);
                }
            }
        }
        if self.script.step_ms > 0 {
            tokio::time::sleep(Duration::from_millis(self.script.step_ms)).await;
        }
    }

    /// As a client does: it sleeps over an empty ring, and tells how long it waited.
    async fn take(&mut self) -> Descriptor {
        let client = &mut self.client;
        let asked = monotonic_ns();
        if client.publish.published() == client.read {
            if client.returns.announce_sleep() {
                client.engine.borrow_mut().advance(client.number);
            }
            while client.publish.published() == client.read {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            client.returns.announce_wake();
            self.waited_ns += monotonic_ns() - asked;
            client.returns.show_waited(self.waited_ns);
        }
        client.read += 1;
        client.returns.show_taken(client.read, monotonic_ns());
        client.publish.read(client.read - 1).unwrap()
    }
}

/// Threads that keep one core busy, until dropped.
struct Neighbours {
    threads: Vec<std::thread::JoinHandle<()>>,
    is_over: Arc<std::sync::atomic::AtomicBool>,
}

impl Neighbours {
    fn start(count: u32, core: u32) -> Self {
        let is_over = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let spin = |_| {
            let is_over = Arc::clone(&is_over);
            std::thread::spawn(move || {
                let mut set = rustix::thread::CpuSet::new();
                set.set(core as usize);
                rustix::thread::sched_setaffinity(None, &set).unwrap();
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            })
        };
        Self { threads: (0..count).map(spin).collect(), is_over }
    }
}

impl Drop for Neighbours {
    fn drop(&mut self) {
        self.is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// The last core that this process may use.
fn last_core() -> u32 {
    let allowed = rustix::thread::sched_getaffinity(None).unwrap();
    let last = (0..rustix::thread::CpuSet::MAX_CPU).rev().find(|core| allowed.is_set(*core));
    u32::try_from(last.unwrap()).unwrap()
}

/// One trainer works, the other takes whatever comes: each has a verdict of its own, and the daemon's is that of the one
/// that waits.
#[test]
fn of_two_sessions_the_one_that_waits_is_told_of() {
    on_engine_thread(|| async {
        let folder = tempfile::tempdir().unwrap();
        let case = Case { stages: &[("work", 1, "delay", 2.0)], ..CASE };
        let engine = start(&case.stream(folder.path()), 1 << 20);
        let script = Script { step_ms: 200, ..HUNGRY };
        let mut works = Trainer::attach(&engine, script, 0, 2);
        let mut waits = Trainer::attach(&engine, HUNGRY, 1, 2);
        let time = Duration::from_millis(1500);
        tokio::join!(works.train_for(time), waits.train_for(time));
        let report = engine.borrow().report();
        let of_session = |number: usize| report.sessions[number].verdict.clone().unwrap();
        let limits = (of_session(0).limit, of_session(1).limit);
        assert_eq!(limits, ("trainer".to_owned(), "work".to_owned()), "{:?}", report.sessions);
        assert_eq!(report.verdict.limit, "work");
        let sentence = &report.verdict.sentence;
        assert!(
            sentence.contains("of 2 sessions, session 2 (stream `stream`, rank 1"),
            "{sentence}"
        );
    });
}
