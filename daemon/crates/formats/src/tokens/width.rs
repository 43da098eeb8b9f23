//! Infers the type of the tokens in raw `.bin` files from the data, because such files do not contain it.
//!
//! Tokens are numbers below a vocabulary of at most [`VOCABULARY`] entries. Read as pairs of 16-bit halves, 32-bit
//! tokens have a high half with at most a few small values, while in 16-bit tokens both halves have the same
//! distribution. So the test computes the probability of the high halves under the distribution of the low ones. If
//! both readings are plausible, the data is ambiguous, and the user must decide.

use forebay_config::DatasetConfig;
use forebay_keys::{Located, Section, Value};
use forebay_protocol::tensor::DType;

use super::files::{Documents, TokenFiles, read_part};
use super::keys::TokenKeys;
use forebay_dataset::error::DatasetError;
use forebay_dataset::opening::OpenOptions;
use forebay_storage::Storage;
use forebay_storage::location::{FileId, FileTable};

/// The maximum size of a vocabulary; Gemma's has 262,144 entries.
const VOCABULARY: u32 = 1 << 20;
/// The number of small values that are counted individually: the high halves of all tokens below the vocabulary.
const SMALL: usize = (VOCABULARY >> 16) as usize;
/// The number of files to inspect, including the first and the last.
const FILES: u64 = 4;
/// The number of positions to inspect in a file, including its first and last bytes.
const PLACES: u64 = 8;
/// The number of bytes to read at one position.
const PLACE_BYTES: u64 = 64 << 10;
/// Logarithm of the probability below which a coincidence is excluded: one in a million.
const EXCLUDED: f64 = -14.0;
/// The minimum number of pairs for comparing the distributions of the halves.
const COMPARED_PAIRS: u64 = 1000;
/// The difference between the distributions of the two halves from which on they are not 16-bit tokens.
const MIN_DIFFERENCE: f64 = 0.5;

/// A type, and the reason for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Width {
    pub(crate) dtype: DType,
    /// The evidence in the data, for the comment in a configuration.
    pub(crate) reason: String,
}

/// Inspects the raw files at a configuration's path, and sets `dataset.tokens.dtype` to the inferred type. `None`: the
/// key is set, or all files have a header.
///
/// # Errors
/// The data is ambiguous, or files differ.
pub(crate) fn settle(
    config: &mut DatasetConfig,
    storage: &dyn Storage,
    options: OpenOptions<'_>,
) -> Result<Option<Width>, DatasetError> {
    // Every raw file is a whole number of bytes.
    let keys = TokenKeys { dtype: DType::U8, ..TokenKeys::of(config)? };
    // The opening reports defects of files.
    let Ok(files) = TokenFiles::find(config, &keys, storage, options) else { return Ok(None) };
    let is_raw = |file: &&super::files::TokenFile| file.documents == Documents::EndToken;
    let has_header = files.files.iter().any(|file| file.data_start > 0);
    if given(config).is_some()
        || files.dtype != DType::U8
        || has_header
        || !files.files.iter().all(|file| is_raw(&file))
    {
        return Ok(None);
    }
    let count = files.files.len() as u64;
    let mut found: Option<(Width, FileId)> = None;
    let mut unknown = None;
    for place in spread(count, FILES) {
        let file = FileId(place);
        let bytes =
            files.files.get(usize::try_from(place).unwrap_or(0)).map_or(0, |file| file.tokens);
        let path = storage.full_path(&files.names().path(file));
        let mut halves = Halves::default();
        let mut buffer = Vec::new();
        // Each position is a multiple of the size of the widest tokens.
        for start in spread(bytes.div_ceil(PLACE_BYTES), PLACES) {
            let start = start * PLACE_BYTES;
            let length = PLACE_BYTES.min(bytes - start);
            buffer.clear();
            options.call("reading", &path, || {
                read_part(storage, files.names(), file, start, length, &mut buffer)
            })?;
            halves.add(&buffer);
        }
        match (halves.verdict(bytes), &found) {
            (Ok(width), Some((other, before))) if other.dtype != width.dtype => {
                let before = storage.full_path(&files.names().path(*before));
                let reason = format!(
                    "its tokens seem to be {}, and those of {} {}; name files of one type in dataset.path",
                    width.dtype.name(),
                    before.display(),
                    other.dtype.name()
                );
                return Err(DatasetError::ArrayFile { path, reason });
            }
            (Ok(width), None) => found = Some((width, file)),
            (Ok(_), Some(_)) => {}
            (Err(reason), _) => unknown = unknown.or(Some((path, bytes, reason))),
        }
    }
    let Some((width, _)) = found else {
        let Some((path, bytes, reason)) = unknown else { return Ok(None) };
        return Err(ask(path, bytes, &reason));
    };
    set(config, width.dtype)?;
    Ok(Some(width))
}

