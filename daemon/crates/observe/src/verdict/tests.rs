//! The rules and their thresholds for given metrics: ten seconds, 4 threads, 4 cores, 8 slots of 10 rows, unless a test
//! sets others. One of the engine's tests checks that measured metrics give the same verdicts.

use super::*;
use crate::{
    CpuBudgetReport, IsolationItem, QueueReport, RequestReport, StageReport, StreamReport,
};

mod python;
mod requests;

const SECONDS: f64 = 10.0;

/// A stage with these times of its tasks, and the shares of the time on a core and asleep.
fn stage(
    name: &str,
    concurrency: u32,
    times: &[(f64, u64)],
    [on_a_core, asleep]: [f64; 2],
    occupancy_after: f64,
) -> StageReport {
    let num_tasks: u64 = times.iter().map(|(_, count)| count).sum();
    #[expect(clippy::cast_precision_loss, reason = "a small count")]
    let busy_seconds: f64 = times.iter().map(|(seconds, count)| seconds * *count as f64).sum();
    #[expect(clippy::cast_precision_loss, reason = "a small count")]
    let ave_time = busy_seconds / num_tasks as f64;
    StageReport {
        name: name.to_owned(),
        concurrency,
        num_tasks,
        ave_time,
        p90_time: ave_time,
        p99_time: ave_time,
        busy_seconds,
        times: times.to_vec(),
        measured_tasks: if name == "fetch" { 0 } else { num_tasks },
        cpu_seconds: busy_seconds * on_a_core,
        asleep_seconds: busy_seconds * asleep,
        queue: Some(QueueReport { occupancy_rate: occupancy_after, ..QueueReport::default() }),
        ..StageReport::default()
    }
}

const ON_A_CORE: [f64; 2] = [1.0, 0.0];
const ASLEEP: [f64; 2] = [0.0, 1.0];

fn quick_fetch(occupancy_after: f64) -> StageReport {
    stage("fetch", 16, &[(0.0001, 1000)], ASLEEP, occupancy_after)
}

/// The metrics that tests vary.
struct Pipeline {
    stages: Vec<StageReport>,
    others: Vec<StageReport>,
    functions: Vec<StageReport>,
    waited: f64,
    put_wait: f64,
    batches: u64,
    held: u64,
    threads: u32,
    cpu_seconds: f64,
    budget: CpuBudgetReport,
    isolation: Vec<IsolationItem>,
    requests: Option<RequestReport>,
    stalls: Vec<StallReport>,
}

impl Pipeline {
    fn of(stages: Vec<StageReport>) -> Self {
        Self {
            stages,
            others: Vec::new(),
            functions: Vec::new(),
            waited: 5.0,
            put_wait: 0.0,
            batches: 100,
            held: 1,
            threads: 4,
            cpu_seconds: 1.0,
            budget: CpuBudgetReport { granted_cores: 4.0, ..CpuBudgetReport::default() },
            isolation: vec![IsolationItem::class_in_force("idle")],
            requests: None,
            stalls: Vec::new(),
        }
    }

    fn judge(&self) -> Judgement {
        let session = SessionReport {
            session: 1,
            stream: "train".to_owned(),
            seconds: SECONDS,
            batches_published: self.batches,
            batches_taken: self.batches,
            wait_seconds: self.waited,
            put_wait_seconds: self.put_wait,
            slots_filling: 8 - self.held,
            slots_leased: self.held,
            ..SessionReport::default()
        };
        let stream = |name: &str, stages: &[StageReport], functions: &[StageReport]| StreamReport {
            batch_functions: functions.to_vec(),
            name: name.to_owned(),
            stages: stages.to_vec(),
            requests: self.requests.clone(),
            ..StreamReport::default()
        };
        let report = DaemonReport {
            streams: vec![
                stream("train", &self.stages, &self.functions),
                stream("val", &self.others, &[]),
            ],
            threads: self.threads,
            cpu_seconds: self.cpu_seconds,
            cpu_budget: self.budget,
            stalls: self.stalls.clone(),
            cpu_isolation: self.isolation.clone(),
            ..DaemonReport::default()
        };
        judge(&session, &report)
    }

    /// Checks the limit and that the sentence contains the parts.
    fn is_limited_by(&self, limit: &str, says: &[&str]) {
        let Verdict { limit: found, sentence, seconds, .. } = self.judge().verdict;
        assert!(found == limit && seconds == SECONDS, "{found}: {sentence}");
        for words in says {
            assert!(sentence.contains(words), "{sentence} lacks {words}");
        }
    }
}

