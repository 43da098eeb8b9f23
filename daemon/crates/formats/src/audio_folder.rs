//! `audio-folder`: files of sounds, with or without class folders, with the fields `audio`, `sample_rate` and, with
//! class folders, `label`.
//!
//! The plan decodes sounds, as it does images; this module only reads a file's header.

use forebay_config::DatasetConfig;
use forebay_keys::{ConfigError, Keys, LocalPath};

use crate::draft::{Draft, Seen};
use crate::fields::{SoundChannels, SoundRate, SoundTime};
use crate::file_samples::{FileReader, FileSamples};
use forebay_dataset::opening::{OpenOptions, OpenedFormat};
use forebay_dataset::sound::{self, SoundHeader};
use forebay_dataset::{Defect, Field, FieldKind, FieldValue, Sound, SoundForm, SoundSpan};
use forebay_index::folder::index::FolderIndex;
use forebay_index::folder::scan::{FolderFormat, LooseFiles};
use forebay_index::folder::{self, FolderKeys};
use forebay_storage::Storage;

/// The extensions, and where files may be.
pub(super) const FORMAT: FolderFormat = FolderFormat {
    name: "audio-folder",
    extensions: &[
        ".wav", ".flac", ".mp3", ".ogg", ".oga", ".opus", ".m4a", ".aif", ".aiff", ".aifc", ".au",
        ".caf", ".aac", ".m4b",
    ],
    loose: LooseFiles::NoFolders,
};

forebay_keys::keys! {
    /// The keys of folders of sounds.
    pub(super) struct AudioFolderKeys = "dataset" {
        /// a file that lists all class folders, one a line, in the order of their labels
        pub(super) classes: LocalPath, "", absent("the sorted class folders");
        /// whether class folders may hold all their files in folders below; `false`: that is refused as a wrong
        /// `dataset.path`, such as one with `train/` and `val/`
        pub(super) nested_classes: bool, "", default(false);
        /// whether hidden files and folders count: names with a leading dot, and those of systems such as `__MACOSX`,
        /// `@eaDir` and `lost+found`
        pub(super) hidden: bool, "", default(false);
        /// `"mix"`: one channel, the mean of all; or the number that every file has
        pub(super) channels: SoundChannels, "", default(None);
        /// sounds are resampled to it
        pub(super) rate: SoundRate, "frames a second", absent("each file's own");
        /// where the part of each sound begins that is read
        pub(super) start: SoundTime, "seconds", absent("the beginning");
        /// how long that part is; a sound that ends before it gives a shorter row
        pub(super) seconds: SoundTime, "seconds", absent("to the end");
    }
}

/// The form of the sounds, and the configuration without the keys that define it, for the folder's index.
fn split(config: &DatasetConfig) -> Result<(SoundForm, DatasetConfig), ConfigError> {
    let keys = AudioFolderKeys::read(&mut config.own.clone())?;
    let mut config = config.clone();
    for key in ["channels", "rate", "start", "seconds"] {
        config.own.take_located(key);
    }
    // The remaining keys are the keys of any folder.
    FolderKeys::of(&config)?;
    let span = SoundSpan::of_keys(keys.start, keys.seconds);
    Ok((SoundForm { channels: keys.channels, rate: keys.rate, span }, config))
}

/// Opens a folder of sounds.
pub(super) fn open(
    config: &DatasetConfig,
    storage: &dyn Storage,
    options: OpenOptions<'_>,
) -> OpenedFormat {
    let (form, config) = split(config)?;
    let field = |name: &str, kind| Field { name: name.to_owned(), kind };
    let fields = |index: &FolderIndex| {
        let mut may_be_aac = false;
        index.for_each_path(|path| {
            may_be_aac = may_be_aac || sound::may_be_aac(&String::from_utf8_lossy(path));
        });
        vec![field("audio", form.kind(may_be_aac)), field("sample_rate", FieldKind::Integer)]
    };
    FileSamples::open(&config, storage, FORMAT, options, fields, AudioFile(form))
}

/// As [`folder::has_saved_index`].
pub(super) fn has_saved_index(
    config: &DatasetConfig,
    format: FolderFormat,
    options: OpenOptions<'_>,
) -> bool {
    split(config).is_ok_and(|(_, config)| folder::has_saved_index(&config, format, options))
}

/// The sounds as ragged rows.
pub(super) fn draft(seen: &Seen) -> Draft {
    Draft::of_arrays("read", seen)
}

#[derive(Debug)]
struct AudioFile(SoundForm);

