//! Digests by which a saved state recognises its configuration.

use forebay_protocol::frames::{CONFIG_PART_BYTES, CONFIG_PARTS};

use super::config::Config;
use super::model::{ErrorsConfig, Limits, OnBadSample, OnUnreadable};
use super::operations::names_a_file;
use super::single_keys::Shuffle;
use forebay_keys::{Located, Value};

impl Config {
    /// Digests of everything that determines the bytes of a sample at a position of an epoch, besides data and stream
    /// version: eight bytes of BLAKE3 for each of [`CONFIG_PARTS`]: the seed, the shuffle, all operations in order, and
    /// the output. So a client can report which of them differs. The order of keys within a table is irrelevant, and so
    /// is the division of operations into stages: draws are keyed by an operation's position over all stages.
    ///
    /// Settings that may differ in a continued run are excluded: batch size, `last`, `batch.pad`, epochs, limits, the
    /// reaction to bad samples, world, threads, memory, paths, hosts, and whether an image is finished on the GPU: the bytes are the same.
    ///
    /// `files` are the digests of the files that operations read, in order: they stand for the files' paths.
    /// `batch_operations` are the name and the arguments of each operation on complete batches, in order.
    pub fn fingerprint<'o>(
        &self,
        files: impl IntoIterator<Item = [u8; 32]>,
        batch_operations: impl IntoIterator<Item = (&'o str, String)>,
    ) -> [u8; 32] {
        let mut hashers: [_; CONFIG_PARTS.len()] = CONFIG_PARTS.map(blake3::Hasher::new_derive_key);
        let [seed, shuffle, operations, output] = &mut hashers;
        seed.update(&self.order.seed.to_le_bytes());
        match self.order.shuffle {
            Shuffle::Off => shuffle.update(&[0]),
            Shuffle::Exact => shuffle.update(&[1]),
            Shuffle::Blocks => shuffle.update(&[2]).update(&self.order.open_blocks().to_le_bytes()),
        };
        for stage in &self.stages {
            for operation in &stage.operations {
                update_with_operation(operations, &operation.value);
            }
            if let Some(python) = &stage.python {
                // Not the tag of a value, so it differs from every operation. The module's source is not included.
                operations.update(b"P");
                update_with_text(operations, python);
                let arguments = Value::Table(stage.arguments.clone().unwrap_or_default());
                update_with_value(operations, &arguments);
            }
        }
        for digest in files {
            // Not the tag of a value, so it differs from every operation.
            operations.update(b"F");
            operations.update(&digest);
        }
        for (name, arguments) in batch_operations {
            // Not the tag of a value, so it differs from every operation above.
            operations.update(b"B");
            update_with_text(operations, name);
            update_with_text(operations, &arguments);
        }
        let mut fields: Vec<_> = self.output.iter().collect();
        fields.sort_by(|left, right| left.field.cmp(&right.field));
        for field in fields {
            update_with_text(output, &field.field);
            update_with_text(output, field.dtype.map_or("", |dtype| dtype.name()));
            update_with_text(output, field.layout.map_or("", |layout| layout.word()));
            for values in [&field.mean, &field.std] {
                let values = values.as_deref().unwrap_or_default();
                output.update(&(values.len() as u64).to_le_bytes());
                for value in values {
                    output.update(&value.to_bits().to_le_bytes());
                }
            }
            // The distance of ragged rows does not affect their bytes.
            output.update(&[u8::from(field.ragged)]);
            if let Some(pad) = field.pad.filter(|pad| pad.to_bits() != 0) {
                output.update(b"pad");
                output.update(&pad.to_bits().to_le_bytes());
            }
        }
        let mut parts = [0; 32];
        for (part, hasher) in parts.chunks_exact_mut(CONFIG_PART_BYTES).zip(&hashers) {
            part.copy_from_slice(&hasher.finalize().as_bytes()[..CONFIG_PART_BYTES]);
        }
        parts
    }

    /// What decides which samples are bad, as words by key, where it is not the default. A continued run may change it, as
    /// the message of a bad sample says, so it is not part of [`fingerprint`](Self::fingerprint).
    pub fn limit_words(&self) -> Vec<(String, String)> {
        let Limits { sample_bytes, pixels, inflated_bytes } = self.dataset.limits;
        let default = Limits::default();
        let limits = [
            ("limits.sample_bytes", sample_bytes, default.sample_bytes),
            ("limits.pixels", pixels, default.pixels),
            ("limits.inflated_bytes", inflated_bytes, default.inflated_bytes),
        ];
        let limits = limits.into_iter().filter(|(_, value, default)| value != default);
        limits.map(|(key, value, _)| (key.to_owned(), value.to_string())).collect()
    }

