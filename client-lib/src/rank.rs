//! This process's rank and world size, and their source.
//!
//! Precedence: the arguments; an initialised `torch.distributed`, then Ray Train (both queried by the Python face); the
//! variables of launchers in the order of [`forebay_protocol::launcher`], RANK and WORLD_SIZE first; else rank 0 of 1.
//!
//! Arguments override silently, because a data-parallel rank may differ from the process's. All other sources that are
//! present must agree, otherwise samples would be used twice. The exception is an outer launcher with a smaller world,
//! such as srun that starts torchrun: it numbers the processes that started the ranks. (With torchrun the worlds may
//! also have the same size.) Without any source, a variable that looks like a rank is refused: every process would be
//! rank 0 of 1 and train on all the data.

use std::fmt;

use forebay_protocol::launcher::{
    Environment, LauncherError, Suspect, find_local_rank, find_ranks, find_suspect,
};

use crate::error::Error;

/// The source of rank and world size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RankSource {
    /// The caller's arguments.
    Arguments,
    /// An initialised `torch.distributed`.
    TorchDistributed,
    /// A worker of Ray Train.
    RayTrain,
    /// A launcher; the text names its environment variables.
    Launcher(&'static str),
    /// No source: rank 0 of 1.
    SingleProcess,
}

impl fmt::Display for RankSource {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Arguments => "arguments",
            Self::TorchDistributed => "torch.distributed",
            Self::RayTrain => "Ray Train",
            Self::Launcher(variables) => variables,
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

/// Finds this process's rank and world size. `arguments` is the caller's pair of rank and world size, `frameworks` are
/// the pairs of initialised frameworks by precedence.
///
/// # Errors
/// [`Error::Config`] if sources disagree, a value is invalid, or a variable looks like a rank but is not a source.
pub fn find_placement(
    arguments: Option<(u32, u32)>,
    frameworks: &[(RankSource, (u32, u32))],
    environment: &Environment,
) -> Result<Placement, Error> {
    let (source, (rank, world_size)) = match arguments {
        Some(given) => (RankSource::Arguments, given),
        None => choose(frameworks, environment)?,
    };
    if rank >= world_size {
        return Err(Error::Config(format!(
            "rank {rank} of world size {world_size} (from {source}): a rank is counted from 0 and below the world size"
        )));
    }
    let (local_rank, local_world_size) = find_local_rank(environment).map_err(refused)?;
    Ok(Placement { rank, world_size, source, local_rank, local_world_size })
}

/// The variables that torchrun sets.
const RANK_VARIABLES: &str = "RANK and WORLD_SIZE";

/// The source with the highest precedence; no other source may contradict it.
fn choose(
    frameworks: &[(RankSource, (u32, u32))],
    environment: &Environment,
) -> Result<(RankSource, (u32, u32)), Error> {
    let launchers = match find_ranks(environment) {
        Ok(found) => found,
        // A framework has read its launcher's variables itself.
        Err(_) if !frameworks.is_empty() => Vec::new(),
        Err(error) => return Err(refused(error)),
    };
    let launchers =
        launchers.into_iter().map(|(variables, pair)| (RankSource::Launcher(variables), pair));
    let mut present = frameworks.iter().copied().chain(launchers);
    let Some(first) = present.next() else {
        return match find_suspect(environment).map_err(refused)? {
            Some(suspect) => Err(refuse_suspect(&suspect)),
            None => Ok((RankSource::SingleProcess, (0, 1))),
        };
    };
    // torchrun numbers its nodes independently: with one process per node, its ranks differ from its launcher's.
    let is_torchrun = environment.get("TORCHELASTIC_RUN_ID").is_some();
    let contradicts = |other: &(RankSource, (u32, u32))| {
        let may_differ = is_torchrun
            && matches!(other.0, RankSource::Launcher(variables) if variables != RANK_VARIABLES);
        let is_outer = other.1.1 < first.1.1 || (may_differ && other.1.1 == first.1.1);
        other.1 != first.1 && !is_outer
    };
    if let Some(other) = present.find(contradicts) {
        return Err(Error::Config(format!(
            "{} says rank {} of {}, but {} says rank {} of {}; give `rank` and `world_size`, or correct the wrong one",
            first.0, first.1.0, first.1.1, other.0, other.1.0, other.1.1
        )));
    }
    Ok(first)
}

fn refused(error: LauncherError) -> Error {
    Error::Config(error.to_string())
}

fn refuse_suspect(suspect: &Suspect) -> Error {
    let Suspect { name, value, why } = suspect;
    Error::Config(format!(
        "{name} = `{value}` looks like the rank of one process among several, but {why}, so that this process would train \
         on all the data as rank 0 of 1: give `rank` and `world_size` (0 and 1 where this process trains alone), set RANK \
         and WORLD_SIZE, or initialise torch.distributed before the loader is made"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(
        arguments: Option<(u32, u32)>,
        distributed: Option<(u32, u32)>,
        variables: &[(&str, &str)],
    ) -> Result<Placement, Error> {
        let frameworks: Vec<_> =
            distributed.map(|pair| (RankSource::TorchDistributed, pair)).into_iter().collect();
        find_placement(arguments, &frameworks, &variables.iter().copied().collect())
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
    fn slurm_is_a_source_only_inside_a_step() {
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
        assert_eq!(
            (found.rank, found.world_size, found.source),
            (6, 7, RankSource::Launcher("SLURM_PROCID and SLURM_STEP_NUM_TASKS"))
        );
        assert_eq!((found.local_rank, found.local_world_size), (2, 3));
        // torchrun under srun: two tasks, each of which started four ranks.
        let mut nested = TORCHRUN.to_vec();
        nested.extend([("SLURM_STEP_NUM_TASKS", "2"), ("SLURM_PROCID", "1")]);
        assert_eq!(
            find(None, None, &nested).unwrap().source,
            RankSource::Launcher("RANK and WORLD_SIZE")
        );
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

    #[test]
    fn torchrun_with_one_process_per_node_numbers_independently() {
        let mut nodes = vec![
            ("RANK", "0"),
            ("WORLD_SIZE", "2"),
            ("SLURM_STEP_NUM_TASKS", "2"),
            ("SLURM_PROCID", "1"),
            ("TORCHELASTIC_RUN_ID", "job"),
        ];
        let found = find(None, Some((0, 2)), &nodes).unwrap();
        assert_eq!((found.rank, found.world_size), (0, 2));
        assert!(find(None, Some((1, 2)), &nodes).is_err(), "torchrun's own numbers are believed");
        nodes[2] = ("SLURM_STEP_NUM_TASKS", "4");
        assert!(find(None, None, &nodes).is_err(), "more processes were started than there are");
    }

    #[test]
    fn outer_launcher_with_a_smaller_world_is_ignored() {
        let mut nested = TORCHRUN.to_vec();
        nested.extend([("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2")]);
        let found = find(None, None, &nested).unwrap();
        assert_eq!((found.rank, found.world_size), (5, 8));
        // A container that sets RANK=0 and WORLD_SIZE=1 for every process of mpirun.
        let inner = [
            ("RANK", "0"),
            ("WORLD_SIZE", "1"),
            ("OMPI_COMM_WORLD_RANK", "1"),
            ("OMPI_COMM_WORLD_SIZE", "2"),
        ];
        let error = find(None, None, &inner).unwrap_err().to_string();
        assert!(error.contains("RANK and WORLD_SIZE says rank 0 of 1"), "{error}");
        assert!(error.contains("OMPI_COMM_WORLD_SIZE says rank 1 of 2"), "{error}");
    }

    #[test]
    fn variable_that_looks_like_a_rank_is_refused_without_a_source() {
        let suspect = [("PMIX_RANK", "3")];
        let error = find(None, None, &suspect).unwrap_err().to_string();
        for part in ["PMIX_RANK = `3`", "without a world size", "`rank` and `world_size`"] {
            assert!(error.contains(part), "{error}");
        }
        assert_eq!(find(Some((3, 8)), None, &suspect).unwrap().rank, 3);
        assert_eq!(find(None, Some((3, 8)), &suspect).unwrap().rank, 3);
        let mut known = TORCHRUN.to_vec();
        known.extend(suspect);
        assert_eq!(find(None, None, &known).unwrap().rank, 5);
    }

    #[test]
    fn arguments_need_no_readable_launcher() {
        assert_eq!(find(Some((1, 2)), None, &[("RANK", "x")]).unwrap().rank, 1);
    }
}
