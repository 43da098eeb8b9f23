//! The metrics of rows that feeders make for a stream.

use serde::{Deserialize, Serialize};

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
    /// Feeders that would be needed so that no trainer waits, and none is idle; `None`: not known yet.
    pub feeders_wanted: Option<u64>,
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
    /// One line for a user.
    #[must_use]
    pub fn line(&self) -> String {
        let serving = self.feeders.iter().filter(|feeder| feeder.state == "serving").count();
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
