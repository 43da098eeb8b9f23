//! `[[stage]]`: the fetch stage, the CPU stages and the stages in the user's Python; `[python]`: the interpreter of the
//! latter.

use std::time::Duration;

use crate::operations::Operations;
use crate::single_keys::Concurrency;
use forebay_keys::Keys;
use forebay_keys::Section;
use forebay_keys::{ByteSize, Kind, LocalPath, TimeSpan};
use forebay_keys::{ConfigError, SourceLocation};
use forebay_keys::{Located, Value};
use forebay_keys::{keys, kinds};

/// The stage that reads files; it exists even if it is not written.
const FETCH: &str = "fetch";

/// Concurrent reads of `"auto"`: initially, and at most.
const AUTO_READS: (u32, u32) = (16, 64);
/// The same for a URL, where a read mostly waits.
const AUTO_REMOTE_READS: (u32, u32) = (16, 256);

/// Limits other than stages in the verdict.
const WORDS_OF_THE_VERDICT: [&str; 5] = ["storage", "ring", "cpu-budget", "trainer", "none"];

/// The longest name that fits the tables of `stats`.
const MAX_NAME_BYTES: usize = 32;

/// Defaults for the workers of the user's Python.
pub struct WorkerDefaults;

impl WorkerDefaults {
    /// The time limit of one call.
    pub const TIMEOUT: Duration = Duration::from_secs(60);
    /// The memory limit of a worker.
    pub const MEMORY_BYTES: u64 = 2 << 30;
}

keys! {
    /// A CPU stage: `operations`, or `python`.
    pub struct StageConfig = "stage", check check_stage {
        /// unique; `fetch` is the stage that reads files
        pub name: StageName, "", required;
        /// threads at once; `"auto"`: found at run time, from the number of allowed cores upward where threads block;
        /// `forebay stats` says why
        pub concurrency: Concurrency, "threads", default(Concurrency::Auto);
        /// each with `op` and its arguments; `[]` for none
        pub operations: Operations, "", default(Vec::new(), "required without `python`");
        /// the user's own function or class, `"module:name"`: it is called for each sample; see
        /// [Your own Python as a stage](../guide/python.md)
        pub python: PythonTarget, "", absent("none");
        /// with `python`: keyword arguments of the class, or of each call of the function
        pub arguments: Arguments, "", absent("none");
        /// with `python`: worker processes; `"auto"`: one for each core
        pub workers: Concurrency, "processes", absent("`\"auto\"`");
        /// with `python`: how long one call may run before its worker is replaced
        pub timeout: TimeSpan, "", absent("`\"60s\"`");
        /// with `python`: the private memory of a worker before it is replaced; not part of `ring.memory`
        pub memory: ByteSize, "", absent("`\"2GiB\"`");
    }
}

impl StageConfig {
    /// The time limit of one call.
    pub fn call_timeout(&self) -> Duration {
        self.timeout.unwrap_or(WorkerDefaults::TIMEOUT)
    }

    /// The memory limit of a worker.
    pub fn worker_bytes(&self) -> u64 {
        self.memory.unwrap_or(WorkerDefaults::MEMORY_BYTES)
    }

    /// The number of threads; in a Python stage each has a worker.
    pub fn threads(&self) -> Concurrency {
        match self.python {
            Some(_) => self.workers.unwrap_or(Concurrency::Auto),
            None => self.concurrency,
        }
    }
}

fn check_stage(stage: &mut StageConfig, section: &Section) -> Result<(), ConfigError> {
    let path = |key: &str| section.key_path(key);
    if stage.python.is_none() {
        if section.location_of("operations").is_none() {
            let message = format!("`{}` is required: {}", path("operations"), Operations::EXPECTED);
            return Err(section.error(message));
        }
        for key in ["arguments", "workers", "timeout", "memory"] {
            if section.location_of(key).is_some() {
                let message = format!(
                    "`{}` is for a stage with `python = \"module:function\"`; leave it out, or give `python` instead of \
                     `operations`",
                    path(key)
                );
                return Err(section.error_at(key, message));
            }
        }
        return Ok(());
    }
    if !stage.operations.is_empty() {
        let message = format!(
            "`{}`: a stage has operations or `python`, not both; make two stages of them",
            path("operations")
        );
        return Err(section.error_at("operations", message));
    }
    if stage.concurrency != Concurrency::Auto {
        let message = format!(
            "`{}`: a stage with `python` has `workers`, each with a separate thread; leave `concurrency` out",
            path("concurrency")
        );
        return Err(section.error_at("concurrency", message));
    }
    Ok(())
}

