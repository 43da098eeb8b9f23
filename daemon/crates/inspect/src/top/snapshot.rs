//! The data shown for one daemon and one of its sessions.

use std::sync::Arc;

use super::history::{Course, History, Window, samples_per_second, wait_share};
use forebay_observe::{
    CacheReport, DaemonReport, JpegIndexReport, RequestReport, SessionReport, SharingReport,
    StageReport, StreamReport, SupplyReport, Verdict,
};

/// Identifies a daemon and a session; a daemon without a session has a snapshot, too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Key {
    /// The daemon's number in the list.
    pub daemon: usize,
    pub session: Option<u64>,
}

/// One daemon and one of its sessions.
#[derive(Debug, Clone)]
pub(super) struct Snapshot {
    pub key: Key,
    /// Sanitized.
    pub socket: String,
    /// Why the daemon does not answer, and for how many seconds.
    pub lost: Option<(String, f64)>,
    /// `None` before the first response.
    pub figures: Option<Figures>,
}

/// The metrics of the last seconds.
#[derive(Debug, Clone)]
pub(super) struct Figures {
    pub window: Arc<Window>,
    pub session: Option<Session>,
}

/// The metrics of the trainer.
#[derive(Debug, Clone)]
pub(super) struct Session {
    pub report: SessionReport,
    pub samples_per_second: f64,
    /// 0 to 1.
    pub wait_share: f64,
    pub course: Course,
}

/// A message for the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Notice {
    pub kind: NoticeKind,
    pub sentence: String,
}

/// The kinds, by urgency.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoticeKind {
    Stall,
    NotQuiet,
    BadSample,
}

impl Snapshot {
    /// The snapshots of one daemon: one for each session, or one without a session.
    pub(super) fn of(
        daemon: usize,
        socket: &str,
        history: &History,
        lost: Option<&(String, f64)>,
    ) -> Vec<Self> {
        let snapshot = |session: Option<Session>, window: Option<&Arc<Window>>| Self {
            key: Key { daemon, session: session.as_ref().map(|session| session.report.session) },
            socket: socket.to_owned(),
            lost: lost.cloned(),
            figures: window.map(|window| Figures { window: Arc::clone(window), session }),
        };
        let Some(window) = history.window().map(Arc::new) else {
            return vec![snapshot(None, None)];
        };
        if window.figures.sessions.is_empty() {
            return vec![snapshot(None, Some(&window))];
        }
        let session = |report: &SessionReport| Session {
            report: report.clone(),
            samples_per_second: samples_per_second(&window.figures, report),
            wait_share: wait_share(report),
            course: history.course(report.session).cloned().unwrap_or_default(),
        };
        let sessions = window.figures.sessions.iter();
        sessions.map(|report| snapshot(Some(session(report)), Some(&window))).collect()
    }

    pub(super) fn session(&self) -> Option<&Session> {
        self.figures.as_ref().and_then(|figures| figures.session.as_ref())
    }
}

impl Figures {
    pub(super) fn report(&self) -> &DaemonReport {
        &self.window.figures
    }

    /// The stages of the session's stream, and the user's functions on complete batches.
    pub(super) fn stages(&self) -> Vec<&StageReport> {
        match self.stream() {
            Some(stream) => stream.stages_and_functions().collect(),
            None => self.report().stages.iter().collect(),
        }
    }

    /// The requests to the storage of the session's stream.
    pub(super) fn requests(&self) -> Option<&RequestReport> {
        self.stream()?.requests.as_ref()
    }

    /// The index of JPEG files of the session's stream.
    pub(super) fn jpeg_index(&self) -> Option<&JpegIndexReport> {
        self.stream()?.jpeg_index.as_ref()
    }

    /// The rows of each dataset, if the stream has several.
    pub(super) fn datasets_line(&self) -> Option<String> {
        self.stream()?.datasets_line()
    }

    /// The rows that trainers of the session's stream share.
    pub(super) fn supply(&self) -> Option<&SupplyReport> {
        self.stream()?.supply.as_ref()
    }

    /// As the other ones.
    pub(super) fn sharing(&self) -> Option<&SharingReport> {
        self.stream()?.sharing.as_ref()
    }

