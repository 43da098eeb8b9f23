//! Replaces `feeders` in a build without `feed`.

use std::sync::Arc;

use anyhow::bail;
use forebay_engine::{SharedEngine, Stream};

/// Nothing.
pub(super) type Plan = ();

/// Refuses streams that have feeders.
pub(super) fn plan(streams: &[Arc<Stream>]) -> anyhow::Result<Plan> {
    for stream in streams {
        let feeders = &stream.config().feeders;
        if !feeders.addresses.is_empty() || feeders.file.is_some() {
            bail!(
                "{}: this program is built without `feed`; install the package `forebay`, which has it",
                stream.config().location(&["feeders"])
            );
        }
    }
    Ok(())
}

/// Does nothing.
#[expect(clippy::unnecessary_wraps, reason = "as with `feed`")]
pub(super) fn connect(_engine: &SharedEngine, (): Plan) -> anyhow::Result<()> {
    Ok(())
}