#[test]
fn trainer_that_hardly_waits_is_the_limit() {
    let busy = stage("work", 4, &[(0.04, 1000)], ON_A_CORE, 1.0);
    let mut pipeline = Pipeline::of(vec![quick_fetch(1.0), busy]);
    pipeline.waited = 0.1;
    pipeline.is_limited_by("trainer", &["waited for data 1 % of the last 10 s"]);
}

#[test]
fn stage_on_all_cores_needs_cores_and_sleeping_stage_needs_threads() {
    let busy = stage("work", 4, &[(0.04, 1000)], ON_A_CORE, 0.0);
    let mut pipeline = Pipeline::of(vec![quick_fetch(1.0), busy]);
    pipeline.cpu_seconds = 40.0;
    pipeline.is_limited_by(
        "work",
        &["a sample takes 40.00 ms, so 4.0 of 4 threads are busy", "waits 50 %", "more cores"],
    );
    let sleeps = stage("work", 4, &[(0.04, 1000)], ASLEEP, 0.0);
    Pipeline::of(vec![quick_fetch(1.0), sleeps])
        .is_limited_by("work", &["100 % of that is sleep: raise its `concurrency` from 4"]);
    let one_thread = stage("work", 1, &[(0.01, 1000)], ON_A_CORE, 0.0);
    Pipeline::of(vec![quick_fetch(1.0), one_thread])
        .is_limited_by("work", &["raise its `concurrency` from 1"]);
}

#[test]
fn stage_with_busy_threads_is_named() {
    let quick = || stage("quick", 1, &[(0.003, 1000)], ASLEEP, 0.9);
    let slow = || stage("slow", 2, &[(0.0195, 1000)], ASLEEP, 0.1);
    Pipeline::of(vec![quick_fetch(0.9), quick(), slow()]).is_limited_by("slow", &[]);
    Pipeline::of(vec![quick_fetch(0.9), slow(), quick()]).is_limited_by("slow", &[]);
    Pipeline::of(vec![quick_fetch(0.9), quick(), slow(), quick()]).is_limited_by("slow", &[]);
    // Longer rows, but enough threads for them.
    let long = stage("long", 6, &[(0.0297, 1000)], ASLEEP, 0.9);
    let short = stage("short", 1, &[(0.0099, 1000)], ASLEEP, 0.1);
    Pipeline::of(vec![quick_fetch(0.9), long, short]).is_limited_by("short", &["of 1 thread"]);
}

#[test]
fn verdict_is_one_short_line_with_its_certainty() {
    let line = |pipeline: &Pipeline| pipeline.judge().verdict.line();
    let mut pipeline = with(busy("work", 4, 3.96, ON_A_CORE));
    assert_eq!(
        line(&pipeline),
        "the stage `work` is the limit · certain · give the daemon more cores"
    );
    pipeline.stages[1] = busy("work", 4, 3.5, ON_A_CORE);
    assert!(line(&pipeline).contains("limit · likely · give"), "{}", line(&pipeline));
    // Few batches give little certainty.
    pipeline.batches = 5;
    assert!(line(&pipeline).contains("limit · possible · give"), "{}", line(&pipeline));
    pipeline.batches = 100;
    pipeline.waited = 0.05;
    assert_eq!(line(&pipeline), "loading is not the limit · certain");
    pipeline.waited = 0.4;
    assert_eq!(line(&pipeline), "loading is not the limit · likely");
    assert_eq!(line(&idle()), "the ring is the limit · possible · raise ring.slots or batch.size");
    pipeline.batches = 0;
    assert_eq!(line(&pipeline), "not enough batches yet");
}

