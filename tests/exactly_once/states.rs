//! Whole lives of sessions: whatever clients do with a loader and its batches, and whenever its daemon is killed, each
//! batch taken is the one that the order names next, and nothing is left in the end.
//!
//! A session's states, and who moves them:
//! ```text
//!   daemon's connection:  Greeting ──Hello──► Ready ──Attach, Reattach──► Attached ──Goodbye, hang-up, fault──► over
//!                         (the client moves all but the fault, which is the daemon's)
//!   client and daemon:    Live ──the daemon dies──► Draining ──► Restarting ──► Reattaching ──► Live, or Lost
//!                         (the loader's next call drains and reattaches; the supervisor's thread starts or finds the daemon)
//!   position:             at a place ──next_batch──► epoch open ──its end, a jump──► at a place
//!                         (the loader alone; a jump has a serial, and batches of older serials go back unread)
//!   slot:                 free ──► filling ──► published ──taken──► leased ──the last clone is dropped──► free
//!                         (the daemon up to published; any thread of the client drops)
//! ```
//! The four move independently, so proptest draws operations that move each of them in any order. After each operation
//! the loader has done what the [`model`] says, all batches that are held have their bytes, and no more slots are held
//! than there are. The cases run in a process of their own, so that all its descriptors are theirs.
//!
//! `PROPTEST_CASES=5000` runs as many lives; left out, some dozens.

mod model;
mod session;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use forebay_client::{Builder, Error, Position, State, Target};
use forebay_tests::{Daemon, TestDir, is_running, names_in, test_dir, wait_until};
use model::{BATCH, EPOCHS, MOST_RANKS, Model, Reference, SAMPLES};
use nix::sys::signal::Signal;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::TestRunner;
use rustix::process::{Pid, PidfdFlags, pidfd_open, pidfd_send_signal};
use session::{Held, Session, Which, check, pick};

const LIVES: u32 = 48;
/// A life that hangs does so for [`DEADLINE`](forebay_tests::DEADLINE) each time that it is shrunk.
const MOST_SHRINKING_MS: u32 = 300_000;
/// More in a row without a batch between them would be the end of a private daemon.
const MOST_KILLS: u32 = 5;

/// What is the same for a whole life.
#[derive(Debug, Clone, Copy)]
struct Setting {
    /// One daemon at a socket that a supervisor starts again; else each loader has a private one.
    is_served: bool,
    world_size: u32,
    slots: u16,
    hold: u16,
}

/// Where a state stands.
#[derive(Debug, Clone, Copy)]
enum Where {
    /// One that a loader of this life saved.
    Saved(Index),
    /// One of a run of another world size: an epoch and so many batches of one rank.
    Other(u64, u64),
}

#[derive(Debug, Clone, Copy)]
enum Operation {
    /// Takes a batch and holds it.
    Take,
    /// Drops one clone of a held batch, here or on another thread beside what comes next.
    Drop(Which, bool),
    Clone(Which),
    BeginEpoch,
    SetEpoch(u64),
    Save(usize),
    Load(Where),
    /// A state of another stream.
    LoadForeign,
    /// A position that the stream does not have, and then a new loader.
    SeekNowhere(Where),
    /// A new loader at a state; what was held stays held.
    Reopen(Where),
    /// At once, or so many microseconds into what comes next.
    Kill(Option<u64>),
    /// A second client of the same rank.
    Rival,
    Stats,
}

fn settings() -> impl Strategy<Value = Setting> {
    (prop::bool::weighted(0.4), 1..=MOST_RANKS, 3..7_u16, any::<Index>()).prop_map(
        |(is_served, world_size, slots, hold)| {
            let hold = 1 + u16::try_from(hold.index(usize::from(slots) - 1)).unwrap();
            Setting { is_served, world_size, slots, hold }
        },
    )
}

