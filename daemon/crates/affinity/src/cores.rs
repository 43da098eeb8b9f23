//! The cores that the work threads may use: this rank's share of the granted cores.

use std::fs;
use std::path::Path;

use super::cgroups::CpuGroup;
use super::gpus::{CudaVariables, GpuNode, gpu_node};
use super::number_list::read_list;
use forebay_config::CpuConfig;
use forebay_protocol::launcher::{Environment, find_local_rank};

/// This rank's position among the ranks of the same job on this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalRank {
    /// The client's local rank.
    pub rank: u32,
    /// Number of local ranks.
    pub count: u32,
}

impl LocalRank {
    /// The only rank on this host.
    pub const ALONE: Self = Self { rank: 0, count: 1 };

    /// From the launcher's variables ([`forebay_protocol::launcher`]), otherwise alone.
    pub fn from_environment() -> Self {
        match find_local_rank(&Environment::of_process()) {
            Ok((rank, count)) => Self { rank, count },
            // The client refuses such variables and reports their values.
            Err(_) => Self::ALONE,
        }
    }
}

/// The granted cores and this rank's share of them.
#[derive(Debug, Clone, PartialEq)]
pub struct CoreShare {
    /// The cores to run on, in ascending order.
    pub cores: Vec<u32>,
    /// Configured cores that this process may not use.
    pub refused: Vec<u32>,
    /// Initial number of work threads of an `auto` stage: the number of cores, or fewer under a CPU quota.
    pub threads: u32,
    /// CPU seconds per second granted by the cores and the quota.
    pub granted_cores: f64,
    /// Cores of the machine that could be granted in addition: one core is left for each trainer, and other local ranks
    /// keep their shares. `None` if the kernel does not report it.
    pub spare: Option<u32>,
    /// Whether the threads must be restricted to these cores because the process may use others.
    pub narrowed: bool,
    /// The cores of the memory node for rings, if one is chosen: the node of the rank's GPU, otherwise of its share.
    pub ring_cores: Vec<u32>,
}

/// The CPU resources that this process may use, independent of the configuration.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GrantedCpu {
    /// Number of cores in its affinity mask.
    pub allowed_cores: u32,
    /// CPU seconds per second by the tightest quota; without a quota the number of cores.
    pub quota_cores: f64,
}

/// Queries the kernel.
pub fn granted_cpu() -> GrantedCpu {
    let allowed_cores = u32::try_from(allowed_cores().len()).unwrap_or(u32::MAX);
    let quota = CpuGroup::own().and_then(|group| group.quota()).map(|(_, cores)| cores);
    let quota_cores = quota.unwrap_or(f64::INFINITY).min(allowed_cores.into());
    GrantedCpu { allowed_cores, quota_cores }
}

/// The machine's resources, by source.
#[derive(Debug, Clone)]
struct Machine {
    /// Cores in this process's affinity mask.
    allowed: Vec<u32>,
    /// Number of online cores; 0 if the kernel does not report it.
    online: usize,
    /// Number of cores in its cpuset (otherwise the machine's): a narrower mask was set for this process deliberately.
    granted: usize,
    /// CPUs by the tightest quota.
    quota: Option<f64>,
    /// Cores by memory node; empty if the kernel does not report them.
    nodes: Vec<Vec<u32>>,
    /// The memory node of the rank's GPU, if known.
    gpu: Option<GpuNode>,
}

/// The share, from configuration, affinity mask, CPU quota, memory nodes, GPUs and local ranks.
pub fn core_share(config: &CpuConfig, local: LocalRank) -> CoreShare {
    let variable = |name| std::env::var(name).ok();
    let (visible, order) = (variable("CUDA_VISIBLE_DEVICES"), variable("CUDA_DEVICE_ORDER"));
    let cuda = CudaVariables { visible: visible.as_deref(), order: order.as_deref() };
    let machine = Machine {
        allowed: allowed_cores(),
        online: online_cores(),
        granted: cpuset_cores().unwrap_or_else(online_cores),
        quota: CpuGroup::own().and_then(|group| group.quota()).map(|(_, cpus)| cpus),
        nodes: memory_nodes(),
        gpu: gpu_node(Path::new("/"), cuda, (local.rank, local.count)),
    };
    share_of(&machine, config.cores.as_deref(), local)
}

