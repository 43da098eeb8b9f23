//! One stream per job: the ranks of a job compare what they must share when they create their loaders.
//!
//! Without this, ranks with different files or configurations train on samples twice or never. Each rank states its
//! stream's [`Identity`] with the world size and the state from which it begins, or that it has none. Every rank that
//! sees a difference refuses it, with the keys, values and ranks. Loaders of a single rank are not compared. There are
//! three ways:
//!
//! - the key-value store of `torch.distributed`, by the Python client, with the errors of [`find_differences`];
//! - a folder that all ranks can access ([`folder`]), if FOREBAY_RANKS_FOLDER names one;
//! - the launcher's expectation, in FOREBAY_EXPECT: the text that `forebay check` prints, or some of its keys.
//!
//! None of them is a collective: a rank that creates no loader is awaited for a limited time ([`wait_limit`]), then
//! named in a warning. It is compared when it comes: it sees what the others have stated.

mod folder;
mod messages;

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use forebay_protocol::frames::Attached;
use forebay_protocol::identity::{Identity, SELECTED};
use forebay_protocol::ids::Position;
use forebay_protocol::launcher::Environment;

use self::folder::FOLDER_VARIABLE;
use self::messages::WAIT_VARIABLE;
pub use self::messages::{STATE_KEY, describe_missing, find_differences};
use crate::error::Error;
use crate::link::Link;
use crate::rank::Placement;
use crate::state::State;

/// The environment variable with the launcher's expectation of every rank.
pub const EXPECT_VARIABLE: &str = "FOREBAY_EXPECT";
const DEFAULT_WAIT: Duration = Duration::from_secs(60);

/// The identity that a rank states.
#[must_use]
pub fn identity(terms: &Attached, world_size: u32) -> Identity {
    terms.identity.clone().with("world_size", world_size)
}

/// The state from which a rank begins, as a value of [`STATE_KEY`]: its position as text and a digest of all of it.
#[must_use]
pub fn describe_state(state: Option<&State>) -> String {
    state.map_or_else(
        || "none".to_owned(),
        |state| {
            let Position { epoch, samples } = state.position;
            format!("epoch {epoch} sample {samples} ({})", folder::digest(&state.to_json()))
        },
    )
}

/// The number of samples in all datasets of a stream, which ids are below; an epoch may draw more or fewer.
#[must_use]
pub fn sample_count(terms: &Attached) -> u64 {
    let count = terms.identity.get("samples").and_then(|count| count.parse().ok());
    count.unwrap_or(terms.samples_per_epoch)
}

/// The number of samples that are used: all, unless `dataset.where` or `dataset.split` selects some.
#[must_use]
pub fn selected_count(terms: &Attached) -> u64 {
    let count = terms.identity.get(SELECTED).and_then(|count| count.parse().ok());
    count.unwrap_or_else(|| sample_count(terms))
}

/// Compares this rank with the launcher's expectation and, unless `group` is `None`, with the ranks of its group in the
/// folder.
///
/// # Errors
/// [`Error::Config`] with each difference; [`Error::StateMismatch`] if only the states differ.
pub(crate) fn check(
    terms: &Attached,
    placement: &Placement,
    state: Option<&State>,
    group: Option<&str>,
    environment: &Environment,
    link: &mut Link,
) -> Result<(), Error> {
    if placement.world_size == 1 {
        return Ok(());
    }
    let own = identity(terms, placement.world_size);
    if let Some(expected) = environment.get(EXPECT_VARIABLE) {
        check_expected(&own, expected, &terms.stream, placement.rank)?;
    }
    let (Some(group), Some(path)) = (group, environment.get(FOLDER_VARIABLE)) else {
        return Ok(());
    };
    let limit = wait_limit(environment, link.timeout())?;
    let number = next_loader(group);
    let own = own.with(STATE_KEY, describe_state(state));
    let files = folder::IdentityFiles::open(path, environment, group, number)?;
    let missing = files.compare(placement, &own, limit, link)?;
    if !missing.is_empty() {
        crate::supervisor::write_to_stderr(describe_missing(&missing, limit).as_bytes());
    }
    Ok(())
}

/// Checks the expectations of all streams and of this one: `STREAM:KEY=VALUE,...`, several separated by `;`.
fn check_expected(own: &Identity, expected: &str, stream: &str, rank: u32) -> Result<(), Error> {
    for part in expected.split(';') {
        let named = part.split_once(':').filter(|(name, _)| !name.contains('='));
        match named {
            Some((name, part)) if name.trim() == stream => check_part(own, part, rank)?,
            Some(_) => {}
            None => check_part(own, part, rank)?,
        }
    }
    Ok(())
}

fn check_part(own: &Identity, expected: &str, rank: u32) -> Result<(), Error> {
    let expected: Identity = expected
        .parse()
        .map_err(|error| Error::Config(format!("{EXPECT_VARIABLE} is invalid: {error}")))?;
    let differing: Vec<String> = expected
        .keys()
        .filter(|key| own.get(key) != expected.get(key))
        .map(|key| {
            let value = |identity: &Identity| identity.get(key).unwrap_or("absent").to_owned();
            format!("{key} is {} and {} is expected", value(own), value(&expected))
        })
        .collect();
    if differing.is_empty() {
        return Ok(());
    }
    Err(Error::Config(format!(
        "rank {rank} has another stream than {EXPECT_VARIABLE} says: {}; give every rank the same data and configuration, \
         or set the variable to what `forebay check` prints",
        differing.join("; ")
    )))
}

/// How long to wait for other ranks: FOREBAY_RANKS_WAIT, by default a minute, but not longer than the time-out.
///
/// # Errors
/// [`Error::Config`] if the variable is not a number of seconds.
pub fn wait_limit(environment: &Environment, timeout: Duration) -> Result<Duration, Error> {
    let Some(text) = environment.get(WAIT_VARIABLE) else { return Ok(DEFAULT_WAIT.min(timeout)) };
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.map(|limit| limit.min(timeout)).ok_or_else(|| {
        Error::Config(format!("{WAIT_VARIABLE} = `{text}` is not a number of seconds"))
    })
}

/// The number of this process's next loader in a group, from 0; each call adds one. Ranks create their loaders in the
/// same order, so that equal numbers are compared.
pub fn next_loader(group: &str) -> u64 {
    static LOADERS: Mutex<BTreeMap<String, u64>> = Mutex::new(BTreeMap::new());
    let mut loaders = LOADERS.lock().unwrap_or_else(PoisonError::into_inner);
    let next = loaders.entry(group.to_owned()).or_insert(0);
    let number = *next;
    *next += 1;
    number
}

#[cfg(test)]
mod tests;
