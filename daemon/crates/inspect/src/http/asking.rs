//! How the HTTP thread gets a report: one request at a time to the engine, whose answer is cached for a moment.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::exposition::Writer;
use super::metrics::families;
use forebay_observe::DaemonReport;

/// A request for a report; its receiver may be gone by the time of the answer.
pub type Question = oneshot::Sender<DaemonReport>;

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
    last: tokio::sync::Mutex<Option<(Instant, Arc<DaemonReport>)>>,
    writer: Mutex<Writer>,
}

impl Asker {
    pub(super) fn new(questions: mpsc::Sender<Question>) -> Self {
        Self { questions, last: tokio::sync::Mutex::default(), writer: Mutex::default() }
    }

    /// The engine's report, at most [`ANSWER_KEEPS`] old.
    pub(super) async fn report(&self) -> Result<Arc<DaemonReport>, NoAnswer> {
        // One deadline over all of it: a request that waits behind another one does not take longer.
        let answer = tokio::time::timeout(ANSWER_DEADLINE, self.ask()).await;
        answer.ok().flatten().ok_or(NoAnswer)
    }

    async fn ask(&self) -> Option<Arc<DaemonReport>> {
        let mut last = self.last.lock().await;
        if let Some((made, report)) = last.as_ref()
            && made.elapsed() < ANSWER_KEEPS
        {
            return Some(Arc::clone(report));
        }
        let (question, answer) = oneshot::channel();
        self.questions.send(question).await.ok()?;
        let report = Arc::new(answer.await.ok()?);
        *last = Some((Instant::now(), Arc::clone(&report)));
        Some(report)
    }

    /// A report as Prometheus reads it.
    pub(super) fn export(&self, report: &DaemonReport) -> String {
        // One thread runs all requests, and none waits while it holds this.
        self.writer.lock().unwrap_or_else(PoisonError::into_inner).write(&families(report))
    }
}
