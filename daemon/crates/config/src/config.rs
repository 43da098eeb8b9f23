//! Builds a [`Config`] from a file, a dict and overrides, and writes it as TOML.
//!
//! The order is: the preset, the user's keys over it, the overrides over both, then variables, then validation. Not
//! checked here: whether files exist, whether operations fit the dataset, and the keys of formats, storages and
//! operations, which their owners read.

use std::path::Path;

use crate::datasets::read_datasets;
use crate::model::{
    BatchConfig, CacheConfig, CpuConfig, DatasetConfig, ErrorsConfig, FeedConfig, FeedersConfig,
    Limits, ListenConfig, OrderConfig, RingConfig, SecurityConfig, SessionConfig, ShareConfig,
    TopLevel,
};
use crate::output::{OutputConfig, read_output};
use crate::overrides::Override;
use crate::presets::{is_of_preset, merge, preset_tree};
use crate::stages::{FetchConfig, PythonConfig, StageConfig, read_stages};
use forebay_keys::{ConfigError, SourceLocation};
use forebay_keys::{Environment, expand_all};
use forebay_keys::{Keys, Table};
use forebay_keys::{Located, Value, toml_key};
use forebay_keys::{Section, unknown_key};
use forebay_keys::{from_json, parse_toml};

/// All tables of keys, in the order of the reference.
pub(crate) const TABLES: [Table; 19] = [
    TopLevel::TABLE,
    DatasetConfig::TABLE,
    CacheConfig::TABLE,
    Limits::TABLE,
    OrderConfig::TABLE,
    BatchConfig::TABLE,
    StageConfig::TABLE,
    FetchConfig::TABLE,
    PythonConfig::TABLE,
    OutputConfig::TABLE,
    RingConfig::TABLE,
    ErrorsConfig::TABLE,
    CpuConfig::TABLE,
    ListenConfig::TABLE,
    SessionConfig::TABLE,
    ShareConfig::TABLE,
    FeedersConfig::TABLE,
    FeedConfig::TABLE,
    SecurityConfig::TABLE,
];

/// The tables and keys of the first level.
const ROOT_KEYS: [&str; 19] = [
    "preset", "dataset", "storage", "cache", "limits", "order", "batch", "stage", "python",
    "output", "ring", "errors", "cpu", "listen", "session", "share", "feeders", "feed", "security",
];

/// The source's name of a dict in messages.
pub(crate) const DICT: &str = "the dict";

/// The default name of a dict's stream.
const NAME_OF_A_DICT: &str = "stream";

/// A complete configuration: defaults filled in, paths absolute, units applied.
#[derive(Debug, Clone)]
pub struct Config {
    /// The stream's name: the file's stem, or `stream` for a dict.
    pub name: String,
    /// The configuration's source in messages.
    pub source: String,
    /// `[dataset]`, or the first `[[dataset]]`.
    pub dataset: DatasetConfig,
    /// Every other `[[dataset]]`.
    pub more_datasets: Vec<DatasetConfig>,
    /// `[order]`.
    pub order: OrderConfig,
    /// `[batch]`.
    pub batch: BatchConfig,
    /// The `[[stage]]` named `fetch`.
    pub fetch: FetchConfig,
    /// Every other `[[stage]]`, in order; at least one.
    pub stages: Vec<StageConfig>,
    /// `[python]`.
    pub python: PythonConfig,
    /// `[output]`, in the order written.
    pub output: Vec<OutputConfig>,
    /// `[ring]`.
    pub ring: RingConfig,
    /// `[errors]`.
    pub errors: ErrorsConfig,
    /// `[cpu]`.
    pub cpu: CpuConfig,
    /// `[listen]`.
    pub listen: ListenConfig,
    /// `[session]`.
    pub session: SessionConfig,
    /// `[share]`.
    pub share: ShareConfig,
    /// `[feeders]`.
    pub feeders: FeedersConfig,
    /// `[feed]`.
    pub feed: FeedConfig,
    /// `[security]`.
    pub security: SecurityConfig,
    /// The input, for the locations of keys.
    pub(crate) tree: Located,
}

/// The origin of a configuration.
pub(super) struct Origin<'a> {
    /// The stream's name.
    pub(super) name: String,
    /// The source in messages.
    pub(super) source: String,
    /// The folder of relative paths; absolute.
    pub(super) folder: &'a Path,
}

impl Config {
    /// Concurrent reads: initially, which is also the minimum, and at most.
    #[must_use]
    pub fn reads(&self) -> (u32, u32) {
        self.fetch.reads(self.datasets().any(|dataset| dataset.is_remote()))
    }

