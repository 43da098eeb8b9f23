//! The scripted pipelines. Each names its true limit, and where it is not plain, why it is.

use super::*;

/// Nobody uses a core in these.
const SLEEPING: &[Case] = &[
    Case {
        name: "the first of three stages",
        stages: &[("a", 1, "delay", 6.0), ("b", 1, "delay", 2.0), ("c", 1, "delay", 2.0)],
        limit: "a",
        says: &["the stage `a`", "of 1 threads busy", "raise its `concurrency` from 1"],
        ..CASE
    },
    Case {
        name: "the second of three stages",
        stages: &[("a", 1, "delay", 2.0), ("b", 1, "delay", 6.0), ("c", 1, "delay", 2.0)],
        limit: "b",
        ..CASE
    },
    Case {
        name: "the last of three stages",
        stages: &[("a", 1, "delay", 2.0), ("b", 1, "delay", 2.0), ("c", 1, "delay", 6.0)],
        limit: "c",
        ..CASE
    },
    Case {
        // 6 ms a row over two threads, against 4 ms.
        name: "the stage with the longer rows has too few threads",
        stages: &[("long", 2, "delay", 12.0), ("short", 1, "delay", 4.0)],
        limit: "long",
        ..CASE
    },
    Case {
        // 2 ms a row over six threads, against 4 ms.
        name: "the stage with the shorter rows has too few threads",
        stages: &[("long", 6, "delay", 12.0), ("short", 1, "delay", 4.0)],
        limit: "short",
        says: &["of 1 threads busy"],
        ..CASE
    },
    Case {
        name: "a stage, although the trainer works",
        stages: &[("work", 1, "delay", 5.0)],
        script: Script { step_ms: 25, ..HUNGRY },
        limit: "work",
        ..CASE
    },
    Case {
        name: "the trainer",
        stages: &[("work", 2, "delay", 1.0)],
        script: Script { step_ms: 40, ..HUNGRY },
        limit: "trainer",
        says: &["loading is not the limit", "%"],
        ..CASE
    },
    Case {
        name: "the trainer, behind three stages",
        stages: &[("a", 1, "delay", 1.0), ("b", 1, "delay", 2.0), ("c", 1, "delay", 1.0)],
        script: Script { step_ms: 80, ..HUNGRY },
        limit: "trainer",
        ..CASE
    },
    Case {
        name: "the trainer, that holds batches",
        slots: 6,
        script: Script { step_ms: 40, holds: 3, ..HUNGRY },
        limit: "trainer",
        ..CASE
    },
    Case {
        name: "storage with two reads at once",
        keys: "[[stage]]\nname = \"fetch\"\nconcurrency = 2\n",
        slow_reads: Some((5, 1)),
        limit: "storage",
        says: &["2 at once", "raise `concurrency` of the stage `fetch` from 2"],
        ..CASE
    },
    Case {
        name: "storage, although the trainer works",
        keys: "[[stage]]\nname = \"fetch\"\nconcurrency = 1\n",
        slow_reads: Some((4, 1)),
        script: Script { step_ms: 20, ..HUNGRY },
        limit: "storage",
        says: &["1 at once"],
        ..CASE
    },
    Case {
        name: "storage before two stages",
        stages: &[("a", 2, "delay", 2.0), ("b", 2, "delay", 3.0)],
        keys: "[[stage]]\nname = \"fetch\"\nconcurrency = 2\n",
        slow_reads: Some((8, 1)),
        limit: "storage",
        ..CASE
    },
    Case {
        name: "not storage, slow as it is",
        stages: &[("work", 1, "delay", 4.0)],
        keys: "[[stage]]\nname = \"fetch\"\nconcurrency = 8\n",
        slow_reads: Some((5, 1)),
        limit: "work",
        ..CASE
    },
    Case {
        name: "one slow read in a hundred",
        stages: &[("work", 2, "delay", 1.0)],
        slow_reads: Some((250, 100)),
        milliseconds: 2500,
        limit: "storage",
        says: &["slow reads hold up their batches", "p99", "raise ring.slots"],
        ..CASE
    },
    Case {
        // Eight threads, and never more than three rows under way.
        name: "a ring of few rows",
        stages: &[("work", 8, "delay", 20.0)],
        batch: 1,
        slots: 3,
        limit: "ring",
        says: &["its 3 slots of 1 samples", "of 8 threads of `work`", "raise ring.slots"],
        ..CASE
    },
    Case {
        name: "a ring whose slots the trainer holds",
        stages: &[("work", 6, "delay", 15.0)],
        batch: 1,
        slots: 8,
        script: Script { holds: 6, ..HUNGRY },
        limit: "ring",
        says: &["of which the trainer holds", "keep fewer batches"],
        ..CASE
    },
    Case {
        name: "a ring of few rows behind two stages",
        stages: &[("a", 4, "delay", 15.0), ("b", 4, "delay", 15.0)],
        batch: 1,
        slots: 3,
        limit: "ring",
        ..CASE
    },
    Case {
        // Ten batches take 100 ms, and the trainer needs 200 ms for them: it waits all the same.
        name: "a ring too small for a trainer that takes batches in bursts",
        stages: &[("work", 1, "delay", 10.0)],
        batch: 1,
        slots: 3,
        script: Script { step_ms: 200, burst: 10, ..HUNGRY },
        limit: "ring",
        says: &["slots were full", "in bursts", "raise ring.slots"],
        ..CASE
    },
    Case {
        name: "one slow sample in a hundred",
        stages: &[("work", 4, "delay/100", 250.0)],
        milliseconds: 2500,
        limit: "work",
        says: &["slow samples hold up their batches", "p99", "raise ring.slots"],
        ..CASE
    },
    Case {
        name: "one slow sample in a hundred, behind a quicker stage",
        stages: &[("first", 4, "delay", 1.0), ("second", 4, "delay/100", 250.0)],
        milliseconds: 2500,
        limit: "second",
        says: &["slow samples hold up their batches"],
        ..CASE
    },
    Case {
        name: "one slow sample in a hundred, with which all threads are busy",
        stages: &[("work", 1, "delay/100", 100.0)],
        slots: 16,
        milliseconds: 2500,
        limit: "work",
        says: &["one sample in"],
        ..CASE
    },
    Case {
        name: "a stage, and a CPU budget that is not reached",
        stages: &[("work", 1, "delay", 4.0)],
        limit_cores: Some(32.0),
        limit: "work",
        ..CASE
    },
];

