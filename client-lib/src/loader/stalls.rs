//! The daemon's explanation of a stall, for the time-out error.

use std::time::{Duration, Instant};

use forebay_protocol::frames::{ClientFrame, DaemonFrame};
use nix::poll::PollFlags;
use serde_json::Value;

use super::Loader;
use crate::error::Error;
use crate::patience::Patience;

/// How long the daemon may take to answer, after the time-out.
const ANSWER_DEADLINE: Duration = Duration::from_secs(2);

impl Loader {
    /// The error for a wait without progress, with the daemon's explanation of this session's stall.
    pub(super) fn stall_error(&mut self, waited: Duration, waited_for: String) -> Error {
        let daemon_says = match self.short_stats() {
            Ok(Some(text)) => describe(&text, self.status.terms.session),
            Ok(None) => {
                format!("the daemon did not answer within {} s either", ANSWER_DEADLINE.as_secs())
            }
            Err(error) => format!("asking the daemon failed: {error}"),
        };
        Error::Timeout { waited, waited_for, daemon_says }
    }

    fn short_stats(&mut self) -> Result<Option<String>, Error> {
        let mut patience = Patience::begin(Instant::now());
        self.link.send(&ClientFrame::Stats, &[])?;
        let mut text = String::new();
        while patience.look(Instant::now()) < ANSWER_DEADLINE {
            match self.link.receive() {
                Some((DaemonFrame::StatsPart { last, text: part }, _)) => {
                    text.push_str(&part);
                    if last {
                        return Ok(Some(text));
                    }
                }
                Some((other, _)) => self.handle_frame(&other)?,
                None => self.link.wait_slice(PollFlags::POLLIN, "the daemon's statistics")?,
            }
        }
        Ok(None)
    }
}

/// The sentences about this session's stalls; without any, the daemon's verdict on the bottleneck.
fn describe(stats: &str, session: u64) -> String {
    let stats: Value = serde_json::from_str(stats).unwrap_or(Value::Null);
    let stalls = stats["stalls"].as_array().map_or(&[][..], Vec::as_slice);
    let sentences: Vec<&str> = stalls
        .iter()
        .filter(|stall| stall["session"].as_u64() == Some(session))
        .filter_map(|stall| stall["sentence"].as_str())
        .collect();
    if sentences.is_empty() {
        let verdict = stats["verdict"]["sentence"].as_str().unwrap_or("no verdict");
        return format!("the daemon sees no stall: {verdict}");
    }
    format!("the daemon says: {}", sentences.join("; "))
}

#[cfg(test)]
mod tests {
    use super::describe;

    #[test]
    fn only_stalls_of_this_session_are_reported() {
        let stats = r#"{"stalls": [{"session": 1, "sentence": "a"}, {"session": 2, "sentence": "b"},
            {"session": 1, "sentence": "c"}], "verdict": {"sentence": "v"}}"#;
        assert_eq!(describe(stats, 1), "the daemon says: a; c");
        assert_eq!(describe(stats, 3), "the daemon sees no stall: v");
        assert_eq!(describe("no JSON", 3), "the daemon sees no stall: no verdict");
    }
}