/// The type in the configuration.
pub(crate) fn given(config: &DatasetConfig) -> Option<DType> {
    let tokens = config.own.entries().iter().find(|(key, _)| key == "tokens")?;
    tokens.1.get("dtype").and_then(|_| TokenKeys::of(config).ok()).map(|keys| keys.dtype)
}

/// The question, with each possible answer.
fn ask(path: std::path::PathBuf, bytes: u64, reason: &str) -> DatasetError {
    let line = |dtype: DType| {
        let size = dtype.size_bytes();
        let counted = format!("{} tokens", bytes / size);
        bytes
            .is_multiple_of(size)
            .then(|| format!("--set dataset.tokens.dtype={} ({counted})", dtype.name()))
    };
    let answers: Vec<_> =
        [DType::U16, DType::U32, DType::I64, DType::U8].into_iter().filter_map(line).collect();
    let reason = format!(
        "the data do not tell the type of its tokens: {reason}; say it to init with one of {}",
        answers.join(", ")
    );
    DatasetError::ArrayFile { path, reason }
}

fn set(config: &mut DatasetConfig, dtype: DType) -> Result<(), DatasetError> {
    let table = |key: &str, value: Located| Value::Table(vec![(key.to_owned(), value)]);
    let word = Value::String(dtype.name().to_owned());
    let tokens = table("tokens", table("dtype", word.into()).into());
    config.own = Section::new("dataset", tokens.into(), "/".as_ref())?;
    Ok(())
}

/// Up to `most` numbers below `count`, evenly spread, including the first and the last.
fn spread(count: u64, most: u64) -> impl Iterator<Item = u64> {
    let taken = count.min(most);
    (0..taken).map(move |place| if taken < 2 { 0 } else { place * (count - 1) / (taken - 1) })
}

/// Counts of the 16-bit halves at even and at odd positions.
#[derive(Debug)]
struct Halves {
    pairs: u64,
    /// By position: how often each small value occurs.
    small: [[u64; SMALL]; 2],
    /// By position: how often each high byte occurs.
    bytes: [[u64; 256]; 2],
    /// High halves of negative 32-bit numbers.
    negative: u64,
    /// The number of 64-bit words, how many of them are valid 64-bit tokens, how many are negative, and how many are
    /// not zero.
    words: u64,
    wide: u64,
    wide_negative: u64,
    nonzero: u64,
    is_text: bool,
}

impl Default for Halves {
    fn default() -> Self {
        Self {
            pairs: 0,
            small: [[0; SMALL]; 2],
            bytes: [[0; 256]; 2],
            negative: 0,
            words: 0,
            wide: 0,
            wide_negative: 0,
            nonzero: 0,
            is_text: true,
        }
    }
}

impl Halves {
    fn add(&mut self, bytes: &[u8]) {
        for pair in bytes.chunks_exact(4) {
            self.pairs += 1;
            for (place, half) in pair.chunks_exact(2).enumerate() {
                let half = u16::from_le_bytes([half[0], half[1]]);
                self.bytes[place][usize::from(half >> 8)] += 1;
                if let Some(count) = self.small[place].get_mut(usize::from(half)) {
                    *count += 1;
                }
            }
            self.negative += u64::from(pair[2..] == [0xff; 2] && pair[1] >= 0x80);
        }
        for word in bytes.as_chunks::<8>().0 {
            let token = i64::from_le_bytes(*word);
            self.words += 1;
            self.nonzero += u64::from(token != 0);
            self.wide += u64::from((-0x8000..i64::from(VOCABULARY)).contains(&token));
            self.wide_negative += u64::from(token < 0);
        }
        let is_text = |byte: &u8| byte.is_ascii_graphic() || byte.is_ascii_whitespace();
        self.is_text &= bytes.iter().all(is_text);
    }

