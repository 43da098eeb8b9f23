//! Tokens made of another format's samples: `[dataset.tokens]` with `tokenizer`, or with `field` for lists of token
//! numbers.
//!
//! The samples are opened in their format, and made tokens once, on all cores ([`in_order`](crate::in_order)), into files with Megatron's
//! indexes in the cache ([`parts`]). These files are then the dataset, in the format `tokens`: all that it promises holds.
//! One process makes the files while it holds a lock, and others wait for it; it continues where an earlier one stopped.
//!
//! The folder's name derives from the samples' files as they are now, the tokenizer, and the keys that determine the
//! tokens, so a changed file gives another folder. The files' names derive from what is equal on all hosts, and are part of
//! the fingerprint.

mod keys;
mod made;
mod maker;
mod parts;
#[cfg(all(test, feature = "text"))]
mod tests;

use std::fs;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::thread::available_parallelism;
use std::time::Instant;

use forebay_config::{CacheConfig, DatasetConfig};
use forebay_keys::{Section, TokenName};
use forebay_protocol::tensor::DType;

pub(super) use self::keys::{of_texts, put_back, source, take_keys};
use self::made::MadeTexts;
use self::maker::Maker;
use self::parts::{Counts, Parts};
use crate::in_order::{Give, Pass, starts};
use crate::made_files::{self, Look};
use crate::registry;
use crate::sample_reader::SampleReader;
use crate::tokens::{self, TokenKeys};
use forebay_dataset::error::DatasetError;
use forebay_dataset::opening::{OpenOptions, Opened};
use forebay_dataset::progress::{ScanProgress, TextsMade};
use forebay_dataset::{Dataset, Field};
use forebay_index::folder::cache::{IndexPlace, Loaded, Saved};
use forebay_index::index_file::contents_digest;
use forebay_storage::{PatientStorage, Storage};

/// The name of the folder with the tokens of all datasets.
const FOLDER: &str = "tokens";
/// The file that says that a folder is complete.
const SUMMARY: &str = "texts.json";
/// The number of threads that wait for a storage behind a URL.
const REMOTE_THREADS: usize = 16;

/// Opens the tokens of a configuration's samples, and makes them if they do not exist. `samples`: the configuration
/// without `[dataset.tokens]`.
pub(super) fn open(
    config: &DatasetConfig,
    samples: &DatasetConfig,
    keys: &TokenKeys,
    options: OpenOptions<'_>,
) -> Result<Opened, DatasetError> {
    let started = Instant::now();
    // Neighbours share pages, nobody reads the files again and notices a change, and the index of the previous daemon is
    // that of the tokens.
    let reading = OpenOptions {
        previous_index: None,
        in_order: None,
        by_blocks: true,
        compares_files: true,
        ..options
    };
    keys::check_format(config)?;
    let Opened { dataset, storage, report } = registry::open_silently(samples, reading)?;
    let field = keys::find_field(config, keys, dataset.fields())?;
    let making = Making {
        config,
        dataset: dataset.as_ref(),
        field,
        maker: Maker::new(config, keys)?,
        keys,
        options,
    };
    let (folder, made, reused) = making.folder(storage.as_ref())?;
    if made.tokens == 0 {
        let reason = format!("its {} texts have no tokens", made.texts);
        return Err(DatasetError::NoSamples { path: config.path.clone(), reason });
    }
    let files = folder.join(SUMMARY);
    let mut opened =
        registry::open_silently(&of_tokens(config, keys, &making.maker, folder), options)?;
    let mut warnings = report.warnings;
    if let [Field { name, .. }, _, ..] = dataset.fields() {
        let field = &dataset.fields()[field].name;
        warnings.push(format!(
            "its samples have other fields than `{field}`, such as `{}`, which are read too; name `{field}` alone in \
             dataset.fields",
            if name == field { &dataset.fields()[1].name } else { name }
        ));
    }
    warnings.extend(made.warning());
    warnings.append(&mut opened.report.warnings);
    opened.report.warnings = warnings;
    opened.report.changes = report.changes;
    opened.report.selected = report.selected;
    if opened.report.path.is_none() {
        opened.report.reused = reused;
        (opened.report.path, opened.report.bytes) =
            (Some(files), made.tokens.saturating_mul(making.maker.dtype().size_bytes()));
    }
    opened.report.seconds = started.elapsed().as_secs_f64();
    Ok(opened)
}

