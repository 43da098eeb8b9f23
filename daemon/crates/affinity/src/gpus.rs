//! Finds the memory node of each local rank's GPU, from the environment and the kernel.
//!
//! NVIDIA's driver lists its GPUs by PCI address in `/proc/driver/nvidia/gpus`, the kernel lists their nodes in
//! `/sys/bus/pci/devices`. Rank *n* uses the *n*-th device in `CUDA_VISIBLE_DEVICES`, or the only one. CUDA numbers
//! devices by address if all are of one model or if `CUDA_DEVICE_ORDER` requests it; in other cases, and for parts of a
//! device (MIG), the node is unknown.

use std::fs;
use std::path::Path;

use super::number_list::read_list;

/// The memory node of a rank's GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GpuNode {
    /// The node's cores.
    pub cores: Vec<u32>,
    /// This rank's index among the ranks whose GPUs are on this node.
    pub rank: u32,
    /// Number of these ranks.
    pub count: u32,
}

/// A trainer's environment variables about devices.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CudaVariables<'a> {
    /// `CUDA_VISIBLE_DEVICES`.
    pub visible: Option<&'a str>,
    /// `CUDA_DEVICE_ORDER`.
    pub order: Option<&'a str>,
}

struct Gpu {
    uuid: String,
    model: String,
    node: Option<u32>,
}

/// The memory node of the GPU of a rank among `count` ranks on this host; `root` is `/`. `None`: it is unknown, or the
/// machine has only one node.
pub(crate) fn gpu_node(
    root: &Path,
    variables: CudaVariables<'_>,
    (rank, count): (u32, u32),
) -> Option<GpuNode> {
    let nodes = root.join("sys/devices/system/node");
    if read_list(&nodes.join("online"))?.len() < 2 {
        return None;
    }
    let gpus = gpus(root);
    let by_address = variables.order == Some("PCI_BUS_ID")
        || gpus.windows(2).all(|pair| pair[0].model == pair[1].model);
    let visible = match variables.visible {
        None if by_address => gpus.iter().collect(),
        None => return None,
        Some(list) => named(list, &gpus, by_address)?,
    };
    let (rank, count) = (rank as usize, count as usize);
    let (ranks, own): (Vec<&Gpu>, usize) = match visible.as_slice() {
        all if all.len() >= count && rank < count => (all[..count].to_vec(), rank),
        // The launcher shows each rank only its own GPU. If there are as many GPUs as ranks, each rank uses one of
        // them.
        [own] if gpus.len() == count => {
            (gpus.iter().collect(), gpus.iter().position(|gpu| std::ptr::eq(gpu, *own))?)
        }
        _ => return None,
    };
    let node = ranks[own].node?;
    let there = |ranks: &[&Gpu]| {
        let count = ranks.iter().filter(|gpu| gpu.node == Some(node)).count();
        u32::try_from(count).unwrap_or(u32::MAX)
    };
    let cores = read_list(&nodes.join(format!("node{node}/cpulist")))?;
    Some(GpuNode { cores, rank: there(&ranks[..own]), count: there(&ranks) })
}

/// All GPUs of the driver, sorted by address.
fn gpus(root: &Path) -> Vec<Gpu> {
    let entries = fs::read_dir(root.join("proc/driver/nvidia/gpus")).into_iter().flatten();
    let mut addresses: Vec<String> =
        entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    addresses.sort();
    let gpu = |address: String| {
        let file = root.join("proc/driver/nvidia/gpus").join(&address).join("information");
        let text = fs::read_to_string(file).unwrap_or_default();
        let value = |key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
            line.unwrap_or_default().trim().to_owned()
        };
        let node = root.join("sys/bus/pci/devices").join(&address).join("numa_node");
        // −1 means that there is no node.
        let node = fs::read_to_string(node).ok().and_then(|text| text.trim().parse().ok());
        Gpu { uuid: value("GPU UUID"), model: value("Model"), node }
    };
    addresses.into_iter().map(gpu).collect()
}