/// The daemon has both of its two cores; the machine has as many more as it could request.
#[test]
fn advice_does_not_need_cores_that_the_machine_lacks() {
    let starved = stage("work", 2, &[(0.02, 1000)], [0.5, 0.0], 0.0);
    let reads = busy("fetch", 16, 0.5, ASLEEP);
    let mut cases = [
        Pipeline::of(vec![quick_fetch(1.0), busy("work", 2, 1.98, ON_A_CORE)]),
        Pipeline::of(vec![quick_fetch(1.0), starved]),
        Pipeline { cpu_seconds: 18.0, ..Pipeline::of(vec![reads, busy("work", 8, 0.1, ASLEEP)]) },
    ];
    for pipeline in &mut cases {
        pipeline.budget.granted_cores = 2.0;
        let needs_cores = |pipeline: &Pipeline| {
            let Verdict { advice, sentence, .. } = pipeline.judge().verdict;
            assert!(!advice.is_empty(), "{sentence}");
            let all = format!("{advice}: {sentence}");
            let words = ["more cores, or", "give the daemon more cores", "reserve cores"];
            (words.iter().any(|words| all.contains(words)), all)
        };
        pipeline.budget.spare_cores = Some(0);
        let (needs, all) = needs_cores(pipeline);
        assert!(!needs && all.contains("make the samples"), "{all}");
        pipeline.budget.spare_cores = Some(30);
        let (needs, all) = needs_cores(pipeline);
        assert!(needs, "{all}");
        // A quota can be raised on any machine.
        (pipeline.budget.spare_cores, pipeline.budget.is_quota) = (Some(0), true);
        assert!(pipeline.judge().verdict.limit == "cpu-budget" || needs_cores(pipeline).0);
    }
}

#[test]
fn sentence_names_the_judged_period() {
    for (seconds, words) in [
        (4.2, "the last 4 s"),
        (46.4, "the last 46 s"),
        (61.0, "the last minute"),
        (600.0, "the last 10 min"),
    ] {
        let session = SessionReport {
            seconds,
            batches_published: 100,
            wait_seconds: seconds / 2.0,
            slots_free: 8,
            ..SessionReport::default()
        };
        let judged =
            |session: &SessionReport| judge(session, &DaemonReport::default()).verdict.sentence;
        let sentence = judged(&session);
        assert!(sentence.contains(&format!("waits 50 % of {words}")), "{sentence}");
        let sentence = judged(&SessionReport { wait_seconds: 0.0, ..session });
        assert!(sentence.ends_with(&format!("waited for data 0 % of {words}")), "{sentence}");
    }
}

#[test]
fn stage_of_another_stream_is_named_with_its_stream() {
    let mut pipeline =
        Pipeline::of(vec![quick_fetch(0.9), stage("work", 4, &[(0.002, 1000)], ON_A_CORE, 0.0)]);
    pipeline.others = vec![quick_fetch(0.9), stage("other", 4, &[(0.037, 1000)], ON_A_CORE, 0.0)];
    // It has the highest utilisation: 3.7 of 4 threads.
    pipeline.is_limited_by("other", &["the stage `other` of the stream `val`"]);
}

#[test]
fn stage_is_kept_off_the_cores_if_rows_wait_and_threads_do_not_run() {
    // For half of a task's time it is ready without a core, and the threads seldom have a task.
    let starved = stage("work", 4, &[(0.02, 1000)], [0.5, 0.0], 0.0);
    let mut pipeline = Pipeline::of(vec![quick_fetch(0.9), starved]);
    pipeline.is_limited_by(
        "work",
        &[
            "other processes use the cores",
            "waited for a core 50 %",
            "1.0 of 4.0 cores",
            "cpu.cores",
        ],
    );
    // All four threads have a task, and none gets more than half a core.
    pipeline.stages[1] = stage("work", 4, &[(0.04, 1000)], [0.5, 0.0], 0.0);
    pipeline.is_limited_by("work", &["2.0 of 4.0 cores", "or set cpu.policy"]);
    // A measure already in force is not advised.
    pipeline.isolation = vec![IsolationItem::class_in_force("batch, nice 10")];
    assert!(!pipeline.judge().verdict.sentence.contains("cpu.policy"));
}

#[test]
fn budget_is_the_limit_only_if_it_throttles_threads() {
    let mut pipeline =
        Pipeline::of(vec![quick_fetch(0.9), stage("work", 4, &[(0.01, 1000)], ON_A_CORE, 0.0)]);
    pipeline.budget.cores = Some(1.0);
    pipeline.budget.held_back_seconds = 20.0;
    pipeline.cpu_seconds = 10.0;
    pipeline.is_limited_by(
        "cpu-budget",
        &["budget of 1.00 cores", "50 % of the time", "raise cpu.limit", "used 1.00 cores"],
    );
    // The budget throttles threads of another stage; the stage with one busy thread is the limit.
    pipeline.stages.push(stage("slow", 1, &[(0.00995, 1000)], ASLEEP, 0.0));
    pipeline.is_limited_by("slow", &[]);
    // Two stages share the budget.
    pipeline.stages[2] = stage("second", 4, &[(0.005, 1000)], ON_A_CORE, 0.0);
    pipeline.is_limited_by("cpu-budget", &[]);
    // A budget far above the use.
    (pipeline.budget.cores, pipeline.budget.held_back_seconds) = (Some(32.0), 0.0);
    pipeline.stages[2] = stage("slow", 1, &[(0.00995, 1000)], ASLEEP, 0.0);
    pipeline.is_limited_by("slow", &[]);
}

