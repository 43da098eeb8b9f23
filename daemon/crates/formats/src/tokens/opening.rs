//! Opens the index of documents: the saved one if its files and keys match, otherwise a new one.

use std::os::unix::ffi::OsStrExt;
use std::time::Instant;

use forebay_config::DatasetConfig;

use super::documents::DocumentScan;
use super::files::TokenFiles;
use super::index::{Origin, PackedRows, RowShape, TokenIndex, lay_out_concatenated};
use super::keys::{Cut, FORMAT, TokenKeys};
use super::pack::Packer;
use super::rows::Segment;
use forebay_dataset::error::DatasetError;
use forebay_dataset::index_bytes::take_in;
use forebay_dataset::opening::{IndexReport, OpenOptions};
use forebay_index::folder::cache::{IndexPlace, Loaded, Saved};
use forebay_index::folder::refuse_index_inside;
use forebay_storage::Storage;
use forebay_storage::location::{FileId, FileTable};

/// The inputs of the opening.
pub(super) struct Opening<'a> {
    pub(super) config: &'a DatasetConfig,
    pub(super) keys: &'a TokenKeys,
    pub(super) files: &'a TokenFiles,
    pub(super) storage: &'a dyn Storage,
    pub(super) options: OpenOptions<'a>,
}

impl Opening<'_> {
    /// The index, and the report.
    pub(super) fn index(&self) -> Result<(TokenIndex, IndexReport), DatasetError> {
        let started = Instant::now();
        let origin = self.origin();
        let configured = self.config.index.as_deref();
        refuse_index_inside(configured, &self.config.path)?;
        let place = IndexPlace::choose(configured, &origin.identity, &origin.options);
        let mut report = IndexReport::default();
        let index = match self.previous(origin) {
            Some(index) => {
                report.reused = true;
                index
            }
            None => {
                let wanted = |load: Option<TokenIndex>| load.map_or(Saved::Nothing, Saved::Fresh);
                let load = || {
                    let read = || {
                        let keys = |index: &TokenIndex| index.file().keys();
                        place.load(&origin.identity, &origin.options, TokenIndex::open, keys)
                    };
                    self.options.call("reading the index", &place.path, read).map(wanted)
                };
                let make = |_: &mut Vec<String>| self.make(origin);
                match place.load_or_make(self.options, false, &mut report.warnings, load, make)? {
                    Loaded::Saved(index) => {
                        report.reused = true;
                        index
                    }
                    Loaded::New { bytes, .. } => {
                        TokenIndex::open(bytes).map_err(|fault| place.unreadable(fault))?
                    }
                }
            }
        };
        let bytes = index.file().bytes();
        let is_mapped = matches!(bytes, forebay_dataset::IndexBytes::Mapped(_));
        report.bytes = bytes.len() as u64;
        report.path = is_mapped.then_some(place.path);
        report.seconds = started.elapsed().as_secs_f64();
        Ok((index, report))
    }

    /// The index of the previous daemon, if its files and keys match.
    fn previous(&self, origin: Origin) -> Option<TokenIndex> {
        let bytes = self.options.previous_index?.try_clone().and_then(take_in).ok()?;
        let index = TokenIndex::open(bytes).ok()?;
        (index.file().keys() == [origin.identity, origin.options]).then_some(index)
    }

    /// A modified or replaced file requires another index; a limit does not.
    fn origin(&self) -> Origin {
        let mut identity = blake3::Hasher::new();
        identity.update(FORMAT.name.as_bytes());
        identity.update(b"\0");
        identity.update(self.config.path.as_os_str().as_bytes());
        let mut options = blake3::Hasher::new();
        for (place, file) in (0..).zip(&self.files.files) {
            options.update(&self.files.names().path(FileId(place)));
            options.update(b"\0");
            options.update(file.identity.as_bytes());
            options.update(b"\0");
        }
        self.keys.digest(&mut options, self.files.dtype);
        let [identity, options] = [identity, options].map(|hasher| *hasher.finalize().as_bytes());
        Origin { identity, options }
    }

    fn make(&self, origin: Origin) -> Result<Vec<u8>, DatasetError> {
        let Self { files, storage, options, keys, .. } = *self;
        let scan = DocumentScan { files, storage, end: keys.end_id(), opening: options };
        let shape = RowShape::of(keys);
        if keys.cut != Cut::Pack {
            let mut documents = Vec::new();
            scan.run(&mut |document| documents.push(document))?;
            permute(&mut documents);
            return Ok(lay_out_concatenated(&documents, shape, origin));
        }
        let (mut rows, mut documents) = (PackedRows::default(), 0);
        let mut packer = Packer::new(u32::try_from(keys.length).unwrap_or(u32::MAX));
        scan.run(&mut |document| {
            documents += 1;
            packer.add(document, &mut |row| rows.add(row));
        })?;
        packer.finish(&mut |row| rows.add(row));
        Ok(rows.lay_out(documents, shape, origin))
    }
}

/// Shuffles documents into an order that depends on their number only (Fisher–Yates). It is not the order of an epoch,
/// which permutes rows: two documents that share a row share it in every epoch.
fn permute(documents: &mut [Segment]) {
    let mut draws = blake3::Hasher::new();
    draws.update(b"forebay order of documents 1\0");
    draws.update(&(documents.len() as u64).to_le_bytes());
    let mut draws = draws.finalize_xof();
    for last in (1..documents.len()).rev() {
        let mut draw = [0; 8];
        draws.fill(&mut draw);
        // The upper half of the product is below `last + 1`; its bias is below 2^-40 for any number of documents.
        let other = (u128::from(u64::from_le_bytes(draw)) * (last as u128 + 1)) >> 64;
        documents.swap(last, usize::try_from(other).unwrap_or(0));
    }
}
