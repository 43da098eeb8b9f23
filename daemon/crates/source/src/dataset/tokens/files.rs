//! The files of a dataset of tokens: which ones they are, and where the tokens begin and end in each.
//!
//! A raw `.bin` is tokens alone, as nanoGPT writes it. llm.c's begins with 256 numbers of 32 bits: a magic number, a
//! version and the count (karpathy/llm.c, `dev/data/data_common.py`). Beside Megatron's lies an `.idx` of the same name.
//! A `.npy` holds one array of one dimension. The tokens of all files, one file after the other, are numbered from 0.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use forebay_config::DatasetConfig;
use forebay_protocol::tensor::DType;

use super::keys::{FORMAT, TokenKeys, is_integer};
use super::megatron::IndexHeader;
use crate::dataset::error::DatasetError;
use crate::dataset::folder::hidden::is_hidden;
use crate::dataset::folder::select::ListFile;
use crate::dataset::npy_header::{ArrayHeader, MAX_HEADER_BYTES};
use crate::dataset::opening::OpenOptions;
use crate::location::{ByteRange, FileId, FileTable, Location, ObjectStamp};
use crate::storage::listing::EntryKind;
use crate::storage::{FileStatus, ObjectIdentity, Storage, StorageError};

/// llm.c's header: 256 numbers of 32 bits.
const LLM_C_HEADER_BYTES: u64 = 1024;
/// llm.c's magic numbers, with the only version and the type of the tokens of each.
const LLM_C: [(u32, u32, DType); 2] = [(20_240_520, 1, DType::U16), (20_240_801, 7, DType::U32)];
/// What is read of a file's start: enough for either header.
const HEAD_BYTES: u64 = MAX_HEADER_BYTES as u64;

/// What says where a file's documents end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Documents {
    /// The token of `end`.
    EndToken,
    /// The token of `end`; without one the file is a document.
    EndTokenOrFile,
    /// Megatron's index.
    Index(FileId, IndexHeader),
}

/// One file of tokens.
#[derive(Debug, Clone)]
pub(super) struct TokenFile {
    /// Where the tokens begin.
    pub(super) data_start: u64,
    /// How many there are.
    pub(super) tokens: u64,
    /// The number of its first token among those of all files.
    pub(super) first: u64,
    pub(super) documents: Documents,
    /// What tells it from a file that takes its place, in words.
    pub(super) identity: String,
}

/// All files.
#[derive(Debug)]
pub(super) struct TokenFiles {
    /// Those of tokens, then Megatron's indexes.
    names: Names,
    pub(super) files: Vec<TokenFile>,
    pub(super) dtype: DType,
}

/// The names by the files' numbers, and the objects that their starts were read of.
#[derive(Debug, Default)]
pub(super) struct Names(Vec<Vec<u8>>, Vec<Option<ObjectStamp>>);

impl FileTable for Names {
    fn append_path(&self, file: FileId, path: &mut Vec<u8>) {
        let name = usize::try_from(file.0).ok().and_then(|place| self.0.get(place));
        path.extend_from_slice(name.expect("a file of this dataset"));
    }

    fn stamp(&self, file: FileId) -> Option<ObjectStamp> {
        *usize::try_from(file.0).ok().and_then(|place| self.1.get(place))?
    }
}

/// A file with what is wrong with it, or the storage's own error where that may pass.
pub(super) fn refuse(
    storage: &dyn Storage,
    files: &dyn FileTable,
    file: FileId,
    reason: impl Into<String>,
) -> DatasetError {
    DatasetError::ArrayFile { path: storage.full_path(&files.path(file)), reason: reason.into() }
}

/// As [`refuse`]: of what the storage says.
pub(super) fn storage_error(
    storage: &dyn Storage,
    files: &dyn FileTable,
    file: FileId,
    error: StorageError,
) -> DatasetError {
    match error.is_transient() {
        true => error.into(),
        false => refuse(storage, files, file, error.to_string()),
    }
}

/// Reads a part of a file.
pub(super) fn read_part(
    storage: &dyn Storage,
    files: &dyn FileTable,
    file: FileId,
    offset: u64,
    length: u64,
    buffer: &mut Vec<u8>,
) -> Result<(), DatasetError> {
    let range = ByteRange { offset, length: Some(length) };
    storage
        .read(files, Location { range, ..Location::whole(file) }, u64::MAX, buffer)
        .map_err(|error| storage_error(storage, files, file, error))
}

fn ends_with(name: &[u8], extension: &str) -> bool {
    name.len() > extension.len()
        && name[name.len() - extension.len()..].eq_ignore_ascii_case(extension.as_bytes())
}

