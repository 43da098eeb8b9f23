//! Blocks shared by samples: each is read once and its bytes are counted once. Whatever happens to some rows of a
//! block, the others get their bytes, and all bytes are released.

use super::*;
use forebay_formats::testing::BlockFolder;
use forebay_storage::{Objects, SlowFolder, StalledFile};

/// The conformance suites for a new storage or format in a separate crate.
#[test]
fn conformance_suites_run_from_another_crate() {
    forebay_storage::conformance::run(Arc::<Objects>::default);
    forebay_formats::conformance::run(&forebay_formats::conformance::Format {
        open: forebay_formats::open,
        name: BlockFolder::FORMAT.name,
        make: |folder, samples| {
            BlockFolder::write(folder, samples as u64, |_| false);
            folder.to_owned()
        },
        has_names: false,
        refuses_cuts: true,
    });
}

/// Number of blocks of arrays and of labels.
const BLOCKS: u64 = SAMPLES / BlockFolder::ARRAYS_IN_BLOCK + SAMPLES / BlockFolder::LABELS_IN_BLOCK;
const BLOCK_BYTES: u64 = SAMPLES / BlockFolder::ARRAYS_IN_BLOCK * BlockFolder::ARRAY_BLOCK_BYTES
    + SAMPLES / BlockFolder::LABELS_IN_BLOCK * BlockFolder::LABEL_BLOCK_BYTES;

/// A stream whose slots hold all samples at once.
fn open(folder: &Path, clock: Clock, keys: &[&str]) -> Arc<Stream> {
    BlockFolder::write(&folder.join("data"), SAMPLES, |_| false);
    let text = "[dataset]\nformat = \"test-blocks\"\npath = \"data\"\n[order]\nshuffle = false\n[batch]\nsize = 8\n\
                [ring]\nslots = 9\n[listen]\nmax_sessions = 2\n\
                [[stage]]\nname = \"fetch\"\nconcurrency = 4\n\
                [[stage]]\nname = \"work\"\nconcurrency = 1\noperations = []\n\
                [[stage]]\nname = \"after\"\nconcurrency = 2\noperations = []\n";
    let config = read_config(folder, text, keys);
    open_config(config, clock).unwrap()
}

/// Checks that a batch's labels and arrays match its ids.
fn check_by_id(client: &Client, batch: &Descriptor) {
    let base = client.terms.slot_bytes * u64::from(batch.slot.0);
    let word = |byte: u64| {
        let word = client.data.word(usize::try_from((base + byte) / 8).unwrap());
        word.load(forebay_protocol::sync::Ordering::Relaxed)
    };
    let [array, label, index] = &batch.tensors[..] else { panic!("three tensors") };
    for row in 0..batch.rows {
        let id = word(index.offset_bytes + 8 * row);
        assert_eq!(word(label.offset_bytes + 8 * row), 10 * id);
        for element in 0..4 {
            assert_eq!(word(array.offset_bytes + 32 * row + 8 * element), id);
        }
    }
}

/// The ids of a batch.
fn ids(client: &Client, batch: &Descriptor) -> Vec<u64> {
    let base = client.terms.slot_bytes * u64::from(batch.slot.0);
    let [_, _, index] = &batch.tensors[..] else { panic!("three tensors") };
    let id = |row: u64| {
        let byte = base + index.offset_bytes + 8 * row;
        let word = client.data.word(usize::try_from(byte / 8).unwrap());
        word.load(forebay_protocol::sync::Ordering::Relaxed)
    };
    (0..batch.rows).map(id).collect()
}

async fn until_all_bytes_are_back(engine: &SharedEngine) {
    while engine.borrow().gates.fetch.in_use() > 0 {
        tokio::time::sleep(Duration::from_micros(200)).await;
    }
}

