//! Lists of bytes of a batch, such as pictures, as a cell of cells per row: each value is located as one outside of a list
//! is.

use std::ops::Range;

use super::batch::{Batch, Span};
use super::packed::Budget;
use super::schema::{Leaf, Step};
use crate::Cell;
use forebay_dataset::error::DatasetError;
use forebay_index::window::Window;

/// The maximum number of values in the lists of rows that are read together.
const MAX_VALUES: u64 = 1 << 22;

impl Batch<'_> {
    /// Appends the cells of a column of lists of bytes for some rows.
    ///
    /// # Errors
    /// The buffers do not match the rows, or the storage fails.
    pub(super) fn byte_list_cells(
        &self,
        window: &mut Window<'_>,
        (leaf, is_large): (&Leaf, bool),
        (rows, budget): (Range<u64>, &Budget),
        cells: &mut Vec<Cell>,
    ) -> Result<(), DatasetError> {
        let file = window.file;
        let name = &leaf.column.column.name;
        let fault = |reason: String| file.fault(format!("column {name}: {reason}"));
        let mut lists: Vec<Span> = rows.map(|row| Some((row, row + 1))).collect();
        // By value of all rows, once the list is passed.
        let mut values: Option<Vec<Span>> = None;
        for &(step, field) in &leaf.steps {
            let spans = values.as_mut().unwrap_or(&mut lists);
            self.drop_nulls(window, field, spans, &fault)?;
            // The schema has one list in such a column.
            if let (Step::List { is_large }, None) = (step, &values) {
                self.follow_offsets(window, field, is_large, &mut lists, &fault)?;
                let counts = lists.iter().flatten().map(|(start, end)| end - start);
                let count = counts.fold(0, u64::saturating_add);
                if count > MAX_VALUES {
                    return Err(fault(format!(
                        "its lists have {count} values in {} rows, and at most {MAX_VALUES} are read together",
                        lists.len()
                    )));
                }
                // Lists of different rows may be the same part of a file.
                budget.count(count).map_err(&fault)?;
                let each = lists.iter().flatten().flat_map(|(start, end)| *start..*end);
                values = Some(each.map(|value| Some((value, value + 1))).collect());
            }
        }
        let mut values = values.unwrap_or_default();
        self.drop_nulls(window, leaf.field, &mut values, &fault)?;
        let buffer = self.buffer(window, leaf.field, 2, &fault)?;
        self.follow_offsets(window, leaf.field, is_large, &mut values, &fault)?;
        let mut found = Vec::with_capacity(values.len());
        self.place_all(window, (&values, 1), (&buffer, budget), &mut found, &fault)?;
        let mut found = found.into_iter();
        cells.extend(lists.into_iter().map(|list| {
            list.map_or(Cell::Null, |(start, end)| {
                let count = usize::try_from(end - start).unwrap_or(usize::MAX);
                Cell::List(found.by_ref().take(count).collect())
            })
        }));
        Ok(())
    }
}
