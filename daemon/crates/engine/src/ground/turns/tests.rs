//! A simulation of work threads, trainers and rings with its own clock: each session's result under these rules.

use crate::ground::turns::*;

const MS: u64 = 1_000_000;

/// A trainer and its ring: each row costs `row_ns`, and a step takes `step_ns`.
struct Trainer {
    turn: Turn,
    row_ns: u64,
    step_ns: u64,
    arrives_ns: u64,
    rows_left: u32,
    rows_running: u32,
    open: bool,
    published: u64,
    taken: Taken,
    /// When the trainer requests its next batch.
    wants_at_ns: u64,
    /// Number of batches that it waited for.
    waits: u64,
    served_ns: u64,
}

const ROWS: u32 = 16;
const SLOTS: u64 = 4;

impl Trainer {
    fn new(row_ns: u64, step_ns: u64) -> Self {
        Self {
            turn: Turn::default(),
            row_ns,
            step_ns,
            arrives_ns: 0,
            rows_left: 0,
            rows_running: 0,
            open: false,
            published: 0,
            taken: Taken::default(),
            wants_at_ns: 0,
            waits: 0,
            served_ns: 0,
        }
    }

    fn arriving_at(mut self, at_ns: u64) -> Self {
        (self.arrives_ns, self.wants_at_ns) = (at_ns, at_ns);
        self
    }

    /// Takes batches if possible, publishes a complete batch and opens the next one.
    fn advance(&mut self, now_ns: u64) {
        if now_ns < self.arrives_ns {
            return;
        }
        if self.open && self.rows_left == 0 && self.rows_running == 0 {
            (self.open, self.published) = (false, self.published + 1);
        }
        let before = self.taken;
        while self.taken.batches < self.published && self.wants_at_ns <= now_ns {
            let waited = now_ns - self.wants_at_ns;
            // Excludes the time in which rings are first filled.
            if waited > 0 && now_ns > 2_000 * MS {
                self.waits += 1;
            }
            self.taken = Taken {
                batches: self.taken.batches + 1,
                at_ns: now_ns,
                waited_ns: self.taken.waited_ns + waited,
            };
            self.wants_at_ns = now_ns + self.step_ns;
        }
        self.turn.note_taken(before, self.taken, self.published - self.taken.batches);
        if !self.open && self.published - self.taken.batches < SLOTS {
            (self.open, self.rows_left) = (true, ROWS);
        }
    }
}

/// Runs `length_ns` on some threads; each row is charged with the mean cost of all when it begins.
fn simulate(trainers: &mut [Trainer], threads: u32, length_ns: u64) {
    let turns = Turns::new(threads);
    turns.set_sessions(trainers.len());
    let expected = Duration::from_nanos(MS);
    // By thread: when its row ends, its trainer, and its cost.
    let mut running: Vec<Option<(u64, usize)>> = vec![None; threads as usize];
    let mut now_ns = 0;
    while now_ns < length_ns {
        for place in &mut running {
            if let Some((ends, owner)) = *place
                && ends <= now_ns
            {
                let trainer = &mut trainers[owner];
                trainer.rows_running -= 1;
                trainer.served_ns += trainer.row_ns;
                trainer.turn.end(expected, Duration::from_nanos(trainer.row_ns));
                *place = None;
            }
        }
        for trainer in trainers.iter().filter(|trainer| trainer.arrives_ns == now_ns) {
            turns.enter(&trainer.turn);
        }
        trainers.iter_mut().for_each(|trainer| trainer.advance(now_ns));
        for place in running.iter_mut().filter(|place| place.is_none()) {
            let ready = trainers.iter().enumerate().filter(|(_, trainer)| trainer.rows_left > 0);
            let first = ready.min_by_key(|(_, trainer)| turns.place(&trainer.turn, now_ns, 0));
            let Some((owner, _)) = first else { break };
            let trainer = &mut trainers[owner];
            trainer.rows_left -= 1;
            trainer.rows_running += 1;
            turns.begin(&trainer.turn, expected);
            *place = Some((now_ns + trainer.row_ns, owner));
        }
        now_ns += MS / 10;
    }
}

fn ratio(values: impl Iterator<Item = u64> + Clone) -> f64 {
    values.clone().max().unwrap() as f64 / values.min().unwrap().max(1) as f64
}

