//! Opens the streams of a daemon that a loader has started, for it alone (`private`) or for all loaders of the host that
//! share it (`shared`).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_protocol::frames::{ConfigSource, Fault, FaultKind, Start};

use super::launch::{Launch, Rings};
use super::opening_watch::OpeningWatch;
use forebay_affinity::LocalRank;
use forebay_config::{Config, DatasetObject, Override};
use forebay_control::{Opened, Opening, RestartState, Resumed};
use forebay_engine::{LastEnd, WorkPage};
use forebay_inspect::error_text::whole_reason;
use forebay_inspect::http::MetricsListener;
use forebay_keys::ConfigError;
use forebay_workers::WorkerStart;

/// The loaders that a daemon serves.
#[derive(Debug, Clone)]
pub(super) enum Audience {
    /// The one that started it.
    OneLoader,
    /// All that come to the socket in this folder.
    Shared(PathBuf),
}

/// Opens the streams that the loader requests; a dataset is scanned on a separate thread. `progress` changes during the
/// opening.
///
/// # Errors
/// The reason, for the loader.
pub(super) async fn open_for_loader(
    opening: Opening,
    progress: Arc<AtomicU64>,
    audience: &Audience,
) -> Result<Opened, Fault> {
    let internal = |message: String| Fault { kind: FaultKind::Internal, message };
    let (rank, count) = match &opening {
        Opening::Start(start, _) => (start.local_rank, start.local_world_size),
        Opening::Restart(restart, _) => (restart.local_rank, restart.local_world_size),
    };
    if let Opening::Restart(restart, _) = &opening {
        tracing::warn!(
            process = std::process::id(),
            "the previous daemon died: {}; this daemon resumes its sessions",
            restart.reason
        );
    }
    let run_folder = match audience {
        Audience::OneLoader => None,
        Audience::Shared(folder) => Some(folder.as_path()),
    };
    let is_shared = run_folder.is_some();
    // A shared daemon has the share of all ranks of the host, and a session for each.
    let local = match is_shared {
        true => LocalRank { rank: 0, count: 1 },
        false => LocalRank { rank, count: count.max(1) },
    };
    // A separate thread: a thread of the runtime would later read samples, with the rights that this process drops.
    let (sender, prepared) = tokio::sync::oneshot::channel();
    let prepare = move || {
        let mut before = None;
        let (config, rings) = match opening {
            Opening::Start(start, object) => {
                let mut config = read_config(&start).map_err(|error| Fault {
                    kind: FaultKind::Config,
                    message: error.to_string(),
                })?;
                if is_shared {
                    refuse_object(object.as_ref())?;
                    config.listen.max_sessions = config.listen.max_sessions.max(count);
                } else {
                    // It has one trainer, for which nothing is kept.
                    config.share.window.get_or_insert(1);
                }
                config.dataset.object = object;
                (config, Rings::New)
            }
            Opening::Restart(restart, kept) => {
                let Resumed { config, page, index } = RestartState::open(kept)?;
                let end = match restart.signal {
                    // Its clients are not its parent.
                    _ if is_shared => LastEnd::Unknown,
                    Some(signal) => LastEnd::Signal(signal),
                    None => LastEnd::Exit,
                };
                before = Some((page, end));
                (config, Rings::Kept(index))
            }
        };
        let configs = vec![config];
        let metrics = match (MetricsListener::bind(&configs), &rings) {
            (Ok(metrics), _) => metrics,
            // A running trainer needs its batches more than the metrics.
            (Err(error), Rings::Kept(_)) => {
                tracing::warn!("{error}; this daemon runs without listen.metrics");
                None
            }
            (Err(error), Rings::New) => {
                return Err(Fault { kind: FaultKind::Config, message: error.to_string() });
            }
        };
        // Relaxed: a counter that orders nothing.
        let on_progress = |_| {
            progress.fetch_add(1, Ordering::Relaxed);
        };
        let opening = OpeningWatch::patient();
        // At a first start the loader waits for the workers; at a restart a trainer may be running.
        let workers = match rings {
            Rings::New => WorkerStart::AtOnceInNormalClass,
            Rings::Kept(_) => WorkerStart::AtOnce,
        };
        let mut launch = Launch::prepare(configs, local, rings, workers, &opening, on_progress)?;
        if is_shared {
            launch.spread_rings();
        }
        let before = before.as_ref().map(|(page, end)| (page, *end));
        let page = WorkPage::in_memory(before)
            .map_err(|error| Fault { kind: FaultKind::Memory, message: error.to_string() })?;
        Ok((launch, metrics, page))
    };
    std::thread::Builder::new()
        .name("forebay-start".to_owned())
        .spawn(move || drop(sender.send(prepare())))
        .map_err(|error| internal(format!("cannot start a thread: {error}")))?;
    let (launch, metrics, page) = prepared.await.map_err(|error| internal(error.to_string()))??;
    let restart_state = launch.streams.first().map(|stream| RestartState::of(stream, &page));
    let restart_state = restart_state.transpose();
    let restart_state = restart_state.unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot save the plan for a restart; if this daemon dies, its loaders fail with DaemonLost");
        None
    });
    let engine = launch
        .start(run_folder, metrics, Some(page))
        .map_err(|error| internal(whole_reason(&error)))?;
    Ok((engine, restart_state))
}

/// A Dataset object is pickled code of one trainer: no other trainer's samples are made by it.
fn refuse_object(object: Option<&DatasetObject>) -> Result<(), Fault> {
    if object.is_none() {
        return Ok(());
    }
    let message =
        "a Dataset object needs a daemon of its loader alone; leave `shared` out".to_owned();
    Err(Fault { kind: FaultKind::Config, message })
}

fn read_config(start: &Start) -> Result<Config, ConfigError> {
    let mut dict = serde_json::Map::new();
    for (key, text) in &start.overrides {
        let value =
            serde_json::from_str(text).unwrap_or_else(|_| serde_json::Value::String(text.clone()));
        dict.insert(key.clone(), value);
    }
    let overrides = Override::from_json(&serde_json::Value::Object(dict))?;
    match &start.config {
        ConfigSource::File(path) => Config::from_file(Path::new(path), &overrides),
        ConfigSource::Json { name, folder, text } => {
            let dict = serde_json::from_str(text).unwrap_or(serde_json::Value::Null);
            Config::from_json(name, Path::new(folder), &dict, &overrides)
        }
    }
}
