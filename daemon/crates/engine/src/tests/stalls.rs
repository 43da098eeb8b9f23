//! Reads that hang, outages, and the watchdog's sentences. The tests advance the clock.

use super::*;
use forebay_observe::StallReport;
use forebay_protocol::frames::FaultKind;
use forebay_storage::StalledFile;

fn file(folder: &Path, sample: u64) -> std::path::PathBuf {
    folder.join(format!("data/{sample:03}.npy"))
}

/// The fault that ends the session.
async fn fault(client: &mut Client) -> forebay_protocol::frames::Fault {
    loop {
        if let Some(DaemonFrame::Fault(fault)) = client.frames.recv().await {
            return fault;
        }
    }
}

pub(super) async fn pause() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

/// Lets time pass until the watchdog reports a stall that `wanted` accepts.
async fn stall(engine: &SharedEngine, wanted: impl Fn(&StallReport) -> bool) -> StallReport {
    loop {
        let stalls = engine.borrow().report().stalls;
        if let Some(found) = stalls.into_iter().find(&wanted) {
            return found;
        }
        engine.borrow().clock.advance(STALL_AFTER);
        pause().await;
    }
}

const STALL_AFTER: Duration = Duration::from_millis(500);
const READ_TIMEOUT: Duration = Duration::from_millis(50);

/// Lets the read timeout pass, once only reads of hung samples are in a call.
async fn let_reads_time_out(engine: &SharedEngine, hung: &[u64]) {
    loop {
        let reads = engine.borrow().samples_in_a_call();
        if !reads.is_empty() && reads.iter().all(|sample| hung.contains(&sample.0)) {
            return engine.borrow().clock.advance(READ_TIMEOUT);
        }
        pause().await;
    }
}

/// Lets time pass while only reads of hung samples are in a call: retries become due.
async fn let_time_pass(engine: &SharedEngine, hung: &[u64]) {
    loop {
        let reads = engine.borrow().samples_in_a_call();
        if reads.iter().all(|sample| hung.contains(&sample.0)) {
            engine.borrow().clock.advance(READ_TIMEOUT);
        }
        pause().await;
    }
}

#[test]
fn hung_read_is_abandoned_and_retried_until_the_outage_limit() {
    on_engine_thread(|| async {
        let folder = tempfile::tempdir().unwrap();
        let keys = ["dataset.read_timeout=50ms", "dataset.outage_timeout=2s"];
        let stream = stream_with(folder.path(), &keys, Clock::manual());
        let engine = start(&stream, 1 << 20);
        let stalled = StalledFile::new(file(folder.path(), 11));
        let mut client = Client::attach(&engine, false);
        let first = client.next().await;
        client.check(&first);
        let begun = engine.borrow().clock.now();
        let fault = tokio::select! {
            fault = fault(&mut client) => fault,
            () = let_time_pass(&engine, &[11]) => unreachable!(),
        };
        assert!(engine.borrow().clock.elapsed(begun) >= Duration::from_secs(2));
        assert_eq!(fault.kind, FaultKind::Storage);
        for part in ["011.npy", "0.05 s", "dataset.read_timeout", "dataset.outage_timeout"] {
            assert!(fault.message.contains(part), "{}", fault.message);
        }
        assert!(engine.borrow().hung_threads() > 1, "it was tried again");
        assert_eq!(engine.borrow().gates.fetch.in_use(), 0, "what was given up holds no bytes");
        assert_eq!(engine.borrow().report().streams[0].outage, None, "nobody waits any more");
        engine.borrow_mut().detach(client.number, &SessionEnd::ClientLeft);
        // The storage answers again: the threads end, and another session reads everything.
        drop(stalled);
        let mut client = Client::attach(&engine, false);
        for _ in 0..SAMPLES / 8 {
            let batch = client.next().await;
            client.check(&batch);
            client.give_back(&batch);
        }
        while engine.borrow().hung_threads() > 0 {
            pause().await;
        }
    });
}

#[test]
fn hung_storage_of_one_stream_does_not_slow_down_others() {
    on_engine_thread(|| async {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let keys = ["dataset.read_timeout=50ms", "stage.fetch.concurrency=2"];
        let clock = Clock::manual();
        let dead = stream_called("dead", folders[0].path(), &keys, clock.clone());
        let other = stream_called("other", folders[1].path(), &keys, clock.clone());
        let samples: Vec<u64> = (0..SAMPLES).collect();
        let _stalled: Vec<_> = samples
            .iter()
            .map(|sample| StalledFile::new(file(folders[0].path(), *sample)))
            .collect();
        let engine = Engine::start(vec![dead, other], pool(), budgets(1 << 20), clock).unwrap();
        let shared = Rc::clone(&engine);
        tokio::task::spawn_local(async move { run_on_wake(shared).await });
        let _waits = Client::attach(&engine, false);
        // Its threads hang, and so do their replacements.
        while engine.borrow().hung_threads() < 7 {
            let_reads_time_out(&engine, &samples).await;
            pause().await;
        }
        let (stream, position) = (Some("other".to_owned()), Position::default());
        let request = Attach {
            stream,
            rank: 0,
            world_size: 1,
            position,
            substitutes: 0,
            trainer: String::new(),
            batch_size: None,
            cuts: Vec::new(),
        };
        let mut client = Client::attach_with(&engine, false, &request);
        for _ in 0..SAMPLES / 8 {
            let batch = client.next().await;
            client.check(&batch);
            client.give_back(&batch);
        }
    });
}

