//! Blocks that samples share: each is read once, its bytes are counted once, and whatever happens to the rows that share
//! it, the others get theirs and all bytes come back.

use super::*;
use forebay_source::dataset::{self, testing::BlockFolder};
use forebay_source::storage::{Objects, SlowFolder, StalledFile};

/// The suites that a new storage or format in a crate of its own runs through.
#[test]
fn the_suites_run_from_another_crate() {
    forebay_source::storage::conformance::run(Arc::<Objects>::default);
    dataset::conformance::run(&dataset::conformance::Format {
        open: dataset::open,
        name: BlockFolder::FORMAT.name,
        make: |folder, samples| {
            BlockFolder::write(folder, samples as u64, |_| false);
            folder.to_owned()
        },
        has_names: false,
        refuses_cuts: true,
    });
}

/// Blocks of arrays and of labels that the samples lie in.
const BLOCKS: u64 = SAMPLES / BlockFolder::ARRAYS_IN_BLOCK + SAMPLES / BlockFolder::LABELS_IN_BLOCK;
const BLOCK_BYTES: u64 = SAMPLES / BlockFolder::ARRAYS_IN_BLOCK * BlockFolder::ARRAY_BLOCK_BYTES
    + SAMPLES / BlockFolder::LABELS_IN_BLOCK * BlockFolder::LABEL_BLOCK_BYTES;

/// A stream whose slots take all samples at once.
fn open(folder: &Path, clock: Clock, keys: &[&str]) -> Arc<Stream> {
    BlockFolder::write(&folder.join("data"), SAMPLES, |_| false);
    let text = "[dataset]\nformat = \"test-blocks\"\npath = \"data\"\n[order]\nshuffle = false\n[batch]\nsize = 8\n\
                [ring]\nslots = 9\n[listen]\nmax_sessions = 2\n\
                [[stage]]\nname = \"fetch\"\nconcurrency = 4\n\
                [[stage]]\nname = \"work\"\nconcurrency = 1\noperations = []\n\
                [[stage]]\nname = \"after\"\nconcurrency = 2\noperations = []\n";
    let config = read_config(folder, text, keys);
    Arc::new(Stream::open(config, 3, OpenOptions::default(), clock).unwrap())
}

/// The labels of a batch are those of its ids, and so are its arrays.
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
            // No row is worked before all are fetched.
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

/// The rows of a group come in many batches, of which few are open: its blocks stay until the last of them.
#[test]
fn an_order_in_blocks_reads_each_block_once_an_epoch_however_few_batches_are_open() {
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
fn the_blocks_of_two_groups_are_planned() {
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
fn a_dataset_without_blocks_is_refused_with_what_to_set() {
    let folder = tempfile::tempdir().unwrap();
    write_samples(&folder.path().join("data"), false);
    let text = "[dataset]\nformat = \"npy\"\npath = \"data\"\nindex = \"index\"\n[order]\nshuffle = \"blocks\"\n\
                [batch]\nsize = 8\n[[stage]]\nname = \"work\"\noperations = []\n";
    let config = read_config(folder.path(), text, &[]);
    let error = Stream::open(config, 3, OpenOptions::default(), Clock::system()).unwrap_err();
    let message = error.to_string();
    assert!(
        message.contains("stream.toml:6: ")
            && message.contains("(npy) has none")
            && message.contains("set `order.shuffle` to true"),
        "{message}"
    );
}

/// A block that no row holds, but rows to come want, is given up for a row that waits for bytes.
#[test]
fn a_budget_of_one_sample_reads_blocks_again_and_does_not_lock_up() {
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
fn rows_that_wait_for_a_read_that_hangs_are_read_when_it_is_given_up() {
    on_engine_thread(|| async {
        let folder = tempfile::tempdir().unwrap();
        let keys = ["dataset.read_timeout=50ms", "order.epochs=1"];
        let stream = open(folder.path(), Clock::manual(), &keys);
        let engine = start(&stream, 1 << 20);
        let stalled = StalledFile::new(folder.path().join("data/labels"));
        let mut client = Client::attach(&engine, false);
        // All lanes hang in reads of labels, or have nothing to do but wait for those.
        while engine.borrow().hung_threads() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
            engine.borrow().clock.advance(Duration::from_millis(50));
        }
        drop(stalled);
        // Rows whose reads were given up are due again after a while.
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
fn a_client_that_leaves_takes_no_block_from_another() {
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

/// The daemon is killed in the middle of an epoch: the next one goes on where the trainer was, with the same rows.
#[test]
fn a_new_engine_goes_on_in_the_middle_of_a_block() {
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