keys! {
    /// The environment of stages with `python`. A Python trainer's loader sets its own interpreter, `sys.path` and
    /// script.
    pub struct PythonConfig = "python" {
        /// the interpreter; it must be able to import `forebay` and what the stages need
        pub interpreter: String, "", default("python3".to_owned());
        /// what `sys.path` becomes
        pub path: Vec<String>, "", default(Vec::new(), "as the interpreter has it");
        /// a folder that is searched for modules after the folders of `path`
        pub folder: LocalPath, "", absent("the configuration's folder");
        /// the script, or the name of the module, that `__main__` means in `python = "__main__:name"`
        pub main: String, "", absent("none");
    }
}

keys! {
    /// The stage named `fetch`, which reads files.
    pub struct FetchConfig = "stage.fetch" {
        /// `fetch`
        pub name: StageName, "", required;
        /// reads under way at once; `"auto"`: 16 at first, up to 64 (for a URL 256) while work waits for rows and
        /// more reads bring more; `forebay stats` says why
        pub concurrency: Concurrency, "reads", default(Concurrency::Auto);
    }
}

impl FetchConfig {
    /// Whether the number of reads is adjusted at run time.
    #[must_use]
    pub fn is_auto(&self) -> bool {
        self.concurrency == Concurrency::Auto
    }

    /// Concurrent reads: initially, which is also the minimum, and at most.
    #[must_use]
    pub(crate) fn reads(&self, is_remote: bool) -> (u32, u32) {
        match self.concurrency {
            Concurrency::Auto if is_remote => AUTO_REMOTE_READS,
            Concurrency::Auto => AUTO_READS,
            Concurrency::Threads(count) => (count.get(), count.get()),
        }
    }
}

kinds! {
    /// A name that can be used in messages, metrics and the verdict.
    [pub] StageName as String: "1 to 32 letters, digits, `-` or `_`";
    read(value) {
        let name = value.as_text()?;
        let is_word = !name.is_empty()
            && name.len() <= MAX_NAME_BYTES
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
        (is_word && !WORDS_OF_THE_VERDICT.contains(&name)).then(|| name.to_owned())
    }
    write(out) { String::write(out) }
    refusal(value) {
        let name = value.as_text().filter(|name| WORDS_OF_THE_VERDICT.contains(name))?;
        Some(format!(": the verdict uses `{name}` for another limit; choose another name"))
    }
    schema { "type": "string", "pattern": "^[A-Za-z0-9_-]{1,32}$" }

    /// A function or class of a module.
    [pub] PythonTarget as String: "\"module:name\", such as \"mydata.transforms:augment\"";
    read(value) {
        let text = value.as_text()?;
        let is_dotted = |text: &str| {
            text.split('.').all(|part| {
                let mut letters = part.chars();
                letters.next().is_some_and(|first| first.is_alphabetic() || first == '_')
                    && letters.all(|letter| letter.is_alphanumeric() || letter == '_')
            })
        };
        let (module, name) = text.split_once(':')?;
        (is_dotted(module) && is_dotted(name)).then(|| text.to_owned())
    }
    write(out) { String::write(out) }
    schema { "type": "string", "pattern": "^[^:]+:[^:]+$" }

    /// A table that is passed on.
    [pub] Arguments as Vec<(String, Located)>: "a table such as { size = 224 }", type "a table";
    read(value) {
        match value {
            Value::Table(entries) if json_bytes(value) <= MAX_ARGUMENTS_BYTES => Some(entries.clone()),
            _ => None,
        }
    }
    write(out) { Value::Table(out.clone()) }
    refusal(value) {
        let bytes = matches!(value, Value::Table(_)).then(|| json_bytes(value))?;
        Some(format!(
            " has {bytes} bytes as JSON, and may have {MAX_ARGUMENTS_BYTES}; write it to a file, and give the function \
             the file's path"
        ))
    }
    schema { "type": "object" }
}