/// The folder that has those of all datasets.
pub(super) fn folder_of_all(config: &DatasetConfig) -> PathBuf {
    made_files::folder_of_all(config, FOLDER)
}

/// The dataset of the files of tokens.
fn of_tokens(
    config: &DatasetConfig,
    keys: &TokenKeys,
    maker: &Maker,
    folder: PathBuf,
) -> DatasetConfig {
    let keys = TokenKeys {
        tokenizer: None,
        field: None,
        add_special_tokens: None,
        parse_special_tokens: None,
        bad_texts: None,
        max_bytes: None,
        end: maker.end.map(TokenName::Id),
        ..keys.clone()
    };
    let mut own = Section::default();
    own.put(tokens::TABLE, keys.to_value());
    DatasetConfig {
        format: tokens::FORMAT.name.to_owned(),
        path: folder,
        ids: None,
        condition: None,
        split: None,
        index: None,
        own,
        storage: Section::default(),
        cache: CacheConfig::default(),
        ..config.clone()
    }
}

/// What the tokens are made of.
struct Making<'a> {
    config: &'a DatasetConfig,
    dataset: &'a dyn Dataset,
    /// Among the dataset's fields.
    field: usize,
    maker: Maker,
    keys: &'a TokenKeys,
    options: OpenOptions<'a>,
}

impl Making<'_> {
    /// The folder with the files, what is in them, and whether they existed.
    fn folder(&self, storage: &dyn Storage) -> Result<(PathBuf, Counts, bool), DatasetError> {
        let all = made_files::place_of_all(self.config, FOLDER);
        let folder = all.path.join(&self.digest_on_this_host().to_hex()[..32]);
        let place = IndexPlace { path: folder.join(SUMMARY), ..all };
        let stem = self.digest_on_all_hosts().to_hex()[..16].to_owned();
        made_files::make_folder(self.options, &place, "tokens")?;
        let look = Look::of(self.options);
        let load = || {
            let made = saved(&folder, &stem, self.maker.dtype(), look);
            Ok(made.map_or(Saved::Nothing, Saved::Fresh))
        };
        let make = |_: &mut Vec<String>| {
            let made = self.make(storage, &folder, &stem)?;
            // Numbers and texts: serialization cannot fail.
            Ok(serde_json::to_vec(&made).unwrap_or_default())
        };
        let mut warnings = Vec::new();
        let made = match place.load_or_make(self.options, false, &mut warnings, load, make)? {
            Loaded::Saved(made) => return Ok((folder, made, true)),
            Loaded::New { bytes, .. } => {
                serde_json::from_slice(&bytes).map_err(|error| DatasetError::System {
                    path: place.path,
                    action: "reading back",
                    source: error.into(),
                })?
            }
        };
        Ok((folder, made, false))
    }

    /// Everything that determines the tokens.
    fn digest_on_all_hosts(&self) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"forebay tokens of texts 1\0");
        hasher.update(&self.dataset.fingerprint());
        hasher.update(self.dataset.fields()[self.field].name.as_bytes());
        hasher.update(b"\0");
        self.maker.digest(&mut hasher);
        hasher.update(&[u8::from(self.keys.skips_bad())]);
        let limits = &self.config.limits;
        for most in [self.keys.most_text_bytes(), limits.inflated_bytes, limits.sample_bytes] {
            // They decide which texts are left out.
            hasher.update(&if self.keys.skips_bad() { most } else { 0 }.to_le_bytes());
        }
        hasher.finalize()
    }

    /// As [`digest_on_all_hosts`](Self::digest_on_all_hosts), with the files' times and sizes.
    fn digest_on_this_host(&self) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new();
        hasher.update(self.digest_on_all_hosts().as_bytes());
        hasher.update(self.config.path.as_os_str().as_encoded_bytes());
        hasher.update(b"\0");
        if let Some(index) = self.dataset.index() {
            hasher.update(&contents_digest(index));
        }
        hasher.finalize()
    }

    /// Makes the files that do not exist yet.
    fn make(
        &self,
        storage: &dyn Storage,
        folder: &Path,
        stem: &str,
    ) -> Result<Counts, DatasetError> {
        let Self { dataset, options, .. } = self;
        let patient = options.patience.map(|patience| PatientStorage { storage, patience });
        let storage: &dyn Storage = match &patient {
            Some(patient) => patient,
            None => storage,
        };
        let mut parts = Parts::resume(folder, stem, self.maker.dtype());
        let all = dataset.kept_count();
        let from = parts.made().texts;
        let begun = Instant::now();
        let report = |made: &Counts| {
            let done = made.texts;
            let left = (done > from).then(|| {
                #[expect(clippy::cast_precision_loss, reason = "an estimate")]
                let share = (all.saturating_sub(done)) as f64 / (done - from) as f64;
                begun.elapsed().mul_f64(share)
            });
            let texts = TextsMade { done, all, tokens: made.tokens, left };
            let seen = ScanProgress {
                samples: done - from,
                texts: Some(texts),
                ..ScanProgress::default()
            };
            match (options.progress)(seen).is_break() {
                true => Err(DatasetError::Cancelled),
                false => Ok(()),
            }
        };
        let cores = available_parallelism().map_or(1, NonZeroUsize::get);
        let threads =
            if storage.remote_root().is_some() { cores.max(REMOTE_THREADS) } else { cores };
        let pass = Pass { starts: starts(*dataset, from), threads };
        let (dataset, field, maker) = (*dataset, self.field, &self.maker);
        let (limit, skips_bad) = (self.config.limits.sample_bytes, self.keys.skips_bad());
        let worker = || {
            let reader = SampleReader::new(dataset, storage, limit);
            let mut worker = Worker { dataset, field, skips_bad, reader, maker: maker.clone() };
            move |texts: Range<u64>, give: Give<'_, MadeTexts>| worker.run(texts, give)
        };
        pass.run(worker, &mut |made: Option<MadeTexts>| {
            if let Some(made) = made {
                parts.add(made)?;
            }
            report(parts.made())
        })?;
        parts.finish()
    }
}

