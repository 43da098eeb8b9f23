//! A verdict in words: what the limit is, by which numbers, and which key to change.

use super::facts::{Facts, StageFacts, Tail};
use super::thresholds::{ALL_BUSY, MOSTLY_ASLEEP, OWN_SHARE, TAIL_WORTH_A_WORD};

/// The limit that the rules found.
#[derive(Debug, Clone, Copy)]
pub(super) enum Limit<'f, 'w> {
    /// The client hardly waits.
    Trainer,
    /// `cpu.limit`, or a quota that daemon and trainer share, throttles work threads.
    Budget { cores: f64, held_back: f64 },
    /// The daemon uses all that its control group's quota grants.
    Quota,
    /// A stage whose threads are busy, or do not run.
    Stage(&'f StageFacts<'w>),
    /// A few slow samples of a stage.
    Tail(&'f StageFacts<'w>, Tail),
    /// The ring is too small to even out bursts.
    RingFull { full: f64 },
    /// The ring's slots hold too few rows for the threads.
    RingSmall { busiest: Option<&'f StageFacts<'w>> },
}

impl Facts<'_> {
    /// The limit's name and the sentence.
    pub(super) fn sentences(&self, limit: Limit<'_, '_>) -> (String, String) {
        let waits = format!("while the trainer waits {} of the time", percent(self.wait_share));
        match limit {
            Limit::Trainer => ("trainer".to_owned(), self.of_trainer()),
            Limit::Budget { cores, held_back } => (
                "cpu-budget".to_owned(),
                format!(
                    "the CPU budget of {cores:.2} cores is the limit: work threads waited for it {} of the time {waits}; \
                     raise cpu.limit, or the quota that daemon and trainer share (the daemon used {:.2} cores)",
                    percent(held_back),
                    self.used_cores(),
                ),
            ),
            Limit::Quota => (
                "cpu-budget".to_owned(),
                format!(
                    "the control group's CPU quota is the limit: the daemon used {:.2} of {:.2} granted cores \
                     {waits}; raise the quota (cpu.max), or make the samples cheaper",
                    self.used_cores(),
                    self.granted_cores(),
                ),
            ),
            Limit::Stage(stage) if stage.is_fetch => {
                ("storage".to_owned(), self.of_storage(stage, &waits))
            }
            Limit::Stage(stage) => (stage.report.name.clone(), self.of_stage(stage, &waits)),
            Limit::Tail(stage, tail) => {
                let name = if stage.is_fetch { "storage" } else { &stage.report.name };
                (name.to_owned(), self.of_tail(stage, tail, &waits))
            }
            Limit::RingFull { full } => (
                "ring".to_owned(),
                format!(
                    "the ring is the limit: all its {} slots were full {} of the time, and empty {waits}: the trainer \
                     takes batches in bursts; raise ring.slots (and ring.memory where the plan needs it), or keep fewer \
                     batches",
                    self.slots(),
                    percent(full),
                ),
            ),
            Limit::RingSmall { busiest } => {
                ("ring".to_owned(), self.of_small_ring(busiest, &waits))
            }
        }
    }

    fn of_trainer(&self) -> String {
        format!(
            "loading is not the limit: the trainer waited for data {} of the time",
            percent(self.wait_share)
        )
    }

    #[expect(clippy::cast_precision_loss, reason = "metrics")]
    fn of_storage(&self, fetch: &StageFacts<'_>, waits: &str) -> String {
        let report = fetch.report;
        let rate = report.num_tasks as f64 / self.seconds();
        let concurrency = report.concurrency;
        let (at_once, remedy) = if fetch.utilisation >= ALL_BUSY {
            (
                format!("{concurrency} at once"),
                format!("raise `concurrency` of the stage `fetch` from {concurrency}"),
            )
        } else if self.used_cores() >= ALL_BUSY * self.granted_cores() {
            (format!("{:.1} at once", fetch.busy), "give the daemon more cores".to_owned())
        } else {
            (
                format!("{:.1} of {concurrency} at once", fetch.busy),
                "raise ring.slots or batch.size, so that more samples are read at once".to_owned(),
            )
        };
        format!(
            "storage is the limit: a read takes {} and {at_once} give {rate:.0} samples/s {waits}; {remedy}, or use faster \
             storage{}",
            milliseconds(report.ave_time),
            self.word_of_tail(fetch),
        )
    }

    fn of_stage(&self, stage: &StageFacts<'_>, waits: &str) -> String {
        let report = stage.report;
        let whose = if stage.stream == self.session.stream {
            String::new()
        } else {
            format!(" of the stream `{}`", stage.stream)
        };
        format!(
            "the stage `{}`{whose} is the limit: a sample takes {}, so {:.1} of {} threads are busy {waits}; {}{} (the daemon used \
             {:.1} cores)",
            report.name,
            milliseconds(report.ave_time),
            stage.busy,
            report.concurrency,
            self.remedy(stage),
            self.word_of_tail(stage),
            self.used_cores(),
        )
    }

    fn remedy(&self, stage: &StageFacts<'_>) -> String {
        let granted = self.granted_cores();
        let own_cores: f64 = self.stages.iter().map(|stage| stage.cores).sum();
        let threads_do_not_run =
            stage.utilisation < ALL_BUSY && stage.busy < 0.7 * f64::from(stage.report.concurrency);
        let kept_off =
            threads_do_not_run || (stage.is_kept_off() && stage.asleep_share < MOSTLY_ASLEEP);
        if kept_off && own_cores < OWN_SHARE * granted {
            return format!(
                "other processes use the cores: its tasks waited for a core {} of their time and got {own_cores:.1} of \
                 {granted:.1} cores; reserve cores for the daemon (cpu.cores), or set cpu.policy = \"batch\" or \
                 \"normal\"",
                percent(stage.ready_share),
            );
        }
        let is_auto = stage.report.concurrency_reason.contains("thread");
        if stage.asleep_share >= MOSTLY_ASLEEP {
            let slept = percent(stage.asleep_share);
            return if is_auto {
                format!(
                    "{slept} of that is sleep: set its `concurrency` above {}, or raise ring.memory",
                    stage.report.concurrency
                )
            } else {
                format!(
                    "{slept} of that is sleep: raise its `concurrency` from {}",
                    stage.report.concurrency
                )
            };
        }
        if !is_auto && f64::from(stage.report.concurrency) < granted {
            return format!("raise its `concurrency` from {}", stage.report.concurrency);
        }
        "give the daemon more cores, or make the samples cheaper".to_owned()
    }

    /// What slow samples add to a stage that is the limit anyway.
    fn word_of_tail(&self, stage: &StageFacts<'_>) -> String {
        let tail = stage.tail().filter(|tail| {
            !stage.is_kept_off()
                && tail.total_seconds >= TAIL_WORTH_A_WORD * stage.report.busy_seconds
        });
        tail.map_or_else(String::new, |tail| {
            format!(
                "; one sample in {:.0} takes {}, the median is {}: find the slow ones",
                tail.one_in,
                milliseconds(tail.mean_seconds),
                milliseconds(tail.median_seconds),
            )
        })
    }

    fn of_tail(&self, stage: &StageFacts<'_>, tail: Tail, waits: &str) -> String {
        let (what, remedy) = if stage.is_fetch {
            ("storage is the limit: slow reads hold".to_owned(), "use steadier storage")
        } else {
            (
                format!("the stage `{}` is the limit: slow samples hold", stage.report.name),
                "find them with forebay trace or errors.quarantine",
            )
        };
        format!(
            "{what} up their batches: one in {:.0} takes {}, the median {}, the mean {} and p99 {}, and the {} slots are \
             filled before it finishes, so {:.1} of {} threads are busy {waits}; raise ring.slots, or {remedy}",
            tail.one_in,
            milliseconds(tail.mean_seconds),
            milliseconds(tail.median_seconds),
            milliseconds(stage.report.ave_time),
            milliseconds(stage.report.p99_time),
            self.slots(),
            stage.busy,
            stage.report.concurrency,
        )
    }

    fn of_small_ring(&self, busiest: Option<&StageFacts<'_>>, waits: &str) -> String {
        let slots = self.slots();
        let held = self.session.slots_leased;
        let rows = self.rows_of_a_batch();
        let idle = busiest.map_or_else(String::new, |stage| {
            format!(
                ", and no more than {:.1} of {} threads of `{}` are busy",
                stage.busy, stage.report.concurrency, stage.report.name
            )
        });
        format!(
            "the ring is the limit: its {slots} slots of {rows:.0} samples (the trainer holds {held}) keep too few \
             samples in flight{idle} {waits}; raise ring.slots or batch.size (and ring.memory where the plan needs it), \
             or keep fewer batches"
        )
    }
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

fn milliseconds(seconds: f64) -> String {
    format!("{:.2} ms", seconds * 1e3)
}
