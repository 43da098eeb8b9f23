//! Being unheard by the trainer: compares scheduling groups when a client attaches, mends what it may, and tells what is
//! in force. Engine thread only.
//!
//! The idle class protects the trainer only within one scheduling group: two groups share a core by their weights,
//! whatever classes their threads have. So a daemon in a group of its own makes that group yield. What it changes is its
//! own alone: a group in which other processes are too is left as it is, and the report says what to do.

use std::fs;
use std::path::PathBuf;

use forebay_protocol::huge_pages::{HugePages, Refusal};
use forebay_protocol::segment::Segment;

use super::cgroups::{CpuGroup, Lowered};
use super::cores::{allowed_cores, cores_of};
use super::memory::in_words;
use super::pool::{Pool, PoolOptions, class_of_a_new_thread, class_of_thread};
use super::quota::QuotaWatch;
use crate::observe::QuietItem;

/// The least weight that a group can be given.
const AUTOGROUP_NICE: &str = "19";
/// Where a process is that no control group and no autogroup holds.
const ROOT_GROUP: &str = "the root control group";
const START_BESIDE: &str = "start the daemon with `forebay run` or from Python, or from the trainer's own session and control group";

/// How a trainer's scheduling group stands to the daemon's.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Relation {
    Same(String),
    /// Both in the root control group, in two autogroups.
    Autogroups,
    /// The trainer in an autogroup, the daemon in none: each thread here stands beside that group by its own class.
    BesideAutogroup,
    /// In two control groups.
    ControlGroups(CpuGroup, CpuGroup),
    Unknown(String),
}

/// See the module's head.
#[derive(Debug)]
pub(super) struct Quiet {
    group: QuietItem,
    /// What was made to yield: not while the second group of threads works.
    lowered: Option<Lowered>,
}

impl Quiet {
    pub(super) fn new() -> Self {
        let group = QuietItem::held("group", "no client has attached; groups are compared then");
        Self { group, lowered: None }
    }

    /// A client has attached: compares, mends, and finds a quota that both share.
    pub(super) fn meet(&mut self, trainer: u32, pool: &mut Pool) -> Option<QuotaWatch> {
        let relation = compare(trainer);
        self.group = self.mend(&relation, trainer, pool);
        if let Some(remedy) = &self.group.remedy {
            tracing::warn!(remedy, "{}", self.group.state);
        }
        QuotaWatch::find(&CpuGroup::own()?, &CpuGroup::of(trainer)?, trainer)
    }

