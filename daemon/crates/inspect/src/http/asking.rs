//! How the HTTP thread gets a report: one request at a time to the engine, whose answer is cached for a moment.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::exposition::Writer;
use super::metrics::families;
use forebay_observe::{DaemonReport, HistoryReport};

/// A request to the engine.
#[derive(Debug)]
pub enum Question {
    /// For a report.
    Report(Answer<DaemonReport>),
    /// For the history of rates.
    History(Answer<HistoryReport>),
}

/// What takes the answer; its receiver may be gone by then.
type Answer<T> = oneshot::Sender<T>;

impl Question {
    /// Whether nobody waits for the answer any more.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        match self {
            Self::Report(answer) => answer.is_closed(),
            Self::History(answer) => answer.is_closed(),
        }
    }
}

/// The last answer, and when it came.
type Kept<T> = tokio::sync::Mutex<Option<(Instant, Arc<T>)>>;

/// How long an answer is reused: many clients cost the engine what one does.
const ANSWER_KEEPS: Duration = Duration::from_millis(200);
/// Probes treat an engine that takes longer as dead.
const ANSWER_DEADLINE: Duration = Duration::from_secs(1);

/// The engine gave no answer in time.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("the engine did not answer within {} s", ANSWER_DEADLINE.as_secs())]
pub(super) struct NoAnswer;

/// Shared by all requests.
#[derive(Debug)]
pub(super) struct Asker {
    questions: mpsc::Sender<Question>,
    report: Kept<DaemonReport>,
    history: Kept<HistoryReport>,
    writer: Mutex<Writer>,
}

impl Asker {
    pub(super) fn new(questions: mpsc::Sender<Question>) -> Self {
        let (report, history) = Default::default();
        Self { questions, report, history, writer: Mutex::default() }
    }

    /// The engine's report, at most [`ANSWER_KEEPS`] old.
    pub(super) async fn report(&self) -> Result<Arc<DaemonReport>, NoAnswer> {
        self.answer(&self.report, Question::Report).await
    }

    /// The history of rates, at most [`ANSWER_KEEPS`] old.
    pub(super) async fn history(&self) -> Result<Arc<HistoryReport>, NoAnswer> {
        self.answer(&self.history, Question::History).await
    }

    async fn answer<T>(
        &self,
        kept: &Kept<T>,
        question: fn(Answer<T>) -> Question,
    ) -> Result<Arc<T>, NoAnswer> {
        let ask = async {
            let mut last = kept.lock().await;
            if let Some((made, answer)) = last.as_ref()
                && made.elapsed() < ANSWER_KEEPS
            {
                return Some(Arc::clone(answer));
            }
            let (sender, answer) = oneshot::channel();
            self.questions.send(question(sender)).await.ok()?;
            let answer = Arc::new(answer.await.ok()?);
            *last = Some((Instant::now(), Arc::clone(&answer)));
            Some(answer)
        };
        // One deadline over all of it: a request that waits behind another one does not take longer.
        tokio::time::timeout(ANSWER_DEADLINE, ask).await.ok().flatten().ok_or(NoAnswer)
    }

    /// A report as Prometheus reads it.
    pub(super) fn export(&self, report: &DaemonReport) -> String {
        // One thread runs all requests, and none waits while it holds this.
        self.writer.lock().unwrap_or_else(PoisonError::into_inner).write(&families(report))
    }
}