    /// What else decides the bytes that ranks get, and may change in a continued run, as words by key, where it is not
    /// the default: how rows are padded, how long they may be, and what replaces samples that cannot be used.
    pub fn delivery_words(&self) -> Vec<(String, String)> {
        let mut words = Vec::new();
        if let (Some(pad), Some(multiple_of)) = (self.batch.pad, self.batch.padded_to_multiple()) {
            let word = format!("{} in multiples of {multiple_of}", pad.word());
            words.push(("batch.pad".to_owned(), word));
        }
        let mut fields: Vec<_> = self.output.iter().collect();
        fields.sort_by(|left, right| left.field.cmp(&right.field));
        for field in fields {
            let bytes = field.max_bytes.map(|bytes| bytes.to_string());
            words.extend(bytes.map(|bytes| (format!("output.{}.max_bytes", field.field), bytes)));
        }
        let ErrorsConfig { on_bad_sample, on_unreadable, .. } = self.errors;
        if on_bad_sample != OnBadSample::Fail {
            words.push(("errors.on_bad_sample".to_owned(), on_bad_sample.word().to_owned()));
        }
        if on_unreadable != OnUnreadable::Fail {
            words.push(("errors.on_unreadable".to_owned(), on_unreadable.word().to_owned()));
        }
        words
    }
}

/// A string preceded by its length, so that adjacent strings are unambiguous.
fn update_with_text(hasher: &mut blake3::Hasher, text: &str) {
    hasher.update(&(text.len() as u64).to_le_bytes());
    hasher.update(text.as_bytes());
}

/// An operation, without the paths of its files.
fn update_with_operation(hasher: &mut blake3::Hasher, operation: &Value) {
    match operation {
        Value::Table(entries) => {
            let is_kept = |(key, _): &&(String, Located)| !names_a_file(entries, key);
            let kept = entries.iter().filter(is_kept).cloned().collect();
            update_with_value(hasher, &Value::Table(kept));
        }
        operation => update_with_value(hasher, operation),
    }
}

