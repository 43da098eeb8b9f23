//! `tokens`: the rows that a language model trains on, cut from files of token numbers.
//!
//! `files` finds the files and reads their headers, `rows` says which tokens a row is, `values` makes the fields of
//! them. A row's tokens are read from the files as they are: nothing is converted before its row is written.

mod files;
mod keys;
mod megatron;
mod rows;
mod values;

use std::borrow::Cow;
use std::sync::Arc;

use forebay_config::DatasetConfig;
use forebay_protocol::ids::SampleId;
use forebay_protocol::tensor::DType;

use self::files::TokenFiles;
pub(super) use self::keys::{FORMAT, OwnKeys};
use self::keys::{Labels, TokenKeys};
use self::rows::Windows;
use self::values::{Fetched, RowValues};
use super::draft::{Draft, Seen};
use super::error::DatasetError;
use super::opening::{IndexReport, OpenOptions, OpenedFormat};
use super::{Dataset, Defect, Field, FieldValue};
use crate::location::{FileId, FileTable, Location, ObjectStamp, SampleBytes};
use crate::storage::Storage;

/// Opens a folder of files, or one file.
pub(super) fn open(
    config: &DatasetConfig,
    storage: &dyn Storage,
    options: OpenOptions<'_>,
) -> OpenedFormat {
    let keys = TokenKeys::of(config)?;
    let files = TokenFiles::find(config, &keys, storage, options)?;
    let windows = Windows::new(&files, keys.length, keys.looks_ahead());
    let samples = config.limit.map_or(windows.rows, |limit| limit.min(windows.rows));
    if samples == 0 {
        let reason = match windows.rows {
            0 => format!(
                "no file has the {} tokens of a row{}; make dataset.tokens.length smaller",
                keys.length,
                if keys.looks_ahead() { " and the one that its last label is" } else { "" }
            ),
            _ => "dataset.limit is 0; leave it out or raise it".to_owned(),
        };
        return Err(DatasetError::NoSamples { path: config.path.clone(), reason });
    }
    let fingerprint = fingerprint(&files, &keys, samples);
    let values = RowValues::new(keys.clone(), files.dtype);
    let fields = values.fields();
    let dataset = Tokens { files, keys, windows, samples, fields, values, fingerprint };
    let report = IndexReport { samples, ..IndexReport::default() };
    Ok((Arc::new(dataset), report))
}

/// What a first configuration says of them.
pub(super) fn draft(_seen: &Seen) -> Draft {
    Draft::default()
}

/// See the module's head.
#[derive(Debug)]
struct Tokens {
    files: TokenFiles,
    keys: TokenKeys,
    windows: Windows,
    samples: u64,
    fields: Vec<Field>,
    values: RowValues,
    fingerprint: [u8; 32],
}

/// BLAKE3 over the files' names and lengths and everything that says what is in a row; tokens are not read.
fn fingerprint(files: &TokenFiles, keys: &TokenKeys, samples: u64) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(b"forebay tokens 1\0");
    for (place, file) in (0..).zip(&files.files) {
        hasher.update(&files.names().path(FileId(place)));
        hasher.update(b"\0");
        hasher.update(&file.tokens.to_le_bytes());
    }
    let end = keys.end.map_or(u64::MAX, u64::from);
    for number in [samples, keys.length, end, keys.boundaries.len() as u64] {
        hasher.update(&number.to_le_bytes());
    }
    let boundaries = keys.boundaries.iter().map(|boundary| boundary.word());
    for word in
        [files.dtype.name(), keys.cut.word(), keys.labels.word()].into_iter().chain(boundaries)
    {
        hasher.update(word.as_bytes());
        hasher.update(b"\0");
    }
    *hasher.finalize().as_bytes()
}

impl FileTable for Tokens {
    fn append_path(&self, file: FileId, path: &mut Vec<u8>) {
        self.files.names().append_path(file, path);
    }

    fn stamp(&self, file: FileId) -> Option<ObjectStamp> {
        self.files.names().stamp(file)
    }
}

impl Dataset for Tokens {
    fn sample_count(&self) -> u64 {
        self.samples
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn locate(&self, id: SampleId, locations: &mut Vec<Location>) {
        assert!(
            id.0 < self.samples,
            "sample {} does not exist: the dataset has {}",
            id.0,
            self.samples
        );
        locations.push(self.windows.location(&self.files, id.0));
    }

    fn read<'a>(
        &'a self,
        _id: SampleId,
        bytes: SampleBytes<'a>,
        values: &mut Vec<FieldValue<'a>>,
    ) -> Result<(), Defect> {
        let bytes = bytes.all();
        let tokens = self.keys.length + u64::from(self.keys.looks_ahead());
        check_length(bytes, tokens * self.files.token_bytes())?;
        if self.keys.has_segments() {
            let mut ends = Vec::new();
            let goes_on = self.values.find_ends(bytes, &mut ends);
            let row = Fetched { bytes, ends: &ends, goes_on };
            self.values.of_segments(row, Cow::Borrowed(bytes), values);
        } else {
            self.values.of_stream(bytes, values);
        }
        Ok(())
    }

    fn output_dtype(&self, field: usize) -> Option<DType> {
        (field <= usize::from(self.keys.labels != Labels::None)).then_some(DType::I64)
    }

    fn notes(&self) -> Vec<(&'static str, String)> {
        let Windows { left_out, .. } = self.windows;
        vec![(
            "tokens",
            format!(
                "{} of {}, {left_out} at the ends of files fill no row",
                self.files.tokens(),
                self.files.dtype.name()
            ),
        )]
    }

    fn fingerprint(&self) -> [u8; 32] {
        self.fingerprint
    }
}

fn check_length(bytes: &[u8], expected: u64) -> Result<(), Defect> {
    if bytes.len() as u64 == expected {
        return Ok(());
    }
    Err(Defect(format!("a row's tokens take {expected} bytes, and {} were read", bytes.len())))
}

#[cfg(test)]
mod tests;