/// The name of a file's index: the same with `.idx`.
fn index_name(name: &[u8]) -> Vec<u8> {
    [&name[..name.len() - ".bin".len()], b".idx"].concat()
}

impl TokenFiles {
    /// Finds the files, and reads the start of each.
    ///
    /// # Errors
    /// There are none, one is not what it seems to be, or their types differ.
    pub(super) fn find(
        config: &DatasetConfig,
        keys: &TokenKeys,
        storage: &dyn Storage,
        options: OpenOptions<'_>,
    ) -> Result<Self, DatasetError> {
        let (names, indexes) = match storage.root_is_file() {
            true => single(config, storage)?,
            false => listed(config, storage, options)?,
        };
        let count = names.len();
        let mut all = Names(names, Vec::new());
        let index_of: Vec<Option<FileId>> = (0..count)
            .map(|place| {
                let index = index_name_of(&all.0[place])?;
                indexes.contains(&index).then(|| {
                    all.0.push(index);
                    FileId(all.0.len() as u64 - 1)
                })
            })
            .collect();
        let mut files = Vec::with_capacity(count);
        let (mut first, mut dtype): (u64, Option<DType>) = (0, None);
        let mut head = Vec::new();
        for (place, index) in index_of.into_iter().enumerate() {
            let id = FileId(place as u64);
            let FileStatus { bytes, identity } = storage
                .status(&all, id)
                .map_err(|error| storage_error(storage, &all, id, error))?;
            let (stamp, identity) = match identity {
                ObjectIdentity::Inode { device, inode, modified: (seconds, nanoseconds) } => {
                    (None, format!("{device} {inode} {seconds} {nanoseconds}"))
                }
                ObjectIdentity::Tag(tag) => (Some(ObjectStamp::new(bytes, Some(&tag))), tag),
            };
            all.1.push(stamp);
            head.clear();
            if index.is_none() {
                read_part(storage, &all, id, 0, bytes.min(HEAD_BYTES), &mut head)?;
            }
            let layout = match index {
                Some(index) => megatron(storage, &all, index, bytes),
                None if ends_with(&all.0[place], ".npy") => {
                    npy(&head, bytes).map_err(|reason| refuse(storage, &all, id, reason))
                }
                None => bin(&head, bytes, keys.dtype)
                    .map_err(|reason| refuse(storage, &all, id, reason)),
            };
            let Layout { data_start, tokens, dtype: found, documents } = layout?;
            let known = *dtype.get_or_insert(found);
            if known != found {
                let reason = format!(
                    "its tokens are {}, and {} in {}; all files of a dataset have one type",
                    found.name(),
                    known.name(),
                    storage.full_path(&all.0[0]).display()
                );
                return Err(refuse(storage, &all, id, reason));
            }
            let identity = format!("{bytes} {identity}");
            files.push(TokenFile { data_start, tokens, first, documents, identity });
            first = first.saturating_add(tokens);
            report(options, files.len())?;
        }
        let dtype = dtype.unwrap_or(keys.dtype);
        let largest = match dtype.size_bytes() {
            1 => u64::from(u8::MAX),
            2 => u64::from(u16::MAX),
            _ => u64::MAX,
        };
        if keys.end.is_some_and(|end| u64::from(end) > largest) {
            let reason = format!(
                "dataset.tokens.end is larger than a token can be: the tokens are {}",
                dtype.name()
            );
            return Err(DatasetError::ArrayFile { path: config.path.clone(), reason });
        }
        Ok(Self { names: all, files, dtype })
    }

    /// How many tokens there are together.
    pub(super) fn tokens(&self) -> u64 {
        self.files.last().map_or(0, |file| file.first + file.tokens)
    }

    /// The bytes of one token.
    pub(super) const fn token_bytes(&self) -> u64 {
        self.dtype.size_bytes()
    }

    /// The names, for reading.
    pub(super) const fn names(&self) -> &Names {
        &self.names
    }

    /// The file in which a token lies.
    pub(super) fn place_of(&self, token: u64) -> usize {
        self.files.partition_point(|file| file.first <= token).saturating_sub(1)
    }

    /// Where so many tokens lie, all of them in one file.
    pub(super) fn location(&self, start: u64, tokens: u64) -> Location {
        let place = self.place_of(start);
        let file = &self.files[place];
        let offset = file.data_start + (start - file.first) * self.token_bytes();
        let range = ByteRange { offset, length: Some(tokens * self.token_bytes()) };
        Location { range, ..Location::whole(FileId(place as u64)) }
    }
}

fn report(options: OpenOptions<'_>, files: usize) -> Result<(), DatasetError> {
    let progress = crate::dataset::ScanProgress {
        directories: 1,
        samples: files as u64,
        ..crate::dataset::ScanProgress::default()
    };
    match (options.progress)(progress).is_break() {
        true => Err(DatasetError::Cancelled),
        false => Ok(()),
    }
}

