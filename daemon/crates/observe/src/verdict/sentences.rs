//! The text of a verdict: the limit, its certainty, the numbers, and the key to change.

use super::facts::{Facts, StageFacts, Tail};
use super::thresholds::{
    ALL_BUSY, CLEARLY_NO_WAIT, FEW_BATCHES, FEW_SECONDS, HELD_BACK_THAT_MATTERS, LATENCY_SHARE,
    MOSTLY_ASLEEP, OWN_SHARE, REFUSED_THAT_MATTERS, STARTS_THAT_MATTER, SURELY_ALL_BUSY,
    TAIL_WORTH_A_WORD,
};
use crate::python::PythonReport;
use crate::report::Certainty;
use crate::units::{duration, format_bytes, percent};
use forebay_protocol::counted::counted;

/// The limit that the rules found.
#[derive(Debug, Clone, Copy)]
pub(super) enum Limit<'f, 'w> {
    /// The client hardly waits.
    Trainer,
    /// `cpu.limit`, or a quota that daemon and trainer share, throttles work threads.
    Budget { cores: f64, held_back: f64 },
    /// The daemon uses the whole quota of its control group.
    Quota,
    /// A stage whose threads are busy or do not run.
    Stage(&'f StageFacts<'w>),
    /// A few slow samples of a stage.
    Tail(&'f StageFacts<'w>, Tail),
    /// The ring is too small to even out bursts.
    RingFull { full: f64 },
    /// The ring's slots hold too few rows for the threads.
    RingSmall { busiest: Option<&'f StageFacts<'w>> },
}

/// The text of a limit.
#[derive(Debug)]
pub(super) struct Words {
    /// A stage's name, `storage`, `ring`, `cpu-budget` or `trainer`.
    pub(super) limit: String,
    /// The limit as a short phrase.
    pub(super) what: String,
    /// The remedy as a short phrase; empty if there is none.
    pub(super) advice: String,
    /// The complete text with numbers.
    pub(super) sentence: String,
}

impl Words {
    fn new(limit: &str, what: &str, advice: &str, sentence: String) -> Self {
        Self { limit: limit.to_owned(), what: what.to_owned(), advice: advice.to_owned(), sentence }
    }
}

