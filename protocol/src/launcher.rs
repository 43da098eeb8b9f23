//! Rank and world size of this process, as launchers state them in environment variables.
//!
//! One table for client and daemon: the client takes its rank from it, the daemon its share of the host's cores.
//! Several launchers may be visible at once, such as torchrun under srun; the table's order is their precedence, from
//! the one nearest to the process outward. The client chooses between them (`forebay_client::rank`).
//!
//! A variable that looks like a rank but has no world size is not a source: [`find_suspect`] names it, so that a
//! process of an unknown launcher is not treated as rank 0 of 1.

mod environment;
mod nodes;
mod suspects;

use self::environment::below;
pub use self::environment::{Environment, LauncherError, RankOf};
pub use self::suspects::{Suspect, find_suspect};

/// The source of a rank and of the number of ranks.
#[derive(Debug, Clone, Copy)]
enum Source {
    /// Two variables. [`Half`] applies if only one is set.
    Variables(&'static str, &'static str, Half),
    /// A launcher-specific rule, and the variables that it reads.
    Rule(fn(&Environment) -> Result<Option<RankOf>, LauncherError>, &'static [&'static str]),
}

/// The meaning of one variable without the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Half {
    /// An error.
    Refused,
    /// Not a source; a rank without a size is then a suspect.
    Ignored,
}

impl Source {
    fn find(self, environment: &Environment) -> Result<Option<RankOf>, LauncherError> {
        let (rank_name, size_name, half) = match self {
            Self::Variables(rank, size, half) => (rank, size, half),
            Self::Rule(find, _) => return find(environment),
        };
        match (environment.number(rank_name)?, environment.number(size_name)?) {
            (Some(rank), Some(size)) => below(rank_name, rank, size_name, size).map(Some),
            (Some(_), None) if half == Half::Refused => {
                Err(LauncherError::Half { set: rank_name, missing: size_name })
            }
            (None, Some(_)) if half == Half::Refused => {
                Err(LauncherError::Half { set: size_name, missing: rank_name })
            }
            _ => Ok(None),
        }
    }

    fn names(self) -> Vec<&'static str> {
        match self {
            Self::Variables(rank, size, _) => vec![rank, size],
            Self::Rule(_, names) => names.to_vec(),
        }
    }
}

/// The launchers by precedence, each with the name used in messages and `rank_source`.
const GLOBAL: &[(&str, Source)] = &[
    // torchrun, Accelerate, DeepSpeed, Ray Train, Kubeflow's PyTorchJob, and by hand.
    ("RANK and WORLD_SIZE", Source::Variables("RANK", "WORLD_SIZE", Half::Refused)),
    // Horovod's launcher.
    ("HOROVOD_RANK and HOROVOD_SIZE", plain("HOROVOD_RANK", "HOROVOD_SIZE")),
    // Open MPI, also as SageMaker's and Kubeflow's MPI jobs start it.
    (
        "OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE",
        plain("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ),
    // MVAPICH2.
    (
        "MV2_COMM_WORLD_RANK and MV2_COMM_WORLD_SIZE",
        plain("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ),
    // jsrun of IBM Spectrum LSF.
    (
        "JSM_NAMESPACE_RANK and JSM_NAMESPACE_SIZE",
        plain("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"),
    ),
    // MPICH and Intel MPI (Hydra), Cray PALS with PMI, srun --mpi=pmi2.
    ("PMI_RANK and PMI_SIZE", plain("PMI_RANK", "PMI_SIZE")),
    ("FLUX_TASK_RANK and FLUX_JOB_SIZE", plain("FLUX_TASK_RANK", "FLUX_JOB_SIZE")),
    // Only inside a step: a batch script has SLURM_PROCID = 0 whatever the job's tasks are.
    ("SLURM_PROCID and SLURM_STEP_NUM_TASKS", plain("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")),
    (
        "SM_CURRENT_HOST and SM_HOSTS",
        Source::Rule(nodes::sagemaker, &["SM_CURRENT_HOST", "SM_HOSTS", "SM_NUM_GPUS"]),
    ),
    ("TPU_WORKER_ID and TPU_WORKER_HOSTNAMES", Source::Rule(nodes::tpu_pod, nodes::TPU_VARIABLES)),
];

/// Sources of the rank on this host, by precedence.
const LOCAL: &[Source] = &[
    plain("LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    plain("HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
    plain("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    plain("MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
    plain("JSM_NAMESPACE_LOCAL_RANK", "JSM_NAMESPACE_LOCAL_SIZE"),
    plain("PMI_LOCAL_RANK", "PMI_LOCAL_SIZE"),
    plain("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    plain("PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE"),
    Source::Rule(nodes::flux_local, &["FLUX_TASK_LOCAL_ID", "FLUX_JOB_SIZE", "FLUX_JOB_NNODES"]),
    Source::Rule(
        nodes::slurm_local,
        &["SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE", "SLURM_NODEID"],
    ),
];

const fn plain(rank: &'static str, size: &'static str) -> Source {
    Source::Variables(rank, size, Half::Ignored)
}

/// Each launcher's rank and world size by precedence, with the launcher's variables.
///
/// # Errors
/// An invalid value of a launcher that precedes all valid ones.
pub fn find_ranks(environment: &Environment) -> Result<Vec<(&'static str, RankOf)>, LauncherError> {
    let mut found = Vec::new();
    for (label, source) in GLOBAL {
        match source.find(environment) {
            Ok(Some(pair)) => found.push((*label, pair)),
            Ok(None) => {}
            Err(error) if found.is_empty() => return Err(error),
            // A nearer launcher has stated a rank.
            Err(_) => {}
        }
    }
    Ok(found)
}

/// The rank on this host and the number of ranks on this host; 0 of 1 without a source.
///
/// # Errors
/// An invalid value.
pub fn find_local_rank(environment: &Environment) -> Result<RankOf, LauncherError> {
    for source in LOCAL {
        if let Some(pair) = source.find(environment)? {
            return Ok(pair);
        }
    }
    Ok((0, 1))
}

/// All variables that this module reads, for programs that start others without a launcher.
pub fn variables() -> impl Iterator<Item = &'static str> {
    let global = GLOBAL.iter().flat_map(|(_, source)| source.names());
    global.chain(LOCAL.iter().flat_map(|source| source.names())).chain(suspects::variables())
}

#[cfg(test)]
mod tests;
