//! What a stream's daemon holds in memory, and whether the machine grants it.

use std::fs;
use std::path::Path;

use super::session::ring_bytes;
use super::stream::Stream;
use forebay_config::CpuPolicy;
use forebay_observe::format_bytes;

/// What a read may hold until its sample is worked, for each read that may be under way.
const FETCH_BYTES_PER_READ: u64 = 2 << 20;
/// The least that a fetch budget may be.
const MIN_FETCH_BYTES: u64 = 8 << 20;
/// What a work thread's decoder, resizer and scratch memory are reckoned with: a decoded photograph of 12 megapixels
/// is 36 MB, one of ImageNet's half a megabyte.
const SCRATCH_BYTES_PER_THREAD: u64 = 16 << 20;
/// More threads than so many for each core hide no more sleep than these do.
const MAX_THREADS_PER_CORE: u32 = 16;

/// The budget of one stream's daemon with one session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryPlan {
    /// The data, publish and return segments.
    pub ring_bytes: u64,
    /// Samples between fetch and work.
    pub fetch_bytes: u64,
    /// Decoders and scratch memory of all threads.
    pub scratch_bytes: u64,
    /// `ring.memory`.
    pub ceiling_bytes: u64,
}

/// A plan that does not fit. Names the key to change.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// Beyond `ring.memory`.
    #[error(
        "{place}: the plan needs {} ({slots} slots of {}, {} for fetching, {} for {threads} threads), but ring.memory \
         is {}; raise ring.memory, or lower ring.slots or batch.size",
        format_bytes(plan.total_bytes()), format_bytes(*slot_bytes), format_bytes(plan.fetch_bytes), format_bytes(plan.scratch_bytes),
        format_bytes(plan.ceiling_bytes)
    )]
    Ceiling {
        /// Where `ring.memory` stands.
        place: String,
        /// The figures.
        plan: MemoryPlan,
        /// `ring.slots`.
        slots: u16,
        /// A slot's size.
        slot_bytes: u64,
        /// The work threads.
        threads: u32,
    },
    /// Beyond what the machine or the cgroup has.
    #[error(
        "{place}: the plan of all streams and local ranks needs {}, but {grantor} grants {}; lower ring.slots or \
         batch.size, or give more memory",
        format_bytes(*needed_bytes), format_bytes(*granted_bytes)
    )]
    Machine {
        /// Where `ring.memory` stands.
        place: String,
        /// All together, over all local ranks.
        needed_bytes: u64,
        /// `the machine` or the cgroup's file.
        grantor: String,
        /// What is left there.
        granted_bytes: u64,
    },
}

impl MemoryPlan {
    /// Plans a stream for so many work threads.
    #[must_use]
    pub fn of(stream: &Stream, threads: u32) -> Self {
        let ring_bytes = ring_bytes(stream).iter().sum();
        let ceiling_bytes = stream.config.ring.memory;
        let wanted = u64::from(stream.config.fetch.concurrency.get()) * FETCH_BYTES_PER_READ;
        // One thread of the second group at least, where there is one; the further ones take what is left over.
        let second_group = u32::from(stream.config.cpu.policy == CpuPolicy::Idle);
        let room = ceiling_bytes.saturating_sub(ring_bytes) / 2;
        Self {
            ring_bytes,
            fetch_bytes: wanted.min(room).max(MIN_FETCH_BYTES),
            scratch_bytes: u64::from(threads + second_group) * SCRATCH_BYTES_PER_THREAD,
            ceiling_bytes,
        }
    }

    /// Threads of the second group and of the lowered one at most, for so many at the start: as many as `ring.memory`
    /// leaves room for beside the rings of all sessions that may attach.
    pub fn thread_bounds(&self, stream: &Stream, threads: u32, cores: u32) -> (u32, u32) {
        let sessions = u64::from(stream.config.listen.max_sessions);
        let taken = self
            .ring_bytes
            .saturating_mul(sessions)
            .saturating_add(self.fetch_bytes)
            .saturating_add(self.scratch_bytes);
        let spare = self.ceiling_bytes.saturating_sub(taken) / SCRATCH_BYTES_PER_THREAD;
        let spare = u32::try_from(spare).unwrap_or(u32::MAX);
        let rescue = threads.min(spare.saturating_add(1));
        let further = spare.saturating_sub(rescue - 1);
        let is_auto = stream.stages.iter().any(|stage| stage.is_auto);
        let most = cores.saturating_mul(MAX_THREADS_PER_CORE).max(threads);
        (rescue, if is_auto { most.min(threads.saturating_add(further)) } else { threads })
    }

