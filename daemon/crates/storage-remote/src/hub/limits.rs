//! Pauses that a server asks for: `RateLimit`, `Retry-After`, 429. They hold for every reader of this process.
//!
//! The headers are those of draft-ietf-httpapi-ratelimit-headers. The hub counts requests to its API and to its files
//! separately, so each has its own pause.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use http::header::RETRY_AFTER;
use http::{HeaderMap, StatusCode};

use crate::client::shown;

/// The longest pause that is believed.
const MAX_PAUSE: Duration = Duration::from_secs(3600);
/// The headers round to seconds.
const ROUNDING: Duration = Duration::from_secs(1);
/// The shortest pause after a 429, also if it names none.
const MIN_PAUSE: Duration = Duration::from_secs(1);

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Service {
    /// A listing or a revision.
    Api,
    /// A file.
    Files,
}

/// Ends of pauses, by server and service.
static PAUSES: Mutex<BTreeMap<(String, Service), Instant>> = Mutex::new(BTreeMap::new());

fn pauses() -> MutexGuard<'static, BTreeMap<(String, Service), Instant>> {
    PAUSES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How long no request may be made to this server yet; `None`: it may be made now.
pub(crate) fn left(server: &str, service: Service) -> Option<Duration> {
    let mut pauses = pauses();
    let now = Instant::now();
    pauses.retain(|_, end| *end > now);
    pauses.get(&(server.to_owned(), service)).map(|end| end.saturating_duration_since(now))
}

/// Begins the pause that a response asks for, unless a longer one has begun.
pub(crate) fn note(server: &str, service: Service, status: StatusCode, headers: &HeaderMap) {
    let Some(pause) = pause_of(status, headers) else { return };
    let end = Instant::now() + pause;
    let mut pauses = pauses();
    let known = pauses.insert((server.to_owned(), service), end);
    if let Some(known) = known.filter(|known| *known > end) {
        pauses.insert((server.to_owned(), service), known);
    } else if known.is_none() {
        let policy = headers.get("ratelimit-policy").and_then(|policy| policy.to_str().ok());
        let policy = policy.map_or(String::new(), |policy| format!(" ({})", shown(policy)));
        tracing::warn!(
            "{server} allows no further requests{policy}: all readers of this process pause for {:.0} s",
            pause.as_secs_f64().ceil()
        );
    }
}

/// The pause that a response asks for.
fn pause_of(status: StatusCode, headers: &HeaderMap) -> Option<Duration> {
    let is_busy = matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
    let lines = headers.get_all("ratelimit").iter().filter_map(|line| line.to_str().ok());
    let spent = lines.flat_map(|line| line.split(',')).filter_map(time_if_spent).max();
    let after = headers.get(RETRY_AFTER).and_then(|text| text.to_str().ok()?.trim().parse().ok());
    let after = after.filter(|_| is_busy).map(Duration::from_secs);
    let least = (status == StatusCode::TOO_MANY_REQUESTS).then_some(MIN_PAUSE);
    let spent = spent.map(|seconds| Duration::from_secs(seconds).saturating_add(ROUNDING));
    spent.max(after).max(least).filter(|pause| !pause.is_zero()).map(|pause| pause.min(MAX_PAUSE))
}

/// The seconds until requests are allowed again, of an item such as `"api";r=0;t=55` without remaining requests.
fn time_if_spent(item: &str) -> Option<u64> {
    let number = |name: &str| {
        item.split(';').skip(1).find_map(|part| {
            let (found, value) = part.split_once('=')?;
            (found.trim() == name).then(|| value.trim().parse::<u64>().ok()).flatten()
        })
    };
    (number("r")? == 0).then(|| number("t")).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pause(status: u16, pairs: &[(&'static str, &str)]) -> Option<u64> {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, value.parse().unwrap());
        }
        let pause = pause_of(StatusCode::from_u16(status).unwrap(), &headers)?;
        Some(pause.as_secs())
    }

    #[test]
    fn headers_ask_for_a_pause_once_no_requests_remain() {
        assert_eq!(pause(200, &[("ratelimit", "\"api\";r=3;t=55")]), None);
        assert_eq!(pause(200, &[("ratelimit", "\"api\";r=0;t=55")]), Some(56));
        assert_eq!(pause(200, &[("ratelimit", "\"a\";r=0;t=5, \"b\"; t=9 ; r=0")]), Some(10));
        assert_eq!(
            pause(200, &[("ratelimit", "\"a\";r=0;t=5"), ("ratelimit", "\"b\";r=0;t=7")]),
            Some(8)
        );
        assert_eq!(pause(200, &[("retry-after", "9")]), None);
        assert_eq!(pause(429, &[("retry-after", "9")]), Some(9));
        assert_eq!(pause(503, &[("retry-after", "9")]), Some(9));
        assert_eq!(pause(429, &[("retry-after", "2"), ("ratelimit", "\"api\";r=0;t=5")]), Some(6));
        assert_eq!(pause(429, &[]), Some(1));
        assert_eq!(pause(429, &[("retry-after", "0")]), Some(1));
        assert_eq!(pause(503, &[("retry-after", "0")]), None);
        assert_eq!(pause(503, &[]), None);
    }

    #[test]
    fn garbage_asks_for_no_pause_and_a_huge_one_is_bounded() {
        for text in [
            "",
            ";",
            "r=0;t=5",
            "\"a\";r=;t=",
            "\"a\";r=0",
            "\"a\";r=0;t=-1",
            "\"a\";r=x;t=1",
            "\"a\";rr=0;t=1",
        ] {
            assert_eq!(pause(200, &[("ratelimit", text)]), None, "{text}");
        }
        assert_eq!(pause(200, &[("ratelimit", "\"a\";r=0;t=18446744073709551615")]), Some(3600));
        assert_eq!(pause(429, &[("retry-after", "99999999999999999999")]), Some(1));
    }

    #[test]
    fn pause_holds_for_its_server_and_service_and_is_never_shortened() {
        let headers =
            |seconds: &str| HeaderMap::from_iter([(RETRY_AFTER, seconds.parse().unwrap())]);
        let busy = StatusCode::TOO_MANY_REQUESTS;
        note("test-server", Service::Api, busy, &headers("100"));
        note("test-server", Service::Api, busy, &headers("1"));
        assert!(left("test-server", Service::Api).unwrap() > Duration::from_secs(50));
        assert_eq!(left("test-server", Service::Files), None);
        assert_eq!(left("other-server", Service::Api), None);
    }
}
