//! The workers of one stage, and the calls of a bundle. The states of rows are in the crate's head.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use forebay_protocol::clock::monotonic_ns;
use rustix::thread::CpuSet;

use crate::arena::{Arena, SIDES, side_start};
use crate::call::{CallBuffer, FLAG_PROBE, FLAG_TIMED};
use crate::figures::{CallFigures, FunctionTime, HotSpot, Recorded};
use crate::foreground;
use crate::interpreter::Program;
use crate::places::{Places, Side, Turn};
use crate::reply::{self, Declared, Raised, ReplyValue, RowTime};
use crate::spawner::Spawner;
use crate::spec::{PoolSpec, WorkerStart};
use crate::worker::{Failure, Limit, Loss, Prepared, Worker};

/// Minimum time limit for the import of the user's module.
const START_LIMIT: Duration = Duration::from_secs(300);
/// Number of losses with the sample alone after which it is bad.
const MAX_LOSSES: u32 = 3;
/// The same for workers ended by SIGKILL, which may come from the kernel, short of memory, or from a user.
const MAX_KILLS: u32 = 10;
/// Number of timed-out calls of a sample, including the first one in a bundle, after which it is bad: each takes the
/// whole timeout.
const MAX_LATE: u32 = 2;
/// Consecutive failed starts after which the stage gives up; `MAX_KILLS` if they are killed.
const MAX_STARTS: u32 = 3;

/// Number of losses after which the call is to blame.
pub(crate) const fn max_losses(how: Loss) -> u32 {
    match how {
        Loss::Late => MAX_LATE,
        Loss::Killed => MAX_KILLS,
        Loss::Other => MAX_LOSSES,
    }
}

/// Period in which a waiting thread checks whether the daemon ends.
const LOOK_PERIOD: Duration = Duration::from_millis(20);

/// The target of log lines about the start of workers and its duration.
pub const LOG_OF_STARTS: &str = "forebay::workers";

const NO_ANSWER: &str = "its worker gave no answer";

/// The result of a row.
#[derive(Debug)]
pub enum Outcome<'p> {
    /// Its outputs, in the order of the names, and the arena that contains them.
    Done(&'p [ReplyValue], &'p Arena),
    /// The function raised an exception.
    Raised(&'p Raised),
    /// Each call ends its worker: a description.
    Crashes(&'p str),
    /// Each call exceeds the timeout: a description.
    Late(&'p str),
}

/// Why a bundle was not processed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    /// No worker can be started.
    #[error("{0}")]
    NoWorkers(String),
    /// The caller ends.
    #[error("the daemon ends")]
    Ending,
}

/// The file of a function's module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Source {
    /// Digest of its bytes; empty if the module has no file.
    pub digest: String,
    /// Its path.
    pub file: String,
}

/// The fields found by a probe, and the digest of their bytes, for each row.
pub type Probed = Vec<Result<(Vec<Declared>, String), Raised>>;

/// See the module's head.
#[derive(Debug)]
pub struct Pool {
    spec: PoolSpec,
    spawner: Arc<Spawner>,
    places: Places,
    recorded: Recorded,
    /// As reported by the newest worker.
    source: Mutex<Source>,
    /// The row with which the worker in the foreground, at place 0, was called.
    foreground_row: OnceLock<Vec<u8>>,
}

impl Pool {
    /// Starts the spawner, and the workers that start with the pool ([`PoolSpec::start`]). Called before the daemon is
    /// confined.
    ///
    /// # Errors
    /// The process cannot be started.
    pub fn start(spec: PoolSpec) -> std::io::Result<Self> {
        let memory = spec.to_memory(None)?;
        let object = spec.object.as_deref();
        let program = Program::Python(spec.interpreter.clone());
        let spawner = Spawner::start(program, &memory, object, spec.is_silent, spec.withheld)?;
        let count = spec.workers.max(1) + u32::from(spec.has_foreground);
        let places = Places::new(count, if spec.is_batch { 1 } else { SIDES });
        let pool = Self {
            spec,
            spawner,
            places,
            recorded: Recorded::default(),
            source: Mutex::default(),
            foreground_row: OnceLock::new(),
        };
        pool.start_at_once();
        Ok(pool)
    }

