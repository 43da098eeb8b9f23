//! The workers of one stage, and a bundle's way through them. The states of rows are in the crate's head.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use forebay_protocol::clock::monotonic_ns;

use crate::arena::{Arena, SIDES, side_start};
use crate::call::{CallBuffer, FLAG_PROBE, FLAG_TIMED};
use crate::figures::{CallFigures, FunctionTime, HotSpot, Recorded};
use crate::foreground;
use crate::places::{Places, Side, Turn};
use crate::reply::{self, Declared, Raised, ReplyValue, RowTime};
use crate::spawner::Spawner;
use crate::spec::PoolSpec;
use crate::worker::{Failure, Prepared, Worker};

/// How long a worker may take to import the user's module, at least.
const START_LIMIT: Duration = Duration::from_secs(300);
/// Losses alone after which a sample is bad.
const MAX_LOSSES: u32 = 3;
/// The same where SIGKILL ended the workers: that may be the kernel, short of memory, or a person.
const MAX_KILLS: u32 = 10;
/// Starts in a row that fail before the stage gives up; as many as `MAX_KILLS` where they are killed.
const MAX_STARTS: u32 = 3;

/// Losses after which it is the call that ends workers.
const fn max_losses(was_killed: bool) -> u32 {
    if was_killed { MAX_KILLS } else { MAX_LOSSES }
}

const NO_ANSWER: &str = "its worker gave no answer";

/// What became of a row.
#[derive(Debug)]
pub enum Outcome<'p> {
    /// Its outputs, in the order of the names, and the arena that they lie in.
    Done(&'p [ReplyValue], &'p Arena),
    /// The function raised an exception.
    Raised(&'p Raised),
    /// It ends its worker each time.
    Crashes(&'p str),
}

/// Why a bundle was not worked on.
#[derive(Debug, PartialEq, Eq)]
pub enum Lost {
    /// No worker can be started.
    NoWorkers(String),
    /// The caller ends.
    Ending,
}

/// The file of a function's module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Source {
    /// Of its bytes; empty where the module has no file.
    pub digest: String,
    /// Its path.
    pub file: String,
}

/// What a probe found, and the digest of the results' bytes, for each row.
pub type Probed = Vec<Result<(Vec<Declared>, String), Raised>>;

/// See the module's head.
#[derive(Debug)]
pub struct Pool {
    spec: PoolSpec,
    spawner: Arc<Spawner>,
    places: Places,
    recorded: Recorded,
    /// As the newest worker found it.
    source: Mutex<Source>,
    /// The row that the worker in the foreground, at place 0, was called with.
    foreground_row: OnceLock<Vec<u8>>,
}

impl Pool {
    /// Starts the process that starts workers, and no worker. Called before the daemon is confined.
    ///
    /// # Errors
    /// The process cannot be started.
    pub fn start(spec: PoolSpec) -> std::io::Result<Self> {
        let told = spec.to_json(None);
        let spawner = Spawner::start(spec.interpreter.clone(), told, spec.is_silent)?;
        let count = spec.workers.max(1) + u32::from(spec.has_foreground);
        let places = Places::new(count, if spec.is_batch { 1 } else { SIDES });
        Ok(Self {
            spec,
            spawner,
            places,
            recorded: Recorded::default(),
            source: Mutex::default(),
            foreground_row: OnceLock::new(),
        })
    }

    /// What it was started with.
    #[must_use]
    pub fn spec(&self) -> &PoolSpec {
        &self.spec
    }

