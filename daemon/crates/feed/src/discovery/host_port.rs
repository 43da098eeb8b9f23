//! A host with a port, and its lookup by the system.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use super::DiscoveryError;

/// The port of a feeder if none is written.
pub const DEFAULT_PORT: u16 = 9461;
/// The longest DNS name.
const MAX_HOST_BYTES: usize = 253;

/// A host name or numeric address, and a port.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HostPort {
    host: Arc<str>,
    port: u16,
}

impl HostPort {
    /// Reads `host`, `host:port`, `1.2.3.4:port`, `[::1]:port` or a bare IPv6 address. `place` names where the text is.
    ///
    /// # Errors
    /// The text is none of these.
    pub fn read(text: &str, place: &str) -> Result<Self, DiscoveryError> {
        let fail = |reason| DiscoveryError::Address {
            place: place.to_owned(),
            text: text.chars().take(MAX_HOST_BYTES).collect(),
            reason,
        };
        let (host, port) = if text.parse::<IpAddr>().is_ok() {
            (text, None)
        } else if let Some(rest) = text.strip_prefix('[') {
            let (host, after) = rest.split_once(']').ok_or_else(|| fail("has no ]"))?;
            if host.parse::<std::net::Ipv6Addr>().is_err() {
                return Err(fail("has no IPv6 address in brackets"));
            }
            match after.strip_prefix(':') {
                Some(port) => (host, Some(port)),
                None if after.is_empty() => (host, None),
                None => return Err(fail("has something else than a port after ]")),
            }
        } else {
            match text.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            }
        };
        let port = match port {
            None => DEFAULT_PORT,
            Some(port) => match port.parse() {
                Ok(0) | Err(_) => return Err(fail("has no port between 1 and 65535")),
                Ok(port) => port,
            },
        };
        if host.is_empty() || host.len() > MAX_HOST_BYTES {
            return Err(fail("has no host of 1 to 253 characters"));
        }
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        if host.parse::<IpAddr>().is_err() && !host.bytes().all(is_plain) {
            return Err(fail("has a character that no host name has"));
        }
        Ok(Self { host: host.into(), port })
    }

    /// The host, without a port or brackets.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    pub(super) fn shared_host(&self) -> &Arc<str> {
        &self.host
    }

    /// The port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The address, if the host is a numeric one.
    #[must_use]
    pub fn numeric(&self) -> Option<SocketAddr> {
        self.host.parse::<IpAddr>().ok().map(|address| (address, self.port).into())
    }
}

/// All addresses of a host, IPv4 and IPv6, as the system finds them (`getaddrinfo`). Blocks, for half a minute if the
/// name service is silent: not for a thread that does something else.
///
/// # Errors
/// The system finds none.
pub fn look_up(name: &HostPort) -> io::Result<Vec<IpAddr>> {
    let found = (name.host(), name.port()).to_socket_addrs()?;
    Ok(found.map(|address| address.ip()).take(super::MAX_FEEDERS).collect())
}
