//! This process's rank and world size, and their source.
//!
//! Precedence: the arguments, an initialised `torch.distributed` (queried by the Python face), RANK and WORLD_SIZE, Slurm
//! inside a step, else rank 0 of 1. Arguments override silently, since a data-parallel rank may differ from the process's.
//! All other sources that are present must agree: with contradicting ranks, samples would be dealt twice.

use std::fmt;

use crate::error::Error;

/// The source of rank and world size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RankSource {
    /// The caller's arguments.
    Arguments,
    /// An initialised `torch.distributed`.
    TorchDistributed,
    /// RANK and WORLD_SIZE.
    Environment,
    /// SLURM_PROCID and SLURM_STEP_NUM_TASKS.
    Slurm,
    /// No source: rank 0 of 1.
    SingleProcess,
}

impl fmt::Display for RankSource {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Arguments => "arguments",
            Self::TorchDistributed => "torch.distributed",
            Self::Environment => "RANK and WORLD_SIZE",
            Self::Slurm => "SLURM_PROCID and SLURM_STEP_NUM_TASKS",
            Self::SingleProcess => "no launcher",
        })
    }
}

/// A process's rank in its job and on its host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    /// Below `world_size`.
    pub rank: u32,
    /// At least 1.
    pub world_size: u32,
    /// The source of rank and world size.
    pub source: RankSource,
    /// The rank among the ranks on this host.
    pub local_rank: u32,
    /// The number of ranks on this host.
    pub local_world_size: u32,
}

/// Finds this process's rank and world size. `environment` looks up a variable; `arguments` and `distributed` are pairs of
/// rank and world size.
///
/// # Errors
/// [`Error::Config`] when sources disagree or a value is invalid.
pub fn find_placement(
    arguments: Option<(u32, u32)>,
    distributed: Option<(u32, u32)>,
    environment: &dyn Fn(&str) -> Option<String>,
) -> Result<Placement, Error> {
    let launcher = pair(environment, "RANK", "WORLD_SIZE")?;
    let mut slurm = match number(environment, "SLURM_STEP_NUM_TASKS")? {
        Some(tasks) => number(environment, "SLURM_PROCID")?.map(|rank| (rank, tasks)),
        None => None,
    };
    // A Slurm task that starts several ranks (torchrun under srun) describes the launcher, not the ranks.
    if let (Some((_, tasks)), Some((_, ranks))) = (slurm, launcher.or(distributed))
        && tasks < ranks
    {
        slurm = None;
    }
    let present: Vec<(RankSource, (u32, u32))> = [
        (RankSource::TorchDistributed, distributed),
        (RankSource::Environment, launcher),
        (RankSource::Slurm, slurm),
    ]
    .into_iter()
    .filter_map(|(source, found)| found.map(|found| (source, found)))
    .collect();
    let (source, (rank, world_size)) = match (arguments, present.first()) {
        (Some(given), _) => (RankSource::Arguments, given),
        (None, Some(first)) => {
            if let Some(other) = present.iter().find(|other| other.1 != first.1) {
                return Err(Error::Config(format!(
                    "{} says rank {} of {}, but {} says rank {} of {}; give `rank` and `world_size`, or correct the \
                     wrong one",
                    first.0, first.1.0, first.1.1, other.0, other.1.0, other.1.1
                )));
            }
            *first
        }
        (None, None) => (RankSource::SingleProcess, (0, 1)),
    };
    if rank >= world_size {
        return Err(Error::Config(format!(
            "rank {rank} of world size {world_size} (from {source}): a rank is counted from 0 and below the world size"
        )));
    }
    let (local_rank, local_world_size) = find_local_rank(environment)?;
    Ok(Placement { rank, world_size, source, local_rank, local_world_size })
}

/// The rank on this host and the number of ranks on this host; 0 of 1 without a source.
fn find_local_rank(environment: &dyn Fn(&str) -> Option<String>) -> Result<(u32, u32), Error> {
    if let (Some(rank), Some(size)) =
        (number(environment, "LOCAL_RANK")?, number(environment, "LOCAL_WORLD_SIZE")?)
    {
        return below("LOCAL_RANK", rank, "LOCAL_WORLD_SIZE", size);
    }
    if environment("SLURM_STEP_NUM_TASKS").is_some()
        && let Some(rank) = number(environment, "SLURM_LOCALID")?
        && let Some(text) = environment("SLURM_STEP_TASKS_PER_NODE")
    {
        let node = number(environment, "SLURM_NODEID")?.unwrap_or(0);
        let size = tasks_of_node(&text, node).ok_or_else(|| {
            Error::Config(format!(
                "SLURM_STEP_TASKS_PER_NODE = `{text}` has no entry for node {node} (SLURM_NODEID)"
            ))
        })?;
        return below("SLURM_LOCALID", rank, "SLURM_STEP_TASKS_PER_NODE", size);
    }
    Ok((0, 1))
}

