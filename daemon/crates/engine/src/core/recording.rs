//! The engine's part of a recording: its tracks, the names for its numbers, and a memory check.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::Engine;
use crate::core::memory::{MemoryPlan, check_recording};
use crate::core::session::Session;
use forebay_observe::recorder::text::{Scene, SessionNames, StreamNames};
use forebay_observe::recorder::{RECORDING_BYTES, Recorder, Sizes, Track};

impl Engine {
    /// The recorder of all threads.
    pub fn recorder(&self) -> Arc<Recorder> {
        Arc::clone(&self.pool.shared.recorder)
    }

    /// Passes the recorder to the streams, for their batches.
    pub(super) fn share_recorder(&self) {
        for stream in &self.streams {
            // Set once: a stream is started once.
            let _ = stream.recorder.set(self.recorder());
        }
    }

    /// Maximal numbers of threads and lanes.
    pub fn track_sizes(&self) -> Sizes {
        let lanes = self.readings.iter().map(Vec::len).collect();
        Sizes { work: self.pool.shared.group_sizes(), lanes }
    }

    /// The attached sessions.
    pub fn sessions(&self) -> impl Iterator<Item = &Session> {
        self.sessions.values()
    }

    /// Checks that `ring.memory` and the machine have room for a recording in addition to the memory in use.
    ///
    /// # Errors
    /// The figures and the key to change.
    pub fn check_room_for_recording(&self) -> Result<(), String> {
        let threads = self.pool.threads();
        let plans = self.streams.iter().enumerate().map(|(number, stream)| {
            let plan = MemoryPlan::of(stream, threads);
            let sessions = self.sessions.values().filter(|session| session.stream_number == number);
            let rings: u64 = sessions.map(|session| session.ring.memory.bytes).sum();
            MemoryPlan { ring_bytes: rings.max(plan.ring_bytes), ..plan }
        });
        check_recording(plans, RECORDING_BYTES)
    }

    /// The names for the numbers in a recording's events.
    pub fn scene(
        &self,
        sessions: BTreeMap<u64, SessionNames>,
        unix_offset_ns: u64,
        length: Duration,
    ) -> Scene {
        let streams = self.streams.iter().map(|stream| StreamNames {
            name: stream.name().to_owned(),
            stages: stream.stages.iter().map(|stage| stage.name.clone()).collect(),
            functions: stream
                .plan
                .batch_function_figures()
                .map(|function| function.place.to_owned())
                .collect(),
            operations: (0..stream.stages.len())
                .map(|stage| stream.plan.operation_names_of_stage(stage).join(", "))
                .collect(),
        });
        Scene {
            pid: std::process::id(),
            unix_offset_ns,
            seconds: length.as_secs_f64(),
            streams: streams.collect(),
            work_threads: self
                .pool
                .shared
                .numbered_threads()
                .filter_map(|(id, group, number)| {
                    Some((u32::try_from(id).ok()?, Track::Work(group, number)))
                })
                .collect(),
            sessions,
        }
    }
}
