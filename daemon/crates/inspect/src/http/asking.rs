//! How the HTTP thread comes by a report: one question at a time to the engine, and its answer kept for a moment.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::metrics::Exporter;
use forebay_observe::DaemonReport;

/// A report is wanted; whoever waits for it may be gone by then.
pub type Question = oneshot::Sender<DaemonReport>;

/// So long an answer serves whoever asks next: many clients cost the engine what one does.
const ANSWER_KEEPS: Duration = Duration::from_millis(200);
/// An engine that takes longer does not live, as far as probes go.
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
    exporter: Mutex<Exporter>,
}

impl Asker {
    pub(super) fn new(questions: mpsc::Sender<Question>) -> Self {
        Self { questions, last: tokio::sync::Mutex::default(), exporter: Mutex::default() }
    }

    /// The engine's report, at most so old as an answer keeps.
    pub(super) async fn report(&self) -> Result<Arc<DaemonReport>, NoAnswer> {
        // One deadline over all of it: those who wait behind another's question do not wait longer.
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
        self.exporter.lock().unwrap_or_else(PoisonError::into_inner).export(report)
    }
}