fn operations() -> impl Strategy<Value = Operation> {
    let which = || {
        prop_oneof![Just(Which::Oldest), Just(Which::Newest), any::<Index>().prop_map(Which::Any)]
    };
    let place = || {
        let other = (0..=EPOCHS, 0..=SAMPLES / BATCH);
        prop_oneof![
            3 => any::<Index>().prop_map(Where::Saved),
            1 => other.prop_map(|(epoch, batches)| Where::Other(epoch, batches)),
        ]
    };
    prop_oneof![
        40 => Just(Operation::Take),
        20 => (which(), any::<bool>()).prop_map(|(which, elsewhere)| Operation::Drop(which, elsewhere)),
        5 => which().prop_map(Operation::Clone),
        3 => Just(Operation::BeginEpoch),
        4 => (0..=EPOCHS + 1).prop_map(Operation::SetEpoch),
        6 => (0..4_usize).prop_map(Operation::Save),
        6 => place().prop_map(Operation::Load),
        1 => Just(Operation::LoadForeign),
        1 => place().prop_map(Operation::SeekNowhere),
        3 => place().prop_map(Operation::Reopen),
        6 => prop::option::of(0..30_000_u64).prop_map(Operation::Kill),
        1 => Just(Operation::Rival),
        3 => Just(Operation::Stats),
    ]
}

/// One life.
struct World<'a> {
    setting: Setting,
    dir: Arc<TestDir>,
    config: PathBuf,
    reference: &'a Reference,
    /// The served daemon.
    daemon: Option<Daemon>,
    /// Kills it and starts the next one.
    supervisor: Option<JoinHandle<Daemon>>,
    sessions: Vec<Session<'a>>,
    saved: Vec<State>,
    /// Held batches whose loaders are gone.
    orphans: Vec<Held>,
}

fn serve(dir: &TestDir, config: &Path, setting: Setting) -> Daemon {
    let (slots, hold) =
        (format!("ring.slots={}", setting.slots), format!("ring.hold={}", setting.hold));
    Daemon::serve_with(dir, &[config], &["--set", &slots, "--set", &hold])
}

impl<'a> World<'a> {
    fn new(setting: Setting, dir: &Arc<TestDir>, config: &Path, reference: &'a Reference) -> Self {
        let mut world = Self {
            setting,
            dir: Arc::clone(dir),
            config: config.to_path_buf(),
            reference,
            daemon: setting.is_served.then(|| serve(dir, config, setting)),
            supervisor: None,
            sessions: Vec::new(),
            saved: Vec::new(),
            orphans: Vec::new(),
        };
        for rank in 0..setting.world_size {
            let session = world.attach(rank, None);
            world.saved.push(session.loader.state(0).unwrap());
            world.sessions.push(session);
        }
        world
    }

    /// Waits until the served daemon is there.
    fn daemon_is_there(&mut self) {
        if let Some(supervisor) = self.supervisor.take() {
            self.daemon = Some(supervisor.join().unwrap());
        }
    }

    fn builder(&self, rank: u32) -> Builder {
        if self.setting.is_served {
            let socket = Target::Socket(self.dir.path("daemon.sock"), None);
            return test_dir::loader(socket, rank, self.setting.world_size);
        }
        test_dir::loader(self.config.as_path(), rank, self.setting.world_size)
            .override_key("ring.slots", self.setting.slots.to_string())
            .override_key("ring.hold", self.setting.hold.to_string())
    }

