//! What the screen shows of one daemon and one of its sessions: plain numbers and sentences, ready to be drawn.

use super::history::{History, Window, samples_per_second, wait_share};
use forebay_observe::{DaemonReport, SessionReport, StageReport};

/// Which daemon and session is meant; daemons without a session have a separate snapshot.
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
    /// Harmless already.
    pub socket: String,
    /// Why the daemon does not answer, and for how many seconds.
    pub lost: Option<(String, f64)>,
    /// None before the first answer.
    pub figures: Option<Figures>,
}

/// The figures of the last seconds.
#[derive(Debug, Clone)]
pub(super) struct Figures {
    pub pid: u32,
    pub session: Option<SessionSnapshot>,
    pub stages: Vec<StageSnapshot>,
    /// CPU seconds a second.
    pub cpu_cores: f64,
    pub cpu_budget_cores: f64,
    pub resident_bytes: u64,
    pub memory_ceiling_bytes: u64,
    pub limit: String,
    pub verdict: String,
    pub notices: Vec<Notice>,
}

/// The trainer's side.
#[derive(Debug, Clone)]
pub(super) struct SessionSnapshot {
    pub stream: String,
    pub rank: u32,
    pub world_size: u32,
    pub samples_per_second: f64,
    /// 0 to 1.
    pub wait_share: f64,
    /// None where nothing was taken.
    pub step_seconds: Option<f64>,
    pub samples_per_second_course: Vec<f64>,
    pub wait_share_course: Vec<f64>,
    /// Ready, leased, filling, free.
    pub slots: [u64; 4],
    pub epoch: u64,
}

/// One stage and the queue after it.
#[derive(Debug, Clone)]
pub(super) struct StageSnapshot {
    pub name: String,
    /// Tasks at work, in the mean.
    pub busy: f64,
    pub concurrency: u32,
    pub mean_seconds: f64,
    pub p99_seconds: f64,
    /// How much of the time the queue after it had something to take, 0 to 1.
    pub occupancy: Option<f64>,
}

/// What a person should know; the most urgent first.
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
        let window = history.window();
        let snapshot = |session: Option<u64>, figures| Self {
            key: Key { daemon, session },
            socket: socket.to_owned(),
            lost: lost.cloned(),
            figures,
        };
        let Some(window) = window else { return vec![snapshot(None, None)] };
        let sessions = &window.figures.sessions;
        if sessions.is_empty() {
            return vec![snapshot(None, Some(figures(&window, history, None)))];
        }
        sessions
            .iter()
            .map(|session| {
                let figures = figures(&window, history, Some(session));
                snapshot(Some(session.session), Some(figures))
            })
            .collect()
    }

    pub(super) fn session(&self) -> Option<&SessionSnapshot> {
        self.figures.as_ref().and_then(|figures| figures.session.as_ref())
    }
}

fn figures(window: &Window, history: &History, session: Option<&SessionReport>) -> Figures {
    let report = &window.figures;
    let stream = session
        .and_then(|session| report.streams.iter().find(|stream| stream.name == session.stream));
    let stages = stream.map_or(&report.stages, |stream| &stream.stages);
    let verdict = session.and_then(|session| session.verdict.as_ref()).unwrap_or(&report.verdict);
    let per_second =
        |seconds: f64| if window.seconds > 0.0 { seconds / window.seconds } else { 0.0 };
    Figures {
        pid: report.pid,
        session: session.map(|session| session_snapshot(report, history, session)),
        stages: stages
            .iter()
            .map(|stage| stage_snapshot(stage, per_second(stage.busy_seconds)))
            .collect(),
        cpu_cores: per_second(report.cpu_seconds),
        cpu_budget_cores: report.cpu_budget.cores.unwrap_or(report.cpu_budget.granted_cores),
        resident_bytes: report.resident_bytes,
        memory_ceiling_bytes: report.streams.iter().map(|stream| stream.memory_budget_bytes).sum(),
        limit: verdict.limit.clone(),
        verdict: verdict.sentence.clone(),
        notices: notices(report, session),
    }
}