    /// What the function is made of, as the newest worker found it.
    #[must_use]
    pub fn source(&self) -> Source {
        self.source.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What the calls cost so far.
    #[must_use]
    pub fn figures(&self) -> CallFigures {
        self.recorded.figures()
    }

    /// Where in the function the time goes, where enough was seen to tell.
    #[must_use]
    pub fn hot_spot(&self) -> Option<HotSpot> {
        self.recorded.hot_spot()
    }

    /// Asks what the function returns for the rows; `names` are their inputs' names.
    ///
    /// # Errors
    /// Why it cannot be called: the import's error, or how its worker ends.
    pub fn probe(&self, buffer: &CallBuffer, names: &[&str]) -> Result<Probed, String> {
        read_probed(&self.ask(buffer, names, FLAG_PROBE)?)
    }

    /// Calls the function with the rows and drops what it returns: what it took. The worker times transforms from now on.
    ///
    /// # Errors
    /// As [`probe`](Self::probe), and what the function raised.
    pub fn time(&self, buffer: &CallBuffer, names: &[&str]) -> Result<FunctionTime, String> {
        let reply = self.ask(buffer, names, FLAG_PROBE | FLAG_TIMED)?;
        let parsed = serde_json::from_slice::<Vec<serde_json::Value>>(&reply).ok();
        let rows = parsed.ok_or_else(|| NO_ANSWER.to_owned())?;
        if let Some(raised) = rows.iter().find_map(|row| reply::raised_of(row.get("raised")?)) {
            return Err(raised.summary);
        }
        rows.last().and_then(FunctionTime::of).ok_or_else(|| NO_ANSWER.to_owned())
    }

    /// The reply to a call outside of any batch.
    fn ask(&self, buffer: &CallBuffer, names: &[&str], flags: u32) -> Result<Vec<u8>, String> {
        let never = || false;
        let mut side = self.places.side(self.first_place(0, buffer));
        let rows: Vec<usize> = (0..buffer.rows()).collect();
        let header = buffer.header(&rows, &names_json(names, &[]), flags);
        let mut losses = 0;
        loop {
            let called = self.call(&mut side, (buffer, &header), &never);
            let (turn, reply) = called.map_err(|lost| match lost {
                Lost::NoWorkers(reason) => reason,
                Lost::Ending => "the start was given up".to_owned(),
            })?;
            match reply {
                Ok(reply) => return Ok(reply),
                Err(Failure::Lost { reason, was_killed, .. }) => {
                    turn.lose();
                    losses += 1;
                    if losses >= max_losses(was_killed) {
                        let called = if self.spec.is_batch { "batch" } else { "sample" };
                        return Err(format!("the first {called} {reason}"));
                    }
                }
                Err(Failure::Ending) => return Err("the start was given up".to_owned()),
            }
        }
    }

    /// Starts the worker in the foreground and calls the function with the only row. It keeps the result for the call of
    /// the same row by [`run`](Self::run). Nothing limits its time: there may be a debugger.
    ///
    /// # Errors
    /// As [`probe`](Self::probe).
    pub fn probe_in_foreground(
        &self,
        buffer: &CallBuffer,
        names: &[&str],
    ) -> Result<Probed, String> {
        let _busy = foreground::Busy::begin();
        let failed = |failure| match failure {
            Failure::Lost { reason, .. } => format!("the sample {reason}"),
            Failure::Ending => "the start was given up".to_owned(),
        };
        let mut worker = Worker::start_in_foreground(&self.spec)?;
        let hello = worker.hello(Duration::MAX, &|| false).map_err(failed)?;
        self.read_hello(&hello)?;
        let header = buffer.header(&[0], &names_json(names, &[]), FLAG_PROBE);
        let mut side = self.places.side(0);
        let reply = match Prepared::write(worker.link(), side.number(), (buffer, &header)) {
            Ok(prepared) => worker.call(&prepared, Duration::MAX, &|| false),
            Err(error) => Err(worker.unwritten(&error)),
        };
        let reply = reply.map_err(failed)?;
        self.places.turn(&mut side, None).0.worker = Some(worker);
        // Called once.
        let _ = self.foreground_row.set(buffer.only_row().to_vec());
        read_probed(&reply)
    }

    /// The place to begin the search at: place 0 is for the row in the foreground alone, where there is one.
    fn first_place(&self, wanted: usize, buffer: &CallBuffer) -> usize {
        match self.foreground_row.get() {
            Some(row) if row == buffer.only_row() => 0,
            Some(_) => 1,
            None => wanted,
        }
    }

    /// Calls the function with each row. `first` is the worker to begin the search at, so that each thread keeps its own;
    /// `done` gets every row, in any order; the last that it gets of one counts. The worker is another thread's meanwhile.
    /// Gives when the function was called for each row.
    ///
    /// # Errors
    /// No worker can be started, or the caller ends: some rows were not done.
    pub fn run(
        &self,
        first: usize,
        buffer: &CallBuffer,
        (inputs, outputs): (&[&str], &[&str]),
        is_ending: &dyn Fn() -> bool,
        done: &mut dyn FnMut(usize, Outcome<'_>),
    ) -> Result<Vec<RowTime>, Lost> {
        let names = names_json(inputs, outputs);
        let asked = Instant::now();
        let mut side = self.places.side(self.first_place(first, buffer));
        // Where a call has no room beside another, this is the wait for a worker.
        self.recorded.add_wait(Duration::ZERO, asked.elapsed());
        let mut together: Vec<usize> = (0..buffer.rows()).collect();
        let mut suspects = VecDeque::new();
        let mut alone = [0];
        let mut losses = 0_u32;
        let mut times = vec![RowTime::default(); buffer.rows()];
        loop {
            let bundle: &[usize] = if !together.is_empty() {
                &together
            } else if let Some(suspect) = suspects.front() {
                alone[0] = *suspect;
                &alone
            } else {
                return Ok(times);
            };
            let header = buffer.header(bundle, &names, 0);
            let begin_ns = monotonic_ns();
            let called = self.call(&mut side, (buffer, &header), is_ending);
            let (mut turn, called) = called.map_err(|lost| self.named(lost))?;
            let parsed = match (called, &mut turn.worker) {
                (Ok(bytes), Some(worker)) => {
                    let (arena, start) =
                        (Arc::clone(worker.link().arena()), side_start(side.number()));
                    let reply = reply::parse(&bytes, start, bundle.len(), outputs.len());
                    reply.map(|reply| (reply, arena)).map_err(|_| worker.rubbish())
                }
                (Ok(_), None) => return Err(Lost::NoWorkers("no worker was called".to_owned())),
                (Err(failure), _) => Err(failure),
            };
            match parsed {
                Ok((mut reply, arena)) => {
                    let end_ns = monotonic_ns();
                    reply.cut_times(RowTime { begin_ns, end_ns, worker: turn.place() });
                    self.replace_beyond_memory(&mut turn.worker);
                    let lost_before = side.losses();
                    drop(turn);
                    let reading = Instant::now();
                    for ((row, reply), time) in bundle.iter().zip(&reply.rows).zip(&reply.times) {
                        times[*row] = *time;
                        match reply {
                            Ok(values) => done(*row, Outcome::Done(values, &arena)),
                            Err(raised) => done(*row, Outcome::Raised(raised)),
                        }
                    }
                    self.recorded.add_call(&reply, reading.elapsed());
                    if side.losses() != lost_before {
                        // What came next has lost the worker, and may have written where these results lay.
                        continue;
                    }
                    if together.is_empty() {
                        suspects.pop_front();
                        losses = 0;
                    } else {
                        together.clear();
                    }
                }
                Err(Failure::Ending) => return Err(Lost::Ending),
                Err(Failure::Lost { reason, row, was_killed }) => {
                    turn.lose();
                    let called = if self.spec.is_batch { "batch" } else { "sample" };
                    tracing::warn!(
                        stage = self.spec.stage,
                        "a worker was lost: a {called} {reason}"
                    );
                    if bundle.len() == 1 && together.is_empty() {
                        losses += 1;
                        if losses >= max_losses(was_killed) {
                            done(alone[0], Outcome::Crashes(&reason));
                            suspects.pop_front();
                            losses = 0;
                        }
                    } else {
                        // Only the row under call is to blame; the first, where the worker does not say which it was.
                        let blamed = row.filter(|row| *row < together.len()).unwrap_or(0);
                        suspects.push_back(together.remove(blamed));
                    }
                }
            }
        }
    }

    /// Writes a call, waits for the turn, and calls: the turn, and the reply.
    fn call<'p>(
        &'p self,
        side: &mut Side<'p>,
        call: (&CallBuffer, &[u8]),
        is_ending: &dyn Fn() -> bool,
    ) -> Result<(Turn<'p>, Result<Vec<u8>, Failure>), Lost> {
        let begun = Instant::now();
        // While another thread's call runs. What fails here fails below as well.
        let prepared =
            side.link().and_then(|link| Prepared::write(&link, side.number(), call).ok());
        let written = Instant::now();
        let (mut turn, ahead) = self.places.turn(side, prepared.as_ref());
        self.recorded.add_wait(written - begun, written.elapsed());
        let place = turn.place();
        let worker = self.ready(&mut turn.worker, is_ending)?;
        let prepared = match prepared {
            Some(prepared) if prepared.is_for(worker.link(), side.number()) => Ok(prepared),
            _ => Prepared::write(worker.link(), side.number(), call),
        };
        let prepared = match prepared {
            Ok(prepared) => prepared,
            Err(error) => {
                let failure = worker.unwritten(&error);
                return Ok((turn, Err(failure)));
            }
        };
        let sent = ahead.map_or_else(|| worker.link().send(&prepared), Ok);
        let reply = match sent {
            Ok(number) => {
                self.places.open(place, worker.link());
                worker.answer(&prepared, number, self.spec.timeout, is_ending)
            }
            Err(_) => Err(worker.lost("")),
        };
        Ok((turn, reply))
    }

    /// Ends a worker that holds more than it may. What it returned stays in its arena.
    fn replace_beyond_memory(&self, place: &mut Option<Worker>) {
        let cap = self.spec.memory_bytes;
        let Some(bytes) = place.as_mut().and_then(|worker| worker.is_beyond(cap)) else { return };
        tracing::warn!(
            stage = self.spec.stage,
            bytes,
            cap,
            "a worker holds more memory than `memory` allows and is replaced; the function keeps something from call to \
             call, or the key is too small"
        );
        if let Some(worker) = place.take() {
            self.recorded.look_at_workers();
            worker.end();
        }
    }

    /// The worker of a place, started where there is none.
    fn ready<'w>(
        &self,
        place: &'w mut Option<Worker>,
        is_ending: &dyn Fn() -> bool,
    ) -> Result<&'w mut Worker, Lost> {
        let mut failed = 0;
        loop {
            if place.as_ref().is_some_and(Worker::is_ready) {
                break;
            }
            let begun = Instant::now();
            let mut worker = Worker::start(Arc::clone(&self.spawner)).map_err(Lost::NoWorkers)?;
            worker.take_own_cores();
            let reason = match worker.hello(START_LIMIT.max(self.spec.timeout), is_ending) {
                Ok(hello) => match self.read_hello(&hello) {
                    Ok(()) => {
                        self.recorded.add_start(worker.process(), begun.elapsed());
                        *place = Some(worker);
                        break;
                    }
                    Err(reason) => {
                        worker.end();
                        return Err(Lost::NoWorkers(reason));
                    }
                },
                Err(Failure::Ending) => return Err(Lost::Ending),
                Err(Failure::Lost { reason, was_killed, .. }) => {
                    failed += if was_killed { 1 } else { MAX_KILLS / MAX_STARTS };
                    reason
                }
            };
            if failed + 1 >= MAX_KILLS {
                return Err(Lost::NoWorkers(format!(
                    "starting a worker with `{} -m forebay.worker` {reason}; what it printed stands in the log. The interpreter \
                     needs the package `forebay`; `python.interpreter` names another one",
                    self.spec.interpreter.display()
                )));
            }
        }
        match place {
            Some(worker) => Ok(worker),
            None => Err(Lost::NoWorkers("no worker was started".to_owned())),
        }
    }

    /// The same for a row of a run, whose stage is said to the trainer.
    fn named(&self, lost: Lost) -> Lost {
        let (place, target) = (self.spec.place(), &self.spec.target);
        match lost {
            Lost::NoWorkers(reason) => Lost::NoWorkers(format!("{place} (`{target}`): {reason}")),
            Lost::Ending => Lost::Ending,
        }
    }

    /// A worker's first message: the source's digest, or why it cannot work.
    fn read_hello(&self, hello: &[u8]) -> Result<(), String> {
        let value: serde_json::Value = serde_json::from_slice(hello)
            .map_err(|_| "a worker's first message is none".to_owned())?;
        if let Some(raised) = value.get("raised").and_then(reply::raised_of) {
            return Err(format!("{}\n\n{}", raised.summary, raised.traceback.trim_end()));
        }
        let text = |key| value.get(key).and_then(serde_json::Value::as_str).unwrap_or_default();
        let found = Source { digest: text("source").to_owned(), file: text("file").to_owned() };
        let mut source = self.source.lock().unwrap_or_else(PoisonError::into_inner);
        if !source.digest.is_empty() && source.digest != found.digest {
            tracing::warn!(
                stage = self.spec.stage,
                file = found.file,
                "the source of `{}` has changed since its workers were started; those started from now on run the new \
                 one",
                self.spec.target
            );
        }
        *source = found;
        Ok(())
    }
}

fn read_probed(reply: &[u8]) -> Result<Probed, String> {
    let parsed = serde_json::from_slice::<Vec<serde_json::Value>>(reply).ok();
    let probed = parsed.and_then(|rows| rows.iter().map(reply::probed).collect());
    probed.ok_or_else(|| NO_ANSWER.to_owned())
}

fn names_json(inputs: &[&str], outputs: &[&str]) -> String {
    serde_json::json!({ "inputs": inputs, "outputs": outputs }).to_string()
}
