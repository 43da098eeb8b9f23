//! CPU isolation: compares the scheduling groups of daemon and trainer when a client attaches, lowers the daemon's
//! group if needed and permitted, and reports what is in effect. Engine thread only.
//!
//! The idle class protects the trainer only within one scheduling group: the kernel divides a core between two groups
//! by their weights, whatever the classes of their threads. A daemon in a separate group therefore lowers that group's
//! weight. It does not change groups that contain other processes; the report then states a remedy.

use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::OnceLock;

use forebay_protocol::huge_pages::{HugePages, Refusal};
use forebay_protocol::segment::Segment;

use super::cgroups::{CpuGroup, Lowered};
use super::cores::{allowed_cores, cores_of};
use super::quota::QuotaWatch;
use crate::threads::{PoolOptions, WorkThreads, class_of_a_new_thread, class_of_thread};
use forebay_host::hidden::is_hidden;
use forebay_observe::IsolationItem;
use forebay_observe::format_bytes;
use nix::unistd::{getpid, getppid, getsid};

/// The lowest weight of an autogroup.
const AUTOGROUP_NICE: &str = "19";
/// Name of the group of a process in no control group and no autogroup.
const ROOT_GROUP: &str = "the root control group";
const OWN_AUTOGROUP: &str = "/proc/self/autogroup";
const START_BESIDE: &str = "start the daemon with `forebay run` or from Python, or from the trainer's own session and control group";

/// Opened for writing before the process became undumpable.
static AUTOGROUP_FILE: OnceLock<File> = OnceLock::new();

/// Opens the file with the weight of this process's autogroup. Must be called before the process makes itself
/// undumpable: afterwards root owns the file, and a daemon of an ordinary user could not lower its group.
pub fn open_own_autogroup() {
    // The file does not exist without autogroups.
    if let Ok(file) = fs::OpenOptions::new().write(true).open(OWN_AUTOGROUP) {
        let _ = AUTOGROUP_FILE.set(file);
    }
}

/// The trainer's scheduling group compared with the daemon's.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Relation {
    Same(String),
    /// Both are in the root control group, in two autogroups.
    Autogroups,
    /// The trainer is in an autogroup, the daemon is not: each work thread competes with that group by its own class.
    BesideAutogroup,
    /// They are in two control groups.
    ControlGroups(CpuGroup, CpuGroup),
    /// The reason, and a remedy.
    Unknown(String, &'static str),
}

/// See the module's head.
#[derive(Debug)]
pub struct CpuIsolation {
    group: IsolationItem,
    /// The group whose weight was lowered; restored while the fallback pool is active.
    lowered: Option<Lowered>,
}

impl Default for CpuIsolation {
    /// Without a client.
    fn default() -> Self {
        let group = IsolationItem::in_force(
            "group",
            "no client is attached; groups are compared at attach",
        );
        Self { group, lowered: None }
    }
}

impl CpuIsolation {
    /// Called when a client has attached: compares the groups, lowers the daemon's, and finds a quota that both share.
    pub fn on_attach(&mut self, trainer: u32, threads: &mut dyn WorkThreads) -> Option<QuotaWatch> {
        let relation = compare(trainer);
        self.group = self.isolate(&relation, trainer, threads);
        if let Some(remedy) = &self.group.remedy {
            tracing::warn!(remedy, "{}", self.group.state);
        }
        let own = CpuGroup::own()?;
        let others = if is_hidden(trainer) && has_started(trainer) {
            own.clone()
        } else {
            CpuGroup::of(trainer)?
        };
        QuotaWatch::find(&own, &others, trainer)
    }

    fn isolate(
        &mut self,
        relation: &Relation,
        trainer: u32,
        threads: &mut dyn WorkThreads,
    ) -> IsolationItem {
        let (state, reason) = match relation {
            Relation::Same(group) => {
                return IsolationItem::in_force(
                    "group",
                    format!("the trainer is in the same group, {group}"),
                );
            }
            Relation::BesideAutogroup => {
                let state =
                    "autogroup is off: the scheduling classes apply between daemon and trainer";
                return IsolationItem::in_force("group", state);
            }
            Relation::Unknown(reason, remedy) => {
                return IsolationItem::unavailable("group", reason.clone(), *remedy);
            }
            Relation::Autogroups => {
                let state =
                    "the trainer is in another session, which is a separate scheduling group";
                match self.lower_autogroup() {
                    Ok(()) => {
                        return IsolationItem::in_force(
                            "group",
                            format!(
                                "{state}; the daemon's session has the lowest weight (nice 19)"
                            ),
                        );
                    }
                    Err(reason) => (state.to_owned(), reason),
                }
            }
            Relation::ControlGroups(own, others) => {
                let state = format!(
                    "the trainer is in the control group {}, the daemon in {}",
                    others.name(),
                    own.name()
                );
                match own.become_idle(others) {
                    Ok(lowered) => {
                        let file = lowered.name();
                        let state =
                            format!("{state}; the daemon's group has the lowest weight ({file})");
                        self.lowered = Some(lowered.after(self.lowered.take()));
                        return IsolationItem::in_force("group", state);
                    }
                    Err(reason) => (state, reason),
                }
            }
        };
        let spare = spare_cores(&allowed_cores(), &cores_of(Some(trainer)).unwrap_or_default());
        if !spare.is_empty() && threads.keep_on_cores(&spare).is_ok() {
            let state = format!(
                "{state}; work threads are moved to cores that the trainer may not use: {spare:?}"
            );
            return IsolationItem::in_force("group", state);
        }
        IsolationItem::unavailable(
            "group",
            format!(
                "{state}; the kernel divides cores between the groups by weight, so the idle class does not protect the trainer: {reason}"
            ),
            START_BESIDE,
        )
    }