fn session_snapshot(
    report: &DaemonReport,
    history: &History,
    session: &SessionReport,
) -> SessionSnapshot {
    let course = history.course(session.session).cloned().unwrap_or_default();
    #[expect(clippy::cast_precision_loss, reason = "a figure")]
    let step_seconds =
        (session.batches_taken > 0).then(|| session.seconds / session.batches_taken as f64);
    SessionSnapshot {
        stream: session.stream.clone(),
        rank: session.rank,
        world_size: session.world_size,
        samples_per_second: samples_per_second(report, session),
        wait_share: wait_share(session),
        step_seconds,
        samples_per_second_course: course.samples_per_second.into(),
        wait_share_course: course.wait_share.into(),
        slots: [
            session.slots_ready,
            session.slots_leased,
            session.slots_filling,
            session.slots_free,
        ],
        epoch: session.position.epoch,
    }
}

fn stage_snapshot(stage: &StageReport, busy: f64) -> StageSnapshot {
    StageSnapshot {
        name: stage.name.clone(),
        // A task that took longer than the window counts where it ended.
        busy: busy.min(f64::from(stage.concurrency)),
        concurrency: stage.concurrency,
        mean_seconds: stage.ave_time,
        p99_seconds: stage.p99_time,
        occupancy: stage.queue.as_ref().map(|queue| queue.occupancy_rate),
    }
}

fn notices(report: &DaemonReport, session: Option<&SessionReport>) -> Vec<Notice> {
    let stalls = report
        .stalls
        .iter()
        .map(|stall| Notice { kind: NoticeKind::Stall, sentence: stall.sentence.clone() });
    let missed = report.cpu_isolation.iter().filter(|item| !item.in_force).map(|item| {
        let remedy = item.remedy.as_ref().map_or(String::new(), |remedy| format!("; {remedy}"));
        let sentence = format!("{}: {}{remedy}", item.name, item.state);
        Notice { kind: NoticeKind::NotQuiet, sentence }
    });
    // The last one first.
    let bad = session.into_iter().flat_map(|session| session.substituted.iter().rev()).map(|one| {
        let sentence = format!(
            "epoch {}, sample {}: {} ({}); sample {} took its place",
            one.epoch, one.sample, one.reason, one.path, one.substitute
        );
        Notice { kind: NoticeKind::BadSample, sentence }
    });
    stalls.chain(missed).chain(bad).collect()
}

/// Which of several ranks is the slow one. In lockstep all take equally many samples, so it is the one that waits most;
/// out of step it is the one that takes least. None where no rank stands out.
pub(super) fn slowest(snapshots: &[Snapshot]) -> Option<usize> {
    let sessions: Vec<(usize, &SessionSnapshot)> = snapshots
        .iter()
        .enumerate()
        .filter(|(_, snapshot)| snapshot.lost.is_none())
        .filter_map(|(number, snapshot)| Some((number, snapshot.session()?)))
        .collect();
    let stream = &sessions.first()?.1.stream;
    let of_stream: Vec<_> =
        sessions.iter().filter(|(_, session)| session.stream == *stream).collect();
    if of_stream.len() < 2 {
        return None;
    }
    let sorted = |figure: fn(&SessionSnapshot) -> f64| {
        let mut values: Vec<f64> = of_stream.iter().map(|(_, session)| figure(session)).collect();
        values.sort_by(f64::total_cmp);
        values
    };
    // The median; of an even number the better one, so that of two ranks one can stand out.
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

/// Sorts by rank, then stream; those without a session come last.
pub(super) fn sort(snapshots: &mut [Snapshot]) {
    snapshots.sort_by(|one, other| {
        let key = |snapshot: &Snapshot| {
            let session = snapshot.session();
            (
                session.is_none(),
                session.map(|session| (session.rank, session.stream.clone())),
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

    /// Ranks by their batches and waited seconds in four seconds.
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
    fn in_lockstep_the_slow_rank_is_the_one_that_waits() {
        assert_eq!(slowest(&ranks(&[(40, 0.1), (40, 0.12), (40, 1.4), (40, 0.1)])), Some(2));
        assert_eq!(slowest(&ranks(&[(40, 0.1), (40, 2.0)])), Some(1));
    }

    #[test]
    fn out_of_step_the_slow_rank_is_the_one_that_takes_least() {
        assert_eq!(slowest(&ranks(&[(40, 0.1), (30, 0.1), (41, 0.1), (40, 0.1)])), Some(1));
        assert_eq!(slowest(&ranks(&[(40, 0.1), (30, 0.1)])), Some(1));
    }

    #[test]
    fn where_no_rank_stands_out_none_is_marked() {
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
