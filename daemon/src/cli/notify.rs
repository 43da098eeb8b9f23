//! Notifies the service manager: ready, alive, stopping (systemd's `sd_notify`, over `$NOTIFY_SOCKET`).
//!
//! The pings for `WatchdogSec=` come from the thread that runs all control: a daemon whose engine hangs stops pinging
//! and is restarted. Without the variable nothing is sent. The protocol is a datagram of `KEY=VALUE` lines
//! (sd_notify(3)).

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// The connection to the service manager, if there is one.
#[derive(Debug)]
pub(super) struct ServiceManager {
    socket: Option<UnixDatagram>,
    /// Maximum interval between keep-alives.
    watchdog: Option<Duration>,
}

impl ServiceManager {
    /// From the environment. A socket that refuses the connection is ignored.
    pub(super) fn from_environment() -> Self {
        let address = std::env::var_os("NOTIFY_SOCKET").and_then(|path| address(path.as_bytes()));
        let socket = address.and_then(|address| {
            let socket = UnixDatagram::unbound().ok()?;
            socket.connect_addr(&address).ok()?;
            // A manager that does not read must not block the engine.
            socket.set_nonblocking(true).ok()?;
            Some(socket)
        });
        let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
        let is_for_this_process =
            number("WATCHDOG_PID").is_none_or(|process| process == u64::from(std::process::id()));
        let watchdog = number("WATCHDOG_USEC")
            .filter(|microseconds| *microseconds > 0 && is_for_this_process)
            .map(Duration::from_micros);
        Self { socket, watchdog }
    }

    /// The daemon listens for clients.
    pub(super) fn notify_ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={status}\nMAINPID={}", std::process::id()));
    }

    /// The daemon is shutting down.
    pub(super) fn notify_stopping(&self) {
        self.send("STOPPING=1");
    }

    /// Sends keep-alives forever. Runs on the thread that the manager monitors.
    pub(super) async fn keep_alive(&self) {
        let Some(watchdog) = self.watchdog.filter(|_| self.socket.is_some()) else {
            return std::future::pending().await;
        };
        // Half of the interval, as sd_watchdog_enabled(3) recommends.
        let mut clock = tokio::time::interval(watchdog / 2);
        clock.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            clock.tick().await;
            self.send("WATCHDOG=1");
        }
    }

    fn send(&self, text: &str) {
        if let Some(socket) = &self.socket {
            // A manager that has ended or is busy misses a message; nothing depends on it.
            let _ = socket.send(text.as_bytes());
        }
    }
}

/// A path, or a name in the abstract namespace that begins with `@`.
fn address(path: &[u8]) -> Option<SocketAddr> {
    match path {
        [b'/', ..] => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(path)).ok(),
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_paths_or_abstract_names() {
        assert!(address(b"/run/notify").unwrap().as_pathname().is_some());
        assert_eq!(address(b"@forebay").unwrap().as_abstract_name(), Some(&b"forebay"[..]));
        assert!(address(b"relative").is_none() && address(b"").is_none());
    }
}
