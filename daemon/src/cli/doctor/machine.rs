//! Findings about the machine, from the kernel: cores, memory, huge pages, clock, limits, devices, and other data
//! loaders.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use forebay_protocol::segment::Segment;
use rustix::process::{Resource, getrlimit};

use super::finding::{Finding, Weight};
use forebay_affinity::granted_cpu;
use forebay_host::hidden;
use forebay_host::sockets::find_sockets;
use forebay_inspect::observer::Observer;
use forebay_observe::format_bytes;

/// The size of the segment that tests whether huge pages are available.
const TRIAL_BYTES: u64 = 8 << 20;
/// The oldest kernel with all required features.
const OLDEST_KERNEL: (u32, u32) = (5, 10);
/// A slower clock uses a system call.
const SLOW_CLOCK: Duration = Duration::from_nanos(200);

/// All findings about the machine.
pub(super) fn findings() -> Vec<Finding> {
    let looked = [
        kernel(),
        cores(),
        load(),
        shared_memory(),
        memory_lock(),
        open_files(),
        clock(),
        gpu(),
        video_decoders(),
    ];
    looked.into_iter().chain(hidden_processes()).chain(other_loaders()).collect()
}

/// The videos that this host decodes.
fn video_decoders() -> Finding {
    match forebay_transform::host_decoders() {
        Ok(decoders) => Finding::good("videos", format!("decoded by {decoders}, mjpeg by Forebay")),
        Err(missing) => Finding::good("videos", format!("mjpeg alone is decoded: {missing}")),
    }
}

/// Whether a confined daemon can see other processes.
fn hidden_processes() -> Option<Finding> {
    let option = hidden::hiding_option()?;
    let state = format!(
        "/proc is mounted with {option}: a confined daemon sees no process but its own, so `forebay stats`, `top` and others \
         are refused by a private daemon, and the scheduling group of a trainer that did not start its daemon is unknown"
    );
    Some(Finding::new(Weight::Minor, "processes", state, hidden::REMEDY))
}

fn read(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

fn kernel() -> Finding {
    let release = read("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(['.', '-']).map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version < OLDEST_KERNEL {
        let (major, minor) = OLDEST_KERNEL;
        let remedy = format!("Linux {major}.{minor} or newer");
        return Finding::new(Weight::Broken, "kernel", format!("Linux {release}"), remedy);
    }
    Finding::good("kernel", format!("Linux {release}"))
}

fn cores() -> Finding {
    let granted = granted_cpu();
    let allowed = granted.allowed_cores;
    let machine = read("/sys/devices/system/cpu/online").unwrap_or_default();
    if granted.quota_cores < f64::from(allowed) * 0.95 {
        return Finding::new(
            Weight::Costly,
            "cores",
            format!(
                "{allowed} cores, and a quota of {:.2} that trainer and loader share",
                granted.quota_cores
            ),
            "raise the control group's cpu.max (Kubernetes: the CPU limit; Slurm: --cpus-per-task); under a shared quota a busy loader can stop the trainer until the next period",
        );
    }
    if allowed < 2 {
        return Finding::new(
            Weight::Costly,
            "cores",
            "1 core, which the loader shares with the trainer",
            "at least 2 cores a rank",
        );
    }
    Finding::good("cores", format!("{allowed} allowed of {machine}"))
}

fn load() -> Finding {
    let allowed = f64::from(granted_cpu().allowed_cores);
    let text = read("/proc/loadavg").unwrap_or_default();
    let load: f64 = text.split(' ').next().and_then(|load| load.parse().ok()).unwrap_or(0.0);
    if load > allowed * 0.5 {
        return Finding::new(
            Weight::Minor,
            "load",
            format!("load average {load:.1} over the last minute, with {allowed:.0} allowed cores"),
            "if this is not your trainer, reserve cores (cpu.cores) or stop the other load; measurements made now are unreliable",
        );
    }
    Finding::good("load", format!("{load:.1} over the last minute"))
}

fn shared_memory() -> Finding {
    match Segment::create("data", TRIAL_BYTES) {
        Err(error) => Finding::new(
            Weight::Broken,
            "shared memory",
            error.to_string(),
            "memfd_create must be allowed (seccomp profile) and the control group must have memory left",
        ),
        Ok(segment) => {
            let huge = segment.huge_pages();
            if huge.bytes > 0 {
                let state =
                    "rings lie in huge pages; /dev/shm is not used, so its size does not matter";
                return Finding::good("shared memory", state);
            }
            Finding::new(
                Weight::Minor,
                "shared memory",
                "no huge pages for rings (costs 1 to 2 % of the copying)",
                "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled, on Linux 6.1 or newer",
            )
        }
    }
}

fn memory_lock() -> Finding {
    let limit = getrlimit(Resource::Memlock).current;
    let words = limit.map_or_else(|| "unlimited".to_owned(), format_bytes);
    match limit {
        Some(bytes)
            if bytes < 64 << 20 && has_gpu() && !nix::unistd::Uid::effective().is_root() =>
        {
            Finding::new(
                Weight::Minor,
                "pinned memory",
                format!(
                    "RLIMIT_MEMLOCK is {words}: if the driver enforces it, the ring cannot be pinned and each batch is copied once more"
                ),
                "ulimit -l unlimited (systemd: LimitMEMLOCK=infinity; Docker: --ulimit memlock=-1)",
            )
        }
        _ => Finding::good("pinned memory", format!("RLIMIT_MEMLOCK {words}")),
    }
}

fn open_files() -> Finding {
    let limit = getrlimit(Resource::Nofile).current;
    match limit {
        Some(limit) if limit < 1024 => Finding::new(
            Weight::Minor,
            "open files",
            format!("at most {limit}"),
            "ulimit -n 4096: each client takes about ten, each fetch thread one",
        ),
        limit => {
            let words = limit.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string());
            Finding::good("open files", format!("at most {words}"))
        }
    }
}

