//! Finds the rows of tables that share compressed pages.

use forebay_protocol::ids::SampleId;

use super::{PackedCell, Stored};
use forebay_dataset::blocks::{PageBytes, SampleBlocks};
use forebay_index::row_index::RowIndex;
use forebay_index::saved_index::SavedIndex;

/// Rows without a value in a page belong to the preceding block; this many of them begin a new block.
const MAX_LOOSE_ROWS: u64 = 1024;

/// A page: its file and its offset there.
type PageId = (usize, u64);

/// The pages of a column's values, in the order of the rows.
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
    /// Adds the next row; `found`: the page of its value.
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

/// Blocks by the pages of the column whose pages unpack to most; `None`: no value is in a page.
pub(super) fn find(index: &RowIndex) -> Option<SampleBlocks> {
    let mut columns: Vec<ColumnPages> = Vec::new();
    columns.resize_with(index.columns(), ColumnPages::default);
    let (mut used_bytes, mut alone) = (0_u64, PageBytes::default());
    visit_pages(index, |row, column, found| {
        columns[column].add(row, found);
        if let Some((_, cell)) = found {
            used_bytes = used_bytes.saturating_add(cell.part.length.into());
            alone.add(cell.bytes, cell.part.unpacked_bytes.into());
        }
    });
    // The first of equal ones.
    let dearest = columns.into_iter().rev().max_by_key(|column| column.bytes.unpacked)?;
    if dearest.bytes.unpacked == 0 {
        return None;
    }
    let mut firsts = dearest.firsts;
    match firsts.first_mut() {
        // Rows before the first page belong to its block.
        Some(first) => *first = 0,
        None => firsts.push(0),
    }
    let mut pages: Vec<Option<PageId>> = vec![None; index.columns()];
    let (mut next_block, mut block, mut most_bytes) = (0, PageBytes::default(), 0);
    let (mut together, mut scratch_per_thousand) = (PageBytes::default(), 0);
    visit_pages(index, |row, column, found| {
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
            // The compressed page, and a decoder's history.
            let scratch = cell.page_bytes().saturating_sub(unpacked).saturating_mul(1000);
            scratch_per_thousand = scratch_per_thousand.max(scratch.div_ceil(unpacked.max(1)));
            most_bytes = most_bytes.max(block.unpacked);
        }
    });
    Some(SampleBlocks { firsts, most_bytes, scratch_per_thousand, used_bytes, alone, together })
}

/// Visits each cell, row by row: its row, its column, and its page, if any.
fn visit_pages(index: &RowIndex, mut visit: impl FnMut(u64, usize, Option<(PageId, PackedCell)>)) {
    for row in 0..index.samples() {
        let file = index.manifest_of(SampleId(row));
        for (column, cell) in index.cells(SampleId(row)).enumerate() {
            let found = match cell.map(Stored::of) {
                Some(Stored::Packed(cell)) => Some(((file, cell.offset), cell)),
                _ => None,
            };
            visit(row, column, found);
        }
    }
}
