//! Run-length encoded values of rows. A column with one value takes a few bytes of a file for any number of rows, so
//! memory must not depend on the rows.

use crate::Cell;

/// The limit on values in memory is exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Full;

#[derive(Debug)]
pub(super) struct Runs {
    cells: Vec<Cell>,
    /// For runs of several rows: the cell's index and the number of rows.
    counts: Vec<(usize, u32)>,
    /// The maximum number of cells.
    most: usize,
    /// Whether equal neighbours are merged.
    merges: bool,
    rows: u64,
}

impl Runs {
    pub(super) const fn new(most: usize) -> Self {
        Self { cells: Vec::new(), counts: Vec::new(), most, merges: true, rows: 0 }
    }

    /// For values of a dictionary, which are found by index: equal neighbours are not merged.
    pub(super) fn apart(most: usize) -> Self {
        Self { merges: false, ..Self::new(most) }
    }

    /// A value of a dictionary.
    pub(super) fn get(&self, place: u32) -> Option<&Cell> {
        self.cells.get(usize::try_from(place).ok()?)
    }

    pub(super) const fn rows(&self) -> u64 {
        self.rows
    }

    /// The number of cells in memory.
    pub(super) const fn held(&self) -> usize {
        self.cells.len()
    }

    /// Appends a value of `rows` rows, and copies it unless it equals the last one.
    ///
    /// # Errors
    /// The limit is exceeded.
    pub(super) fn repeat(&mut self, cell: &Cell, rows: u32) -> Result<(), Full> {
        match self.grow(cell, rows) {
            true => Ok(()),
            false => self.add(cell.clone(), rows),
        }
    }

    /// Appends a value of `rows` rows.
    ///
    /// # Errors
    /// The limit is exceeded.
    pub(super) fn push(&mut self, cell: Cell, rows: u32) -> Result<(), Full> {
        match self.grow(&cell, rows) {
            true => Ok(()),
            false => self.add(cell, rows),
        }
    }

    /// Changes each value in place.
    ///
    /// # Errors
    /// Errors of `change`.
    pub(super) fn change<E>(
        &mut self,
        change: impl FnMut(&mut Cell) -> Result<(), E>,
    ) -> Result<(), E> {
        self.cells.iter_mut().try_for_each(change)
    }

    /// Extends the last run if the value is equal. False: the value differs.
    fn grow(&mut self, cell: &Cell, rows: u32) -> bool {
        if !self.merges || self.cells.last() != Some(cell) {
            return false;
        }
        self.rows += u64::from(rows);
        let place = self.cells.len() - 1;
        match self.counts.last_mut() {
            // A group has far fewer rows than `u32::MAX`.
            Some((last, count)) if *last == place => *count = count.saturating_add(rows),
            _ => self.counts.push((place, rows.saturating_add(1))),
        }
        true
    }

    fn add(&mut self, cell: Cell, rows: u32) -> Result<(), Full> {
        if self.cells.len() >= self.most {
            return Err(Full);
        }
        self.rows += u64::from(rows);
        if rows > 1 {
            self.counts.push((self.cells.len(), rows));
        }
        self.cells.push(cell);
        Ok(())
    }

    pub(super) fn into_rows(self) -> Rows {
        let counts = self.counts.into_iter().peekable();
        Rows { cells: self.cells.into_iter().enumerate(), counts, current: None }
    }
}

/// Iterates over the values.
#[derive(Debug)]
pub(super) struct Rows {
    cells: std::iter::Enumerate<std::vec::IntoIter<Cell>>,
    counts: std::iter::Peekable<std::vec::IntoIter<(usize, u32)>>,
    current: Option<(Cell, u32)>,
}

impl Rows {
    fn next_run(&mut self) -> Option<(Cell, u32)> {
        let (place, cell) = self.cells.next()?;
        let count = self.counts.next_if(|(of, _)| *of == place);
        Some((cell, count.map_or(1, |(_, count)| count)))
    }

    /// The value of the next rows, and how many have it, at most `most`.
    pub(super) fn take(&mut self, most: u32) -> Option<(Cell, u32)> {
        let (cell, rows) = self.current.take().or_else(|| self.next_run())?;
        match rows.checked_sub(most).filter(|left| *left > 0) {
            None => Some((cell, rows)),
            Some(left) => {
                self.current = Some((cell.clone(), left));
                Some((cell, most))
            }
        }
    }
}

#[test]
fn equal_neighbours_are_merged_and_expanded_unchanged() {
    let text = |text: &str| Cell::Value(text.as_bytes().to_vec());
    let mut runs = Runs::new(3);
    for cell in [text("a"), text("a"), Cell::Null] {
        runs.push(cell, 1).unwrap();
    }
    runs.repeat(&Cell::Null, 5).unwrap();
    runs.push(Cell::number(&[1]), 1).unwrap();
    assert_eq!((runs.rows(), runs.held()), (9, 3));
    assert_eq!(runs.push(text("b"), 1), Err(Full));
    assert_eq!(runs.repeat(&Cell::Null, 1), Err(Full));
    let mut rows = runs.into_rows();
    assert_eq!(rows.take(1), Some((text("a"), 1)));
    assert_eq!(rows.take(7), Some((text("a"), 1)));
    assert_eq!(rows.take(4), Some((Cell::Null, 4)));
    assert_eq!(rows.take(9), Some((Cell::Null, 2)));
    assert_eq!(rows.take(9), Some((Cell::number(&[1]), 1)));
    assert_eq!(rows.take(1), None);
}
