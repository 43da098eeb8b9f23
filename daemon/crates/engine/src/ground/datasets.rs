//! The datasets of a configuration, opened as one, and an epoch's draws from them.

use std::sync::Arc;

use forebay_config::{Config, DatasetConfig, DrawsConfig, Shuffle, weight_changes};
use forebay_dataset::runs::blocks_of_neighbours;
use forebay_dataset::{DatasetError, Field, FieldKind, OpenOptions, Opened, join, read_weights};
use forebay_keys::ConfigError;
use forebay_order::{
    Blocks, Mixture, MixturePart, OrderError, Selection, WeightChange, Weighted, draws_of_repeat,
    draws_of_weights,
};
use forebay_protocol::sync::{AtomicU64, Ordering};
use forebay_select::Subset;

use crate::ground::classes::{self, DrawnClasses};
use crate::ground::stream_error::StreamError;

/// Maximal length of the dataset names in the description of draws for a saved state; longer ones are cut.
const MOST_WORDS: usize = 400;
/// Hexadecimal digits of a digest in that description.
const DIGEST_DIGITS: usize = 16;

/// Opens a dataset of any format, and stores what it found in the configuration. The engine does not know the formats.
pub type OpenDataset = fn(&mut DatasetConfig, OpenOptions<'_>) -> Result<Opened, DatasetError>;

/// A configuration's datasets as one.
#[derive(Debug)]
pub(crate) struct OpenedDatasets {
    pub(crate) opened: Opened,
    /// Name and number of samples that are used of each dataset.
    parts: Vec<(String, u64)>,
    /// The first id after the samples of each dataset.
    ends: Vec<u64>,
}

/// One dataset of a stream.
#[derive(Debug)]
pub struct DatasetShare {
    /// `dataset.name`.
    pub name: String,
    /// Number of its samples.
    pub samples: u64,
    /// The first id after those of its samples.
    pub(crate) end: u64,
    /// Number of an epoch's positions that draw from it, at the run's start.
    pub draws_per_epoch: u64,
    /// Changes of that number: the position, counted over all epochs, and the number per whole epoch from there.
    pub changes: Vec<(u64, u64)>,
    /// Its rows in published batches.
    pub(crate) rows_published: AtomicU64,
}

impl DatasetShare {
    /// Its rows in published batches of all sessions.
    pub(crate) fn rows_published(&self) -> u64 {
        // Relaxed: a count.
        self.rows_published.load(Ordering::Relaxed)
    }
}

/// The draws of a stream's epoch.
#[derive(Debug)]
pub(crate) struct EpochDraws {
    pub(crate) selection: Selection,
    /// The samples that are used, by whose numbers the selection draws; `None`: all.
    pub(crate) kept: Option<Arc<Subset>>,
    /// The number of used samples that are left out, since they are longer than a batch may be.
    pub(crate) too_long: u64,
    /// If there are several datasets: the draws from each.
    pub(crate) datasets: Vec<DatasetShare>,
    /// Identifies the draws in a saved state, in addition to the datasets; `None` if each sample of one dataset is
    /// drawn once.
    pub(crate) words: Option<String>,
    /// BLAKE3 of the full description; `words` may be shortened.
    digest: [u8; 32],
    /// Maximal memory of the open blocks of an order in blocks.
    pub(crate) open_blocks: OpenBlocks,
    /// If classes are drawn alike, or batches are grouped: the classes.
    pub(crate) classes: Option<DrawnClasses>,
}

/// The memory of an order in blocks; 0 for other orders.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct OpenBlocks {
    /// Bytes of the blocks of two groups: the end of one and the beginning of the next are open together.
    pub(crate) bytes: u64,
    /// Bytes of the largest block.
    pub(crate) largest: u64,
    /// Additional bytes for unpacking, per thousand bytes that are read concurrently.
    pub(crate) scratch_per_thousand: u64,
}

