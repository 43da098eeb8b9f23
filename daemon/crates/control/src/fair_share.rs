//! How much of the engine's thread the frames of one process may use.
//!
//! One thread executes all control frames, so a client that sends frames without end would block the others.
//! [`metered`] measures the time of a connection's task. It excludes the work for returned batches, which is nearly all
//! the work that a training client causes. The connections of one process have one share, so reconnecting gains nothing.
//! While a process is over its share, its frames are not read: they wait in its socket, and seeks among them are
//! executed together.
//!
//! Shares protect other processes: if only one process has sessions, it never waits.
//!
//! An attach may take long, since it allocates the ring. The first attaches of a process are free; further ones in a row
//! wait until the time of the earlier ones is within the process's share.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::time::{Duration, Instant};

use forebay_host::sockets::credentials;
use forebay_protocol::socket::Connection;

/// All processes that are over their share get 1 / `PARTS` of the thread together.
const PARTS: u32 = 20;
/// Time that a process may use at once.
const BURST: Duration = Duration::from_millis(50);
/// Recorded time beyond [`BURST`]: a pause is at most this times [`PARTS`].
const MAX_DEBT: Duration = Duration::from_millis(50);
/// Attaches in a row that do not wait.
const FREE_ATTACHES: u32 = 8;
/// How long an attach counts.
const ATTACH_PERIOD: Duration = Duration::from_secs(10);
/// If there are more entries, those without a debt are removed.
const MAX_ENTRIES: usize = 64;

/// A process id; [`LISTENER`] is not a process.
pub(crate) type Peer = i32;

/// Processes whose id is not visible in this PID namespace.
const UNKNOWN: Peer = 0;

/// The process whose share a connection uses.
pub(crate) fn peer_of(connection: &Connection) -> Peer {
    credentials(connection).map_or(UNKNOWN, |known| known.pid())
}

/// The share of connections that have sent nothing yet.
const LISTENER: Peer = -1;
/// Approximate cost of a connection: its task, its pidfd, its first turn, its end.
const CONNECT_COST: Duration = Duration::from_micros(150);
/// Cost of a recording: it has a separate thread, which allocates memory and writes text.
pub(crate) const RECORDING_COST: Duration = Duration::from_millis(25);
/// Cost of a row that a seek discards: admitted, fetched, cancelled.
pub(crate) const ROW_COST: Duration = Duration::from_micros(4);

/// The usage of one process.
#[derive(Debug)]
struct Usage {
    used: Duration,
    at: Instant,
    /// When the last attaches no longer count.
    attaches_until: Instant,
    no_attach_before: Instant,
}

impl Usage {
    fn new(now: Instant) -> Self {
        Self { used: Duration::ZERO, at: now, attaches_until: now, no_attach_before: now }
    }

    /// Reduces the usage with time: a debt falls more slowly the more processes are in debt.
    fn pass(&mut self, now: Instant, indebted: u32) {
        let passed = now.saturating_duration_since(self.at);
        let parts = if self.debt().is_zero() { PARTS } else { PARTS.saturating_mul(indebted) };
        self.used = self.used.saturating_sub(passed / parts);
        self.at = now;
    }

    fn debt(&self) -> Duration {
        self.used.saturating_sub(BURST)
    }

    fn is_idle(&self, now: Instant) -> bool {
        self.used.is_zero() && self.attaches_until <= now && self.no_attach_before <= now
    }
}

/// At least 1.
fn count_indebted(shares: &BTreeMap<Peer, Usage>) -> u32 {
    let count = shares.values().filter(|usage| !usage.debt().is_zero()).count();
    u32::try_from(count).unwrap_or(u32::MAX).max(1)
}

/// The shares of all processes.
#[derive(Debug, Default)]
pub(crate) struct FairShares {
    usages: RefCell<BTreeMap<Peer, Usage>>,
    /// The number of sessions of each process.
    sessions: RefCell<BTreeMap<Peer, u32>>,
}

impl FairShares {
    fn with<R>(&self, peer: Peer, now: Instant, work: impl FnOnce(&mut Usage) -> R) -> R {
        let mut shares = self.usages.borrow_mut();
        let indebted = count_indebted(&shares);
        shares.values_mut().for_each(|usage| usage.pass(now, indebted));
        if shares.len() > MAX_ENTRIES {
            shares.retain(|_, usage| !usage.is_idle(now));
        }
        work(shares.entry(peer).or_insert_with(|| Usage::new(now)))
    }

