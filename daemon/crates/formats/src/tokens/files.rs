//! The files of a dataset of tokens, and the ranges of the tokens in each.
//!
//! A raw `.bin` contains only tokens, as nanoGPT writes it. llm.c's begins with 256 numbers of 32 bits: a magic number,
//! a version and the count (karpathy/llm.c, `dev/data/data_common.py`). Megatron's has an `.idx` with the same name
//! next to it. A `.npy` contains one array of one dimension. The tokens of all files, one file after the other, are
//! numbered from 0.

use std::collections::HashSet;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use forebay_config::DatasetConfig;
use forebay_protocol::tensor::DType;
use forebay_storage::version::{FileStatus, ObjectIdentity, ObjectStamp};

use super::keys::{FORMAT, TokenKeys, is_integer};
use super::megatron::IndexHeader;
use crate::litdata;
use crate::litdata::tokens::{TokenChunk, TokenChunks};
use forebay_dataset::error::DatasetError;
use forebay_dataset::npy_header::{ArrayHeader, MAX_HEADER_BYTES};
use forebay_dataset::opening::OpenOptions;
use forebay_index::folder::hidden::is_hidden;
use forebay_index::folder::select::ListFile;
use forebay_index::saved_index::refuse_twice;
use forebay_index::stored_file::StoredFile;
use forebay_storage::listing::EntryKind;
use forebay_storage::location::{ByteRange, FileId, FileTable, Location};
use forebay_storage::{Storage, StorageError};

/// llm.c's header: 256 numbers of 32 bits.
const LLM_C_HEADER_BYTES: u64 = 1024;
/// llm.c's magic numbers, each with its only version and the type of the tokens.
const LLM_C: [(u32, u32, DType); 2] = [(20_240_520, 1, DType::U16), (20_240_801, 7, DType::U32)];
/// llm.c's other magic numbers: dates of 2024 (karpathy/llm.c, `train_gpt2.py`, `dev/data/data_common.py`).
const LLM_C_OTHERS: [(u32, &str); 4] = [
    (20_240_326, "a model's weights"),
    (20_240_327, "a state for debugging"),
    (20_240_328, "a tokenizer"),
    (20_240_522, "an evaluation"),
];
/// The number of bytes to read of a file's start: enough for either header.
const HEAD_BYTES: u64 = MAX_HEADER_BYTES as u64;

/// What determines the ends of a file's documents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Documents {
    /// The token `end`.
    EndToken,
    /// The token `end`; without one, the file is a document.
    EndTokenOrFile,
    /// Megatron's index.
    Index(FileId, IndexHeader),
}

/// One file of tokens.
#[derive(Debug, Clone)]
pub(super) struct TokenFile {
    /// The offset of the first token.
    pub(super) data_start: u64,
    /// The number of tokens.
    pub(super) tokens: u64,
    /// The number of its first token among the tokens of all files.
    pub(super) first: u64,
    pub(super) documents: Documents,
    /// Text that distinguishes it from another file that replaces it.
    pub(super) identity: String,
}

/// All files.
#[derive(Debug)]
pub(super) struct TokenFiles {
    /// The files of tokens, then Megatron's indexes.
    names: Names,
    pub(super) files: Vec<TokenFile>,
    pub(super) dtype: DType,
}

/// Names by file number, and the stamps of the objects whose starts were read.
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

impl Names {
    /// Adds the index of each file that has one among `indexes`.
    fn add_indexes(&mut self, indexes: &[Vec<u8>]) -> Vec<Option<FileId>> {
        let known: HashSet<&Vec<u8>> = indexes.iter().collect();
        let found: Vec<_> = self.0.iter().map(|name| index_name_of(name)).collect();
        let add = |index: Option<Vec<u8>>| {
            index.filter(|index| known.contains(index)).map(|index| {
                self.0.push(index);
                FileId(self.0.len() as u64 - 1)
            })
        };
        found.into_iter().map(add).collect()
    }
}

