//! One stream per job: the ranks of a job compare what they must share when their loaders are made.
//!
//! Without it, ranks with different files or configurations train on samples twice or never. Each rank states
//! its stream's [`Identity`] with the world size; a difference is refused on every rank that sees it, with the keys, values
//! and ranks. Loaders of one rank alone are not compared. There are three ways:
//!
//! - the key-value store of `torch.distributed`, by the Python face; with the message that [`describe_differences`] makes;
//! - a folder that all ranks reach ([`folder`]), where FOREBAY_RANKS_FOLDER names one;
//! - what the launcher expects, in FOREBAY_EXPECT: the text that `forebay check` prints, or some of its keys.
//!
//! No way is a collective: a rank that makes no loader is waited for a limited time ([`wait_limit`]), then named in a
//! warning. It is compared when it comes: it sees what the others have stated.

mod folder;
mod messages;

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use forebay_protocol::frames::Attached;
use forebay_protocol::identity::Identity;
use forebay_protocol::launcher::Environment;

use self::folder::FOLDER_VARIABLE;
use self::messages::WAIT_VARIABLE;
pub use self::messages::{describe_differences, describe_missing};
use crate::error::Error;
use crate::link::Link;
use crate::rank::Placement;

/// The environment variable with what a launcher expects of every rank.
pub const EXPECT_VARIABLE: &str = "FOREBAY_EXPECT";
const DEFAULT_WAIT: Duration = Duration::from_secs(60);

/// What a rank states of its stream.
#[must_use]
pub fn identity(terms: &Attached, world_size: u32) -> Identity {
    terms.identity.clone().with("world_size", world_size)
}

/// The number of samples, of all datasets of a stream; an epoch may draw more or fewer.
#[must_use]
pub fn sample_count(terms: &Attached) -> u64 {
    let count = terms.identity.get("samples").and_then(|count| count.parse().ok());
    count.unwrap_or(terms.samples_per_epoch)
}

/// Compares this rank with what is expected and, unless `group` is `None`, with the ranks of its group in the folder.
///
/// # Errors
/// [`Error::Config`] with each difference.
pub(crate) fn check(
    terms: &Attached,
    placement: &Placement,
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
    let meeting = folder::Meeting::open(path, environment, group, number)?;
    let missing = meeting.compare(placement, &own, limit, link)?;
    if !missing.is_empty() {
        crate::supervisor::write_to_stderr(describe_missing(&missing, limit).as_bytes());
    }
    Ok(())
}

/// Checks what is expected of every stream and of this one: `STREAM:KEY=VALUE,...`, several separated by `;`.
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

/// For how long other ranks are waited for: FOREBAY_RANKS_WAIT, else a minute, and never longer than the time-out.
///
/// # Errors
/// [`Error::Config`] when the variable is no number of seconds.
pub fn wait_limit(environment: &Environment, timeout: Duration) -> Result<Duration, Error> {
    let Some(text) = environment.get(WAIT_VARIABLE) else { return Ok(DEFAULT_WAIT.min(timeout)) };
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.map(|limit| limit.min(timeout)).ok_or_else(|| {
        Error::Config(format!("{WAIT_VARIABLE} = `{text}` is not a number of seconds"))
    })
}

/// The number of this process's next loader in a group, from 0; each call adds one. Ranks make their loaders in the
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
