//! Which feeders there are: from names that are looked up every five seconds, and from a file that is read again when
//! it changes.
//!
//! [`Discovery`] has no thread, no socket and no clock: its owner calls [`Discovery::poll`] with the time, looks up the
//! names that it returns (each takes as long as it takes) and hands in the results. Whether a feeder works is not
//! known here: the connection says that.
//!
//! The set is bounded. What cannot be read is reported once, and the rest is used.

mod file;
mod host_port;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use file::FeedersFile;
pub use host_port::{DEFAULT_PORT, HostPort, look_up};

/// Limit of the set.
pub const MAX_FEEDERS: usize = 4096;
/// Limit of the names that are looked up.
pub const MAX_NAMES: usize = 64;
/// The time between two lookups of a name.
pub const LOOKUP_INTERVAL: Duration = Duration::from_secs(5);
/// For how long the addresses of a name are kept though its lookup fails: an outage of the name service disturbs nobody.
pub const KEEP_ADDRESSES: Duration = Duration::from_secs(60);
/// The environment variable that replaces `feeders.addresses` and `feeders.file`.
pub const VARIABLE: &str = "FOREBAY_FEEDERS";

/// A feeder's address, and the host under which it was found.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Feeder {
    /// Where it listens.
    pub address: SocketAddr,
    /// The host as it is written in the configuration or the file: for its certificate and for messages.
    pub host: Arc<str>,
}

/// Why the sources of feeders cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DiscoveryError {
    /// An address cannot be read.
    #[error(
        "{place}: {text:?} {reason}; expected HOST or HOST:PORT, such as \"feeders.default.svc:9461\" or \"[fd00::1]:9461\""
    )]
    Address {
        /// The key, the variable, or the file's line.
        place: String,
        /// What is there.
        text: String,
        /// Why it is not an address.
        reason: &'static str,
    },
    /// Too many names.
    #[error(
        "{place}: {count} addresses, and at most {MAX_NAMES} can be looked up; use names with several addresses, or feeders.file"
    )]
    ManyAddresses {
        /// The key or the variable.
        place: &'static str,
        /// Their number.
        count: usize,
    },
}

/// Where feeders are found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sources {
    /// Names and addresses (`feeders.addresses`): each address of a name is a feeder.
    pub addresses: Vec<HostPort>,
    /// A file with one of them a line (`feeders.file`).
    pub file: Option<PathBuf>,
}

impl Sources {
    /// Reads `feeders.addresses`.
    ///
    /// # Errors
    /// One cannot be read, or there are too many.
    pub fn new(addresses: &[String], file: Option<PathBuf>) -> Result<Self, DiscoveryError> {
        Ok(Self {
            addresses: read_all("feeders.addresses", addresses.iter().map(String::as_str))?,
            file,
        })
    }

    /// Replaces both by the value of [`VARIABLE`], if it is set and not empty: addresses between commas or white space.
    ///
    /// # Errors
    /// See [`Self::new`].
    pub fn with_variable(self, value: Option<&str>) -> Result<Self, DiscoveryError> {
        let separators = |character: char| character == ',' || character.is_ascii_whitespace();
        let words = value.unwrap_or("").split(separators).filter(|word| !word.is_empty());
        let addresses = read_all(VARIABLE, words)?;
        Ok(if addresses.is_empty() { self } else { Self { addresses, file: None } })
    }

    /// Whether there is nowhere to look.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty() && self.file.is_none()
    }
}

fn read_all<'a>(
    place: &'static str,
    words: impl Iterator<Item = &'a str>,
) -> Result<Vec<HostPort>, DiscoveryError> {
    let found: Vec<HostPort> =
        words.map(|word| HostPort::read(word, place)).collect::<Result<_, _>>()?;
    match found.len() > MAX_NAMES {
        true => Err(DiscoveryError::ManyAddresses { place, count: found.len() }),
        false => Ok(found),
    }
}

/// A name that is looked up again and again.
#[derive(Debug)]
struct Looked {
    name: HostPort,
    /// When the next lookup is due.
    due: Option<Instant>,
    /// Whether a lookup has been handed out and has not come back.
    is_outstanding: bool,
    addresses: Vec<IpAddr>,
    /// When a lookup last succeeded.
    found_at: Option<Instant>,
    /// Whether the failure is reported.
    is_reported: bool,
}

impl Looked {
    fn new(name: HostPort) -> Self {
        Self {
            name,
            due: None,
            is_outstanding: false,
            addresses: Vec::new(),
            found_at: None,
            is_reported: false,
        }
    }
}

/// See the module's head.
#[derive(Debug)]
pub struct Discovery {
    /// Feeders whose numeric addresses are configured.
    fixed: Vec<Feeder>,
    /// Names of the configuration, and those of the file after them.
    looked: Vec<Looked>,
    configured_names: usize,
    file: Option<FeedersFile>,
    /// Feeders whose numeric addresses are in the file.
    in_file: Vec<Feeder>,
    feeders: Vec<Feeder>,
    generation: u64,
    is_full_reported: bool,
}