    /// Logarithm of the probability that all halves at one position are this small under the distribution of the other
    /// halves.
    fn chance(&self, place: usize) -> f64 {
        let most = self.small[place].iter().rposition(|count| *count > 0).unwrap_or(0);
        let others: u64 = self.small[1 - place][..=most].iter().sum();
        #[expect(clippy::cast_precision_loss, reason = "a chance")]
        let (others, pairs) = (others as f64, self.pairs as f64);
        pairs * ((others + 1.0) / (pairs + 2.0)).ln()
    }

    fn are_small(&self, place: usize, more: u64) -> bool {
        self.small[place].iter().sum::<u64>() + more == self.pairs
    }

    /// The difference of the distributions of the two halves, from 0 to 1.
    fn difference(&self) -> f64 {
        let apart: u64 =
            self.bytes[0].iter().zip(&self.bytes[1]).map(|(low, high)| low.abs_diff(*high)).sum();
        #[expect(clippy::cast_precision_loss, reason = "a share")]
        let share = apart as f64 / (2 * self.pairs.max(1)) as f64;
        share
    }

    /// The type of the tokens in a file with `bytes` bytes, or why it is unknown.
    fn verdict(&self, bytes: u64) -> Result<Width, String> {
        let width = |dtype, reason: String| Ok(Width { dtype, reason });
        let pairs = self.pairs;
        if bytes % 2 == 1 {
            return Err(format!(
                "{bytes} bytes are an odd number: the file was cut short, or a token is a byte"
            ));
        }
        if self.is_text && bytes >= 64 {
            return Err("all bytes are of ASCII text: a token may be a byte".to_owned());
        }
        let is_quarter = bytes.is_multiple_of(4);
        let has_signs = self.negative > 0;
        if bytes.is_multiple_of(8)
            && self.words >= 4
            && self.wide == self.words
            && self.nonzero * 2 > self.words
        {
            // Read as 16-bit tokens, at least every second number would be zero.
            let reason = format!("all of {} words of 64 bits are below {VOCABULARY}", self.words);
            let sign = if self.wide_negative > 0 { ", some below zero" } else { "" };
            return width(DType::I64, reason + sign);
        }
        let high_small = self.are_small(1, self.negative);
        if is_quarter && high_small && self.chance(1) < EXCLUDED {
            let most = self.small[1].iter().rposition(|count| *count > 0).unwrap_or(0);
            let reason = format!(
                "the upper halves of {pairs} pairs of 16 bits are all {}",
                match most {
                    0 => "0".to_owned(),
                    most => format!("at most {most}"),
                }
            );
            return match has_signs {
                true => width(DType::I32, reason + " or a sign"),
                false => width(DType::U32, reason),
            };
        }
        let low_small = self.are_small(0, 0);
        if low_small && self.chance(0) < EXCLUDED {
            return Err("it looks like numbers of 32 bits in big endian, which are not read; save them again in little \
                        endian"
                .to_owned());
        }
        let wide_apart = pairs >= COMPARED_PAIRS && self.difference() > MIN_DIFFERENCE;
        if wide_apart {
            return Err("numbers at even and at odd places of 16 bits differ in kind, and those of 32 bits are larger \
                        than a vocabulary"
                .to_owned());
        }
        if high_small && is_quarter && (!low_small || pairs < 8 || self.small[1][0] == pairs) {
            return Err(format!("{pairs} pairs of 16 bits are tokens of 16 or of 32 bits alike"));
        }
        if high_small && !is_quarter {
            return Err(format!(
                "{bytes} bytes are no whole number of 32-bit tokens, which they look like"
            ));
        }
        let reason = format!("upper and lower halves of {pairs} pairs of 16 bits are alike");
        width(DType::U16, reason)
    }
}

#[cfg(test)]
mod tests;