    /// Charges a process for the time that its frames have used.
    pub(crate) fn charge(&self, peer: Peer, now: Instant, used: Duration) {
        self.with(peer, now, |usage| usage.used = (usage.used + used).min(BURST + MAX_DEBT));
    }

    /// A process has one more session.
    pub(crate) fn on_attach(&self, peer: Peer) {
        *self.sessions.borrow_mut().entry(peer).or_default() += 1;
    }

    /// A process has one session less.
    pub(crate) fn on_detach(&self, peer: Peer) {
        let mut sessions = self.sessions.borrow_mut();
        if let Some(count) = sessions.get_mut(&peer) {
            *count -= 1;
            if *count == 0 {
                sessions.remove(&peer);
            }
        }
    }

    /// Whether another process may have a session.
    fn has_others(&self, peer: Peer) -> bool {
        let sessions = self.sessions.borrow();
        sessions.keys().any(|other| *other != peer || peer == UNKNOWN)
    }

    /// How long to pause reading from a process; `None`: it is within its share, or no other process has a session.
    pub(crate) fn pause(&self, peer: Peer, now: Instant) -> Option<Duration> {
        self.pause_of(peer, peer, now)
    }

    /// How long to pause accepting after a connection of this process.
    pub(crate) fn listener_pause(&self, peer: Peer, now: Instant) -> Option<Duration> {
        self.charge(LISTENER, now, CONNECT_COST);
        self.pause_of(LISTENER, peer, now)
    }

    fn pause_of(&self, account: Peer, peer: Peer, now: Instant) -> Option<Duration> {
        let debt = self.with(account, now, |usage| usage.debt());
        if debt.is_zero() || !self.has_others(peer) {
            return None;
        }
        Some(debt * PARTS * count_indebted(&self.usages.borrow()))
    }

    /// Charges a process for an attach of this duration.
    pub(crate) fn charge_attach(&self, peer: Peer, now: Instant, took: Duration) {
        self.with(peer, now, |usage| {
            usage.attaches_until = usage.attaches_until.max(now) + ATTACH_PERIOD;
            if usage.attaches_until > now + ATTACH_PERIOD * FREE_ATTACHES {
                // Freeing its memory takes the same time again.
                usage.no_attach_before = now + took * 2 * PARTS;
            }
        });
    }

    /// How long a process's next attach waits.
    pub(crate) fn attach_pause(&self, peer: Peer, now: Instant) -> Option<Duration> {
        let left =
            self.with(peer, now, |usage| usage.no_attach_before.saturating_duration_since(now));
        (!left.is_zero() && self.has_others(peer)).then_some(left)
    }
}

/// The thread time that a task uses, updated from inside and outside of the task.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    used: Cell<Duration>,
    /// The start of the present turn, or of its part that is not counted yet.
    since: Cell<Option<Instant>>,
}

impl Meter {
    /// The time used since the last call.
    pub(crate) fn take(&self, now: Instant) -> Duration {
        self.count(now);
        self.used.take()
    }

    /// Excludes the last part of this duration.
    pub(crate) fn skip(&self, took: Duration) {
        self.since.set(self.since.get().map(|since| since + took));
    }

    fn count(&self, now: Instant) {
        if let Some(since) = self.since.replace(Some(now)) {
            self.used.set(self.used.get() + now.saturating_duration_since(since));
        }
    }
}