    fn mend(&mut self, relation: &Relation, trainer: u32, pool: &mut Pool) -> QuietItem {
        let (state, reason) = match relation {
            Relation::Same(group) => {
                return QuietItem::held(
                    "group",
                    format!("the trainer is in the same group, {group}"),
                );
            }
            Relation::BesideAutogroup => {
                let state = "the daemon is in no session's group: its threads' classes count beside the trainer's";
                return QuietItem::held("group", state);
            }
            Relation::Unknown(reason) => {
                return QuietItem::missed("group", reason.clone(), START_BESIDE);
            }
            Relation::Autogroups => {
                let state =
                    "the trainer is in another session, which has a scheduling group of its own";
                match self.lower_autogroup() {
                    Ok(()) => {
                        return QuietItem::held(
                            "group",
                            format!("{state}: the daemon's has the least weight (nice 19)"),
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
                        let state = format!("{state}: the daemon's group yields ({file})");
                        self.lowered = Some(lowered.after(self.lowered.take()));
                        return QuietItem::held("group", state);
                    }
                    Err(reason) => (state, reason),
                }
            }
        };
        let spare = spare_cores(&allowed_cores(), &cores_of(Some(trainer)).unwrap_or_default());
        if !spare.is_empty() && pool.keep_on_cores(&spare).is_ok() {
            let state =
                format!("{state}; the work threads keep to cores that it may not use: {spare:?}");
            return QuietItem::held("group", state);
        }
        QuietItem::missed(
            "group",
            format!("{state}, and they share cores by weight, not by class: {reason}"),
            START_BESIDE,
        )
    }

    fn lower_autogroup(&mut self) -> Result<(), String> {
        // Without sessions of others in it: an autogroup is a session.
        if rustix::process::getsid(None) != Ok(rustix::process::getpid()) {
            return Err("other processes are in the daemon's session too".to_owned());
        }
        let lowered = Lowered::new(PathBuf::from("/proc/self/autogroup"), AUTOGROUP_NICE)?;
        self.lowered = Some(lowered.after(self.lowered.take()));
        Ok(())
    }

    /// While the second group works, the daemon's scheduling group has its weight back: else it would starve like the
    /// first.
    pub(super) fn follow_rescue(&mut self, rescue_is_on: bool) {
        if let Some(lowered) = &mut self.lowered {
            lowered.set_low(!rescue_is_on);
        }
    }

    /// What is in force in a running daemon.
    pub(super) fn report(
        &self,
        pool: &Pool,
        quota: Option<&QuotaWatch>,
        rings: HugePages,
    ) -> Vec<QuietItem> {
        let classes: Vec<String> =
            pool.shared.lowered_thread_ids().filter_map(class_of_thread).collect();
        let mut items = vec![class_item(&pool.options, &classes), self.group.clone()];
        items.push(cores_item(&pool.options));
        let held_back = pool.shared.budget.held_back_in_all().as_secs_f64();
        items.extend(limit_item(&pool.options, Some(held_back)));
        items.push(match quota {
            Some(quota) => QuietItem::held("quota", quota.describe()),
            None => quota_item(),
        });
        items.push(second_group_item(&pool.options, pool.shared.rescue_is_on()));
        items.push(huge_pages_item(rings));
        items
    }
}

/// What will be in force, as far as it can be known without a trainer.
pub(crate) fn plan_quiet(options: &PoolOptions) -> Vec<QuietItem> {
    let classes: Vec<String> = class_of_a_new_thread(options).into_iter().collect();
    let place = match CpuGroup::own() {
        Some(group) if !group.is_root() => format!("control group {}", group.name()),
        _ => own_autogroup()
            .filter(|name| name != ROOT_GROUP)
            .map_or(ROOT_GROUP.to_owned(), |name| format!("autogroup {name}")),
    };
    let group = format!("{place}; compared with the trainer's when it attaches");
    let mut items = vec![class_item(options, &classes), QuietItem::held("group", group)];
    items.push(cores_item(options));
    items.extend(limit_item(options, None));
    items.push(quota_item());
    items.push(second_group_item(options, false));
    items.push(planned_huge_pages());
    items
}

fn class_item(options: &PoolOptions, classes: &[String]) -> QuietItem {
    let asked = match options.policy.word() {
        "idle" => "idle".to_owned(),
        word => format!("{word}, nice {}", options.nice),
    };
    match classes.iter().find(|class| **class != asked) {
        None if classes.is_empty() => QuietItem::missed(
            "class",
            format!("cpu.policy asks for {asked}; what the work threads have cannot be read"),
            "mount /proc",
        ),
        None => QuietItem::held("class", format!("work threads run in the class {asked}")),
        Some(other) => QuietItem::missed(
            "class",
            format!("cpu.policy asks for {asked}, but work threads run in the class {other}"),
            "allow sched_setscheduler in the container's seccomp profile",
        ),
    }
}

fn cores_item(options: &PoolOptions) -> QuietItem {
    let cores = if options.cores.is_empty() { allowed_cores() } else { options.cores.clone() };
    let state = format!("work threads run on the cores {}", list(&cores));
    if options.refused_cores.is_empty() {
        return QuietItem::held("cores", state);
    }
    QuietItem::missed(
        "cores",
        format!("{state}; this process may not use {}", list(&options.refused_cores)),
        "change cpu.cores, or widen the container's cpuset or the process's affinity mask",
    )
}

fn limit_item(options: &PoolOptions, held_back: Option<f64>) -> Option<QuietItem> {
    let cores = options.limit_cores?;
    let mut state = format!("cpu.limit allows {cores:.2} CPU seconds a second");
    if let Some(seconds) = held_back {
        state.push_str(&format!("; work threads have waited {seconds:.1} s for it"));
    }
    Some(QuietItem::held("limit", state))
}

fn quota_item() -> QuietItem {
    let quota = CpuGroup::own().and_then(|group| group.quota());
    QuietItem::held(
        "quota",
        match quota {
            None => "no CPU quota".to_owned(),
            Some((folder, cpus)) => format!(
                "a quota of {cpus:.2} CPUs at {}; if it is the trainer's too, the daemon keeps to what the trainer leaves",
                folder.display()
            ),
        },
    )
}

fn second_group_item(options: &PoolOptions, is_on: bool) -> QuietItem {
    QuietItem::held(
        "second-group",
        match (options.policy.word(), is_on) {
            ("idle", true) => {
                "other processes keep the cores busy: threads of the next class work now".to_owned()
            }
            ("idle", false) => format!(
                "{} threads of the next class stand by in case the work threads starve",
                options.rescue_threads
            ),
            _ => "not needed: the class cannot starve".to_owned(),
        },
    )
}

fn huge_pages_item(rings: HugePages) -> QuietItem {
    let [bytes, possible] = [rings.bytes, rings.possible_bytes].map(in_words);
    let state = match rings.possible_bytes {
        0 => "no ring that is larger than one was made here".to_owned(),
        _ => format!("{bytes} of the rings' {possible} lie in huge pages"),
    };
    match rings.refusal {
        None => QuietItem::held("huge-pages", state),
        Some(refusal) => QuietItem::missed("huge-pages", state, huge_pages_remedy(refusal)),
    }
}

/// Whether a ring's can be had, tried with the least there is.
fn planned_huge_pages() -> QuietItem {
    let probe = Segment::create("probe", 2 << 20);
    match probe.map(|probe| probe.huge_pages().refusal) {
        Ok(None) => QuietItem::held("huge-pages", "rings are put into huge pages"),
        Ok(Some(refusal)) => {
            let state = "rings lie in small pages";
            QuietItem::missed("huge-pages", state, huge_pages_remedy(refusal))
        }
        Err(error) => QuietItem::missed("huge-pages", error.to_string(), "free some memory"),
    }
}

fn huge_pages_remedy(refusal: Refusal) -> &'static str {
    match refusal {
        Refusal::Unsupported => {
            "they can be asked for with Linux 6.1 or newer, built with transparent huge pages"
        }
        Refusal::NoneFree => {
            "free memory is in pieces, and making room took too long: `echo 1 > /proc/sys/vm/compact_memory` before the start"
        }
    }
}