#[test]
fn each_block_is_read_once_and_its_bytes_are_counted_once() {
    on_engine_thread(|| async {
        for shuffle in ["order.shuffle=true", "order.shuffle=false"] {
            let folder = tempfile::tempdir().unwrap();
            let reads = SlowFolder::new(folder.path().join("data"), Duration::ZERO, 1);
            let stream = open(folder.path(), Clock::system(), &[shuffle, "order.epochs=1"]);
            // No row is processed before all are fetched.
            assert!(stream.stages[0].gate.enter(0));
            let engine = start(&stream, 1 << 20);
            let mut client = Client::attach(&engine, false);
            while stream.stages[0].input.report().num_items < SAMPLES {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            assert_eq!(engine.borrow().gates.fetch.in_use(), BLOCK_BYTES);
            assert_eq!(reads.reads(), BLOCKS);
            stream.stages[0].gate.leave(0);
            engine.borrow().pool_shared().wake_one();
            for _ in 0..SAMPLES / 8 {
                let batch = client.next().await;
                check_by_id(&client, &batch);
                client.give_back(&batch);
            }
            until_all_bytes_are_back(&engine).await;
            assert_eq!(reads.reads(), BLOCKS);
            assert_eq!(stream.fetch.report("fetch", 1).num_tasks, SAMPLES);
        }
    });
}

/// Otherwise further reads wait for bytes, and blocks that later rows need are released for them and read again.
#[test]
fn further_reads_of_blocks_have_bytes_or_are_not_made() {
    let folder = tempfile::tempdir().unwrap();
    BlockFolder::write(&folder.path().join("data"), SAMPLES, |_| false);
    let text = "[dataset]\nformat = \"test-blocks\"\npath = \"data\"\n[order]\nshuffle = \"blocks\"\nblocks = 2\n\
                [batch]\nsize = 8\n[[stage]]\nname = \"work\"\noperations = []\n";
    let stream_with = |reads: &str, more: &str| {
        let fetch = format!("{more}[[stage]]\nname = \"fetch\"\nconcurrency = {reads}\n[[stage]]");
        let config = read_config(folder.path(), &text.replacen("[[stage]]", &fetch, 1), &[]);
        open_config(config, Clock::system()).unwrap()
    };
    let stream = |reads: &str| stream_with(reads, "");
    let (auto, fixed) = (stream("\"auto\""), stream("16"));
    let open = auto.draws.open_blocks;
    assert!(open.largest > 0);
    let bytes = |stream: &Stream| MemoryPlan::of(stream, 1).fetch_bytes;
    assert_eq!(bytes(&auto) - bytes(&fixed), (64 - 16) * open.largest);
    assert_eq!(auto.bounds_of_reads(bytes(&auto)), (16, 64));
    assert_eq!(auto.bounds_of_reads(open.bytes + 20 * open.largest), (16, 20));
    assert_eq!(auto.bounds_of_reads(open.bytes), (16, 16), "as many as at the start, in any case");
    // What the sessions that may still attach need is not left.
    let of_sessions = |plan: MemoryPlan| 3 * plan.session_bytes() + plan.shared_bytes();
    let three = "[listen]\nmax_sessions = 3\n";
    let roomy = of_sessions(MemoryPlan::of(&stream_with("\"auto\"", three), 1));
    // Room for two further reads instead of 48.
    let fitting = roomy - (48 - 2) * open.largest;
    let memory = format!("{three}[ring]\nmemory = {fitting}\n");
    let tight = stream_with("\"auto\"", &memory);
    assert!(of_sessions(MemoryPlan::of(&tight, 1)) <= fitting);
}

/// The rows of a group belong to many batches, few of which are open: its blocks stay until the last of them.
#[test]
fn order_in_blocks_reads_each_block_once_per_epoch_with_few_open_batches() {
    on_engine_thread(|| async {
        let folder = tempfile::tempdir().unwrap();
        let reads = SlowFolder::new(folder.path().join("data"), Duration::ZERO, 1);
        let keys = [
            "order.shuffle=blocks",
            "order.blocks=1000",
            "order.epochs=1",
            "ring.slots=3",
            "batch.size=2",
        ];
        let stream = open(folder.path(), Clock::system(), &keys);
        let engine = start(&stream, 1 << 20);
        let mut client = Client::attach(&engine, false);
        let mut seen = Vec::new();
        for _ in 0..SAMPLES / 2 {
            let batch = client.next().await;
            check_by_id(&client, &batch);
            seen.extend(ids(&client, &batch));
            client.give_back(&batch);
        }
        assert_eq!(reads.reads(), BLOCKS);
        until_all_bytes_are_back(&engine).await;
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..SAMPLES));
    });
}

#[test]
fn memory_plan_has_the_blocks_of_two_groups() {
    let folder = tempfile::tempdir().unwrap();
    let plan = |keys: &[&str]| MemoryPlan::of(&open(folder.path(), Clock::system(), keys), 3);
    let exact = plan(&["order.shuffle=true"]);
    let block_bytes = BlockFolder::ARRAY_BLOCK_BYTES + BlockFolder::LABEL_BLOCK_BYTES;
    // All blocks together are one group.
    for (count, open) in [(3, 2 * 3), (1000, SAMPLES / BlockFolder::ARRAYS_IN_BLOCK)] {
        let in_blocks = plan(&["order.shuffle=blocks", &format!("order.blocks={count}")]);
        assert_eq!(in_blocks.fetch_bytes - exact.fetch_bytes, open * block_bytes);
        let order_bytes = 8 * (SAMPLES / BlockFolder::ARRAYS_IN_BLOCK + 1) * 5;
        assert_eq!(in_blocks.scratch_bytes - exact.scratch_bytes, order_bytes);
    }
}

#[test]
fn dataset_without_blocks_is_refused_with_the_remedy() {
    let folder = tempfile::tempdir().unwrap();
    write_samples(&folder.path().join("data"), false);
    let text = "[dataset]\nformat = \"npy\"\npath = \"data\"\nindex = \"index\"\n[order]\nshuffle = \"blocks\"\n\
                [batch]\nsize = 8\n[[stage]]\nname = \"work\"\noperations = []\n";
    let config = read_config(folder.path(), text, &[]);
    let error = open_config(config, Clock::system()).unwrap_err();
    let message = error.to_string();
    assert!(
        message.contains("stream.toml:6: ")
            && message.contains("(npy) do not: each is read alone")
            && message.contains("set `order.shuffle` to true"),
        "{message}"
    );
}