/// The names of files of tokens, and of the indexes beside them.
type FoundNames = (Vec<Vec<u8>>, Vec<Vec<u8>>);

/// The one file that the path names; its index, where there is one.
fn single(config: &DatasetConfig, storage: &dyn Storage) -> Result<FoundNames, DatasetError> {
    let path = &config.path;
    let mut name = path.file_name().map(|name| name.as_bytes().to_vec()).unwrap_or_default();
    if ends_with(&name, ".idx") {
        let stem = name.len() - ".idx".len();
        name.truncate(stem);
        name.extend_from_slice(b".bin");
    }
    if !ends_with(&name, ".bin") && !ends_with(&name, ".npy") {
        return Err(DatasetError::WrongKind {
            path: path.clone(),
            found: "a file that ends in none of .bin, .idx and .npy",
            format: FORMAT.name,
            expected: "a file of tokens, or a folder of them",
        });
    }
    if config.ids.is_some() {
        let reason = "dataset.ids lists files of a folder, and dataset.path is one file; leave it out, or use \
                      dataset.limit";
        return Err(DatasetError::ArrayFile { path: path.clone(), reason: reason.to_owned() });
    }
    let index = index_name_of(&name);
    let has_index = match &index {
        // A missing file is asked for again for 10 s; its folder is asked once.
        Some(index) if storage.remote_root().is_none() => {
            let mut is_there = false;
            storage.list(b"", &mut |name, _| is_there |= name == index.as_slice())?;
            is_there
        }
        Some(index) => match storage.status(&Names(vec![index.clone()], Vec::new()), FileId(0)) {
            Ok(_) => true,
            Err(StorageError::Vanished { .. }) => false,
            Err(error) => return Err(error.into()),
        },
        None => false,
    };
    Ok((vec![name], index.filter(|_| has_index).into_iter().collect()))
}

fn index_name_of(name: &[u8]) -> Option<Vec<u8>> {
    ends_with(name, ".bin").then(|| index_name(name))
}

/// The files of tokens in the folder, sorted, and the indexes beside them.
fn listed(
    config: &DatasetConfig,
    storage: &dyn Storage,
    options: OpenOptions<'_>,
) -> Result<FoundNames, DatasetError> {
    let (mut names, mut indexes) = (Vec::new(), Vec::new());
    let listing = storage.list(b"", &mut |name, kind| match kind {
        EntryKind::Directory | EntryKind::LinkedDirectory(_) => {}
        _ if is_hidden(name) => {}
        _ if ends_with(name, ".bin") || ends_with(name, ".npy") => names.push(name.to_vec()),
        _ if ends_with(name, ".idx") => indexes.push(name.to_vec()),
        _ => {}
    });
    listing.map_err(|error| match error {
        // Nothing lies behind the URL.
        StorageError::Vanished { .. } => DatasetError::Missing { path: config.path.clone() },
        error => error.into(),
    })?;
    report(options, 0)?;
    names.sort_unstable();
    let none = |reason: &str| {
        let (path, reason) = (config.path.clone(), reason.to_owned());
        Err(DatasetError::NoSamples { path, reason })
    };
    if names.is_empty() {
        return none("there is no .bin or .npy file in it");
    }
    match &config.ids {
        Some(path) => {
            names = keep_listed(path, &names, options)?;
            if names.is_empty() {
                return none(&format!("{} lists none", path.display()));
            }
        }
        None => refuse_splits(config, &names)?,
    }
    Ok((names, indexes))
}

/// The files that the list names, in the folder's order.
fn keep_listed(
    list: &Path,
    names: &[Vec<u8>],
    options: OpenOptions<'_>,
) -> Result<Vec<Vec<u8>>, DatasetError> {
    let read = || ListFile::read(list, "reading dataset.ids");
    let list = options.call("reading", list, read)?;
    let mut kept = Vec::new();
    for (line, name) in list.entries() {
        let shown = String::from_utf8_lossy(name);
        if names.binary_search_by(|known| known.as_slice().cmp(name)).is_err() {
            return Err(list.error(
                line,
                format!("there is no file {shown:?} in the folder; correct or remove the line"),
            ));
        }
        if kept.iter().any(|other| other == name) {
            return Err(
                list.error(line, format!("{shown:?} is listed twice; remove one of the lines"))
            );
        }
        kept.push(name.to_vec());
    }
    kept.sort_unstable();
    Ok(kept)
}

