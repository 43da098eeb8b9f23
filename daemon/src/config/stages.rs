//! `[[stage]]`: the fetch stage and the CPU stages.

use std::num::NonZeroU32;

use super::error::{ConfigError, Place};
use super::model::{Concurrency, FetchConfig, StageConfig};
use super::presets::table_entry;
use super::section::{FromValue, Section};
use super::value::{Located, Value};

/// The stage that reads files; it exists without being written.
const FETCH: &str = "fetch";

const DEFAULT_FETCH_CONCURRENCY: NonZeroU32 = NonZeroU32::new(16).unwrap();

/// What the verdict calls other limits than a stage.
const WORDS_OF_THE_VERDICT: [&str; 5] = ["storage", "ring", "cpu-budget", "trainer", "none"];

/// The longest name that the tables of `stats` have room for.
const MAX_NAME_BYTES: usize = 32;

/// Reads all stages; `stages` is the value of `stage`.
///
/// # Errors
/// No CPU stage, a name that is missing, taken or reserved, an unknown key, operations that are no tables.
pub(super) fn read_stages(
    root: &Place,
    stages: Option<Located>,
) -> Result<(FetchConfig, Vec<StageConfig>), ConfigError> {
    let mut fetch = FetchConfig { concurrency: DEFAULT_FETCH_CONCURRENCY };
    let mut cpu_stages = Vec::new();
    let mut names: Vec<(String, Place)> = Vec::new();
    for table in tables(stages)? {
        let place = table.place.clone();
        let (name, mut section) = named_section(table)?;
        if let Some((_, earlier)) = names.iter().find(|(taken, _)| *taken == name) {
            return Err(ConfigError::new(
                &place,
                format!("two stages are called `{name}`; the other one stands at {earlier}"),
            ));
        }
        names.push((name.clone(), place));
        if name == FETCH {
            fetch.concurrency = section.take_or("concurrency", DEFAULT_FETCH_CONCURRENCY)?;
        } else {
            cpu_stages.push(StageConfig {
                concurrency: section.take_or("concurrency", Concurrency::Auto)?,
                operations: section.require::<Operations>("operations")?.0,
                name,
            });
        }
        section.finish()?;
    }
    if cpu_stages.is_empty() {
        return Err(ConfigError::new(
            root,
            "`stage` is required: a `[[stage]]` with `name` and `operations` (`operations = []` for none), or a `preset`",
        ));
    }
    Ok((fetch, cpu_stages))
}

fn tables(stages: Option<Located>) -> Result<Vec<Located>, ConfigError> {
    match stages {
        None => Ok(Vec::new()),
        Some(Located { value: Value::Array(items), .. }) => Ok(items),
        Some(other) => Err(ConfigError::new(
            &other.place,
            format!(
                "`stage` must be an array of tables, written `[[stage]]`, not {}",
                other.value.kind()
            ),
        )),
    }
}

/// The table's name, and the table as a section that is called by it.
fn named_section(table: Located) -> Result<(String, Section), ConfigError> {
    if !matches!(table.value, Value::Table(_)) {
        return Err(ConfigError::new(
            &table.place,
            format!("each `[[stage]]` must be a table, not {}", table.value.kind()),
        ));
    }
    let mut nameless = Section::new("stage", table.clone())?;
    let (name, place) = match nameless.take_placed::<String>("name")? {
        Some(named) => named,
        None => {
            // For its message.
            nameless.require::<String>("name")?;
            (String::new(), table.place.clone())
        }
    };
    let is_word = !name.is_empty()
        && name.len() <= MAX_NAME_BYTES
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
    if !is_word {
        return Err(ConfigError::new(
            &place,
            format!(
                "`stage.name` must be 1 to {MAX_NAME_BYTES} letters, digits, `-` or `_`, not {name:?}"
            ),
        ));
    }
    if WORDS_OF_THE_VERDICT.contains(&name.as_str()) {
        return Err(ConfigError::new(
            &place,
            format!(
                "`stage.name`: the verdict uses `{name}` for another limit; choose another name"
            ),
        ));
    }
    if name == FETCH
        && let Some(operations) = table_entry(&table, "operations")
    {
        return Err(ConfigError::new(
            &operations.place,
            "`stage.fetch.operations`: the stage `fetch` only reads files and takes `concurrency` alone; give the operations to a stage of another name",
        ));
    }
    let mut section = Section::new(format!("stage.{name}"), table)?;
    section.take_located("name");
    Ok((name, section))
}

/// An array of tables; what each says is the operations' own matter.
struct Operations(Vec<Located>);

impl FromValue for Operations {
    const EXPECTED: &'static str =
        "an array of tables such as [{ op = \"decode-image\" }], or [] for none";
    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Array(items) => items
                .iter()
                .all(|item| matches!(item.value, Value::Table(_)))
                .then(|| Self(items.clone())),
            _ => None,
        }
    }
}