/// Limit of the arguments of each worker of a stage, which keeps them as long as it lives.
const MAX_ARGUMENTS_BYTES: usize = 64 << 20;

fn json_bytes(value: &Value) -> usize {
    value.to_json().to_string().len()
}

/// Takes all stages from the root.
///
/// # Errors
/// There is no CPU stage, a name is missing, repeated or reserved, a key is unknown, or operations are not tables.
pub(super) fn read_stages(
    root: &mut Section,
) -> Result<(FetchConfig, Vec<StageConfig>), ConfigError> {
    let mut fetch = None;
    let mut stages: Vec<StageConfig> = Vec::new();
    let mut names: Vec<(String, SourceLocation)> = Vec::new();
    for table in tables(root.take_located("stage"))? {
        let location = table.location.clone();
        let name = table.get("name").and_then(|name| StageName::read(&name.value));
        let path = name.as_ref().map_or("stage".to_owned(), |name| format!("stage.{name}"));
        if let Some((name, earlier)) = names.iter().find(|(taken, _)| Some(taken) == name.as_ref())
        {
            let message = format!("two stages are called `{name}`; the other one is at {earlier}");
            return Err(ConfigError::new(&location, message));
        }
        let is_fetch = name.as_deref() == Some(FETCH);
        if let (true, Some(operations)) = (is_fetch, table.get("operations")) {
            return Err(ConfigError::new(
                &operations.location,
                "`stage.fetch.operations`: the stage `fetch` only reads files and takes only `concurrency`; give the operations to a stage of another name",
            ));
        }
        names.extend(name.map(|name| (name, location)));
        let mut section = root.nested(path, table)?;
        if is_fetch {
            fetch = Some(FetchConfig::read(&mut section)?);
        } else {
            stages.push(StageConfig::read(&mut section)?);
        }
    }
    if stages.is_empty() {
        return Err(root.error(
            "`stage` is required: what is done with each sample, or a `preset`. For images, `stage = [{ name = \
             \"preprocess\", operations = [{ op = \"decode-image\" }, { op = \"resize\", size = [224, 224] }] }]`; for \
             arrays as they are, `stage = [{ name = \"copy\", operations = [] }]`",
        ));
    }
    let fetch = match fetch {
        Some(fetch) => fetch,
        None => {
            let name = ("name".to_owned(), Value::String(FETCH.to_owned()).into());
            FetchConfig::read(&mut root.nested("stage.fetch", Value::Table(vec![name]).into())?)?
        }
    };
    Ok((fetch, stages))
}

fn tables(stages: Option<Located>) -> Result<Vec<Located>, ConfigError> {
    let Some(Located { value, location }) = stages else { return Ok(Vec::new()) };
    let Value::Array(items) = value else {
        let kind = value.kind();
        let message =
            format!("`stage` must be an array of tables, written `[[stage]]`, not {kind}");
        return Err(ConfigError::new(&location, message));
    };
    Ok(items)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_above_their_limit_are_refused_with_their_key() {
        let table = |bytes: usize| {
            let text = Value::String("x".repeat(bytes)).into();
            Value::Table(vec![("text".to_owned(), text)])
        };
        // {"text":"…"}
        let frame = json_bytes(&table(0));
        assert!(Arguments::read(&table(MAX_ARGUMENTS_BYTES - frame)).is_some());
        let beyond = table(MAX_ARGUMENTS_BYTES - frame + 1);
        assert!(Arguments::read(&beyond).is_none());
        let entries = vec![("arguments".to_owned(), beyond.into())];
        let stage = Value::Table(entries).into();
        let mut section = Section::new("stage.augment", stage, std::path::Path::new("/")).unwrap();
        let error = section.take::<Arguments>("arguments").unwrap_err().to_string();
        assert!(
            error.contains(
                "`stage.augment.arguments` has 67108865 bytes as JSON, and may have 67108864"
            ),
            "{error}"
        );
        assert!(Arguments::refusal(&Value::Bool(true)).is_none());
    }
}
