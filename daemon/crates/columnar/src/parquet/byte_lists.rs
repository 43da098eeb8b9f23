//! Lists of bytes, such as pictures, as a cell of cells per row: each value is located as one outside of a list is.
//!
//! The levels of a page say which values are of one row; a row may go on in the next page.

use super::pages::Pages;
use super::runs::{Full, Runs};
use crate::Cell;
use forebay_dataset::error::DatasetError;

/// A row that is read: null, or its values so far.
type Open = Option<Vec<Cell>>;

impl Pages<'_, '_> {
    /// Reads the lists of a row group.
    pub(super) fn read_byte_lists(&mut self, rows: u64) -> Result<Runs, DatasetError> {
        let narrow = |level: u32| u8::try_from(level).unwrap_or(u8::MAX);
        let empty = narrow(self.leaf.lists.first().map_or(0, |list| list.level));
        let highest = narrow(self.leaf.level);
        let mut cells = Runs::new(self.room);
        let mut cursor = self.cursor()?;
        let (mut open, mut held): (Option<Open>, _) = (None, 0_usize);
        let mut left = self.chunk.values;
        while left > 0 {
            let page = self.next_page(&mut cursor)?;
            left = self.check_count(&page, left)?;
            let (levels, source) = self.levels(&page)?;
            let there = levels.definition.iter().filter(|level| **level == highest).count();
            let mut values = self.page_values(&page, &cursor, &source, there)?.into_rows();
            for (repetition, definition) in levels.repetition.iter().zip(&levels.definition) {
                if *repetition == 0 {
                    if let Some(row) = open.take() {
                        self.end_row(row, &mut cells)?;
                    }
                    if cells.rows() >= rows {
                        return Err(self.fault(format!("its lists are more than {rows} rows")));
                    }
                    open = Some((*definition >= empty).then(Vec::new));
                    if *definition <= empty {
                        continue;
                    }
                }
                let Some(Some(list)) = &mut open else {
                    return Err(self.fault("a list without a beginning goes on".to_owned()));
                };
                if *definition <= empty {
                    return Err(self.fault("a list is null or empty and goes on".to_owned()));
                }
                let value = match *definition == highest {
                    true => values.take(1).map(|(cell, _)| cell).ok_or_else(|| self.cut_off())?,
                    false => Cell::Null,
                };
                list.push(value);
                held += 1;
                if held > self.room {
                    return Err(self.full(Full));
                }
            }
        }
        if let Some(row) = open {
            self.end_row(row, &mut cells)?;
        }
        match cells.rows() == rows {
            true => Ok(cells),
            false => Err(self
                .fault(format!("its lists are {} rows, and its group has {rows}", cells.rows()))),
        }
    }

    fn end_row(&self, row: Open, cells: &mut Runs) -> Result<(), DatasetError> {
        let cell = row.map_or(Cell::Null, Cell::List);
        cells.push(cell, 1).map_err(|full| self.full(full))
    }
}
