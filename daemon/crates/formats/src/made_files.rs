//! Files that are made once of a dataset's samples, on this machine, and then read in their place: where they are, how they
//! are written, and how they are looked at.

use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crc_fast::{CrcAlgorithm, Digest};

use forebay_config::DatasetConfig;
use forebay_dataset::error::DatasetError;
use forebay_dataset::opening::OpenOptions;
use forebay_index::folder::cache::IndexPlace;
use forebay_storage::Patience;

/// How complete files are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    /// The counts, and that the files have their sizes.
    Sizes,
    /// All bytes.
    Bytes,
}

impl Look {
    /// How a start or a check looks at them: reading all bytes would delay a start.
    pub(super) fn of(options: OpenOptions<'_>) -> Self {
        match options.patience.is_some_and(Patience::is_check) {
            true => Self::Bytes,
            false => Self::Sizes,
        }
    }
}

/// A folder for files made of all datasets: in the cache of the configuration, or else in the user's.
pub(super) fn folder_of_all(config: &DatasetConfig, name: &str) -> PathBuf {
    place_of_all(config, name).path
}

/// As [`folder_of_all`], with what is to be checked of it.
pub(super) fn place_of_all(config: &DatasetConfig, name: &str) -> IndexPlace {
    let user = IndexPlace::choose(None, &[0; 32], &[0; 32]);
    let path = match &config.cache.path {
        Some(cache) => cache.join(format!("{name}-{}", forebay_dataset::index_bytes::own_user())),
        None => user.path.ancestors().nth(2).unwrap_or(Path::new("/")).join(name),
    };
    // Another user could put files into a folder that all may write to.
    let private_folder = match &config.cache.path {
        Some(_) => Some(path.clone()),
        None => user.private_folder,
    };
    IndexPlace { path, private_folder, is_configured: false }
}

/// Makes the folder of a dataset's files, and checks that it can be locked: two makers would write the same files. `what`:
/// what the files have.
///
/// # Errors
/// It cannot be made or locked.
pub(super) fn make_folder(
    options: OpenOptions<'_>,
    place: &IndexPlace,
    what: &str,
) -> Result<(), DatasetError> {
    let is_usable = || place.make_folder().and_then(|()| place.try_lock());
    options.call("making the folder of", &place.path, is_usable).map_err(|error| {
        DatasetError::System {
            path: place.path.parent().unwrap_or(&place.path).to_owned(),
            action: "making a folder in the cache",
            source: io::Error::new(
                error.kind(),
                format!("{error}; it is for {what}; set cache.path to a folder of a local disk that this user may write to"),
            ),
        }
    })
}

/// Whether a folder is this user's or the system's: another user could put files into it.
pub(super) fn is_own(folder: &Path) -> bool {
    let own = [0, forebay_dataset::index_bytes::own_user()];
    fs::symlink_metadata(folder).is_ok_and(|status| status.is_dir() && own.contains(&status.uid()))
}

/// A file and the checksum of what was written to it.
#[derive(Debug)]
pub(super) struct Summed<W> {
    pub(super) file: W,
    checksum: Digest,
}

impl<W> Summed<W> {
    pub(super) fn new(file: W) -> Self {
        Self { file, checksum: Digest::new(CrcAlgorithm::Crc32Iscsi) }
    }

    /// Its CRC-32C.
    pub(super) fn checksum(&self) -> u32 {
        u32::try_from(self.checksum.finalize()).unwrap_or(u32::MAX)
    }

    /// The same checksum for another file.
    pub(super) fn with_file<V>(self, file: V) -> Summed<V> {
        Summed { file, checksum: self.checksum }
    }
}

impl<W: Write> Write for Summed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.checksum.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// The checksum of what remains of a file.
///
/// # Errors
/// It cannot be read.
pub(super) fn checksum_of(file: &mut impl Read) -> io::Result<Summed<io::Sink>> {
    let mut summed = Summed::new(io::sink());
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(summed),
            Ok(count) => summed.write_all(&buffer[..count])?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// The checksum of a file; `None`: it cannot be read.
pub(super) fn checksum_of_file(path: &Path) -> Option<u32> {
    Some(checksum_of(&mut File::open(path).ok()?).ok()?.checksum())
}

/// Writes a file that exists as a whole or not at all.
///
/// # Errors
/// It cannot be written.
pub(super) fn write_whole(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), DatasetError> {
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".tmp");
    let written = File::create(&unfinished).and_then(|file| {
        let mut file = BufWriter::new(file);
        write(&mut file)?;
        file.into_inner()?.sync_all()?;
        fs::rename(&unfinished, path)
    });
    written.map_err(|error| unwritten(path, error))
}

/// The error of a file that cannot be written.
pub(super) fn unwritten(path: &Path, error: io::Error) -> DatasetError {
    let source = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => io::Error::new(
            error.kind(),
            format!("{error}; set cache.path to a folder with more room: what was made is kept"),
        ),
        _ => error,
    };
    DatasetError::System { path: path.to_owned(), action: "writing", source }
}
