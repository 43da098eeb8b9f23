//! Describes the machine of a measurement, from /proc and /sys. Unreadable values are omitted, and so is the host name,
//! because reports are shared.

use std::fs;
use std::path::Path;

use forebay_observe::format_bytes;

/// Names and values.
pub(super) fn machine() -> Vec<(String, String)> {
    let mut facts = Vec::new();
    let mut fact = |name: &str, value: Option<String>| {
        facts.extend(value.filter(|value| !value.is_empty()).map(|value| (name.to_owned(), value)));
    };
    let cpuinfo = read("/proc/cpuinfo");
    let processors = cpuinfo.lines().filter(|line| line.starts_with("processor")).count();
    let model = after(&cpuinfo, "model name").or_else(|| after(&cpuinfo, "Model"));
    fact("processor", model.map(|model| format!("{model}, {processors} logical cores")));
    fact("cores allowed", after(&read("/proc/self/status"), "Cpus_allowed_list"));
    let memory = after(&read("/proc/meminfo"), "MemTotal").and_then(|text| kibibytes(&text));
    fact("memory", memory.map(format_bytes));
    let release = read("/proc/sys/kernel/osrelease");
    fact("kernel", Some(format!("Linux {} {}", release.trim(), std::env::consts::ARCH)));
    let (cpus, bytes) = limits();
    fact(
        "control group",
        match (cpus, bytes) {
            (None, None) => None,
            (cpus, bytes) => {
                let cpus = cpus.map(|cpus| format!("{cpus:.2} CPUs"));
                let bytes = bytes.map(|bytes| format!("{} of memory", format_bytes(bytes)));
                Some(cpus.into_iter().chain(bytes).collect::<Vec<_>>().join(", "))
            }
        },
    );
    fact("GPU", gpus());
    facts
}

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// The value after the first `name:`.
fn after(text: &str, name: &str) -> Option<String> {
    let mut values = text.lines().filter_map(|line| {
        let (found, value) = line.split_once(':')?;
        (found.trim() == name).then(|| value.trim().to_owned())
    });
    values.next()
}

fn kibibytes(text: &str) -> Option<u64> {
    Some(text.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

/// The lowest limits of this process's control groups (version 2, otherwise 1): CPUs and bytes.
fn limits() -> (Option<f64>, Option<u64>) {
    let (mut cpus, mut bytes): (Option<f64>, Option<u64>) = (None, None);
    for line in read("/proc/self/cgroup").lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let mount = Path::new("/sys/fs/cgroup").join(controllers.split(',').next().unwrap_or(""));
        let folder = mount.join(path.trim_start_matches('/'));
        for folder in folder.ancestors().take_while(|folder| folder.starts_with(&mount)) {
            let quota = quota_v2(&read(folder.join("cpu.max"))).or_else(|| {
                let value = |name| read(folder.join(name)).trim().parse::<f64>().ok();
                let quota = value("cpu.cfs_quota_us").filter(|quota| *quota > 0.0)?;
                Some(quota / value("cpu.cfs_period_us").filter(|period| *period > 0.0)?)
            });
            cpus = [cpus, quota].into_iter().flatten().reduce(f64::min);
            let limit = ["memory.max", "memory.limit_in_bytes"]
                .into_iter()
                .find_map(|name| read(folder.join(name)).trim().parse::<u64>().ok())
                // Version 1 writes a number near the maximum for "unlimited".
                .filter(|limit| *limit < 1 << 60);
            bytes = [bytes, limit].into_iter().flatten().min();
        }
    }
    (cpus, bytes)
}

/// `QUOTA PERIOD` of cpu.max, in CPUs.
fn quota_v2(text: &str) -> Option<f64> {
    let (quota, period) = text.trim().split_once(' ')?;
    Some(quota.parse::<f64>().ok()? / period.parse::<f64>().ok().filter(|period| *period > 0.0)?)
}

/// The models of the visible NVIDIA GPUs.
fn gpus() -> Option<String> {
    let folders = fs::read_dir("/proc/driver/nvidia/gpus").ok()?;
    let models =
        folders.filter_map(|entry| after(&read(entry.ok()?.path().join("information")), "Model"));
    Some(models.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_has_memory_and_a_kernel() {
        let facts = machine();
        for name in ["memory", "kernel", "cores allowed"] {
            assert!(
                facts.iter().any(|(known, value)| known == name && !value.is_empty()),
                "{facts:?}"
            );
        }
    }

    #[test]
    fn quotas_are_parsed() {
        assert_eq!(quota_v2("150000 100000\n"), Some(1.5));
        assert_eq!((quota_v2("max 100000"), quota_v2("1 0"), quota_v2("")), (None, None, None));
    }
}
