//! A report as Prometheus' families. `docs/reference/metrics.md` lists them; a test compares the two.
//!
//! All units are seconds and bytes. Everything that is counted is a counter since the start, so that readers can
//! compute rates and shares over any window; states are gauges.

use std::collections::BTreeMap;

use super::exposition::{Family, Kind, Labels};
use forebay_observe::{
    CacheReport, DaemonReport, DatasetReport, JpegIndexReport, PythonReport, QueueReport,
    RequestReport, SessionReport, SharingReport, StageReport, StreamReport, SupplyReport,
};

/// Buckets end at powers of two of a nanosecond from 2¹⁴ (16 µs) to 2³⁶ (69 s). Buckets of the daemon's histogram end
/// there too, so the counts are exact.
const BUCKET_POWERS: std::ops::RangeInclusive<u32> = 14..=36;

/// All families, including empty ones.
pub(super) fn families(report: &DaemonReport) -> Vec<Family> {
    [
        of_daemon(report),
        of_stages(&report.streams),
        of_python(&report.streams),
        of_requests(&report.streams),
        of_caches(&report.streams),
        of_sharing(&report.streams),
        of_feeders(&report.streams),
        of_jpeg_indexes(&report.streams),
        of_datasets(&report.streams),
        of_queues(report),
        of_sessions(&report.sessions),
    ]
    .concat()
}

/// A table of families: name, help, samples. A name that ends in `_total` is a counter, any other a gauge.
macro_rules! families {
    ($($name:literal: $help:literal => $samples:expr;)*) => {
        vec![$(family($name, $help, $samples)),*]
    };
}

fn family(
    name: &'static str,
    help: &'static str,
    samples: impl IntoIterator<Item = (Labels, f64)>,
) -> Family {
    let kind = if name.ends_with("_total") { Kind::Counter } else { Kind::Gauge };
    let mut family = Family::new(name, kind, help);
    for (labels, value) in samples {
        family.add(&labels, value);
    }
    family
}

/// Exact up to 2⁵³.
#[expect(clippy::cast_precision_loss, reason = "Prometheus has no other numbers")]
const fn count(value: u64) -> f64 {
    value as f64
}

fn of_daemon(report: &DaemonReport) -> Vec<Family> {
    let one = |value: f64| [(Labels::new(), value)];
    let budget = &report.cpu_budget;
    // If several reads of a stage hang, the longest counts.
    let mut stalls: BTreeMap<Labels, f64> = BTreeMap::new();
    for stall in &report.stalls {
        let mut labels = vec![("stream", stall.stream.clone())];
        labels.extend([("session", stall.session.to_string()), ("stage", stall.stage.clone())]);
        let longest = stalls.entry(labels).or_default();
        *longest = longest.max(stall.seconds);
    }
    let stream_label = |stream: &StreamReport| vec![("stream", stream.name.clone())];
    let memory = |stream: &StreamReport| (stream_label(stream), count(stream.memory_budget_bytes));
    let lost = report.streams.iter().filter_map(|stream| {
        Some((stream_label(stream), count(stream.quarantine.as_ref()?.samples_lost)))
    });
    let quiet = report.cpu_isolation.iter();
    let quiet = quiet.map(|item| (vec![("item", item.name.clone())], item.in_force.into()));
    families! {
        "forebay_build_info": "The release, always 1."
            => [(vec![("release", report.release.clone())], 1.0)];
        "forebay_verdict": "What the limit is, always 1: a stage's name, storage, ring, cpu-budget, trainer or none."
            => [(vec![("limit", report.verdict.limit.clone())], 1.0)];
        "forebay_stall_seconds": "For how long a stage or the trainer has not moved, once it is longer than errors.stall_after."
            => stalls;
        "forebay_cpu_seconds_total": "User and system time of the daemon, without its Python workers."
            => one(report.cpu_seconds);
        "forebay_cpu_budget_cores": "CPU seconds a second that the daemon may use; no sample without a limit."
            => budget.cores.map(|cores| (Labels::new(), cores));
        "forebay_cpu_budget_wait_seconds_total": "How long work threads have waited for the CPU budget, all together."
            => one(budget.held_back_seconds);
        "forebay_work_threads": "The work threads." => one(report.threads.into());
        "forebay_fallback_pool": "1 while the fallback pool works because the lowered threads starve."
            => one(report.fallback_pool.into());
        "forebay_resident_bytes": "Resident memory, the rings included." => one(count(report.resident_bytes));
        "forebay_private_bytes": "Resident memory without the rings." => one(count(report.private_bytes));
        "forebay_memory_budget_bytes": "ring.memory: what rings, reads under way and scratch memory may take together."
            => report.streams.iter().map(memory);
        "forebay_fetch_budget_bytes": "What samples may hold between fetch and work."
            => one(count(report.fetch_budget_bytes));
        "forebay_fetch_used_bytes": "What they hold." => one(count(report.fetch_in_use_bytes));
        "forebay_quiet_in_force": "Whether a measure that isolates the trainer is in force." => quiet;
        "forebay_quarantine_samples_lost_total": "Bad samples that could not be listed in errors.quarantine." => lost;
    }
}

