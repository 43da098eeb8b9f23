//! Ends a daemon that has lost the process that starts the workers of a Python stage.
//!
//! A confined daemon cannot start another such process. It exits with [`EXIT_STATUS`], and the next daemon can: a
//! private daemon is restarted by its loader, any other by its service manager.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// EX_TEMPFAIL of sysexits: another attempt may succeed.
const EXIT_STATUS: i32 = 75;

/// Whether the process was lost.
#[derive(Debug, Clone, Default)]
pub(super) struct LostSpawner(Arc<(AtomicBool, Notify)>);

impl LostSpawner {
    /// Starts watching. Called once in a process.
    pub(super) fn watch() -> Self {
        let lost = Self::default();
        let noted = lost.clone();
        forebay_workers::on_lost_spawner(move || {
            let (is_lost, news) = &*noted.0;
            // Relaxed: ordered by the notification.
            is_lost.store(true, Ordering::Relaxed);
            news.notify_one();
        });
        lost
    }

    /// Waits until the process is lost.
    pub(super) async fn wait(&self) {
        self.0.1.notified().await;
    }

    /// The daemon's exit status.
    pub(super) fn exit_status(&self) -> i32 {
        if self.0.0.load(Ordering::Relaxed) { EXIT_STATUS } else { 0 }
    }
}
