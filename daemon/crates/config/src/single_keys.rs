//! Kinds of values of single keys.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use nix::unistd;

use crate::presets::PRESETS;
use forebay_keys::Value;
use forebay_keys::kinds;
use forebay_keys::{LocalPath, read_percent, write_percent};

/// The word for values that Forebay chooses.
const AUTO: &str = "auto";

/// The word for a shuffle in blocks.
const BLOCKS: &str = "blocks";

/// The maximal core number in a list: Linux' limit on x86-64 is 8,192 cores.
const MAX_CORE: u32 = 8_191;

/// The longest name that fits a line of `stats`.
const MAX_NAME_BYTES: usize = 64;

/// The number of threads that a stage may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Concurrency {
    /// The cores that the daemon may use.
    Auto,
    /// This many.
    Threads(NonZeroU32),
}

/// The files with which a side of encrypted connections proves who it is, and knows the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsPaths {
    /// The certificates that sign those of the others.
    pub ca: PathBuf,
    /// This side's certificate.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// The name in the others' certificates; `None`: that of their address.
    pub name: Option<String>,
}

/// How an epoch's samples are shuffled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shuffle {
    /// Not shuffled.
    Off,
    /// All samples.
    Exact,
    /// Blocks of neighbours, and the samples of several of them together.
    Blocks,
}

impl Shuffle {
    /// The word in messages and identities.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Off => "false",
            Self::Exact => "true",
            Self::Blocks => BLOCKS,
        }
    }
}

/// The maximal number of substitutes in an epoch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum BadSampleBudget {
    /// A share of the epoch's samples, 0 to 1; at least one sample.
    Share(f64),
    /// This many samples.
    Count(u64),
}

