//! The verdict: the limit of a session, as one word, as one short line (limit, certainty, remedy) and as one sentence
//! with numbers and a remedy.
//!
//! Each session is judged over a window of metrics, from the sink upward:
//! 1. the client hardly waits: `trainer`. If it waits, a stalled sample is the limit without further rules;
//! 2. work threads are throttled by the budget, or all cores of the quota are used: `cpu-budget`;
//! 3. a stage whose threads, or whose workers, are all busy (`storage` for `fetch`). Where all stages share saturated
//!    threads or cores, the stage that uses most of them;
//! 4. a Python stage whose calls exceed their timeout: their batches wait, whatever the other workers do. Then a stage
//!    whose threads do not run: rows wait for it although not all threads are busy, or its tasks are kept off the cores;
//! 5. nothing is busy: a stage whose few slow samples delay their batches, otherwise the ring: all of its slots were
//!    full, or they have too few rows for the threads.
//!
//! [`facts`] computes the numbers, [`thresholds`] bounds them, [`sentences`] words the result. [`super::history`] chooses
//! the window.

mod facts;
mod sentences;
#[cfg(test)]
mod tests;
mod thresholds;

use self::facts::{Facts, StageFacts};
use self::sentences::{Limit, Words};
pub use self::thresholds::WAIT_SHARE_THAT_MATTERS;
use self::thresholds::{
    ALL_BUSY, FULL_OF_WAIT, FULL_THAT_MATTERS, HELD_BACK_THAT_MATTERS, READS_BUSY, ROWS_WAIT,
    SURELY_ALL_BUSY,
};
use super::report::{Certainty, DaemonReport, SessionReport, StallReport, Verdict, WindowReport};

/// A session's verdict.
#[derive(Debug, Clone, PartialEq)]
pub struct Judgement {
    pub session: u64,
    pub wait_share: f64,
    pub verdict: Verdict,
    /// The metrics of the judged period.
    pub window: WindowReport,
}

/// Judges one session by its metrics and the daemon's over the same window.
pub(crate) fn judge(session: &SessionReport, report: &DaemonReport) -> Judgement {
    let seconds = session.seconds;
    let wait_share =
        if seconds > 0.0 { (session.wait_seconds / seconds).clamp(0.0, 1.0) } else { 0.0 };
    let mut verdict = if let Some(stalled) = stalled(session, &report.stalls, wait_share) {
        stalled
    } else if session.batches_published < 2 || seconds <= 0.0 {
        Verdict {
            limit: "none".to_owned(),
            what: "not enough batches yet".to_owned(),
            sentence: "not enough batches yet to determine the limit".to_owned(),
            ..Verdict::default()
        }
    } else {
        let facts = Facts::of(session, report, wait_share);
        let found = find(&facts);
        let Words { limit, what, advice, sentence } = facts.words(found);
        let certainty = Some(facts.certainty(found));
        Verdict { limit, what, certainty, advice, sentence, ..Verdict::default() }
    };
    verdict.seconds = seconds;
    let window = WindowReport::of(session, report, wait_share);
    Judgement { session: session.session, wait_share, verdict, window }
}

/// The stalled sample that blocks the session. Rates do not show it, because a task is counted when it ends.
fn stalled(session: &SessionReport, stalls: &[StallReport], wait_share: f64) -> Option<Verdict> {
    let holds_up =
        |stall: &&StallReport| stall.session == session.session && stall.stage != "trainer";
    let stall = stalls.iter().find(holds_up)?;
    let limit = if stall.stage == "fetch" { "storage" } else { &stall.stage };
    (wait_share >= WAIT_SHARE_THAT_MATTERS).then(|| Verdict {
        limit: limit.to_owned(),
        what: format!("the stage `{}` hangs", stall.stage),
        certainty: Some(Certainty::Certain),
        advice: stall.path.as_ref().map_or_else(String::new, |_| "look at this sample".to_owned()),
        sentence: stall.sentence.clone(),
        seconds: 0.0,
    })
}

