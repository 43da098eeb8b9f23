//! What the engine gives a recording: who may tell something, what their numbers stand for, and room.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::Engine;
use crate::engine::memory::{MemoryPlan, check_recording};
use crate::engine::session::Session;
use crate::observe::recorder::text::{Scene, SessionNames, StreamNames};
use crate::observe::recorder::{RECORDING_BYTES, Recorder, Sizes, Track};

impl Engine {
    /// What records.
    pub(in crate::engine) fn recorder(&self) -> Arc<Recorder> {
        Arc::clone(&self.pool.shared.recorder)
    }

    /// Lets what is made of the streams record too.
    pub(super) fn show_recorder(&self) {
        for stream in &self.streams {
            // A stream is started once.
            let _ = stream.recorder.set(self.recorder());
        }
    }

    /// Every thread and lane that there may be.
    pub(in crate::engine) fn track_sizes(&self) -> Sizes {
        let lanes = self.readings.iter().map(Vec::len).collect();
        Sizes { work: self.pool.shared.group_sizes(), lanes }
    }

    /// The sessions that live now.
    pub(in crate::engine) fn sessions(&self) -> impl Iterator<Item = &Session> {
        self.sessions.values()
    }

    /// Whether `ring.memory` and the machine have room for a recording beside all that there is now.
    ///
    /// # Errors
    /// The figures and the key to change.
    pub(in crate::engine) fn check_room_for_recording(&self) -> Result<(), String> {
        let threads = self.pool.threads();
        let plans = self.streams.iter().enumerate().map(|(number, stream)| {
            let plan = MemoryPlan::of(stream, threads);
            let sessions = self.sessions.values().filter(|session| session.stream_number == number);
            let rings: u64 = sessions.map(|session| session.ring_bytes).sum();
            MemoryPlan { ring_bytes: rings.max(plan.ring_bytes), ..plan }
        });
        check_recording(plans, RECORDING_BYTES)
    }

    /// What the numbers in a recording's events stand for.
    pub(in crate::engine) fn scene(
        &self,
        sessions: BTreeMap<u64, SessionNames>,
        unix_offset_ns: u64,
        length: Duration,
    ) -> Scene {
        let streams = self.streams.iter().map(|stream| StreamNames {
            name: stream.name().to_owned(),
            stages: stream.stages.iter().map(|stage| stage.name.clone()).collect(),
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