    /// Reads a TOML file. Relative paths in it and in the overrides start at the file's folder.
    ///
    /// # Errors
    /// The file cannot be read, or it or an override has a mistake: names location, key, what was expected and the
    /// nearest valid key.
    pub fn from_file(path: &Path, overrides: &[Override]) -> Result<Self, ConfigError> {
        let source = path.display().to_string();
        let unreadable = |reason: String| {
            let location = SourceLocation { source: source.as_str().into(), line: 0 };
            ConfigError::new(&location, format!("cannot read the configuration: {reason}"))
        };
        let bytes = std::fs::read(path).map_err(|error| unreadable(error.to_string()))?;
        let text = String::from_utf8(bytes).map_err(|error| unreadable(error.to_string()))?;
        let absolute = std::path::absolute(path).map_err(|error| unreadable(error.to_string()))?;
        let folder = absolute.parent().unwrap_or(Path::new("/"));
        let stem = path.file_stem().map(|stem| stem.to_string_lossy());
        let name = stem.map_or_else(|| NAME_OF_A_DICT.to_owned(), std::borrow::Cow::into_owned);
        let tree = parse_toml(&source, &text)?;
        let environment = |name: &str| std::env::var_os(name);
        resolve(Origin { name, source: source.clone(), folder }, tree, overrides, &environment)
    }

    /// Reads the text of a file called `name` in `folder`, like [`from_file`](Self::from_file), without variables.
    pub fn from_text(
        name: &str,
        folder: &Path,
        text: &str,
        overrides: &[Override],
    ) -> Result<Self, ConfigError> {
        let origin = Origin { name: name.to_owned(), source: name.to_owned(), folder };
        resolve(origin, parse_toml(name, text)?, overrides, &|_| None)
    }

    /// Reads the output of [`resolved_toml`](Self::resolved_toml). Messages name `source`, as the previous daemon's
    /// did.
    pub fn from_resolved(name: &str, source: &str, text: &str) -> Result<Self, ConfigError> {
        let (name, source, folder) = (name.to_owned(), source.to_owned(), Path::new("/"));
        let tree = parse_toml(&source, text)?;
        resolve(Origin { name, source, folder }, tree, &[], &|_| None)
    }

    /// Reads a dict in place of a file. `name` becomes the stream's name (empty: `stream`); relative paths start at
    /// `base_folder`.
    ///
    /// # Errors
    /// As [`from_file`](Self::from_file), without lines.
    pub fn from_json(
        name: &str,
        base_folder: &Path,
        dict: &serde_json::Value,
        overrides: &[Override],
    ) -> Result<Self, ConfigError> {
        let location = SourceLocation { source: DICT.into(), line: 0 };
        let folder = std::path::absolute(base_folder)
            .map_err(|error| ConfigError::new(&location, format!("no base folder: {error}")))?;
        let name = if name.is_empty() { NAME_OF_A_DICT } else { name }.to_owned();
        let tree = match from_json(&location, dict)? {
            Some(tree) if matches!(tree.value, Value::Table(_)) => tree,
            _ => return Err(ConfigError::new(&location, "must be a dict of tables")),
        };
        let origin = Origin { name, source: location.source.to_string(), folder: &folder };
        resolve(origin, tree, overrides, &|name| std::env::var_os(name))
    }

    /// The location of the key at a path such as `["batch", "size"]`, or of the nearest table above it.
    pub fn location(&self, path: &[&str]) -> SourceLocation {
        let mut located = &self.tree;
        for key in path {
            match located.get(key) {
                Some(below) => located = below,
                None => break,
            }
        }
        located.location.clone()
    }

    /// Whether the key at a path comes from a preset, without being overridden.
    pub fn is_of_preset(&self, path: &[&str]) -> bool {
        let found = path.iter().try_fold(&self.tree, |located, key| located.get(key));
        found.is_some_and(|located| is_of_preset(&located.location))
    }

    /// The keys of the table at a path.
    pub fn keys_at(&self, path: &[&str]) -> Vec<&str> {
        let found = path.iter().try_fold(&self.tree, |located, key| located.get(key));
        match found.map(|located| &located.value) {
            Some(Value::Table(entries)) => entries.iter().map(|(key, _)| key.as_str()).collect(),
            _ => Vec::new(),
        }
    }

    /// Whether a key is given, by a file, a preset or an override.
    pub fn is_given(&self, path: &[&str]) -> bool {
        path.iter().try_fold(&self.tree, |located, key| located.get(key)).is_some()
    }

