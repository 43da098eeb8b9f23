//! How the HTTP thread gets a report: one request at a time to the engine, whose response is cached briefly.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::exposition::Writer;
use super::metrics::families;
use crate::question::{Answer, Question};
use forebay_observe::{DaemonReport, HistoryReport};

/// The last response, and when it arrived.
type Kept<T> = tokio::sync::Mutex<Option<(Instant, Arc<T>)>>;

/// How long a response is reused: many clients cost the engine as much as one.
const ANSWER_KEEPS: Duration = Duration::from_millis(200);
/// A probe reports an engine as dead if it takes longer.
const ANSWER_DEADLINE: Duration = Duration::from_secs(1);

/// The engine did not respond in time.
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
        // One deadline for the queue and the response: a request that waits for another one does not take longer.
        tokio::time::timeout(ANSWER_DEADLINE, ask).await.ok().flatten().ok_or(NoAnswer)
    }

    /// A report in Prometheus' text format.
    pub(super) fn export(&self, report: &DaemonReport) -> String {
        // A single thread runs all requests, and none of them awaits with the lock held.
        self.writer.lock().unwrap_or_else(PoisonError::into_inner).write(&families(report))
    }
}
