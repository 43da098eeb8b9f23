//! Which archives a configuration asks for, and what the fields of their samples are made of.

use std::path::{Path, PathBuf};

use forebay_config::{DatasetConfig, Keys};

use super::{FORMAT, WebDatasetKeys};
use crate::dataset::error::DatasetError;
use crate::dataset::fields::{FieldRule, read_rules, rules_text};
use crate::dataset::folder::scan::FolderFormat;
use crate::dataset::opening::OpenOptions;
use crate::dataset::saved_index::{self, Asked};
use crate::dataset::shard_paths;
use crate::dataset::shards::ShardIndex;

/// Compressed archives are named here so that they are refused by name.
pub(super) const COMPRESSED: [&str; 10] = [
    ".tar.gz", ".tgz", ".tar.zst", ".tzst", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.lz4",
    ".tar.z",
];

/// Whether a file, or those that a pattern names, are archives by the name, compressed or not.
pub(in crate::dataset) fn is_archive(name: &[u8]) -> bool {
    shard_paths::has_extension(name, &[".tar"]) || shard_paths::has_extension(name, &COMPRESSED)
}

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
    request.index.load::<ShardIndex>().is_ok_and(|index| index.is_some())
}

/// What is asked for.
pub(super) struct Request<'a> {
    pub(super) index: saved_index::Request<'a>,
    /// Of the archives, below the folder.
    pub(super) pattern: Option<&'a str>,
    /// Those of the configuration.
    pub(super) rules: Option<Vec<FieldRule>>,
}

impl<'a> Request<'a> {
    pub(super) fn of(
        config: &'a DatasetConfig,
        options: OpenOptions<'a>,
    ) -> Result<Self, DatasetError> {
        let (root, pattern) = split(&config.path);
        let keys = WebDatasetKeys::read(&mut config.own.clone())?;
        let rules = keys.fields.as_deref().map(read_rules).transpose()?;
        let own = rules.as_deref().map(rules_text).unwrap_or_default();
        let asked = Asked { format: FORMAT.name, root, pattern, is_listed: true };
        let index = saved_index::Request::of(config, options, asked, &own)?;
        Ok(Self { index, pattern, rules })
    }
}