fn identity_text(identity: &ObjectIdentity) -> String {
    match identity {
        ObjectIdentity::Inode { device, .. } => format!("{device} {}", identity.tag()),
        ObjectIdentity::Tag(tag) => tag.clone(),
    }
}

/// The error for a defective file.
pub(super) fn refuse(
    storage: &dyn Storage,
    files: &dyn FileTable,
    file: FileId,
    reason: impl Into<String>,
) -> DatasetError {
    DatasetError::ArrayFile { path: storage.full_path(&files.path(file)), reason: reason.into() }
}

/// The error for a failed storage call: as [`refuse`], unless it is transient.
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
    /// There are no files, a file does not have the format of its name, or the types differ.
    pub(super) fn find(
        config: &DatasetConfig,
        keys: &TokenKeys,
        storage: &dyn Storage,
        options: OpenOptions<'_>,
    ) -> Result<Self, DatasetError> {
        let (mut names, indexes) = match storage.root_is_file() {
            true => single(config, storage)?,
            false => listed(config, storage, options)?,
        };
        let mut chunks = match indexes.iter().any(|index| index == litdata::INDEX.as_bytes()) {
            true => chunks(storage)?,
            false => None,
        };
        if let Some(TokenChunks { chunks, .. }) = &mut chunks {
            // LitData's order, and none but its chunks.
            if let Some(ids) = &config.ids {
                keep_named_chunks(chunks, &names, ids)?;
            }
            names = chunks.iter().map(|chunk| chunk.name.clone()).collect();
        }
        let mut names = Names(names, Vec::new());
        let index_of = names.add_indexes(&indexes);
        let mut found = Self { names, files: Vec::new(), dtype: keys.dtype };
        for (place, index) in index_of.into_iter().enumerate() {
            let chunk = chunks.as_ref().and_then(|of| Some((of.dtype, of.chunks.get(place)?)));
            found.add(storage, index, chunk, keys.dtype)?;
            report(options, found.files.len())?;
        }
        found.check_end(config, keys)?;
        Ok(found)
    }

    /// Reads the start of the next file, which may have an index or a description, and adds the file.
    fn add(
        &mut self,
        storage: &dyn Storage,
        index: Option<FileId>,
        chunk: Option<(DType, &TokenChunk)>,
        configured: DType,
    ) -> Result<(), DatasetError> {
        let id = FileId(self.files.len() as u64);
        let FileStatus { bytes, identity } = storage
            .status(&self.names, id)
            .map_err(|error| storage_error(storage, &self.names, id, error))?;
        let stamp = match &identity {
            ObjectIdentity::Inode { .. } => None,
            ObjectIdentity::Tag(tag) => Some(ObjectStamp::new(bytes, Some(tag))),
        };
        self.names.1.push(stamp);
        let layout = match index {
            Some(index) => megatron(storage, &self.names, index, bytes)?,
            None => self.layout(storage, id, bytes, chunk, configured)?,
        };
        let Layout { data_start, tokens, dtype, documents, described_by } = layout;
        if self.files.is_empty() {
            self.dtype = dtype;
        } else if self.dtype != dtype {
            let reason = format!(
                "its tokens are {}, and {} in {}; all files of a dataset have one type",
                dtype.name(),
                self.dtype.name(),
                storage.full_path(&self.names.0[0]).display()
            );
            return Err(refuse(storage, &self.names, id, reason));
        }
        let first = self.tokens();
        let identity = format!("{bytes} {}{described_by}", identity_text(&identity));
        self.files.push(TokenFile { data_start, tokens, first, documents, identity });
        Ok(())
    }

    /// The layout of a file without an index, from its first bytes.
    fn layout(
        &self,
        storage: &dyn Storage,
        id: FileId,
        bytes: u64,
        chunk: Option<(DType, &TokenChunk)>,
        configured: DType,
    ) -> Result<Layout, DatasetError> {
        let mut head = Vec::new();
        read_part(storage, &self.names, id, 0, bytes.min(HEAD_BYTES), &mut head)?;
        let layout = match chunk {
            Some((dtype, chunk)) => of_chunk(chunk, &head, bytes, dtype),
            None if ends_with(&self.names.path(id), ".npy") => npy(&head, bytes),
            None => bin(&head, bytes, configured),
        };
        layout.map_err(|reason| refuse(storage, &self.names, id, reason))
    }

    /// Refuses an end token that the type of the tokens does not contain.
    fn check_end(&self, config: &DatasetConfig, keys: &TokenKeys) -> Result<(), DatasetError> {
        let largest = match self.dtype.size_bytes() {
            1 => u64::from(u8::MAX),
            2 => u64::from(u16::MAX),
            _ => u64::MAX,
        };
        if keys.end_id().is_none_or(|end| u64::from(end) <= largest) {
            return Ok(());
        }
        let reason = format!(
            "dataset.tokens.end is larger than a token can be: the tokens are {}",
            self.dtype.name()
        );
        Err(DatasetError::ArrayFile { path: config.path.clone(), reason })
    }

    /// The number of tokens in all files.
    pub(super) fn tokens(&self) -> u64 {
        self.files.last().map_or(0, |file| file.first.saturating_add(file.tokens))
    }

    /// The size of one token in bytes.
    pub(super) const fn token_bytes(&self) -> u64 {
        self.dtype.size_bytes()
    }

    /// The names, for reading.
    pub(super) const fn names(&self) -> &Names {
        &self.names
    }

    /// The file that contains a token.
    pub(super) fn place_of(&self, token: u64) -> usize {
        self.files.partition_point(|file| file.first <= token).saturating_sub(1)
    }

    /// The location of `tokens` tokens, all in one file.
    pub(super) fn location(&self, start: u64, tokens: u64) -> Location {
        let place = self.place_of(start);
        let file = &self.files[place];
        let offset = file.data_start + (start - file.first) * self.token_bytes();
        let range = ByteRange { offset, length: Some(tokens * self.token_bytes()) };
        Location { range, ..Location::whole(FileId(place as u64)) }
    }
}

