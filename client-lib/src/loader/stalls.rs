//! What the daemon says of a stall, for the message of a time-out.

use std::time::{Duration, Instant};

use forebay_protocol::frames::{ClientFrame, DaemonFrame};
use nix::poll::PollFlags;
use serde_json::Value;

use super::Loader;
use crate::error::Error;

/// How long the daemon may take for its answer; it has had its time already.
const ANSWER_DEADLINE: Duration = Duration::from_secs(2);

impl Loader {
    /// The error for a wait without progress, with what the daemon knows of this session's stall.
    pub(super) fn timed_out(&mut self, waited: Duration, waited_for: String) -> Error {
        let daemon_says = match self.short_stats() {
            Ok(Some(text)) => describe(&text, self.terms.session),
            Ok(None) => {
                format!("the daemon has not answered for {} s either", ANSWER_DEADLINE.as_secs())
            }
            Err(error) => format!("the daemon could not be asked: {error}"),
        };
        Error::Timeout { waited, waited_for, daemon_says }
    }

    fn short_stats(&mut self) -> Result<Option<String>, Error> {
        let begun = Instant::now();
        self.link.send(&ClientFrame::Stats, &[])?;
        let mut text = String::new();
        while begun.elapsed() < ANSWER_DEADLINE {
            match self.link.receive() {
                Some((DaemonFrame::StatsPart { last, text: part }, _)) => {
                    text.push_str(&part);
                    if last {
                        return Ok(Some(text));
                    }
                }
                Some((other, _)) => self.accept(&other)?,
                None => self.link.wait_slice(PollFlags::POLLIN, "the daemon's figures")?,
            }
        }
        Ok(None)
    }
}

/// The sentences about a session, else what the daemon takes for the limit.
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
    fn only_the_own_sessions_stalls_are_told() {
        let stats = r#"{"stalls": [{"session": 1, "sentence": "a"}, {"session": 2, "sentence": "b"},
            {"session": 1, "sentence": "c"}], "verdict": {"sentence": "v"}}"#;
        assert_eq!(describe(stats, 1), "the daemon says: a; c");
        assert_eq!(describe(stats, 3), "the daemon sees no stall: v");
        assert_eq!(describe("no JSON", 3), "the daemon sees no stall: no verdict");
    }
}