impl Facts<'_> {
    /// The text of a limit.
    pub(super) fn words(&self, limit: Limit<'_, '_>) -> Words {
        let waits =
            format!("while the trainer waits {} of {}", percent(self.wait_share), self.window());
        match limit {
            Limit::Trainer => {
                Words::new("trainer", "loading is not the limit", "", self.of_trainer())
            }
            Limit::Budget { cores, held_back } => Words::new(
                "cpu-budget",
                "the CPU budget is the limit",
                "raise cpu.limit or the quota",
                format!(
                    "the CPU budget of {cores:.2} cores is the limit: work threads waited for it {} of the time {waits}; \
                     raise cpu.limit, or the quota that daemon and trainer share (the daemon used {:.2} cores)",
                    percent(held_back),
                    self.used_cores(),
                ),
            ),
            Limit::Quota => Words::new(
                "cpu-budget",
                "the control group's CPU quota is the limit",
                "raise cpu.max",
                format!(
                    "the control group's CPU quota is the limit: the daemon used {:.2} of {:.2} granted cores \
                     {waits}; raise the quota (cpu.max), or make the samples cheaper",
                    self.used_cores(),
                    self.granted_cores(),
                ),
            ),
            Limit::Stage(stage) if stage.is_fetch => self.of_storage(stage, &waits),
            Limit::Stage(stage) => self.of_stage(stage, &waits),
            Limit::Tail(stage, tail) => self.of_tail(stage, tail, &waits),
            Limit::RingFull { full } => Words::new(
                "ring",
                "the ring is the limit",
                "raise ring.slots",
                format!(
                    "the ring is the limit: all its {} slots were full {} of the time, and empty {waits}: the trainer \
                     takes batches in bursts; raise ring.slots (and ring.memory where the plan needs it), or keep fewer \
                     batches",
                    self.slots(),
                    percent(full),
                ),
            ),
            Limit::RingSmall { busiest } => Words::new(
                "ring",
                "the ring is the limit",
                "raise ring.slots or batch.size",
                self.of_small_ring(busiest, &waits),
            ),
        }
    }

    /// The certainty, by the distance of the numbers from the thresholds of the rule.
    pub(super) fn certainty(&self, limit: Limit<'_, '_>) -> Certainty {
        let by_numbers = match limit {
            Limit::Trainer => Certainty::above(self.wait_share < CLEARLY_NO_WAIT),
            Limit::Budget { held_back, .. } => {
                Certainty::above(held_back >= 2.0 * HELD_BACK_THAT_MATTERS)
            }
            Limit::Quota => {
                Certainty::above(self.used_cores() >= SURELY_ALL_BUSY * self.granted_cores())
            }
            Limit::Stage(stage) => Certainty::above(stage.utilisation >= SURELY_ALL_BUSY),
            Limit::Tail(..) | Limit::RingFull { .. } => Certainty::Likely,
            // By exclusion: nothing else is busy.
            Limit::RingSmall { .. } => Certainty::Possible,
        };
        let is_short = self.seconds() < FEW_SECONDS || self.session.batches_published < FEW_BATCHES;
        if is_short { by_numbers.min(Certainty::Possible) } else { by_numbers }
    }

    fn of_trainer(&self) -> String {
        format!(
            "loading is not the limit: the trainer waited for data {} of {}",
            percent(self.wait_share),
            self.window()
        )
    }

    #[expect(clippy::cast_precision_loss, reason = "metrics")]
    fn of_storage(&self, fetch: &StageFacts<'_>, waits: &str) -> Words {
        let report = fetch.report;
        let rate = report.num_tasks as f64 / self.seconds();
        let concurrency = report.concurrency;
        let (at_once, remedy, advice) = if fetch.utilisation >= ALL_BUSY {
            (
                format!("{concurrency} at once"),
                if report.concurrency_reason.is_empty() {
                    format!("raise `concurrency` of the stage `fetch` from {concurrency}")
                } else {
                    format!(
                        "\"auto\" has found no more to gain; to try more, set `concurrency` of the stage `fetch` above \
                         {concurrency}"
                    )
                },
                if report.concurrency_reason.is_empty() {
                    format!("raise stage.fetch.concurrency from {concurrency}")
                } else {
                    format!("set stage.fetch.concurrency above {concurrency}")
                },
            )
        } else if self.used_cores() >= ALL_BUSY * self.granted_cores() {
            let remedy = self.more_cores().unwrap_or("make the samples smaller").to_owned();
            (format!("{:.1} at once", fetch.busy), remedy.clone(), remedy)
        } else {
            (
                format!("{:.1} of {concurrency} at once", fetch.busy),
                "raise ring.slots or batch.size, so that more samples are read at once".to_owned(),
                "raise ring.slots or batch.size".to_owned(),
            )
        };
        let (mut what, mut parts) = ("storage is the limit", String::new());
        let (mut remedy, mut advice) = (format!("{remedy}, or use faster storage"), advice);
        if let Some(requests) = self.requests_of(fetch.stream) {
            let has_cores = self.used_cores() < ALL_BUSY * self.granted_cores();
            let first_byte = requests.mean_first_byte();
            parts = format!(" ({} of it to the first byte)", duration(first_byte));
            if requests.refused_share() >= REFUSED_THAT_MATTERS {
                what = "storage is the limit: it refuses requests";
                parts = format!(
                    "{parts}, {} of the requests are refused with 429 or 503,",
                    percent(requests.refused_share())
                );
                advice = "spread the objects over more prefixes".to_owned();
                remedy = format!(
                    "{advice}, lower `concurrency` of the stage `fetch`, or store several samples in an object"
                );
            } else if first_byte >= LATENCY_SHARE * requests.mean_whole() {
                what = "storage is the limit by its latency";
            } else if has_cores {
                what = "storage is the limit by its bandwidth";
                let rate = format_bytes(requests.bytes_per_second());
                parts = format!("{parts}, {rate}/s come");
                advice = "use storage that is nearer or faster".to_owned();
                remedy = format!("{advice}, or smaller samples; more reads at once hardly help");
            }
        }
        let sentence = format!(
            "{what}: a read takes {}{parts} and {at_once} give {rate:.0} samples/s {waits}; {remedy}{}",
            duration(report.ave_time),
            self.word_of_tail(fetch),
        );
        Words::new("storage", what, &advice, sentence)
    }

    fn of_stage(&self, stage: &StageFacts<'_>, waits: &str) -> Words {
        let report = stage.report;
        let whose = if stage.stream == self.session.stream {
            String::new()
        } else {
            format!(" of the stream `{}`", stage.stream)
        };
        if let Some(python) = &report.python {
            return self.of_python(stage, python, &whose, waits);
        }
        let what = format!("the stage `{}`{whose} is the limit", report.name);
        let (remedy, advice) = self.remedy(stage);
        let sentence = format!(
            "{what}: a sample takes {}, so {:.1} of {} are busy {waits}; {remedy}{} (the daemon used {:.1} cores)",
            duration(report.ave_time),
            stage.busy,
            counted(report.concurrency, "thread"),
            self.word_of_tail(stage),
            self.used_cores(),
        );
        Words::new(&report.name, &what, &advice, sentence)
    }

    /// The text for a Python stage, by the activity of its workers.
    #[expect(clippy::cast_precision_loss, reason = "metrics")]
    fn of_python(
        &self,
        stage: &StageFacts<'_>,
        python: &PythonReport,
        whose: &str,
        waits: &str,
    ) -> Words {
        let workers = stage.report.concurrency;
        let of_all = |seconds: f64| duration(seconds / python.num_calls.max(1) as f64);
        let busy = format!("{:.1} of {} are busy {waits}", stage.busy, counted(workers, "worker"));
        let what = format!("{} (Python){whose} is the limit", stage.title());
        let task = stage.report.task();
        let (tasks, function, native) = if stage.report.is_of_batches {
            let native = "move what it does to single samples to a stage";
            ("batches", format!(" in `{}`", python.function), native)
        } else {
            ("samples", String::new(), "use a native operation")
        };
        let is_busy = stage.utilisation >= ALL_BUSY;
        let restarts = python.num_starts > u64::from(workers)
            && python.start_seconds >= STARTS_THAT_MATTER * self.seconds() * f64::from(workers);
        let copied = if is_busy { 0.0 } else { python.copy_seconds };
        let hangs = !is_busy && self.timeouts().is_some_and(|hung| std::ptr::eq(hung, stage));
        let (why, remedy, advice) = if hangs || python.timeout_seconds > python.worker_seconds() {
            let why = format!(
                "{} of its calls exceeded its `timeout`, after {} each, so {busy}",
                python.num_timeouts,
                duration(python.timeout_seconds / python.num_timeouts.max(1) as f64),
            );
            let advice = format!("see in the log which {tasks} hang");
            (why, format!("{advice}, or lower its `timeout`"), advice)
        } else if restarts && !is_busy {
            let why = format!(
                "its workers ended and were started {} times, {} each, so {busy}",
                python.num_starts,
                duration(python.start_seconds / python.num_starts as f64),
            );
            let advice = "see in the log why its workers end".to_owned();
            (why, format!("{advice}, and import less"), advice)
        } else if python.function_seconds >= python.beside_seconds + copied {
            let callee = python.hot_callee().map_or_else(String::new, |spot| {
                format!(", most of it in `{}` ({})", spot.name, percent(spot.share))
            });
            let took = duration(python.ave_time);
            let why = format!("{took} a {task}{function}{callee}, so {busy}");
            if is_busy && f64::from(workers) < self.granted_cores() {
                let raise = format!("raise its `workers` from {workers}");
                (why, format!("{raise}, or {native}"), raise)
            } else {
                let cores = match self.more_cores() {
                    Some(cores) => format!("{cores}, or {native}"),
                    None => native.to_owned(),
                };
                (why, format!("{cores}; more workers help where the function waits"), cores)
            }
        } else {
            let remedy = format!("{native}, or take and return fewer bytes");
            let why = if is_busy {
                format!(
                    "{} a {task}, and {} of that in the function: the rest is copying and seeding, so {busy}",
                    of_all(python.worker_seconds()),
                    duration(python.ave_time),
                )
            } else {
                format!(
                    "{tasks} wait for it although {busy}: {} in the function, and {} to be copied and handed over",
                    duration(python.ave_time),
                    of_all(python.beside_seconds + python.copy_seconds),
                )
            };
            (why, remedy.clone(), remedy)
        };
        let sentence = format!("{what}: {why}; {remedy}{}", self.word_of_tail(stage));
        Words::new(&stage.report.name, &what, &advice, sentence)
    }

    /// The remedy for a lack of cores, if the machine has more.
    fn more_cores(&self) -> Option<&'static str> {
        self.can_have_more_cores().then_some("give the daemon more cores")
    }

    /// The remedy for the sentence, and as a short phrase.
    fn remedy(&self, stage: &StageFacts<'_>) -> (String, String) {
        let granted = self.granted_cores();
        let concurrency = stage.report.concurrency;
        let own_cores = self.own_cores();
        let threads_do_not_run =
            stage.utilisation < ALL_BUSY && stage.busy < 0.7 * f64::from(concurrency);
        let kept_off =
            threads_do_not_run || (stage.is_kept_off() && stage.asleep_share < MOSTLY_ASLEEP);
        if kept_off && own_cores < OWN_SHARE * granted {
            let or = match self.runs_idle() {
                true => ", or set cpu.policy = \"batch\" or \"normal\"",
                false => "",
            };
            let (remedy, advice) = if self.can_have_more_cores() {
                let reserve = "reserve cores for the daemon (cpu.cores)";
                (reserve, reserve)
            } else {
                (
                    "make the samples cheaper, or stop other work on this machine",
                    "make the samples cheaper",
                )
            };
            let sentence = format!(
                "other processes use the cores: its tasks waited for a core {} of their time and got {own_cores:.1} of \
                 {granted:.1} cores; {remedy}{or}",
                percent(stage.ready_share),
            );
            return (sentence, advice.to_owned());
        }
        let is_auto = stage.report.concurrency_reason.contains("thread");
        let raise = format!("raise its `concurrency` from {concurrency}");
        if stage.asleep_share >= MOSTLY_ASLEEP {
            let slept = percent(stage.asleep_share);
            let set = format!("set its `concurrency` above {concurrency}");
            return if is_auto {
                (format!("{slept} of that is sleep: {set}, or raise ring.memory"), set)
            } else {
                (format!("{slept} of that is sleep: {raise}"), raise)
            };
        }
        if !is_auto && f64::from(concurrency) < granted {
            return (raise.clone(), raise);
        }
        let cheaper = "make the samples cheaper";
        match self.more_cores() {
            Some(cores) => (format!("{cores}, or {cheaper}"), cores.to_owned()),
            None => (format!("{cheaper}: this machine has no more cores"), cheaper.to_owned()),
        }
    }

    /// The addition about slow samples for a stage that is the limit anyway.
    fn word_of_tail(&self, stage: &StageFacts<'_>) -> String {
        let tail = stage.tail().filter(|tail| {
            !stage.is_kept_off()
                && tail.total_seconds >= TAIL_WORTH_A_WORD * stage.report.busy_seconds
        });
        tail.map_or_else(String::new, |tail| {
            format!(
                "; one {} in {:.0} takes {}, the median is {}: find the slow ones",
                stage.report.task(),
                tail.one_in,
                duration(tail.mean_seconds),
                duration(tail.median_seconds),
            )
        })
    }

    fn of_tail(&self, stage: &StageFacts<'_>, tail: Tail, waits: &str) -> Words {
        let (limit, what, slow, remedy) = if stage.is_fetch {
            ("storage", "storage is the limit".to_owned(), "reads", "use steadier storage")
        } else {
            let what = format!("{} is the limit", stage.title());
            if stage.report.is_of_batches {
                (stage.report.name.as_str(), what, "calls", "find them with forebay trace")
            } else {
                let remedy = "find them with forebay trace or errors.quarantine";
                (stage.report.name.as_str(), what, "samples", remedy)
            }
        };
        let sentence = format!(
            "{what}: slow {slow} hold up their batches: one in {:.0} takes {}, the median {}, the mean {} and p99 {}, and the {} slots are \
             filled before it finishes, so {:.1} of {} {} are busy {waits}; raise ring.slots, or {remedy}",
            tail.one_in,
            duration(tail.mean_seconds),
            duration(tail.median_seconds),
            duration(stage.report.ave_time),
            duration(stage.report.p99_time),
            self.slots(),
            stage.busy,
            stage.report.concurrency,
            stage.workforce(),
        );
        Words::new(limit, &what, &format!("raise ring.slots, or {remedy}"), sentence)
    }

    fn of_small_ring(&self, busiest: Option<&StageFacts<'_>>, waits: &str) -> String {
        let slots = self.slots();
        let held = self.session.slots_leased;
        let rows = self.rows_of_a_batch();
        let idle = busiest.map_or_else(String::new, |stage| {
            format!(
                ", and no more than {:.1} of {} {} of `{}` are busy",
                stage.busy,
                stage.report.concurrency,
                stage.workforce(),
                stage.report.name
            )
        });
        format!(
            "the ring is the limit: its {slots} slots of {rows:.0} samples (the trainer holds {held}) keep too few \
             samples in flight{idle} {waits}; raise ring.slots or batch.size (and ring.memory where the plan needs it), \
             or keep fewer batches"
        )
    }
}