/// Opens the datasets that a configuration describes.
pub(crate) fn open_datasets(
    config: &mut Config,
    open: OpenDataset,
    options: OpenOptions<'_>,
) -> Result<OpenedDatasets, StreamError> {
    let mut all = Vec::new();
    let is_one = config.more_datasets.is_empty();
    // A daemon that replaces another takes over the index of one dataset; several datasets use their saved indexes.
    let options = if is_one { options } else { OpenOptions { previous_index: None, ..options } };
    let by_blocks = config.order.shuffle == Shuffle::Blocks;
    let is_in_order = is_one && config.order.shuffle == Shuffle::Off;
    let in_order = is_in_order.then(|| u64::from(config.batch.size.get()));
    let options = OpenOptions { by_blocks, in_order, ..options };
    let mut failed = None;
    for (place, of) in config.datasets_mut().enumerate() {
        match open(of, options) {
            Ok(opened) => all.push((of.name.clone().unwrap_or_default(), opened)),
            Err(error) => {
                failed = Some((place, error));
                break;
            }
        }
    }
    if let Some((place, error)) = failed {
        let key = match error {
            // The error contains the key's location.
            DatasetError::Keys(error) => return Err(error.into()),
            DatasetError::UnknownFormat { .. } => "format",
            _ => "path",
        };
        return Err(StreamError::Dataset { location: config.dataset_location(place, key), error });
    }
    let parts = all.iter().map(|(name, of)| (name.clone(), of.dataset.kept_count())).collect();
    let mut end = 0;
    let ends = all.iter().map(|(_, of)| {
        end += of.dataset.sample_count();
        end
    });
    let ends = ends.collect();
    if config.stages.iter().all(|stage| stage.python.is_none()) {
        compare_shapes(config, &all)?;
    }
    let opened = join(all).map_err(|disagreement| {
        let location = config.dataset_location(disagreement.place, "name");
        ConfigError::new(&location, disagreement.message)
    })?;
    // Warnings of a single dataset are logged where it is opened.
    for warning in opened.report.warnings.iter().filter(|_| !is_one) {
        tracing::warn!("{warning}");
    }
    Ok(OpenedDatasets { opened, parts, ends })
}

/// Refuses datasets whose arrays differ in shape, except for the first dimension of a ragged field. Each dataset's
/// first sample decides; a Python stage may convert all to one shape.
fn compare_shapes(config: &Config, all: &[(String, Opened)]) -> Result<(), ConfigError> {
    let Some(((first_name, first), others)) = all.split_first() else { return Ok(()) };
    for (name, shape) in first.dataset.fields().iter().filter_map(array_shape) {
        let output = config.output.iter().find(|output| output.field == name);
        let is_ragged = output.is_some_and(|output| output.ragged);
        let from = usize::from(is_ragged);
        for (place, (other_name, other)) in others.iter().enumerate() {
            let mut found = other.dataset.fields().iter().filter_map(array_shape);
            let Some((_, found)) = found.find(|(other, _)| *other == name) else { continue };
            // The number of dimensions is compared with the types.
            let differs = found.len() == shape.len() && found.get(from..) != shape.get(from..);
            if differs {
                let remedy = match found.get(1..) == shape.get(1..) {
                    true => format!(
                        "or set output.{name} = {{ ragged = true }} if the first dimension may differ"
                    ),
                    false => "or give one of them another name in dataset.fields".to_owned(),
                };
                let message = format!(
                    "field `{name}` has arrays of {shape:?} in dataset `{first_name}` and of {found:?} in dataset \
                     `{other_name}`: rows of a batch have one shape; save them alike, {remedy}"
                );
                return Err(ConfigError::new(&config.dataset_location(place + 1, "name"), message));
            }
        }
    }
    Ok(())
}

fn array_shape(field: &Field) -> Option<(&str, &[u64])> {
    match &field.kind {
        FieldKind::Array { shape, .. } => Some((&field.name, shape)),
        _ => None,
    }
}