    /// All together.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.ring_bytes.saturating_add(self.fetch_bytes).saturating_add(self.scratch_bytes)
    }

    /// What a daemon with these streams needs, one session of each: their rings, and once what they share. No ceiling.
    #[must_use]
    pub fn together(plans: &[Self]) -> Self {
        let greatest = |part: fn(&Self) -> u64| plans.iter().map(part).max().unwrap_or(0);
        Self {
            ring_bytes: plans.iter().fold(0, |sum, plan| plan.ring_bytes.saturating_add(sum)),
            fetch_bytes: greatest(|plan| plan.fetch_bytes),
            scratch_bytes: greatest(|plan| plan.scratch_bytes),
            ceiling_bytes: u64::MAX,
        }
    }

    /// Holds the plan against `ring.memory`.
    ///
    /// # Errors
    /// When it does not fit: with the figures and the key to change.
    pub fn check_ceiling(&self, stream: &Stream, threads: u32) -> Result<(), MemoryError> {
        let ring = &stream.config.ring;
        if self.total_bytes() <= self.ceiling_bytes {
            return Ok(());
        }
        Err(MemoryError::Ceiling {
            place: memory_key(stream),
            plan: *self,
            slots: ring.slots,
            slot_bytes: stream.layout.slot_bytes(),
            threads,
        })
    }

    /// Holds the plan against the control group and the machine, for `local_ranks` such daemons together; `stream` is the
    /// one whose configuration is named.
    ///
    /// # Errors
    /// When it does not fit: with the figures and the keys to change.
    pub fn check_machine(&self, stream: &Stream, local_ranks: u32) -> Result<(), MemoryError> {
        let place = memory_key(stream);
        let needed_bytes = self.total_bytes().saturating_mul(local_ranks.into());
        refuse_what_is_not_granted(place, needed_bytes, &Machine::default())
    }

    /// Holds the ring that one more session takes against what the control group and the machine have left now. The
    /// other ranks' rings were reckoned with at the start, and those that are attached show in what is left.
    ///
    /// # Errors
    /// When it does not fit: with the figures and the key to change.
    pub(super) fn check_attach(&self, stream: &Stream) -> Result<(), MemoryError> {
        let place = memory_key(stream);
        refuse_what_is_not_granted(place, self.ring_bytes, &Machine::default())
    }
}

/// Where `ring.memory` stands.
fn memory_key(stream: &Stream) -> String {
    stream.config.location(&["ring", "memory"]).to_string()
}

/// Holds a recording of the running daemon against what `ring.memory` of some stream leaves beside its plan, and against
/// what the control group and the machine have left now.
///
/// # Errors
/// The figures and the key to change.
pub(super) fn check_recording(
    plans: impl Iterator<Item = MemoryPlan>,
    recording_bytes: u64,
) -> Result<(), String> {
    let left = |plan: &MemoryPlan| plan.ceiling_bytes.saturating_sub(plan.total_bytes());
    let roomiest = plans.max_by_key(left);
    if let Some(plan) = roomiest.filter(|plan| left(plan) < recording_bytes) {
        return Err(format!(
            "a recording takes up to {}; beside the {} that are planned, ring.memory ({}) leaves {}: raise it",
            format_bytes(recording_bytes),
            format_bytes(plan.total_bytes()),
            format_bytes(plan.ceiling_bytes),
            format_bytes(left(&plan)),
        ));
    }
    let grants = Machine::default().grants();
    match grants.into_iter().find(|(_, granted_bytes)| *granted_bytes < recording_bytes) {
        Some((grantor, granted_bytes)) => Err(format!(
            "a recording needs up to {}, but {grantor} grants {}; raise that limit",
            format_bytes(recording_bytes),
            format_bytes(granted_bytes)
        )),
        None => Ok(()),
    }
}

fn refuse_what_is_not_granted(
    place: String,
    needed_bytes: u64,
    machine: &Machine,
) -> Result<(), MemoryError> {
    match machine.grants().into_iter().find(|(_, granted_bytes)| needed_bytes > *granted_bytes) {
        Some((grantor, granted_bytes)) => {
            Err(MemoryError::Machine { place, needed_bytes, grantor, granted_bytes })
        }
        None => Ok(()),
    }
}

/// Where the machine says what it has.
struct Machine<'a> {
    proc: &'a Path,
    cgroup: &'a Path,
}

impl Default for Machine<'_> {
    fn default() -> Self {
        Self { proc: Path::new("/proc"), cgroup: Path::new("/sys/fs/cgroup") }
    }
}

