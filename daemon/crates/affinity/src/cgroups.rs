//! A process's position in the control groups that distribute CPU time, version 1 or 2, and their settings.
//!
//! Read-only, except for [`CpuGroup::become_idle`] and [`Lowered`]. Unreadable files count as absent.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The control group by which the kernel schedules a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CpuGroup {
    /// The mount point of the hierarchy, which is the root group.
    mount: PathBuf,
    /// The group's folder.
    folder: PathBuf,
    is_unified: bool,
}

impl CpuGroup {
    /// This process's group.
    pub fn own() -> Option<Self> {
        Self::read("self")
    }

    /// Another process's group.
    pub fn of(pid: u32) -> Option<Self> {
        Self::read(&pid.to_string())
    }

    fn read(process: &str) -> Option<Self> {
        let groups = fs::read_to_string(format!("/proc/{process}/cgroup")).ok()?;
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        let (path, mount, root, is_unified) = find(&groups, &mounts)?;
        let path = path.strip_prefix(&root).unwrap_or(&path).to_owned();
        let mut folder = mount.join(path.strip_prefix("/").unwrap_or(&path));
        // In the unified hierarchy a group without the controller is scheduled as part of an ancestor.
        while is_unified && folder != mount && !folder.join("cpu.weight").exists() {
            folder = folder.parent()?.to_owned();
        }
        Some(Self { mount, folder, is_unified })
    }

    /// Whether it is the root group, in which autogroups apply.
    pub fn is_root(&self) -> bool {
        self.folder == self.mount
    }

    /// The group's name for messages: its path in the hierarchy.
    pub fn name(&self) -> String {
        let path = self.folder.strip_prefix(&self.mount).unwrap_or(&self.folder);
        format!("/{}", path.display())
    }

    /// The group and its ancestors, without the root.
    fn upward(&self) -> impl Iterator<Item = &Path> {
        self.folder
            .ancestors()
            .take_while(|folder| *folder != self.mount && folder.starts_with(&self.mount))
    }

    /// The tightest quota of this group and its ancestors, in CPUs, with its folder.
    pub fn quota(&self) -> Option<(PathBuf, f64)> {
        self.tightest(|_| true)
    }

    /// The tightest quota that also applies to another group.
    pub fn quota_shared_with(&self, other: &Self) -> Option<(PathBuf, f64)> {
        self.tightest(|folder| other.folder.starts_with(folder))
    }

    fn tightest(&self, counts: impl Fn(&Path) -> bool) -> Option<(PathBuf, f64)> {
        self.upward()
            .filter(|folder| counts(folder))
            .filter_map(|folder| Some((folder.to_owned(), quota_of(folder)?)))
            .min_by(|one, other| one.1.total_cmp(&other.1))
    }

    /// Makes this group yield to the trainer's: by `cpu.idle`, otherwise by the lowest weight. `Err`: the reason why
    /// not, for a message.
    pub fn become_idle(&self, trainer: &Self) -> Result<Lowered, String> {
        if self.is_root() {
            return Err("it is in the root group, which has no weight".to_owned());
        }
        if self.folder.parent() != common_folder(&self.folder, &trainer.folder).as_deref() {
            return Err(format!("{} and the trainer's group have different parents", self.name()));
        }
        let own = std::process::id().to_string();
        let members = fs::read_to_string(self.folder.join("cgroup.procs")).unwrap_or_default();
        let has_others = members.split_whitespace().any(|pid| pid != own);
        let has_children = fs::read_dir(&self.folder).is_ok_and(|mut entries| {
            entries.any(|entry| entry.is_ok_and(|entry| entry.path().is_dir()))
        });
        if has_others || has_children {
            return Err(format!("other processes are in {} too", self.name()));
        }
        if let Ok(lowered) = Lowered::new(self.folder.join("cpu.idle"), "1") {
            return Ok(lowered);
        }
        let (weight, least) =
            if self.is_unified { ("cpu.weight", "1") } else { ("cpu.shares", "2") };
        Lowered::new(self.folder.join(weight), least)
    }
}

/// A scheduling group's weight that was set to the minimum, and can be restored.
#[derive(Debug)]
pub struct Lowered {
    file: PathBuf,
    /// A descriptor opened earlier, if this process may no longer open the file for writing.
    opened: Option<&'static File>,
    least: &'static str,
    former: String,
    is_low: bool,
}

impl Lowered {
    /// Lowers the weight. `Err`: the reason why not, for a message.
    pub fn new(file: PathBuf, least: &'static str) -> Result<Self, String> {
        Self::through(None, file, least)
    }

