//! Exports a recording as folded stacks: the time of each kind of thread by stream, stage and operations.
//!
//! This is wall-clock time, including sleep in a `delay` or a read. If the kernel permits it, [`crate::sampler`] adds
//! the functions that used the CPU.

use std::collections::BTreeMap;
use std::io::{self, Write};

use super::text::Scene;
use super::{Event, Kind, Recording, Track, WORKERS};
use crate::sampler::Samples;
use crate::symbols;

/// Weights by stack; frames are separated by `;`, the outermost first.
pub type Folded = BTreeMap<String, u64>;

/// The kind of a track's thread.
pub fn class_of(track: Track) -> &'static str {
    match track {
        Track::Engine => "engine",
        Track::Work(0, _) => "work",
        Track::Work(..) => "fallback",
        Track::Lane(..) => "fetch",
    }
}

/// The stack of an event, starting with the kind of thread; `None` if the event is not a thread's time.
pub fn stack_of(event: &Event, scene: &Scene) -> Option<String> {
    let class = class_of(event.track);
    let what = &event.what;
    let stream =
        scene.stream_of(what.session).map_or("a session that has ended", |stream| &stream.name);
    let stream = frame(stream);
    Some(match what.kind {
        Kind::Stage | Kind::FailedStage => {
            let stage = frame(&scene.stage_name(what.session, what.place));
            let operations =
                scene.stream_of(what.session).and_then(|stream| stream.operations.get(what.place));
            match operations.filter(|operations| !operations.is_empty()) {
                Some(operations) => format!("{class};{stream};{stage};{}", frame(operations)),
                None => format!("{class};{stream};{stage}"),
            }
        }
        Kind::Python | Kind::PythonBatch => {
            let stage = what.place / WORKERS;
            format!("python;{stream};{}", frame(&scene.stage_name(what.session, stage)))
        }
        Kind::Compaction => format!("{class};{stream};compact"),
        Kind::HeldBack => format!("{class};throttled by cpu.limit"),
        Kind::Fetch | Kind::FailedFetch => format!("{class};{stream};read"),
        Kind::WaitForBytes => format!("{class};{stream};read;wait for bytes"),
        Kind::Advance => format!("{class};{stream};advance session"),
        Kind::Batch | Kind::Ring | Kind::Step | Kind::Wait => return None,
    })
}

/// Counts of functions by stack: the kind of thread, the stage at the time of the sample, the function. The flag:
/// whether the program has symbols.
pub fn fold_samples(found: &Samples, recording: &Recording, scene: &Scene) -> (Folded, bool) {
    let mut spans: BTreeMap<Track, Vec<(u64, u64, usize)>> = BTreeMap::new();
    let mut stacks: BTreeMap<String, usize> = BTreeMap::new();
    // A worker's time is not a thread's time.
    for event in recording.events().filter(|event| !event.what.kind.is_of_worker()) {
        // A wait is part of its read, and a lane is not a thread.
        if let (Track::Work(..), Some(stack)) = (event.track, stack_of(&event, scene)) {
            let next = stacks.len();
            let stack = *stacks.entry(stack).or_insert(next);
            spans.entry(event.track).or_default().push((event.start_ns, event.end_ns, stack));
        }
    }
    let mut by_number: Vec<&str> = vec![""; stacks.len()];
    stacks.iter().for_each(|(stack, number)| by_number[*number] = stack);
    let (names, has_symbols) = symbols::names(found.samples.iter().map(|sample| sample.address));
    let mut folded = Folded::new();
    for sample in &found.samples {
        let track = scene.work_threads.get(&sample.thread);
        let span = track.and_then(|track| spans.get(track)).and_then(|spans| {
            let after = spans.partition_point(|(start, ..)| *start <= sample.at_ns);
            let (_, end, stack) = spans.get(after.checked_sub(1)?)?;
            (*end >= sample.at_ns).then(|| by_number[*stack])
        });
        let class = || match (track, found.threads.get(&sample.thread)) {
            (Some(track), _) => format!("{};between rows", class_of(*track)),
            (None, _) if sample.thread == scene.pid => "engine".to_owned(),
            (None, Some(name)) if name.starts_with("tokio") => "fetch".to_owned(),
            (None, Some(name)) => frame(name),
            (None, None) => "a thread that has ended".to_owned(),
        };
        let outer = span.map_or_else(class, str::to_owned);
        let function = names.get(&sample.address).map_or("", String::as_str);
        *folded.entry(format!("{outer};{}", frame(function))).or_default() += 1;
    }
    (folded, has_symbols)
}

