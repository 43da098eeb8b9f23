//! Batches by length: the kinds of their keys, and their checks.

use forebay_keys::{AtLeastOne, ByteSize, ConfigError, Section, SomeBytes, Value, kinds};

use crate::config::Config;
use crate::draws::DrawsConfig;
use crate::model::{BatchConfig, Last, TooLong};
use crate::single_keys::Shuffle;

/// The default of `order.pool`.
const POOL: u64 = 65_536;
/// The largest pool: its plan takes some tens of bytes a sample, and is made at once.
const MOST_OF_POOL: u64 = 4 << 20;
/// The word for the stored size of a sample.
const BYTES: &str = "bytes";

/// What the lengths of samples are counted in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LengthUnit {
    /// Bytes of the sample as it is stored.
    Bytes,
    /// What a field of the sample says or has.
    Tokens,
}

impl LengthUnit {
    /// The word in messages.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Bytes => BYTES,
            Self::Tokens => "tokens",
        }
    }
}

/// The most that the rows of a batch times its longest row come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LengthBudget {
    /// What is counted.
    pub unit: LengthUnit,
    /// How many of them; at least 1.
    pub amount: u64,
}

impl std::fmt::Display for LengthBudget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.amount, self.unit.word())
    }
}

/// The source of the samples' lengths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LengthSource<'a> {
    /// The size of the sample as it is stored.
    Bytes,
    /// A field: the value of an integer, the number of elements of an array's first dimension, or the bytes of others.
    Field(&'a str),
}

const EXPECTED: &str = "a table of one bound such as { tokens = 16384 } or { bytes = \"8MiB\" }";

kinds! {
    /// The bound of a batch.
    [pub] Budget as LengthBudget: EXPECTED, type "{ tokens = … } or { bytes = … }";
    read(value) {
        let Value::Table(entries) = value else { return None };
        let [(key, located)] = &entries[..] else { return None };
        match key.as_str() {
            "tokens" => AtLeastOne::read(&located.value)
                .map(|amount| LengthBudget { unit: LengthUnit::Tokens, amount }),
            BYTES => SomeBytes::read(&located.value)
                .map(|amount| LengthBudget { unit: LengthUnit::Bytes, amount }),
            _ => None,
        }
    }
    write(out) {
        let amount = match out.unit {
            LengthUnit::Bytes => ByteSize::write(&out.amount),
            LengthUnit::Tokens => AtLeastOne::write(&out.amount),
        };
        Value::Table(vec![(out.unit.word().to_owned(), amount.into())])
    }
    schema { "type": "object", "minProperties": 1, "maxProperties": 1, "additionalProperties": false, "properties": {
        "tokens": (AtLeastOne::schema()), BYTES: (SomeBytes::schema())
    } }
}

/// The checks of `[batch]`.
pub(crate) fn check_batch(batch: &mut BatchConfig, section: &Section) -> Result<(), ConfigError> {
    let is_given = |key: &str| section.location_of(key).is_some();
    let fail = |key: &str, message: String| Err(section.error_at(key, message));
    let Some(budget) = batch.budget else {
        if !is_given("size") {
            return Err(section.error(
                "`batch.size` is required: a whole number from 1; or `batch.budget`, for batches by length",
            ));
        }
        let unused = ["length", "multiple_of", "max_rows", "too_long"];
        return match unused.into_iter().find(|key| is_given(key)) {
            Some(key) => fail(
                key,
                format!(
                    "`batch.{key}` has no effect without `batch.budget`; give a budget in place of `batch.size`, or leave \
                     it out"
                ),
            ),
            None => Ok(()),
        };
    };
    let Some(max_rows) = batch.max_rows else {
        return fail(
            "budget",
            "`batch.max_rows` is required with `batch.budget`: the most rows of a batch, for which memory is planned"
                .to_owned(),
        );
    };
    // A resolved configuration has both.
    if is_given("size") && batch.size != max_rows {
        return fail(
            "size",
            "`batch.size` cannot be combined with `batch.budget`, with which batches differ in their number of rows; leave \
             it out: `batch.max_rows` bounds it"
                .to_owned(),
        );
    }
    batch.size = max_rows;
    match (budget.unit, batch.length.as_deref()) {
        (LengthUnit::Tokens, None | Some(BYTES)) => {
            return fail(
                "length",
                "`batch.length` must be a field of the samples for a budget of tokens: an integer that is the length, an \
                 array whose elements are counted, or text whose bytes are"
                    .to_owned(),
            );
        }
        (LengthUnit::Bytes, Some(field)) if field != BYTES => {
            return fail(
                "length",
                format!(
                    "`batch.length` must be \"bytes\" for a budget of bytes, not \"{field}\"; lengths by a field have a \
                     budget of tokens"
                ),
            );
        }
        _ => {}
    }
    if batch.last == Last::Short {
        return fail(
            "last",
            "`batch.last` cannot be \"short\" with `batch.budget`: all ranks have the same number of batches, and samples \
             that are left over are fewer than ranks; set it to \"drop\", or to \"pad\" to repeat some of them"
                .to_owned(),
        );
    }
    Ok(())
}

impl BatchConfig {
    /// The source of the samples' lengths, for batches by length.
    #[must_use]
    pub fn length_source(&self) -> Option<LengthSource<'_>> {
        self.budget?;
        Some(match self.length.as_deref() {
            None | Some(BYTES) => LengthSource::Bytes,
            Some(field) => LengthSource::Field(field),
        })
    }

    /// A row counts as its length rounded up to a multiple of this.
    #[must_use]
    pub fn counted_multiple(&self) -> u32 {
        self.multiple_of.map_or(1, std::num::NonZeroU32::get)
    }

    /// What becomes of a sample above the budget.
    #[must_use]
    pub fn when_too_long(&self) -> TooLong {
        self.too_long.unwrap_or(TooLong::Error)
    }
}

