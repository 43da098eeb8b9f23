//! Stages with the user's Python functions are judged by their workers.

use super::*;
use crate::{HotSpotReport, PythonReport};

/// A thousand samples in `workers` workers, of which `busy` are busy on average; the function has a share `of_function`
/// of the time.
fn python(workers: u32, busy: f64, of_function: f64) -> StageReport {
    let seconds = busy * SECONDS;
    let num_tasks = 1000;
    let function_seconds = seconds * of_function;
    let ave_time = function_seconds / 1000.0;
    StageReport {
        name: "augment".to_owned(),
        concurrency: workers,
        num_tasks,
        ave_time,
        busy_seconds: function_seconds,
        times: vec![(ave_time, num_tasks)],
        // Its threads sleep nearly all the time.
        measured_tasks: num_tasks,
        cpu_seconds: 0.1,
        asleep_seconds: 3.0 * SECONDS,
        python: Some(PythonReport {
            place: "augment".to_owned(),
            function: "own.transforms:augment".to_owned(),
            workers,
            threads: workers + 1,
            num_calls: num_tasks,
            ave_time,
            function_seconds,
            beside_seconds: seconds - function_seconds,
            copy_seconds: 0.3,
            hot_spot: Some(HotSpotReport { name: "albumentations.Blur".to_owned(), share: 0.62 }),
            ..PythonReport::default()
        }),
        queue: Some(QueueReport::default()),
        ..StageReport::default()
    }
}

fn with(decode: StageReport, python: StageReport) -> Pipeline {
    let threads = 4 + python.concurrency + 1;
    Pipeline { threads, ..Pipeline::of(vec![quick_fetch(1.0), decode, python]) }
}

fn decode(threads: f64, occupancy_after: f64) -> StageReport {
    stage("decode", 4, &[(threads * SECONDS / 1000.0, 1000)], ON_A_CORE, occupancy_after)
}

#[test]
fn function_that_keeps_all_workers_busy_is_named_with_its_hot_spot() {
    let pipeline = with(decode(0.5, 1.0), python(2, 1.96, 0.98));
    pipeline.is_limited_by(
        "augment",
        &[
            "the stage `augment` (Python) is the limit: 19.21 ms a sample, most of it in `albumentations.Blur` (62 %), so \
             2.0 of 2 workers are busy while the trainer waits 50 % of the last 10 s; raise its `workers` from 2, or use a \
             native operation",
        ],
    );
    let verdict = pipeline.judge().verdict;
    assert_eq!(verdict.advice, "raise its `workers` from 2");
    assert_eq!(verdict.what, "the stage `augment` (Python) is the limit");
}

#[test]
fn hot_spot_in_the_function_itself_is_not_named_separately() {
    let mut stage = python(4, 3.9, 0.98);
    let own = HotSpotReport { name: "own.augment".to_owned(), share: 1.0 };
    stage.python.as_mut().unwrap().hot_spot = Some(own);
    with(decode(0.5, 1.0), stage).is_limited_by(
        "augment",
        &[" is the limit: 38.22 ms a sample, so 3.9 of 4 workers", "give the daemon more cores"],
    );
    let mut pipeline = with(decode(0.5, 1.0), python(4, 3.9, 0.98));
    pipeline.budget.spare_cores = Some(0);
    let verdict = pipeline.judge().verdict;
    assert_eq!(verdict.advice, "use a native operation", "the machine has no more cores");
    assert!(!verdict.sentence.contains("more cores"), "{}", verdict.sentence);
    // Workers are slowed down although samples wait.
    with(decode(0.5, 1.0), python(2, 1.2, 0.9)).is_limited_by(
        "augment",
        &[
            "10.80 ms a sample, most of it in `albumentations.Blur` (62 %), so 1.2 of 2",
            "more cores",
        ],
    );
}

