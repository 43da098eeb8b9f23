//! Batches for commands that inspect samples.

use anyhow::Context as _;
use forebay_client::{Batch, Loader, Target};
use forebay_config::{Config, Override};
use forebay_protocol::frames::ConfigSource;

/// The keys of batches by length.
const BY_LENGTH: [(&str, &str); 6] = [
    ("batch", "budget"),
    ("batch", "length"),
    ("batch", "multiple_of"),
    ("batch", "max_rows"),
    ("batch", "too_long"),
    ("order", "pool"),
];

/// Starts a private daemon with the configuration, whose first batch has up to `count` samples. `more`: further keys,
/// with values as JSON; they take precedence over the overrides. Fields that a GPU would finish are as stored in the
/// ring.
///
/// # Errors
/// The errors that a trainer would get.
pub(super) fn attach(
    config: &Config,
    overrides: &[Override],
    count: u32,
    more: &[(String, String)],
) -> anyhow::Result<Loader> {
    let path = std::path::absolute(&config.source)?;
    let program = std::env::current_exe().context("where this program lies")?;
    let mut builder =
        Loader::builder(Target::Config(ConfigSource::File(path.display().to_string())))
            .rank(0, 1)
            .program(program)
            .unfinished(true);
    for (key, json) in overrides.iter().filter_map(Override::as_json) {
        builder = builder.override_key(key, json);
    }
    for (key, json) in more {
        builder = builder.override_key(key.clone(), json.clone());
    }
    // The samples are wanted, not batches by length.
    for (table, key) in BY_LENGTH {
        let is_of_shapes = key == "pool" && config.batch.buckets.is_some();
        if config.is_given(&[table, key]) && !is_of_shapes {
            builder = builder.override_key(format!("{table}.{key}"), "null");
        }
    }
    let builder = builder.override_key("batch.size", count.to_string());
    // One rank has all samples in either case, and batches of one shape have no `"short"`.
    let last = if config.batch.buckets.is_some() { "\"drop\"" } else { "\"short\"" };
    Ok(builder.override_key("batch.last", last).attach()?)
}

/// Takes the first batch.
///
/// # Errors
/// The stream's errors, or it has no samples.
pub(super) fn first_batch(loader: &mut Loader) -> anyhow::Result<Batch> {
    loader.next_batch()?.context("the stream has no samples")
}

/// The samples' ids, in the order of the rows.
pub(super) fn ids(batch: &Batch) -> anyhow::Result<Vec<u64>> {
    let ids = batch.require("index")?.as_slice::<i64>()?;
    Ok(ids.iter().map(|id| u64::try_from(*id).unwrap_or(0)).collect())
}