fn of_stages(streams: &[StreamReport]) -> Vec<Family> {
    let stages: Vec<(Labels, &StageReport)> = streams
        .iter()
        .flat_map(|stream| {
            stream.stages_and_batch().map(move |stage| (labels_of(stream, stage), stage))
        })
        .collect();
    let each = |value: fn(&StageReport) -> f64| {
        stages.iter().map(move |(labels, stage)| (labels.clone(), value(stage)))
    };
    let help = "How long tasks took that succeeded.";
    let mut times = Family::new("forebay_stage_task_seconds", Kind::Histogram, help);
    for (labels, stage) in &stages {
        let (buckets, total) = cumulative(&stage.times);
        times.add_histogram(labels, buckets.into_iter(), total, stage.busy_seconds);
    }
    let mut families = families! {
        "forebay_stage_concurrency": "The most tasks of the stage that may run at once."
            => each(|stage| stage.concurrency.into());
        "forebay_stage_tasks_total": "Tasks that ended, failed ones included; a task is a sample, of batch.operations and functions on batches a batch."
            => each(|stage| count(stage.num_tasks));
        "forebay_stage_failures_total": "Tasks that failed." => each(|stage| count(stage.num_failures));
    };
    families.push(times);
    families
}

/// Families of the user's Python functions.
fn of_python(streams: &[StreamReport]) -> Vec<Family> {
    let functions: Vec<(Labels, &PythonReport)> = streams
        .iter()
        .flat_map(|stream| {
            let labels = |one: &PythonReport| {
                vec![("stream", stream.name.clone()), ("stage", one.place.clone())]
            };
            stream.python().map(move |one| (labels(one), one))
        })
        .collect();
    let each = |value: fn(&PythonReport) -> f64| {
        functions.iter().map(move |(labels, one)| (labels.clone(), value(one)))
    };
    let hot = functions.iter().filter_map(|(labels, one)| {
        let spot = one.hot_spot.as_ref()?;
        let mut labels = labels.clone();
        labels.push(("name", spot.name.clone()));
        Some((labels, spot.share))
    });
    families! {
        "forebay_python_workers": "The most workers of a function of the user's." => each(|one| one.workers.into());
        "forebay_python_calls_total": "Samples, of a function on complete batches batches, that workers answered."
            => each(|one| count(one.num_calls));
        "forebay_python_function_seconds_total": "Time in the function, of all workers."
            => each(|one| one.function_seconds);
        "forebay_python_beside_seconds_total": "What workers did beside the function: copying, seeding."
            => each(|one| one.beside_seconds);
        "forebay_python_wait_seconds_total": "How long threads waited for a free worker, all together."
            => each(|one| one.wait_seconds);
        "forebay_python_copy_seconds_total": "How long threads wrote inputs and read results, all together."
            => each(|one| one.copy_seconds);
        "forebay_python_timeouts_total": "Calls that exceeded the timeout." => each(|one| count(one.num_timeouts));
        "forebay_python_timeout_seconds_total": "Time of calls that exceeded the timeout, all together."
            => each(|one| one.timeout_seconds);
        "forebay_python_starts_total": "Workers that were started." => each(|one| count(one.num_starts));
        "forebay_python_start_seconds_total": "From a worker's start until the module was imported, all together."
            => each(|one| one.start_seconds);
        "forebay_python_cpu_seconds_total": "User and system time of the workers, which the daemon's does not hold."
            => each(|one| one.cpu_seconds);
        "forebay_python_hot_share": "The share of the function's time that the named call in it takes." => hot;
    }
}