    /// The disk cache of the session's stream.
    pub(super) fn cache(&self) -> Option<&CacheReport> {
        self.stream()?.cache.as_ref()
    }

    /// The session's stream.
    fn stream(&self) -> Option<&StreamReport> {
        let name = &self.session.as_ref()?.report.stream;
        self.report().streams.iter().find(|stream| &stream.name == name)
    }

    /// The mean number of running tasks of a stage; for a Python stage, of busy workers. A task longer than the window
    /// counts when it ends.
    pub(super) fn busy(&self, stage: &StageReport) -> f64 {
        self.per_second(stage.worked_seconds()).min(f64::from(stage.concurrency))
    }

    pub(super) fn cpu_cores(&self) -> f64 {
        self.per_second(self.report().cpu_seconds)
    }

    /// The number of cores that Python workers used; `None` without workers.
    pub(super) fn python_cores(&self) -> Option<f64> {
        let has_python = self.report().streams.iter().any(|one| one.python().next().is_some());
        has_python.then(|| self.per_second(self.report().python_cpu_seconds))
    }

    pub(super) fn cpu_budget_cores(&self) -> f64 {
        let budget = self.report().cpu_budget;
        budget.cores.unwrap_or(budget.granted_cores)
    }

    pub(super) fn memory_ceiling_bytes(&self) -> u64 {
        self.report().streams.iter().map(|stream| stream.memory_budget_bytes).sum()
    }

    pub(super) fn verdict(&self) -> &Verdict {
        let own = self.session.as_ref().and_then(|session| session.report.verdict.as_ref());
        own.unwrap_or(&self.report().verdict)
    }

    fn per_second(&self, seconds: f64) -> f64 {
        if self.window.seconds > 0.0 { seconds / self.window.seconds } else { 0.0 }
    }

    /// Messages for the user, the most urgent first.
    pub(super) fn notices(&self) -> Vec<Notice> {
        let stalls = self.report().stalls.iter().map(|stall| Notice {
            kind: NoticeKind::Stall,
            sentence: format!("stalled: {}", stall.sentence),
        });
        let missed = self.report().cpu_isolation.iter().filter(|item| !item.in_force).map(|item| {
            let remedy = item.remedy.as_ref().map_or(String::new(), |remedy| format!("; {remedy}"));
            let sentence = format!("not in effect: {}: {}{remedy}", item.name, item.state);
            Notice { kind: NoticeKind::NotQuiet, sentence }
        });
        // The last substitution first.
        let bad = self.session.iter().flat_map(|session| session.report.substituted.iter().rev());
        let bad = bad.map(|one| {
            let sentence = format!(
                "bad: epoch {}, sample {}: {} ({}); sample {} took its place",
                one.epoch, one.sample, one.reason, one.path, one.substitute
            );
            Notice { kind: NoticeKind::BadSample, sentence }
        });
        stalls.chain(missed).chain(bad).collect()
    }
}

impl Session {
    /// The numbers of ready, leased, filling and free slots.
    pub(super) fn slots(&self) -> [u64; 4] {
        let one = &self.report;
        [one.slots_ready, one.slots_leased, one.slots_filling, one.slots_free]
    }

    /// The mean number of work threads that worked for it.
    pub(super) fn work_threads(&self) -> f64 {
        let seconds = self.report.seconds;
        if seconds > 0.0 { self.report.work_seconds / seconds } else { 0.0 }
    }

    /// `None` if no batch was taken.
    #[expect(clippy::cast_precision_loss, reason = "a figure")]
    pub(super) fn step_seconds(&self) -> Option<f64> {
        let batches = self.report.batches_taken;
        (batches > 0).then(|| self.report.seconds / batches as f64)
    }
}

