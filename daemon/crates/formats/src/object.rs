//! `python`: the items of a trainer's Dataset object, which workers call.
//!
//! A sample has no bytes, and one field: its number, which is the `index` argument of the object's `__getitem__`. The
//! object itself is never inspected (see [`DatasetObject`](forebay_config::DatasetObject)); its class, the digest of
//! its source and its length are keys, and identify the dataset.

use std::path::PathBuf;
use std::sync::Arc;

use forebay_config::DatasetConfig;
use forebay_keys::{AtLeastOne, ConfigError, Keys, Section, keys};
use forebay_protocol::ids::SampleId;

use crate::draft::{Draft, Seen};
use forebay_dataset::opening::{IndexReport, OpenOptions, OpenedFormat};
use forebay_dataset::{Dataset, Defect, Field, FieldKind, FieldValue};
use forebay_index::folder::scan::{FolderFormat, LooseFiles};
use forebay_storage::Storage;
use forebay_storage::location::{FileId, FileTable, Location, SampleBytes};

/// No file has this format.
pub(super) const FORMAT: FolderFormat =
    FolderFormat { name: "python", extensions: &[], loose: LooseFiles::NoFolders };

/// The name of the field.
const NUMBER: &str = "number";
/// How many digits of the source's digest messages show.
const SHOWN_DIGITS: usize = 16;

keys! {
    /// What is known of the object.
    pub(super) struct ObjectKeys = "dataset", check check_keys {
        /// set by `Loader(dataset)`: the object's class, as `module:name`
        pub(super) class: String, "", required;
        /// set by `Loader(dataset)`: a digest of the files that define the class
        pub(super) source: String, "", required;
        /// set by `Loader(dataset)`: the object's length
        pub(super) items: AtLeastOne, "samples", required;
    }
}

fn check_keys(_keys: &mut ObjectKeys, _section: &Section) -> Result<(), ConfigError> {
    Ok(())
}

/// Does not propose a configuration: the format has no files.
pub(super) fn draft(_seen: &Seen) -> Draft {
    Draft::default()
}

/// Opens the dataset that the keys describe.
pub(super) fn open(
    config: &DatasetConfig,
    _storage: &dyn Storage,
    _options: OpenOptions<'_>,
) -> OpenedFormat {
    let keys = ObjectKeys::read(&mut config.own.clone())?;
    if config.object.is_none() {
        let message = format!(
            "`dataset.format` = \"python\" is a Dataset object of a trainer (`{}`), which only the daemon of its own loader \
             has: make it with `forebay.Loader(dataset, batch_size=…)` in the trainer. A configuration, `forebay serve` and \
             `forebay run` take files: call the class from a stage with `python` instead",
            keys.class
        );
        return Err(config.own.error(message).into());
    }
    if config.ids.is_some() {
        let message = "`dataset.ids` lists files, and a Dataset object has none; give \
                       `torch.utils.data.Subset(dataset, indices)` to the loader";
        return Err(config.own.error(message).into());
    }
    let samples = config.limit.map_or(keys.items, |limit| limit.min(keys.items));
    let mut hasher = blake3::Hasher::new();
    hasher.update(b"forebay python object 1\0");
    for text in [&keys.class, &keys.source] {
        hasher.update(&(text.len() as u64).to_le_bytes());
        hasher.update(text.as_bytes());
    }
    hasher.update(&keys.items.to_le_bytes());
    hasher.update(&samples.to_le_bytes());
    let fingerprint = *hasher.finalize().as_bytes();
    let fields = [Field { name: NUMBER.to_owned(), kind: FieldKind::Integer }];
    let dataset = ObjectItems {
        class: keys.class,
        source: keys.source,
        items: keys.items,
        samples,
        fields,
        fingerprint,
    };
    Ok((Arc::new(dataset), IndexReport { samples, ..IndexReport::default() }))
}

/// The dataset; see the module's documentation.
#[derive(Debug)]
struct ObjectItems {
    class: String,
    source: String,
    items: u64,
    samples: u64,
    fields: [Field; 1],
    fingerprint: [u8; 32],
}

/// The dataset has no files.
impl FileTable for ObjectItems {
    fn append_path(&self, _file: FileId, _path: &mut Vec<u8>) {}
}

