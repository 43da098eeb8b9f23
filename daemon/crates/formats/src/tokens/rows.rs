//! The tokens of each row: a pure function of the row's number.

use forebay_storage::location::{ByteRange, FileId, Location};

use super::files::TokenFiles;

/// A range of tokens in one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Segment {
    /// The number of its first token among the tokens of all files.
    pub(super) start: u64,
    pub(super) tokens: u64,
}

/// The tokens of one row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Row {
    /// The documents or parts of documents, in the row's order. Together they have at most the row's length.
    pub(super) segments: Vec<Segment>,
    /// The token of the last label.
    pub(super) ahead: Option<u64>,
}

impl Row {
    /// The number of tokens to read.
    pub(super) fn read_tokens(&self) -> u64 {
        let own: u64 = self.segments.iter().map(|segment| segment.tokens).sum();
        own + u64::from(self.ahead.is_some())
    }

    /// Appends the locations of the tokens; adjacent segments become one location.
    pub(super) fn locate(&self, files: &TokenFiles, locations: &mut Vec<Location>) {
        let ahead = self.ahead.map(|start| Segment { start, tokens: 1 });
        for segment in self.segments.iter().copied().chain(ahead) {
            let next = files.location(segment.start, segment.tokens);
            match locations.last_mut() {
                Some(last) if follows(last, &next) => {
                    let length = |location: &Location| location.range.length.unwrap_or(0);
                    last.range.length = Some(length(last) + length(&next));
                }
                _ => locations.push(next),
            }
        }
    }
}

fn follows(last: &Location, next: &Location) -> bool {
    let ByteRange { offset, length } = last.range;
    last.file == next.file && length.is_some_and(|length| offset + length == next.range.offset)
}

/// Fixed windows of each file.
#[derive(Debug)]
pub(super) struct Windows {
    length: u64,
    /// Whether a row also reads the token after it.
    looks_ahead: bool,
    /// The number of each file's first row.
    first_rows: Vec<u64>,
    pub(super) rows: u64,
    /// Tokens at the ends of files that do not fill a row.
    pub(super) left_out: u64,
}

impl Windows {
    pub(super) fn new(files: &TokenFiles, length: u64, looks_ahead: bool) -> Self {
        let (mut rows, mut left_out) = (0, 0);
        let first_rows = files.files.iter().map(|file| {
            let first = rows;
            let of_file = file.tokens.saturating_sub(u64::from(looks_ahead)) / length;
            rows += of_file;
            left_out += file.tokens - of_file * length;
            first
        });
        let first_rows = first_rows.collect();
        Self { length, looks_ahead, first_rows, rows, left_out }
    }

    /// The location of a row, including the token after it if rows look ahead.
    pub(super) fn location(&self, files: &TokenFiles, number: u64) -> Location {
        let place = self.first_rows.partition_point(|first| *first <= number) - 1;
        let token_bytes = files.token_bytes();
        let offset = files.files[place].data_start
            + (number - self.first_rows[place]) * self.length * token_bytes;
        let length = Some((self.length + u64::from(self.looks_ahead)) * token_bytes);
        Location { range: ByteRange { offset, length }, ..Location::whole(FileId(place as u64)) }
    }
}
