//! Files that are compressed as a whole, and a wrapper for storages that cannot unpack them.
//!
//! An index that was made with a cache has offsets into the unpacked files. Without the cache a read at these offsets
//! would return wrong bytes: it is an error.

use std::sync::Arc;

use super::error::StorageError;
use super::{DirectFile, Layer, Opened, Storage};
use crate::codec::Codec;
use crate::location::{FileTable, Location};

/// A file's compression, from its name.
pub fn codec_of(path: &[u8]) -> Option<Codec> {
    const ENDINGS: [(&str, Codec); 5] = [
        (".gz", Codec::Gzip),
        (".tgz", Codec::Gzip),
        (".zst", Codec::Zstd),
        (".zstd", Codec::Zstd),
        (".tzst", Codec::Zstd),
    ];
    let ends = |(ending, _): &&(&str, Codec)| {
        let start = path.len().checked_sub(ending.len());
        start.is_some_and(|start| path[start..].eq_ignore_ascii_case(ending.as_bytes()))
    };
    let found = ENDINGS.iter().find(ends).map(|(_, codec)| *codec);
    found.or_else(|| is_zstd_chunk(path).then_some(Codec::Zstd))
}

/// Whether a name ends as LitData's of a compressed chunk: `.zstd.bin`, or `.zstd:4.bin` where a level was given.
fn is_zstd_chunk(path: &[u8]) -> bool {
    let Some((stem, ending)) = path.split_at_checked(path.len().saturating_sub(4)) else {
        return false;
    };
    let mut parts = stem.rsplit(|byte| *byte == b'.');
    let (last, has_stem) = (parts.next().unwrap_or_default(), parts.next().is_some());
    let level = last.get(..4).filter(|name| name.eq_ignore_ascii_case(b"zstd"));
    let level = level.and_then(|name| last.strip_prefix(name));
    let is_level = |level: &[u8]| match level {
        [] => true,
        [b':', digits @ ..] => !digits.is_empty() && digits.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    has_stem && ending.eq_ignore_ascii_case(b".bin") && level.is_some_and(is_level)
}

/// Refuses reads of compressed files; all other calls go to the inner storage.
#[derive(Debug)]
pub struct WithoutUnpacking(pub Arc<dyn Storage>);

impl Layer for WithoutUnpacking {
    type Inner = dyn Storage;

    fn inner(&self) -> &Self::Inner {
        self.0.as_ref()
    }

    fn open(&self, files: &dyn FileTable, location: Location) -> Result<Opened, StorageError> {
        let path = files.path(location.file);
        match codec_of(&path) {
            Some(_) => Err(StorageError::NoCache { path: self.full_path(&path) }),
            None => self.0.open(files, location),
        }
    }

    fn open_direct(&self, files: &dyn FileTable, location: Location) -> Option<DirectFile> {
        self.0.open_direct(files, location)
    }
}

#[cfg(test)]
mod tests {
    use super::{Codec, codec_of};

    #[test]
    fn a_compression_is_known_by_the_end_of_a_name() {
        for name in ["a.zst", "A.ZSTD", "a.tzst", "chunk-0-0.zstd.bin", "d/chunk-0-0.zstd:4.bin"] {
            assert_eq!(codec_of(name.as_bytes()), Some(Codec::Zstd), "{name}");
        }
        assert_eq!(codec_of(b"a.tar.gz"), Some(Codec::Gzip));
        for name in ["a.bin", "zstd.bin", "a.zstd:.bin", "a.zstd:x.bin", "a.lz4.bin", "bin", ""] {
            assert_eq!(codec_of(name.as_bytes()), None, "{name}");
        }
    }
}
