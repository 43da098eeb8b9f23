//! Recordings of the running daemon: start, end, their requesters, and the trainers' steps, which no thread of this
//! process executes.
//!
//! A recording is a task of the engine thread that samples every session each 1 to 5 ms; the threads write their events
//! themselves ([`forebay_observe::recorder`]). A separate thread allocates the memory, formats it as text and frees it.
//! A recording ends after its length, or when its requester has gone.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use forebay_protocol::clock::monotonic_ns;
use forebay_protocol::frames::{Fault, FaultKind};
use forebay_protocol::observing::{MAX_PROFILE_HERTZ, MAX_RECORDING_SECONDS, Recording as Wanted};
use forebay_protocol::sealed::seal_written;
use tokio::sync::{mpsc, oneshot};

use crate::core::session::ClientCounters;
use crate::core::{Engine, SharedEngine};
use forebay_observe::recorder::folded::{fold, fold_samples, write_folded};
use forebay_observe::recorder::text::{Scene, SessionNames, write_trace};
use forebay_observe::recorder::{Kind, Recorder, Recording, RecordingPermit, Sizes, Track, What};
use forebay_observe::sampler::{Samples, Sampling};

/// The result of a recording: a file in memory.
pub type Recorded = Result<OwnedFd, Fault>;

/// Title of a profile from the kernel's samples.
const SAMPLES_TITLE: &str = "user CPU time by kind of thread, stage, operations and function";
/// Title of a profile from spans.
const TIME_TITLE: &str = "wall-clock time by kind of thread, stage and operations, sleep included";
/// Sampling periods for short and for long trainer steps. The runtime's timers are no finer; sampling costs about 10
/// µs.
const LOOK_PERIODS: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(5));
/// Minimal number of samples per step.
const LOOKS_PER_STEP: u32 = 4;

/// Begins a recording. The result is sent to `done`; if its receiver is dropped, the recording ends.
///
/// # Errors
/// A fault that names the reason: its length, another recording, or memory.
pub fn begin_recording(
    engine: &SharedEngine,
    wanted: Wanted,
    done: mpsc::Sender<Recorded>,
) -> Result<(), Fault> {
    let (milliseconds, hertz) = match wanted {
        Wanted::Trace { milliseconds } => (milliseconds, None),
        Wanted::Profile { milliseconds, hertz } => (milliseconds, Some(hertz)),
    };
    if let Some(hertz) = hertz.filter(|hertz| *hertz > MAX_PROFILE_HERTZ) {
        let message =
            format!("{hertz} samples a second requested; the maximum is {MAX_PROFILE_HERTZ}");
        return Err(Fault { kind: FaultKind::Config, message });
    }
    if !(1..=MAX_RECORDING_SECONDS * 1000).contains(&milliseconds) {
        let message = format!(
            "a recording of {milliseconds} ms requested; allowed are 1 ms to {MAX_RECORDING_SECONDS} s"
        );
        return Err(Fault { kind: FaultKind::Config, message });
    }
    let length = Duration::from_millis(milliseconds.into());
    let (recorder, sizes) = (engine.borrow().recorder(), engine.borrow().track_sizes());
    let Some(permit) = recorder.take() else {
        let message = "another recording is running; retry when it has ended".to_owned();
        return Err(Fault { kind: FaultKind::Taken, message });
    };
    engine
        .borrow()
        .check_room_for_recording()
        .map_err(|message| Fault { kind: FaultKind::Memory, message })?;
    let engine = std::rc::Rc::clone(engine);
    tokio::task::spawn_local(async move {
        tokio::select! {
            biased;
            () = done.closed() => {}
            recorded = record(engine, recorder, permit, sizes, (length, hertz)) => {
                let recorded = recorded.map_err(|error| Fault {
                    kind: FaultKind::Internal,
                    message: format!("the recording failed: {error}"),
                });
                // One result per channel, and its receiver waits for it.
                let _ = done.try_send(recorded);
            }
        }
    });
    Ok(())
}