fn report(options: OpenOptions<'_>, files: usize) -> Result<(), DatasetError> {
    let progress = forebay_dataset::ScanProgress {
        directories: 1,
        samples: files as u64,
        ..forebay_dataset::ScanProgress::default()
    };
    match (options.progress)(progress).is_break() {
        true => Err(DatasetError::Cancelled),
        false => Ok(()),
    }
}

/// LitData's chunks, where the folder's `index.json` is of such.
fn chunks(storage: &dyn Storage) -> Result<Option<TokenChunks>, DatasetError> {
    let file = StoredFile::new(storage, litdata::INDEX.as_bytes()).map_err(DatasetError::from)?;
    let text = file.read_whole(litdata::MAX_INDEX_BYTES)?;
    let chunks = TokenChunks::parse(&text).map_err(|reason| file.fault(reason))?;
    if let Some(TokenChunks { dtype, chunks }) = &chunks {
        if !is_integer(*dtype) {
            return Err(
                file.fault(format!("its items are {}, and tokens are integers", dtype.name()))
            );
        }
        let names: Vec<_> = chunks.iter().map(|chunk| chunk.name.clone()).collect();
        refuse_twice(storage, &names)?;
    }
    Ok(chunks)
}

/// Keeps the chunks that `dataset.ids` names, which are sorted.
fn keep_named_chunks(
    chunks: &mut Vec<TokenChunk>,
    names: &[Vec<u8>],
    ids: &Path,
) -> Result<(), DatasetError> {
    let known: HashSet<&[u8]> = chunks.iter().map(|chunk| &chunk.name[..]).collect();
    if let Some(other) = names.iter().find(|name| !known.contains(&name[..])) {
        let other = String::from_utf8_lossy(other);
        let reason = format!("it names {other:?}, which is not in {}", litdata::INDEX);
        return Err(DatasetError::BrokenFile { path: ids.to_owned(), reason });
    }
    chunks.retain(|chunk| names.binary_search(&chunk.name).is_ok());
    Ok(())
}

