//! Batches by length: the kinds of their keys, and their checks.

use forebay_keys::{
    AtLeastOne, ByteSize, ConfigError, Kind as _, Section, SomeBytes, Value, kinds,
};

use crate::buckets;
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
    /// The duration of a sound, or what a field says, in milliseconds.
    Seconds,
    /// The area of a picture, or what a field says.
    Pixels,
}

impl LengthUnit {
    /// The word in messages.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Bytes => BYTES,
            Self::Tokens => "tokens",
            Self::Seconds => "seconds",
            Self::Pixels => "pixels",
        }
    }

    /// A length in words: the number, with `ms` where it counts milliseconds.
    #[must_use]
    pub fn length(self, length: u64) -> String {
        match self {
            Self::Seconds => format!("{length} ms"),
            Self::Bytes | Self::Tokens | Self::Pixels => length.to_string(),
        }
    }
}

/// The most that the rows of a batch times its longest row come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LengthBudget {
    /// What is counted.
    pub unit: LengthUnit,
    /// How many of them, of seconds the milliseconds; at least 1.
    pub amount: u64,
}

impl std::fmt::Display for LengthBudget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.unit {
            LengthUnit::Seconds => write!(f, "{} seconds", seconds_of(self.amount)),
            unit => write!(f, "{} {}", self.amount, unit.word()),
        }
    }
}

/// The source of the samples' lengths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LengthSource<'a> {
    /// The size of the sample as it is stored.
    Bytes,
    /// A field: in tokens the value of an integer, the number of elements of an array's first dimension, or the bytes of
    /// others; in seconds the value of a number, or the duration of a sound; in pixels the value of an integer, or the
    /// area of a picture.
    Field(&'a str),
    /// The only sound of a sample, in seconds, or its only picture, in pixels.
    OnlyField,
}

const MS_PER_SECOND: f64 = 1000.0;
/// The most seconds of a budget: their milliseconds are exact.
const MOST_SECONDS: f64 = 1e12;

/// Whole milliseconds of at least one.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within the bounds")]
fn milliseconds(value: &Value) -> Option<u64> {
    let milliseconds = (f64::read(value)? * MS_PER_SECOND).round();
    (1.0..=MOST_SECONDS * MS_PER_SECOND).contains(&milliseconds).then_some(milliseconds as u64)
}

#[expect(clippy::cast_precision_loss, reason = "milliseconds up to MOST_SECONDS are exact")]
fn seconds_of(milliseconds: u64) -> f64 {
    milliseconds as f64 / MS_PER_SECOND
}

const EXPECTED: &str = "a table of one bound, such as { tokens = 16384 }, { bytes = \"8MiB\" }, { seconds = 120.0 } or \
                        { pixels = 4194304 }";

kinds! {
    /// The bound of a batch.
    [pub] Budget as LengthBudget: EXPECTED, type "{ tokens = … }, { bytes = … }, { seconds = … } or { pixels = … }";
    read(value) {
        let Value::Table(entries) = value else { return None };
        let [(key, located)] = &entries[..] else { return None };
        let value = &located.value;
        let (unit, amount) = match key.as_str() {
            "tokens" => (LengthUnit::Tokens, AtLeastOne::read(value)?),
            BYTES => (LengthUnit::Bytes, SomeBytes::read(value)?),
            "seconds" => (LengthUnit::Seconds, milliseconds(value)?),
            "pixels" => (LengthUnit::Pixels, AtLeastOne::read(value)?),
            _ => return None,
        };
        Some(LengthBudget { unit, amount })
    }
    write(out) {
        let amount = match out.unit {
            LengthUnit::Bytes => ByteSize::write(&out.amount),
            LengthUnit::Tokens | LengthUnit::Pixels => AtLeastOne::write(&out.amount),
            LengthUnit::Seconds => Value::Float(seconds_of(out.amount)),
        };
        Value::Table(vec![(out.unit.word().to_owned(), amount.into())])
    }
    schema { "type": "object", "minProperties": 1, "maxProperties": 1, "additionalProperties": false, "properties": {
        "tokens": (AtLeastOne::schema()), BYTES: (SomeBytes::schema()),
        "seconds": { "type": "number", "exclusiveMinimum": 0 }, "pixels": (AtLeastOne::schema())
    } }
}