#[test]
fn reads_that_occupy_half_of_the_lanes_are_the_limit() {
    let work = || stage("work", 4, &[(0.001, 1000)], ON_A_CORE, 0.0);
    let reads = |lanes| stage("fetch", lanes, &[(0.02, 1000)], ASLEEP, 0.1);
    Pipeline::of(vec![reads(2), work()]).is_limited_by(
        "storage",
        &["a read takes 20.00 ms and 2 at once give 100 samples/s", "`fetch` from 2"],
    );
    Pipeline::of(vec![reads(4), work()])
        .is_limited_by("storage", &["2.0 of 4 at once", "ring.slots or batch.size"]);
    Pipeline::of(vec![reads(2), work(), work()]).is_limited_by("storage", &[]);
    // Reads take longer than rows, but enough of them are in flight.
    let slow_work = stage("work", 1, &[(0.0099, 1000)], ASLEEP, 0.0);
    let reads = stage("fetch", 8, &[(0.02, 1000)], ASLEEP, 0.9);
    Pipeline::of(vec![reads, slow_work]).is_limited_by("work", &[]);
}

#[test]
fn idle_threads_and_a_full_ring_need_slots() {
    let idle = || stage("work", 8, &[(0.02, 1000)], ASLEEP, 0.0);
    let mut pipeline = Pipeline::of(vec![quick_fetch(0.0), idle()]);
    pipeline.held = 6;
    pipeline.is_limited_by(
        "ring",
        &[
            "8 slots of 10 samples (the trainer holds 6)",
            "2.0 of 8 threads of `work`",
            "raise ring.slots",
        ],
    );
    // The busiest of two stages is named.
    pipeline.stages.push(stage("second", 8, &[(0.005, 1000)], ASLEEP, 0.0));
    pipeline.is_limited_by("ring", &["2.0 of 8 threads of `work`", "raise ring.slots"]);
    pipeline.put_wait = 4.0;
    pipeline
        .is_limited_by("ring", &["were full 40 % of the time", "in bursts", "raise ring.slots"]);
}

#[test]
fn slow_samples_are_the_limit_if_they_outlast_the_ring() {
    // 10 of 1000 take 5 s together, and the trainer waits 5 s; a batch takes 100 ms.
    let mut pipeline = Pipeline::of(vec![
        quick_fetch(0.0),
        stage("work", 8, &[(0.001, 990), (0.5, 10)], ASLEEP, 0.0),
    ]);
    pipeline.is_limited_by(
        "work",
        &["one in 100 takes 500.00 ms, the median 1.00 ms", "the 8 slots", "errors.quarantine"],
    );
    pipeline.stages.insert(1, stage("first", 4, &[(0.001, 1000)], ASLEEP, 0.0));
    pipeline.is_limited_by("work", &["one in 100 takes 500.00 ms"]);
    pipeline.stages.remove(1);
    pipeline.stages[1] = stage("work", 8, &[(0.001, 990), (0.2, 10)], ASLEEP, 0.0);
    pipeline.is_limited_by("ring", &[]);
    // If slow samples keep all threads busy, the stage lacks threads.
    pipeline.stages[1] = stage("work", 1, &[(0.001, 990), (0.9, 10)], ASLEEP, 0.0);
    pipeline
        .is_limited_by("work", &["raise its `concurrency`", "one sample in 100 takes 900.00 ms"]);
    let reads = stage("fetch", 16, &[(0.001, 990), (0.5, 10)], ASLEEP, 0.0);
    let idle = stage("work", 4, &[(0.001, 1000)], ASLEEP, 0.0);
    Pipeline::of(vec![reads, idle])
        .is_limited_by("storage", &["slow reads hold up", "use steadier storage"]);
}