    /// As [`new`](Self::new), through a descriptor of the file that is open for writing.
    pub fn through(
        opened: Option<&'static File>,
        file: PathBuf,
        least: &'static str,
    ) -> Result<Self, String> {
        let reason = |error| format!("{} cannot be written: {error}", file.display());
        let former = fs::read_to_string(&file).map_err(reason)?;
        // An autogroup's file reads "/autogroup-12 nice 0"; the others contain the value that is written to them.
        let former = former.split_whitespace().last().unwrap_or("0").to_owned();
        write_to(&file, opened, least).map_err(reason)?;
        Ok(Self { file, opened, least, former, is_low: true })
    }

    /// Takes over the original value, if the weight was already lowered for an earlier trainer.
    pub fn after(mut self, earlier: Option<Self>) -> Self {
        if let Some(earlier) = earlier.filter(|earlier| earlier.file == self.file) {
            self.former = earlier.former;
        }
        self
    }

    /// The file's name.
    pub fn name(&self) -> &str {
        self.file.file_name().and_then(|name| name.to_str()).unwrap_or("")
    }

    /// Restores the weight, or lowers it again. The kernel refuses it for an autogroup within a tenth of a second of
    /// the last change; the next call tries again.
    pub fn set_low(&mut self, low: bool) {
        let text = if low { self.least } else { self.former.as_str() };
        if self.is_low != low && write_to(&self.file, self.opened, text).is_ok() {
            self.is_low = low;
        }
    }
}

/// Writes to a kernel file without creating or truncating it, which a confined daemon may not do.
fn write_to(file: &Path, opened: Option<&File>, text: &str) -> std::io::Result<()> {
    match opened {
        Some(mut opened) => opened.write_all(text.as_bytes()),
        None => fs::OpenOptions::new().write(true).open(file)?.write_all(text.as_bytes()),
    }
}

/// The deepest folder that contains `one` and `other`; it may be one of them.
fn common_folder(one: &Path, other: &Path) -> Option<PathBuf> {
    one.ancestors().find(|folder| other.starts_with(folder)).map(Path::to_owned)
}

/// Parses /proc/PID/cgroup and /proc/self/mountinfo: path, mount point, the mount's root, and whether it is version 2.
fn find(groups: &str, mounts: &str) -> Option<(PathBuf, PathBuf, PathBuf, bool)> {
    let has_cpu = |names: &str| names.split(',').any(|name| name == "cpu");
    let lines = || {
        groups.lines().filter_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            Some((parts.next()?, PathBuf::from(parts.next()?)))
        })
    };
    // "36 35 98:0 ROOT MOUNT options … - TYPE SOURCE OPTIONS"
    let mounted = |wanted: &dyn Fn(&str, &str) -> bool| {
        mounts.lines().find_map(|line| {
            let (place, kind) = line.split_once(" - ")?;
            let mut place = place.split(' ').skip(3);
            let (root, mount) = (PathBuf::from(place.next()?), PathBuf::from(place.next()?));
            let mut kind = kind.split(' ');
            let (kind, options) = (kind.next()?, kind.nth(1)?);
            wanted(kind, options).then_some((mount, root))
        })
    };
    let legacy = lines().find(|(names, _)| has_cpu(names)).and_then(|(_, path)| {
        let (mount, root) = mounted(&|kind, options| kind == "cgroup" && has_cpu(options))?;
        Some((path, mount, root, false))
    });
    legacy.or_else(|| {
        let (_, path) = lines().find(|(names, _)| names.is_empty())?;
        let (mount, root) = mounted(&|kind, _| kind == "cgroup2")?;
        Some((path, mount, root, true))
    })
}

/// A group's own quota in CPUs, without its ancestors'.
fn quota_of(folder: &Path) -> Option<f64> {
    let number =
        |name: &str| fs::read_to_string(folder.join(name)).ok()?.trim().parse::<f64>().ok();
    let (quota, period) = match fs::read_to_string(folder.join("cpu.max")) {
        Ok(text) => {
            let (quota, period) = text.trim().split_once(' ')?;
            (quota.parse::<f64>().ok()?, period.parse::<f64>().ok()?)
        }
        Err(_) => (number("cpu.cfs_quota_us")?, number("cpu.cfs_period_us")?),
    };
    // In version 1 the value −1 means that there is no quota.
    (quota > 0.0 && period > 0.0).then_some(quota / period)
}

/// Number of periods in which the group was throttled by its quota.
pub(crate) fn throttled_periods(folder: &Path) -> Option<u64> {
    stat(folder, "nr_throttled")
}