/// The names of files of tokens, and of their indexes.
type FoundNames = (Vec<Vec<u8>>, Vec<Vec<u8>>);

/// The single file that the path names, and its index, if it exists.
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
        // A request for a missing local file is repeated for 10 s; its folder is listed once instead.
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

/// The files of tokens in the folder, sorted, and their indexes.
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
        _ if ends_with(name, ".idx") || name == litdata::INDEX.as_bytes() => {
            indexes.push(name.to_vec());
        }
        _ => {}
    });
    listing.map_err(|error| match error {
        // Nothing exists at the URL.
        StorageError::Vanished { .. } => DatasetError::Missing { path: config.path.clone() },
        error => error.into(),
    })?;
    report(options, 0)?;
    names.sort_unstable();
    // A listing may contain a name twice.
    names.dedup();
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

/// The files in the list, in the folder's order.
fn keep_listed(
    list: &Path,
    names: &[Vec<u8>],
    options: OpenOptions<'_>,
) -> Result<Vec<Vec<u8>>, DatasetError> {
    let read = || ListFile::read(list, "reading dataset.ids");
    let list = options.call("reading", list, read)?.below(options.samples_root);
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

/// A folder from nanoGPT or llm.c contains both training and validation tokens.
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

/// The layout of a file, from its start and size.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) data_start: u64,
    pub(super) tokens: u64,
    dtype: DType,
    documents: Documents,
    /// Text that distinguishes what describes the file besides its bytes.
    described_by: String,
}

impl Layout {
    /// The layout of a file that describes itself.
    fn new(data_start: u64, tokens: u64, dtype: DType, documents: Documents) -> Self {
        Self { data_start, tokens, dtype, documents, described_by: String::new() }
    }
}

/// The layout of a `.bin` without an index.
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
        return Ok(Layout::new(LLM_C_HEADER_BYTES, tokens, dtype, documents));
    }
    if let (Some(magic @ 20_240_000..20_241_000), Some(0..100)) = (number(0), number(1))
        && bytes >= LLM_C_HEADER_BYTES
    {
        let what = LLM_C_OTHERS
            .iter()
            .find(|(other, _)| *other == magic)
            .map_or("something else", |(_, what)| what);
        return Err(format!(
            "it begins with llm.c's magic number {magic}, which is that of {what} and not of tokens; name the files of tokens"
        ));
    }
    let token_bytes = raw.size_bytes();
    if !bytes.is_multiple_of(token_bytes) {
        return Err(format!(
            "{bytes} bytes are no whole number of {} tokens: the file was cut short, or dataset.tokens.dtype is another",
            raw.name()
        ));
    }
    Ok(Layout::new(0, bytes / token_bytes, raw, documents))
}

/// A chunk of LitData, from its start and its size.
fn of_chunk(chunk: &TokenChunk, head: &[u8], bytes: u64, dtype: DType) -> Result<Layout, String> {
    let (data_start, tokens) = chunk.tokens(head, bytes, dtype)?;
    let described_by = format!(" chunk {data_start} {tokens}");
    Ok(Layout { described_by, ..Layout::new(data_start, tokens, dtype, Documents::EndToken) })
}

/// The layout of a `.npy`.
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
    Ok(Layout::new(header.data_start as u64, tokens, dtype, documents))
}

/// The layout of a `.bin` with an index.
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
    let described_by = format!(" index {} {}", status.bytes, identity_text(&status.identity));
    Ok(Layout { described_by, ..Layout::new(0, tokens, dtype, Documents::Index(index, header)) })
}