impl Config {
    /// The samples of a pool, for batches by length.
    #[must_use]
    pub fn pool(&self) -> u64 {
        self.order.pool.unwrap_or(POOL)
    }

    /// Checks `[batch]` and `[order]` against each other.
    pub(crate) fn check_budget(&self) -> Result<(), ConfigError> {
        let fail = |path: [&str; 2], message: &str| {
            Err(ConfigError::new(&self.location(&path), message.to_owned()))
        };
        if self.batch.budget.is_none() {
            return match self.order.pool {
                Some(_) => fail(
                    ["order", "pool"],
                    "`order.pool` has no effect without `batch.budget`; leave it out",
                ),
                None => Ok(()),
            };
        }
        if self.pool() > MOST_OF_POOL {
            return fail(
                ["order", "pool"],
                &format!("`order.pool` must be at most {MOST_OF_POOL}: a pool is planned at once"),
            );
        }
        if self.order.shuffle == Shuffle::Blocks {
            return fail(
                ["order", "shuffle"],
                "`order.shuffle = \"blocks\"` cannot be combined with `batch.budget`, which takes the samples of a pool in \
                 the order of their lengths; set it to true",
            );
        }
        if self.batch.when_too_long() == TooLong::Drop && self.draws() != DrawsConfig::Once {
            return fail(
                ["batch", "too_long"],
                "`batch.too_long = \"drop\"` is for one dataset of which an epoch has each sample once; list the samples to \
                 use in `dataset.ids`, or raise the budget",
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::read;

    fn batch(keys: &str) -> Result<Config, String> {
        let head = "dataset = { path = \"x\", format = \"npy\" }\nstage = [{ name = \"copy\", operations = [] }]\n";
        read(&format!("{head}{keys}\n")).map_err(|error| error.to_string())
    }

    #[test]
    fn budget_replaces_the_size() {
        let config = batch(
            "[batch]\nbudget = { tokens = 16_384 }\nlength = \"text\"\nmax_rows = 256\nmultiple_of = 8",
        )
        .unwrap();
        assert_eq!(config.batch.size.get(), 256);
        assert_eq!(config.batch.length_source(), Some(LengthSource::Field("text")));
        assert_eq!((config.batch.counted_multiple(), config.pool()), (8, 65_536));
        assert_eq!(config.batch.budget.unwrap().to_string(), "16384 tokens");
        let again = Config::from_resolved("x", "x.toml", &config.resolved_toml()).unwrap();
        assert_eq!(again.batch, config.batch);
        let config = batch("[batch]\nbudget.bytes = \"2MiB\"\nmax_rows = 9\n").unwrap();
        assert_eq!(config.batch.length_source(), Some(LengthSource::Bytes));
        assert!(config.resolved_toml().contains("budget = { bytes = \"2MiB\" }"));
        let plain = batch("batch.size = 4").unwrap();
        assert_eq!(plain.batch.length_source(), None);
        assert!(!plain.resolved_toml().contains("multiple_of"));
    }

    #[test]
    fn mistakes_name_the_key_and_the_remedy() {
        for (keys, expected) in [
            (
                "batch = { budget = { tokens = 5 }, length = \"n\" }",
                ":3: `batch.max_rows` is required",
            ),
            ("batch = { budget = { tokens = 5 }, max_rows = 4 }", "`batch.length` must be a field"),
            (
                "batch = { budget = { tokens = 5 }, length = \"bytes\", max_rows = 4 }",
                "`batch.length` must be a field",
            ),
            (
                "batch = { budget = { bytes = 5 }, length = \"n\", max_rows = 4 }",
                "`batch.length` must be \"bytes\"",
            ),
            ("batch = { budget = { pixels = 5 } }", "`batch.budget` must be a table of one bound"),
            ("batch = { budget = { tokens = 0 } }", "`batch.budget` must be a table of one bound"),
            (
                "batch = { budget = { bytes = 5, tokens = 5 } }",
                "`batch.budget` must be a table of one bound",
            ),
            (
                "batch = { size = 3, budget = { bytes = 5 }, max_rows = 4 }",
                "`batch.size` cannot be combined with `batch.budget`",
            ),
            (
                "batch = { budget = { bytes = 5 }, max_rows = 4, last = \"short\" }",
                "`batch.last` cannot be \"short\"",
            ),
            ("batch = { size = 3, max_rows = 4 }", "`batch.max_rows` has no effect"),
            ("batch = { size = 3, too_long = \"drop\" }", "`batch.too_long` has no effect"),
            ("batch.size = 3\norder.pool = 4", ":4: `order.pool` has no effect"),
            (
                "batch = { budget = { bytes = 5 }, max_rows = 4 }\norder.pool = 5_000_000",
                ":4: `order.pool` must be at most 4194304",
            ),
            (
                "batch = { budget = { bytes = 5 }, max_rows = 4 }\norder.shuffle = \"blocks\"",
                ":4: `order.shuffle = \"blocks\"` cannot be combined",
            ),
            (
                "batch = { budget = { bytes = 5 }, max_rows = 4, too_long = \"drop\" }\norder.samples_per_epoch = 2",
                "`batch.too_long = \"drop\"` is for one dataset",
            ),
        ] {
            let error = batch(keys).unwrap_err();
            assert!(error.contains(expected), "{keys}\n{error}\n{expected}");
        }
    }
}