fn clock() -> Finding {
    const READS: u32 = 20_000;
    let source = read("/sys/devices/system/clocksource/clocksource0/current_clocksource")
        .unwrap_or_else(|| "unknown".to_owned());
    let begin = Instant::now();
    for _ in 0..READS {
        std::hint::black_box(Instant::now());
    }
    let each = begin.elapsed() / READS;
    let state = format!("{source}, {} ns a reading", each.as_nanos());
    if each > SLOW_CLOCK {
        return Finding::new(
            Weight::Minor,
            "clock",
            state,
            "a clock source that is read without a system call: tsc (kernel parameter tsc=reliable), kvm-clock",
        );
    }
    Finding::good("clock", state)
}

fn gpu_count() -> usize {
    let numbered =
        |name: &str| name.strip_prefix("nvidia").is_some_and(|rest| rest.parse::<u32>().is_ok());
    let entries = fs::read_dir("/dev").into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_name().to_str().is_some_and(numbered)).count()
}

fn has_gpu() -> bool {
    gpu_count() > 0
}

fn gpu() -> Finding {
    let version = read("/proc/driver/nvidia/version");
    match (gpu_count(), version) {
        (0, None) => Finding::good("GPU", "no NVIDIA GPU is visible: batches stay in host memory"),
        (0, Some(_)) => Finding::new(
            Weight::Costly,
            "GPU",
            "NVIDIA's driver is loaded and no device is visible here",
            "let the container see it (--gpus all, nvidia.com/gpu), or run `nvidia-smi` to see what is wrong",
        ),
        (count, version) => {
            let driver =
                version.as_deref().and_then(|text| text.lines().next()).unwrap_or("").to_owned();
            let driver =
                driver.split_whitespace().find(|word| word.contains('.')).unwrap_or("?").to_owned();
            Finding::good("GPU", format!("{count} visible, driver {driver}"))
        }
    }
}

/// Other daemons of this user, and worker processes of PyTorch's loader.
fn other_loaders() -> Vec<Finding> {
    let mut found = Vec::new();
    let sockets = find_sockets();
    if !sockets.is_empty() {
        let threads: u32 = sockets
            .iter()
            .filter_map(|socket| Some(Observer::connect(socket).ok()?.stats().ok()?.threads))
            .sum();
        found.push(Finding::new(
            Weight::Minor,
            "other loaders",
            match sockets.len() {
                1 => format!("a Forebay daemon runs, with {threads} work threads"),
                daemons => format!("{daemons} Forebay daemons run, with {threads} work threads together"),
            },
            "several ranks of one job share the cores by LOCAL_WORLD_SIZE; for other jobs set cpu.cores or cpu.limit; \
             `forebay top --all` shows them",
        ));
    }
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| read(entry.path().join("comm")));
    let workers = names.filter(|name| name.starts_with("pt_data_worker")).count();
    if workers > 0 {
        found.push(Finding::new(
            Weight::Costly,
            "other loaders",
            format!("{workers} worker processes of PyTorch's DataLoader run"),
            "a DataLoader around Forebay needs none (num_workers = 0), and one beside it shares its cores",
        ));
    }
    if found.is_empty() {
        found.push(Finding::good("other loaders", "none"));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_findings() {
        let findings = findings();
        assert!(findings.len() >= 9);
        for name in ["kernel", "cores", "shared memory", "clock", "GPU"] {
            assert!(findings.iter().any(|finding| finding.name == name), "{name}");
        }
        for finding in findings {
            assert!(!finding.state.is_empty());
            assert_eq!(finding.remedy.is_none(), finding.weight == Weight::Good, "{finding:?}");
        }
    }
}