    fn lower_autogroup(&mut self) -> Result<(), String> {
        // An autogroup is a session; other processes in it would be lowered too.
        if getsid(None) != Ok(getpid()) {
            return Err("other processes are in the daemon's session too".to_owned());
        }
        let file = PathBuf::from(OWN_AUTOGROUP);
        let lowered = Lowered::through(AUTOGROUP_FILE.get(), file, AUTOGROUP_NICE)?;
        self.lowered = Some(lowered.after(self.lowered.take()));
        Ok(())
    }

    /// Restores the group's weight while the fallback pool is active, which would starve otherwise.
    pub fn follow_fallback(&mut self, is_fallback_active: bool) {
        if let Some(lowered) = &mut self.lowered {
            lowered.set_low(!is_fallback_active);
        }
    }

    /// The isolation of a running daemon.
    pub fn report(
        &self,
        threads: &dyn WorkThreads,
        quota: Option<&QuotaWatch>,
        rings: HugePages,
    ) -> Vec<IsolationItem> {
        let classes: Vec<String> =
            threads.lowered_ids().into_iter().filter_map(class_of_thread).collect();
        let mut items = vec![class_item(threads.options(), &classes), self.group.clone()];
        items.push(cores_item(threads.options()));
        let held_back = threads.held_back().as_secs_f64();
        items.extend(limit_item(threads.options(), Some(held_back)));
        items.push(match quota {
            Some(quota) => IsolationItem::in_force("quota", quota.describe()),
            None => quota_item(),
        });
        items.push(fallback_pool_item(threads.options(), threads.is_fallback_active()));
        items.push(huge_pages_item(rings));
        items
    }
}

/// The isolation that will be in effect, as far as it is known without a trainer.
pub fn plan_cpu_isolation(options: &PoolOptions) -> Vec<IsolationItem> {
    let classes: Vec<String> = class_of_a_new_thread(options).into_iter().collect();
    let group = format!("{}; compared with the trainer's group at attach", own_place());
    let mut items = vec![class_item(options, &classes), IsolationItem::in_force("group", group)];
    items.push(cores_item(options));
    items.extend(limit_item(options, None));
    items.push(quota_item());
    items.push(fallback_pool_item(options, false));
    items.push(planned_huge_pages());
    items
}

fn class_item(options: &PoolOptions, classes: &[String]) -> IsolationItem {
    let asked = match options.policy.word() {
        "idle" => "idle".to_owned(),
        word => format!("{word}, nice {}", options.nice),
    };
    match classes.iter().find(|class| **class != asked) {
        None if classes.is_empty() => IsolationItem::unavailable(
            "class",
            format!("cpu.policy is {asked}; cannot read the work threads' class"),
            "mount /proc",
        ),
        None => IsolationItem::class_in_force(&asked),
        Some(other) => IsolationItem::unavailable(
            "class",
            format!("cpu.policy is {asked}, but work threads run in the class {other}"),
            "allow sched_setscheduler in the container's seccomp profile",
        ),
    }
}

/// The cores of the work threads, and the cores in `cpu.cores` that the process may not use.
pub fn cores_item(options: &PoolOptions) -> IsolationItem {
    let cores = if options.cores.is_empty() { allowed_cores() } else { options.cores.clone() };
    let mut state = format!("work threads run on the cores {}", list(&cores));
    if !options.ring_cores.is_empty() {
        let cores = list(&options.ring_cores);
        state.push_str(&format!("; rings are on the memory node of the cores {cores}"));
    }
    if options.refused_cores.is_empty() {
        return IsolationItem::in_force("cores", state);
    }
    IsolationItem::unavailable(
        "cores",
        format!("{state}; this process may not use {}", list(&options.refused_cores)),
        "change cpu.cores, or widen the container's cpuset or the process's affinity mask",
    )
}