/// A name as one frame, without separators.
pub fn frame(name: &str) -> String {
    let is_parting = |character: char| character == ';' || character.is_control();
    name.chars().map(|character| if is_parting(character) { ' ' } else { character }).collect()
}

/// The time of all threads by stack, in microseconds, each without its inner spans.
pub fn fold(recording: &Recording, scene: &Scene) -> Folded {
    let mut nanoseconds = Folded::new();
    for event in recording.events() {
        let Some(stack) = stack_of(&event, scene) else { continue };
        let length = event.end_ns.saturating_sub(event.start_ns);
        *nanoseconds.entry(stack).or_default() += length;
    }
    // A wait is part of its read.
    let waits: Vec<(String, u64)> = nanoseconds
        .iter()
        .filter_map(|(stack, length)| {
            Some((stack.strip_suffix(";wait for bytes")?.to_owned(), *length))
        })
        .collect();
    for (read, length) in waits {
        nanoseconds.entry(read).and_modify(|whole| *whole = whole.saturating_sub(length));
    }
    nanoseconds.into_iter().map(|(stack, length)| (stack, length / 1000)).collect()
}

/// Writes one line per stack, after a line with a description and one with the unit of the weights.
///
/// # Errors
/// The writer's errors.
pub fn write_folded(
    stacks: &Folded,
    title: &str,
    unit: &str,
    writer: &mut impl Write,
) -> io::Result<()> {
    writeln!(writer, "# title: {}", frame(title))?;
    writeln!(writer, "# unit: {unit}")?;
    for (stack, weight) in stacks.iter().filter(|(_, weight)| **weight > 0) {
        writeln!(writer, "{stack} {weight}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::recorder::text::{SessionNames, StreamNames};
    use crate::recorder::{Sizes, What, worker_place};

    #[test]
    fn times_are_summed_by_thread_kind_and_stage_without_inner_spans() {
        let scene = Scene {
            streams: vec![StreamNames {
                name: "tr;ain".to_owned(),
                stages: vec!["decode".to_owned()],
                functions: vec!["batch.operations[0]".to_owned()],
                operations: vec!["decode-image, resize".to_owned()],
            }],
            sessions: BTreeMap::from([(1, SessionNames { stream: 0, rank: 0, world_size: 1 })]),
            ..Scene::default()
        };
        let recording = Recording::allocate(Sizes { work: [2, 0], lanes: vec![1] });
        let lane = Track::Lane(0, 0);
        for (track, kind, microseconds) in [
            (Track::Work(0, 0), Kind::Stage, 30),
            (Track::Work(0, 1), Kind::FailedStage, 12),
            (lane, Kind::Fetch, 50),
            (lane, Kind::WaitForBytes, 20),
            (Track::Engine, Kind::Step, 1000),
            (Track::Engine, Kind::Advance, 7),
            (Track::Work(0, 1), Kind::Python, 9),
            (Track::Work(0, 1), Kind::PythonBatch, 8),
        ] {
            let place = if kind == Kind::PythonBatch { worker_place(1, 3) } else { 0 };
            let what = What { session: 1, place, ..What::of(kind) };
            recording.push(track, 0, microseconds * 1000, what);
        }
        let mut text = Vec::new();
        write_folded(&fold(&recording, &scene), "a\ntitle", "us", &mut text).unwrap();
        assert_eq!(
            String::from_utf8(text).unwrap(),
            "# title: a title\n# unit: us\nengine;tr ain;advance session 7\nfetch;tr ain;read 30\n\
             fetch;tr ain;read;wait for bytes 20\npython;tr ain;batch.operations[0] 8\npython;tr ain;decode 9\nwork;tr ain;decode;decode-image, resize 42\n"
        );
    }
}
