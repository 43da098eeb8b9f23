//! Which tokens each row is: a pure function of the row's number.

use crate::location::{ByteRange, FileId, Location};

use super::files::TokenFiles;

/// Fixed windows of each file.
#[derive(Debug)]
pub(super) struct Windows {
    length: u64,
    /// Whether a row takes the token after it, too.
    looks_ahead: bool,
    /// The number of each file's first row.
    first_rows: Vec<u64>,
    pub(super) rows: u64,
    /// Tokens at the ends of files that fill no row.
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

    /// Where a row lies, and the token after it.
    pub(super) fn location(&self, files: &TokenFiles, number: u64) -> Location {
        let place = self.first_rows.partition_point(|first| *first <= number) - 1;
        let token_bytes = files.token_bytes();
        let offset = files.files[place].data_start
            + (number - self.first_rows[place]) * self.length * token_bytes;
        let length = Some((self.length + u64::from(self.looks_ahead)) * token_bytes);
        Location { range: ByteRange { offset, length }, ..Location::whole(FileId(place as u64)) }
    }
}