async fn record(
    engine: SharedEngine,
    recorder: Arc<Recorder>,
    permit: RecordingPermit,
    sizes: Sizes,
    (length, hertz): (Duration, Option<u32>),
) -> io::Result<OwnedFd> {
    // The permit is passed along: the requester may leave meanwhile, and the memory counts until it is freed.
    let (memory, permit) = on_a_thread(move || Ok((Recording::allocate(sizes), permit))).await?;
    let mut held = Held(Some((Arc::new(memory), permit)));
    let mut trainers = Trainers::default();
    let clock = engine.borrow().clock.clone();
    let begun = clock.now();
    if let Some((memory, _)) = &held.0 {
        recorder.start(memory);
    }
    let sampling = hertz.map(|hertz| match hertz {
        // The request was for wall-clock time.
        0 => Ok(None),
        hertz => Sampling::start(hertz).map(Some),
    });
    let end = tokio::time::sleep(length);
    tokio::pin!(end);
    loop {
        let next = trainers.sample(&engine.borrow(), &recorder);
        tokio::select! {
            biased;
            () = &mut end => break,
            () = tokio::time::sleep(next) => {}
        }
    }
    recorder.stop();
    let scene = engine.borrow().scene(trainers.sessions, unix_offset_ns(), clock.elapsed(begun));
    let Some(held) = held.0.take() else {
        return Err(io::Error::other("its memory is gone"));
    };
    on_a_thread(move || {
        let held = Held(Some(held));
        let Some((memory, _)) = &held.0 else {
            return Err(io::Error::other("its memory is gone"));
        };
        let Some(sampling) = sampling else {
            return seal_written("forebay-trace", |writer| write_trace(memory, &scene, writer));
        };
        let sampled = match sampling {
            Ok(None) => Err(None),
            Ok(Some(sampling)) => sampling.end().map_err(Some),
            Err(error) => Err(Some(error.to_string())),
        };
        write_profile(sampled, memory, &scene)
    })
    .await
}

/// Writes the sampled profile; if the kernel refused sampling, the profile of the spans.
fn write_profile(
    sampled: Result<Samples, Option<String>>,
    memory: &Recording,
    scene: &Scene,
) -> io::Result<OwnedFd> {
    let (stacks, title, unit) = match &sampled {
        Ok(found) => {
            let (stacks, has_symbols) = fold_samples(found, memory, scene);
            let stripped =
                if has_symbols { "" } else { "; the program was stripped of its symbols" };
            let mut lost = String::new();
            if found.dropped > 0 {
                lost.push_str(&format!(
                    "; {} samples were dropped: the buffer was full",
                    found.dropped
                ));
            }
            if found.refused > 0 {
                lost.push_str(&format!("; {} threads were not sampled", found.refused));
            }
            (stacks, format!("{SAMPLES_TITLE}{stripped}{lost}"), "samples")
        }
        Err(reason) => {
            let reason = reason.as_ref().map_or_else(String::new, |reason| {
                format!(" (the kernel gave no samples of functions: {reason})")
            });
            let title = format!("{TIME_TITLE}{reason}");
            (fold(memory, scene), title, "us")
        }
    };
    seal_written("forebay-profile", |writer| write_folded(&stacks, &title, unit, writer))
}

/// A recording's memory and its permit. A separate thread frees it: freeing takes a while, and must not happen on a
/// work thread, which has a reference while it writes an event.
struct Held(Option<(Arc<Recording>, RecordingPermit)>);

/// Polling period and count while a work thread may still be writing an event.
const EVENT_PATIENCE: (Duration, u32) = (Duration::from_millis(5), 1000);

impl Drop for Held {
    fn drop(&mut self) {
        let Some((memory, permit)) = self.0.take() else {
            return;
        };
        permit.stop();
        let give_back = move || {
            let (pause, times) = EVENT_PATIENCE;
            for _ in 0..times {
                if Arc::strong_count(&memory) == 1 {
                    break;
                }
                std::thread::sleep(pause);
            }
            drop(memory);
            drop(permit);
        };
        // If no thread can be started, it is freed here: the closure is dropped.
        let _ = std::thread::Builder::new().name("forebay-record".to_owned()).spawn(give_back);
    }
}

