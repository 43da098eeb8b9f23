//! What the limit is, as one word and one sentence with numbers and a remedy.
//!
//! Judged for each session, from the sink upward, over a window of figures:
//! 1. the client hardly waits: `trainer`; what stands still while it waits is named without further rules;
//! 2. work threads are kept back for the budget, or the quota's cores are all used: `cpu-budget`;
//! 3. a stage whose threads are all busy: it (`storage` where that is `fetch`). With threads that all stages share, the
//!    stage that takes most of them; with cores that are all used, the one that takes most of those;
//! 4. a stage for which rows wait although its threads are not all busy, or whose tasks are kept off the cores: it, since
//!    its threads do not run;
//! 5. now nobody is busy: few slow samples that hold up their batches are the limit of their stage; else the ring, if
//!    nothing was under way because all of its slots were full, or since its slots hold too few rows for all the threads.
//!
//! [`facts`] has the numbers, [`sentences`] the words. Which window is [`super::history`]'s matter.

mod facts;
mod sentences;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use self::facts::{Facts, StageFacts, Tail};
use super::report::{CpuBudgetReport, SessionReport, StallReport, StreamReport};

/// Below this share of the time spent waiting, loading is not the trainer's limit.
pub(crate) const WAIT_SHARE_THAT_MATTERS: f64 = 0.02;
/// Work threads that are kept back for so large a share of their time would do more without the budget.
const HELD_BACK_THAT_MATTERS: f64 = 0.1;
/// Threads that are busy for this share of the time could not do much more.
const ALL_BUSY: f64 = 0.85;
/// A stage that is busy for so long is limited by nothing but its threads, whatever else is short.
const SURELY_ALL_BUSY: f64 = 0.95;
/// A queue that is occupied for this share of the time has rows that wait.
const ROWS_WAIT: f64 = 0.5;
/// Lanes take several rows at a time: half of them may be without one while storage is the limit.
const READS_BUSY: f64 = 0.4;
/// A ring that was full for this share of the time, and for this part of the time that the client waited, evens out too
/// little.
const FULL_THAT_MATTERS: f64 = 0.1;
const FULL_OF_WAIT: f64 = 0.25;
/// Slow samples, or tasks without a core, explain the wait when they took this share of it at least, all together.
const EXPLAINS_WAIT: f64 = 0.25;
/// Tasks that were ready without a core for this share of their time were kept off the cores.
const KEPT_OFF: f64 = 0.15;
/// From this share of its time on, a task sleeps rather than works.
const MOSTLY_ASLEEP: f64 = 0.5;

/// The limit and the sentence that says so.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// A stage's name, `storage`, `ring`, `cpu-budget`, `trainer` or `none`.
    pub limit: String,
    /// For a person.
    pub sentence: String,
    /// The time that it judges, up to now.
    #[serde(default)]
    pub seconds: f64,
}

/// The figures of one session's window.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window<'a> {
    pub(crate) session: &'a SessionReport,
    pub(crate) streams: &'a [StreamReport],
    pub(crate) threads: u32,
    /// Of the whole process.
    pub(crate) cpu_seconds: f64,
    pub(crate) budget: CpuBudgetReport,
    pub(crate) stalls: &'a [StallReport],
}

/// A session's verdict.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Judgement {
    pub(crate) session: u64,
    pub(crate) wait_share: f64,
    pub(crate) verdict: Verdict,
}

/// What was found, before it is put into words.
#[derive(Debug, Clone, Copy)]
enum Limit<'f, 'w> {
    /// The client hardly waits.
    Trainer,
    /// `cpu.limit`, or a quota that daemon and trainer share, keeps threads back.
    Budget { cores: f64, held_back: f64 },
    /// The daemon uses all that its control group's quota grants.
    Quota,
    /// A stage whose threads are busy, or do not run.
    Stage(&'f StageFacts<'w>),
    /// A few slow samples of a stage.
    Tail(&'f StageFacts<'w>, Tail),
    /// The ring is full in between: it evens out too little.
    RingFull { full: f64 },
    /// The ring's slots hold too few rows for the threads that there are.
    RingSmall { busiest: Option<&'f StageFacts<'w>> },
}

