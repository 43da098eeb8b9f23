//! Replaces `http` in a build without it: a configuration with `listen.metrics` is refused.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;

use anyhow::bail;
use tokio::sync::mpsc;

use crate::question::Question;
use forebay_config::Config;

/// Cannot be created.
#[derive(Debug)]
pub struct MetricsListener(Infallible);

impl MetricsListener {
    /// Refuses a configuration with `listen.metrics`.
    ///
    /// # Errors
    /// A stream has `listen.metrics`.
    pub fn bind(configs: &[Config]) -> anyhow::Result<Option<Self>> {
        if let Some(config) = configs.iter().find(|config| config.listen.metrics.is_some()) {
            bail!(
                "{}: `listen.metrics` is served over HTTP, and this program is built without `http`; remove the key, or build \
                 with that feature",
                config.source
            );
        }
        Ok(None)
    }

    /// Never called.
    pub const fn address(&self) -> SocketAddr {
        match self.0 {}
    }

    /// Never called.
    ///
    /// # Errors
    /// None.
    pub fn start(self) -> io::Result<mpsc::Receiver<Question>> {
        match self.0 {}
    }
}