fn limit_item(options: &PoolOptions, held_back: Option<f64>) -> Option<IsolationItem> {
    let cores = options.limit_cores?;
    let mut state = format!("cpu.limit allows {cores:.2} CPU seconds a second");
    if let Some(seconds) = held_back {
        state.push_str(&format!("; work threads have waited {seconds:.1} s for it"));
    }
    Some(IsolationItem::in_force("limit", state))
}

fn quota_item() -> IsolationItem {
    let quota = CpuGroup::own().and_then(|group| group.quota());
    IsolationItem::in_force(
        "quota",
        match quota {
            None => "no CPU quota".to_owned(),
            Some((folder, cpus)) => format!(
                "CPU quota {cpus:.2} at {}; if the trainer shares it, the daemon uses only the part that the trainer leaves",
                folder.display()
            ),
        },
    )
}

fn fallback_pool_item(options: &PoolOptions, is_on: bool) -> IsolationItem {
    IsolationItem::in_force(
        "fallback-pool",
        match (options.policy.word(), is_on) {
            ("idle", true) => {
                "other processes use the cores; the fallback pool is active".to_owned()
            }
            ("idle", false) => format!(
                "fallback pool: {} threads of the next scheduling class, active only while the work threads starve",
                options.fallback_threads
            ),
            _ => "not needed: threads of this class do not starve".to_owned(),
        },
    )
}

fn huge_pages_item(rings: HugePages) -> IsolationItem {
    let [bytes, possible] = [rings.bytes, rings.possible_bytes].map(format_bytes);
    let state = match rings.possible_bytes {
        0 => "no ring larger than one huge page was created".to_owned(),
        _ => format!("{bytes} of the rings' {possible} lie in huge pages"),
    };
    match rings.refusal {
        None => IsolationItem::in_force("huge-pages", state),
        Some(refusal) => {
            IsolationItem::unavailable("huge-pages", state, huge_pages_remedy(refusal))
        }
    }
}

/// Whether a ring can use huge pages; tries one.
fn planned_huge_pages() -> IsolationItem {
    let probe = Segment::create("probe", 2 << 20);
    match probe.map(|probe| probe.huge_pages().refusal) {
        Ok(None) => IsolationItem::in_force("huge-pages", "rings use huge pages"),
        Ok(Some(refusal)) => {
            let state = "rings use small pages";
            IsolationItem::unavailable("huge-pages", state, huge_pages_remedy(refusal))
        }
        Err(error) => {
            IsolationItem::unavailable("huge-pages", error.to_string(), "free some memory")
        }
    }
}

fn huge_pages_remedy(refusal: Refusal) -> &'static str {
    match refusal {
        Refusal::Unsupported => "needs Linux 6.1 or newer with transparent huge pages",
        Refusal::NoneFree => {
            "free memory is fragmented and compaction took too long; run `echo 1 > /proc/sys/vm/compact_memory` before the start"
        }
    }
}

/// Compares the scheduling groups of the daemon and another process.
fn compare(trainer: u32) -> Relation {
    if trainer == 0 {
        let reason = "the trainer is in another PID namespace";
        let reason = format!("{reason}; its scheduling group is unknown");
        return Relation::Unknown(reason, START_BESIDE);
    }
    if is_hidden(trainer) {
        return relation_to_hidden(trainer);
    }
    if let (Some(own), Some(others)) = (CpuGroup::own(), CpuGroup::of(trainer)) {
        if own != others {
            return Relation::ControlGroups(own, others);
        }
        if !own.is_root() {
            return Relation::Same(own.name());
        }
    }
    let is_on = fs::read_to_string("/proc/sys/kernel/sched_autogroup_enabled");
    if !is_on.is_ok_and(|text| text.trim() == "1") {
        return Relation::Same(ROOT_GROUP.to_owned());
    }
    match (own_autogroup(), autogroup(&trainer.to_string())) {
        (Some(own), Some(others)) => compare_autogroups(&own, &others),
        _ => {
            let reason =
                format!("the scheduling group of the trainer (process {trainer}) cannot be read");
            Relation::Unknown(reason, START_BESIDE)
        }
    }
}

/// Whether a process has started this one and is still in the same session: then both have the same control group and
/// autogroup. In a container, both sessions are 0 if they began outside.
fn has_started(trainer: u32) -> bool {
    let parent = getppid();
    u32::try_from(parent.as_raw()) == Ok(trainer) && getsid(Some(parent)) == getsid(None)
}

/// As [`compare`], if /proc hides the trainer.
fn relation_to_hidden(trainer: u32) -> Relation {
    if has_started(trainer) {
        return Relation::Same(own_place());
    }
    let reason = format!(
        "/proc hides the trainer (process {trainer}) from the daemon, so its scheduling group is unknown"
    );
    Relation::Unknown(reason, forebay_host::hidden::REMEDY)
}

