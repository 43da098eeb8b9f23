//! Packing: assigns documents to rows.
//!
//! Best fit decreasing over the documents of one window in the order of the files: the longest documents first, each in
//! the row that leaves the least space (Johnson, "Near-optimal bin packing algorithms", 1973). A document longer than a
//! row is first cut into pieces. The rows depend on the lengths only, not on random numbers.

use std::collections::BTreeMap;

use super::rows::Segment;

/// The number of documents that are packed together. They are close to each other in the files, so their bytes share
/// pages of the page cache.
pub(super) const WINDOW_DOCUMENTS: usize = 10_000;

/// A document or a part of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    /// The number of its first token.
    pub(super) start: u64,
    /// At most the row length.
    pub(super) tokens: u32,
    /// Whether its document continues after it; the piece then fills a row.
    pub(super) goes_on: bool,
}

/// The documents of the current window.
#[derive(Debug)]
pub(super) struct Packer {
    length: u32,
    documents: usize,
    pieces: Vec<Piece>,
}

impl Packer {
    pub(super) const fn new(length: u32) -> Self {
        Self { length, documents: 0, pieces: Vec::new() }
    }

    /// Adds a document; when the window is full, passes its rows to `row`.
    pub(super) fn add(&mut self, document: Segment, row: &mut dyn FnMut(&[Piece])) {
        let (mut start, mut left) = (document.start, document.tokens);
        while left > 0 {
            let tokens = u32::try_from(left).map_or(self.length, |left| left.min(self.length));
            left -= u64::from(tokens);
            self.pieces.push(Piece { start, tokens, goes_on: left > 0 });
            start += u64::from(tokens);
        }
        self.documents += 1;
        if self.documents == WINDOW_DOCUMENTS {
            self.finish(row);
        }
    }

    /// Packs the collected documents. A row's pieces are in the order of the files, and rows in the order of their
    /// first pieces.
    pub(super) fn finish(&mut self, row: &mut dyn FnMut(&[Piece])) {
        self.documents = 0;
        let mut pieces = std::mem::take(&mut self.pieces);
        pieces.sort_unstable_by_key(|piece| (std::cmp::Reverse(piece.tokens), piece.start));
        let mut rows: Vec<Vec<Piece>> = Vec::new();
        // Rows with free space, by the number of free tokens.
        let mut open: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for piece in pieces {
            let best = open
                .range_mut(piece.tokens..)
                .next()
                .and_then(|(left, rows)| Some((*left, rows.pop()?)));
            let (left, place) = match best {
                Some((left, place)) => {
                    if open.get(&left).is_some_and(Vec::is_empty) {
                        open.remove(&left);
                    }
                    (left, place)
                }
                None => {
                    rows.push(Vec::new());
                    (self.length, rows.len() - 1)
                }
            };
            rows[place].push(piece);
            if left > piece.tokens {
                open.entry(left - piece.tokens).or_default().push(place);
            }
        }
        for pieces in &mut rows {
            pieces.sort_unstable_by_key(|piece| piece.start);
        }
        rows.sort_unstable_by_key(|pieces| pieces.first().map(|piece| piece.start));
        for pieces in &rows {
            row(pieces);
        }
    }
}