fn share_of(machine: &Machine, configured: Option<&[u32]>, local: LocalRank) -> CoreShare {
    let allowed = &machine.allowed;
    let allowed_at = |gpu: &GpuNode| -> Vec<u32> {
        gpu.cores.iter().copied().filter(|core| allowed.contains(core)).collect()
    };
    let asked = configured.unwrap_or_default().iter().copied();
    let refused = asked.filter(|core| !allowed.contains(core)).collect();
    // A mask narrower than the granted cores is this rank's share already.
    let is_shared = configured.is_none() && local.count > 1 && allowed.len() == machine.granted;
    let cores = match configured {
        Some(configured) => {
            configured.iter().copied().filter(|core| allowed.contains(core)).collect()
        }
        None if is_shared => match &machine.gpu {
            Some(node) if !allowed_at(node).is_empty() => {
                part(&allowed_at(node), node.rank as usize, node.count as usize)
            }
            _ => part_by_node(allowed, &machine.nodes, local),
        },
        None => allowed.clone(),
    };
    let cores: Vec<u32> = if cores.is_empty() { allowed.clone() } else { cores };
    let narrowed = cores.len() < allowed.len();
    let trainers = local.count as usize;
    let of_daemons = match configured {
        Some(_) => cores.len(),
        None if is_shared => allowed.len(),
        // Each rank has a mask of this width.
        None => trainers * cores.len(),
    };
    let spare = machine.online.saturating_sub(of_daemons + trainers);
    let beside_gpu = machine.gpu.as_ref().map(allowed_at).filter(|cores| !cores.is_empty());
    let count = u32::try_from(cores.len()).unwrap_or(u32::MAX);
    let quota = machine.quota.map(|cpus| cpus / f64::from(local.count));
    let granted_cores = quota.map_or(f64::from(count), |cpus| cpus.min(f64::from(count)));
    CoreShare {
        threads: whole_cpus(granted_cores).min(count).max(1),
        granted_cores,
        spare: (machine.online > 0).then(|| u32::try_from(spare).unwrap_or(u32::MAX)),
        narrowed,
        ring_cores: beside_gpu.unwrap_or(if narrowed { cores.clone() } else { Vec::new() }),
        cores,
        refused,
    }
}

/// This rank's part, within one memory node if possible: each node gets ranks in proportion to its cores.
fn part_by_node(allowed: &[u32], nodes: &[Vec<u32>], local: LocalRank) -> Vec<u32> {
    let of_node = |node: &Vec<u32>| -> Vec<u32> {
        node.iter().copied().filter(|core| allowed.contains(core)).collect()
    };
    let nodes: Vec<Vec<u32>> =
        nodes.iter().map(of_node).filter(|cores| !cores.is_empty()).collect();
    let known: usize = nodes.iter().map(Vec::len).sum();
    let count = local.count as usize;
    if nodes.len() < 2 || known != allowed.len() || count < nodes.len() || count > known {
        return part(allowed, local.rank as usize, count);
    }
    // Number of ranks up to the end of each node, rounded: each node gets at least one rank and at most as many as it
    // has cores.
    let (mut first_rank, mut cores_before) = (0, 0);
    for (number, node) in nodes.iter().enumerate() {
        cores_before += node.len();
        let nodes_after = nodes.len() - number - 1;
        let proportional = (cores_before * count + known / 2) / known;
        let end =
            proportional.max(first_rank + 1).min(count - nodes_after).min(first_rank + node.len());
        let end = if nodes_after == 0 { count } else { end };
        if end - first_rank > node.len() {
            return part(allowed, local.rank as usize, count);
        }
        if (local.rank as usize) < end {
            return part(node, local.rank as usize - first_rank, end - first_rank);
        }
        first_rank = end;
    }
    part(allowed, local.rank as usize, count)
}