    fn attach(&mut self, rank: u32, state: Option<&State>) -> Session<'a> {
        self.daemon_is_there();
        let mut builder = self.builder(rank);
        if let Some(state) = state {
            builder = builder.state(state.clone(), false);
        }
        let loader = builder.attach().unwrap();
        let at = state.map_or_else(Position::default, |state| state.position);
        let model = Model::new(self.reference, self.setting.world_size, rank, at);
        let (held, beside) = (Vec::new(), Vec::new());
        Session { loader, model, held, beside, kills: 0, last_number: None }
    }

    fn find(&self, place: Where) -> State {
        match place {
            Where::Saved(index) => index.get(&self.saved).clone(),
            Where::Other(epoch, batches) => {
                let position = Position { epoch, samples: batches * BATCH };
                State { position, ..self.saved[0].clone() }
            }
        }
    }

    fn reopen(&mut self, rank: usize, place: Where) {
        let state = self.find(place);
        // What was dropped beside it ends before or after the loader does.
        let old = self.sessions.remove(rank);
        drop(old.loader);
        self.orphans.extend(old.held);
        old.beside.into_iter().for_each(|thread| thread.join().unwrap());
        let session = self.attach(u32::try_from(rank).unwrap(), Some(&state));
        self.sessions.insert(rank, session);
    }

    fn kill(&mut self, rank: usize, pause: Option<u64>) {
        self.daemon_is_there();
        let session = &mut self.sessions[rank];
        if session.kills == MOST_KILLS {
            return;
        }
        session.kills += 1;
        let sleep = move || thread::sleep(Duration::from_micros(pause.unwrap_or(0)));
        if let Some(daemon) = self.daemon.take() {
            let (dir, config, setting) = (Arc::clone(&self.dir), self.config.clone(), self.setting);
            // Its client finds no socket after a clean end, and one that refuses it after a kill.
            let signal = if pause.is_none() { Signal::SIGTERM } else { Signal::SIGKILL };
            self.supervisor = Some(thread::spawn(move || {
                sleep();
                let _ = daemon.end(signal);
                serve(&dir, &config, setting)
            }));
            return;
        }
        // One that has just died has a successor soon.
        let daemon = session.loader.private_process().and_then(|id| i32::try_from(id).ok());
        let pidfd =
            daemon.and_then(Pid::from_raw).and_then(|id| pidfd_open(id, PidfdFlags::empty()).ok());
        let kill = move || {
            sleep();
            if let Some(pidfd) = pidfd {
                let _ = pidfd_send_signal(&pidfd, rustix::process::Signal::KILL);
            }
        };
        match pause {
            None => kill(),
            Some(_) => session.beside.push(thread::spawn(kill)),
        }
    }

    /// A second client of a rank that is attached.
    fn rival(&mut self, rank: usize) {
        if !self.setting.is_served {
            return;
        }
        self.daemon_is_there();
        self.sessions[rank].loader.stats().unwrap();
        let rival = self.builder(u32::try_from(rank).unwrap()).attach();
        let Err(Error::Taken(message)) = rival else { panic!("{rival:?}") };
        let place = format!("rank {rank} of {}", self.setting.world_size);
        assert!(message.contains("`train`") && message.contains(&place), "{message}");
    }

    fn seek_nowhere(&mut self, rank: usize, next: Where) {
        let Session { loader, model, .. } = &mut self.sessions[rank];
        let nowhere = Position { epoch: 0, samples: SAMPLES + 1 };
        model.seek(nowhere);
        let refused = loader.seek(nowhere);
        assert!(matches!(refused, Err(Error::Config(_))), "{refused:?}");
        let over = loader.next_batch();
        assert!(matches!(over, Err(Error::Config(_))), "{over:?}");
        self.look_at_all();
        self.reopen(rank, next);
    }

    fn act(&mut self, rank: usize, operation: Operation) {
        let Setting { slots, hold, .. } = self.setting;
        match operation {
            Operation::Load(place) => {
                let state = self.find(place);
                return self.sessions[rank].load(&state);
            }
            Operation::SeekNowhere(next) => return self.seek_nowhere(rank, next),
            Operation::Reopen(place) => return self.reopen(rank, place),
            Operation::Kill(pause) => return self.kill(rank, pause),
            Operation::Rival => return self.rival(rank),
            _ => {}
        }
        let session = &mut self.sessions[rank];
        match operation {
            Operation::Take => session.take(slots, hold),
            Operation::Drop(which, elsewhere) => session.drop_one(which, elsewhere),
            Operation::Clone(which) => {
                if let Some(held) = pick(&session.held, which) {
                    let clone = session.held[held].clones[0].clone();
                    session.held[held].clones.push(clone);
                }
            }
            Operation::BeginEpoch => match session.loader.begin_epoch() {
                Ok(()) => assert!(session.model.begin_epoch()),
                Err(Error::EpochsFinished { .. }) => assert!(!session.model.begin_epoch()),
                Err(error) => panic!("{error}"),
            },
            Operation::SetEpoch(epoch) => {
                session.loader.set_epoch(epoch).unwrap();
                session.model.set_epoch(epoch);
            }
            Operation::Save(held_back) => {
                if let Some(state) = session.save(held_back) {
                    self.saved.push(state);
                }
            }
            Operation::LoadForeign => {
                let mut foreign = session.loader.state(0).unwrap();
                foreign.config = "0".repeat(64);
                let refused = session.loader.load_state(&foreign, false);
                assert!(matches!(refused, Err(Error::StateMismatch(_))), "{refused:?}");
            }
            Operation::Stats => {
                let figures = session.figures();
                let of = |state: &str| figures[format!("slots_{state}")].as_u64().unwrap();
                let all = of("free") + of("filling") + of("ready") + of("leased");
                assert_eq!(all, u64::from(slots), "{figures}");
                assert!(of("leased") >= session.loader.held(), "{figures}");
            }
            _ => unreachable!("it was done above"),
        }
    }

    /// After each operation.
    fn look_at_all(&self) {
        let all = self.sessions.iter().flat_map(|session| &session.held).chain(&self.orphans);
        for held in all {
            held.clones.iter().for_each(|batch| check(batch, &held.expected));
        }
        for session in &self.sessions {
            assert!(session.loader.held() <= u64::from(self.setting.hold) + 1);
            assert_eq!(session.loader.given_up(), session.model.given_up());
        }
    }

    /// All is given back, and all ends.
    fn end(mut self) {
        self.daemon_is_there();
        let Setting { slots, hold, .. } = self.setting;
        for session in &mut self.sessions {
            session.join();
            session.held.clear();
            assert_eq!(session.loader.held(), 0);
            // Every session is as good as new.
            session.loader.seek(Position::default()).unwrap();
            session.model.seek(Position::default());
            let mut batches = 0;
            while session.loader.state(0).unwrap().position.epoch == 0 {
                session.take(slots, hold);
                session.held.clear();
                batches += 1;
            }
            assert_eq!(batches, session.loader.batches_per_epoch());
            wait_until("no slot is leased", || session.figures()["slots_leased"] == 0);
        }
        for session in self.sessions.drain(..) {
            let daemon = session.loader.private_process();
            drop(session);
            wait_until("the private daemon has ended", || !daemon.is_some_and(is_running));
        }
        if let Some(daemon) = self.daemon.take() {
            wait_until("all segments are given back", || daemon.mapped_segments() == 0);
            let (status, log) = daemon.end(Signal::SIGTERM);
            assert!(status.success(), "{log}");
        }
        self.look_at_all();
    }
}

