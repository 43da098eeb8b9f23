//! The properties that the ranks of a job must share to get parts of one stream.

use std::fmt::Write as _;

use forebay_config::Shuffle;
use forebay_protocol::frames::{CONFIG_PART_BYTES, CONFIG_PARTS};
use forebay_protocol::identity::{DATASET_OBJECT, DRAWS_OF_AN_EPOCH, Identity, SELECTED};

use crate::ground::stream::Stream;

/// Bytes of the dataset's fingerprint: enough to distinguish datasets, short enough for an environment variable.
const DATASET_BYTES: usize = 16;
/// What decides the samples of AAC.
const SOUNDS: &str = "sounds";

impl Stream {
    /// Everything that determines the bytes of batches and each rank's part of them, except rank and world size: `batch_size` is the session's. Short
    /// values are shown, longer ones as digests.
    #[must_use]
    pub fn identity(&self, batch_size: u32) -> Identity {
        let config = self.config();
        let mut identity = Identity::default().with("samples", self.sample_count());
        if self.dataset.kept().is_some() {
            identity = identity.with(SELECTED, self.kept_count());
        }
        identity =
            identity.with("dataset", hexadecimal(&self.dataset_fingerprint[..DATASET_BYTES]));
        let parts = self.config_fingerprint.chunks_exact(CONFIG_PART_BYTES);
        for (name, part) in CONFIG_PARTS.into_iter().zip(parts) {
            identity = match name {
                "order.seed" => identity.with(name, config.order.seed),
                "order.shuffle" if config.order.shuffle == Shuffle::Blocks => {
                    identity.with(name, format_args!("blocks of {}", config.order.open_blocks()))
                }
                "order.shuffle" => identity.with(name, config.order.shuffle.word()),
                _ => identity.with(name, hexadecimal(part)),
            };
        }
        if let Some(words) = self.dataset.identity_words() {
            identity = identity.with(DATASET_OBJECT, words);
        }
        if let Some(words) = &self.draws.words {
            identity = identity.with(DRAWS_OF_AN_EPOCH, words);
        }
        if let Some(budget) = &config.batch.budget {
            let multiple_of = config.batch.counted_multiple();
            identity = identity
                .with("batch.budget", format_args!("{budget} in multiples of {multiple_of}"));
        }
        if let Some(helpers) = self.plan.helpers() {
            identity = identity.with("decoders", &helpers.decoders);
        }
        if let Some(sounds) = self.plan.sounds() {
            identity = identity.with(SOUNDS, sounds);
        }
        for (key, words) in config.limit_words().into_iter().chain(config.delivery_words()) {
            identity = identity.with(&key, words);
        }
        let epochs = config.order.epochs.map_or("endless".to_owned(), |epochs| epochs.to_string());
        identity
            .with("order.epochs", epochs)
            .with("batch.size", batch_size)
            .with("batch.last", config.batch.last.word())
            .with("stream_version", self.version())
    }
}

impl Stream {
    /// Everything that determines the bytes of a row, given its sample and pass: what a feeder must share with the daemon
    /// that it feeds. How rows are ordered and batched is not part of it.
    #[must_use]
    pub fn row_identity(&self) -> Identity {
        let of_batches = self.identity(1);
        let mut identity = Identity::default();
        const OF_ROWS: [&str; 7] =
            ["stream_version", "samples", "dataset", "order.seed", "operations", "output", SOUNDS];
        for key in OF_ROWS {
            if let Some(value) = of_batches.get(key) {
                identity = identity.with(key, value);
            }
        }
        for (key, words) in self.config().limit_words() {
            identity = identity.with(&key, words);
        }
        for source in self.python_sources() {
            let key = format!("python {}", source.target);
            identity = identity.with(&key, source.digest);
        }
        let mut columns = blake3::Hasher::new();
        for column in self.columns() {
            columns.update(
                format!(
                    "{}\0{:?}\0{:?}\0{:?}\n",
                    column.name, column.dtype, column.row_shape, column.max_row_bytes
                )
                .as_bytes(),
            );
        }
        identity.with("columns", hexadecimal(&columns.finalize().as_bytes()[..CONFIG_PART_BYTES]))
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