/// CPU time used by a group, if its hierarchy counts it.
pub(crate) fn usage(folder: &Path) -> Option<Duration> {
    let microseconds = stat(folder, "usage_usec").map(Duration::from_micros);
    microseconds.or_else(|| {
        let text = fs::read_to_string(folder.join("cpuacct.usage")).ok()?;
        text.trim().parse().ok().map(Duration::from_nanos)
    })
}

fn stat(folder: &Path, name: &str) -> Option<u64> {
    let text = fs::read_to_string(folder.join("cpu.stat")).ok()?;
    text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIFIED: &str = "30 1 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";

    #[test]
    fn group_is_found_in_both_versions() {
        let legacy = "31 1 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n";
        let both = format!("{UNIFIED}{legacy}");
        let groups = "4:cpu,cpuacct:/a/b\n3:cpuset:/\n0::/c\n";
        let found = find(groups, &both).unwrap();
        assert_eq!(
            (found.0.to_str(), found.1.to_str()),
            (Some("/a/b"), Some("/sys/fs/cgroup/cpu,cpuacct"))
        );
        let found = find("3:cpuset:/\n0::/c\n", &both).unwrap();
        assert_eq!((found.0.to_str(), found.1.to_str()), (Some("/c"), Some("/sys/fs/cgroup")));
        assert!(find("", UNIFIED).is_none());
    }

    /// A synthetic hierarchy: `mount/pod` with `loader` and `trainer` below it.
    fn pod(quota: &str) -> (tempfile::TempDir, CpuGroup, CpuGroup) {
        let mount = tempfile::tempdir().unwrap();
        for name in ["pod/loader", "pod/trainer"] {
            fs::create_dir_all(mount.path().join(name)).unwrap();
        }
        fs::write(mount.path().join("pod/cpu.max"), quota).unwrap();
        let group = |name: &str| CpuGroup {
            mount: mount.path().to_owned(),
            folder: mount.path().join(name),
            is_unified: true,
        };
        let groups = (group("pod/loader"), group("pod/trainer"));
        (mount, groups.0, groups.1)
    }

    #[test]
    fn quota_of_a_common_ancestor_is_shared() {
        let (mount, loader, trainer) = pod("150000 100000\n");
        fs::write(mount.path().join("pod/loader/cpu.max"), "50000 100000\n").unwrap();
        assert_eq!(loader.quota().unwrap().1, 0.5);
        assert_eq!(loader.quota_shared_with(&trainer), Some((mount.path().join("pod"), 1.5)));
        let (_mount, loader, _) = pod("max 100000\n");
        assert_eq!(loader.quota(), None);
        fs::write(loader.folder.join("cpu.cfs_quota_us"), "200000\n").unwrap();
        fs::write(loader.folder.join("cpu.cfs_period_us"), "100000\n").unwrap();
        assert_eq!(loader.quota().unwrap().1, 2.0);
    }

    #[test]
    fn only_a_separate_group_without_other_processes_is_made_idle() {
        let (_mount, loader, trainer) = pod("max 100000\n");
        fs::write(loader.folder.join("cgroup.procs"), format!("{}\n", std::process::id())).unwrap();
        assert!(loader.become_idle(&trainer).unwrap_err().contains("cpu.weight"), "not there");
        fs::write(loader.folder.join("cpu.weight"), "100\n").unwrap();
        assert_eq!(loader.become_idle(&trainer).unwrap().name(), "cpu.weight", "an older kernel");
        fs::write(loader.folder.join("cpu.idle"), "0\n").unwrap();
        let earlier = loader.become_idle(&trainer).unwrap();
        let mut lowered = loader.become_idle(&trainer).unwrap().after(Some(earlier));
        let text = || fs::read_to_string(loader.folder.join("cpu.idle")).unwrap();
        assert_eq!((lowered.name(), text().as_str()), ("cpu.idle", "1\n"));
        // As long as the fallback pool works.
        for (low, expected) in [(true, "1\n"), (false, "0\n"), (false, "0\n"), (true, "1\n")] {
            lowered.set_low(low);
            assert_eq!(text(), expected);
        }
        fs::write(loader.folder.join("cgroup.procs"), "1\n").unwrap();
        assert!(loader.become_idle(&trainer).unwrap_err().contains("other processes"));
        let root = CpuGroup { folder: loader.mount.clone(), ..loader.clone() };
        assert!(root.is_root() && root.become_idle(&trainer).is_err());
    }
}