#[test]
fn without_batches_only_stalls_are_judged() {
    let mut pipeline = Pipeline::of(vec![quick_fetch(0.0)]);
    pipeline.batches = 1;
    pipeline.waited = 9.0;
    pipeline.is_limited_by("none", &["not enough batches yet"]);
    pipeline.stalls = vec![StallReport {
        session: 1,
        stage: "fetch".to_owned(),
        sentence: "sample 3 hangs".to_owned(),
        ..StallReport::default()
    }];
    pipeline.is_limited_by("storage", &["sample 3 hangs"]);
    // With batches too, because rates do not include a hanging sample.
    pipeline.batches = 100;
    pipeline.is_limited_by("storage", &["sample 3 hangs"]);
    pipeline.waited = 0.0;
    pipeline.is_limited_by("trainer", &[]);
}

#[test]
fn session_that_waits_most_determines_the_daemons_verdict() {
    let session = |session: u64, stream: &str| SessionReport {
        session,
        stream: stream.to_owned(),
        world_size: 1,
        ..SessionReport::default()
    };
    let sessions = [session(1, "train"), session(2, "val")];
    let judgement = |session: u64, limit: &str, wait_share: f64| {
        let verdict = Verdict {
            limit: limit.to_owned(),
            sentence: format!("it is {limit}"),
            ..Verdict::default()
        };
        Judgement { session, wait_share, verdict, window: WindowReport::default() }
    };
    let both = [judgement(1, "trainer", 0.01), judgement(2, "decode", 0.4)];
    let verdict = of_daemon(&both, &sessions);
    assert_eq!(verdict.limit, "decode");
    let words = "of 2 sessions, session 2 (stream `val`, rank 0 of 1) waits most: it is decode";
    assert_eq!(verdict.sentence, words);
    // A new session has no verdict yet.
    let early = [judgement(1, "decode", 0.4), judgement(2, "none", 1.0)];
    assert_eq!(of_daemon(&early, &sessions).limit, "decode");
    assert_eq!(of_daemon(&both[..1], &sessions[..1]).sentence, "it is trainer");
    assert_eq!(of_daemon(&[], &[]).limit, "none");
}

/// A pipeline in which nothing is busy: the ring is the limit.
fn idle() -> Pipeline {
    with(stage("work", 8, &[(0.001, 1000)], ASLEEP, 0.0))
}

fn with(work: StageReport) -> Pipeline {
    Pipeline::of(vec![quick_fetch(0.0), work])
}

/// A stage with `threads` threads busy on average.
fn busy(name: &str, concurrency: u32, threads: f64, shares: [f64; 2]) -> StageReport {
    stage(name, concurrency, &[(threads * SECONDS / 1000.0, 1000)], shares, 0.0)
}

/// Checks the limit and the words of its sentence one percent below a threshold and one percent above it.
fn changes(at: f64, limits: [(&str, &str); 2], pipeline: impl Fn(f64) -> Pipeline) {
    for (value, (limit, words)) in [0.99 * at, 1.01 * at].into_iter().zip(limits) {
        pipeline(value).is_limited_by(limit, &[words]);
    }
}

const RING: (&str, &str) = ("ring", "too few samples in flight");
const WORK: (&str, &str) = ("work", "the stage `work` is the limit");

#[test]
fn thresholds_of_the_trainer_and_of_budgets() {
    changes(0.5, [("trainer", "5 %"), RING], |waited| Pipeline { waited, ..idle() });
    let budget = |pipeline: Pipeline, held_back_seconds| Pipeline {
        budget: CpuBudgetReport { cores: Some(1.0), held_back_seconds, ..pipeline.budget },
        ..pipeline
    };
    let of_budget = ("cpu-budget", "budget of 1.00 cores");
    changes(4.0, [RING, of_budget], |seconds| budget(idle(), seconds));
    changes(0.95, [of_budget, WORK], |threads| {
        budget(with(busy("work", 1, threads, ASLEEP)), 20.0)
    });
    changes(
        12.75,
        [
            RING,
            (
                "cpu-budget",
                "of 1.50 granted cores while the trainer waits 50 % of the last 10 s; raise the quota (cpu.max)",
            ),
        ],
        |cpu_seconds| Pipeline {
            cpu_seconds,
            budget: CpuBudgetReport { granted_cores: 1.5, is_quota: true, ..idle().budget },
            ..idle()
        },
    );
}

