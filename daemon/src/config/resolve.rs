//! From a tree of values to a [`Config`]: every table read, every default filled in, every contradiction named.
//!
//! The order is: the preset, the user's keys over it, the overrides over both, then variables, then meaning. Whether
//! files exist, and whether operations fit the dataset, is not looked at here.

use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::unistd::Group;

use super::error::{ConfigError, Place};
use super::expand::{Environment, expand_all};
use super::metrics_address::read_metrics;
use super::model::{
    BadSampleBudget, BatchConfig, Config, Confinement, CpuConfig, CpuPolicy, DatasetConfig,
    ErrorsConfig, KeyPlaces, Last, Limits, ListenConfig, OnBadSample, OrderConfig, RingConfig,
    SecurityConfig, SessionConfig,
};
use super::output::read_output;
use super::overrides::Override;
use super::parse::{from_json, parse_toml};
use super::presets::{lay_over, preset_tree, table_entry};
use super::section::{FromValue, Section, nearest};
use super::stages::read_stages;
use super::value::{Located, Value};
use super::values::{ByteSize, TimeSpan};
use super::words::{AtLeastOne, Cores, CpuLimit, Niceness};

/// The tables and keys of a configuration's first level.
const ROOT_KEYS: [&str; 13] = [
    "preset", "dataset", "limits", "order", "batch", "stage", "output", "ring", "errors", "cpu",
    "listen", "session", "security",
];

/// What a dict without a name is called.
const NAME_OF_A_DICT: &str = "stream";
/// The fewest slots: one being filled, one ready, one with the user.
const LEAST_SLOTS: u16 = 3;
/// The longest path that a Unix socket's address holds (108 bytes with the closing zero).
const MAX_SOCKET_PATH_BYTES: usize = 107;

const DEFAULT_SLOTS: u16 = 8;
const DEFAULT_MEMORY: ByteSize = ByteSize(2 << 30);
const DEFAULT_BUDGET: BadSampleBudget = BadSampleBudget::Share(0.001);
const DEFAULT_MAX_SESSIONS: u64 = 4;
const DEFAULT_READ_TIMEOUT: TimeSpan = TimeSpan(Duration::from_secs(60));
const DEFAULT_STALL_AFTER: TimeSpan = TimeSpan(Duration::from_secs(30));

/// Where a configuration comes from.
pub(super) struct Origin<'a> {
    /// The stream's name.
    pub(super) name: String,
    /// What messages call it.
    pub(super) source: String,
    /// Where relative paths start; absolute.
    pub(super) folder: &'a Path,
}

impl Config {
    /// Reads a TOML file. Relative paths in it and in the overrides start at the file's folder.
    ///
    /// # Errors
    /// When the file cannot be read, or at the first mistake in it or in an override: names place, key, what was
    /// expected and the nearest valid key.
    pub fn from_file(path: &Path, overrides: &[Override]) -> Result<Self, ConfigError> {
        let source = path.display().to_string();
        let unreadable = |reason: String| {
            let place = Place { source: source.as_str().into(), line: 0 };
            ConfigError::new(&place, format!("cannot read the configuration: {reason}"))
        };
        let bytes = std::fs::read(path).map_err(|error| unreadable(error.to_string()))?;
        let text = String::from_utf8(bytes).map_err(|error| unreadable(error.to_string()))?;
        let absolute = std::path::absolute(path).map_err(|error| unreadable(error.to_string()))?;
        let folder = absolute.parent().unwrap_or(Path::new("/"));
        let stem = path.file_stem().map(|stem| stem.to_string_lossy());
        let origin = Origin {
            name: stem.map_or_else(|| NAME_OF_A_DICT.to_owned(), std::borrow::Cow::into_owned),
            source: source.clone(),
            folder,
        };
        let tree = parse_toml(&source, &text)?;
        resolve(origin, tree, overrides, &|name| std::env::var_os(name))
    }

    /// Reads the text of a file called `name` in `folder`, as [`from_file`](Self::from_file) does, with no variable set.
    ///
    /// # Errors
    /// As [`from_file`](Self::from_file).
    pub(crate) fn from_text(name: &str, folder: &Path, text: &str) -> Result<Self, ConfigError> {
        let origin = Origin { name: name.to_owned(), source: name.to_owned(), folder };
        resolve(origin, parse_toml(name, text)?, &[], &|_| None)
    }

