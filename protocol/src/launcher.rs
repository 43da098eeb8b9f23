//! Rank and world size of this process, as launchers state them in environment variables.
//!
//! One table for client and daemon: the client takes its rank from it, the daemon its share of the host's cores. Several
//! launchers may be visible at once, such as torchrun under srun; the table's order is their precedence, from the one
//! nearest to the process outward. Choosing between them is the client's task (`forebay_client::rank`).
//!
//! A variable that looks like a rank but gives no world size is not a source: [`find_suspect`] names it, so that a process
//! of an unknown launcher is not taken for rank 0 of 1.

mod nodes;
mod suspects;

use std::collections::BTreeMap;

pub use suspects::{Suspect, find_suspect};

/// A rank, and the number of ranks.
pub type RankOf = (u32, u32);

/// The environment variables of a process, those that are valid Unicode.
#[derive(Debug, Clone, Default)]
pub struct Environment(BTreeMap<String, String>);

impl Environment {
    /// The variables of this process.
    #[must_use]
    pub fn of_process() -> Self {
        let pairs = std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        Self(pairs.collect())
    }

    /// A variable's value without surrounding space; `None` when it is not set or empty.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(|value| value.trim()).filter(|value| !value.is_empty())
    }

    /// A variable's value as a whole number.
    ///
    /// # Errors
    /// [`LauncherError::NotANumber`].
    pub fn number(&self, name: &'static str) -> Result<Option<u32>, LauncherError> {
        let Some(text) = self.get(name) else { return Ok(None) };
        let number = text.parse();
        number.map(Some).map_err(|_| LauncherError::NotANumber { name, value: text.to_owned() })
    }

    fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.keys().filter_map(|name| Some((name.as_str(), self.get(name)?)))
    }
}

impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for Environment {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(variables: I) -> Self {
        Self(variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

/// Why a launcher's variables give no rank.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LauncherError {
    /// Not a number.
    #[error("{name} = `{value}` is not a whole number of 0 or more")]
    NotANumber {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
    },
    /// One of two variables that belong together is missing.
    #[error("{set} is set but {missing} is not; set both, or give `rank` and `world_size`")]
    Half {
        /// The variable that is set.
        set: &'static str,
        /// The other one.
        missing: &'static str,
    },
    /// A rank that is too large.
    #[error("{name} = {rank} is not below {size_name} = {size}")]
    NotBelow {
        /// The rank's variable.
        name: &'static str,
        /// The rank.
        rank: u32,
        /// The size's variable.
        size_name: &'static str,
        /// The size.
        size: u32,
    },
    /// A list that lacks this node.
    #[error("{name} = `{value}` has no entry for {node}")]
    NotListed {
        /// The list's variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// The node, and the variable that names it.
        node: String,
    },
}

/// Where a rank and the number of ranks come from.
#[derive(Debug, Clone, Copy)]
enum Source {
    /// Two variables. Of one alone the rule is [`Half`].
    Variables(&'static str, &'static str, Half),
    /// A rule of the launcher's own, and the variables that it reads.
    Rule(fn(&Environment) -> Result<Option<RankOf>, LauncherError>, &'static [&'static str]),
}

/// What one variable without the other means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Half {
    /// An error.
    Refused,
    /// No source; a rank without a size is a suspect then.
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

fn below(
    name: &'static str,
    rank: u32,
    size_name: &'static str,
    size: u32,
) -> Result<RankOf, LauncherError> {
    if rank < size {
        return Ok((rank, size));
    }
    Err(LauncherError::NotBelow { name, rank, size_name, size })
}

/// The launchers by precedence, each under the name that messages and `rank_source` use.
const GLOBAL: &[(&str, Source)] = &[
    // torchrun, Accelerate, DeepSpeed, Ray Train, Kubeflow's PyTorchJob, and by hand.
    ("RANK and WORLD_SIZE", Source::Variables("RANK", "WORLD_SIZE", Half::Refused)),
    // Horovod's own launcher.
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

/// What the environment states: each launcher's rank and world size by precedence, with the launcher's variables.
///
/// # Errors
/// A value that cannot be read, of a launcher that precedes all readable ones.
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
/// A value that cannot be read.
pub fn find_local_rank(environment: &Environment) -> Result<RankOf, LauncherError> {
    for source in LOCAL {
        if let Some(pair) = source.find(environment)? {
            return Ok(pair);
        }
    }
    Ok((0, 1))
}

/// All variables that have a meaning here, for programs that start others without a launcher.
pub fn variables() -> impl Iterator<Item = &'static str> {
    let global = GLOBAL.iter().flat_map(|(_, source)| source.names());
    global.chain(LOCAL.iter().flat_map(|source| source.names())).chain(suspects::variables())
}

#[cfg(test)]
mod tests;