fn below(name: &str, rank: u32, size_name: &str, size: u32) -> Result<(u32, u32), Error> {
    if rank < size {
        return Ok((rank, size));
    }
    Err(Error::Config(format!("{name} = {rank} is not below {size_name} = {size}")))
}

/// The tasks of one node in Slurm's list, such as `4(x2),3`: two nodes of four tasks and one of three.
fn tasks_of_node(text: &str, node: u32) -> Option<u32> {
    let mut first = 0u64;
    for part in text.split(',') {
        let (tasks, nodes) = match part.split_once("(x") {
            Some((tasks, nodes)) => (tasks, nodes.strip_suffix(')')?.parse::<u64>().ok()?),
            None => (part, 1),
        };
        first = first.checked_add(nodes)?;
        if u64::from(node) < first {
            return tasks.trim().parse().ok();
        }
    }
    None
}

fn number(environment: &dyn Fn(&str) -> Option<String>, name: &str) -> Result<Option<u32>, Error> {
    let Some(text) = environment(name).filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    text.trim()
        .parse()
        .map(Some)
        .map_err(|_| Error::Config(format!("{name} = `{text}` is not a whole number of 0 or more")))
}

fn pair(
    environment: &dyn Fn(&str) -> Option<String>,
    rank_name: &str,
    size_name: &str,
) -> Result<Option<(u32, u32)>, Error> {
    match (number(environment, rank_name)?, number(environment, size_name)?) {
        (Some(rank), Some(size)) => Ok(Some((rank, size))),
        (None, None) => Ok(None),
        (rank, _) => {
            let (set, missing) =
                if rank.is_some() { (rank_name, size_name) } else { (size_name, rank_name) };
            Err(Error::Config(format!(
                "{set} is set but {missing} is not; set both, or give `rank` and `world_size`"
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(
        arguments: Option<(u32, u32)>,
        distributed: Option<(u32, u32)>,
        variables: &[(&str, &str)],
    ) -> Result<Placement, Error> {
        find_placement(arguments, distributed, &|name| {
            variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    const TORCHRUN: [(&str, &str); 4] =
        [("RANK", "5"), ("WORLD_SIZE", "8"), ("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "4")];

    #[test]
    fn sources_have_a_precedence() {
        let single = find(None, None, &[]).unwrap();
        assert_eq!((single.rank, single.world_size), (0, 1));
        assert_eq!(single.source, RankSource::SingleProcess);
        let torchrun = find(None, None, &TORCHRUN).unwrap();
        assert_eq!((torchrun.rank, torchrun.world_size), (5, 8));
        assert_eq!((torchrun.local_rank, torchrun.local_world_size), (1, 4));
        let torch = find(None, Some((5, 8)), &TORCHRUN).unwrap();
        assert_eq!(torch.source, RankSource::TorchDistributed);
        let given = find(Some((0, 2)), Some((5, 8)), &TORCHRUN).unwrap();
        assert_eq!((given.rank, given.world_size, given.source), (0, 2, RankSource::Arguments));
    }

    #[test]
    fn slurm_is_a_source_inside_a_step_only() {
        let outside = [("SLURM_NTASKS", "4"), ("SLURM_PROCID", "0")];
        assert_eq!(find(None, None, &outside).unwrap().source, RankSource::SingleProcess);
        let inside = [
            ("SLURM_STEP_NUM_TASKS", "7"),
            ("SLURM_PROCID", "6"),
            ("SLURM_LOCALID", "2"),
            ("SLURM_STEP_TASKS_PER_NODE", "2(x2),3"),
            ("SLURM_NODEID", "2"),
        ];
        let found = find(None, None, &inside).unwrap();
        assert_eq!((found.rank, found.world_size, found.source), (6, 7, RankSource::Slurm));
        assert_eq!((found.local_rank, found.local_world_size), (2, 3));
        // torchrun under srun: two tasks, each of which started four ranks.
        let mut nested = TORCHRUN.to_vec();
        nested.extend([("SLURM_STEP_NUM_TASKS", "2"), ("SLURM_PROCID", "1")]);
        assert_eq!(find(None, None, &nested).unwrap().source, RankSource::Environment);
    }

    #[test]
    fn contradictions_are_refused_with_both_values() {
        let error = find(None, Some((1, 8)), &TORCHRUN).unwrap_err().to_string();
        assert!(error.contains("rank 1 of 8") && error.contains("rank 5 of 8"), "{error}");
        let half = find(None, None, &[("RANK", "1")]).unwrap_err().to_string();
        assert!(half.contains("WORLD_SIZE"), "{half}");
        assert!(find(Some((2, 2)), None, &[]).is_err());
        assert!(find(None, None, &[("RANK", "x"), ("WORLD_SIZE", "2")]).is_err());
        let slurm = [
            ("RANK", "0"),
            ("WORLD_SIZE", "2"),
            ("SLURM_STEP_NUM_TASKS", "2"),
            ("SLURM_PROCID", "1"),
        ];
        assert!(find(None, None, &slurm).is_err());
    }
}
