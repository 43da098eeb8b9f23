//! The byte budget under random conditions: samples of all sizes, bad samples, kept batches, seeks, a second client
//! that stops taking, rows shared by the two, blocks shared by samples, stages and lanes of all widths. For every schedule the first client
//! gets its batches, each row is the one that the order names, and all bytes are released.
//!
//! `PROPTEST_CASES=100000` runs as many schedules; the default is some hundreds.

use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::*;
use forebay_formats::testing::BlockFolder;

/// Number of batches of the first client in a schedule: enough to use every slot again.
const BATCHES: u32 = 10;
const SCHEDULES: u32 = 300;

#[derive(Debug, Clone)]
struct Plan {
    /// From a fraction of the smallest sample to more than all slots need: bytes of samples, and bytes for unpacking
    /// them in addition to `covered_bytes`.
    fetch_bytes: u64,
    work_bytes: u64,
    covered_bytes: u64,
    /// Bytes needed for unpacking a sample, as a multiple of its bytes.
    takes: u64,
    bad_samples: bool,
    /// Whether samples share blocks.
    blocks: bool,
    lanes: u32,
    slots: u32,
    /// Threads of each stage; 0: auto.
    stages: Vec<u32>,
    /// Whether one row in a hundred sleeps.
    sleeps: bool,
    /// Maximal number of batches that the first client keeps.
    kept: u32,
    /// Batches that the second client takes before it stops; `None`: there is no second client.
    idle_client: Option<u32>,
    /// Whether the second client is another trainer of the same rows, and the window's bytes.
    shares: Option<u64>,
    seed: u64,
}

fn plans() -> impl Strategy<Value = Plan> {
    let budget = || prop_oneof![1..2_000_u64, 2_000..40_000_u64, Just(1 << 20)];
    let budgets = (budget(), budget(), prop_oneof![Just(0), 100..20_000_u64], 0..4_u64);
    let engine = (budgets, 1..8_u32, 3..8_u32, prop::collection::vec(0..4_u32, 1..4));
    let data = (any::<bool>(), any::<bool>());
    let client = (data, prop::bool::weighted(0.1), 0..6_u32, prop::option::of(0..3_u32));
    let shares = prop::option::of(prop_oneof![Just(1), 500..50_000_u64]);
    (engine, client, shares, any::<u64>()).prop_map(|(engine, client, shares, seed)| {
        let (budgets, lanes, slots, stages) = engine;
        let (fetch_bytes, work_bytes, covered_bytes, takes) = budgets;
        let ((bad_samples, blocks), sleeps, kept, idle_client) = client;
        let kept = kept.min(slots - 2);
        Plan {
            fetch_bytes,
            work_bytes,
            covered_bytes,
            takes,
            bad_samples,
            blocks,
            lanes,
            slots,
            stages,
            sleeps,
            kept,
            idle_client,
            shares,
            seed,
        }
    })
}

/// Arrays of four numbers in files of 160 bytes to 10 kB: their headers are padded, as the format allows.
fn write_sized_samples(folder: &Path, bad_samples: bool) {
    std::fs::create_dir_all(folder).unwrap();
    for sample in 0..SAMPLES {
        // The other byte order: not read directly into the row, which would take no bytes of the budget.
        let elements: Vec<u8> = (0..4).flat_map(|_| sample.to_be_bytes()).collect();
        let text = "{'descr': '>i8', 'fortran_order': False, 'shape': (4,), }";
        let length: u16 = match sample % 8 {
            0 => 9_900,
            1 => 4_000,
            _ => 118 + u16::try_from(sample).unwrap() * 16,
        };
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend(length.to_le_bytes());
        bytes.extend(format!("{text:<width$}\n", width = usize::from(length) - 1).into_bytes());
        bytes.extend(elements);
        if bad_samples && is_bad(sample) {
            bytes[0] = 0;
        }
        std::fs::write(folder.join(format!("{sample:03}.npy")), bytes).unwrap();
    }
}