/// A folder that nanoGPT or llm.c made holds both the training's tokens and the validation's.
fn refuse_splits(config: &DatasetConfig, names: &[Vec<u8>]) -> Result<(), DatasetError> {
    let first = |part: &str| {
        names.iter().find(|name| {
            let words = name.split(|byte| !byte.is_ascii_alphanumeric());
            words.into_iter().any(|word| word.eq_ignore_ascii_case(part.as_bytes()))
        })
    };
    let validation = ["val", "valid", "validation", "test"].iter().find_map(|part| first(part));
    let (Some(train), Some(validation)) = (first("train"), validation) else { return Ok(()) };
    let reason = format!(
        "it holds files of several splits, such as {:?} and {:?}; name one file, or list the files of one split in \
         dataset.ids",
        String::from_utf8_lossy(train),
        String::from_utf8_lossy(validation)
    );
    Err(DatasetError::ArrayFile { path: config.path.clone(), reason })
}

/// What a file's start and size tell.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) data_start: u64,
    pub(super) tokens: u64,
    dtype: DType,
    documents: Documents,
}

/// A `.bin` without an index, from its start and its size.
pub(super) fn bin(head: &[u8], bytes: u64, raw: DType) -> Result<Layout, String> {
    if bytes == 0 {
        return Err("the file is empty".to_owned());
    }
    let number = |place: usize| {
        head.get(4 * place..)
            .and_then(|bytes| bytes.first_chunk())
            .map(|bytes| u32::from_le_bytes(*bytes))
    };
    let documents = Documents::EndToken;
    if let Some((magic, version, dtype)) =
        LLM_C.into_iter().find(|(magic, ..)| number(0) == Some(*magic))
    {
        if number(1) != Some(version) {
            return Err(format!(
                "it begins with llm.c's magic number {magic}, whose version is {version}, and not {:?}",
                number(1).unwrap_or_default()
            ));
        }
        let tokens = u64::from(number(2).unwrap_or_default());
        let expected = LLM_C_HEADER_BYTES + tokens * dtype.size_bytes();
        if bytes != expected || tokens == 0 {
            return Err(format!(
                "llm.c's header announces {tokens} tokens of {}, which makes {expected} bytes, and the file has {bytes}: \
                 it was cut short, or the header is wrong",
                dtype.name()
            ));
        }
        return Ok(Layout { data_start: LLM_C_HEADER_BYTES, tokens, dtype, documents });
    }
    let token_bytes = raw.size_bytes();
    if !bytes.is_multiple_of(token_bytes) {
        return Err(format!(
            "{bytes} bytes are no whole number of {} tokens: the file was cut short, or dataset.tokens.dtype is another",
            raw.name()
        ));
    }
    Ok(Layout { data_start: 0, tokens: bytes / token_bytes, dtype: raw, documents })
}

/// A `.npy`, from its start and its size.
pub(super) fn npy(head: &[u8], bytes: u64) -> Result<Layout, String> {
    let header = ArrayHeader::parse(head).map_err(|defect| defect.0)?;
    header.check_length(bytes).map_err(|defect| defect.0)?;
    let [tokens] = header.shape[..] else {
        return Err(format!(
            "its shape is {:?}, and tokens have one dimension; rows that are cut already are read by format = \"npy\"",
            header.shape
        ));
    };
    if !is_integer(header.dtype) || header.big_endian {
        return Err(format!(
            "its elements are {}{}, and tokens are integers in little endian; save it again with \
             numpy.save(path, array.astype(\"<u2\"))",
            header.dtype.name(),
            if header.big_endian { " in big endian" } else { "" }
        ));
    }
    if tokens == 0 {
        return Err("it has no tokens".to_owned());
    }
    let (dtype, documents) = (header.dtype, Documents::EndTokenOrFile);
    Ok(Layout { data_start: header.data_start as u64, tokens, dtype, documents })
}

/// A `.bin` beside which an index lies.
fn megatron(
    storage: &dyn Storage,
    names: &Names,
    index: FileId,
    bytes: u64,
) -> Result<Layout, DatasetError> {
    let fail = |reason: String| refuse(storage, names, index, reason);
    let status = storage
        .status(names, index)
        .map_err(|error| storage_error(storage, names, index, error))?;
    let mut head = Vec::new();
    read_part(storage, names, index, 0, status.bytes.min(HEAD_BYTES), &mut head)?;
    let header = IndexHeader::parse(&head, status.bytes).map_err(fail)?;
    let dtype = header.dtype;
    if bytes == 0 || !bytes.is_multiple_of(dtype.size_bytes()) {
        return Err(fail(format!(
            "it describes {} tokens, and the .bin beside it has {bytes} bytes",
            dtype.name()
        )));
    }
    let tokens = bytes / dtype.size_bytes();
    Ok(Layout { data_start: 0, tokens, dtype, documents: Documents::Index(index, header) })
}