    /// Reads what [`resolved_toml`](Self::resolved_toml) wrote. Messages name `source`, as those of the daemon before did.
    ///
    /// # Errors
    /// As [`from_file`](Self::from_file).
    pub fn from_resolved(name: &str, source: &str, text: &str) -> Result<Self, ConfigError> {
        let origin =
            Origin { name: name.to_owned(), source: source.to_owned(), folder: Path::new("/") };
        let tree = parse_toml(source, text)?;
        resolve(origin, tree, &[], &|_| None)
    }

    /// Reads a dict that stands for a file. `name` becomes the stream's name (empty: `stream`); relative paths start
    /// at `base_folder`.
    ///
    /// # Errors
    /// As [`from_file`](Self::from_file), without lines.
    pub fn from_json(
        name: &str,
        base_folder: &Path,
        dict: &serde_json::Value,
        overrides: &[Override],
    ) -> Result<Self, ConfigError> {
        let place = Place { source: "the dict".into(), line: 0 };
        let folder = std::path::absolute(base_folder)
            .map_err(|error| ConfigError::new(&place, format!("no base folder: {error}")))?;
        let origin = Origin {
            name: if name.is_empty() { NAME_OF_A_DICT } else { name }.to_owned(),
            source: place.source.to_string(),
            folder: &folder,
        };
        let tree = match from_json(&place, dict)? {
            Some(tree) if matches!(tree.value, Value::Table(_)) => tree,
            _ => return Err(ConfigError::new(&place, "must be a dict of tables")),
        };
        resolve(origin, tree, overrides, &|name| std::env::var_os(name))
    }
}

/// Everything after parsing.
pub(super) fn resolve(
    origin: Origin<'_>,
    tree: Located,
    overrides: &[Override],
    environment: Environment<'_>,
) -> Result<Config, ConfigError> {
    let tree = lay_together(tree, overrides, environment)?;
    refuse_unknown_root_keys(&tree)?;
    let places = KeyPlaces {
        dataset_format: place_of(&tree, "dataset", "format"),
        dataset_path: place_of(&tree, "dataset", "path"),
        batch_size: place_of(&tree, "batch", "size"),
    };
    let mut root = Section::new("", tree)?;
    root.take_located("preset");
    let root_place = root.place().clone();
    let limits = read_limits(root.take_section("limits")?)?;
    let dataset = read_dataset(root.take_section("dataset")?, origin.folder, limits)?;
    let order = read_order(root.take_section("order")?)?;
    let batch = read_batch(root.take_section("batch")?)?;
    let (fetch, stages) = read_stages(&root_place, root.take_located("stage"))?;
    let output = read_output(root.take_located("output"))?;
    let ring = read_ring(root.take_section("ring")?)?;
    let errors = read_errors(root.take_section("errors")?, origin.folder)?;
    let cpu = read_cpu(root.take_section("cpu")?)?;
    let listen = read_listen(root.take_section("listen")?, origin.folder)?;
    let session = read_session(root.take_section("session")?)?;
    let security = read_security(root.take_section("security")?)?;
    root.finish()?;
    Ok(Config {
        name: origin.name,
        source: origin.source,
        dataset,
        order,
        batch,
        fetch,
        stages,
        output,
        ring,
        errors,
        cpu,
        listen,
        session,
        security,
        places,
    })
}

/// Preset, user's tree, overrides and variables.
fn lay_together(
    mut tree: Located,
    overrides: &[Override],
    environment: Environment<'_>,
) -> Result<Located, ConfigError> {
    let overridden_preset = overrides.iter().rev().find_map(Override::preset);
    let preset = match overridden_preset {
        Some(preset) => preset.cloned(),
        None => table_entry(&tree, "preset").cloned(),
    };
    if let Some(mut name) = preset {
        expand_all(&mut name, "preset", environment)?;
        let mut base = preset_tree(&name)?;
        lay_over(&mut base, tree);
        tree = base;
    }
    for each in overrides {
        each.apply(&mut tree)?;
    }
    expand_all(&mut tree, "", environment)?;
    Ok(tree)
}

/// Where a key stands, or the nearest that exists above it.
fn place_of(root: &Located, table: &str, key: &str) -> Place {
    let table = table_entry(root, table).unwrap_or(root);
    table_entry(table, key).unwrap_or(table).place.clone()
}

