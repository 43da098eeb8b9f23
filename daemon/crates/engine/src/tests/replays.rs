//! Replays: which batches are repeated and how often, that the stream loses no batch, and what ends a replay early. The
//! command that measures with them is tested in `tests/insight`.

use forebay_protocol::observing::{ReplayRequest, ReplayState};

use super::*;

const BATCHES_PER_EPOCH: u64 = 32;
/// The connection that makes the requests.
const OWNER: u64 = 7;
/// Number of slots of the ring.
const SLOTS: u64 = 6;

/// Runs a test over a stream of 32 batches per epoch, of two samples each, with other keys.
fn replaying(keys: &[&str], test: impl AsyncFnOnce(SharedEngine, Client)) {
    on_engine_thread(|| async {
        let folder = tempfile::tempdir().unwrap();
        let slots = format!("ring.slots={SLOTS}");
        let keys = [keys, &[&slots, "batch.size=2"]].concat();
        let engine = start(&stream_with(folder.path(), &keys, Clock::system()), 1 << 20);
        let client = Client::attach(&engine, false);
        test(engine, client).await;
    });
}

impl Client {
    fn ask(&self, request: ReplayRequest) -> Result<(), String> {
        self.engine.borrow_mut().request_replay(&request, OWNER, true)
    }

    fn arm(&self, at: u64, batches: u16, steps: u64) -> Result<(), String> {
        let session = self.number;
        self.ask(ReplayRequest::Arm { session, at, batches, steps })?;
        self.ask(ReplayRequest::Commit { session })
    }

    fn state(&self) -> ReplayState {
        let steps = self.engine.borrow().steps();
        steps.into_iter().find(|steps| steps.session == self.number).unwrap().replay
    }

    /// Takes, checks and returns a batch.
    async fn step(&mut self) -> Descriptor {
        let batch = self.next().await;
        self.check(&batch);
        self.give_back(&batch);
        batch
    }

    /// Modifies a batch, as an in-place operation would.
    fn change(&self, batch: &Descriptor) {
        let first = self.terms.slot_bytes * u64::from(batch.slot.0);
        let word = self.data.word(usize::try_from(first / 8).unwrap());
        word.fetch_add(1, forebay_protocol::sync::Ordering::Relaxed);
    }

    async fn until(&mut self, wanted: impl Fn(&ReplayState) -> bool) -> ReplayState {
        while !wanted(&self.state()) {
            self.step().await;
        }
        self.state()
    }
}

/// Takes `steps` batches; returns the position after each, and whether it was replayed.
async fn epoch(client: &mut Client, steps: u64) -> Vec<(u64, bool)> {
    let mut seen = Vec::new();
    for _ in 0..steps {
        let batch = client.step().await;
        assert_eq!(batch.sequence.0, client.read - 1);
        seen.push((batch.position_after.samples, batch.replayed));
    }
    seen
}

#[test]
fn batches_repeat_as_requested_without_work_and_the_epoch_is_complete() {
    const STEPS: u64 = 400;
    replaying(&[], async |engine, mut client| {
        let at = client.publish.published() + 4;
        client.arm(at, 3, STEPS).unwrap();
        assert_eq!(client.state(), ReplayState::Armed { at, committed: true });
        let rows = || engine.borrow().report().stages[1].num_tasks;
        let mut seen = epoch(&mut client, at + STEPS / 2).await;
        let worked = rows();
        seen.extend(epoch(&mut client, STEPS / 2).await);
        // In addition to rows that had begun: at most a full ring.
        assert!(
            rows() - worked <= SLOTS * 2,
            "batches are worked while others repeat: {worked}, {}",
            rows()
        );
        seen.extend(epoch(&mut client, BATCHES_PER_EPOCH - at).await);
        assert!(rows() > worked);
        let fresh: Vec<u64> = seen.iter().filter(|(_, again)| !again).map(|(at, _)| *at).collect();
        let whole: Vec<u64> = (1..=BATCHES_PER_EPOCH).map(|batch| batch * 2 % SAMPLES).collect();
        assert_eq!(fresh, whole, "each batch of the epoch once and in order");
        let first = usize::try_from(at + 3).unwrap();
        let again = &seen[first..first + usize::try_from(STEPS).unwrap()];
        assert!(again.iter().all(|(_, again)| *again), "all replays lie together");
        let kept: Vec<u64> = seen[first - 3..first].iter().map(|(at, _)| *at).collect();
        assert!(again.iter().all(|(at, _)| kept.contains(at)), "{again:?} of {kept:?}");
        for at in kept {
            assert!(
                again.iter().any(|(shown, _)| *shown == at),
                "the batch up to {at} came not again"
            );
        }
        assert_eq!(client.state(), ReplayState::Done { first: first as u64, replayed: STEPS });
        epoch(&mut client, 3).await;
    });
}

#[test]
fn trainer_that_modifies_batches_is_detected_before_a_repetition() {
    replaying(&[], async |_engine, mut client| {
        let check = ReplayRequest::Check { session: client.number, batches: 4 };
        client.ask(check.clone()).unwrap();
        client.until(|state| *state == ReplayState::Checked).await;
        client.ask(check).unwrap();
        let mut taken = 0;
        while !matches!(client.state(), ReplayState::Refused { .. }) {
            let batch = client.next().await;
            taken += 1;
            if taken % 3 == 0 {
                client.change(&batch);
            }
            client.give_back(&batch);
        }
        // The same without an earlier check.
        client.arm(client.publish.published(), 2, 50).unwrap();
        let mut again = 0;
        while !matches!(client.state(), ReplayState::Refused { .. }) {
            let batch = client.next().await;
            again += u32::from(batch.replayed);
            client.change(&batch);
            client.give_back(&batch);
        }
        assert_eq!(again, 0);
        let ReplayState::Refused { reason } = client.state() else { unreachable!() };
        assert!(reason.contains("in place"), "{reason}");
        epoch(&mut client, 20).await;
    });
}

