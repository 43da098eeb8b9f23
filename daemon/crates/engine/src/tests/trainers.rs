//! Several trainers of a stream, on a clock of the test's own.

use super::*;
use crate::tests::stalls::pause;

#[test]
fn trainer_whose_others_do_not_come_begins_after_a_minute_and_shows_progress_until_then() {
    on_engine_thread(|| async {
        let folder = tempfile::tempdir().unwrap();
        let stream = stream_with(folder.path(), &["share.start_together=2"], Clock::manual());
        let engine = start(&stream, 1 << 20);
        let mut client = Client::attach_trainer(&engine, false, "a");
        // The ticks are real time.
        let progress = client.publish.progress();
        while client.publish.progress() < progress + 2 {
            pause().await;
        }
        assert_eq!(engine.borrow().report().sessions[0].batches_published, 0);
        // A loader without a trainer's name waits for nobody, and is none of those who are awaited.
        let mut nameless = Client::attach(&engine, false);
        let batch = nameless.next().await;
        nameless.check(&batch);
        assert_eq!(engine.borrow().report().sessions[0].batches_published, 0);
        engine.borrow().clock.advance(Duration::from_secs(60));
        let batch = client.next().await;
        client.check(&batch);
    });
}

#[test]
fn trainer_ahead_goes_on_when_the_last_one_moves() {
    on_engine_thread(|| async {
        let folder = tempfile::tempdir().unwrap();
        let keys = ["share.pace=together", "share.window=1"];
        let stream = stream_with(folder.path(), &keys, Clock::manual());
        let engine = start(&stream, 1 << 20);
        let mut ahead = Client::attach_trainer(&engine, false, "ahead");
        let mut last = Client::attach_trainer(&engine, false, "last");
        // The clock does not move, so neither trainer stops waiting for the other.
        for _ in 0..2 * SAMPLES / 8 {
            let batch = ahead.next().await;
            ahead.check(&batch);
            ahead.give_back(&batch);
            let batch = last.next().await;
            last.check(&batch);
            last.give_back(&batch);
        }
    });
}