/// Before anything is read: a misspelt table would otherwise show as a missing key.
fn refuse_unknown_root_keys(tree: &Located) -> Result<(), ConfigError> {
    let Value::Table(entries) = &tree.value else {
        return Ok(());
    };
    let unknown = entries.iter().find(|(key, _)| !ROOT_KEYS.contains(&key.as_str()));
    let Some((key, located)) = unknown else {
        return Ok(());
    };
    let hint = match nearest(key, ROOT_KEYS.into_iter()) {
        Some(valid) => format!("did you mean `{valid}`?"),
        None => format!("valid keys: {}", ROOT_KEYS.join(", ")),
    };
    Err(ConfigError::new(&located.place, format!("unknown key `{key}`; {hint}")))
}

fn read_dataset(
    mut section: Section,
    folder: &Path,
    limits: Limits,
) -> Result<DatasetConfig, ConfigError> {
    let path = section.require::<LocalPath>("path")?.under(folder);
    let mut file = |key| -> Result<Option<PathBuf>, ConfigError> {
        Ok(section.take::<LocalPath>(key)?.map(|path| path.under(folder)))
    };
    let (classes, ids, index) = (file("classes")?, file("ids")?, file("index")?);
    let limit = section.take::<AtLeastOne>("limit")?.map(|limit| limit.0);
    let read_timeout = section.take_or("read_timeout", DEFAULT_READ_TIMEOUT)?.0;
    let format = section.require::<String>("format")?;
    section.finish()?;
    let kept_index = None;
    Ok(DatasetConfig { format, path, classes, ids, limit, index, limits, read_timeout, kept_index })
}

fn read_limits(mut section: Section) -> Result<Limits, ConfigError> {
    let default = Limits::default();
    let limits = Limits {
        sample_bytes: section.take_or("sample_bytes", ByteSize(default.sample_bytes))?.0,
        pixels: section.take_or("pixels", AtLeastOne(default.pixels))?.0,
        inflated_bytes: section.take_or("inflated_bytes", ByteSize(default.inflated_bytes))?.0,
    };
    section.finish()?;
    Ok(limits)
}

fn read_order(mut section: Section) -> Result<OrderConfig, ConfigError> {
    let order = OrderConfig {
        seed: section.take_or("seed", 0)?,
        shuffle: section.take_or("shuffle", true)?,
        epochs: section.take::<AtLeastOne>("epochs")?.map(|epochs| epochs.0),
    };
    section.finish()?;
    Ok(order)
}

fn read_batch(mut section: Section) -> Result<BatchConfig, ConfigError> {
    let batch =
        BatchConfig { size: section.require("size")?, last: section.take_or("last", Last::Drop)? };
    section.finish()?;
    Ok(batch)
}

fn read_ring(mut section: Section) -> Result<RingConfig, ConfigError> {
    let (slots, slots_place) =
        section.take_placed::<u16>("slots")?.unwrap_or((DEFAULT_SLOTS, section.place().clone()));
    if slots < LEAST_SLOTS {
        return Err(ConfigError::new(
            &slots_place,
            format!("`ring.slots` must be at least {LEAST_SLOTS}, not {slots}"),
        ));
    }
    let hold = match section.take_placed::<u16>("hold")? {
        None => slots - 2,
        Some((hold, _)) if (1..slots).contains(&hold) => hold,
        Some((hold, place)) => {
            let most = slots - 1;
            return Err(ConfigError::new(
                &place,
                format!(
                    "`ring.hold` must be 1 to {most} (one less than `ring.slots`, which is {slots}), not {hold}; raise `ring.slots` to hold more"
                ),
            ));
        }
    };
    let (memory, memory_place) = section
        .take_placed::<ByteSize>("memory")?
        .unwrap_or((DEFAULT_MEMORY, section.place().clone()));
    if memory.0 == 0 {
        return Err(ConfigError::new(&memory_place, "`ring.memory` must be above 0"));
    }
    section.finish()?;
    Ok(RingConfig { slots, hold, memory_bytes: memory.0, memory_place })
}

fn read_errors(mut section: Section, folder: &Path) -> Result<ErrorsConfig, ConfigError> {
    let errors = ErrorsConfig {
        on_bad_sample: section.take_or("on_bad_sample", OnBadSample::Fail)?,
        budget: section.take_or("budget", DEFAULT_BUDGET)?,
        quarantine: section.take::<LocalPath>("quarantine")?.map(|path| path.under(folder)),
        stall_after: section.take_or("stall_after", DEFAULT_STALL_AFTER)?.0,
    };
    section.finish()?;
    Ok(errors)
}