/// Families of remote storages.
fn of_requests(streams: &[StreamReport]) -> Vec<Family> {
    let storages: Vec<(Labels, &RequestReport)> = streams
        .iter()
        .filter_map(|stream| {
            Some((vec![("stream", stream.name.clone())], stream.requests.as_ref()?))
        })
        .collect();
    let each = |value: fn(&RequestReport) -> f64| {
        storages.iter().map(move |(labels, requests)| (labels.clone(), value(requests)))
    };
    let help = "From a request to the first byte of its answer.";
    let mut times = Family::new("forebay_storage_first_byte_seconds", Kind::Histogram, help);
    for (labels, requests) in &storages {
        let (buckets, total) = cumulative(&requests.first_bytes);
        times.add_histogram(labels, buckets.into_iter(), total, requests.first_byte_seconds);
    }
    let mut families = families! {
        "forebay_storage_requests_total": "Requests for samples that began."
            => each(|requests| count(requests.num_requests));
        "forebay_storage_failures_total": "Requests that failed." => each(|requests| count(requests.num_failures));
        "forebay_storage_refused_total": "Of these, those that the server had no room for: status 429 or 503."
            => each(|requests| count(requests.num_refused));
        "forebay_storage_hedges_total": "Second requests, for what a first one had not begun to bring for long."
            => each(|requests| count(requests.num_hedges));
        "forebay_storage_bytes_total": "Bytes of samples that came." => each(|requests| count(requests.bytes));
        "forebay_storage_in_flight": "Requests under way." => each(|requests| count(requests.in_flight));
    };
    families.push(times);
    families
}

/// Families of disk caches.
fn of_caches(streams: &[StreamReport]) -> Vec<Family> {
    let caches: Vec<(Labels, &CacheReport)> = streams
        .iter()
        .filter_map(|stream| Some((vec![("stream", stream.name.clone())], stream.cache.as_ref()?)))
        .collect();
    let each = |value: fn(&CacheReport) -> u64| {
        caches.iter().map(move |(labels, cache)| (labels.clone(), count(value(cache))))
    };
    families! {
        "forebay_cache_hits_total": "Reads that the cache on disk answered." => each(|cache| cache.num_hits);
        "forebay_cache_hit_bytes_total": "Their bytes." => each(|cache| cache.hit_bytes);
        "forebay_cache_misses_total": "Reads that went on to the storage." => each(|cache| cache.num_misses);
        "forebay_cache_kept_bytes_total": "Bytes that were written to it." => each(|cache| cache.kept_bytes);
        "forebay_cache_full_total": "Reads that were not kept for want of room." => each(|cache| cache.num_full);
        "forebay_cache_damaged_total": "Entries that were damaged, removed and fetched again."
            => each(|cache| cache.num_damaged);
        "forebay_cache_faults_total": "Calls to its disk that failed." => each(|cache| cache.num_faults);
    }
}

/// Families of rows that several trainers share.
fn of_sharing(streams: &[StreamReport]) -> Vec<Family> {
    let sharing: Vec<(Labels, &SharingReport)> = streams
        .iter()
        .filter_map(|stream| {
            Some((vec![("stream", stream.name.clone())], stream.sharing.as_ref()?))
        })
        .collect();
    let each = |value: fn(&SharingReport) -> u64| {
        sharing.iter().map(move |(labels, report)| (labels.clone(), count(value(report))))
    };
    families! {
        "forebay_sharing_rows_made_total": "Rows made while the stream had several trainers."
            => each(|sharing| sharing.num_made);
        "forebay_sharing_rows_copied_total": "Rows copied from a row as it was made." => each(|sharing| sharing.num_copied);
        "forebay_sharing_rows_copied_later_total": "Rows copied from the window."
            => each(|sharing| sharing.num_copied_later);
        "forebay_sharing_window_in_use_bytes": "Bytes of rows kept for other trainers."
            => each(|sharing| sharing.window_in_use_bytes);
    }
}