#[test]
fn equal_clients_get_equal_batches_for_any_number() {
    for clients in [2, 4, 8, 16] {
        let mut trainers: Vec<_> = (0..clients).map(|_| Trainer::new(MS, 0)).collect();
        simulate(&mut trainers, 2, clients * 1_000 * MS);
        let ratio = ratio(trainers.iter().map(|trainer| trainer.published));
        assert!(ratio <= 1.03, "{clients} clients: {ratio}");
    }
}

#[test]
fn late_clients_get_their_share_from_their_arrival() {
    let mut trainers = vec![
        Trainer::new(MS, 0),
        Trainer::new(MS, 0),
        Trainer::new(MS, 0).arriving_at(10_000 * MS),
        Trainer::new(MS, 0).arriving_at(10_000 * MS),
    ];
    simulate(&mut trainers, 2, 20_000 * MS);
    let early = trainers[0].published as f64;
    for late in &trainers[2..] {
        // A third of an early client's share: half of the threads for 10 s, then a quarter for 10 s.
        let share = late.published as f64 / early;
        assert!((0.32..0.35).contains(&share), "{share}");
    }
}

#[test]
fn expensive_rows_get_no_more_time_than_cheap_ones() {
    let mut trainers = vec![Trainer::new(20 * MS, 0), Trainer::new(MS / 5, 0), Trainer::new(MS, 0)];
    simulate(&mut trainers, 2, 20_000 * MS);
    let ratio = ratio(trainers.iter().map(|trainer| trainer.served_ns));
    assert!(ratio <= 1.05, "{ratio}");
}

#[test]
fn clients_slower_than_their_shares_never_wait_for_faster_ones() {
    // A batch costs 16 ms of a thread. The slow clients need 10 % and 32 % of two threads; each share is 50 % of one
    // thread.
    let mut trainers = vec![
        Trainer::new(MS, 80 * MS),
        Trainer::new(MS, 50 * MS),
        Trainer::new(MS, 0),
        Trainer::new(4 * MS, 0),
    ];
    simulate(&mut trainers, 2, 20_000 * MS);
    for slow in &trainers[..2] {
        assert_eq!(slow.waits, 0);
    }
    let fast = ratio(trainers[2..].iter().map(|trainer| trainer.served_ns));
    assert!(fast <= 1.05, "what is left is shared equally: {fast}");
}

#[test]
fn unused_share_goes_to_the_trainer_that_needs_it() {
    // Two threads make 125 batches per second. One trainer takes 80 per second, more than half; the other 30.
    let mut trainers = vec![Trainer::new(MS, 12_500_000), Trainer::new(MS, 33 * MS)];
    simulate(&mut trainers, 2, 20_000 * MS);
    for trainer in &trainers {
        assert_eq!(trainer.waits, 0);
    }
}

#[test]
fn among_clients_below_their_shares_the_first_waiting_trainer_goes_first() {
    let turns = Turns::new(2);
    turns.set_sessions(2);
    let [soon, late] = [Turn::default(), Turn::default()];
    for (turn, ready) in [(&soon, 0), (&late, 7)] {
        let taken = |batches| Taken { batches, at_ns: batches * 100 * MS, waited_ns: 0 };
        (1..40).for_each(|batch| turn.note_taken(taken(batch - 1), taken(batch), ready));
    }
    let now_ns = 39 * 100 * MS;
    assert!(turns.place(&soon, now_ns, 0) < turns.place(&late, now_ns, 0));
    assert!(turns.place(&soon, now_ns, 0) < turns.place(&soon, now_ns, 1), "by distance");
    let later = now_ns + 2_000 * MS;
    assert_eq!(turns.place(&soon, later, 0), turns.place(&late, later, 0), "both wait");
}

#[test]
fn false_reports_gain_a_client_nothing() {
    let turns = Turns::new(1);
    turns.set_sessions(1);
    let turn = Turn::default();
    let lie = Taken { batches: u64::MAX, at_ns: u64::MAX, waited_ns: u64::MAX };
    turn.note_taken(Taken { batches: 1, ..Taken::default() }, lie, u64::MAX);
    turn.note_taken(lie, Taken { batches: 1, ..Taken::default() }, 0);
    turns.begin(&turn, Duration::from_millis(3));
    turn.end(Duration::from_millis(3), Duration::from_millis(1));
    assert!(turns.place(&turn, 0, u64::MAX) >= MS);
}