impl Discovery {
    /// Knows the configured numeric addresses at once, and all else after [`Self::poll`].
    #[must_use]
    pub fn new(sources: Sources) -> Self {
        let (fixed, names) = split(sources.addresses);
        let mut discovery = Self {
            fixed,
            configured_names: names.len(),
            looked: names.into_iter().map(Looked::new).collect(),
            file: sources.file.map(FeedersFile::new),
            in_file: Vec::new(),
            feeders: Vec::new(),
            generation: 0,
            is_full_reported: false,
        };
        discovery.collect();
        discovery
    }

    /// Reads the file if it has changed, and returns the names that are due for a lookup: each until its result is handed
    /// in. To be called about every second.
    pub fn poll(&mut self, now: Instant) -> Vec<HostPort> {
        if let Some(found) = self.file.as_mut().and_then(FeedersFile::changed) {
            self.take_file(found);
        }
        self.drop_stale(now);
        let mut due = Vec::new();
        for looked in &mut self.looked {
            if !looked.is_outstanding && looked.due.is_none_or(|due| due <= now) {
                looked.is_outstanding = true;
                due.push(looked.name.clone());
            }
        }
        due
    }

    /// Takes the result of a lookup. A failed one changes nothing for [`KEEP_ADDRESSES`].
    pub fn looked_up(&mut self, name: &HostPort, found: io::Result<Vec<IpAddr>>, now: Instant) {
        // A file that no longer has the name may have been read meanwhile.
        for looked in self.looked.iter_mut().filter(|looked| looked.name == *name) {
            looked.is_outstanding = false;
            looked.due = Some(now + LOOKUP_INTERVAL);
            match &found {
                Ok(addresses) if !addresses.is_empty() => {
                    looked.addresses.clone_from(addresses);
                    looked.found_at = Some(now);
                    looked.is_reported = false;
                }
                failed => {
                    if !looked.is_reported {
                        looked.is_reported = true;
                        let reason = failed.as_ref().err().map_or_else(
                            || "no address".to_owned(),
                            std::string::ToString::to_string,
                        );
                        tracing::warn!(
                            "no feeder is found under the name {}: {reason}; it is looked up every {} s",
                            name.host(),
                            LOOKUP_INTERVAL.as_secs()
                        );
                    }
                }
            }
        }
        self.drop_stale(now);
        self.collect();
    }

    /// The feeders, sorted, each address once, at most [`MAX_FEEDERS`].
    #[must_use]
    pub fn feeders(&self) -> &[Feeder] {
        &self.feeders
    }

    /// Grows when the set changes.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    fn take_file(&mut self, found: Vec<HostPort>) {
        let (fixed, mut names) = split(found);
        if self.configured_names + names.len() > MAX_NAMES {
            tracing::warn!(
                "feeders.file has {} names that are not numeric addresses, and {MAX_NAMES} can be looked up in all; the rest is ignored",
                names.len()
            );
            names.truncate(MAX_NAMES.saturating_sub(self.configured_names));
        }
        self.in_file = fixed;
        let mut before = self.looked.split_off(self.configured_names);
        for name in names {
            if self.looked.iter().any(|looked| looked.name == name) {
                continue;
            }
            // A name that stays keeps its addresses and its lookup.
            let kept = before.iter().position(|looked| looked.name == name);
            let looked = kept.map_or_else(|| Looked::new(name), |index| before.swap_remove(index));
            self.looked.push(looked);
        }
        self.collect();
    }

    fn drop_stale(&mut self, now: Instant) {
        let mut is_changed = false;
        for looked in &mut self.looked {
            let is_stale = looked
                .found_at
                .is_some_and(|found| now.saturating_duration_since(found) > KEEP_ADDRESSES);
            if is_stale && !looked.addresses.is_empty() {
                looked.addresses.clear();
                is_changed = true;
            }
        }
        if is_changed {
            self.collect();
        }
    }

    /// Makes the set anew.
    fn collect(&mut self) {
        let mut known = BTreeSet::new();
        let mut feeders = Vec::new();
        let named = self.looked.iter().flat_map(|looked| {
            looked.addresses.iter().map(|address| Feeder {
                address: (*address, looked.name.port()).into(),
                host: Arc::clone(looked.name.shared_host()),
            })
        });
        // Those of a name come first: its certificate has the name, and seldom the number.
        for feeder in named.chain(self.fixed.iter().cloned()).chain(self.in_file.iter().cloned()) {
            if known.insert(feeder.address) {
                feeders.push(feeder);
            }
        }
        feeders.sort_unstable();
        if feeders.len() > MAX_FEEDERS && !self.is_full_reported {
            self.is_full_reported = true;
            tracing::warn!("{} feeders are found, and {MAX_FEEDERS} are used", feeders.len());
        }
        feeders.truncate(MAX_FEEDERS);
        if feeders != self.feeders {
            self.feeders = feeders;
            self.generation += 1;
        }
    }
}

/// Numeric addresses, and names.
fn split(addresses: Vec<HostPort>) -> (Vec<Feeder>, Vec<HostPort>) {
    let mut fixed = Vec::new();
    let mut names = Vec::new();
    for address in addresses {
        match address.numeric() {
            Some(number) => {
                fixed.push(Feeder { address: number, host: Arc::clone(address.shared_host()) })
            }
            None if names.contains(&address) => {}
            None => names.push(address),
        }
    }
    (fixed, names)
}