#[test]
fn trainer_that_holds_all_kept_batches_gets_new_data() {
    replaying(&[], async |_engine, mut client| {
        client.arm(client.publish.published(), 2, 50).unwrap();
        let mut held = VecDeque::new();
        let mut fresh = Vec::new();
        while !matches!(client.state(), ReplayState::Refused { .. }) {
            let batch = client.next().await;
            client.check(&batch);
            if !batch.replayed {
                fresh.push(batch.position_after.samples);
            }
            held.push_back(batch);
            if held.len() == 4 {
                client.give_back(&held.pop_front().unwrap());
            }
        }
        let ReplayState::Refused { reason } = client.state() else { unreachable!() };
        assert!(reason.contains("--batches"), "{reason}");
        let whole: Vec<u64> = (1..=fresh.len() as u64).map(|batch| batch * 2).collect();
        assert_eq!(fresh, whole);
        for batch in held {
            client.give_back(&batch);
        }
        epoch(&mut client, 8).await;
    });
}

#[test]
fn seek_ends_a_replay_and_so_does_a_disconnect_before_the_commit() {
    replaying(&[], async |engine, mut client| {
        client.arm(client.publish.published(), 2, 1000).unwrap();
        client.until(|state| matches!(state, ReplayState::Running { first: Some(_), .. })).await;
        client.seek(20);
        assert!(matches!(client.state(), ReplayState::Refused { .. }));
        loop {
            let batch = client.next().await;
            let current = batch.seek_serial == client.serial;
            client.give_back(&batch);
            if current {
                assert_eq!((batch.position_after.samples, batch.replayed), (22, false));
                break;
            }
        }
        let session = client.number;
        let at = client.publish.published() + 8;
        client.ask(ReplayRequest::Arm { session, at, batches: 2, steps: 5 }).unwrap();
        engine.borrow_mut().on_replay_disconnect(session, OWNER);
        assert_eq!(client.state(), ReplayState::Idle);
        client.arm(at, 2, 5).unwrap();
        engine.borrow_mut().on_replay_disconnect(session, OWNER);
        client.until(|state| matches!(state, ReplayState::Done { replayed: 5, .. })).await;
    });
}

#[test]
fn impossible_requests_are_refused_with_the_reason() {
    replaying(&["ring.hold=2", "listen.max_sessions=4"], async |engine, mut client| {
        for _ in 0..6 {
            client.step().await;
        }
        let published = client.publish.published();
        for (at, batches, steps, word) in [
            (published, 0, 1, "ring.slots"),
            (published, 7, 1, "ring.slots"),
            (published, 2, 0, "steps 1 to"),
            (published - 1, 2, 1, "already published"),
            (4 * BATCHES_PER_EPOCH - 2, 2, 1, "the end of the epoch"),
        ] {
            let reason = client.arm(at, batches, steps).unwrap_err();
            assert!(reason.contains(word), "{reason}");
        }
        client.arm(published, 2, 5).unwrap();
        assert!(client.arm(published, 2, 5).unwrap_err().contains("under way"));
        let mut ranks = Client::attach_as(&engine, false, 1, 2);
        let reason = ranks.arm(ranks.publish.published(), 4, 5).unwrap_err();
        assert!(reason.contains("checked"), "{reason}");
        ranks.ask(ReplayRequest::Check { session: ranks.number, batches: 2 }).unwrap();
        let session = ranks.number;
        let other = ReplayRequest::Cancel { session };
        let reason = engine.borrow_mut().request_replay(&other, OWNER + 1, true).unwrap_err();
        assert!(reason.contains("another command"), "{reason}");
        // Their contents are checked elsewhere.
        while ranks.state() != ReplayState::Checked {
            let batch = ranks.next().await;
            ranks.give_back(&batch);
        }
        engine.borrow_mut().on_replay_disconnect(session, OWNER + 1);
        assert_eq!(ranks.state(), ReplayState::Checked);
        let reason = ranks.arm(ranks.publish.published(), 3, 5).unwrap_err();
        assert!(reason.contains("ring.hold + 2 = 4"), "{reason}");
        let published = ranks.publish.published();
        // Finds a position ahead from which four batches fit in the epoch, so that the replay waits for the commit.
        (6..24).find_map(|ahead| ranks.arm(published + ahead, 4, 5).ok()).unwrap();
    });
}

/// A batch that the trainer keeps from before occupies a slot: the last of the batches to keep is never published.
#[test]
fn trainer_that_keeps_a_batch_still_gets_all_repetitions() {
    replaying(&[], async |_engine, mut client| {
        let kept = client.next().await;
        client.arm(client.publish.published(), 6, 40).unwrap();
        let mut again = 0;
        while again < 40 {
            again += u32::from(client.step().await.replayed);
        }
        assert!(matches!(client.state(), ReplayState::Done { replayed: 40, .. }));
        assert!(!client.step().await.replayed);
        client.check(&kept);
    });
}

/// The returned batches were compared; the batch that the trainer keeps is not.
#[test]
fn check_ends_although_the_trainer_keeps_a_batch() {
    replaying(&[], async |_engine, mut client| {
        client.ask(ReplayRequest::Check { session: client.number, batches: 3 }).unwrap();
        let published = client.publish.published();
        while client.read <= published {
            client.step().await;
        }
        let _kept = client.next().await;
        client.until(|state| *state == ReplayState::Checked).await;
    });
}