impl Dataset for ObjectItems {
    fn sample_count(&self) -> u64 {
        self.samples
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn locate(&self, id: SampleId, _locations: &mut Vec<Location>) {
        let samples = self.samples;
        assert!(id.0 < samples, "sample {} does not exist: the dataset has {samples}", id.0);
    }

    fn read<'a>(
        &'a self,
        id: SampleId,
        _bytes: SampleBytes<'a>,
        values: &mut Vec<FieldValue<'a>>,
    ) -> Result<(), Defect> {
        let number = i64::try_from(id.0).map_err(|error| Defect(error.to_string()))?;
        values.push(FieldValue::Integer(number));
        Ok(())
    }

    fn fingerprint(&self) -> [u8; 32] {
        self.fingerprint
    }

    fn identity_words(&self) -> Option<String> {
        let source: String = self.source.chars().take(SHOWN_DIGITS).collect();
        Some(format!("{} of {} items with the source {source}", self.class, self.items))
    }

    /// In the syntax of the trainer: `mydata:Pictures[17]`.
    fn append_name(&self, id: SampleId, name: &mut Vec<u8>) {
        name.extend_from_slice(format!("{}[{}]", self.class, id.0).as_bytes());
    }

    fn full_name(&self, _storage: &dyn Storage, id: SampleId) -> PathBuf {
        let mut name = Vec::new();
        self.append_name(id, &mut name);
        PathBuf::from(String::from_utf8_lossy(&name).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use forebay_config::{Config, DatasetObject};
    use forebay_protocol::ids::SampleId;
    use forebay_protocol::sealed::seal_bytes;
    use serde_json::json;

    use crate::{open, resolve_keys};
    use forebay_dataset::{FieldValue, OpenOptions, Opened};
    use forebay_storage::location::SampleBytes;

    fn config(class: &str, source: &str, items: u64) -> Config {
        let dict = json!({
            "dataset": { "format": "python", "path": "/", "class": class, "source": source, "items": items },
            "batch": { "size": 2 },
            "stage": [{ "name": "items", "operations": [] }],
        });
        let mut config = Config::from_json("test", Path::new("/"), &dict, &[]).unwrap();
        resolve_keys(&mut config.dataset).unwrap();
        let sealed = seal_bytes("forebay-test", b"never read").unwrap();
        config.dataset.object = Some(DatasetObject::new(sealed).unwrap());
        config
    }

    fn opened(config: &Config) -> Opened {
        open(&config.dataset, OpenOptions::default()).unwrap()
    }

    #[test]
    fn sample_is_its_number_and_named_in_the_trainers_syntax() {
        let config = config("mydata:Pictures", "12ab", 5);
        let Opened { dataset, storage, .. } = opened(&config);
        assert_eq!(dataset.sample_count(), 5);
        for id in (0..5).map(SampleId) {
            let (mut values, mut locations) = (Vec::new(), Vec::new());
            dataset.locate(id, &mut locations);
            assert!(locations.is_empty());
            dataset.read(id, SampleBytes::new(&[], &[]), &mut values).unwrap();
            assert!(matches!(values[..], [FieldValue::Integer(number)] if number == id.0 as i64));
        }
        let name = dataset.full_name(storage.as_ref(), SampleId(3));
        assert_eq!(name.to_str(), Some("mydata:Pictures[3]"));
    }

    #[test]
    fn identity_is_class_source_and_length_without_the_object() {
        let base = config("mydata:Pictures", "12ab", 5);
        let print = |config: &Config| opened(config).dataset.fingerprint();
        assert_eq!(print(&base), print(&config("mydata:Pictures", "12ab", 5)));
        for (class, source, items) in [
            ("mydata:Others", "12ab", 5),
            ("mydata:Pictures", "12ac", 5),
            ("mydata:Pictures", "12ab", 6),
        ] {
            assert_ne!(print(&base), print(&config(class, source, items)));
        }
        let mut limited = config("mydata:Pictures", "12ab", 5);
        limited.dataset.limit = Some(4);
        assert_ne!(print(&base), print(&limited));
        assert_eq!(opened(&limited).dataset.sample_count(), 4);
        let words = opened(&base).dataset.identity_words().unwrap();
        assert_eq!(words, "mydata:Pictures of 5 items with the source 12ab");
    }

    #[test]
    fn configuration_without_an_object_is_refused() {
        let mut config = config("mydata:Pictures", "12ab", 5);
        config.dataset.object = None;
        let refused = open(&config.dataset, OpenOptions::default()).unwrap_err().to_string();
        assert!(refused.contains("mydata:Pictures") && refused.contains("forebay.Loader(dataset"));
        assert!(refused.contains("forebay serve"), "{refused}");
    }
}
