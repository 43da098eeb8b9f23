//! The number of concurrent reads, if it is tuned at run time.

use super::*;
use crate::actors::fetch_chunk::Chunk;
use forebay_storage::SlowFolder;

#[test]
fn slow_storage_gets_more_reads_and_batches_stay_the_same() {
    on_engine_thread(|| async {
        let folder = tempfile::tempdir().unwrap();
        let _slow = SlowFolder::new(folder.path().join("data"), Duration::from_millis(60), 1);
        let stream = stream_with(folder.path(), &["ring.slots=16"], Clock::system());
        let engine = start(&stream, 1 << 20);
        let mut client = Client::attach(&engine, false);
        // Until a trial has shown a gain by more reads.
        loop {
            let batch = client.next().await;
            client.check(&batch);
            client.give_back(&batch);
            let fetch = engine.borrow().report().streams[0].stages[0].clone();
            assert!((16..=64).contains(&fetch.concurrency), "{}", fetch.concurrency);
            if fetch.concurrency > 16 && fetch.concurrency_reason.contains(" by ") {
                break;
            }
        }
    });
}

/// While rows of two batches are under way and reads are fast, a client that goes to sleep sends no doorbell.
#[test]
fn daemon_looks_at_returns_without_a_doorbell_only_while_its_work_wakes_it() {
    on_engine_thread(|| async {
        let folder = tempfile::tempdir().unwrap();
        let slow = "[[stage]]\nname = \"work\"\noperations = [{ op = \"delay\", milliseconds = 20 }]\n\
                    [ring]\nslots = 8\n";
        let stream = open_stream(folder.path(), false, slow);
        let engine = start(&stream, 1 << 20);
        let client = Client::attach(&engine, false);
        let looks_soon = |chunk| {
            let mut engine = engine.borrow_mut();
            engine.set_chunk(chunk);
            engine.advance(client.number);
            client.publish.looks_soon()
        };
        let quick = Chunk::after(Duration::from_micros(1), 1);
        while !looks_soon(quick) {
            tokio::task::yield_now().await;
        }
        assert!(!looks_soon(Chunk::default()), "slow reads begin as early as possible");
        while client.publish.published() < 8 {
            tokio::task::yield_now().await;
        }
        assert!(!looks_soon(quick), "nothing is under way");
    });
}
