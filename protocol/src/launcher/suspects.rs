//! Variables that look like a rank although no launcher has stated rank and world size.

use super::environment::{Environment, LauncherError};
use super::nodes::list;

/// A variable that looks like a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Suspect {
    /// The variable.
    pub name: String,
    /// Its value.
    pub value: String,
    /// Why it is not used, as a clause about the variable.
    pub why: &'static str,
}

const NO_SIZE: &str = "it comes without a world size";
const NODE: &str = "it is the index of a node, not of a process";

/// Documented variables that do not give a rank and a world size: the name; a size variable, with whose value 1 it is not
/// a suspect; and the reason.
const KNOWN: &[(&str, Option<&str>, &str)] = &[
    // PMIx, as `srun --mpi=pmix` and Open MPI 5 set it.
    ("PMIX_RANK", None, NO_SIZE),
    ("PALS_RANKID", None, NO_SIZE),
    ("MPT_MPI_RANK", None, NO_SIZE),
    (
        "JOB_COMPLETION_INDEX",
        None,
        "it is the index of a pod of a Kubernetes indexed job, and says neither the number of pods nor which process of \
         the pod this is",
    ),
    ("AWS_BATCH_JOB_NODE_INDEX", Some("AWS_BATCH_JOB_NUM_NODES"), NODE),
    ("NODE_RANK", Some("NNODES"), NODE),
    ("GROUP_RANK", Some("GROUP_WORLD_SIZE"), NODE),
];

/// Not a suspect: Slurm also sets this variable in a batch script, which has no ranks.
const HARMLESS: &str = "SLURM_PROCID";

/// The first variable that looks like a rank. Call it if no source states rank and world size.
///
/// # Errors
/// An invalid value.
pub fn find_suspect(environment: &Environment) -> Result<Option<Suspect>, LauncherError> {
    let suspect = |name: &str, why| {
        environment.get(name).map(|value| Suspect { name: name.into(), value: value.into(), why })
    };
    for (name, size, why) in KNOWN {
        if size.and_then(|size| environment.get(size)) == Some("1") {
            continue;
        }
        if let Some(found) = suspect(name, why) {
            return Ok(Some(found));
        }
    }
    if list(environment.get("SM_HOSTS").unwrap_or_default()).len() > 1 {
        return Ok(suspect("SM_CURRENT_HOST", "it is a host with several GPUs, not a process"));
    }
    let hosts = environment.get("TPU_WORKER_HOSTNAMES").map_or(0, |text| list(text).len());
    let is_divided = environment.get("TPU_PROCESS_PORT").is_some();
    if (hosts != 1 || is_divided) && environment.get("TPU_WORKER_ID").is_some() {
        return Ok(suspect(
            "TPU_WORKER_ID",
            "it is the index of a host, and the processes are not listed",
        ));
    }
    let found = environment.iter().find(|(name, value)| {
        let is_known = KNOWN.iter().any(|(known, ..)| known == name) || *name == HARMLESS;
        !is_known
            && is_rank_name(name)
            && value.parse::<u32>().is_ok()
            && !is_one_of_one(environment, name)
    });
    Ok(found.and_then(|(name, _)| suspect(name, NO_SIZE)))
}

/// Whether the name's last word is one that launchers use for a rank.
fn is_rank_name(name: &str) -> bool {
    let last = name.rsplit('_').next().unwrap_or(name);
    matches!(last, "RANK" | "RANKID" | "PROCID" | "LOCALRANKID") || name.ends_with("RANK_ID")
}

/// Whether the related size variable has the value 1.
fn is_one_of_one(environment: &Environment, name: &str) -> bool {
    let stem = name
        .trim_end_matches("RANK_ID")
        .trim_end_matches("RANKID")
        .trim_end_matches("PROCID")
        .trim_end_matches("RANK");
    ["SIZE", "WORLD_SIZE", "COUNT", "NRANKS"]
        .iter()
        .any(|size| environment.get(&format!("{stem}{size}")) == Some("1"))
}

pub(super) fn variables() -> impl Iterator<Item = &'static str> {
    KNOWN.iter().flat_map(|(name, size, _)| [Some(*name), *size]).flatten()
}