/// Families of rows that feeders make.
fn of_feeders(streams: &[StreamReport]) -> Vec<Family> {
    let name = |stream: &StreamReport| vec![("stream", stream.name.clone())];
    let supplies: Vec<(Labels, &SupplyReport)> =
        streams.iter().filter_map(|stream| Some((name(stream), stream.supply.as_ref()?))).collect();
    let each = |value: fn(&SupplyReport) -> u64| {
        supplies.iter().map(move |(labels, report)| (labels.clone(), count(value(report))))
    };
    let wanted = streams
        .iter()
        .filter_map(|stream| Some((name(stream), stream.feeding.as_ref()?.feeders_wanted)));
    families! {
        "forebay_feeders_wanted": "Feeders that are needed so that no trainer waits and none is idle, as a fraction."
            => wanted;
        "forebay_feeders_serving": "Feeders that serve."
            => each(SupplyReport::serving);
        "forebay_feeders_rows_received_total": "Rows received from feeders."
            => each(|supply| supply.num_supplied);
        "forebay_feeders_rows_outstanding": "Rows asked of feeders and not received yet."
            => each(|supply| supply.num_outstanding);
        "forebay_feeders_rows_lost_total": "Rows that came back without having been made."
            => each(|supply| supply.num_lost);
        "forebay_feeders_rows_hedged_total": "Overdue rows that were asked for again, or made here instead."
            => each(|supply| supply.num_hedged);
        "forebay_feeders_rows_compared_total": "Rows that were made here too and compared."
            => each(|supply| supply.num_checked);
        "forebay_feeders_rows_differing_total": "Rows of feeders that differed from those made here."
            => each(|supply| supply.num_differing);
        "forebay_feeders_received_bytes_total": "Bytes of answers received from feeders that are listed."
            => each(|supply| supply.feeders.iter().map(|feeder| feeder.received_bytes).sum());
    }
}

/// Families of the index of JPEG files.
fn of_jpeg_indexes(streams: &[StreamReport]) -> Vec<Family> {
    let indexes: Vec<(Labels, &JpegIndexReport)> = streams
        .iter()
        .filter_map(|stream| {
            Some((vec![("stream", stream.name.clone())], stream.jpeg_index.as_ref()?))
        })
        .collect();
    let each = |value: fn(&JpegIndexReport) -> u64| {
        indexes.iter().map(move |(labels, index)| (labels.clone(), count(value(index))))
    };
    families! {
        "forebay_jpeg_index_images": "The images of the dataset." => each(|index| index.images);
        "forebay_jpeg_index_known": "Images of which the JPEG index knows something." => each(|index| index.known);
        "forebay_jpeg_index_bytes": "The size of the JPEG index." => each(|index| index.bytes);
        "forebay_jpeg_index_found_total": "Decodings of parts of JPEG files with the index."
            => each(|index| index.decodes_with);
        "forebay_jpeg_index_missed_total": "Such decodings of files that it did not know."
            => each(|index| index.decodes_without);
        "forebay_jpeg_index_dropped_total": "Records that were dropped because too many waited to be written."
            => each(|index| index.dropped);
    }
}

/// Families of mixtures.
fn of_datasets(streams: &[StreamReport]) -> Vec<Family> {
    let datasets: Vec<(Labels, &DatasetReport)> = streams
        .iter()
        .flat_map(|stream| {
            let labels = |one: &DatasetReport| {
                vec![("stream", stream.name.clone()), ("dataset", one.name.clone())]
            };
            stream.datasets.iter().map(move |one| (labels(one), one))
        })
        .collect();
    let each = |value: fn(&DatasetReport) -> u64| {
        datasets.iter().map(move |(labels, one)| (labels.clone(), count(value(one))))
    };
    families! {
        "forebay_dataset_samples": "The samples of a dataset of several." => each(|one| one.samples);
        "forebay_dataset_rows_published_total": "Its rows in batches that were published, padding included."
            => each(|one| one.rows_published);
    }
}

fn labels_of(stream: &StreamReport, stage: &StageReport) -> Labels {
    vec![("stream", stream.name.clone()), ("stage", stage.name.clone())]
}

/// The number of times up to each bound in seconds, and the number of all times.
fn cumulative(times: &[(f64, u64)]) -> (Vec<(f64, f64)>, f64) {
    let at_most = |bound: f64| {
        times.iter().filter(|(seconds, _)| *seconds <= bound).map(|(_, tasks)| tasks).sum()
    };
    let buckets = BUCKET_POWERS.map(|power| {
        let bound = count(1 << power) / 1e9;
        (bound, count(at_most(bound)))
    });
    (buckets.collect(), count(at_most(f64::INFINITY)))
}