impl FileReader for AudioFile {
    fn read<'a>(
        &'a self,
        _fields: &'a [Field],
        bytes: &'a [u8],
        values: &mut Vec<FieldValue<'a>>,
    ) -> Result<(), Defect> {
        let header = SoundHeader::read(bytes)?;
        values.push(FieldValue::Sound(Sound { file: bytes, form: self.0 }));
        values.push(FieldValue::Integer(header.rate.into()));
        Ok(())
    }

    /// Differs if the same files are converted differently.
    fn fingerprint(&self, files: [u8; 32]) -> [u8; 32] {
        let SoundForm { channels, rate, span } = self.0;
        let mut hasher = blake3::Hasher::new_derive_key("forebay folder of sounds");
        hasher.update(&files);
        hasher.update(&channels.unwrap_or(0).to_le_bytes());
        hasher.update(&rate.unwrap_or(0).to_le_bytes());
        if let Some(SoundSpan { start, length }) = span {
            hasher.update(&start.to_le_bytes());
            hasher.update(&length.unwrap_or(u64::MAX).to_le_bytes());
        }
        *hasher.finalize().as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::{self, Format};
    use crate::testing::{EVERYWHERE, config_for, make_files, own_keys, sample};
    use crate::{open, recognize};

    /// A WAV file of 16 bits and one channel.
    fn wave(rate: u32, samples: &[i16]) -> Vec<u8> {
        let data: Vec<u8> = samples.iter().flat_map(|sample| sample.to_le_bytes()).collect();
        let length = u32::try_from(data.len()).unwrap();
        let form = [&1_u16.to_le_bytes()[..], &1_u16.to_le_bytes(), &rate.to_le_bytes()].concat();
        let form = [form, (2 * rate).to_le_bytes().into(), vec![2, 0, 16, 0]].concat();
        let chunks = [&b"WAVEfmt \x10\0\0\0"[..], &form, b"data", &length.to_le_bytes(), &data];
        let chunks = chunks.concat();
        let size = u32::try_from(chunks.len()).unwrap().to_le_bytes();
        [&b"RIFF"[..], &size, &chunks].concat()
    }

    #[test]
    fn audio_folders_conform() {
        for open in EVERYWHERE {
            conformance::run(&Format {
                open,
                name: "audio-folder",
                make: |root, count| {
                    for number in 0..count {
                        let path = format!("class{}/{number:03}.wav", number * 3 / count);
                        let samples = vec![i16::try_from(number).unwrap(); 10 + number];
                        make_files(root, &[&path], &wave(8000, &samples));
                    }
                    root.to_owned()
                },
                has_names: true,
                refuses_cuts: false,
            });
        }
    }

    #[test]
    fn fields_and_fingerprint_depend_on_the_conversion_of_sounds() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("sounds");
        make_files(&root, &["dog/0.wav", "cat/1.WAV", "cat/notes.txt"], &wave(8000, &[1; 30]));
        make_files(&root, &["cat/2.flac"], b"no sound");
        let config = config_for("audio-folder", &root);
        let unsaid = config_for("auto", &root);
        assert_eq!(recognize(&unsaid, OpenOptions::default()).unwrap(), "audio-folder");
        let opened = open(&config, OpenOptions::default()).unwrap();
        let names: Vec<_> = opened.dataset.fields().iter().map(|field| &field.name[..]).collect();
        assert_eq!(names, ["audio", "sample_rate", "label"]);
        assert_eq!(opened.dataset.classes(), ["cat", "dog"]);
        assert_eq!(sample(&opened, 2).unwrap(), ["sound 104", "8000", "1"]);
        assert!(sample(&opened, 1).is_err());
        let with = |keys: &str| {
            let mut config = config.clone();
            config.own = own_keys(&format!("dataset.{keys}"));
            open(&config, OpenOptions::default()).map(|opened| {
                (opened.dataset.fingerprint(), opened.dataset.fields()[0].kind.clone())
            })
        };
        let plain = with("channels = \"mix\"").unwrap();
        assert_eq!(plain.0, opened.dataset.fingerprint());
        let (stereo, rate) = (with("channels = 2").unwrap(), with("rate = 2").unwrap());
        let part = with("start = 0.5\ndataset.seconds = 2").unwrap().0;
        assert!(part != plain.0 && part != with("start = 0.5").unwrap().0);
        assert_eq!(
            stereo.1,
            FieldKind::Sound { row_shape: vec![2], rate: None, may_be_aac: false }
        );
        assert_eq!(
            rate.1,
            FieldKind::Sound { row_shape: Vec::new(), rate: Some(2), may_be_aac: false }
        );
        assert!(plain.0 != stereo.0 && plain.0 != rate.0 && stereo.0 != rate.0);
        assert!(with("channels = 0").is_err() && with("colour = 3").is_err());
        // A folder without classes has no labels.
        let flat = root.join("dog");
        let opened = open(&config_for("audio-folder", &flat), OpenOptions::default()).unwrap();
        assert_eq!(opened.dataset.fields().len(), 2);
    }
}