/// Part `rank` of `count` parts whose sizes differ by at most one; parts do not overlap if there are enough cores.
fn part(cores: &[u32], rank: usize, count: usize) -> Vec<u32> {
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
pub(crate) fn allowed_cores() -> Vec<u32> {
    cores_of(None).unwrap_or_else(|| vec![0])
}

/// The cores of a process's affinity mask; `None`: this process.
pub(crate) fn cores_of(process: Option<u32>) -> Option<Vec<u32>> {
    let pid = match process {
        Some(pid) => Some(rustix::thread::Pid::from_raw(i32::try_from(pid).ok()?)?),
        None => None,
    };
    let set = rustix::thread::sched_getaffinity(pid).ok()?;
    let cores = (0..rustix::thread::CpuSet::MAX_CPU).filter(|core| set.is_set(*core));
    Some(cores.filter_map(|core| u32::try_from(core).ok()).collect())
}

/// Number of online cores.
fn online_cores() -> usize {
    read_list(Path::new("/sys/devices/system/cpu/online")).map_or(0, |cores| cores.len())
}

/// Number of cores in this process's cpuset, version 1 or 2.
fn cpuset_cores() -> Option<usize> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = |wanted: &dyn Fn(&str) -> bool| {
        groups.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let (names, path) = (parts.next()?, parts.next()?);
            wanted(names).then(|| path.trim_start_matches('/').to_owned())
        })
    };
    let legacy = path(&|names| names.split(',').any(|name| name == "cpuset"))
        .map(|path| Path::new("/sys/fs/cgroup/cpuset").join(path).join("cpuset.effective_cpus"));
    let unified = path(&str::is_empty)
        .map(|path| Path::new("/sys/fs/cgroup").join(path).join("cpuset.cpus.effective"));
    [legacy, unified].into_iter().flatten().find_map(|file| read_list(&file)).map(|list| list.len())
}