    /// The configuration as TOML with the values of all keys, except for keys that are unset by default. Reading it
    /// gives the same configuration.
    pub fn resolved_toml(&self) -> String {
        let mut text = Text(String::new());
        // A named dataset is, or may be, one of a list.
        let (head, storage_head) = match self.dataset.name {
            Some(_) => ("[[dataset]]", "\n[dataset.storage]"),
            None => ("[dataset]", "\n[storage]"),
        };
        for (place, dataset) in self.datasets().enumerate() {
            let gap = if place == 0 { "" } else { "\n" };
            text.section(&format!("{gap}{head}"), dataset);
            text.entries(&dataset.own);
            if !dataset.storage.entries().is_empty() {
                text.0.push_str(&format!("{storage_head}\n"));
                text.entries(&dataset.storage);
            }
        }
        if self.dataset.cache != CacheConfig::default() {
            text.section("\n[cache]", &self.dataset.cache);
        }
        text.section("\n[limits]", &self.dataset.limits);
        text.section("\n[order]", &self.order);
        text.section("\n[batch]", &self.batch);
        text.section("\n[[stage]]", &self.fetch);
        for stage in &self.stages {
            text.section("\n[[stage]]", stage);
        }
        // An operation on batches that calls a function is written with its name.
        let mut batch_operations = self.batch.operations.iter();
        if self.stages.iter().any(|stage| stage.python.is_some())
            || batch_operations.any(|operation| operation.get("call").is_some())
        {
            text.section("\n[python]", &self.python);
        }
        if !self.output.is_empty() {
            text.0.push_str("\n[output]\n");
        }
        for field in &self.output {
            text.line(&toml_key(&field.field), &without_defaults(field));
        }
        text.section("\n[ring]", &self.ring);
        text.section("\n[errors]", &self.errors);
        text.section("\n[cpu]", &self.cpu);
        text.section("\n[listen]", &self.listen);
        text.section("\n[session]", &self.session);
        text.section("\n[share]", &self.share);
        text.section("\n[feeders]", &self.feeders);
        text.section("\n[feed]", &self.feed);
        text.section("\n[security]", &self.security);
        text.0
    }
}

/// A resolved configuration being written.
struct Text(String);

impl Text {
    fn section(&mut self, head: &str, keys: &impl Keys) {
        self.0.push_str(head);
        self.0.push('\n');
        for (key, value) in keys.entries() {
            self.line(key, &value);
        }
    }

    /// Keys that another crate has read.
    fn entries(&mut self, section: &Section) {
        for (key, located) in section.entries() {
            self.line(&toml_key(key), &located.value);
        }
    }

    /// Tables in an array are written on separate lines.
    fn line(&mut self, key: &str, value: &Value) {
        let text = match value {
            Value::Array(items)
                if items.iter().any(|item| matches!(item.value, Value::Table(_))) =>
            {
                let lines = items.iter().map(|item| format!("  {},\n", item.value.to_toml()));
                format!("[\n{}]", lines.collect::<String>())
            }
            _ => value.to_toml(),
        };
        self.0.push_str(&format!("{key} = {text}\n"));
    }
}

/// A table of the keys that differ from their defaults, some of which do not apply to every field.
fn without_defaults<T: Keys>(keys: &T) -> Value {
    let default = |name: &str| T::TABLE.keys.iter().find(|key| key.name == name)?.default_value();
    let entries =
        keys.entries().into_iter().filter(|(key, value)| default(key).as_ref() != Some(value));
    Value::Table(entries.map(|(key, value)| (key.to_owned(), value.into())).collect())
}

/// Everything after parsing.
pub(super) fn resolve(
    origin: Origin<'_>,
    tree: Located,
    overrides: &[Override],
    environment: Environment<'_>,
) -> Result<Config, ConfigError> {
    let tree = merge_all(tree, overrides, environment)?;
    refuse_unknown_root_keys(&tree)?;
    let mut root = Section::new("", tree.clone(), origin.folder)?;
    let (dataset, more_datasets) = read_datasets(&mut root)?;
    let (order, batch) = (root.table()?, root.table()?);
    let (fetch, stages) = read_stages(&mut root)?;
    let mut python: PythonConfig = root.table()?;
    python.folder.get_or_insert_with(|| origin.folder.to_owned());
    let output = read_output(&mut root)?;
    let config = Config {
        name: origin.name,
        source: origin.source,
        dataset,
        more_datasets,
        order,
        batch,
        fetch,
        stages,
        python,
        output,
        ring: root.table()?,
        errors: root.table()?,
        cpu: root.table()?,
        listen: root.table()?,
        session: root.table()?,
        share: root.table()?,
        feeders: root.table()?,
        feed: root.table()?,
        security: root.table()?,
        tree,
    };
    config.check_classes()?;
    config.check_draws()?;
    config.check_budget()?;
    Ok(config)
}

/// Merges preset, user's tree, overrides and variables.
fn merge_all(
    mut tree: Located,
    overrides: &[Override],
    environment: Environment<'_>,
) -> Result<Located, ConfigError> {
    let overridden_preset = overrides.iter().rev().find_map(Override::preset);
    let preset = match overridden_preset {
        Some(preset) => preset.cloned(),
        None => tree.get("preset").cloned(),
    };
    if let Some(mut name) = preset {
        expand_all(&mut name, "preset", environment)?;
        let mut base = preset_tree(&name)?;
        merge(&mut base, tree);
        tree = base;
    }
    for each in overrides {
        each.apply(&mut tree)?;
    }
    expand_all(&mut tree, "", environment)?;
    Ok(tree)
}

/// Checked first: a misspelt table would otherwise be reported as a missing key.
fn refuse_unknown_root_keys(tree: &Located) -> Result<(), ConfigError> {
    let Value::Table(entries) = &tree.value else {
        return Ok(());
    };
    match entries.iter().find(|(key, _)| !ROOT_KEYS.contains(&key.as_str())) {
        Some((key, located)) => {
            Err(unknown_key(key, key, &located.location, ROOT_KEYS.into_iter(), str::to_owned))
        }
        None => Ok(()),
    }
}