#[test]
fn copying_is_named_if_it_takes_most_of_the_time() {
    let pipeline = with(decode(0.5, 1.0), python(2, 1.9, 0.2));
    let says = "19.00 ms a sample, and 3.80 ms of that in the function: the rest is copying";
    pipeline.is_limited_by("augment", &[says, "use a native operation"]);
    // Rows wait for workers that are not busy.
    let pipeline = with(decode(0.5, 1.0), python(2, 0.5, 0.1));
    let says = ["although 0.5 of 2 workers are busy", "0.50 ms in the function, and 4.80 ms to be"];
    pipeline.is_limited_by("augment", &says);
}

#[test]
fn frequent_worker_starts_are_reported() {
    let mut stage = python(2, 0.5, 0.9);
    let figures = stage.python.as_mut().unwrap();
    (figures.num_starts, figures.start_seconds) = (6, 9.0);
    let pipeline = with(decode(0.5, 1.0), stage);
    pipeline.is_limited_by("augment", &["were started 6 times, 1500.00 ms each", "see in the log"]);
}

/// A stage with calls that exceeded the timeout of two seconds.
fn with_timeouts(workers: u32, num_timeouts: u32) -> StageReport {
    let mut stage = python(workers, 0.02, 0.9);
    let figures = stage.python.as_mut().unwrap();
    figures.num_timeouts = num_timeouts.into();
    figures.timeout_seconds = 2.0 * f64::from(num_timeouts);
    stage
}

#[test]
fn calls_that_exceed_their_timeout_are_the_limit_although_nothing_else_is_busy() {
    let hung = |workers, timeouts| Pipeline {
        waited: 9.0,
        ..with(decode(0.1, 0.1), with_timeouts(workers, timeouts))
    };
    let pipeline = hung(2, 9);
    pipeline.is_limited_by(
        "augment",
        &[
            "the stage `augment` (Python) is the limit: 9 of its calls exceeded its `timeout`, after 2000.00 ms each, so \
             1.8 of 2 workers are busy while the trainer waits 90 % of the last 10 s; see in the log which samples hang, or \
             lower its `timeout`",
        ],
    );
    assert_eq!(pipeline.judge().verdict.advice, "see in the log which samples hang");
    // A batch waits for its sample while the other workers are idle.
    hung(8, 4).is_limited_by("augment", &["4 of its calls exceeded", "so 0.8 of 8 workers"]);
    // The same beside as much good work of the others.
    let mut working = hung(8, 4);
    let figures = working.stages.iter_mut().find_map(|stage| stage.python.as_mut()).unwrap();
    figures.function_seconds += 20.0;
    working.is_limited_by("augment", &["4 of its calls exceeded", "see in the log"]);
    // The samples that wait for these workers wait for the hung calls, too.
    let mut waiting = hung(8, 4);
    waiting.stages[1].queue.as_mut().unwrap().occupancy_rate = 1.0;
    waiting.is_limited_by("augment", &["4 of its calls exceeded"]);
    // They are too few to explain the wait.
    let mut few = hung(8, 1);
    few.stages[0] = quick_fetch(0.1);
    few.is_limited_by("ring", &["no more than 0.2 of 8 workers"]);
    // Storage is the limit, and some calls exceed a short timeout.
    let mut reads = hung(8, 2);
    reads.stages[0] = stage("fetch", 16, &[(0.08, 1000)], ASLEEP, 0.0);
    reads.is_limited_by("storage", &[]);
}

#[test]
fn threads_that_wait_for_workers_do_not_count_as_busy() {
    // A function that takes little time, after a native stage whose threads are all busy.
    with(decode(3.9, 0.1), python(2, 0.2, 0.5)).is_limited_by("decode", &["3.9 of 4 threads"]);
    // Two native stages share four threads; the Python stage has three more.
    let asleep = |name, threads: f64| stage(name, 4, &[(threads / 100.0, 1000)], ASLEEP, 0.1);
    let stages =
        vec![quick_fetch(0.1), asleep("decode", 2.1), asleep("other", 1.5), python(2, 0.2, 0.5)];
    let pipeline = Pipeline { threads: 7, ..Pipeline::of(stages) };
    pipeline.is_limited_by("decode", &["the stage `decode` is the limit"]);
    // If nothing is busy, the workers are counted; the times of threads that wait for them are ignored.
    let mut pipeline = with(decode(0.1, 0.1), python(2, 0.9, 0.9));
    pipeline.stages[0] = quick_fetch(0.1);
    pipeline.stages[2].asleep_seconds = 0.0;
    pipeline.is_limited_by("ring", &["no more than 0.9 of 2 workers of `augment` are busy"]);
}

