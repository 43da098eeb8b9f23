//! The kinds of the keys that select samples: `dataset.where` and `dataset.split`.

use forebay_keys::{Kind as _, Located, Value, kinds, nearest};
use forebay_select::{Expression, Split, SplitError};

/// `dataset.split`.
#[derive(Debug, Clone, PartialEq)]
pub struct SplitKeys {
    /// The part that is used.
    pub part: String,
    /// All parts, in the order of their names.
    pub fractions: Vec<(String, f64)>,
    /// Of the hash.
    pub seed: u64,
    /// The column whose value decides the part, in place of the sample's name.
    pub by: Option<String>,
}

impl SplitKeys {
    /// The split; the fractions were checked when they were read.
    ///
    /// # Errors
    /// The fractions are unusable.
    pub fn split(&self) -> Result<Split, SplitError> {
        Split::new(&self.fractions, self.seed)
    }

    /// Reads the table.
    ///
    /// # Errors
    /// What follows `dataset.split` in a message.
    fn of(value: &Value) -> Result<Self, String> {
        const KEYS: [&str; 4] = ["part", "fractions", "seed", "by"];
        let Value::Table(entries) = value else {
            return Err(format!(" must be a table, not {}", value.describe()));
        };
        if let Some((key, _)) = entries.iter().find(|(key, _)| !KEYS.contains(&key.as_str())) {
            let hint = match nearest(key, KEYS.into_iter()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("valid keys: {}", KEYS.join(", ")),
            };
            return Err(format!(" has an unknown key `{key}`; {hint}"));
        }
        let find = |name: &str| {
            let found = entries.iter().find(|(key, _)| key == name);
            found.map(|(_, located)| &located.value)
        };
        let text = |name: &str| match find(name) {
            None => Ok(None),
            Some(value) => match value.as_text() {
                Some(text) => Ok(Some(text.to_owned())),
                None => Err(format!(".{name} must be a string, not {}", value.describe())),
            },
        };
        let Some(Value::Table(given)) = find("fractions") else {
            return Err(match find("fractions") {
                None => ".fractions is required: such as { train = 0.9, val = 0.1 }, the same for every part".to_owned(),
                Some(other) => format!(".fractions must be a table of numbers, not {}", other.describe()),
            });
        };
        let mut fractions = Vec::new();
        for (name, Located { value, .. }) in given {
            let Some(fraction) = f64::read(value) else {
                return Err(format!(
                    ".fractions.{name} must be a number, not {}",
                    value.describe()
                ));
            };
            fractions.push((name.clone(), fraction));
        }
        fractions.sort_by(|one, other| one.0.cmp(&other.0));
        let seed = match find("seed") {
            None => 0,
            Some(value) => u64::read(value).ok_or_else(|| {
                format!(".seed must be a whole number, 0 or more, not {}", value.describe())
            })?,
        };
        let names: Vec<_> = fractions.iter().map(|(name, _)| format!("\"{name}\"")).collect();
        let names = names.join(", ");
        let by = text("by")?;
        let Some(part) = text("part")? else {
            return Err(format!(".part is required: the part to use, one of {names}"));
        };
        let keys = Self { part, fractions, seed, by };
        match keys.split() {
            Ok(split) if split.place_of(&keys.part).is_none() => {
                let hint = nearest(&keys.part, split.names())
                    .map(|near| format!("; did you mean \"{near}\"?"));
                let hint = hint.unwrap_or_default();
                Err(format!(".part is \"{}\", and the fractions are of {names}{hint}", keys.part))
            }
            Ok(_) => Ok(keys),
            Err(SplitError::Empty) => Err(".fractions names no part".to_owned()),
            Err(SplitError::Fraction(name)) => {
                Err(format!(".fractions.{name} must be above 0 and at most 1"))
            }
            Err(SplitError::Sum(sum)) => {
                Err(format!(".fractions come to {sum}, and are at most 1 together"))
            }
            Err(SplitError::Twice(name)) => Err(format!(".fractions has `{name}` twice")),
        }
    }
}

const SPLIT: &str = "a table such as { part = \"train\", fractions = { train = 0.9, val = 0.1 } }";

kinds! {
    /// A condition on samples.
    [pub] Condition as String: "a condition such as \"score > 0.5 and split == 'train'\"", type "a string";
    read(value) {
        let text = value.as_text()?;
        Expression::parse(text).is_ok().then(|| text.to_owned())
    }
    write(out) { Value::String(out.clone()) }
    refusal(value) {
        let text = value.as_text()?;
        let mistake = Expression::parse(text).err()?;
        Some(format!(": {}\n{}", mistake.message, mistake.pointed(text)))
    }
    schema { "type": "string" }

    /// A part of the samples.
    [pub] SplitTable as SplitKeys: SPLIT, type "{ part = …, fractions = { … }, seed = …, by = … }";
    read(value) { SplitKeys::of(value).ok() }
    write(out) {
        let fractions = out.fractions.iter();
        let fractions = fractions.map(|(name, fraction)| (name.clone(), Value::Float(*fraction).into()));
        let mut entries = vec![
            ("part".to_owned(), Value::String(out.part.clone()).into()),
            ("fractions".to_owned(), Value::Table(fractions.collect()).into()),
            ("seed".to_owned(), u64::write(&out.seed).into()),
        ];
        entries.extend(out.by.iter().map(|by| ("by".to_owned(), Value::String(by.clone()).into())));
        Value::Table(entries)
    }
    refusal(value) { SplitKeys::of(value).err() }
    schema {
        "type": "object", "required": ["part", "fractions"], "additionalProperties": false, "properties": {
            "part": { "type": "string" },
            "fractions": { "type": "object", "minProperties": 1, "additionalProperties": {
                "type": "number", "exclusiveMinimum": 0, "maximum": 1
            } },
            "seed": (u64::schema()),
            "by": { "type": "string" }
        }
    }
}