fn read_cpu(mut section: Section) -> Result<CpuConfig, ConfigError> {
    let cores = section.take_or("cores", Cores(None))?.0;
    let limit = section.take::<CpuLimit>("limit")?.map(|limit| limit.0);
    let policy = section.take_or("policy", CpuPolicy::Idle)?;
    let nice = section.take_placed::<Niceness>("nice")?;
    section.finish()?;
    match nice {
        Some((Niceness(1..), place)) if policy == CpuPolicy::Idle => Err(ConfigError::new(
            &place,
            "`cpu.nice` has no effect with policy = \"idle\", which is below every nice level; set `cpu.policy` to \"batch\" or \"normal\"",
        )),
        _ => Ok(CpuConfig { cores, limit, policy, nice: nice.map_or(0, |(nice, _)| nice.0) }),
    }
}

fn read_listen(mut section: Section, folder: &Path) -> Result<ListenConfig, ConfigError> {
    let socket = match section.take_placed::<LocalPath>("socket")? {
        Some((path, _)) if path.0 == "auto" => None,
        Some((path, place)) => Some(socket_path(path.under(folder), &place)?),
        None => None,
    };
    let allow_uids = section.take::<Vec<u32>>("allow_uids")?.unwrap_or_default();
    let group = match section.take_located("group") {
        Some(located) => Some(group_id(&located)?),
        None => None,
    };
    let (sessions, place) = section
        .take_placed::<AtLeastOne>("max_sessions")?
        .unwrap_or((AtLeastOne(DEFAULT_MAX_SESSIONS), section.place().clone()));
    let max_sessions = u32::try_from(sessions.0).map_err(|_| {
        ConfigError::new(&place, format!("`listen.max_sessions`: {} is too many", sessions.0))
    })?;
    let (metrics, metrics_from) = read_metrics(&mut section)?;
    section.finish()?;
    Ok(ListenConfig { socket, allow_uids, group, max_sessions, metrics, metrics_from })
}

fn read_session(mut section: Section) -> Result<SessionConfig, ConfigError> {
    let allow_headspace = section.take_or("allow_headspace", true)?;
    section.finish()?;
    Ok(SessionConfig { allow_headspace })
}

fn read_security(mut section: Section) -> Result<SecurityConfig, ConfigError> {
    let confine = section.take_or("confine", Confinement::Auto)?;
    section.finish()?;
    Ok(SecurityConfig { confine })
}

fn socket_path(path: PathBuf, place: &Place) -> Result<PathBuf, ConfigError> {
    let bytes = path.as_os_str().len();
    if bytes > MAX_SOCKET_PATH_BYTES {
        return Err(ConfigError::new(
            place,
            format!(
                "`listen.socket` has {bytes} bytes as an absolute path, and the system takes at most {MAX_SOCKET_PATH_BYTES}; choose a shorter path, or \"auto\": {}",
                path.display()
            ),
        ));
    }
    Ok(path)
}

/// A group by name or number. The name is looked up on this machine.
fn group_id(located: &Located) -> Result<u32, ConfigError> {
    if let Some(id) = u32::from_value(&located.value) {
        return Ok(id);
    }
    let Value::String(name) = &located.value else {
        return Err(ConfigError::new(
            &located.place,
            format!(
                "`listen.group` must be a group's name or number, not {}",
                located.value.kind()
            ),
        ));
    };
    match Group::from_name(name) {
        Ok(Some(group)) => Ok(group.gid.as_raw()),
        Ok(None) => Err(ConfigError::new(
            &located.place,
            format!("`listen.group`: this machine has no group `{name}`"),
        )),
        Err(error) => Err(ConfigError::new(
            &located.place,
            format!("`listen.group`: cannot look up the group `{name}`: {error}"),
        )),
    }
}

/// A path on this machine: not empty, no URL, no `~`.
struct LocalPath(String);

impl LocalPath {
    /// Relative paths start at the folder.
    fn under(&self, folder: &Path) -> PathBuf {
        let joined = folder.join(&self.0);
        // Takes out `.` and doubled slashes; links and `..` stay as they are.
        std::path::absolute(&joined).unwrap_or(joined)
    }
}

impl FromValue for LocalPath {
    const EXPECTED: &'static str =
        "a local path (no URL; ~ is not expanded, write ${HOME} instead)";
    fn from_value(value: &Value) -> Option<Self> {
        String::from_value(value)
            .filter(|path| {
                let is_home = path == "~" || path.starts_with("~/");
                !path.is_empty() && !path.contains("://") && !is_home && !path.contains('\0')
            })
            .map(Self)
    }
}
