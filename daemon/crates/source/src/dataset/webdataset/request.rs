//! Which dataset a configuration asks for, and where its index lies.

use std::path::{Path, PathBuf};

use forebay_config::{DatasetConfig, Keys};

use super::index::TarIndex;
use super::{FORMAT, WebDatasetKeys};
use crate::dataset::error::DatasetError;
use crate::dataset::fields::{FieldRule, read_rules, rules_text};
use crate::dataset::folder::cache::IndexPlace;
use crate::dataset::folder::refuse_index_inside;
use crate::dataset::folder::scan::FolderFormat;
use crate::dataset::folder::select::ListFile;
use crate::dataset::opening::OpenOptions;
use crate::dataset::shard_paths;

/// Compressed archives are named here so that they are refused by name.
pub(super) const COMPRESSED: [&str; 10] = [
    ".tar.gz", ".tgz", ".tar.zst", ".tzst", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.lz4",
    ".tar.z",
];

/// The folder that a path's archives lie in.
pub(in crate::dataset) fn root(path: &Path) -> PathBuf {
    split(path).0
}

pub(super) fn split(path: &Path) -> (PathBuf, Option<&str>) {
    let extensions: Vec<&str> = [".tar"].into_iter().chain(COMPRESSED).collect();
    shard_paths::split(path, &extensions)
}

/// Whether an index of this dataset was saved: then its folder has been there before.
pub(in crate::dataset) fn has_saved_index(
    config: &DatasetConfig,
    _format: FolderFormat,
    options: OpenOptions<'_>,
) -> bool {
    let Ok(request) = Request::of(config, options) else { return false };
    request.load().is_ok_and(|index| index.is_some())
}

/// What is asked for.
pub(super) struct Request<'a> {
    pub(super) config: &'a DatasetConfig,
    pub(super) options: OpenOptions<'a>,
    /// Of the archives, below the folder.
    pub(super) pattern: Option<&'a str>,
    /// Those of the configuration.
    pub(super) rules: Option<Vec<FieldRule>>,
    pub(super) ids: Option<ListFile>,
    pub(super) identity: [u8; 32],
    /// Of all else that decides what is in the index.
    pub(super) digest: [u8; 32],
    pub(super) place: IndexPlace,
}

impl<'a> Request<'a> {
    pub(super) fn of(
        config: &'a DatasetConfig,
        options: OpenOptions<'a>,
    ) -> Result<Self, DatasetError> {
        let (root, pattern) = split(&config.path);
        let keys = WebDatasetKeys::read(&mut config.own.clone())?;
        let rules = keys.fields.as_deref().map(read_rules).transpose()?;
        let read = |path: &PathBuf| {
            options.call("reading", path, || ListFile::read(path, "reading dataset.ids"))
        };
        let ids = config.ids.as_ref().map(read).transpose()?;
        // A folder is known by where its links lead; one that is away, or a URL, by its path.
        let known = match config.is_remote() {
            true => None,
            false => {
                options.call("asking the status of", &root, || std::fs::canonicalize(&root)).ok()
            }
        };
        let root = known.unwrap_or(root);
        refuse_index_inside(config.index.as_deref(), &root)?;
        let identity = digest([
            FORMAT.name.as_bytes(),
            root.as_os_str().as_encoded_bytes(),
            pattern.unwrap_or("").as_bytes(),
        ]);
        let limit = config.limit.map_or(String::new(), |limit| limit.to_string());
        let rules_text = rules.as_deref().map(rules_text).unwrap_or_default();
        let ids_bytes = ids.as_ref().map(ListFile::bytes);
        let digest = digest([
            rules_text.as_bytes(),
            limit.as_bytes(),
            &[u8::from(ids_bytes.is_some())],
            ids_bytes.unwrap_or_default(),
        ]);
        let place = IndexPlace::choose(config.index.as_deref(), &identity, &digest);
        Ok(Self { config, options, pattern, rules, ids, identity, digest, place })
    }

    /// The saved index of this dataset with these options.
    pub(super) fn load(&self) -> Result<Option<TarIndex>, DatasetError> {
        let load = || self.place.load(&self.identity, &self.digest, TarIndex::open, TarIndex::keys);
        self.options.call("reading the index", &self.place.path, load)
    }
}

fn digest<'p>(parts: impl IntoIterator<Item = &'p [u8]>) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    *hasher.finalize().as_bytes()
}