/// Compares the daemon's scheduling group with a process's.
fn compare(trainer: u32) -> Relation {
    if trainer == 0 {
        let reason = "the trainer is in a process namespace that cannot be seen from here";
        return Relation::Unknown(format!("{reason}, so its scheduling group is not known"));
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
        _ => Relation::Unknown(format!(
            "the scheduling group of the trainer (process {trainer}) cannot be read"
        )),
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

/// Of "/autogroup-17 nice 0" the name. The file is empty for a process that has never been in a session of its own, such
/// as a container's first one and its children.
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

/// Cores as they are written in a configuration: `0-3,8`.
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
    fn a_process_is_in_its_own_group_and_a_new_session_is_not() {
        assert!(matches!(compare(std::process::id()), Relation::Same(_)));
        assert!(matches!(compare(0), Relation::Unknown(_)));
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
        // The process is another program before it has a session of its own.
        while compare(other.id()) != elsewhere {
            assert!(other.try_wait().unwrap().is_none());
            std::thread::yield_now();
        }
        other.kill().unwrap();
        other.wait().unwrap();
    }

    #[test]
    fn threads_outside_every_autogroup_stand_beside_the_trainers_by_their_class() {
        let compared = compare_autogroups;
        assert_eq!(compared("/autogroup-3", "/autogroup-3"), Relation::Same("/autogroup-3".into()));
        assert_eq!(compared("/autogroup-3", "/autogroup-4"), Relation::Autogroups);
        assert_eq!(compared("/autogroup-3", ROOT_GROUP), Relation::Autogroups);
        assert_eq!(compared(ROOT_GROUP, "/autogroup-3"), Relation::BesideAutogroup);
        assert_eq!(compared(ROOT_GROUP, ROOT_GROUP), Relation::Same(ROOT_GROUP.to_owned()));
    }

    #[test]
    fn spare_cores_are_those_that_the_trainer_may_not_use() {
        assert_eq!(spare_cores(&[0, 1, 2, 3], &[0, 1]), [2, 3]);
        assert_eq!(spare_cores(&[0, 1], &[]), [] as [u32; 0], "nothing is known of the trainer");
    }

    #[test]
    fn cores_are_listed_as_ranges() {
        assert_eq!(list(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
    }
}