/// A block that no row holds, but that later rows want, is evicted for a row that waits for bytes.
#[test]
fn budget_of_one_sample_rereads_blocks_and_does_not_deadlock() {
    on_engine_thread(|| async {
        let least = BlockFolder::ARRAY_BLOCK_BYTES + BlockFolder::LABEL_BLOCK_BYTES;
        let budgets = [1, least - 1, least, least + 1, 2 * least];
        let orders = ["order.shuffle=true", "order.shuffle=blocks"];
        for (fetch_bytes, order) in
            budgets.into_iter().flat_map(|bytes| orders.map(|order| (bytes, order)))
        {
            let folder = tempfile::tempdir().unwrap();
            let stream = open(folder.path(), Clock::system(), &[order]);
            let engine = start(&stream, fetch_bytes);
            let mut client = Client::attach(&engine, false);
            for _ in 0..3 * SAMPLES / 8 {
                let batch = client.next().await;
                check_by_id(&client, &batch);
                client.give_back(&batch);
                assert!(engine.borrow().gates.fetch.in_use() <= fetch_bytes);
            }
            engine.borrow_mut().detach(client.number, &SessionEnd::ClientLeft);
            until_all_bytes_are_back(&engine).await;
        }
    });
}

#[test]
fn rows_waiting_for_a_hung_read_are_read_after_it_is_abandoned() {
    on_engine_thread(|| async {
        let folder = tempfile::tempdir().unwrap();
        let keys = ["dataset.read_timeout=50ms", "order.epochs=1"];
        let stream = open(folder.path(), Clock::manual(), &keys);
        let engine = start(&stream, 1 << 20);
        let stalled = StalledFile::new(folder.path().join("data/labels"));
        let mut client = Client::attach(&engine, false);
        // All lanes hang in reads of labels, or only wait for such reads.
        while engine.borrow().hung_threads() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
            engine.borrow().clock.advance(Duration::from_millis(50));
        }
        drop(stalled);
        // Rows whose reads were abandoned are due again after a while.
        let time_passes = async {
            loop {
                tokio::time::sleep(Duration::from_millis(1)).await;
                engine.borrow().clock.advance(Duration::from_millis(10));
            }
        };
        let all_batches = async {
            for _ in 0..SAMPLES / 8 {
                let batch = client.next().await;
                check_by_id(&client, &batch);
                client.give_back(&batch);
            }
            until_all_bytes_are_back(&engine).await;
        };
        tokio::select! {
            () = all_batches => {}
            () = time_passes => {}
        }
    });
}

/// Two clients share the blocks; one of them leaves while it holds them, wants them and waits for them.
#[test]
fn leaving_client_takes_no_block_from_another() {
    on_engine_thread(|| async {
        let folder = tempfile::tempdir().unwrap();
        let reads = SlowFolder::new(folder.path().join("data"), Duration::ZERO, 1);
        let stream = open(folder.path(), Clock::system(), &["order.epochs=1", "batch.last=pad"]);
        assert!(stream.stages[0].gate.enter(0));
        let engine = start(&stream, 1 << 20);
        let mut stays = Client::attach_as(&engine, false, 0, 2);
        let leaves = Client::attach_as(&engine, false, 1, 2);
        while stream.stages[0].input.report().num_items < SAMPLES {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(engine.borrow().gates.fetch.in_use(), BLOCK_BYTES);
        assert_eq!(reads.reads(), BLOCKS, "blocks are shared between the sessions of a stream");
        engine.borrow_mut().detach(leaves.number, &SessionEnd::ClientLeft);
        stream.stages[0].gate.leave(0);
        engine.borrow().pool_shared().wake_one();
        for _ in 0..SAMPLES / 16 {
            let batch = stays.next().await;
            let words = batch.tensors.len();
            assert_eq!(words, 4, "array, label, index, valid");
            stays.give_back(&batch);
        }
        until_all_bytes_are_back(&engine).await;
    });
}

/// The daemon is killed in the middle of an epoch: the next one continues at the trainer's position, with the same
/// rows.
#[test]
fn new_engine_continues_in_the_middle_of_a_block() {
    let folder = tempfile::tempdir().unwrap();
    for _ in 0..3 {
        on_engine_thread(|| async {
            let stream = open(folder.path(), Clock::system(), &[]);
            let engine = start(&stream, 400);
            let mut client = Client::attach(&engine, false);
            client.seek(24);
            loop {
                let batch = client.next().await;
                client.check(&batch);
                if batch.seek_serial == client.serial {
                    assert_eq!(batch.position_after.samples, 32);
                    break;
                }
                client.give_back(&batch);
            }
            // Ends with rows in all states.
        });
    }
}
