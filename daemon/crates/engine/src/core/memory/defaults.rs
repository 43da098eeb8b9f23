//! Defaults for a stream's memory: `ring.memory`, the threads of `auto` stages, `ring.slots`.
//!
//! They depend on the limits of the machine and its control groups and on the number of local ranks, not on the memory
//! that is free at the moment: a daemon that replaces another must choose the same slots. The contents of batches do
//! not depend on them.

use crate::core::memory::machine::Machine;
use crate::core::memory::{MemoryPlan, SCRATCH_BYTES_PER_THREAD, most_feeders};
use crate::ground::stream::{Stream, USUAL_MEMORY_BYTES};

/// Memory for large samples and further threads, as a multiple of the threads' memory.
const ROOM_FOR_LARGE: u64 = 4;
/// Minimal number of slots of a ring.
const MIN_SLOTS: u16 = 3;
/// The defaults of the keys `ring.slots` and `ring.hold`.
const USUAL_SLOTS_AND_HOLD: (u16, u16) = (8, 6);
/// Maximal number of slots, by default, of a ring whose rows come over a network.
const MOST_SLOTS: u16 = 64;
/// Maximal memory of such a ring, if it has more slots than others, and its part of a rank's memory.
const MOST_RING_BYTES: u64 = 512 << 20;
const RING_SHARE: u64 = 32;

impl Stream {
    /// Chooses threads, slots and memory that are not configured, so that `local_ranks` such daemons fit the machine.
    /// Configured values stay; if they do not fit, the plan's checks report it.
    pub fn choose_defaults(&mut self, local_ranks: u32) {
        self.choose_defaults_on(&Machine::default(), local_ranks);
    }

    fn choose_defaults_on(&mut self, machine: &Machine<'_>, local_ranks: u32) {
        let capacity = machine.capacity_bytes().unwrap_or(u64::MAX);
        let share = capacity / u64::from(local_ranks.max(1));
        // The trainers need the rest.
        let given = self.config.ring.memory;
        let most = given.unwrap_or(share / 4 * 3);
        let total = |stream: &Self| MemoryPlan::of(stream, stream.thread_count()).total_bytes();
        self.config.ring.memory = Some(most);
        let beyond = total(self).saturating_sub(most).div_ceil(SCRATCH_BYTES_PER_THREAD);
        let beyond = u32::try_from(beyond).unwrap_or(u32::MAX);
        for stage in self.stages.iter().filter(|stage| stage.is_auto) {
            stage.gate.set_limit(stage.gate.limit().saturating_sub(beyond).max(1));
        }
        let is_given = |key| self.config.is_given(&["ring", key]);
        let slots_are_open = !is_given("slots") && !is_given("hold");
        let ring = &self.config.ring;
        // A feeder has set its own.
        let are_usual = slots_are_open && (ring.slots, ring.hold) == USUAL_SLOTS_AND_HOLD;
        if are_usual && self.reads_over_network() {
            // Of a given ceiling half is left for what sessions share.
            let sessions = u64::from(self.config.listen.max_sessions).max(1);
            let of_memory = given.map_or(u64::MAX, |given| given / (2 * sessions));
            let ring_bytes = MOST_RING_BYTES.min(share / RING_SHARE).min(of_memory);
            let bytes = MemoryPlan::of(self, self.thread_count()).session_bytes();
            let ring = &mut self.config.ring;
            let slot_bytes = bytes / u64::from(ring.slots);
            let fitting = ring_bytes.checked_div(slot_bytes).unwrap_or(0);
            let slots = u16::try_from(fitting).unwrap_or(MOST_SLOTS).min(MOST_SLOTS);
            ring.slots = ring.slots.max(slots);
            ring.hold = ring.slots - 2;
        }
        while slots_are_open && total(self) > most && self.config.ring.slots > MIN_SLOTS {
            self.config.ring.slots -= 1;
            self.config.ring.hold = self.config.ring.slots - 2;
        }
        if given.is_none() {
            let plan = MemoryPlan::of(self, self.thread_count());
            let sessions = u64::from(self.config.listen.max_sessions);
            let roomy = plan
                .session_bytes()
                .saturating_mul(sessions - 1)
                .saturating_add(plan.scratch_bytes.saturating_mul(ROOM_FOR_LARGE))
                .saturating_add(plan.total_bytes())
                .max(USUAL_MEMORY_BYTES)
                .min(share / 2);
            self.config.ring.memory = Some(roomy.max(plan.total_bytes()));
        }
    }
}

impl Stream {
    /// Whether rows come over a network: many are on their way together, and no more than the ring has room for.
    fn reads_over_network(&self) -> bool {
        self.storage.properties().requests.is_some() || most_feeders(&self.config.feeders) > 0
    }
}