impl EpochDraws {
    /// The draws that the configuration describes for these datasets. Blocks while classes are learned.
    pub(crate) fn of(
        config: &Config,
        datasets: &OpenedDatasets,
        options: OpenOptions<'_>,
    ) -> Result<Self, StreamError> {
        let parts = &datasets.parts;
        let samples = datasets.opened.dataset.kept_count();
        let names = || {
            parts.iter().map(|(name, _)| if name.is_empty() { "dataset" } else { name.as_str() })
        };
        // The draws of each dataset in an epoch, each from a position on.
        let mut draws_of_datasets: Vec<(u64, Vec<u64>)> = Vec::new();
        let mut open_blocks = OpenBlocks::default();
        let mut drawn_classes = None;
        let mut by_class = |found: classes::DrawsByClass| {
            drawn_classes = Some(found.classes);
            (found.selection, Some(found.words))
        };
        let (selection, words) = match config.draws() {
            DrawsConfig::Once if config.order.shuffle == Shuffle::Blocks => {
                let (blocks, open) = in_blocks(config, datasets)?;
                open_blocks = open;
                (Selection::InBlocks(Arc::new(blocks)), None)
            }
            DrawsConfig::Once => (Selection::Once(samples), None),
            DrawsConfig::Repeats(repeats) => {
                let draws =
                    parts.iter().zip(&repeats).enumerate().map(|(place, (part, repeat))| {
                        draws_of_repeat(part.1, *repeat).ok_or_else(|| {
                            let message = format!("{} samples × {repeat} are too many", part.1);
                            ConfigError::new(&config.dataset_location(place, "repeat"), message)
                        })
                    });
                let draws = draws.collect::<Result<Vec<_>, _>>()?;
                let selection = mixture(config, parts, &draws)?;
                draws_of_datasets.push((0, draws));
                (selection, Some(format!("repeat {}", listed(names(), &repeats))))
            }
            DrawsConfig::Weights { samples_per_epoch, weights } => {
                let change = |from| WeightChange {
                    from,
                    weights: weights.iter().map(|weight| weight.at(from)).collect(),
                };
                let changes: Vec<_> = weight_changes(&weights).into_iter().map(change).collect();
                let draws = changes.iter().map(|change| {
                    let draws = draws_of_weights(samples_per_epoch, &change.weights);
                    (change.from, draws.unwrap_or_default())
                });
                draws_of_datasets.extend(draws);
                let words =
                    format!("{samples_per_epoch} an epoch by weight {}", listed(names(), &weights));
                let samples: Vec<u64> = parts.iter().map(|(_, samples)| *samples).collect();
                let mixture = Mixture::with_changes(&samples, samples_per_epoch, &changes)
                    .map_err(|error| no_draws(config, "weight", &error))?;
                (Selection::Mixture(Arc::new(mixture)), Some(words))
            }
            DrawsConfig::WeightsOfSamples { samples_per_epoch, path } => {
                let location = config.location(&["order", "weights"]);
                let fail = |message: String| {
                    ConfigError::new(&location, format!("`order.weights`: {message}"))
                };
                let dataset = &datasets.opened.dataset;
                let weights = read_weights(&path, dataset.sample_count()).map_err(fail)?;
                let values = match dataset.kept() {
                    None => weights.values,
                    Some(kept) => {
                        let weight =
                            |id| usize::try_from(id).ok().and_then(|id| weights.values.get(id));
                        kept.ids().filter_map(weight).copied().collect()
                    }
                };
                let weighted = Weighted::new(&values, samples_per_epoch)
                    .map_err(|error| fail(error.to_string()))?;
                let digest = blake3::Hash::from_bytes(weights.digest).to_hex();
                let words = format!(
                    "{samples_per_epoch} an epoch by the weights {}",
                    &digest[..DIGEST_DIGITS]
                );
                (Selection::Weighted(Arc::new(weighted)), Some(words))
            }
            DrawsConfig::Balanced { samples_per_epoch, by } => by_class(classes::balanced(
                config,
                &datasets.opened,
                (samples_per_epoch, &by),
                options,
            )?),
            DrawsConfig::Grouped { by, size } => {
                by_class(classes::grouped(config, &datasets.opened, (size.get(), &by), options)?)
            }
        };
        let datasets_kept = datasets.opened.dataset.kept().cloned();
        let digest = *blake3::hash(words.as_deref().unwrap_or_default().as_bytes()).as_bytes();
        let datasets = match draws_of_datasets.split_first() {
            Some(((_, first), later)) if parts.len() > 1 => {
                let share = |(place, (name, samples)): (usize, &(String, u64))| DatasetShare {
                    name: name.clone(),
                    samples: *samples,
                    end: datasets.ends[place],
                    draws_per_epoch: first[place],
                    changes: later.iter().map(|(from, draws)| (*from, draws[place])).collect(),
                    rows_published: AtomicU64::new(0),
                };
                parts.iter().enumerate().map(share).collect()
            }
            _ => Vec::new(),
        };
        Ok(Self {
            selection,
            kept: datasets_kept,
            too_long: 0,
            datasets,
            words: words.map(shortened),
            digest,
            open_blocks,
            classes: drawn_classes,
        })
    }