fn find<'f, 'w>(facts: &'f Facts<'w>) -> Limit<'f, 'w> {
    if facts.wait_share < WAIT_SHARE_THAT_MATTERS {
        return Limit::Trainer;
    }
    let busiest = facts.own_stages().max_by(|one, other| {
        // If two stages are equally busy, the later one: the earlier one may only be waiting for it.
        one.utilisation.total_cmp(&other.utilisation)
    });
    let utilisation = busiest.map_or(0.0, |stage| stage.utilisation);
    if facts.held_back >= HELD_BACK_THAT_MATTERS
        && utilisation < SURELY_ALL_BUSY
        && let Some(cores) = facts.report.cpu_budget.cores
    {
        return Limit::Budget { cores, held_back: facts.held_back };
    }
    if facts.report.cpu_budget.is_quota && facts.used_cores() >= ALL_BUSY * facts.granted_cores() {
        return Limit::Quota;
    }
    if let Some(stage) = busiest.filter(|stage| stage.utilisation >= ALL_BUSY) {
        return Limit::Stage(stage);
    }
    // Stages of all streams: they share threads and cores.
    let works = || facts.stages.iter().filter(|stage| !stage.is_fetch);
    let native = || works().filter(|stage| !stage.is_python());
    let busy: f64 = native().map(|stage| stage.busy).sum();
    if busy >= ALL_BUSY * f64::from(facts.native_threads()) {
        let most = native().max_by(|one, other| one.busy.total_cmp(&other.busy));
        return most.map_or(Limit::Trainer, Limit::Stage);
    }
    let cores: f64 = works().map(|stage| stage.cores).sum();
    if facts.granted_cores() > 0.0 && cores >= ALL_BUSY * facts.granted_cores() {
        let most = works().max_by(|one, other| one.cores.total_cmp(&other.cores));
        return most.map_or(Limit::Trainer, Limit::Stage);
    }
    let reads = busy_reads(facts);
    if let (Some(stage), None) = (facts.timeouts(), reads) {
        return Limit::Stage(stage);
    }
    let starving = facts.own_stages().rev().find(|stage| stage.input_occupancy >= ROWS_WAIT);
    if let Some(stage) = starving {
        return Limit::Stage(stage);
    }
    if let Some(stage) = facts.kept_off_cores() {
        return Limit::Stage(stage);
    }
    if let Some((stage, tail)) = facts.slow_samples() {
        return Limit::Tail(stage, tail);
    }
    let full = facts.session.put_wait_seconds / facts.seconds();
    if full >= FULL_THAT_MATTERS && full >= FULL_OF_WAIT * facts.wait_share {
        return Limit::RingFull { full };
    }
    reads.map_or(Limit::RingSmall { busiest }, Limit::Stage)
}

/// The stage `fetch`, if its reads are busier than all other stages together.
fn busy_reads<'f, 'w>(facts: &'f Facts<'w>) -> Option<&'f StageFacts<'w>> {
    let others: f64 =
        facts.own_stages().filter(|stage| !stage.is_fetch).map(|stage| stage.busy).sum();
    facts.own_stages().find(|stage| stage.is_fetch).filter(|reads| {
        reads.busy > others
            && (reads.utilisation >= READS_BUSY
                || facts.used_cores() >= ALL_BUSY * facts.granted_cores())
    })
}

/// The daemon's verdict: that of the session that waits most, with the session's name if there are several.
pub(crate) fn of_daemon(judgements: &[Judgement], sessions: &[SessionReport]) -> Verdict {
    let is_known = |one: &Judgement| one.verdict.limit != "none";
    let most = judgements.iter().reduce(|most, next| {
        let key = |one: &Judgement| (is_known(one), one.wait_share);
        if key(next) > key(most) { next } else { most }
    });
    let Some(most) = most else {
        let sentence = "no client is attached".to_owned();
        let (limit, what) = ("none".to_owned(), sentence.clone());
        return Verdict { limit, what, sentence, ..Verdict::default() };
    };
    let mut verdict = most.verdict.clone();
    let session = sessions.iter().find(|session| session.session == most.session);
    if let (Some(session), true) = (session, judgements.len() > 1) {
        verdict.sentence = format!(
            "of {} sessions, session {} (stream `{}`, rank {} of {}) waits most: {}",
            judgements.len(),
            session.session,
            session.stream,
            session.rank,
            session.world_size,
            verdict.sentence
        );
    }
    verdict
}