/// The queues between stages, and each stream's ring from its first session.
fn of_queues(report: &DaemonReport) -> Vec<Family> {
    let mut queues: Vec<(Labels, &QueueReport)> = Vec::new();
    for stream in &report.streams {
        let last = stream.stages_and_functions().count().saturating_sub(1);
        let first = report.sessions.iter().find(|session| session.stream == stream.name);
        for (place, stage) in stream.stages_and_functions().enumerate() {
            let Some(queue) = &stage.queue else { continue };
            // The ring's counts restart with each session, so its label has the session's number.
            let session = first.filter(|_| place == last);
            let number = session.map_or_else(String::new, |session| session.session.to_string());
            let mut labels = labels_of(stream, stage);
            labels.push(("session", number));
            queues.push((labels, queue));
        }
    }
    let each = |value: fn(&QueueReport) -> f64| {
        queues.iter().map(move |(labels, queue)| (labels.clone(), value(queue)))
    };
    families! {
        "forebay_queue_items_total": "What went into the queue after the stage: samples, or batches where it is the ring."
            => each(|queue| count(queue.num_items));
        "forebay_queue_occupied_seconds_total": "How long there was something in the queue to take; its rate is the occupancy."
            => each(|queue| queue.occupancy_rate * queue.elapsed);
        "forebay_queue_put_wait_seconds_total": "How long the putting side was held up, all together."
            => each(|queue| queue.ave_put_time * count(queue.num_items));
        "forebay_queue_get_wait_seconds_total": "How long the taking side waited, all together."
            => each(|queue| queue.ave_get_time * count(queue.num_items));
    }
}

fn of_sessions(sessions: &[SessionReport]) -> Vec<Family> {
    let labels_of = |session: &SessionReport| {
        let (number, rank) = (session.session.to_string(), session.rank.to_string());
        let mut labels =
            vec![("stream", session.stream.clone()), ("session", number), ("rank", rank)];
        if !session.trainer.is_empty() {
            labels.push(("trainer", session.trainer.clone()));
        }
        labels
    };
    let labelled: Vec<(Labels, &SessionReport)> =
        sessions.iter().map(|session| (labels_of(session), session)).collect();
    let each = |value: fn(&SessionReport) -> f64| {
        labelled.iter().map(move |(labels, session)| (labels.clone(), value(session)))
    };
    let slots = labelled.iter().flat_map(|(labels, session)| {
        let states = [
            ("free", session.slots_free),
            ("filling", session.slots_filling),
            ("ready", session.slots_ready),
            ("leased", session.slots_leased),
        ];
        states.map(|(state, slots)| {
            let mut labels = labels.clone();
            labels.push(("state", state.to_owned()));
            (labels, count(slots))
        })
    });
    families! {
        "forebay_session_world_size": "The ranks of the session's job." => each(|session| session.world_size.into());
        "forebay_session_batches_published_total": "Batches put into the ring."
            => each(|session| count(session.batches_published));
        "forebay_session_batches_taken_total": "Batches that the trainer says it took."
            => each(|session| count(session.batches_taken));
        "forebay_session_wait_seconds_total": "How long the trainer says it waited for data; its rate is the wait share."
            => each(|session| session.wait_seconds);
        "forebay_session_work_seconds_total": "How long work threads worked for the session; its rate is a number of threads."
            => each(|session| session.work_seconds);
        "forebay_session_epoch": "The epoch of the next batch to be opened."
            => each(|session| count(session.position.epoch));
        "forebay_session_epoch_samples": "How far into that epoch it begins, in samples over all ranks."
            => each(|session| count(session.position.samples));
        "forebay_session_slots": "Slots of the ring by state." => slots;
        "forebay_session_ring_bytes": "The ring's shared memory." => each(|session| count(session.ring_bytes));
        "forebay_session_samples_substituted_total": "Samples that took a bad one's place."
            => each(|session| count(session.samples_substituted));
        "forebay_session_samples_unreadable_total": "Of these, samples in the place of a file that could not be read."
            => each(|session| count(session.samples_unreadable));
    }
}
