//! Launchers that list nodes, or that do not state the local rank by two variables.

use super::environment::{Environment, LauncherError, RankOf, below};

/// The variables of [`tpu_pod`].
pub(super) const TPU_VARIABLES: &[&str] = &[
    "TPU_WORKER_ID",
    "TPU_WORKER_HOSTNAMES",
    "TPU_VISIBLE_CHIPS",
    "TPU_PROCESS_PORT",
    "MEGASCALE_SLICE_ID",
    "MEGASCALE_NUM_SLICES",
];

/// SageMaker's script mode without a launcher: one process per host. Hosts with several GPUs may run several processes,
/// which this rule cannot detect.
pub(super) fn sagemaker(environment: &Environment) -> Result<Option<RankOf>, LauncherError> {
    let Some((host, hosts)) = environment.get("SM_CURRENT_HOST").zip(environment.get("SM_HOSTS"))
    else {
        return Ok(None);
    };
    let hosts_text = hosts;
    let hosts = list(hosts);
    if hosts.len() < 2 || environment.number("SM_NUM_GPUS")?.unwrap_or(0) > 1 {
        return Ok(None);
    }
    let Some(rank) = hosts.iter().position(|one| *one == host) else {
        return Err(LauncherError::NotListed {
            name: "SM_HOSTS",
            value: hosts_text.to_owned(),
            node: format!("`{host}` (SM_CURRENT_HOST)"),
        });
    };
    Ok(u32::try_from(rank).ok().zip(u32::try_from(hosts.len()).ok()))
}

/// A TPU pod slice with one process on each host, or several slices of such hosts.
pub(super) fn tpu_pod(environment: &Environment) -> Result<Option<RankOf>, LauncherError> {
    // With several processes per host, the worker's number is not the process's.
    let is_divided = ["TPU_VISIBLE_CHIPS", "TPU_PROCESS_PORT"]
        .iter()
        .any(|name| environment.get(name).is_some());
    let hosts = environment.get("TPU_WORKER_HOSTNAMES").map_or(0, |text| list(text).len());
    let (Some(worker), false, Ok(hosts @ 1..)) =
        (environment.number("TPU_WORKER_ID")?, is_divided, u32::try_from(hosts))
    else {
        return Ok(None);
    };
    below("TPU_WORKER_ID", worker, "the number of TPU_WORKER_HOSTNAMES", hosts)?;
    let slices = environment.number("MEGASCALE_NUM_SLICES")?.unwrap_or(1).max(1);
    let slice = environment.number("MEGASCALE_SLICE_ID")?.unwrap_or(0);
    below("MEGASCALE_SLICE_ID", slice, "MEGASCALE_NUM_SLICES", slices)?;
    let size = slices.saturating_mul(hosts);
    // With a single host these variables are not a source: another launcher's may state the rank.
    Ok((size > 1).then(|| (slice.saturating_mul(hosts).saturating_add(worker), size)))
}

/// Flux does not state the number of tasks on this node: uses the mean over nodes, rounded up.
pub(super) fn flux_local(environment: &Environment) -> Result<Option<RankOf>, LauncherError> {
    let local = environment.number("FLUX_TASK_LOCAL_ID")?;
    let tasks = environment.number("FLUX_JOB_SIZE")?;
    let nodes = environment.number("FLUX_JOB_NNODES")?;
    let (Some(local), Some(tasks), Some(nodes @ 1..)) = (local, tasks, nodes) else {
        return Ok(None);
    };
    Ok(Some((local, tasks.div_ceil(nodes).max(local.saturating_add(1)))))
}

/// A Slurm step lists the tasks of all its nodes.
pub(super) fn slurm_local(environment: &Environment) -> Result<Option<RankOf>, LauncherError> {
    let rank = environment.number("SLURM_LOCALID")?;
    let tasks = environment.get("SLURM_STEP_TASKS_PER_NODE");
    let (Some(_), Some(rank), Some(text)) = (environment.get("SLURM_STEP_NUM_TASKS"), rank, tasks)
    else {
        return Ok(None);
    };
    let node = environment.number("SLURM_NODEID")?.unwrap_or(0);
    let size = tasks_of_node(text, node).ok_or_else(|| LauncherError::NotListed {
        name: "SLURM_STEP_TASKS_PER_NODE",
        value: text.to_owned(),
        node: format!("node {node} (SLURM_NODEID)"),
    })?;
    below("SLURM_LOCALID", rank, "SLURM_STEP_TASKS_PER_NODE", size).map(Some)
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

/// The entries of `a,b` or of a JSON list of plain names.
pub(super) fn list(text: &str) -> Vec<&str> {
    let inner = text.trim_start_matches('[').trim_end_matches(']');
    let entries = inner.split(',').map(|entry| entry.trim().trim_matches('"'));
    entries.filter(|entry| !entry.is_empty()).collect()
}