#[test]
fn thresholds_of_busy_threads_and_cores() {
    changes(0.85, [RING, WORK], |threads| with(busy("work", 1, threads, ASLEEP)));
    // 3.4 of the 4 threads that two stages share.
    changes(2.4, [RING, ("heavy", "")], |threads| {
        let (light, heavy) = (busy("light", 8, 1.0, ASLEEP), busy("heavy", 8, threads, ASLEEP));
        Pipeline::of(vec![quick_fetch(0.0), light, heavy])
    });
    // 3.4 of the 4 cores, with threads to spare.
    changes(3.4, [RING, WORK], |cores| Pipeline {
        threads: 16,
        ..with(busy("work", 8, cores, ON_A_CORE))
    });
    changes(0.5, [RING, WORK], |occupancy| {
        Pipeline::of(vec![quick_fetch(occupancy), idle().stages.remove(1)])
    });
}

#[test]
fn thresholds_of_tasks_kept_off_the_cores() {
    let kept_off =
        |threads, ready, asleep| with(busy("work", 8, threads, [1.0 - ready - asleep, asleep]));
    changes(0.15, [RING, WORK], |ready| kept_off(2.0, ready, 0.0));
    changes(0.5, [WORK, RING], |asleep| kept_off(2.0, 0.3, asleep));
    // One second without a core explains a quarter of the wait.
    changes(4.0, [WORK, RING], |waited| Pipeline { waited, ..kept_off(0.5, 0.2, 0.0) });
    // The daemon's threads compete with each other rather than with other processes.
    let remedies = [("work", "give the daemon more cores"), ("work", "other processes use")];
    changes(3.8, remedies, |granted_cores| {
        let pipeline = with(busy("work", 4, 3.8, [0.7, 0.0]));
        Pipeline { budget: CpuBudgetReport { granted_cores, ..pipeline.budget }, ..pipeline }
    });
}

#[test]
fn thresholds_of_slow_samples() {
    let slow =
        |seconds, tasks| with(stage("work", 8, &[(0.001, 990), (seconds, tasks)], ASLEEP, 0.0));
    let tail = ("work", "slow samples hold up their batches");
    // Half a ring, at ten batches a second.
    changes(0.4, [RING, tail], |seconds| slow(seconds, 10));
    // Two seconds explain a quarter of the wait.
    changes(8.0, [tail, RING], |waited| Pipeline { waited, ..slow(0.5, 4) });
    for (tasks, (limit, words)) in [(110, tail), (111, RING)] {
        let pipeline = Pipeline { threads: 64, ..slow(0.5, tasks) };
        pipeline.is_limited_by(limit, &[words]);
    }
    // 30 % of a stage's time is mentioned.
    let full = |seconds| with(stage("work", 1, &[(0.008, 990), (seconds, 10)], ASLEEP, 0.0));
    let sentence = |seconds: f64| full(seconds).judge().verdict.sentence;
    let words = "one sample in 100 takes";
    assert!(!sentence(0.335).contains(words) && sentence(0.344).contains(words));
}

#[test]
fn thresholds_of_the_ring_and_of_reads() {
    let full = ("ring", "in bursts");
    changes(1.0, [RING, full], |put_wait| Pipeline { put_wait, waited: 2.0, ..idle() });
    changes(2.0, [RING, full], |put_wait| Pipeline { put_wait, waited: 8.0, ..idle() });
    let reads = |lanes, threads, work| {
        Pipeline::of(vec![busy("fetch", lanes, threads, ASLEEP), busy("work", 8, work, ASLEEP)])
    };
    let storage = ("storage", "so that more samples are read at once");
    changes(1.6, [RING, storage], |threads| reads(4, threads, 0.1));
    changes(2.0, [storage, RING], |work| reads(4, 2.0, work));
    changes(34.0, [RING, ("storage", "give the daemon more cores")], |cpu_seconds| Pipeline {
        cpu_seconds,
        ..reads(16, 0.5, 0.1)
    });
}

#[test]
fn sleeping_stage_with_auto_threads_needs_a_number_or_memory() {
    let mut sleeps = busy("work", 4, 4.0, ASLEEP);
    sleeps.concurrency_reason = "4 threads: a row takes 1 ms of sleep".to_owned();
    with(sleeps).is_limited_by("work", &["set its `concurrency` above 4, or raise ring.memory"]);
}
