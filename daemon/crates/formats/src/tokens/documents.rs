//! The boundaries of documents, read once when a dataset's index is built.
//!
//! Megatron's `.idx` has a table of them; in other files, all tokens are read in parts and searched for the token
//! `end`. Only the boundaries are kept.

use super::files::{Documents, TokenFile, TokenFiles, read_part, refuse};
use super::megatron::IndexHeader;
use super::rows::Segment;
use super::values::find_token;
use forebay_dataset::ScanProgress;
use forebay_dataset::error::DatasetError;
use forebay_dataset::opening::OpenOptions;
use forebay_storage::Storage;
use forebay_storage::location::FileId;

/// The size of the parts of a file, in bytes.
const PART_BYTES: u64 = 4 << 20;
/// The number of entries per part of a table's column.
const TABLE_ENTRIES: u64 = 1 << 16;

/// One pass over all documents, in the order of the files.
pub(super) struct DocumentScan<'a> {
    pub(super) files: &'a TokenFiles,
    pub(super) storage: &'a dyn Storage,
    pub(super) end: Option<u32>,
    pub(super) opening: OpenOptions<'a>,
}

/// Receives one document.
type Visit<'v> = &'v mut dyn FnMut(Segment);

impl DocumentScan<'_> {
    /// Calls `visit` with each document that has tokens.
    ///
    /// # Errors
    /// The ends of documents are unknown, a table does not match its file, an error of the storage, or the callback
    /// requested a stop.
    pub(super) fn run(&self, visit: Visit<'_>) -> Result<(), DatasetError> {
        let mut found = 0;
        for (id, file) in (0..).map(FileId).zip(&self.files.files) {
            let mut counted = |document: Segment| {
                if document.tokens > 0 {
                    found += 1;
                    visit(document);
                }
            };
            match (&file.documents, self.end) {
                (Documents::Index(index, header), _) => {
                    self.of_table(file, *index, header, &mut counted)?;
                }
                (Documents::EndToken | Documents::EndTokenOrFile, Some(end)) => {
                    self.by_end(id, file, end, &mut counted)?;
                }
                (Documents::EndTokenOrFile, None) => {
                    counted(Segment { start: file.first, tokens: file.tokens });
                }
                (Documents::EndToken, None) => {
                    let reason = "nothing says where its documents end: set dataset.tokens.end to the token that ends each \
                                  (50256 in GPT-2's vocabulary), or dataset.tokens.cut to \"windows\"";
                    return Err(refuse(self.storage, self.files.names(), id, reason));
                }
            }
            self.report(found)?;
        }
        Ok(())
    }

    fn report(&self, documents: u64) -> Result<(), DatasetError> {
        let seen = ScanProgress { directories: 1, samples: documents, ..ScanProgress::default() };
        match (self.opening.progress)(seen).is_break() {
            true => Err(DatasetError::Cancelled),
            false => Ok(()),
        }
    }

    fn by_end(
        &self,
        id: FileId,
        file: &TokenFile,
        end: u32,
        visit: Visit<'_>,
    ) -> Result<(), DatasetError> {
        let token_bytes = self.files.token_bytes();
        let part_tokens = PART_BYTES / token_bytes;
        let (mut start, mut read, mut found) = (0, 0, 0);
        let mut part = Vec::new();
        while read < file.tokens {
            let tokens = part_tokens.min(file.tokens - read);
            let offset = file.data_start + read * token_bytes;
            let names = self.files.names();
            read_part(self.storage, names, id, offset, tokens * token_bytes, &mut part)?;
            let [size, count] = [token_bytes, tokens].map(|n| usize::try_from(n).unwrap_or(0));
            find_token(&part, size, end, count, |place| {
                let behind = read + place as u64 + 1;
                visit(Segment { start: file.first + start, tokens: behind - start });
                start = behind;
                found += 1;
            });
            read += tokens;
            self.report(found)?;
        }
        visit(Segment { start: file.first + start, tokens: file.tokens - start });
        Ok(())
    }

    /// Reads the table's columns in parallel: the length and pointer of each sequence, and the first sequence of each
    /// document.
    fn of_table(
        &self,
        file: &TokenFile,
        index: FileId,
        header: &IndexHeader,
        visit: Visit<'_>,
    ) -> Result<(), DatasetError> {
        let fail = |reason: String| refuse(self.storage, self.files.names(), index, reason);
        let (mut lengths, mut pointers) = (Vec::new(), Vec::new());
        let mut ends = Vec::new();
        // In the loaded part of the documents' column: the index of its first entry, and of the next entry.
        let (mut ends_first, mut next_end) = (0, 0_u64);
        let (mut tokens, mut document, mut documents) = (0_u64, 0_u64, 0_u64);
        let mut sequence = 0;
        while sequence <= header.sequences {
            let count = TABLE_ENTRIES.min(header.sequences - sequence);
            let names = self.files.names();
            let (at, bytes) = header.lengths(sequence, count);
            read_part(self.storage, names, index, at, bytes, &mut lengths)?;
            let (at, bytes) = header.pointers(sequence, count);
            read_part(self.storage, names, index, at, bytes, &mut pointers)?;
            // The last iteration has no sequence: it ends the last document.
            let is_last = sequence + count == header.sequences;
            for place in 0..count + u64::from(is_last) {
                loop {
                    if next_end == header.document_ends {
                        break;
                    }
                    if next_end - ends_first >= (ends.len() / 8) as u64 {
                        ends_first = next_end;
                        let (at, bytes) = header.documents(
                            next_end,
                            TABLE_ENTRIES.min(header.document_ends - next_end),
                        );
                        read_part(self.storage, names, index, at, bytes, &mut ends)?;
                    }
                    let begins = number::<8>(&ends, next_end - ends_first).map(i64::from_le_bytes);
                    let begins = begins.and_then(|begins| u64::try_from(begins).ok());
                    let here = sequence + place;
                    match begins {
                        Some(begins) if begins == here => {
                            if next_end > 0 {
                                visit(Segment {
                                    start: file.first + document,
                                    tokens: tokens - document,
                                });
                                documents += 1;
                            } else if begins != 0 {
                                return Err(fail(
                                    "its first document does not begin with its first sequence"
                                        .to_owned(),
                                ));
                            }
                            document = tokens;
                            next_end += 1;
                        }
                        Some(begins)
                            if begins > here && begins <= header.sequences && next_end > 0 =>
                        {
                            break;
                        }
                        _ => {
                            return Err(fail(format!(
                                "its document {next_end} begins with the sequence {}, behind {} and among {} sequences",
                                begins.map_or_else(
                                    || "below 0".to_owned(),
                                    |begins| begins.to_string()
                                ),
                                here,
                                header.sequences
                            )));
                        }
                    }
                }
                if place == count {
                    break;
                }
                let length = number::<4>(&lengths, place).map(i32::from_le_bytes);
                let pointer = number::<8>(&pointers, place).map(i64::from_le_bytes);
                let expected = i64::try_from(tokens * self.files.token_bytes()).ok();
                let length = length.and_then(|length| u64::try_from(length).ok());
                let (Some(length), true) = (length, pointer.is_some() && pointer == expected)
                else {
                    return Err(fail(format!(
                        "its sequence {} has the length {length:?} and lies at byte {pointer:?}, where {expected:?} is \
                         expected; sequences lie one behind the other",
                        sequence + place
                    )));
                };
                tokens += length;
                if tokens > file.tokens {
                    return Err(fail(format!(
                        "its first {} sequences have {tokens} tokens, and the .bin beside it has {}",
                        sequence + place + 1,
                        file.tokens
                    )));
                }
            }
            if is_last {
                break;
            }
            sequence += count;
            self.report(documents)?;
        }
        if tokens != file.tokens || document != tokens || next_end != header.document_ends {
            return Err(fail(format!(
                "its {} sequences have {tokens} tokens in {documents} documents, and the .bin beside it has {} tokens",
                header.sequences, file.tokens
            )));
        }
        Ok(())
    }
}

fn number<const N: usize>(column: &[u8], place: u64) -> Option<[u8; N]> {
    column.as_chunks::<N>().0.get(usize::try_from(place).ok()?).copied()
}
