//! What is said of ranks that differ or do not come.

use std::time::Duration;

use forebay_protocol::identity::Identity;

/// The environment variable with the seconds for which other ranks are waited for.
pub(super) const WAIT_VARIABLE: &str = "FOREBAY_RANKS_WAIT";

const REMEDY: &str = "give every rank the same data, configuration, release and world size, and make their loaders in \
                      the same order; name groups of ranks that are to have streams of their own \
                      (`compare_ranks=\"NAME\"`), or skip the comparison (`compare_ranks=False`)";

/// What differs between members of a job, as the message of an error; `None` where nothing does.
#[must_use]
pub fn describe_differences(members: &[(u32, Identity)]) -> Option<String> {
    let mut keys: Vec<&str> = Vec::new();
    for key in members.iter().flat_map(|(_, identity)| identity.keys()) {
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    let mut found = Vec::new();
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
    Some(format!("the ranks of this job do not share one stream: {}; {REMEDY}", found.join("; ")))
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