fn descriptors() -> usize {
    names_in(Path::new("/proc/self/fd")).len()
}

#[test]
#[ignore = "the test below runs it in a process of its own"]
fn lives() {
    let dir = Arc::new(TestDir::new());
    let keys = format!("batch.last = \"short\"\norder.seed = 23\norder.epochs = {EPOCHS}");
    let config = dir.stack_stream(SAMPLES, &keys);
    let reference = Reference::of(&Daemon::serve(&dir, &config));
    let mut runner = ProptestConfig {
        failure_persistence: None,
        max_shrink_time: MOST_SHRINKING_MS,
        ..ProptestConfig::default()
    };
    if std::env::var_os("PROPTEST_CASES").is_none() {
        runner.cases = LIVES;
    }
    let cases = runner.cases;
    let steps = prop::collection::vec((any::<Index>(), operations()), 10..50);
    TestRunner::new(runner)
        .run(&(settings(), steps), |(setting, steps)| {
            let before = descriptors();
            let mut world = World::new(setting, &dir, &config, &reference);
            for (session, operation) in steps {
                world.act(session.index(world.sessions.len()), operation);
                world.look_at_all();
            }
            world.end();
            wait_until("no descriptor is left", || descriptors() <= before);
            Ok(())
        })
        .unwrap();
    println!("{cases} lives went as the model says");
}

#[test]
fn whatever_befalls_a_session_each_batch_is_the_next_one_and_nothing_is_left() {
    let lives = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "states::lives", "--ignored", "--nocapture"])
        .output()
        .unwrap();
    let (told, log) =
        (String::from_utf8_lossy(&lives.stdout), String::from_utf8_lossy(&lives.stderr));
    assert!(lives.status.success(), "{log}\n{told}");
    print!("{told}");
}