kinds! {
    /// A dataset's name in messages and statistics.
    [pub] DatasetName as String: "1 to 64 letters, digits, `-` or `_`";
    read(value) {
        let name = value.as_text()?;
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let is_name = (1..=MAX_NAME_BYTES).contains(&name.len()) && name.chars().all(is_word);
        is_name.then(|| name.to_owned())
    }
    write(out) { String::write(out) }
    schema { "type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$" }

    /// A non-negative number.
    [pub] Amount as f64: "a number, 0 or more", type "a number from 0";
    read(value) { f64::read(value).filter(|amount| *amount >= 0.0) }
    write(out) { f64::write(out) }
    schema { "type": "number", "minimum": 0 }

    Concurrency as Concurrency: "\"auto\" or a whole number from 1";
    read(value) {
        match value.as_text() {
            Some(AUTO) => Some(Concurrency::Auto),
            _ => NonZeroU32::read(value).map(Concurrency::Threads),
        }
    }
    write(out) {
        match out {
            Concurrency::Auto => Value::String(AUTO.to_owned()),
            Concurrency::Threads(threads) => NonZeroU32::write(threads),
        }
    }
    schema { "anyOf": [{ "const": AUTO }, (NonZeroU32::schema())] }

    Shuffle as Shuffle: "true, false or \"blocks\"";
    read(value) {
        match value {
            Value::Bool(true) => Some(Shuffle::Exact),
            Value::Bool(false) => Some(Shuffle::Off),
            _ => (value.as_text()? == BLOCKS).then_some(Shuffle::Blocks),
        }
    }
    write(out) {
        match out {
            Shuffle::Off => Value::Bool(false),
            Shuffle::Exact => Value::Bool(true),
            Shuffle::Blocks => Value::String(BLOCKS.to_owned()),
        }
    }
    schema { "enum": [true, false, BLOCKS] }

    BadSampleBudget as BadSampleBudget: "a share of the epoch's samples such as \"0.1%\" (0% to 100%), or a count", type "a percentage in quotes, or a count";
    read(value) {
        let count = u64::read(value).map(BadSampleBudget::Count);
        count.or_else(|| read_percent(value).map(BadSampleBudget::Share))
    }
    write(out) {
        match out {
            BadSampleBudget::Share(share) => write_percent(*share),
            BadSampleBudget::Count(count) => u64::write(count),
        }
    }
    schema { "anyOf": [(CpuLimit::schema()), (u64::schema())] }

    /// A preset's name. Its existence is checked when it is merged.
    [pub(crate)] Preset as String: "a preset's name";
    read(value) { String::read(value) }
    write(out) { String::write(out) }
    schema { "enum": (PRESETS.map(|(name, _)| name)) }

    /// A percentage above 0 as a share.
    [pub] CpuLimit as f64: "a percentage of the allowed cores such as \"40%\" (above 0%, at most 100%)", type "a percentage in quotes";
    read(value) { read_percent(value).filter(|share| *share > 0.0) }
    write(out) { write_percent(*out) }
    schema { "type": "string", "pattern": r"^[0-9.]+ *%$" }

    /// `"auto"` (`None`), or cores such as `"8-15"` or `"0,2,4-7"`, sorted.
    [pub] Cores as Option<Vec<u32>>: "\"auto\", or cores such as \"8-15\" or \"0,2,4-7\", each once", type "\"auto\" or a list in quotes";
    read(value) {
        let text = value.as_text()?;
        if text == AUTO {
            return Some(None);
        }
        let mut cores = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let first: u32 = first.trim().parse().ok()?;
            let last: u32 = last.trim().parse().ok()?;
            if first > last || last > MAX_CORE {
                return None;
            }
            cores.extend(first..=last);
        }
        cores.sort_unstable();
        cores.windows(2).all(|pair| pair[0] != pair[1]).then_some(Some(cores))
    }
    write(out) {
        let listed = |cores: &Vec<u32>| cores.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        Value::String(out.as_ref().map_or_else(|| AUTO.to_owned(), listed))
    }
    schema { "type": "string", "pattern": "^(auto|[0-9, -]+)$" }

    /// `"auto"` (`None`), or the path of a Unix socket.
    [pub] SocketPath as Option<PathBuf>: LocalPath::EXPECTED, type "\"auto\" or a path";
    read(value) {
        let path = LocalPath::read(value)?;
        Some((path != Path::new(AUTO)).then_some(path))
    }
    write(out) { out.as_ref().map_or_else(|| Value::String(AUTO.to_owned()), LocalPath::write) }
    resolve(out, folder) { out.map(|path| LocalPath::resolve(path, folder)) }
    schema { "type": "string" }

    /// A group by name or number. The name is looked up on this machine.
    [pub] Group as u32: "a group's name or number";
    read(value) {
        let named = || unistd::Group::from_name(value.as_text()?).ok()?;
        u32::read(value).or_else(|| named().map(|group| group.gid.as_raw()))
    }
    write(out) { u32::write(out) }
    refusal(value) {
        let name = value.as_text()?;
        Some(match unistd::Group::from_name(name) {
            Err(error) => format!(": cannot look up the group `{name}`: {error}"),
            Ok(_) => format!(": this machine has no group `{name}`"),
        })
    }
    schema { "anyOf": [{ "type": "string" }, (u32::schema())] }

    /// The files of a side of encrypted connections.
    [pub] TlsFiles as TlsPaths: "a table { ca, cert, key } of files", type "a table of files";
    read(value) {
        let Value::Table(entries) = value else { return None };
        let known = ["ca", "cert", "key", "name"];
        if !entries.iter().all(|(key, _)| known.contains(&key.as_str())) {
            return None;
        }
        let of = |name: &str| entries.iter().find(|(key, _)| key == name)?.1.value.as_text();
        let path = |name: &str| of(name).filter(|text| !text.is_empty()).map(PathBuf::from);
        let name = of("name").map(str::to_owned);
        Some(TlsPaths { ca: path("ca")?, cert: path("cert")?, key: path("key")?, name })
    }
    write(out) {
        let text = |path: &Path| Value::String(path.display().to_string());
        let files = [("ca", &out.ca), ("cert", &out.cert), ("key", &out.key)];
        let mut entries: Vec<_> =
            files.map(|(key, path)| (key.to_owned(), text(path).into())).into();
        let name = out.name.iter().map(|name| Value::String(name.clone()));
        entries.extend(name.map(|name| ("name".to_owned(), name.into())));
        Value::Table(entries)
    }
    resolve(out, folder) {
        let TlsPaths { ca, cert, key, name } = out;
        let [ca, cert, key] = [ca, cert, key].map(|path| folder.join(path));
        TlsPaths { ca, cert, key, name }
    }
    schema {
        "type": "object",
        "properties": { "ca": { "type": "string" }, "cert": { "type": "string" }, "key": { "type": "string" }, "name": { "type": "string" } },
        "required": ["ca", "cert", "key"],
        "additionalProperties": false
    }

    /// An IP address with a port. Host names are not accepted: they may resolve differently later.
    [pub] Address as SocketAddr: "an IP address and a port such as \"127.0.0.1:9464\" (port 0: any free one)", type "an IP address and port in quotes";
    read(value) { value.as_text()?.parse().ok() }
    write(out) { Value::String(out.to_string()) }
    schema { "type": "string" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_keys::Kind;

    fn text(text: &str) -> Value {
        Value::String(text.to_owned())
    }

    #[test]
    fn budgets_are_shares_or_counts() {
        let budget = BadSampleBudget::read;
        assert_eq!(budget(&text("50%")), Some(BadSampleBudget::Share(0.5)));
        assert_eq!(budget(&Value::Integer(3)), Some(BadSampleBudget::Count(3)));
        for wrong in
            [text("101%"), text("0.1"), text("nan%"), Value::Float(0.1), Value::Integer(-1)]
        {
            assert_eq!(budget(&wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn limit_is_a_percentage_above_zero() {
        assert_eq!(CpuLimit::read(&text("40%")), Some(0.4));
        assert_eq!(CpuLimit::read(&text("12.5 %")), Some(0.125));
        for wrong in [text("0%"), text("101%"), text("nan%"), text("40"), Value::Float(0.4)] {
            assert_eq!(CpuLimit::read(&wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn cores_are_listed_once_each() {
        let cores = |written| Cores::read(&text(written));
        assert_eq!(cores("auto"), Some(None));
        assert_eq!(cores("4-6, 0"), Some(Some(vec![0, 4, 5, 6])));
        for wrong in ["", "a", "5-4", "1,1", "0-4,3", "-1", "0-99999999"] {
            assert_eq!(cores(wrong), None, "{wrong}");
        }
    }
}