/// A value preceded by its kind; a whole number equals the float of the same value.
fn update_with_value(hasher: &mut blake3::Hasher, value: &Value) {
    match value {
        Value::Bool(value) => {
            hasher.update(&[b'b', u8::from(*value)]);
        }
        #[expect(clippy::cast_precision_loss, reason = "only distinguished, not computed with")]
        Value::Integer(value) => {
            hasher.update(b"n");
            hasher.update(&(*value as f64).to_bits().to_le_bytes());
        }
        Value::Float(value) => {
            hasher.update(b"n");
            hasher.update(&value.to_bits().to_le_bytes());
        }
        Value::String(text) => {
            hasher.update(b"s");
            update_with_text(hasher, text);
        }
        Value::Array(items) => {
            hasher.update(b"a");
            hasher.update(&(items.len() as u64).to_le_bytes());
            for item in items {
                update_with_value(hasher, &item.value);
            }
        }
        Value::Table(entries) => {
            hasher.update(b"t");
            hasher.update(&(entries.len() as u64).to_le_bytes());
            let mut entries: Vec<_> = entries.iter().collect();
            entries.sort_by(|(left, _), (right, _)| left.cmp(right));
            for (key, located) in entries {
                update_with_text(hasher, key);
                update_with_value(hasher, &located.value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_protocol::frames::{CONFIG_PART_BYTES, CONFIG_PARTS};

    use std::path::Path;

    use crate::{Config, Override};

    fn config(arguments: &[&str]) -> Config {
        let dict = serde_json::json!({
            "preset": "imagenet-train",
            "dataset": { "path": "images" },
            "batch": { "size": 4 },
        });
        let overrides: Vec<Override> =
            arguments.iter().map(|argument| Override::from_argument(argument).unwrap()).collect();
        Config::from_json("x", Path::new("/base"), &dict, &overrides).unwrap()
    }

    fn fingerprint(arguments: &[&str]) -> [u8; 32] {
        config(arguments).fingerprint([], [])
    }

    #[test]
    fn batch_operations_and_their_arguments_change_the_operations_digest() {
        let dict = serde_json::json!({
            "preset": "imagenet-train",
            "dataset": { "path": "images" },
            "batch": { "size": 4 },
        });
        let config = Config::from_json("x", Path::new("/base"), &dict, &[]).unwrap();
        let of = |operations: &[(&'static str, &str)]| {
            let operations = operations.iter().map(|(name, text)| (*name, (*text).to_owned()));
            config.fingerprint([], operations.collect::<Vec<_>>())
        };
        let lists: [&[_]; 6] = [
            &[],
            &[("mixup", "")],
            &[("mixup", "alpha = 1")],
            &[("mixupalpha", " = 1")],
            &[("mixup", "alpha = 1"), ("cutmix", "")],
            &[("cutmix", ""), ("mixup", "alpha = 1")],
        ];
        let prints = lists.map(of);
        for (place, print) in prints.iter().enumerate() {
            assert!(!prints[..place].contains(print), "{:?}", lists[place]);
            let others = |print: &[u8; 32]| [&print[..16], &print[24..]].concat();
            assert_eq!(others(print), others(&prints[0]), "only `operations` differs");
        }
    }

    #[test]
    fn settings_that_change_bytes_change_their_part_of_the_fingerprint() {
        let base = fingerprint(&[]);
        for (argument, part) in [
            ("order.seed=1", "order.seed"),
            ("order.shuffle=false", "order.shuffle"),
            ("order.shuffle=blocks", "order.shuffle"),
            ("stage.preprocess.operations.random-resized-crop.size=225", "operations"),
            ("stage.preprocess.operations.random-horizontal-flip.probability=0.4", "operations"),
            ("stage.preprocess.operations=[]", "operations"),
            ("output.image.dtype=float32", "output"),
            ("output.image.layout=NHWC", "output"),
            ("output={ label = { dtype = \"int32\" } }", "output"),
        ] {
            let changed = fingerprint(&[argument]);
            let pairs = changed.chunks(CONFIG_PART_BYTES).zip(base.chunks(CONFIG_PART_BYTES));
            let differing = CONFIG_PARTS.iter().zip(pairs).filter(|(_, (one, other))| one != other);
            let names: Vec<_> = differing.map(|(name, _)| *name).collect();
            assert_eq!(names, [part], "{argument}");
        }
    }

    #[test]
    fn value_of_padding_changes_the_output_digest_unless_it_is_the_default() {
        let padded = ["batch.pad=batch", "output.tokens.ragged=true"];
        let with = |pad| fingerprint(&[padded[0], padded[1], pad]);
        let base = fingerprint(&padded);
        assert_eq!(with("output.tokens.pad=0"), base);
        let (one, other) = (with("output.tokens.pad=-100"), with("output.tokens.pad=1"));
        assert!(one != base && one != other);
        assert_eq!(one[..24], base[..24], "only `output` differs");
    }

    #[test]
    fn what_ranks_must_share_besides_has_words_where_it_is_no_default() {
        let words = |arguments: &[&str]| {
            let config = config(arguments);
            [config.limit_words(), config.delivery_words()].concat()
        };
        assert_eq!(words(&[]), []);
        for (arguments, key, word) in [
            (&["limits.pixels=1000"][..], "limits.pixels", "1000"),
            (&["limits.sample_bytes=1KiB"], "limits.sample_bytes", "1024"),
            (&["limits.inflated_bytes=1KiB"], "limits.inflated_bytes", "1024"),
            (&["batch.pad=batch"], "batch.pad", "batch in multiples of 1"),
            (&["batch.pad=batch", "batch.multiple_of=8"], "batch.pad", "batch in multiples of 8"),
            (&["output.a.ragged=true", "output.a.max_bytes=1KiB"], "output.a.max_bytes", "1024"),
            (&["errors.on_bad_sample=substitute"], "errors.on_bad_sample", "substitute"),
            (&["errors.on_unreadable=substitute"], "errors.on_unreadable", "substitute"),
        ] {
            assert_eq!(words(arguments), [(key.to_owned(), word.to_owned())], "{arguments:?}");
        }
        assert_eq!(words(&["limits.pixels=178956970", "errors.on_bad_sample=fail"]), []);
    }

    #[test]
    fn settings_that_a_continued_run_may_change_do_not() {
        let base = fingerprint(&[]);
        for argument in [
            "batch.size=5",
            "batch.last=pad",
            "batch.pad=batch",
            "limits.pixels=1000",
            "errors.on_bad_sample=substitute",
            "order.epochs=7",
            "dataset.path=/elsewhere",
            "stage.preprocess.concurrency=3",
            "ring.slots=4",
            "output.image.on=gpu",
            "output.image.on=cpu",
            "stage.preprocess.operations.random-resized-crop={ size = 224.0 }",
            "stage=[{ name = \"a\", operations = [{ op = \"decode-image\" }] }, { name = \"b\", operations = [{ size = 224, op = \"random-resized-crop\" }, { op = \"random-horizontal-flip\", probability = 0.5 }] }]",
        ] {
            assert_eq!(fingerprint(&[argument]), base, "{argument}");
        }
    }

    /// Another digest for the same configuration would refuse every saved state.
    #[test]
    fn fingerprint_is_pinned() {
        let found = blake3::Hash::from_bytes(fingerprint(&[])).to_hex();
        assert_eq!(
            found.as_str(),
            "cf19ef978abc293ac25a688adf68e6be25d410dd0d4c99adf0bc6b9b7485dba5",
            "saved states would be refused"
        );
    }
}