/// The cores of each memory node.
fn memory_nodes() -> Vec<Vec<u32>> {
    let folder = Path::new("/sys/devices/system/node");
    let numbers = read_list(&folder.join("online")).unwrap_or_default();
    let nodes =
        numbers.iter().filter_map(|node| read_list(&folder.join(format!("node{node}/cpulist"))));
    nodes.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(cores: u32) -> Machine {
        let allowed: Vec<u32> = (0..cores).collect();
        let (online, granted) = (allowed.len(), allowed.len());
        Machine { online, granted, allowed, quota: None, nodes: Vec::new(), gpu: None }
    }

    /// The shares of eight ranks.
    fn eight_shares(machine: &Machine) -> Vec<CoreShare> {
        (0..8).map(|rank| share_of(machine, None, LocalRank { rank, count: 8 })).collect()
    }

    fn all_cores(shares: &[CoreShare]) -> Vec<u32> {
        let mut cores: Vec<u32> = shares.iter().flat_map(|share| share.cores.clone()).collect();
        cores.sort_unstable();
        cores
    }

    #[test]
    fn eight_ranks_get_disjoint_shares() {
        let shares = eight_shares(&machine(20));
        assert!(shares.iter().all(|share| share.narrowed && (2..=3).contains(&share.threads)));
        assert_eq!(all_cores(&shares), machine(20).allowed);
    }

    #[test]
    fn rank_stays_within_a_memory_node() {
        // Numbered as on x86: each node has the first threads of its cores and their siblings.
        let nodes = vec![
            (0..16).chain(32..48).collect::<Vec<u32>>(),
            (16..32).chain(48..64).collect::<Vec<u32>>(),
        ];
        let numa = Machine { nodes: nodes.clone(), ..machine(64) };
        let shares = eight_shares(&numa);
        assert_eq!(all_cores(&shares), numa.allowed);
        for share in &shares {
            let within = |node: &Vec<u32>| share.cores.iter().all(|core| node.contains(core));
            assert!(share.threads == 8 && nodes.iter().any(within), "{share:?}");
        }
        // Nodes of 12 and 4 cores; the mask excludes one of each: six ranks and two.
        let mut uneven =
            Machine { nodes: vec![(0..12).collect(), (12..16).collect()], ..machine(16) };
        uneven.allowed.retain(|core| ![3, 15].contains(core));
        uneven.granted = 14;
        let shares = eight_shares(&uneven);
        assert_eq!(all_cores(&shares), uneven.allowed);
        let crossing = shares.iter().filter(|share| {
            share.cores.iter().any(|core| *core < 12) && share.cores.iter().any(|core| *core >= 12)
        });
        assert_eq!(crossing.count(), 0, "{shares:?}");
    }

    #[test]
    fn rank_is_on_the_memory_node_of_its_gpu() {
        let cores: Vec<u32> = (8..16).collect();
        let gpu = |rank, count| Some(GpuNode { cores: cores.clone(), rank, count });
        let nodes = vec![(0..8).collect(), cores.clone()];
        let at =
            |rank, count| Machine { nodes: nodes.clone(), gpu: gpu(rank, count), ..machine(16) };
        // The first of two ranks, which would otherwise get the first node.
        let share = share_of(&at(0, 1), None, LocalRank { rank: 0, count: 2 });
        assert_eq!((&share.cores, &share.ring_cores, share.narrowed), (&cores, &cores, true));
        let share = share_of(&at(1, 2), None, LocalRank { rank: 3, count: 4 });
        assert_eq!((share.cores, share.ring_cores), ((12..16).collect(), cores.clone()));
        // A single rank may use all cores, and its ring is on the GPU's node.
        let share = share_of(&at(0, 1), None, LocalRank::ALONE);
        assert_eq!((share.cores.len(), &share.ring_cores, share.narrowed), (16, &cores, false));
        // Cores chosen explicitly are kept.
        let share = share_of(&at(0, 1), Some(&[1, 2]), LocalRank { rank: 0, count: 2 });
        assert_eq!((share.cores, share.ring_cores), (vec![1, 2], cores.clone()));
        let bound = Machine { allowed: vec![2, 3], ..at(0, 1) };
        let share = share_of(&bound, None, LocalRank { rank: 0, count: 2 });
        assert_eq!((share.cores, share.ring_cores), (vec![2, 3], vec![]));
    }

    #[test]
    fn narrow_mask_is_the_share_already() {
        let bound = Machine { allowed: vec![4, 5], granted: 64, ..machine(2) };
        let share = share_of(&bound, None, LocalRank { rank: 2, count: 8 });
        assert_eq!((share.cores, share.threads, share.narrowed), (vec![4, 5], 2, false));
    }

    #[test]
    fn spare_cores_exclude_ranks_and_trainers() {
        let eight = |machine: &Machine| {
            let spare = |rank| share_of(machine, None, LocalRank { rank, count: 8 }).spare;
            (0..8).map(spare).collect::<Vec<_>>()
        };
        // All cores of the machine belong to the daemon, or to the daemons of all ranks together.
        assert_eq!(share_of(&machine(2), None, LocalRank::ALONE).spare, Some(0));
        assert_eq!(eight(&machine(64)), [Some(0); 8]);
        // One of two: the trainer needs the other.
        assert_eq!(share_of(&machine(2), Some(&[0]), LocalRank::ALONE).spare, Some(0));
        assert_eq!(share_of(&machine(64), Some(&[0, 1]), LocalRank::ALONE).spare, Some(61));
        // A container with 16 of the machine's 64 cores, and ranks with two cores each.
        let container = Machine { online: 64, ..machine(16) };
        assert_eq!(eight(&container), [Some(64 - 16 - 8); 8]);
        let bound = Machine { allowed: vec![4, 5], ..machine(64) };
        assert_eq!(eight(&bound), [Some(64 - 16 - 8); 8]);
        let unknown = Machine { online: 0, ..machine(2) };
        assert_eq!(share_of(&unknown, None, LocalRank::ALONE).spare, None);
    }

    #[test]
    fn mask_as_wide_as_the_cpuset_is_divided() {
        // A container has 16 of the machine's 64 cores; none of its ranks is bound.
        let container = Machine { allowed: (8..24).collect(), granted: 16, ..machine(16) };
        let shares = eight_shares(&container);
        assert_eq!(all_cores(&shares), container.allowed);
        assert!(shares.iter().all(|share| share.threads == 2));
    }

    #[test]
    fn quota_limits_threads_and_is_shared_by_the_ranks() {
        let limited = Machine { quota: Some(1.5), ..machine(4) };
        let share = share_of(&limited, None, LocalRank::ALONE);
        assert_eq!((share.threads, share.granted_cores), (2, 1.5));
        let eight = Machine { quota: Some(4.0), ..machine(32) };
        let shares = eight_shares(&eight);
        assert_eq!(all_cores(&shares), eight.allowed);
        assert!(shares.iter().all(|share| share.threads == 1 && share.granted_cores == 0.5));
    }

    #[test]
    fn configured_cores_are_kept_within_the_mask() {
        let share = share_of(&machine(4), Some(&[2, 3, 9]), LocalRank::ALONE);
        assert_eq!((share.cores, share.threads, share.narrowed), (vec![2, 3], 2, true));
        assert_eq!(share.refused, [9]);
    }

    #[test]
    fn more_ranks_than_cores_share_them() {
        let share = share_of(&machine(2), None, LocalRank { rank: 3, count: 4 });
        assert_eq!(share.cores, [1]);
    }
}