#[test]
fn late_answers_of_a_storage_lose_no_sample() {
    on_engine_thread(|| async {
        let folder = tempfile::tempdir().unwrap();
        let stream = stream_with(folder.path(), &["dataset.read_timeout=50ms"], Clock::manual());
        // Less than two samples' bytes: an abandoned read must not keep them.
        let engine = start(&stream, 200);
        let hung = [3, 4, 12, 40];
        let mut stalled: Vec<_> =
            hung.iter().map(|sample| StalledFile::new(file(folder.path(), *sample))).collect();
        let mut client = Client::attach(&engine, false);
        for batch in 0..SAMPLES / 8 {
            while let Some(one) = stalled.pop() {
                while engine.borrow().hung_threads() == 0 {
                    let_reads_time_out(&engine, &hung).await;
                    pause().await;
                }
                drop(one);
            }
            let published = tokio::select! {
                published = client.next() => published,
                () = let_time_pass(&engine, &[]) => unreachable!(),
            };
            assert_eq!(published.position_after.samples % SAMPLES, (batch + 1) * 8 % SAMPLES);
            client.check(&published);
            client.give_back(&published);
        }
    });
}

#[test]
fn outage_is_reported_and_counts_as_progress_until_it_ends() {
    on_engine_thread(|| async {
        let folder = tempfile::tempdir().unwrap();
        let stream = stream_with(folder.path(), &["dataset.read_timeout=50ms"], Clock::manual());
        let engine = start(&stream, 1 << 20);
        let stalled = StalledFile::new(file(folder.path(), 5));
        let mut client = Client::attach(&engine, false);
        let outage = || engine.borrow().report().streams[0].outage.clone();
        while outage().is_none() {
            let_reads_time_out(&engine, &[5]).await;
            pause().await;
        }
        let found = outage().unwrap();
        assert!(found.path.ends_with("005.npy") && found.sentence.contains("stream `stream`"));
        let stalls = engine.borrow().report().stalls;
        let told = stalls.iter().find(|stall| stall.stage == "storage").unwrap();
        assert_eq!((told.session, &told.sentence), (client.number, &found.sentence));
        // No row is finished meanwhile; the ticks are real time.
        let progress = client.publish.progress();
        while client.publish.progress() < progress + 2 {
            pause().await;
        }
        drop(stalled);
        let batch = tokio::select! {
            batch = client.next() => batch,
            () = let_time_pass(&engine, &[]) => unreachable!(),
        };
        client.check(&batch);
        while outage().is_some() {
            pause().await;
        }
    });
}

#[test]
fn rows_waiting_for_a_retry_end_with_their_session() {
    on_engine_thread(|| async {
        let folder = tempfile::tempdir().unwrap();
        let stream = stream_with(folder.path(), &[], Clock::manual());
        let engine = start(&stream, 1 << 20);
        let data = folder.path().join("data");
        let away = folder.path().join("away");
        std::fs::rename(&data, &away).unwrap();
        std::fs::create_dir(&data).unwrap();
        // The root's descriptor refers to the renamed folder, so one file is removed there, too.
        std::fs::remove_file(away.join("005.npy")).unwrap();
        let client = Client::attach(&engine, false);
        while engine.borrow().report().streams[0].outage.is_none() {
            engine.borrow().clock.advance(Duration::from_millis(20));
            pause().await;
        }
        engine.borrow_mut().detach(client.number, &SessionEnd::ClientLeft);
        while engine.borrow().report().streams[0].outage.is_some() {
            pause().await;
        }
    });
}

#[test]
fn watchdog_reports_a_hung_read_until_it_returns() {
    on_engine_thread(|| async {
        let folder = tempfile::tempdir().unwrap();
        let stream = stream_with(folder.path(), &["errors.stall_after=500ms"], Clock::manual());
        let engine = start(&stream, 1 << 20);
        let path = file(folder.path(), 5);
        let stalled = StalledFile::new(path.clone());
        let mut client = Client::attach(&engine, false);
        let found = stall(&engine, |stall| stall.sample == Some(5)).await;
        assert_eq!((found.session, found.stage.as_str()), (client.number, "fetch"));
        assert_eq!(found.path.as_deref(), path.to_str());
        for part in
            ["sample 5 (", "005.npy) of stream `stream` has been in stage `fetch`", "attempt 1;"]
        {
            assert!(found.sentence.contains(part), "{}", found.sentence);
        }
        drop(stalled);
        let batch = client.next().await;
        client.check(&batch);
        for _ in 0..2 {
            let batch = client.next().await;
            client.give_back(&batch);
        }
        engine.borrow_mut().detach(client.number, &SessionEnd::ClientLeft);
        while !engine.borrow().report().stalls.is_empty() {
            pause().await;
        }
    });
}

#[test]
fn watchdog_reports_a_trainer_that_takes_no_batch() {
    on_engine_thread(|| async {
        let folder = tempfile::tempdir().unwrap();
        let stream = stream_with(folder.path(), &["errors.stall_after=500ms"], Clock::manual());
        let engine = start(&stream, 1 << 20);
        let mut client = Client::attach(&engine, false);
        let found = stall(&engine, |stall| stall.stage == "trainer").await;
        assert_eq!(found.sample, None);
        assert!(found.sentence.contains("3 batches are ready and it holds 0"), "{found:?}");
        let batch = client.next().await;
        client.give_back(&batch);
        let batch = client.next().await;
        client.check(&batch);
    });
}