    /// Whether workers are started with the pool.
    fn starts_at_once(&self) -> bool {
        self.spec.start != WorkerStart::WhenCalled && !self.spec.has_foreground
    }

    /// Starts the workers that start with the pool, without waiting for them.
    fn start_at_once(&self) {
        if !self.starts_at_once() {
            return;
        }
        let PoolSpec { workers, start, cores, .. } = &self.spec;
        let count = (*workers).max(1);
        tracing::info!(
            target: LOG_OF_STARTS,
            "starting {count} {} of {}: importing {}",
            if count == 1 { "worker" } else { "workers" },
            self.spec.place(),
            self.spec.imported()
        );
        for place in 0..count as usize {
            let is_normal = *start == WorkerStart::AtOnceInNormalClass;
            // The thread that calls the place's worker tries again, and reports the error.
            let Ok(mut worker) = Worker::start(Arc::clone(&self.spawner), is_normal) else {
                return;
            };
            if cores.is_empty() {
                worker.take_own_cores();
            } else {
                let mut set = CpuSet::new();
                cores.iter().for_each(|core| set.set(*core as usize));
                worker.take_cores(set);
            }
            self.recorded.add_process(worker.process());
            self.places.put(place, worker);
        }
    }

    /// The specification that it was started with.
    #[must_use]
    pub fn spec(&self) -> &PoolSpec {
        &self.spec
    }