/// These use cores, so they run by themselves.
const WORKING: &[Case] = &[
    Case {
        name: "the CPU budget",
        stages: &[("work", 2, "spin", 1.0)],
        limit_cores: Some(0.1),
        limit: "cpu-budget",
        says: &["budget of 0.10 cores", "raise cpu.limit"],
        ..CASE
    },
    Case {
        name: "the CPU budget, with two stages",
        stages: &[("a", 1, "spin", 1.0), ("b", 1, "spin", 0.5)],
        limit_cores: Some(0.1),
        limit: "cpu-budget",
        ..CASE
    },
    Case {
        name: "a stage that shares its core with busy neighbours",
        stages: &[("work", 1, "spin", 1.0)],
        granted_cores: 1.0,
        neighbours: Some(3),
        limit: "work",
        says: &["others use the cores", "cpu.cores", "cpu.policy"],
        ..CASE
    },
    Case {
        name: "a stage of lowered threads that shares its core with busy neighbours",
        stages: &[("first", 2, "delay", 0.5), ("work", 2, "spin", 1.0)],
        granted_cores: 1.0,
        policy: CpuPolicy::Idle,
        neighbours: Some(2),
        milliseconds: 2500,
        limit: "work",
        says: &["others use the cores"],
        ..CASE
    },
    Case {
        name: "a stage that uses all of its core",
        stages: &[("work", 2, "spin", 2.0)],
        granted_cores: 1.0,
        neighbours: Some(0),
        limit: "work",
        ..CASE
    },
    Case {
        name: "the heavier of two stages that share their threads",
        stages: &[("light", 0, "spin", 0.5), ("heavy", 0, "spin", 4.0)],
        granted_cores: 1.0,
        neighbours: Some(0),
        limit: "heavy",
        ..CASE
    },
];

/// Runs a case once more where others took the machine in the middle of it: then that may have been the limit.
const ATTEMPTS: usize = 3;

/// So many at once: those that use cores take what others would.
fn judge_all(cases: &[Case], at_once: usize) {
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
    let mut wrong = Vec::new();
    for some in cases.chunks(at_once) {
        std::thread::scope(|scope| {
            let runs: Vec<_> = some.iter().map(|case| scope.spawn(|| attempt(case))).collect();
            for run in runs {
                wrong.extend(run.join().unwrap());
            }
        });
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

#[test]
fn the_limit_is_named_where_everyone_sleeps() {
    judge_all(SLEEPING, 8);
}

#[test]
fn the_limit_is_named_where_cores_are_short() {
    judge_all(WORKING, 1);
}
