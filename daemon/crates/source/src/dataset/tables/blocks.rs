//! Which rows of tables lie in the same compressed pages.

use forebay_protocol::ids::SampleId;

use super::{PackedCell, Stored, TableSamples};
use crate::dataset::blocks::{PageBytes, SampleBlocks};
use crate::dataset::saved_index::SavedIndex;

/// Rows without a value in a page belong to the block before them; so many of them are one of their own.
const MAX_LOOSE_ROWS: u64 = 1024;

/// A page: its file and its place there.
type PageId = (usize, u64);

/// The pages that a column's values lie in, row after row.
#[derive(Debug, Default)]
struct ColumnPages {
    page: Option<PageId>,
    bytes: PageBytes,
    /// The first row of each page.
    firsts: Vec<u64>,
    /// The rows since the last one with a value in a page.
    loose_rows: u64,
}

impl ColumnPages {
    /// The next row of the table, and where its value lies. True: a page begins.
    fn add(&mut self, row: u64, found: Option<(PageId, PackedCell)>) {
        let Some((page, cell)) = found else {
            self.loose_rows += 1;
            if self.loose_rows == MAX_LOOSE_ROWS {
                self.firsts.push(row);
                (self.loose_rows, self.page) = (0, None);
            }
            return;
        };
        self.loose_rows = 0;
        if self.page != Some(page) {
            self.page = Some(page);
            self.firsts.push(row);
            self.bytes.add(cell.bytes, cell.part.unpacked_bytes.into());
        }
    }
}

impl TableSamples {
    /// The rows that share pages of the column whose pages unpack to most; `None`: no value lies in a page.
    pub(super) fn find_blocks(&self) -> Option<SampleBlocks> {
        let mut columns: Vec<ColumnPages> = Vec::new();
        columns.resize_with(self.columns.len(), ColumnPages::default);
        let (mut used_bytes, mut alone) = (0_u64, PageBytes::default());
        self.visit_pages(|row, column, found| {
            columns[column].add(row, found);
            if let Some((_, cell)) = found {
                used_bytes = used_bytes.saturating_add(cell.part.length.into());
                alone.add(cell.bytes, cell.part.unpacked_bytes.into());
            }
        });
        // Of equal ones the first.
        let dearest = columns.into_iter().rev().max_by_key(|column| column.bytes.unpacked)?;
        if dearest.bytes.unpacked == 0 {
            return None;
        }
        let mut firsts = dearest.firsts;
        match firsts.first_mut() {
            // Rows before the first page are of its block.
            Some(first) => *first = 0,
            None => firsts.push(0),
        }
        let mut pages: Vec<Option<PageId>> = vec![None; self.columns.len()];
        let (mut next_block, mut block, mut most_bytes) = (0, PageBytes::default(), 0);
        let (mut together, mut scratch_per_thousand) = (PageBytes::default(), 0);
        self.visit_pages(|row, column, found| {
            if firsts.get(next_block) == Some(&row) {
                (next_block, block) = (next_block + 1, PageBytes::default());
                pages.fill(None);
            }
            let Some((page, cell)) = found else { return };
            if pages[column] != Some(page) {
                pages[column] = Some(page);
                let unpacked = cell.part.unpacked_bytes.into();
                block.add(cell.bytes, unpacked);
                together.add(cell.bytes, unpacked);
                // The page as it lies there, and a decoder's history.
                let scratch = cell.page_bytes().saturating_sub(unpacked).saturating_mul(1000);
                scratch_per_thousand = scratch_per_thousand.max(scratch.div_ceil(unpacked.max(1)));
                most_bytes = most_bytes.max(block.unpacked);
            }
        });
        Some(SampleBlocks { firsts, most_bytes, scratch_per_thousand, used_bytes, alone, together })
    }

    /// Visits each cell, row by row: its row, its column, and where its value lies if that is in a page.
    fn visit_pages(&self, mut visit: impl FnMut(u64, usize, Option<(PageId, PackedCell)>)) {
        for row in 0..self.index.samples() {
            let file = self.index.manifest_of(SampleId(row));
            for (column, cell) in self.index.cells(SampleId(row)).enumerate() {
                let found = match cell.map(Stored::of) {
                    Some(Stored::Packed(cell)) => Some(((file, cell.offset), cell)),
                    _ => None,
                };
                visit(row, column, found);
            }
        }
    }
}