    /// The file of the function's module, as reported by the newest worker.
    #[must_use]
    pub fn source(&self) -> Source {
        self.source.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The cost of the calls so far.
    #[must_use]
    pub fn figures(&self) -> CallFigures {
        self.recorded.figures()
    }

    /// The function's hot spot, if there are enough samples.
    #[must_use]
    pub fn hot_spot(&self) -> Option<HotSpot> {
        self.recorded.hot_spot()
    }

    /// Asks for the fields that the function returns for the rows; `names` are their inputs' names.
    ///
    /// # Errors
    /// Why it cannot be called: the import's error, or how its worker ends.
    pub fn probe(&self, buffer: &CallBuffer, names: &[&str]) -> Result<Probed, String> {
        read_probed(&self.ask(buffer, names, FLAG_PROBE)?)
    }

    /// Calls the function with the rows, drops its results and returns the times. The worker times transforms from now
    /// on.
    ///
    /// # Errors
    /// As [`probe`](Self::probe), and the function's exception.
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
            let called = called.map_err(|lost| self.unless_the_daemon_ends(lost, &never));
            let (turn, reply) = called.map_err(|lost| match lost {
                Lost::NoWorkers(reason) => reason,
                Lost::Ending => "the start was given up".to_owned(),
            })?;
            match reply {
                Ok(reply) => return Ok(reply),
                Err(Failure::Lost { reason, how, .. }) => {
                    turn.lose();
                    losses += 1;
                    if losses >= max_losses(how) {
                        if how == Loss::Late {
                            return Err(self.late(losses));
                        }
                        let called = if self.spec.is_batch { "batch" } else { "sample" };
                        return Err(format!("the first {called} {reason}"));
                    }
                }
                Err(Failure::Ending) => return Err("the start was given up".to_owned()),
            }
        }
    }

    /// Starts the worker in the foreground and calls the function with the only row. It keeps the result for the call
    /// of the same row by [`run`](Self::run). There is no time limit, because of debuggers.
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
        let hello = worker.hello(Limit::Row(Duration::MAX), &|| false).map_err(failed)?;
        self.read_hello(&hello)?;
        let header = buffer.header(&[0], &names_json(names, &[]), FLAG_PROBE);
        let mut side = self.places.side(0);
        let reply = match Prepared::write(worker.link(), side.number(), (buffer, &header)) {
            Ok(prepared) => worker.call(&prepared, Limit::Row(Duration::MAX), &|| false),
            Err(error) => Err(worker.unwritten(&error)),
        };
        let reply = reply.map_err(failed)?;
        self.places.turn(&mut side, None).0.worker = Some(worker);
        // Set once: this is called once.
        let _ = self.foreground_row.set(buffer.only_row().to_vec());
        read_probed(&reply)
    }

    /// The place to begin the search at: if there is a worker in the foreground, place 0 is reserved for its row.
    fn first_place(&self, wanted: usize, buffer: &CallBuffer) -> usize {
        match self.foreground_row.get() {
            Some(row) if row == buffer.only_row() => 0,
            Some(_) => 1,
            None => wanted,
        }
    }

    /// Calls the function with each row. `first` is the worker at which the search begins, so that each thread keeps
    /// its worker; `done` gets every row, in any order, and a row's last result counts. Another thread may use the
    /// worker during `done`. Returns when the function was called for each row.
    ///
    /// # Errors
    /// No worker can be started, or the caller ends: some rows were not processed.
    pub fn run(
        &self,
        first: usize,
        buffer: &CallBuffer,
        (inputs, outputs): (&[&str], &[&str]),
        is_ending: &dyn Fn() -> bool,
        done: &mut dyn FnMut(usize, Outcome<'_>),
    ) -> Result<Vec<RowTime>, Lost> {
        let run = self.run_rows(first, buffer, (inputs, outputs), is_ending, done);
        run.map_err(|lost| self.unless_the_daemon_ends(lost, is_ending))
    }

    /// If the daemon ends because no worker can be started any more, waits for that end: the rows are not at fault, and
    /// the next daemon processes them.
    fn unless_the_daemon_ends(&self, lost: Lost, is_ending: &dyn Fn() -> bool) -> Lost {
        if !self.spawner.ends_daemon() {
            return lost;
        }
        while !is_ending() {
            std::thread::sleep(LOOK_PERIOD);
        }
        Lost::Ending
    }

    fn run_rows(
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
        // If all sides are used, this is the wait for a worker.
        self.recorded.add_wait(Duration::ZERO, asked.elapsed());
        let mut together: Vec<usize> = (0..buffer.rows()).collect();
        // Rows, each with the number of losses of a worker that count against it.
        let mut suspects: VecDeque<(usize, u32)> = VecDeque::new();
        let mut alone = [0];
        let mut times = vec![RowTime::default(); buffer.rows()];
        loop {
            let bundle: &[usize] = if !together.is_empty() {
                &together
            } else if let Some((suspect, _)) = suspects.front() {
                alone[0] = *suspect;
                &alone
            } else {
                return Ok(times);
            };
            let header = buffer.header(bundle, &names, 0);
            let begin_ns = monotonic_ns();
            let called = self.call(&mut side, (buffer, &header), is_ending);
            let (mut turn, called) = called.map_err(|lost| self.named(lost))?;
            // Work threads may have moved to other cores since the worker's start.
            if let Some(worker) = &mut turn.worker {
                worker.take_own_cores();
            }
            let parsed = match (called, &mut turn.worker) {
                (Ok(bytes), Some(worker)) => {
                    let (arena, start) =
                        (Arc::clone(worker.link().arena()), side_start(side.number()));
                    let reply = reply::parse(&bytes, start, bundle.len(), outputs.len());
                    reply.map(|reply| (reply, arena)).map_err(|_| worker.malformed())
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
                        // The next call has lost the worker, which may have overwritten these results.
                        continue;
                    }
                    if together.is_empty() {
                        suspects.pop_front();
                    } else {
                        together.clear();
                    }
                }
                Err(Failure::Ending) => return Err(Lost::Ending),
                Err(Failure::Lost { reason, row, how }) => {
                    turn.lose();
                    let called = if self.spec.is_batch { "batch" } else { "sample" };
                    tracing::warn!(
                        stage = self.spec.stage,
                        "a worker was lost: a {called} {reason}"
                    );
                    if let (true, Some((suspect, losses))) =
                        (together.is_empty(), suspects.front_mut())
                    {
                        *losses += 1;
                        if *losses >= max_losses(how) {
                            match how {
                                Loss::Late => done(*suspect, Outcome::Late(&self.late(*losses))),
                                _ => done(*suspect, Outcome::Crashes(&reason)),
                            }
                            suspects.pop_front();
                        }
                    } else {
                        // Only the row being called is to blame; the first one if the worker does not report it.
                        let known = row.filter(|row| *row < together.len());
                        let is_late = known.is_some() && how == Loss::Late;
                        suspects.push_back((together.remove(known.unwrap_or(0)), is_late.into()));
                    }
                }
            }
        }
    }

    /// The description of a function whose calls exceed the timeout.
    fn late(&self, calls: u32) -> String {
        let PoolSpec { target, timeout, .. } = &self.spec;
        format!(
            "`{target}` ran for more than {timeout:?}, the `timeout` of {}, in each of {calls} calls; raise `timeout`, or \
             end what the function waits for",
            self.spec.place()
        )
    }

    /// Writes a call, waits for the turn, and calls; returns the turn and the reply.
    fn call<'p>(
        &'p self,
        side: &mut Side<'p>,
        call: (&CallBuffer, &[u8]),
        is_ending: &dyn Fn() -> bool,
    ) -> Result<(Turn<'p>, Result<Vec<u8>, Failure>), Lost> {
        let begun = Instant::now();
        // While another thread's call runs. An error here is repeated and handled below.
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
                let begun = Instant::now();
                let limit = Limit::Row(self.spec.timeout);
                let answer = worker.answer(&prepared, number, limit, is_ending);
                if matches!(answer, Err(Failure::Lost { how: Loss::Late, .. })) {
                    self.recorded.add_timeout(begun.elapsed());
                }
                answer
            }
            Err(_) => Err(worker.lost("")),
        };
        Ok((turn, reply))
    }

    /// Ends a worker that exceeds its memory limit. Its results stay in its arena.
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

    /// The ready worker of a place; started if there is none.
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
            let mut worker = match place.take() {
                // It was started with the pool.
                Some(worker) => worker,
                None => {
                    let started = Worker::start(Arc::clone(&self.spawner), false);
                    let mut worker = started.map_err(Lost::NoWorkers)?;
                    worker.take_own_cores();
                    self.recorded.add_process(worker.process());
                    worker
                }
            };
            let limit = Limit::Row(START_LIMIT.max(self.spec.timeout));
            let reason = match worker.hello(limit, is_ending) {
                Ok(hello) => match self.read_hello(&hello) {
                    Ok(ready_ns) => {
                        self.note_start(worker.begun_ns(), ready_ns);
                        *place = Some(worker);
                        break;
                    }
                    Err(reason) => {
                        worker.end();
                        return Err(Lost::NoWorkers(reason));
                    }
                },
                Err(Failure::Ending) => return Err(Lost::Ending),
                Err(Failure::Lost { reason, how, .. }) => {
                    failed += if how == Loss::Killed { 1 } else { MAX_KILLS / MAX_STARTS };
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

    /// Adds the stage's name, for errors reported to the trainer.
    fn named(&self, lost: Lost) -> Lost {
        let (place, target) = (self.spec.place(), &self.spec.target);
        match lost {
            Lost::NoWorkers(reason) => Lost::NoWorkers(format!("{place} (`{target}`): {reason}")),
            Lost::Ending => Lost::Ending,
        }
    }

    /// Records how long a worker took to become ready, and logs it for the first of the workers that start with the
    /// pool.
    fn note_start(&self, begun_ns: u64, ready_ns: u64) {
        // The worker's own report, limited to the time that has passed.
        let ready_ns = ready_ns.clamp(begun_ns, monotonic_ns().max(begun_ns));
        let took = Duration::from_nanos(ready_ns - begun_ns);
        if self.recorded.add_start(took) == 1 && self.starts_at_once() {
            tracing::info!(
                target: LOG_OF_STARTS,
                "the first worker of {} is ready after {:.1} s",
                self.spec.place(),
                took.as_secs_f64()
            );
        }
    }

    /// Reads a worker's first message: the source's digest, or why it cannot work. Returns when it was ready.
    fn read_hello(&self, hello: &[u8]) -> Result<u64, String> {
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
        Ok(value.get("ready_ns").and_then(serde_json::Value::as_u64).unwrap_or(u64::MAX))
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // While the workers' links exist, over which their last lines are requested.
        self.spawner.end();
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