fn open(folder: &Path, plan: &Plan) -> Arc<Stream> {
    let data = if plan.bad_samples { "bad" } else { "good" };
    let format = if plan.blocks { "test-blocks" } else { "npy" };
    let mut text = format!(
        "[dataset]\nformat = \"{format}\"\npath = \"{format}-{data}\"\nindex = \"index-{data}\"\n[order]\nshuffle = false\n\
         [batch]\nsize = 8\n[errors]\non_bad_sample = \"substitute\"\nbudget = 1000000\n\
         [listen]\nmax_sessions = 2\n[ring]\nslots = {}\n[[stage]]\nname = \"fetch\"\nconcurrency = {}\n",
        plan.slots, plan.lanes
    );
    if let Some(bytes) = plan.shares {
        text += &format!("[share]\nwindow = {bytes}\n");
    }
    for (number, threads) in plan.stages.iter().enumerate() {
        let concurrency = if *threads == 0 { "\"auto\"".into() } else { threads.to_string() };
        let delay = "{ op = \"delay\", milliseconds = 1, probability = 0.01 }";
        let delay = if plan.sleeps { delay } else { "" };
        let comma = if plan.sleeps { "," } else { "" };
        let operations = format!("{{ op = \"takes\", times = {} }}{comma}{delay}", plan.takes);
        text += &format!(
            "[[stage]]\nname = \"s{number}\"\nconcurrency = {concurrency}\noperations = [{operations}]\n"
        );
    }
    open_config(read_config(folder, &text, &[]), Clock::system()).unwrap()
}

async fn run(stream: Arc<Stream>, plan: Plan) {
    let Plan { fetch_bytes, work_bytes, covered_bytes, .. } = plan;
    let budgets = ByteBudgets { fetch_bytes, work_bytes, covered_bytes };
    let engine = start_within(&stream, budgets, pool());
    let work = tokio::time::timeout(WATCHDOG / 2, take(&engine, plan));
    if work.await.is_err() {
        panic!("the engine stands still: {:?}", engine.borrow());
    }
}

async fn take(engine: &SharedEngine, plan: Plan) {
    let mut draws = Draws::new(DrawKey { seed: plan.seed, epoch: 0, sample: 0 }, 0);
    let mut client = Client::attach(engine, plan.bad_samples);
    let mut idle = plan.idle_client.map(|_| match plan.shares {
        Some(_) => Client::attach_trainer(engine, plan.bad_samples, "second"),
        None => Client::attach_as(engine, plan.bad_samples, 1, 2),
    });
    let mut held = VecDeque::new();
    for taken in 0..BATCHES {
        if let Some(idle) = idle.as_mut().filter(|_| plan.idle_client > Some(taken)) {
            let batch = idle.next().await;
            idle.check(&batch);
        }
        let batch = client.next().await;
        if batch.seek_serial == client.serial {
            client.check(&batch);
        }
        held.push_back(batch);
        while held.len() > plan.kept as usize {
            let place = usize::try_from(draws.below(held.len() as u64)).unwrap();
            client.give_back(&held.remove(place).unwrap());
        }
        if draws.below(10) == 0 {
            client.seek(draws.below(SAMPLES / 8) * 8);
        }
    }
    for client in idle.iter().chain([&client]) {
        engine.borrow_mut().detach(client.number, &SessionEnd::ClientLeft);
    }
    let held = |engine: &Engine| engine.gates.fetch.in_use() + engine.gates.work.in_use();
    while held(&engine.borrow()) > 0 {
        tokio::time::sleep(Duration::from_micros(200)).await;
    }
}

#[test]
fn no_schedule_deadlocks_the_byte_budget() {
    let folder = tempfile::tempdir().unwrap();
    for (data, bad_samples) in [("good", false), ("bad", true)] {
        write_sized_samples(&folder.path().join(format!("npy-{data}")), bad_samples);
        let blocks = folder.path().join(format!("test-blocks-{data}"));
        BlockFolder::write(&blocks, SAMPLES, |sample| bad_samples && is_bad(sample));
    }
    let mut config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = SCHEDULES;
    }
    let cases = config.cases;
    TestRunner::new(config)
        .run(&plans(), |plan| {
            let stream = open(folder.path(), &plan);
            on_engine_thread(|| run(stream, plan));
            Ok(())
        })
        .unwrap();
    println!("{cases} schedules ended");
}
