//! The number of concurrent reads, if it is tuned at run time.

use super::*;
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