/// The devices of a list of numbers and UUIDs or their prefixes. `None`: one of them is unknown.
fn named<'a>(list: &str, gpus: &'a [Gpu], by_address: bool) -> Option<Vec<&'a Gpu>> {
    let device = |name: &str| match name.parse::<usize>() {
        Ok(number) => gpus.get(number).filter(|_| by_address),
        Err(_) if name.starts_with("GPU-") => {
            let mut found = gpus.iter().filter(|gpu| gpu.uuid.starts_with(name));
            found.next().filter(|_| found.next().is_none())
        }
        Err(_) => None,
    };
    list.split(',').map(|name| device(name.trim())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine with eight GPUs, the first four on node 1: the order of addresses differs from the order of nodes.
    fn machine(models: [&str; 8], nodes: &[(u32, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let write = |path: String, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let online: Vec<String> = nodes.iter().map(|(node, _)| node.to_string()).collect();
        write("sys/devices/system/node/online".to_owned(), &format!("{}\n", online.join(",")));
        for (node, cores) in nodes {
            write(format!("sys/devices/system/node/node{node}/cpulist"), &format!("{cores}\n"));
        }
        for (number, model) in models.iter().enumerate() {
            let address = format!("0000:{:02x}:00.0", 0x1b + 0x10 * number);
            let text = format!(
                "Model: \t\t {model}\nIRQ:   \t\t {}\nGPU UUID: \t GPU-{number}{number}{number}f-8a\nBus Location: \t {address}\n",
                100 + number
            );
            write(format!("proc/driver/nvidia/gpus/{address}/information"), &text);
            let node = if number < 4 { "1" } else { "0" };
            write(format!("sys/bus/pci/devices/{address}/numa_node"), &format!("{node}\n"));
        }
        root
    }

    const TWO_NODES: &[(u32, &str)] = &[(0, "0-3,8-11"), (1, "4-7,12-15")];
    const SAME: [&str; 8] = ["NVIDIA H200"; 8];

    fn found(
        root: &tempfile::TempDir,
        visible: Option<&str>,
        rank_of: (u32, u32),
    ) -> Option<(u32, u32, u32)> {
        let variables = CudaVariables { visible, order: None };
        let node = gpu_node(root.path(), variables, rank_of)?;
        Some((node.cores[0], node.rank, node.count))
    }

    #[test]
    fn each_rank_is_on_the_node_of_its_gpu() {
        let root = machine(SAME, TWO_NODES);
        let all: Vec<_> = (0..8).map(|rank| found(&root, None, (rank, 8)).unwrap()).collect();
        let at = |core: u32| (0..4).map(move |rank| (core, rank, 4));
        assert_eq!(all, at(4).chain(at(0)).collect::<Vec<_>>());
        // Some of them, in another order.
        assert_eq!(found(&root, Some("5,0, 6"), (0, 3)), Some((0, 0, 2)));
        assert_eq!(found(&root, Some("5,0, 6"), (1, 3)), Some((4, 0, 1)));
        assert_eq!(found(&root, Some("5,0, 6"), (2, 3)), Some((0, 1, 2)));
        assert_eq!(found(&root, Some("GPU-555,GPU-000f-8a"), (1, 2)), Some((4, 0, 1)));
        // A single rank uses its first device.
        assert_eq!(found(&root, None, (0, 1)), Some((4, 0, 1)));
        assert_eq!(found(&root, Some("7"), (0, 1)), Some((0, 0, 1)));
        let node = gpu_node(root.path(), CudaVariables::default(), (0, 1)).unwrap();
        assert_eq!(node.cores, [4, 5, 6, 7, 12, 13, 14, 15]);
    }

    #[test]
    fn launcher_may_show_each_rank_only_its_own_gpu() {
        let root = machine(SAME, TWO_NODES);
        assert_eq!(found(&root, Some("6"), (6, 8)), Some((0, 2, 4)));
        assert_eq!(found(&root, Some("GPU-111f-8a"), (0, 8)), Some((4, 1, 4)));
        assert_eq!(found(&root, Some("6"), (1, 3)), None, "the others' are not known");
    }

    #[test]
    fn ambiguous_device_is_unknown() {
        let root = machine(SAME, TWO_NODES);
        for unknown in ["", "-1", "8", "MIG-1f", "NoDevFiles", "GPU-", "GPU-9", "0,MIG-2"] {
            assert_eq!(found(&root, Some(unknown), (0, 1)), None, "{unknown}");
        }
        assert_eq!(found(&root, None, (0, 9)), None, "more ranks than devices");
        // CUDA numbers the fastest first: only UUIDs are unambiguous.
        let mut models = SAME;
        models[3] = "NVIDIA T400";
        let mixed = machine(models, TWO_NODES);
        assert_eq!(found(&mixed, None, (0, 8)), None);
        assert_eq!(found(&mixed, Some("3"), (0, 1)), None);
        assert_eq!(found(&mixed, Some("GPU-333"), (0, 1)), Some((4, 0, 1)));
        let by_address = CudaVariables { visible: Some("3"), order: Some("PCI_BUS_ID") };
        assert!(gpu_node(mixed.path(), by_address, (0, 1)).is_some());
        // One node, no node, no GPU, no such folders.
        let one = machine(SAME, &[(0, "0-15")]);
        assert_eq!(found(&one, None, (0, 8)), None);
        let unplaced = machine(SAME, TWO_NODES);
        fs::write(unplaced.path().join("sys/bus/pci/devices/0000:1b:00.0/numa_node"), "-1\n")
            .unwrap();
        assert_eq!(found(&unplaced, None, (0, 8)), None);
        fs::remove_dir_all(root.path().join("proc")).unwrap();
        assert_eq!(found(&root, None, (0, 1)), None);
        assert_eq!(found(&tempfile::tempdir().unwrap(), None, (0, 1)), None);
    }
}