impl Machine<'_> {
    /// What is free, by who says so: the machine, and each control group above this process.
    fn grants(&self) -> Vec<(String, u64)> {
        let mut grants = Vec::new();
        let free = fs::read_to_string(self.proc.join("meminfo")).ok().and_then(|text| {
            let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
            line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib * 1024)
        });
        grants.extend(free.map(|bytes| ("the machine".to_owned(), bytes)));
        let own = fs::read_to_string(self.proc.join("self/cgroup")).unwrap_or_default();
        for line in own.lines() {
            // "number:controllers:path"; version 2 has the number 0 and no controllers.
            let mut parts = line.splitn(3, ':');
            let (Some(_), Some(controllers), Some(path)) =
                (parts.next(), parts.next(), parts.next())
            else {
                continue;
            };
            let (root, names) = match controllers {
                "" => (self.cgroup.to_owned(), VERSION_2),
                _ if controllers.split(',').any(|name| name == "memory") => {
                    (self.cgroup.join("memory"), VERSION_1)
                }
                _ => continue,
            };
            let folders = root.join(path.trim_start_matches('/'));
            for folder in folders.ancestors().take_while(|folder| folder.starts_with(&root)) {
                grants.extend(left_in(folder, names));
            }
        }
        grants
    }
}

/// The files of a control group: the limit, the use, and the line of `memory.stat` that says how much of it is page
/// cache, which is given back under pressure.
type GroupFiles = [&'static str; 3];
const VERSION_2: GroupFiles = ["memory.max", "memory.current", "inactive_file "];
const VERSION_1: GroupFiles =
    ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "];

/// What a control group has left, if it has a limit.
fn left_in(folder: &Path, [limit_file, use_file, cache_line]: GroupFiles) -> Option<(String, u64)> {
    let number =
        |name: &str| fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
    let (limit, used) = (number(limit_file)?, number(use_file)?);
    let statistics = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
    let cache = statistics
        .lines()
        .find_map(|line| line.strip_prefix(cache_line)?.trim().parse::<u64>().ok())
        .unwrap_or(0);
    let left = limit.saturating_sub(used.saturating_sub(cache));
    Some((folder.join(limit_file).display().to_string(), left))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(folder: &Path, files: &[(&str, &str)]) {
        for (name, text) in files {
            let path = folder.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
    }

    /// What is refused on a machine with these files.
    fn refusal(files: &[(&str, &str)], needed_bytes: u64) -> Option<String> {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), files);
        let (proc, cgroup) = (folder.path().join("proc"), folder.path().join("cgroup"));
        let machine = Machine { proc: &proc, cgroup: &cgroup };
        refuse_what_is_not_granted("train.toml:7".to_owned(), needed_bytes, &machine)
            .err()
            .map(|error| error.to_string())
    }

    #[test]
    fn a_control_group_that_is_too_small_is_named_with_the_figures_and_the_remedy() {
        for (own, group, names) in [
            ("0::/pod/main\n", "cgroup/pod", VERSION_2),
            ("9:cpu,cpuacct:/\n4:memory:/pod/main\n", "cgroup/memory/pod", VERSION_1),
        ] {
            let [limit, used, cache] = names;
            let name = |file: &str| format!("{group}/{file}");
            let files = [
                (
                    "proc/meminfo".to_owned(),
                    "MemTotal: 9 kB\nMemAvailable: 4194304 kB\n".to_owned(),
                ),
                ("proc/self/cgroup".to_owned(), own.to_owned()),
                (name(limit), "1073741824\n".to_owned()),
                (name(used), "805306368\n".to_owned()),
                (name("memory.stat"), format!("anon 5\n{cache}268435456\n")),
                (name("main/memory.stat"), String::new()),
            ];
            let files: Vec<_> = files.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
            assert_eq!(
                refusal(&files, 512 << 20),
                None,
                "half of it is used, or could be given back"
            );
            let message = refusal(&files, (512 << 20) + 1).unwrap();
            for part in ["train.toml:7", limit, "grants 512 MiB", "lower ring.slots"] {
                assert!(message.contains(part), "{part} in {message}");
            }
        }
    }

    #[test]
    fn a_recording_needs_room_beside_the_plan_of_some_stream() {
        let plan = |ceiling_bytes| MemoryPlan {
            ring_bytes: 60 << 20,
            fetch_bytes: 8 << 20,
            scratch_bytes: 32 << 20,
            ceiling_bytes,
        };
        let (small, roomy) = (plan(110 << 20), plan(116 << 20));
        let message = check_recording([small].into_iter(), 16 << 20).unwrap_err();
        for part in ["16 MiB", "100 MiB", "110 MiB", "10 MiB", "ring.memory"] {
            assert!(message.contains(part), "{part} in {message}");
        }
        assert_eq!(check_recording([small, roomy].into_iter(), 16 << 20), Ok(()));
    }

    #[test]
    fn a_machine_without_memory_or_without_files_is_told_of_or_trusted() {
        let files = [("proc/meminfo", "MemAvailable: 1024 kB\n"), ("proc/self/cgroup", "0::/\n")];
        assert!(refusal(&files, (1 << 20) + 1).unwrap().contains("the machine grants 1 MiB"));
        let unlimited = [("proc/self/cgroup", "0::/a\n"), ("cgroup/a/memory.max", "max\n")];
        assert_eq!(refusal(&unlimited, u64::MAX), None);
        assert_eq!(refusal(&[], u64::MAX), None);
    }
}
