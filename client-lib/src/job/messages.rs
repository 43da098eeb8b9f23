//! Messages about ranks that differ or are missing.

use std::time::Duration;

use forebay_protocol::identity::Identity;

use crate::error::Error;

/// The key under which a rank states the state from which it begins.
pub const STATE_KEY: &str = "state";

/// The environment variable with the number of seconds to wait for other ranks.
pub(super) const WAIT_VARIABLE: &str = "FOREBAY_RANKS_WAIT";

const REMEDY: &str = "give every rank the same data, configuration, release and world size, and make their loaders in \
                      the same order; name groups of ranks that are to have streams of their own \
                      (`compare_ranks=\"NAME\"`), or skip the comparison (`compare_ranks=False`)";

const STATE_REMEDY: &str =
    "load the same checkpoint on every rank, or none on any (nothing has changed)";

/// The differences between members of a job: [`Error::StateMismatch`] if only their states differ, otherwise
/// [`Error::Config`]; `None` if nothing differs.
#[must_use]
pub fn find_differences(members: &[(u32, Identity)]) -> Option<Error> {
    let mut keys: Vec<&str> = Vec::new();
    for key in members.iter().flat_map(|(_, identity)| identity.keys()) {
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    let mut found = Vec::new();
    let mut is_stream = false;
    for key in keys {
        let mut ranks_of: Vec<(&str, Vec<u32>)> = Vec::new();
        for (rank, identity) in members {
            let value = identity.get(key).unwrap_or("absent");
            match ranks_of.iter_mut().find(|(known, _)| *known == value) {
                Some((_, ranks)) if ranks.contains(rank) => {}
                Some((_, ranks)) => ranks.push(*rank),
                None => ranks_of.push((value, vec![*rank])),
            }
        }
        if ranks_of.len() > 1 {
            is_stream |= key != STATE_KEY;
            let values: Vec<String> = ranks_of
                .iter()
                .map(|(value, ranks)| format!("{value} on {}", name_ranks(ranks)))
                .collect();
            found.push(format!("{key} is {}", values.join(" and ")));
        }
    }
    if found.is_empty() {
        return None;
    }
    let found = found.join("; ");
    Some(if is_stream {
        Error::Config(format!("the ranks of this job do not share one stream: {found}; {REMEDY}"))
    } else {
        Error::StateMismatch(format!(
            "the ranks were given different states: {found}; {STATE_REMEDY}"
        ))
    })
}

/// The warning for ranks that stated nothing.
#[must_use]
pub fn describe_missing(missing: &[u32], limit: Duration) -> String {
    format!(
        "forebay: {} did not make this loader within {} s, so that the streams of the others alone were compared; a loader \
         of one rank takes `rank=0, world_size=1`, and {WAIT_VARIABLE} sets the time\n",
        name_ranks(missing),
        limit.as_secs_f64()
    )
}

fn name_ranks(ranks: &[u32]) -> String {
    const SHOWN: usize = 8;
    let shown: Vec<String> = ranks.iter().take(SHOWN).map(u32::to_string).collect();
    match (ranks.len(), &shown[..]) {
        (1, [one]) => format!("rank {one}"),
        (count, _) if count > SHOWN => {
            format!("ranks {} and {} more", shown.join(", "), count - SHOWN)
        }
        (_, [first @ .., last]) => format!("ranks {} and {last}", first.join(", ")),
        (_, []) => "no rank".to_owned(),
    }
}