/// Runs work that would block the engine thread for too long.
async fn on_a_thread<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (sender, done) = oneshot::channel();
    std::thread::Builder::new().name("forebay-record".to_owned()).spawn(move || {
        // The receiver may be gone.
        let _ = sender.send(work());
    })?;
    done.await.unwrap_or_else(|_| Err(io::Error::other("its thread panicked")))
}

/// The sampled state of the sessions and their clients.
#[derive(Debug, Default)]
struct Trainers {
    sessions: BTreeMap<u64, SessionNames>,
    seen: BTreeMap<u64, Seen>,
}

/// One client at the last sample; its times are forced to be monotonic.
#[derive(Debug)]
struct Seen {
    pulse: ClientCounters,
    /// When the current step began, and the one before it.
    step_ns: (u64, u64),
    /// The end of the last recorded wait.
    waited_until_ns: u64,
}

impl Trainers {
    /// Samples every session; returns the time until the next sample.
    fn sample(&mut self, engine: &Engine, recorder: &Recorder) -> Duration {
        let (mut is_known, mut shortest_ns) = (true, u64::MAX);
        for session in engine.sessions() {
            let (number, pulse, now_ns) = (session.number, session.counters(), monotonic_ns());
            let tell = |kind, start_ns, end_ns, batch, detail| {
                let what = What { session: number, batch, detail, ..What::of(kind) };
                recorder.span_ns(Track::Engine, start_ns, end_ns, what);
            };
            let Some(seen) = self.seen.get_mut(&number) else {
                self.sessions.insert(number, session.names());
                let at_ns = pulse.taken_at_ns.min(now_ns);
                let seen = Seen { pulse, step_ns: (at_ns, at_ns), waited_until_ns: at_ns };
                self.seen.insert(number, seen);
                tell(Kind::Ring, now_ns, now_ns, 0, packed(pulse.slots));
                is_known = false;
                continue;
            };
            if pulse.slots != seen.pulse.slots {
                tell(Kind::Ring, now_ns, now_ns, 0, packed(pulse.slots));
            }
            seen.follow(pulse, now_ns, tell);
            let (from_ns, until_ns) = seen.step_ns;
            is_known &= from_ns < until_ns;
            shortest_ns = shortest_ns.min(until_ns - from_ns);
        }
        let (least, most) = LOOK_PERIODS;
        if !is_known {
            return least;
        }
        (Duration::from_nanos(shortest_ns) / LOOKS_PER_STEP).clamp(least, most)
    }
}

impl Seen {
    /// A take ends a step, and the wait before it if there was one. The client may report the wait later than the take.
    fn follow(
        &mut self,
        pulse: ClientCounters,
        now_ns: u64,
        tell: impl Fn(Kind, u64, u64, u64, u64),
    ) {
        let batches = pulse.taken.saturating_sub(self.pulse.taken);
        let is_told = pulse.taken_at_ns != self.pulse.taken_at_ns;
        if batches > 0 && is_told {
            let at_ns = pulse.taken_at_ns.clamp(self.step_ns.1, now_ns.max(self.step_ns.1));
            if self.pulse.taken > 0 {
                tell(Kind::Step, self.step_ns.1, at_ns, pulse.taken - 1, batches);
            }
            self.step_ns = (self.step_ns.1, at_ns);
        }
        let waited_ns = pulse.waited_ns.saturating_sub(self.pulse.waited_ns);
        if waited_ns > 0 {
            let (from_ns, until_ns) = self.step_ns;
            let earliest = from_ns.max(self.waited_until_ns);
            let since_ns = until_ns.saturating_sub(waited_ns).max(earliest);
            if since_ns < until_ns {
                tell(Kind::Wait, since_ns, until_ns, pulse.taken.saturating_sub(1), batches);
                self.waited_until_ns = until_ns;
            }
        }
        // A count whose time is not reported yet is examined again.
        let taken_before = self.pulse.taken;
        self.pulse = pulse;
        if batches > 0 && !is_told {
            self.pulse.taken = taken_before;
        }
    }
}