/// The summary of a complete folder.
fn saved(folder: &Path, stem: &str, dtype: DType, look: Look) -> Option<Counts> {
    let summary = fs::read(folder.join(SUMMARY)).ok()?;
    let made: Counts = serde_json::from_slice(&summary).ok()?;
    parts::are_all_there(folder, stem, dtype, &made, look).then_some(made)
}

/// One thread of the pass.
struct Worker<'a> {
    dataset: &'a dyn Dataset,
    field: usize,
    skips_bad: bool,
    reader: SampleReader<'a>,
    maker: Maker,
}

impl Worker<'_> {
    /// Makes tokens of some texts, in their order.
    fn run(&mut self, texts: Range<u64>, give: Give<'_, MadeTexts>) -> Result<(), DatasetError> {
        let mut made = MadeTexts::default();
        for id in texts.map(|number| self.dataset.kept_at(number)) {
            let maker = &mut self.maker;
            let read = self.reader.read(id, |values| match values.get(self.field) {
                Some(value) => maker.make(value, &mut made),
                None => Err("it has fewer fields than the dataset".to_owned()),
            });
            let read = match read {
                // Bad for all time, as defective bytes are.
                Err(error) if error.is_bad_sample() => Err(error.to_string()),
                read => read?,
            };
            if let Err(reason) = read {
                let path = self.dataset.full_name(self.reader.storage(), id);
                if !self.skips_bad {
                    let remedy =
                        "mend it, or leave such texts out with dataset.tokens.bad_texts = \"skip\"";
                    let reason = format!("{reason}; {remedy}");
                    return Err(DatasetError::BrokenFile { path, reason });
                }
                made.leave_out(|| format!("{}: {reason}", path.display()));
            }
            if made.is_large() && give(std::mem::take(&mut made)).is_break() {
                return Ok(());
            }
        }
        // The pass ends in any case.
        let _ = give(made);
        Ok(())
    }
}
