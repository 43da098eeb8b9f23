//! The responses by path, and the headers that restrict what a browser does with them.

use std::net::IpAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, HOST, HeaderName};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use super::asking::{Asker, NoAnswer};
use super::hosts::names_this_machine;
use crate::page;
use forebay_observe::DaemonReport;

/// The content type of Prometheus' text format, whatever the scraper accepts: all scrapers read it.
const EXPOSITION: &str = "text/plain; version=0.0.4; charset=utf-8";
const PLAIN: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";
const JAVASCRIPT: &str = "text/javascript; charset=utf-8";

/// The live page and its parts.
const FILES: [(&str, &str, &str); 7] = [
    ("/", "text/html; charset=utf-8", page::LIVE_HTML),
    ("/page.css", "text/css; charset=utf-8", page::CSS),
    ("/metrics.js", JAVASCRIPT, page::METRICS_JS),
    ("/parts.js", JAVASCRIPT, page::PARTS_JS),
    ("/chart.js", JAVASCRIPT, page::CHART_JS),
    ("/page.js", JAVASCRIPT, page::LIVE_JS),
    ("/icon.svg", "image/svg+xml", page::ICON),
];

/// On every response. The page runs its own script and style, and loads, sends and embeds nothing else.
const HEADERS: [(HeaderName, &str); 6] = [
    (
        HeaderName::from_static("content-security-policy"),
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'",
    ),
    (HeaderName::from_static("x-content-type-options"), "nosniff"),
    (HeaderName::from_static("x-frame-options"), "DENY"),
    (HeaderName::from_static("referrer-policy"), "no-referrer"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (CACHE_CONTROL, "no-store"),
];

/// All paths. `bound`: if only loopback may connect, the address that requests may name besides loopback names.
pub(super) fn router(asker: Arc<Asker>, bound: Option<IpAddr>) -> Router {
    let mut router = Router::new()
        .route("/metrics", get(metrics))
        .route("/stats.json", get(stats))
        .route("/history.json", get(history))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz));
    for (path, kind, text) in FILES {
        router = router.route(path, get(move || async move { typed(kind, text) }));
    }
    router
        .fallback(|| async {
            (
                StatusCode::NOT_FOUND,
                "available paths: /, /metrics, /stats.json, /history.json, /healthz and /readyz\n",
            )
        })
        .with_state(asker)
        .layer(from_fn_with_state(bound, refuse_foreign_names))
        .layer(from_fn(add_headers))
}

async fn refuse_foreign_names(
    State(bound): State<Option<IpAddr>>,
    request: Request,
    next: Next,
) -> Response {
    let Some(bound) = bound else { return next.run(request).await };
    // A browser always sends a name.
    let headers = request.headers().get_all(HOST).iter().map(HeaderValue::to_str);
    let named = request.uri().authority().map(|authority| Ok(authority.as_str()));
    let is_own = |name: Result<&str, _>| name.is_ok_and(|name| names_this_machine(name, bound));
    if headers.chain(named).all(is_own) {
        return next.run(request).await;
    }
    let reason = "use localhost or the IP address in the URL; for other host names set listen.metrics_from = \"anywhere\"\n";
    (StatusCode::MISDIRECTED_REQUEST, reason).into_response()
}

async fn add_headers(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    headers.extend(HEADERS.map(|(name, value)| (name, HeaderValue::from_static(value))));
    response
}

fn typed(kind: &'static str, text: impl IntoResponse) -> Response {
    ([(CONTENT_TYPE, kind)], text).into_response()
}

fn unavailable(reason: &dyn std::fmt::Display) -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, typed(PLAIN, format!("{reason}\n"))).into_response()
}

impl IntoResponse for NoAnswer {
    fn into_response(self) -> Response {
        unavailable(&self)
    }
}

async fn metrics(State(asker): State<Arc<Asker>>) -> Result<Response, NoAnswer> {
    let report = asker.report().await?;
    Ok(typed(EXPOSITION, asker.export(&report)))
}

async fn stats(State(asker): State<Arc<Asker>>) -> Result<Response, NoAnswer> {
    Ok(as_json(&*asker.report().await?))
}

/// The history from the second `?since=` on; without it, all of it.
async fn history(State(asker): State<Arc<Asker>>, request: Request) -> Result<Response, NoAnswer> {
    let query = request.uri().query().and_then(|query| query.strip_prefix("since="));
    let since = query.and_then(|since| since.parse().ok()).unwrap_or(0);
    Ok(as_json(&asker.history().await?.since(since)))
}

fn as_json(value: &impl serde::Serialize) -> Response {
    let text = serde_json::to_string(value);
    text.map_or_else(|error| unavailable(&error), |text| typed(JSON, text))
}

async fn healthz(State(asker): State<Arc<Asker>>) -> Result<&'static str, NoAnswer> {
    asker.report().await?;
    Ok("ok\n")
}

async fn readyz(State(asker): State<Arc<Asker>>) -> Result<Response, NoAnswer> {
    let report = asker.report().await?;
    let sentence = held_up(&report);
    Ok(sentence.map_or_else(|| typed(PLAIN, "ok\n"), |sentence| unavailable(&sentence)))
}

/// What makes a client wait for longer than `errors.stall_after`. A trainer that takes no batches is not the daemon's
/// fault.
fn held_up(report: &DaemonReport) -> Option<&str> {
    let mut stalls = report.stalls.iter().filter(|stall| stall.stage != "trainer");
    stalls.next().map(|stall| stall.sentence.as_str())
}
