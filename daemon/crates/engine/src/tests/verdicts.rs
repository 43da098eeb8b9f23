//! Scripted pipelines with a known limit: checks that the engine's metrics lead to the right verdict. The rules
//! themselves are tested in `observe/verdict`, on given metrics; each case here covers one source of metrics.
//!
//! Stages sleep (`delay`) or take CPU time (`spin`), storage is slowed, and the trainer is a script. The limit's name
//! and words of the sentence are compared, never a time: on a busy machine everything takes longer, and the limit is
//! the same.

use std::collections::VecDeque;
use std::time::Instant;

use forebay_affinity::PoolOptions;
use forebay_protocol::clock::monotonic_ns;

use super::*;
use forebay_observe::{DaemonReport, QueueReport};
use forebay_storage::SlowFolder;

/// A scripted trainer.
#[derive(Debug, Clone, Copy)]
struct Script {
    /// The time of a step in milliseconds, after each `burst` batches.
    step_ms: u64,
    burst: u64,
    /// Number of batches that it holds.
    holds: usize,
}

/// Takes each batch at once.
const HUNGRY: Script = Script { step_ms: 0, burst: 1, holds: 0 };

/// One pipeline.
#[derive(Debug, Clone)]
struct Case {
    name: &'static str,
    /// Stages as `(name, threads, operation, milliseconds)`.
    stages: &'static [(&'static str, u32, &'static str, f64)],
    /// Further keys, in TOML.
    keys: &'static str,
    batch: u32,
    slots: u32,
    /// A read's milliseconds, and one in how many reads takes them.
    slow_reads: Option<(u64, u64)>,
    script: Script,
    limit_cores: Option<f64>,
    milliseconds: u64,
    limit: &'static str,
    says: &'static [&'static str],
    /// Whether the ring's metrics match a pipeline whose first stage takes this many seconds per sample.
    ring: fn(&QueueReport, f64) -> bool,
}

/// The common part of most cases.
const CASE: Case = Case {
    name: "",
    stages: &[("work", 2, "delay", 1.0)],
    keys: "",
    batch: 8,
    slots: 4,
    slow_reads: None,
    script: HUNGRY,
    limit_cores: None,
    milliseconds: 1200,
    limit: "",
    says: &[],
    ring: |_, _| true,
};

/// Within 15 %.
fn is_about(found: f64, expected: f64) -> bool {
    (found / expected - 1.0).abs() <= 0.15
}