/// Judges one session.
pub(crate) fn judge(window: Window<'_>) -> Judgement {
    let session = window.session;
    let seconds = session.seconds;
    let wait_share =
        if seconds > 0.0 { (session.wait_seconds / seconds).clamp(0.0, 1.0) } else { 0.0 };
    let (limit, sentence) = if let Some(stalled) = stalled(window, wait_share) {
        stalled
    } else if session.batches_published < 2 || seconds <= 0.0 {
        ("none".to_owned(), "too few batches so far to tell what the limit is".to_owned())
    } else {
        let facts = Facts::of(window, wait_share);
        facts.in_words(find(&facts))
    };
    let verdict = Verdict { limit, sentence, seconds };
    Judgement { session: session.session, wait_share, verdict }
}

/// What stands still while the client waits is not in any rate: a task counts when it has ended.
fn stalled(window: Window<'_>, wait_share: f64) -> Option<(String, String)> {
    let holds_up =
        |stall: &&StallReport| stall.session == window.session.session && stall.stage != "trainer";
    let stall = window.stalls.iter().find(holds_up)?;
    let limit = if stall.stage == "fetch" { "storage" } else { &stall.stage };
    (wait_share >= WAIT_SHARE_THAT_MATTERS).then(|| (limit.to_owned(), stall.sentence.clone()))
}

fn find<'f, 'w>(facts: &'f Facts<'w>) -> Limit<'f, 'w> {
    if facts.wait_share < WAIT_SHARE_THAT_MATTERS {
        return Limit::Trainer;
    }
    let busiest = facts.own_stages().max_by(|one, other| {
        // Of two that are as busy, the later one: what comes before it may only be waiting for it.
        one.utilisation.total_cmp(&other.utilisation)
    });
    let utilisation = busiest.map_or(0.0, |stage| stage.utilisation);
    if facts.held_back >= HELD_BACK_THAT_MATTERS
        && utilisation < SURELY_ALL_BUSY
        && let Some(cores) = facts.window.budget.cores
    {
        return Limit::Budget { cores, held_back: facts.held_back };
    }
    if facts.window.budget.is_quota && facts.used_cores() >= ALL_BUSY * facts.granted_cores() {
        return Limit::Quota;
    }
    if let Some(stage) = busiest.filter(|stage| stage.utilisation >= ALL_BUSY) {
        return Limit::Stage(stage);
    }
    // Of all streams: they share threads and cores.
    let works = || facts.stages.iter().filter(|stage| !stage.is_fetch);
    let busy: f64 = works().map(|stage| stage.busy).sum();
    if busy >= ALL_BUSY * f64::from(facts.window.threads.max(1)) {
        let most = works().max_by(|one, other| one.busy.total_cmp(&other.busy));
        return most.map_or(Limit::Trainer, Limit::Stage);
    }
    let cores: f64 = works().map(|stage| stage.cores).sum();
    if facts.granted_cores() > 0.0 && cores >= ALL_BUSY * facts.granted_cores() {
        let most = works().max_by(|one, other| one.cores.total_cmp(&other.cores));
        return most.map_or(Limit::Trainer, Limit::Stage);
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
    let full = facts.window.session.put_wait_seconds / facts.seconds();
    if full >= FULL_THAT_MATTERS && full >= FULL_OF_WAIT * facts.wait_share {
        return Limit::RingFull { full };
    }
    let others: f64 =
        facts.own_stages().filter(|stage| !stage.is_fetch).map(|stage| stage.busy).sum();
    let reads = facts.own_stages().find(|stage| stage.is_fetch);
    if let Some(reads) = reads.filter(|reads| {
        reads.busy > others
            && (reads.utilisation >= READS_BUSY
                || facts.used_cores() >= ALL_BUSY * facts.granted_cores())
    }) {
        return Limit::Stage(reads);
    }
    Limit::RingSmall { busiest }
}

/// The daemon's verdict: that of the session that waits most, and which one it is where there are several.
pub(crate) fn of_daemon(judgements: &[Judgement], sessions: &[SessionReport]) -> Verdict {
    let is_told = |one: &Judgement| one.verdict.limit != "none";
    let most = judgements.iter().reduce(|most, next| {
        let key = |one: &Judgement| (is_told(one), one.wait_share);
        if key(next) > key(most) { next } else { most }
    });
    let Some(most) = most else {
        let sentence = "no client is attached".to_owned();
        return Verdict { limit: "none".to_owned(), sentence, seconds: 0.0 };
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
