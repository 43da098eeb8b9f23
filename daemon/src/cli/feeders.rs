//! Connects a daemon to the feeders of its streams.

use std::sync::Arc;

use anyhow::Context as _;
use forebay_config::TlsPaths;
use forebay_engine::{Engine, SharedEngine, Stream, most_feeders};
use forebay_feed::client::{ClientOptions, Feeders};
use forebay_feed::discovery::{Sources, VARIABLE};
use forebay_feed::tls::{ClientTls, TlsFiles};

/// The files of a configuration.
pub(super) fn tls_files(paths: &TlsPaths) -> TlsFiles {
    let TlsPaths { ca, cert, key, .. } = paths.clone();
    TlsFiles { ca, cert, key }
}

/// Where the feeders of each stream are; read before rights are dropped.
pub(super) type Plan = Vec<Option<ClientOptions>>;

/// Reads where the streams' feeders are.
pub(super) fn plan(streams: &[Arc<Stream>]) -> anyhow::Result<Plan> {
    let variable = std::env::var(VARIABLE).ok();
    streams.iter().map(|stream| options_of(stream, variable.as_deref())).collect()
}

fn options_of(stream: &Stream, variable: Option<&str>) -> anyhow::Result<Option<ClientOptions>> {
    let config = stream.config();
    let feeders = &config.feeders;
    let sources = Sources::new(&feeders.addresses, feeders.file.clone())
        .and_then(|sources| sources.with_variable(variable))
        .with_context(|| format!("{}", config.location(&["feeders", "addresses"])))?;
    if sources.is_empty() {
        return Ok(None);
    }
    let tls = feeders.tls.as_ref();
    let tls = tls.map(|paths| ClientTls::open(tls_files(paths), paths.name.clone())).transpose()?;
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now = since.map_or(0, |since| since.subsec_nanos());
    Ok(Some(ClientOptions {
        sources,
        spread: feeders.spread as usize,
        most: match variable {
            Some(_) => feeders.spread as usize,
            None => most_feeders(feeders),
        },
        tls,
        allow_plain: feeders.allow_plain,
        daemon: u64::from(now) << 32 | u64::from(std::process::id()),
    }))
}

/// Connects them. Called inside the engine thread's `LocalSet`.
pub(super) fn connect(engine: &SharedEngine, plan: Plan) -> anyhow::Result<()> {
    for (number, options) in plan.into_iter().enumerate() {
        let Some(options) = options else { continue };
        let (stream, waker) = {
            let engine = engine.borrow();
            (Arc::clone(&engine.streams()[number]), engine.supply_waker())
        };
        let feeders = Feeders::start(&stream, options, waker)
            .context("cannot start the thread of the connections to feeders")?;
        Engine::set_supplier(engine, number, Arc::new(feeders));
    }
    Ok(())
}