fn packed(slots: [u64; 4]) -> u64 {
    slots.iter().rev().fold(0, |packed, count| packed << 16 | (*count).min(0xffff))
}

/// The offset from the monotonic clock to nanoseconds since the Unix epoch, from the closest of a few readings.
fn unix_offset_ns() -> u64 {
    let reading = || {
        let before = monotonic_ns();
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let after = monotonic_ns();
        let unix_ns = u64::try_from(unix.as_nanos()).unwrap_or(0);
        (after - before, unix_ns.saturating_sub(before + (after - before) / 2))
    };
    (0..5).map(|_| reading()).min().map_or(0, |(_, offset)| offset)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use crate::core::capture::*;

    /// The events recorded for a client with these counters, one sample after another, 1000 ns apart.
    fn told(pulses: &[(u64, u64, u64)]) -> Vec<(Kind, u64, u64, u64)> {
        let events = RefCell::new(Vec::new());
        let pulse = |(taken, taken_at_ns, waited_ns): (u64, u64, u64)| ClientCounters {
            slots: [0; 4],
            taken,
            taken_at_ns,
            waited_ns,
        };
        let first = pulse(pulses[0]);
        let mut seen = Seen {
            pulse: first,
            step_ns: (first.taken_at_ns, first.taken_at_ns),
            waited_until_ns: first.taken_at_ns,
        };
        for (look, words) in pulses[1..].iter().enumerate() {
            let now_ns = 2000 + 1000 * look as u64;
            seen.follow(pulse(*words), now_ns, |kind, start, end, _, batches| {
                events.borrow_mut().push((kind, start, end, batches));
            });
        }
        events.into_inner()
    }

    #[test]
    fn take_ends_a_step_and_a_wait() {
        let looks = [(3, 900, 50), (3, 900, 50), (4, 2500, 50), (5, 3900, 350), (7, 4800, 350)];
        let expected = [
            (Kind::Step, 900, 2500, 1),
            (Kind::Step, 2500, 3900, 1),
            (Kind::Wait, 3600, 3900, 1),
            (Kind::Step, 3900, 4800, 2),
        ];
        assert_eq!(told(&looks), expected);
    }

    #[test]
    fn late_report_belongs_to_the_previous_take() {
        // The count first, its time one sample later, the wait another sample later.
        let looks = [(3, 900, 0), (4, 900, 0), (4, 1800, 0), (4, 1800, 200), (4, 1800, 200)];
        assert_eq!(told(&looks), [(Kind::Step, 900, 1800, 1), (Kind::Wait, 1600, 1800, 0)]);
    }

    #[test]
    fn first_batch_does_not_end_a_step() {
        assert_eq!(told(&[(0, 0, 0), (1, 1900, 0), (2, 2900, 0)]), [(Kind::Step, 1900, 2900, 1)]);
    }

    #[test]
    fn false_report_yields_neither_future_nor_overlapping_times() {
        let looks = [(1, 500, 0), (2, u64::MAX, u64::MAX), (3, 1, 5), (1, 7, 0), (9, 0, 400)];
        let events = told(&looks);
        let mut ends = (500, 500);
        for (kind, start, end, _) in events {
            assert!(start <= end && end <= 5000, "{kind:?} {start} {end}");
            let last = if kind == Kind::Step { &mut ends.0 } else { &mut ends.1 };
            assert!(start >= *last, "{kind:?} {start} {end}");
            *last = end;
        }
    }

    #[test]
    fn slot_counts_are_packed_in_the_order_of_the_text() {
        assert_eq!(packed([1, 2, 3, 70_000]), 1 | 2 << 16 | 3 << 32 | 0xffff << 48);
    }
}