/// The name of the group in which this process is scheduled.
fn own_place() -> String {
    match CpuGroup::own() {
        Some(group) if !group.is_root() => format!("control group {}", group.name()),
        _ => own_autogroup()
            .filter(|name| name != ROOT_GROUP)
            .map_or(ROOT_GROUP.to_owned(), |name| format!("autogroup {name}")),
    }
}

fn compare_autogroups(own: &str, others: &str) -> Relation {
    match own {
        _ if own == others => Relation::Same(own.to_owned()),
        ROOT_GROUP => Relation::BesideAutogroup,
        _ => Relation::Autogroups,
    }
}

fn own_autogroup() -> Option<String> {
    autogroup("self")
}

/// The name in "/autogroup-17 nice 0". The file is empty for a process that was never in a separate session, such as a
/// container's first process and its children.
fn autogroup(process: &str) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{process}/autogroup")).ok()?;
    Some(text.split_whitespace().next().unwrap_or(ROOT_GROUP).to_owned())
}

/// Cores that this process may use and the trainer may not.
fn spare_cores(own: &[u32], trainers: &[u32]) -> Vec<u32> {
    if trainers.is_empty() {
        return Vec::new();
    }
    own.iter().copied().filter(|core| !trainers.contains(core)).collect()
}

/// Formats cores as in a configuration: `0-3,8`.
fn list(cores: &[u32]) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for core in cores {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == *core => *last = *core,
            _ => ranges.push((*core, *core)),
        }
    }
    let words = ranges.iter().map(|(first, last)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    });
    words.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_is_in_its_own_group_and_a_new_session_is_not() {
        assert!(matches!(compare(std::process::id()), Relation::Same(_)));
        assert!(matches!(compare(0), Relation::Unknown(..)));
        let is_on = fs::read_to_string("/proc/sys/kernel/sched_autogroup_enabled");
        let in_root = CpuGroup::own().is_none_or(|group| group.is_root());
        if !(in_root && is_on.is_ok_and(|text| text.trim() == "1")) {
            return;
        }
        let mut other =
            std::process::Command::new("setsid").args(["sleep", "1000"]).spawn().unwrap();
        let elsewhere = match own_autogroup().as_deref() {
            Some(ROOT_GROUP) => Relation::BesideAutogroup,
            _ => Relation::Autogroups,
        };
        // Until the process has created its session it is still in this one.
        while compare(other.id()) != elsewhere {
            assert!(other.try_wait().unwrap().is_none());
            std::thread::yield_now();
        }
        other.kill().unwrap();
        other.wait().unwrap();
    }

    /// Inside a PID namespace, the kernel reports 0 for a session that began outside it.
    #[test]
    fn sessions_that_began_outside_a_pid_namespace_are_compared() {
        const INSIDE: &str = "FOREBAY_TEST_INSIDE";
        if std::env::var_os(INSIDE).is_some() {
            assert_eq!(getsid(None).unwrap().as_raw(), 0);
            // The shell that has started this test.
            assert!(has_started(1) && !has_started(2));
            return;
        }
        let name = "isolation::tests::sessions_that_began_outside_a_pid_namespace_are_compared";
        let inside = std::process::Command::new("unshare")
            .args(["--user", "--map-root-user", "--pid", "--fork", "--kill-child"])
            .args(["sh", "-c", "\"$@\"; true", "sh"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", name])
            .env(INSIDE, "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&inside.stderr).into_owned()
            + &String::from_utf8_lossy(&inside.stdout);
        if said.contains("unshare:") {
            return println!("skipped: no PID namespace can be made here");
        }
        assert!(said.contains("1 passed"), "{said}");
    }

    #[test]
    fn threads_outside_autogroups_compete_by_their_class() {
        let compared = compare_autogroups;
        assert_eq!(compared("/autogroup-3", "/autogroup-3"), Relation::Same("/autogroup-3".into()));
        assert_eq!(compared("/autogroup-3", "/autogroup-4"), Relation::Autogroups);
        assert_eq!(compared("/autogroup-3", ROOT_GROUP), Relation::Autogroups);
        assert_eq!(compared(ROOT_GROUP, "/autogroup-3"), Relation::BesideAutogroup);
        assert_eq!(compared(ROOT_GROUP, ROOT_GROUP), Relation::Same(ROOT_GROUP.to_owned()));
    }

    #[test]
    fn spare_cores_are_the_cores_that_the_trainer_may_not_use() {
        assert_eq!(spare_cores(&[0, 1, 2, 3], &[0, 1]), [2, 3]);
        assert_eq!(spare_cores(&[0, 1], &[]), [] as [u32; 0], "nothing is known of the trainer");
    }

    #[test]
    fn cores_are_listed_as_ranges() {
        assert_eq!(list(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
    }
}