/// Measures the time that a task uses.
pub(crate) async fn metered<F: Future>(meter: &Meter, task: F) -> F::Output {
    let mut task = std::pin::pin!(task);
    poll_fn(|context| {
        meter.since.set(Some(Instant::now()));
        let polled = task.as_mut().poll(context);
        meter.count(Instant::now());
        meter.since.set(None);
        polled
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// With a session of a process that stays within its share.
    fn shares() -> FairShares {
        let shares = FairShares::default();
        shares.on_attach(1_000_000);
        shares
    }

    /// Thread time used within a second by processes that repeat an action of this duration without pause.
    fn used_by(peers: Peer, each: Duration) -> Duration {
        let (shares, begun) = (shares(), Instant::now());
        let (mut now, mut used) = (begun, Duration::ZERO);
        let mut ready: Vec<Instant> = (0..peers).map(|_| begun).collect();
        while now < begun + Duration::from_secs(10) {
            for peer in 1..=peers {
                let at = &mut ready[usize::try_from(peer - 1).unwrap()];
                if *at > now {
                    continue;
                }
                now += each;
                used += each;
                shares.charge(peer, now, each);
                *at = now + shares.pause(peer, now).unwrap_or_default();
            }
            now += MS / 10;
        }
        used / 10
    }

    #[test]
    fn one_flooding_process_and_many_use_the_same_share() {
        for (peers, each) in [(1, MS / 100), (1, MS), (1, 10 * MS), (5, MS)] {
            let used = used_by(peers, each);
            let burst = (BURST + MAX_DEBT) * u32::try_from(peers).unwrap() / 10;
            assert!(used <= Duration::from_secs(1) / PARTS + burst + 3 * MS, "{peers}: {used:?}");
            assert!(used >= Duration::from_secs(1) / (2 * PARTS), "{peers}: {used:?}");
        }
    }

    #[test]
    fn occasional_requests_never_wait_and_debt_is_bounded() {
        let (shares, begun) = (shares(), Instant::now());
        for second in 0..1000 {
            let now = begun + Duration::from_secs(1) * second;
            shares.charge(1, now, 49 * MS);
            assert_eq!(shares.pause(1, now), None);
        }
        shares.charge(2, begun, Duration::from_secs(3600));
        assert_eq!(shares.pause(2, begun), Some(MAX_DEBT * PARTS));
        assert_eq!(shares.pause(2, begun + MAX_DEBT * PARTS), None);
        assert_eq!(shares.pause(1, begun), None, "another process");
    }

    #[test]
    fn few_attaches_are_free_and_many_use_a_share() {
        let (shares, mut now) = (shares(), Instant::now());
        for _ in 0..FREE_ATTACHES {
            assert_eq!(shares.attach_pause(1, now), None);
            shares.charge_attach(1, now, 2000 * MS);
        }
        let mut attaches = 0;
        let begun = now;
        while now < begun + Duration::from_secs(60) {
            if let Some(pause) = shares.attach_pause(1, now) {
                now += pause;
                continue;
            }
            now += 30 * MS;
            shares.charge_attach(1, now, 30 * MS);
            attaches += 1;
        }
        assert!((30..=60).contains(&attaches), "{attaches}");
        assert_eq!(shares.attach_pause(2, begun), None, "another process");
        assert_eq!(shares.attach_pause(1, now + Duration::from_secs(100)), None);
    }

    #[test]
    fn entries_of_ended_processes_are_removed() {
        let (shares, begun) = (shares(), Instant::now());
        for peer in 0..1000 {
            shares.charge(peer, begun, MS);
        }
        shares.charge(1, begun + Duration::from_secs(10), MS);
        assert_eq!(shares.usages.borrow().len(), 1);
    }

    #[test]
    fn only_process_with_sessions_does_not_wait() {
        let (shares, now) = (FairShares::default(), Instant::now());
        let is_paused = |peer| {
            shares.charge(peer, now, 200 * MS);
            for _ in 0..2 * FREE_ATTACHES {
                shares.charge_attach(peer, now, MS);
            }
            for _ in 0..2_000 {
                shares.listener_pause(peer, now);
            }
            [
                shares.pause(peer, now),
                shares.attach_pause(peer, now),
                shares.listener_pause(peer, now),
            ]
            .map(|pause| pause.is_some())
        };
        assert_eq!(is_paused(1), [false; 3]);
        shares.on_attach(1);
        shares.on_attach(1);
        assert_eq!((is_paused(1), is_paused(2)), ([false; 3], [true; 3]));
        shares.on_detach(1);
        assert_eq!(is_paused(2), [true; 3], "one session is left");
        shares.on_detach(1);
        shares.on_attach(UNKNOWN);
        assert_eq!((is_paused(1), is_paused(UNKNOWN)), ([true; 3], [true; 3]));
    }
}