    /// Adds what determines the batches besides the draws.
    pub(crate) fn add_words(&mut self, more: &str) {
        let mut hasher = blake3::Hasher::new_derive_key("forebay draws and batches of an epoch");
        hasher.update(&self.digest);
        hasher.update(more.as_bytes());
        self.digest = *hasher.finalize().as_bytes();
        self.words = Some(match self.words.take() {
            Some(words) => shortened(format!("{words}; {more}")),
            None => more.to_owned(),
        });
    }

    /// The fingerprint of a dataset with these draws: other draws yield another fingerprint.
    pub(crate) fn fingerprint(&self, dataset: [u8; 32]) -> [u8; 32] {
        if self.words.is_none() {
            return dataset;
        }
        let mut hasher = blake3::Hasher::new_derive_key("forebay draws of an epoch");
        hasher.update(&dataset);
        hasher.update(&self.digest);
        *hasher.finalize().as_bytes()
    }
}

/// The blocks of a dataset, and their memory.
fn in_blocks(
    config: &Config,
    datasets: &OpenedDatasets,
) -> Result<(Blocks, OpenBlocks), ConfigError> {
    let fail = |message: String| {
        let location = config.location(&["order", "shuffle"]);
        ConfigError::new(&location, message)
    };
    let dataset = &datasets.opened.dataset;
    let found = dataset.blocks().or_else(|| blocks_of_neighbours(dataset.as_ref()));
    let found = found.ok_or_else(|| {
        fail(format!(
            "`order.shuffle = \"blocks\"` is for samples that lie together in files, and those of {} ({}) do not: each is \
             read alone, or so short that the index has it; set `order.shuffle` to true",
            config.dataset.path.display(),
            config.dataset.format
        ))
    })?;
    let firsts = match dataset.kept() {
        None => found.firsts,
        Some(kept) => {
            // Blocks without a used sample begin where the next one does, or at the end.
            let mut firsts: Vec<_> = found.firsts.iter().map(|id| kept.number_of(*id)).collect();
            firsts.dedup();
            firsts.retain(|number| *number < kept.kept());
            firsts
        }
    };
    let blocks = Blocks::new(firsts, dataset.kept_count(), config.order.open_blocks())
        .map_err(|error| fail(error.to_string()))?;
    // The blocks of a single group are the blocks of the next epoch, too.
    let groups = if blocks.open() == blocks.count() { 1 } else { 2 };
    // Samples that are read individually do not hold their block.
    let of_each = if dataset.shares_units() { found.most_bytes } else { 0 };
    let open = OpenBlocks {
        bytes: of_each.saturating_mul(groups).saturating_mul(blocks.open() as u64),
        largest: of_each,
        scratch_per_thousand: found.scratch_per_thousand,
    };
    Ok((blocks, open))
}

/// A mixture of datasets, or one dataset whose passes do not end with epochs.
fn mixture(
    config: &Config,
    parts: &[(String, u64)],
    draws: &[u64],
) -> Result<Selection, ConfigError> {
    let part = |((_, samples), draws): (&(String, u64), &u64)| MixturePart {
        samples: *samples,
        draws: *draws,
    };
    let parts: Vec<_> = parts.iter().zip(draws).map(part).collect();
    let mixture = Mixture::new(&parts).map_err(|error| no_draws(config, "repeat", &error))?;
    Ok(Selection::Mixture(Arc::new(mixture)))
}

fn no_draws(config: &Config, key: &str, error: &OrderError) -> ConfigError {
    ConfigError::new(&config.dataset_location(0, key), error.to_string())
}

/// `web 3 / books 1`.
fn listed<'n>(names: impl Iterator<Item = &'n str>, amounts: &[impl std::fmt::Display]) -> String {
    let each = names.zip(amounts).map(|(name, amount)| format!("{name} {amount}"));
    each.collect::<Vec<_>>().join(" / ")
}

/// Shortens a description to one line; if it is cut, a digest of all of it is appended.
fn shortened(words: String) -> String {
    if words.len() <= MOST_WORDS {
        return words;
    }
    let digest = blake3::hash(words.as_bytes()).to_hex();
    // Names consist of ASCII letters.
    format!(
        "{}… ({})",
        words.chars().take(MOST_WORDS).collect::<String>(),
        &digest[..DIGEST_DIGITS]
    )
}