#[test]
fn cores_used_by_workers_are_not_other_processes() {
    // Native threads wait for a core 40 % of their time.
    let waiting = stage("decode", 4, &[(0.0395, 1000)], [0.6, 0.0], 0.1);
    with(waiting.clone(), python(2, 1.2, 0.9)).is_limited_by("decode", &["more cores"]);
    with(waiting, python(2, 0.1, 0.9)).is_limited_by("decode", &["other processes use the cores"]);
}

/// A function on complete batches, for a hundred batches.
fn on_batches(workers: u32, busy: f64, of_function: f64) -> StageReport {
    let mut stage = python(workers, busy, of_function);
    "batch.operations[0]".clone_into(&mut stage.name);
    (stage.is_of_batches, stage.num_tasks, stage.queue) = (true, 100, None);
    stage.ave_time = stage.busy_seconds / 100.0;
    stage.times = vec![(stage.ave_time, 100)];
    let figures = stage.python.as_mut().unwrap();
    (figures.num_calls, figures.ave_time, figures.threads) = (100, stage.ave_time, workers);
    stage
}

#[test]
fn function_on_batches_is_judged_like_a_stage() {
    let of = |function| {
        let stages = vec![quick_fetch(1.0), decode(0.5, 0.0)];
        let threads = 4 + 2;
        Pipeline { threads, functions: vec![function], ..Pipeline::of(stages) }
    };
    let pipeline = of(on_batches(2, 1.96, 0.98));
    pipeline.is_limited_by(
        "batch.operations[0]",
        &[
            "the function on batches `batch.operations[0]` (Python) is the limit: 192.08 ms a batch in \
             `own.transforms:augment`, most of it in `albumentations.Blur` (62 %), so 2.0 of 2 workers are busy while the \
             trainer waits 50 % of the last 10 s; raise its `workers` from 2, or move what it does to single samples to a stage",
        ],
    );
    let window = pipeline.judge().window;
    let last = window.stages.last().unwrap();
    assert_eq!((last.name.as_str(), last.is_of_batches), ("batch.operations[0]", true));
    assert!((last.busy - 1.96).abs() < 1e-9 && last.tasks_per_second == 10.0, "{last:?}");
    assert_eq!(window.samples_per_second, 100.0, "of the last stage, not of what works on batches");
    let says = "190.00 ms a batch, and 38.00 ms of that in the function: the rest is copying";
    of(on_batches(2, 1.9, 0.2)).is_limited_by("batch.operations[0]", &[says]);
    // Its threads wait for workers: four others remain for the stages.
    let mut pipeline = of(on_batches(2, 0.2, 0.9));
    pipeline.stages[1] = stage("decode", 6, &[(3.7 * SECONDS / 1000.0, 1000)], ON_A_CORE, 0.1);
    pipeline.is_limited_by("decode", &["the stage `decode` is the limit"]);
    // Batches wait, and the workers are slowed down.
    let mut function = on_batches(2, 1.2, 0.9);
    function.python.as_mut().unwrap().wait_seconds = 0.8 * SECONDS;
    of(function)
        .is_limited_by("batch.operations[0]", &["so 1.2 of 2 workers are busy", "more cores"]);
    // The ring's rows are samples.
    let mut pipeline = of(on_batches(2, 0.2, 0.9));
    pipeline.stages[0] = quick_fetch(0.1);
    pipeline.is_limited_by("ring", &["slots of 10 samples"]);
}
