//! Reports of a simulated daemon, for tests.

use std::time::Duration;

use forebay_protocol::ids::Position;

use super::history::History;
use super::snapshot::Snapshot;
use forebay_observe::{
    CpuBudgetReport, DaemonReport, QueueReport, SessionReport, StageReport, StreamReport, Verdict,
};

/// The state and the counts of the simulated daemon.
#[derive(Debug, Clone)]
pub(crate) struct Script {
    pub pid: u32,
    pub rank: u32,
    pub world_size: u32,
    pub seconds: f64,
    /// Batches of 64 samples taken by the trainer.
    pub batches: u64,
    pub waited: f64,
    pub has_session: bool,
    /// Name, concurrency, seconds per task, and occupancy of the queue after it.
    pub stages: Vec<(&'static str, u32, f64, f64)>,
    pub limit: &'static str,
}

impl Default for Script {
    fn default() -> Self {
        Self {
            pid: 4242,
            rank: 0,
            world_size: 1,
            seconds: 0.0,
            batches: 0,
            waited: 0.0,
            has_session: true,
            stages: vec![("fetch", 16, 0.002, 0.97), ("preprocess", 2, 0.0003, 0.88)],
            limit: "trainer",
        }
    }
}

impl Script {
    /// The report for this state.
    pub(crate) fn report(&self) -> DaemonReport {
        let stages: Vec<StageReport> = self.stages.iter().map(|stage| self.stage(stage)).collect();
        DaemonReport {
            release: env!("CARGO_PKG_VERSION").to_owned(),
            pid: self.pid,
            cpu_seconds: 1.5 * self.seconds,
            resident_bytes: 700 << 20,
            private_bytes: 90 << 20,
            threads: 2,
            cpu_budget: CpuBudgetReport { granted_cores: 2.0, ..CpuBudgetReport::default() },
            stages: stages.clone(),
            verdict: Verdict {
                limit: self.limit.to_owned(),
                sentence: "loading is not the limit: the trainer waited for data 1 % of the time"
                    .to_owned(),
                seconds: 60.0,
                ..Verdict::default()
            },
            streams: vec![StreamReport {
                decoders_cpu_seconds: 0.0,
                sharing: None,
                supply: None,
                feeding: None,
                batch_operations: None,
                name: "train".to_owned(),
                batch_size: 64,
                memory_budget_bytes: 2 << 30,
                stages,
                batch_functions: Vec::new(),
                quarantine: None,
                requests: None,
                cache: None,
                jpeg_index: None,
                outage: None,
                outage_timeout_seconds: 1800.0,
                datasets: Vec::new(),
            }],
            sessions: if self.has_session { vec![self.session()] } else { Vec::new() },
            ..DaemonReport::default()
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "figures")]
    fn stage(
        &self,
        (name, concurrency, task_seconds, occupancy): &(&str, u32, f64, f64),
    ) -> StageReport {
        let tasks = self.batches * 64;
        StageReport {
            name: (*name).to_owned(),
            concurrency: *concurrency,
            num_tasks: tasks,
            ave_time: *task_seconds,
            p90_time: task_seconds * 1.5,
            p99_time: task_seconds * 2.0,
            busy_seconds: tasks as f64 * task_seconds,
            measured_tasks: tasks,
            cpu_seconds: tasks as f64 * task_seconds,
            times: vec![(task_seconds * 2.0, tasks)],
            queue: Some(QueueReport {
                elapsed: self.seconds,
                num_items: tasks,
                occupancy_rate: *occupancy,
                ..QueueReport::default()
            }),
            ..StageReport::default()
        }
    }

    fn session(&self) -> SessionReport {
        SessionReport {
            session: 1,
            stream: "train".to_owned(),
            rank: self.rank,
            world_size: self.world_size,
            seconds: self.seconds,
            position: Position { epoch: 3, samples: self.batches * 64 },
            batches_published: self.batches + 5,
            batches_taken: self.batches,
            wait_seconds: self.waited,
            work_seconds: self.seconds * 1.25,
            slots_free: 1,
            slots_filling: 2,
            slots_ready: 3,
            slots_leased: 2,
            ring_bytes: 600 << 20,
            ..SessionReport::default()
        }
    }

    /// The snapshots after the script has run at a constant rate until now, with two reports per second; `change`
    /// modifies the last report.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "made-up figures")]
    #[expect(clippy::cast_precision_loss, reason = "made-up figures")]
    pub(crate) fn snapshots(
        &self,
        daemon: usize,
        lost: Option<&(String, f64)>,
        change: impl Fn(&mut DaemonReport),
    ) -> Vec<Snapshot> {
        let mut history = History::default();
        let ticks = (self.seconds * 2.0) as u64;
        for tick in 0..=ticks {
            let share = tick as f64 / ticks as f64;
            // A wave gives the courses a shape; it is zero at the end.
            let wave = 1.0 + 0.02 * (share * 40.0).sin() * (1.0 - share);
            let script = Self {
                seconds: self.seconds * share,
                batches: (self.batches as f64 * share * wave) as u64,
                waited: self.waited * share * wave,
                ..self.clone()
            };
            let mut report = script.report();
            change(&mut report);
            history.add(Duration::from_millis(500 * tick), report);
        }
        Snapshot::of(
            daemon,
            &format!("/run/user/1000/forebay/{}-train.sock", self.pid),
            &history,
            lost,
        )
    }
}