/// The index of the slow rank. In lockstep, all ranks take the same number of samples, so it is the rank that waits
/// most; otherwise it is the rank with the lowest rate. `None` if no rank is clearly slower.
pub(super) fn slowest(snapshots: &[Snapshot]) -> Option<usize> {
    let sessions: Vec<(usize, &Session)> = snapshots
        .iter()
        .enumerate()
        .filter(|(_, snapshot)| snapshot.lost.is_none())
        .filter_map(|(number, snapshot)| Some((number, snapshot.session()?)))
        .collect();
    let stream = &sessions.first()?.1.report.stream;
    let of_stream: Vec<_> =
        sessions.iter().filter(|(_, session)| session.report.stream == *stream).collect();
    if of_stream.len() < 2 {
        return None;
    }
    let sorted = |figure: fn(&Session) -> f64| {
        let mut values: Vec<f64> = of_stream.iter().map(|(_, session)| figure(session)).collect();
        values.sort_by(f64::total_cmp);
        values
    };
    // The median; of an even number of ranks the better of the two middle ones, so that one of two ranks can be the
    // slow one.
    let count = of_stream.len();
    let usual_wait = sorted(|session| session.wait_share)[(count - 1) / 2];
    let usual_rate = sorted(|session| session.samples_per_second)[count / 2];
    let most_wait =
        of_stream.iter().max_by(|one, other| one.1.wait_share.total_cmp(&other.1.wait_share))?;
    if most_wait.1.wait_share >= usual_wait * 1.5 && most_wait.1.wait_share >= usual_wait + 0.02 {
        return Some(most_wait.0);
    }
    let least = of_stream
        .iter()
        .min_by(|one, other| one.1.samples_per_second.total_cmp(&other.1.samples_per_second))?;
    (least.1.samples_per_second < 0.9 * usual_rate).then_some(least.0)
}

/// Sorts by rank, then stream; daemons without a session are last.
pub(super) fn sort(snapshots: &mut [Snapshot]) {
    snapshots.sort_by(|one, other| {
        let key = |snapshot: &Snapshot| {
            let session = snapshot.session();
            (
                session.is_none(),
                session.map(|session| (session.report.rank, session.report.stream.clone())),
                snapshot.socket.clone(),
                snapshot.key.session,
            )
        };
        key(one).cmp(&key(other))
    });
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::testing::Script;
    use super::*;

    /// Ranks with these batches and waits in seconds, during four seconds.
    fn ranks(figures: &[(u64, f64)]) -> Vec<Snapshot> {
        let mut snapshots = Vec::new();
        for (number, (batches, waited)) in figures.iter().enumerate() {
            let mut history = History::default();
            let rank = u32::try_from(number).unwrap();
            let script = Script { rank, world_size: 4, ..Script::default() };
            history.add(Duration::ZERO, script.report());
            let later = Script { seconds: 4.0, batches: *batches, waited: *waited, ..script };
            history.add(Duration::from_secs(4), later.report());
            snapshots.extend(Snapshot::of(number, &format!("/run/{number}.sock"), &history, None));
        }
        snapshots
    }

    #[test]
    fn slow_rank_in_lockstep_is_the_one_that_waits() {
        assert_eq!(slowest(&ranks(&[(40, 0.1), (40, 0.12), (40, 1.4), (40, 0.1)])), Some(2));
        assert_eq!(slowest(&ranks(&[(40, 0.1), (40, 2.0)])), Some(1));
    }

    #[test]
    fn slow_rank_out_of_step_is_the_one_with_the_lowest_rate() {
        assert_eq!(slowest(&ranks(&[(40, 0.1), (30, 0.1), (41, 0.1), (40, 0.1)])), Some(1));
        assert_eq!(slowest(&ranks(&[(40, 0.1), (30, 0.1)])), Some(1));
    }

    #[test]
    fn similar_ranks_are_not_marked() {
        assert_eq!(slowest(&ranks(&[(40, 0.1), (40, 0.12), (40, 0.11), (40, 0.1)])), None);
        assert_eq!(slowest(&ranks(&[(40, 2.0), (40, 2.1), (40, 2.0), (40, 2.05)])), None);
        assert_eq!(slowest(&ranks(&[(40, 2.0)])), None);
        assert_eq!(slowest(&[]), None);
    }

    #[test]
    fn ranks_are_sorted_and_daemons_without_a_session_come_last() {
        let mut snapshots = ranks(&[(40, 0.1), (40, 0.1), (40, 0.1)]);
        snapshots.insert(0, Snapshot::of(9, "/run/9.sock", &History::default(), None).remove(0));
        snapshots.reverse();
        sort(&mut snapshots);
        let order: Vec<usize> = snapshots.iter().map(|snapshot| snapshot.key.daemon).collect();
        assert_eq!(order, [0, 1, 2, 9]);
    }
}