/// The checks of `[batch]`.
pub(crate) fn check_batch(batch: &mut BatchConfig, section: &Section) -> Result<(), ConfigError> {
    buckets::check(batch, section)?;
    let is_given = |key: &str| section.location_of(key).is_some();
    let fail = |key: &str, message: String| Err(section.error_at(key, message));
    let Some(budget) = batch.budget else {
        if !is_given("size") {
            return Err(section.error(
                "`batch.size` is required: a whole number from 1; or `batch.budget`, for batches by length",
            ));
        }
        let unused = ["length", "multiple_of", "max_rows", "too_long"];
        let is_unused =
            |key: &&str| is_given(key) && !(*key == "multiple_of" && batch.pad.is_some());
        return match unused.into_iter().find(is_unused) {
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
                     budget of tokens, seconds or pixels"
                ),
            );
        }
        (LengthUnit::Seconds | LengthUnit::Pixels, Some(BYTES)) => {
            return fail(
                "length",
                format!(
                    "`batch.length` must be a field of the samples for a budget of {}, not \"bytes\"; or leave it out for \
                     the only {}",
                    budget.unit.word(),
                    if budget.unit == LengthUnit::Seconds { "sound" } else { "picture" }
                ),
            );
        }
        _ => {}
    }
    if batch.when_too_long() == TooLong::Truncate {
        if budget.unit != LengthUnit::Tokens {
            return fail(
                "too_long",
                format!(
                    "`batch.too_long = \"truncate\"` is for a budget of tokens, whose arrays can be cut, not of {}; set it to \
                     \"drop\", or raise the budget",
                    budget.unit.word()
                ),
            );
        }
        if batch.truncated_to() == Some(0) {
            return fail(
                "multiple_of",
                format!(
                    "`batch.multiple_of` must be at most the budget ({budget}) with `batch.too_long = \"truncate\"`, not {}",
                    batch.counted_multiple()
                ),
            );
        }
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
        let unit = self.budget?.unit;
        Some(match (self.length.as_deref(), unit) {
            (None, LengthUnit::Seconds | LengthUnit::Pixels) => LengthSource::OnlyField,
            (None | Some(BYTES), _) => LengthSource::Bytes,
            (Some(field), _) => LengthSource::Field(field),
        })
    }

    /// A row counts as its length rounded up to a multiple of this.
    #[must_use]
    pub fn counted_multiple(&self) -> u32 {
        self.multiple_of.map_or(1, std::num::NonZeroU32::get)
    }

    /// To a multiple of this the rows of ragged fields are padded; `None`: they are not.
    #[must_use]
    pub fn padded_to_multiple(&self) -> Option<u32> {
        let counts_elements = self.budget.is_none_or(|budget| budget.unit == LengthUnit::Tokens);
        self.pad.map(|_| if counts_elements { self.counted_multiple() } else { 1 })
    }

    /// What becomes of a sample above the budget.
    #[must_use]
    pub fn when_too_long(&self) -> TooLong {
        self.too_long.unwrap_or(TooLong::Error)
    }

    /// The length to which longer samples are cut; `None`: they are not cut.
    #[must_use]
    pub fn truncated_to(&self) -> Option<u64> {
        let amount = self.budget?.amount;
        let kept = amount - amount % u64::from(self.counted_multiple());
        (self.when_too_long() == TooLong::Truncate).then_some(kept)
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
        let padded = self.output.iter().find(|output| output.pad.is_some());
        if let (Some(output), None) = (padded, self.batch.pad) {
            let path = ["output", &output.field, "pad"];
            let message = format!(
                "`output.{}.pad` has no effect without `batch.pad = \"batch\"`; add it, or leave `pad` out",
                output.field
            );
            return Err(ConfigError::new(&self.location(&path), message));
        }
        let key = match &self.batch {
            BatchConfig { budget: Some(_), .. } => "budget",
            BatchConfig { buckets: Some(_), .. } => "buckets",
            _ => {
                return match self.order.pool {
                    Some(_) => fail(
                        ["order", "pool"],
                        "`order.pool` has no effect without `batch.budget` or `batch.buckets`; leave it out",
                    ),
                    None => Ok(()),
                };
            }
        };
        if self.pool() > MOST_OF_POOL {
            return fail(
                ["order", "pool"],
                &format!("`order.pool` must be at most {MOST_OF_POOL}: a pool is planned at once"),
            );
        }
        if self.order.shuffle == Shuffle::Blocks {
            return fail(
                ["order", "shuffle"],
                &format!(
                    "`order.shuffle = \"blocks\"` cannot be combined with `batch.{key}`, which takes the samples of a pool in \
                     the order of their {}; set it to true",
                    if key == "budget" { "lengths" } else { "shapes" }
                ),
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
    fn seconds_are_milliseconds_and_pixels_areas() {
        for (budget, unit, amount, words, resolved) in [
            ("seconds = 120.0", LengthUnit::Seconds, 120_000, "120 seconds", "{ seconds = 120.0 }"),
            ("seconds = 2", LengthUnit::Seconds, 2000, "2 seconds", "{ seconds = 2.0 }"),
            ("seconds = 0.0014", LengthUnit::Seconds, 1, "0.001 seconds", "{ seconds = 0.001 }"),
            ("seconds = 4.35", LengthUnit::Seconds, 4350, "4.35 seconds", "{ seconds = 4.35 }"),
            ("pixels = 65_536", LengthUnit::Pixels, 65_536, "65536 pixels", "{ pixels = 65536 }"),
        ] {
            let config =
                batch(&format!("batch = {{ budget = {{ {budget} }}, max_rows = 4 }}")).unwrap();
            let found = config.batch.budget.unwrap();
            assert_eq!(
                (found, found.to_string()),
                (LengthBudget { unit, amount }, words.to_owned())
            );
            assert_eq!(config.batch.length_source(), Some(LengthSource::OnlyField));
            let text = config.resolved_toml();
            assert!(text.contains(&format!("budget = {resolved}")), "{text}");
            let again = Config::from_resolved("x", "x.toml", &text).unwrap();
            assert_eq!(again.batch, config.batch);
        }
        let keys = "batch = { budget = { tokens = 30 }, length = \"t\", max_rows = 4, multiple_of = 8, too_long = \"truncate\" }";
        assert_eq!(batch(keys).unwrap().batch.truncated_to(), Some(24));
        let keys = "batch = { budget = { seconds = 9 }, length = \"duration\", max_rows = 4 }";
        assert_eq!(
            batch(keys).unwrap().batch.length_source(),
            Some(LengthSource::Field("duration"))
        );
        assert_eq!(LengthUnit::Seconds.length(1500), "1500 ms");
    }

    #[test]
    fn rows_are_padded_to_multiples_of_elements() {
        for (keys, expected) in [
            ("size = 3", None),
            ("size = 3, pad = \"batch\"", Some(1)),
            ("size = 3, pad = \"batch\", multiple_of = 8", Some(8)),
            (
                "budget = { tokens = 5 }, length = \"a\", max_rows = 4, pad = \"batch\", multiple_of = 4",
                Some(4),
            ),
            (
                "budget = { seconds = 5 }, max_rows = 4, pad = \"batch\", multiple_of = 1000",
                Some(1),
            ),
        ] {
            let config = batch(&format!("batch = {{ {keys} }}")).unwrap();
            assert_eq!(config.batch.padded_to_multiple(), expected, "{keys}");
            let again = Config::from_resolved("x", "x.toml", &config.resolved_toml()).unwrap();
            assert_eq!(again.batch, config.batch);
        }
        let config = batch(
            "batch = { size = 3, pad = \"batch\" }\noutput.a = { ragged = true, max_bytes = 8, pad = -100 }",
        )
        .unwrap();
        assert_eq!(config.output[0].pad, Some(-100.0));
        let again = Config::from_resolved("x", "x.toml", &config.resolved_toml()).unwrap();
        assert_eq!(again.output, config.output);
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
            ("batch = { budget = { rows = 5 } }", "`batch.budget` must be a table of one bound"),
            ("batch = { budget = { seconds = 0 } }", "`batch.budget` must be a table of one bound"),
            (
                "batch = { budget = { seconds = nan } }",
                "`batch.budget` must be a table of one bound",
            ),
            (
                "batch = { budget = { seconds = 1e300 } }",
                "`batch.budget` must be a table of one bound",
            ),
            (
                "batch = { budget = { pixels = 1.5 } }",
                "`batch.budget` must be a table of one bound",
            ),
            (
                "batch = { budget = { seconds = 5 }, length = \"bytes\", max_rows = 4 }",
                "`batch.length` must be a field of the samples for a budget of seconds, not \"bytes\"; or leave it out",
            ),
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
            (
                "batch = { budget = { bytes = 5 }, max_rows = 4, too_long = \"truncate\" }",
                "`batch.too_long = \"truncate\"` is for a budget of tokens, whose arrays can be cut, not of bytes",
            ),
            (
                "batch = { budget = { tokens = 5 }, length = \"t\", max_rows = 4, multiple_of = 6, too_long = \"truncate\" }",
                "`batch.multiple_of` must be at most the budget (5 tokens)",
            ),
            (
                "batch.size = 3\noutput.a = { ragged = true, pad = 1 }",
                ":4: `output.a.pad` has no effect without `batch.pad = \"batch\"`",
            ),
            ("batch = { size = 3, pad = \"longest\" }", "`batch.pad` must be \"batch\""),
            ("batch = { size = 3, multiple_of = 4 }", "`batch.multiple_of` has no effect"),
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
