//! Which cores the work threads may use: this rank's share of what the machine grants.

use std::fs;

use crate::config::CpuConfig;

/// This rank among those of the same job on this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LocalRank {
    pub(crate) rank: u32,
    pub(crate) count: u32,
}

impl LocalRank {
    /// The only rank on this host.
    pub(crate) const ALONE: Self = Self { rank: 0, count: 1 };

    /// From LOCAL_RANK and LOCAL_WORLD_SIZE, else inside a Slurm step from SLURM_LOCALID and the step's tasks on this
    /// node, else alone.
    pub(crate) fn from_environment() -> Self {
        let number = |name: &str| std::env::var(name).ok()?.parse::<u32>().ok();
        let torchrun = number("LOCAL_RANK").zip(number("LOCAL_WORLD_SIZE"));
        let slurm = || {
            number("SLURM_STEP_NUM_TASKS")?;
            // "2(x3),1": so many tasks on so many nodes; without the node's own count the first one is near enough.
            let tasks = std::env::var("SLURM_STEP_TASKS_PER_NODE").ok()?;
            let count = tasks.split(['(', ',']).next()?.parse().ok()?;
            number("SLURM_LOCALID").zip(Some(count))
        };
        match torchrun.or_else(slurm) {
            Some((rank, count)) if rank < count => Self { rank, count },
            _ => Self::ALONE,
        }
    }
}

/// What the machine grants and this rank takes of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CoreShare {
    /// The cores to run on, ascending.
    pub(crate) cores: Vec<u32>,
    /// Work threads of an `auto` stage: the cores, or fewer under a CPU quota.
    pub(crate) threads: u32,
    /// Whether the threads are to be kept on these cores because there are others.
    pub(crate) narrowed: bool,
}

/// The share by configuration, affinity mask, CPU quota and local ranks.
pub(crate) fn core_share(config: &CpuConfig, local: LocalRank) -> CoreShare {
    share_of(&allowed_cores(), online_cores(), cpu_quota(), config.cores.as_deref(), local)
}

fn share_of(
    allowed: &[u32],
    online: usize,
    quota: Option<f64>,
    configured: Option<&[u32]>,
    local: LocalRank,
) -> CoreShare {
    let cores = match configured {
        Some(configured) => {
            configured.iter().copied().filter(|core| allowed.contains(core)).collect()
        }
        // A mask narrower than the machine says what this rank's share is already.
        None if local.count > 1 && allowed.len() == online => chunk(allowed, local),
        None => allowed.to_vec(),
    };
    let cores: Vec<u32> = if cores.is_empty() { allowed.to_vec() } else { cores };
    let granted = u32::try_from(cores.len()).unwrap_or(u32::MAX);
    let limit = quota.map_or(granted, |cpus| whole_cpus(cpus / f64::from(local.count)));
    CoreShare { threads: granted.min(limit).max(1), narrowed: cores.len() < allowed.len(), cores }
}

/// Part `rank` of `count` parts that differ by at most one; a core of its own as long as there are enough.
fn chunk(cores: &[u32], local: LocalRank) -> Vec<u32> {
    let (rank, count) = (local.rank as usize, local.count as usize);
    if cores.len() < count {
        return cores.get(rank % cores.len().max(1)).copied().into_iter().collect();
    }
    let bound = |part: usize| part * cores.len() / count;
    cores[bound(rank)..bound(rank + 1)].to_vec()
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a small positive number"
)]
fn whole_cpus(cpus: f64) -> u32 {
    cpus.ceil().clamp(1.0, 65_536.0) as u32
}

/// The cores of this process's affinity mask.
fn allowed_cores() -> Vec<u32> {
    let Ok(set) = rustix::thread::sched_getaffinity(None) else {
        return vec![0];
    };
    (0..rustix::thread::CpuSet::MAX_CPU)
        .filter(|core| set.is_set(*core))
        .filter_map(|core| u32::try_from(core).ok())
        .collect()
}

/// The number of cores that are switched on.
fn online_cores() -> usize {
    fs::read_to_string("/sys/devices/system/cpu/online").map_or(0, |text| {
        text.trim()
            .split(',')
            .filter_map(|range| {
                let (first, last) = range.split_once('-').unwrap_or((range, range));
                Some(last.parse::<usize>().ok()? + 1 - first.parse::<usize>().ok()?)
            })
            .sum()
    })
}

/// The CPUs that this process's cgroup or any above it may use, if there is a limit.
fn cpu_quota() -> Option<f64> {
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = own.lines().find_map(|line| line.strip_prefix("0::"))?.trim_start_matches('/');
    let root = std::path::Path::new("/sys/fs/cgroup");
    root.join(path)
        .ancestors()
        .take_while(|folder| folder.starts_with(root))
        .filter_map(|folder| {
            let text = fs::read_to_string(folder.join("cpu.max")).ok()?;
            let (quota, period) = text.trim().split_once(' ')?;
            Some(quota.parse::<f64>().ok()? / period.parse::<f64>().ok()?)
        })
        .reduce(f64::min)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_ranks_get_eight_disjoint_shares() {
        let allowed: Vec<u32> = (0..20).collect();
        let mut seen = Vec::new();
        for rank in 0..8 {
            let share = share_of(&allowed, 20, None, None, LocalRank { rank, count: 8 });
            assert!(share.narrowed && (2..=3).contains(&share.threads), "{share:?}");
            seen.extend(share.cores);
        }
        assert_eq!(seen, allowed);
    }

    #[test]
    fn a_narrow_mask_is_the_share_already() {
        let share = share_of(&[4, 5], 64, None, None, LocalRank { rank: 2, count: 8 });
        assert_eq!(share, CoreShare { cores: vec![4, 5], threads: 2, narrowed: false });
    }

    #[test]
    fn a_quota_limits_threads_and_configured_cores_are_kept_within_the_mask() {
        let share = share_of(&[0, 1, 2, 3], 4, Some(1.5), None, LocalRank::ALONE);
        assert_eq!(share.threads, 2);
        let share = share_of(&[0, 1, 2, 3], 4, None, Some(&[2, 3, 9]), LocalRank::ALONE);
        assert_eq!(share, CoreShare { cores: vec![2, 3], threads: 2, narrowed: true });
    }

    #[test]
    fn more_ranks_than_cores_share_them() {
        let share = share_of(&[0, 1], 2, None, None, LocalRank { rank: 3, count: 4 });
        assert_eq!(share.cores, [1]);
    }
}