#[cfg(test)]
mod tests {
    use crate::core::memory::defaults::*;
    use forebay_config::{Config, Override};
    use forebay_dataset::OpenOptions;
    use forebay_formats::testing::npy_bytes;
    use forebay_observe::Clock;

    /// A stream of batches of 40 MB on a machine with this memory, and with `cores` cores per rank; returns its slots,
    /// threads and memory in MiB.
    fn chosen(keys: &[&str], gibibytes: u64, cores: u32, ranks: u32) -> (u16, u32, u64) {
        let folder = tempfile::tempdir().unwrap();
        let text = format!("MemTotal: {} kB\nMemAvailable: 1 kB\n", gibibytes << 20);
        std::fs::write(folder.path().join("meminfo"), text).unwrap();
        std::fs::create_dir(folder.path().join("data")).unwrap();
        let array = npy_bytes("<i8", false, "(20000,)", &[0; 160_000]);
        std::fs::write(folder.path().join("data/0.npy"), array).unwrap();
        let path = folder.path().join("stream.toml");
        let text = "dataset = { format = \"npy\", path = \"data\", index = \"index\" }\nbatch.size = 256\n\
                    [[stage]]\nname = \"work\"\noperations = []\n";
        std::fs::write(&path, text).unwrap();
        let keys: Vec<_> = keys.iter().map(|key| Override::from_argument(key).unwrap()).collect();
        let config = Config::from_file(&path, &keys).unwrap();
        let options = OpenOptions::default();
        let mut stream =
            Stream::open(config, forebay_formats::open_configured, cores, options, Clock::system())
                .unwrap();
        let machine = Machine { proc: folder.path(), cgroup: folder.path() };
        stream.choose_defaults_on(&machine, ranks);
        let plan = MemoryPlan::of(&stream, stream.thread_count());
        assert!(stream.config.ring.hold < stream.config.ring.slots);
        assert!(!keys.is_empty() || plan.total_bytes() <= plan.ceiling_bytes);
        (stream.config.ring.slots, stream.thread_count(), plan.ceiling_bytes >> 20)
    }

    #[test]
    fn defaults_fit_the_machine() {
        assert_eq!(chosen(&[], 64, 8, 1), (8, 8, 2048), "as on most machines");
        let (slots, threads, mebibytes) = chosen(&[], 1024, 256, 1);
        assert!((slots, threads) == (8, 256) && mebibytes > 4500, "many cores: {mebibytes}");
        let (slots, threads, mebibytes) = chosen(&[], 32, 224, 8);
        assert!(slots == 8 && threads < 224 && mebibytes <= 3072, "{threads}, {mebibytes}");
        let (slots, threads, mebibytes) = chosen(&[], 3, 64, 8);
        assert!(
            (3..8).contains(&slots) && threads == 1 && mebibytes <= 288,
            "{slots}, {mebibytes}"
        );
    }

    #[test]
    fn rows_over_a_network_have_more_slots_if_they_are_small() {
        let far = "feeders.addresses=[\"127.0.0.1:7001\"]";
        let slots = |keys: &[&str], gibibytes| chosen(keys, gibibytes, 8, 1).0;
        assert_eq!(slots(&["batch.size=4"], 64), 8, "rows of this host");
        assert_eq!(slots(&[far, "batch.size=4"], 64), 64);
        assert_eq!(slots(&[far, "batch.size=64"], 64), 52, "512 MiB of batches of 10 MB");
        assert_eq!(slots(&[far, "batch.size=64"], 8), 26, "a 32nd of the memory");
        assert_eq!(slots(&[far, "batch.size=512"], 64), 8, "batches of 80 MB");
        assert_eq!(
            slots(&[far, "batch.size=64", "ring.memory=1GiB"], 64),
            13,
            "an eighth of 1 GiB"
        );
        assert_eq!(slots(&[far, "batch.size=4", "ring.slots=5"], 64), 5);
        assert_eq!(slots(&[far, "batch.size=4", "ring.hold=2"], 64), 8);
    }

    #[test]
    fn configured_values_are_kept() {
        assert_eq!(chosen(&["ring.memory=1GiB"], 64, 107, 1).2, 1024);
        let (slots, threads, _) = chosen(&["ring.memory=1GiB"], 64, 107, 1);
        assert!(slots == 8 && (30..50).contains(&threads), "{threads}");
        let named = ["ring.slots=8", "ring.memory=100MiB", "stage.work.concurrency=5"];
        assert_eq!(chosen(&named, 64, 107, 1), (8, 5, 100), "the check of the plan refuses it");
    }
}
