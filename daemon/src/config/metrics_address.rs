//! `listen.metrics` and `listen.metrics_from`: where figures are served over HTTP, and to whom.
//!
//! Whoever reaches the address reads file names and figures, so an address that other machines reach needs a word of
//! its own. Whether the port is free is not looked at here.

use std::net::SocketAddr;

use super::error::ConfigError;
use super::model::MetricsFrom;
use super::section::{FromValue, Section};
use super::value::Value;

/// An IP address with a port. No host names: what they stand for may change under the daemon.
struct Address(SocketAddr);

impl FromValue for Address {
    const EXPECTED: &'static str =
        "an IP address and a port such as \"127.0.0.1:9464\" (port 0: any free one)";
    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::String(text) => text.parse().ok().map(Self),
            _ => None,
        }
    }
}

/// Reads both keys out of `[listen]`.
pub(super) fn read_metrics(
    section: &mut Section,
) -> Result<(Option<SocketAddr>, MetricsFrom), ConfigError> {
    let address = section.take_placed::<Address>("metrics")?;
    let from = section.take_or("metrics_from", MetricsFrom::Loopback)?;
    let Some((Address(address), place)) = address else { return Ok((None, from)) };
    if from == MetricsFrom::Loopback && !address.ip().to_canonical().is_loopback() {
        let port = address.port();
        return Err(ConfigError::new(
            &place,
            format!(
                "`listen.metrics` is {address}, which other machines may reach; set it to \"127.0.0.1:{port}\", or \
                 `listen.metrics_from` to \"anywhere\" if all who reach it may read figures and file names"
            ),
        ));
    }
    Ok((Some(address), from))
}
