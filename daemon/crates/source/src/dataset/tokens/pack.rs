//! Packing: which documents share a row.
//!
//! Best fit, the longest first, over the documents of one window of the files' order: each goes where the least is left
//! over (Johnson, "Near-optimal bin packing algorithms", 1973). A document that is longer than a row is cut into pieces
//! first. The rows follow from the lengths alone; nothing is drawn.

use std::collections::BTreeMap;

use super::rows::Segment;

/// Documents that are packed together. They lie near each other in the files, and so do their bytes in the page cache.
pub(super) const WINDOW_DOCUMENTS: usize = 10_000;

/// A document or a part of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    /// The number of its first token.
    pub(super) start: u64,
    /// At most a row's.
    pub(super) tokens: u32,
    /// Whether its document goes on behind it; it then fills a row.
    pub(super) goes_on: bool,
}

/// The documents of a window, and then their rows.
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

    /// Adds a document; where a window is full its rows go to `row`.
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

    /// Packs what there is. A row's pieces are in the files' order, and rows in that of their first pieces.
    pub(super) fn finish(&mut self, row: &mut dyn FnMut(&[Piece])) {
        self.documents = 0;
        let mut pieces = std::mem::take(&mut self.pieces);
        pieces.sort_unstable_by_key(|piece| (std::cmp::Reverse(piece.tokens), piece.start));
        let mut rows: Vec<Vec<Piece>> = Vec::new();
        // By what is left over in them.
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
