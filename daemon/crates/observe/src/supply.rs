//! The metrics of rows that feeders make for a stream.

use serde::{Deserialize, Serialize};

use super::report::{DaemonReport, StreamReport};

/// The metrics in reports.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SupplyReport {
    /// Rows received, in all.
    pub num_supplied: u64,
    /// Rows asked for and not received yet.
    pub num_outstanding: u64,
    /// Rows that came back without having been made, since a connection was lost or a feeder left.
    pub num_lost: u64,
    /// Overdue rows that were asked for again, or made here instead.
    pub num_hedged: u64,
    /// Those of them that were made here.
    pub num_made_here_instead: u64,
    /// Rows that a feeder could not make.
    pub num_failed: u64,
    /// Rows that were made here too and compared.
    pub num_checked: u64,
    /// Those of them that differed.
    pub num_differing: u64,
    /// 95 of 100 rows took at most this long from being asked for to their arrival; `None`: too few yet.
    pub p95_seconds: Option<f64>,
    /// Each feeder that is known.
    pub feeders: Vec<FeederReport>,
}

/// One feeder.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct FeederReport {
    /// Its address.
    pub address: String,
    /// What it does: `serving`, `connecting`, `draining`, or why it gets no rows.
    pub state: String,
    /// Its cores, by its own word; 0 before it has answered.
    pub cores: u32,
    /// Rows received from it.
    pub num_rows: u64,
    /// Bytes of answers received from it.
    pub received_bytes: u64,
    /// Rows asked of it and not received yet.
    pub num_outstanding: u64,
    /// The most rows that are asked of it at a time.
    pub window_rows: u64,
}

impl SupplyReport {
    /// Number of feeders that serve.
    #[must_use]
    pub fn serving(&self) -> u64 {
        self.feeders.iter().filter(|feeder| feeder.state == "serving").count() as u64
    }

    /// One line for a user.
    #[must_use]
    pub fn line(&self) -> String {
        let serving = self.serving();
        let mut text = format!(
            "{serving} of {} feeders serve; {} rows received, {} came back, {} were overdue ({} of them made here), {} compared",
            self.feeders.len(),
            self.num_supplied,
            self.num_lost,
            self.num_hedged,
            self.num_made_here_instead,
            self.num_checked
        );
        if let Some(p95) = self.p95_seconds {
            text.push_str(&format!("; 95 of 100 within {:.0} ms", p95 * 1e3));
        }
        for feeder in self.feeders.iter().filter(|feeder| feeder.state != "serving") {
            text.push_str(&format!("; {}: {}", feeder.address, feeder.state));
        }
        text
    }
}

/// Of a feeder's and this host's cores, the share that rows may take.
const USABLE: f64 = 0.8;
/// CPU seconds to receive a gigabyte over an encrypted connection.
const RECEIVE_SECONDS_PER_GB: f64 = 0.95;
/// Rows that are dearer than receiving them by this factor are worth sending.
const WORTH: f64 = 3.0;
/// Batches that a trainer has taken before its rate is known.
const MIN_BATCHES: u64 = 4;

/// Whether feeders would help a stream's trainers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct FeedingReport {
    /// CPU seconds to make a row, as measured here.
    pub cpu_seconds_per_row: f64,
    /// The rows a second that trainers would take if they never waited.
    pub wanted_rows_per_second: f64,
    /// The cores that these rows take.
    pub wanted_cores: f64,
    /// The cores that the daemon may use.
    pub own_cores: f64,
    /// Feeders that are needed so that no trainer waits and none is idle; a fraction, since many daemons may share a few.
    pub feeders_wanted: f64,
    /// A sentence with the numbers.
    pub sentence: String,
}

impl FeedingReport {
    /// Adds it to each stream of a report.
    pub(crate) fn add_to(report: &mut DaemonReport) {
        let found: Vec<_> = report.streams.iter().map(|stream| Self::of(stream, report)).collect();
        for (stream, found) in report.streams.iter_mut().zip(found) {
            stream.feeding = found;
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "metrics")]
    fn of(stream: &StreamReport, report: &DaemonReport) -> Option<Self> {
        let per_row = |cpu: f64, rows: u64| if rows > 0 { cpu / rows as f64 } else { 0.0 };
        let stages = stream.stages.iter().skip(1);
        let rows = stream.stages.last().map_or(0, |stage| stage.num_tasks);
        let decoders = per_row(stream.decoders_cpu_seconds, rows);
        let cpu_seconds_per_row: f64 = stages
            .map(|stage| {
                // The workers of a Python stage are measured by themselves.
                let workers = stage.python.as_ref();
                per_row(stage.cpu_seconds, stage.measured_tasks)
                    + workers.map_or(0.0, |one| per_row(one.cpu_seconds, one.num_calls))
            })
            .sum::<f64>()
            + decoders;
        let sessions: Vec<_> =
            report.sessions.iter().filter(|one| one.stream == stream.name).collect();
        let batch_size = f64::from(stream.batch_size);
        let rate = |seconds: f64, waited: f64, batches: u64| {
            // A trainer that always waits could take more than can be measured: at most a hundred times as much.
            let at_work = (seconds - waited).max(seconds / 100.0);
            batches as f64 * batch_size / at_work.max(1e-9)
        };
        let known = sessions.iter().filter(|one| one.batches_taken >= MIN_BATCHES);
        let wanted_rows_per_second: f64 =
            known.map(|one| rate(one.seconds, one.wait_seconds, one.batches_taken)).sum();
        if wanted_rows_per_second <= 0.0 || cpu_seconds_per_row <= 0.0 {
            return None;
        }
        let own_cores = report.cpu_budget.cores.unwrap_or(report.cpu_budget.granted_cores);
        let wanted_cores = wanted_rows_per_second * cpu_seconds_per_row;
        let row_gb = sessions.first().map_or(0.0, |one| {
            let slots = one.slots_free + one.slots_filling + one.slots_ready + one.slots_leased;
            one.ring_bytes as f64 / (slots.max(1) as f64 * batch_size.max(1.0)) / 1e9
        });
        let is_worth = cpu_seconds_per_row > WORTH * RECEIVE_SECONDS_PER_GB * row_gb;
        let missing = wanted_cores - USABLE * own_cores;
        let of_feeder = stream.supply.as_ref().and_then(mean_cores).unwrap_or(own_cores).max(1.0);
        let (milliseconds, would_help) = (cpu_seconds_per_row * 1e3, is_worth && missing > 0.0);
        let numbers = format!(
            "{milliseconds:.1} ms a row, {wanted_cores:.1} cores wanted, {own_cores:.1} here"
        );
        let sentence = match (would_help, is_worth) {
            (true, _) => format!("feeders would help: {numbers}"),
            (false, true) => format!("no feeder needed: {numbers}"),
            (false, false) => format!(
                "no feeder needed: to receive a row costs about as much as to make it; {numbers}"
            ),
        };
        let feeders = (missing / (USABLE * of_feeder)).max(0.0);
        Some(Self {
            cpu_seconds_per_row,
            wanted_rows_per_second,
            wanted_cores,
            own_cores,
            feeders_wanted: if would_help { feeders } else { 0.0 },
            sentence,
        })
    }
}

/// The cores of a feeder, on average, of those that have said so.
fn mean_cores(supply: &SupplyReport) -> Option<f64> {
    let cores = supply.feeders.iter().map(|feeder| feeder.cores).filter(|cores| *cores > 0);
    let (count, sum) =
        cores.fold((0_u32, 0_u32), |(count, sum), cores| (count + 1, sum.saturating_add(cores)));
    (count > 0).then(|| f64::from(sum) / f64::from(count))
}