impl Case {
    fn stream(&self, folder: &Path) -> Arc<Stream> {
        write_samples(&folder.join("data"), false);
        let mut text = format!(
            "dataset = {{ format = \"npy\", path = \"data\", index = \"index\" }}\nbatch.size = {}\nring.slots = {}\n{}\n",
            self.batch, self.slots, self.keys
        );
        for (name, threads, operation, milliseconds) in self.stages {
            // An operation with a number applies to one sample in that many: "delay/100".
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
        let config = read_config(folder, &text, &[]);
        Arc::new(
            Stream::open(
                config,
                forebay_formats::open_configured,
                2,
                OpenOptions::default(),
                Clock::system(),
            )
            .unwrap(),
        )
    }

    /// Runs it and returns the final report.
    fn run(&self) -> DaemonReport {
        let report = Rc::new(std::cell::RefCell::new(None));
        let shared = Rc::clone(&report);
        let folder = tempfile::tempdir().unwrap();
        let slow = self.slow_reads.map(|(milliseconds, one_in)| {
            SlowFolder::new(folder.path().join("data"), Duration::from_millis(milliseconds), one_in)
        });
        on_engine_thread(|| async {
            let stream = self.stream(folder.path());
            let threads = stream.thread_count();
            let pool = PoolOptions {
                threads,
                max_threads: threads * 2,
                fallback_threads: threads,
                // Enough that cores are never the limit.
                granted_cores: 64.0,
                limit_cores: self.limit_cores,
                ..pool()
            };
            let engine = start_pool(&stream, 1 << 20, pool);
            let mut trainer = Trainer::attach(&engine, self.script, 0, 1);
            trainer.train_for(Duration::from_millis(self.milliseconds)).await;
            let found = engine.borrow().report();
            *shared.borrow_mut() = Some(found);
        });
        drop(slow);
        report.take().unwrap()
    }

    /// The difference from the expected verdict, if any.
    fn judge(&self) -> Result<(), String> {
        let report = self.run();
        let verdict = &report.verdict;
        let lacks = self.says.iter().find(|words| !verdict.sentence.contains(**words));
        let first = report.stages.iter().find(|stage| stage.name == self.stages[0].0).unwrap();
        let ring = report.sessions[0].ring.as_ref();
        let is_like = ring.is_some_and(|ring| (self.ring)(ring, first.ave_time));
        if verdict.limit == self.limit && lacks.is_none() && is_like {
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

/// A scripted trainer with its client.
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

    /// As a client does: sleeps on an empty ring, and counts the time waited.
    async fn take(&mut self) -> Descriptor {
        let client = &mut self.client;
        let asked = monotonic_ns();
        if client.publish.published() == client.read {
            if client.returns.announce_sleep(&client.publish) {
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

/// One case for each source of a verdict's metrics.
const CASES: &[Case] = &[
    Case {
        name: "time asleep and busy threads: the first of three stages",
        stages: &[("a", 1, "delay", 6.0), ("b", 1, "delay", 2.0), ("c", 1, "delay", 2.0)],
        limit: "a",
        says: &["the stage `a`", "of 1 thread are busy", "raise its `concurrency` from 1"],
        // A batch has eight samples, which the only thread of `a` processes one after another.
        ring: |ring, sample| {
            is_about(ring.ave_get_time, 8.0 * sample)
                && is_about(ring.qps, 1.0 / (8.0 * sample))
                && ring.occupancy_rate <= 0.05
        },
        ..CASE
    },
    Case {
        name: "the client's waits: a trainer that holds batches",
        slots: 6,
        script: Script { step_ms: 40, holds: 3, ..HUNGRY },
        limit: "trainer",
        says: &["loading is not the limit", "%"],
        ring: |ring, _| is_about(ring.occupancy_rate, 1.0),
        ..CASE
    },
    Case {
        name: "reads: storage before two stages",
        stages: &[("a", 2, "delay", 2.0), ("b", 2, "delay", 3.0)],
        keys: "[[stage]]\nname = \"fetch\"\nconcurrency = 2\n",
        slow_reads: Some((8, 1)),
        limit: "storage",
        says: &["2 at once", "raise `concurrency` of the stage `fetch` from 2"],
        ..CASE
    },
    Case {
        name: "leased slots: a ring whose slots the trainer holds",
        stages: &[("work", 6, "delay", 15.0)],
        batch: 1,
        slots: 8,
        script: Script { holds: 6, ..HUNGRY },
        limit: "ring",
        says: &["(the trainer holds", "keep fewer batches"],
        ..CASE
    },
    Case {
        // Ten batches take 100 ms, and the trainer needs 200 ms for them: it waits nevertheless.
        name: "waits for slots: a ring too small for a trainer that takes batches in bursts",
        stages: &[("work", 1, "delay", 10.0)],
        batch: 1,
        slots: 3,
        script: Script { step_ms: 200, burst: 10, ..HUNGRY },
        limit: "ring",
        says: &["slots were full", "in bursts", "raise ring.slots"],
        ..CASE
    },
    Case {
        name: "the spread of times: one slow sample in a hundred",
        stages: &[("first", 4, "delay", 1.0), ("second", 4, "delay/100", 250.0)],
        milliseconds: 2500,
        limit: "second",
        says: &["slow samples hold up their batches", "p99", "raise ring.slots"],
        ..CASE
    },
    Case {
        name: "time held back: the CPU budget",
        stages: &[("work", 2, "spin", 1.0)],
        limit_cores: Some(0.1),
        limit: "cpu-budget",
        says: &["budget of 0.10 cores", "raise cpu.limit"],
        ..CASE
    },
];

/// A failed case is repeated: another process may have used the machine during it.
const ATTEMPTS: usize = 6;

#[test]
fn limit_follows_from_the_engines_metrics() {
    let attempt = |case: &Case| {
        let mut wrong = String::new();
        for _ in 0..ATTEMPTS {
            match case.judge() {
                Ok(()) => return None,
                Err(words) => wrong.push_str(&words),
            }
        }
        Some(wrong)
    };
    let wrong: Vec<String> = std::thread::scope(|scope| {
        let runs: Vec<_> = CASES.iter().map(|case| scope.spawn(|| attempt(case))).collect();
        runs.into_iter().filter_map(|run| run.join().unwrap()).collect()
    });
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), CASES.len(), wrong.join("\n"));
}

/// The report after one trainer has computed while the other took each batch at once.
fn report_of_two_sessions() -> DaemonReport {
    let report = Rc::new(std::cell::RefCell::new(None));
    let shared = Rc::clone(&report);
    on_engine_thread(|| async {
        let folder = tempfile::tempdir().unwrap();
        let case = Case { stages: &[("work", 1, "delay", 2.0)], ..CASE };
        let engine = start(&case.stream(folder.path()), 1 << 20);
        let script = Script { step_ms: 200, ..HUNGRY };
        let mut works = Trainer::attach(&engine, script, 0, 2);
        let mut waits = Trainer::attach(&engine, HUNGRY, 1, 2);
        let time = Duration::from_millis(1500);
        tokio::join!(works.train_for(time), waits.train_for(time));
        let found = engine.borrow().report();
        *shared.borrow_mut() = Some(found);
    });
    report.take().unwrap()
}

/// Each session has its verdict, and the daemon's verdict is that of the waiting session.
#[test]
fn verdict_of_two_sessions_is_that_of_the_waiting_one() {
    let mut wrong = String::new();
    for _ in 0..ATTEMPTS {
        let report = report_of_two_sessions();
        let limit = |number: usize| Some(report.sessions[number].verdict.as_ref()?.limit.clone());
        let verdict = &report.verdict;
        if limit(0).as_deref() == Some("trainer")
            && limit(1).as_deref() == Some("work")
            && verdict.limit == "work"
            && verdict.sentence.contains("of 2 sessions, session 2 (stream `stream`, rank 1")
        {
            return;
        }
        wrong.push_str(&format!("{}\n  {:?}\n", verdict.sentence, report.sessions));
    }
    panic!("{wrong}");
}
