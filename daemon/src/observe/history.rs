//! The figures of the last minute: what the limit is now, not on the mean since the start.
//!
//! The engine adds a [`Moment`] every ten seconds while it works, and when a client comes or takes its first batch. While
//! nothing is under way nothing is added: an idle daemon is not woken for it. A session is judged by what happened since
//! the moment that lies nearest to a minute back; the start of a session, up to its first batch, is left out as soon as
//! there is something after it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::report::{EngineFigures, SessionReport, StreamReport};
use super::verdict::{Judgement, Window, judge};
use super::window::{subtract_session, subtract_streams};

/// What a verdict judges.
pub(crate) const WINDOW: Duration = Duration::from_secs(60);
/// Between two moments.
const STEP: Duration = Duration::from_secs(10);
/// The most moments that are kept: those of a minute, and some that clients add.
const MOST_MOMENTS: usize = 16;

/// The figures at one moment.
#[derive(Debug)]
pub(crate) struct Moment {
    at: Instant,
    cpu_seconds: f64,
    held_back_seconds: f64,
    streams: Vec<StreamReport>,
    sessions: Vec<SessionReport>,
}

/// See the module's head.
#[derive(Debug, Default)]
pub(crate) struct History {
    moments: VecDeque<Moment>,
}

impl Moment {
    /// These figures, as of `at`.
    pub(crate) fn new(figures: EngineFigures, cpu_seconds: f64, at: Instant) -> Self {
        let EngineFigures { streams, mut sessions, cpu_budget, .. } = figures;
        // Lists for a person; a moment is for numbers.
        sessions.iter_mut().for_each(|session| session.substituted.clear());
        let held_back_seconds = cpu_budget.held_back_seconds;
        Self { at, cpu_seconds, held_back_seconds, streams, sessions }
    }

    fn session(&self, number: u64) -> Option<&SessionReport> {
        self.sessions.iter().find(|session| session.session == number)
    }
}

impl History {
    /// Whether the last moment lies back so long that another one is due.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.moments.back().is_none_or(|last| now.saturating_duration_since(last.at) >= STEP)
    }

    /// Adds a moment; those that are no longer needed go.
    pub(crate) fn add(&mut self, moment: Moment) {
        let age = |one: &Moment| moment.at.saturating_duration_since(one.at);
        while self.moments.len() >= MOST_MOMENTS
            || self.moments.get(1).is_some_and(|second| age(second) > WINDOW + STEP)
        {
            self.moments.pop_front();
        }
        self.moments.push_back(moment);
    }

    /// Judges every session by its last minute.
    pub(crate) fn judge(
        &self,
        now: &EngineFigures,
        cpu_seconds: f64,
        at: Instant,
    ) -> Vec<Judgement> {
        let judge_session = |session: &SessionReport| {
            let base = self.base(session, at);
            let (mut streams, mut session) = (now.streams.clone(), session.clone());
            let (mut cpu_seconds, mut budget) = (cpu_seconds, now.cpu_budget);
            if let Some(base) = base {
                subtract_streams(&mut streams, &base.streams);
                if let Some(before) = base.session(session.session) {
                    subtract_session(&mut session, before);
                }
                cpu_seconds = (cpu_seconds - base.cpu_seconds).max(0.0);
                budget.held_back_seconds =
                    (budget.held_back_seconds - base.held_back_seconds).max(0.0);
            }
            judge(Window {
                session: &session,
                streams: &streams,
                threads: now.threads,
                cpu_seconds,
                budget,
                stalls: &now.stalls,
            })
        };
        now.sessions.iter().map(judge_session).collect()
    }

    /// The moment that the session's window begins with.
    fn base(&self, now: &SessionReport, at: Instant) -> Option<&Moment> {
        let distance = |moment: &&Moment| {
            at.saturating_duration_since(moment.at).abs_diff(WINDOW)
        };
        let known = || self.moments.iter().filter(|moment| moment.session(now.session).is_some());
        let has_begun = |moment: &&Moment| {
            moment.session(now.session).is_some_and(|before| {
                before.batches_taken > 0 && before.batches_taken + 2 <= now.batches_taken
            })
        };
        known().filter(has_begun).min_by_key(distance).or_else(|| known().min_by_key(distance))
    }
}
