//! Lists of numbers, as a cell per row.
//!
//! A page has a level of repetition and one of definition for each number, empty list and null. A row begins where the
//! repetition is 0. In pages of version 1 it may go on in the next page. The numbers of a row lie in a page as an array has
//! them, if the page is plain: then they stay in the file, or in the compressed page if they are many. Others are kept
//! in the index, and so are rows on several pages.

use super::pages::{KEPT_VALUE_BYTES, Levels, PLAIN, Page, Pages, REWRITE, Source};
use super::runs::Runs;
use super::schema::FIXED;
use crate::{Cell, dtype};
use forebay_dataset::error::DatasetError;
use forebay_index::window::MAX_PART_BYTES;

/// The maximum number of levels of a page, which are held in memory together.
pub(super) const MAX_PAGE_LEVELS: u64 = 1 << 24;

/// The numbers of a page.
struct Elements {
    source: Source,
    /// The length of each.
    width: usize,
}

/// The last row of a page, which may go on in the next one.
struct Open {
    cell: Cell,
    /// The bytes of a cell that is a part of a compressed page.
    bytes: Vec<u8>,
}

/// Counts the elements of inner lists.
struct Counts<'l> {
    sizes: &'l [Option<u64>],
    /// By list, from the outermost on: the elements of the current one.
    counts: Vec<u64>,
}

impl Counts<'_> {
    /// Begins an element of the list number `list`, or a row with an element for 0. False: an inner list that ends here has
    /// not its length.
    fn begin(&mut self, list: usize) -> bool {
        let is_sound = self.end(list);
        if let Some(count) = list.checked_sub(1).and_then(|list| self.counts.get_mut(list)) {
            *count += 1;
        }
        self.counts.iter_mut().skip(list).for_each(|count| *count = 1);
        is_sound
    }

    /// Ends the lists from number `list` on, without the outermost, whose length the array's form checks.
    fn end(&self, list: usize) -> bool {
        let mut inner = self.sizes.iter().zip(&self.counts).skip(list.max(1));
        inner.all(|(size, count)| *count == 0 || size.is_none_or(|size| size == *count))
    }

    fn clear(&mut self) {
        self.counts.fill(0);
    }
}

impl Pages<'_, '_> {
    /// Reads the lists of a row group.
    pub(super) fn read_lists(&mut self, rows: u64) -> Result<Runs, DatasetError> {
        let mut cells = Runs::new(self.room);
        let mut cursor = self.cursor()?;
        let sizes: Vec<_> = self.leaf.lists.iter().map(|list| list.size).collect();
        let mut counts = Counts { sizes: &sizes, counts: vec![0; sizes.len()] };
        let (mut open, mut left) = (None, self.chunk.values);
        while left > 0 {
            let page = self.next_page(&mut cursor)?;
            left = self.check_count(&page, left)?;
            let (levels, source) = self.levels(&page)?;
            let highest = u8::try_from(self.leaf.level).unwrap_or(u8::MAX);
            let there = levels.definition.iter().filter(|level| **level == highest).count();
            let elements = match self.plain_elements(&page, source, there)? {
                Ok(elements) => elements,
                Err(source) => {
                    let values = self.page_values(&page, &cursor, &source, there)?;
                    self.decoded(values)?
                }
            };
            self.rows_of_page(&levels, &elements, (&mut open, &mut counts), rows, &mut cells)?;
        }
        if !counts.end(0) {
            return Err(self.wrong_length());
        }
        if let Some(Open { cell, .. }) = open {
            cells.push(cell, 1).map_err(|full| self.full(full))?;
        }
        match cells.rows() == rows {
            true => Ok(cells),
            false => Err(self
                .fault(format!("its lists are {} rows, and its group has {rows}", cells.rows()))),
        }
    }

    /// Subtracts the values of a page from those that are left.
    pub(super) fn check_count(&mut self, page: &Page, left: u64) -> Result<u64, DatasetError> {
        let count = page.header.values;
        if count > MAX_PAGE_LEVELS {
            return Err(self.not_read(format!(
                "a page of it has {count} values, and at most {MAX_PAGE_LEVELS} are read; write it with data_page_size=1048576"
            )));
        }
        left.checked_sub(count).ok_or_else(|| {
            self.fault(format!("a page has {count} values, and {left} of its group are left"))
        })
    }

    fn wrong_length(&mut self) -> DatasetError {
        self.not_read(
            "lists in its lists have not the length that the file's schema says; write it as one list".to_owned(),
        )
    }

    /// The type of the numbers.
    fn element_name(&self) -> &str {
        self.leaf.column.column.encoding.element().unwrap_or_default()
    }

    /// The numbers of a page as they lie there, if they lie as an array has them; otherwise its source.
    fn plain_elements(
        &mut self,
        page: &Page,
        source: Source,
        there: usize,
    ) -> Result<Result<Elements, Source>, DatasetError> {
        let width = match self.leaf.stored {
            1 | 4 => 4,
            2 | 5 => 8,
            FIXED => self.leaf.length,
            _ => 0,
        };
        let is_whole = dtype(self.element_name()).is_some_and(|dtype| dtype.size_bytes() == width);
        if page.header.encoding != PLAIN || !is_whole {
            return Ok(Err(source));
        }
        let length = match &source {
            Source::File(start, end) => end - start,
            Source::Memory(bytes, _) => bytes.len() as u64,
        };
        if width.checked_mul(there as u64).is_none_or(|all| all > length) {
            return Err(self.cut_off());
        }
        let width = usize::try_from(width).unwrap_or(0);
        Ok(Ok(Elements { source, width }))
    }

    /// The numbers in memory, one after the other, in the width of their type.
    fn decoded(&mut self, values: Runs) -> Result<Elements, DatasetError> {
        let name = self.element_name().to_owned();
        let width = dtype(&name).map_or(0, |dtype| dtype.size_bytes());
        let width = usize::try_from(width).unwrap_or(0);
        let is_signed = name.starts_with("int");
        let count = usize::try_from(values.rows()).unwrap_or(usize::MAX);
        // Counted when the levels were read.
        let mut all = Vec::with_capacity(count.min(1 << 24).saturating_mul(width));
        let mut values = values.into_rows();
        while let Some((cell, times)) = values.take(u32::MAX) {
            let Cell::Number { bytes, length } = cell else { return Err(self.cut_off()) };
            let (value, rest) = bytes.split_at(width.min(8));
            let fill = match value.last() {
                Some(last) if is_signed && last >> 7 == 1 => 0xff,
                _ => 0,
            };
            let dropped = rest.get(..usize::from(length).saturating_sub(width)).unwrap_or_default();
            if usize::from(length) < width || dropped.iter().any(|byte| *byte != fill) {
                return Err(self.fault(format!("a number does not fit into the type {name}")));
            }
            (0..times).for_each(|_| all.extend_from_slice(value));
        }
        Ok(Elements { source: Source::Memory(all, None), width })
    }

    /// Appends the rows that begin in a page, but for the last, and completes the one before.
    fn rows_of_page(
        &mut self,
        Levels { repetition, definition }: &Levels,
        elements: &Elements,
        (open, counts): (&mut Option<Open>, &mut Counts<'_>),
        rows: u64,
        cells: &mut Runs,
    ) -> Result<(), DatasetError> {
        let narrow = |level: u32| u8::try_from(level).unwrap_or(u8::MAX);
        let empty = narrow(self.leaf.lists.first().map_or(0, |list| list.level));
        let highest = narrow(self.leaf.level);
        // The first element of the current row, and the one behind it.
        let (mut first, mut at) = (0, 0);
        // Whether the row began here, and is null.
        let (mut is_here, mut is_null) = (false, false);
        for (repetition, definition) in repetition.iter().zip(definition) {
            let is_there = *definition == highest;
            if *repetition == 0 {
                if is_here {
                    let cell = self.cell_of(elements, (first, at), is_null)?;
                    cells.push(cell, 1).map_err(|full| self.full(full))?;
                } else if let Some(before) = open.take() {
                    let cell = self.continued(before, elements, at)?;
                    cells.push(cell, 1).map_err(|full| self.full(full))?;
                }
                (first, is_here, is_null) = (at, true, *definition < empty);
                if cells.rows() >= rows {
                    return Err(self.fault(format!("its lists are more than {rows} rows")));
                }
                if !counts.end(0) {
                    return Err(self.wrong_length());
                }
                if *definition <= empty {
                    counts.clear();
                    continue;
                }
                counts.begin(0);
            } else {
                if !is_here && open.is_none() {
                    return Err(self.fault("its first list has no beginning".to_owned()));
                }
                let goes_on = counts.counts.first().is_some_and(|count| *count > 0);
                if !goes_on {
                    return Err(self.fault("a list is null or empty and goes on".to_owned()));
                }
                if is_there && !counts.begin((*repetition).into()) {
                    return Err(self.wrong_length());
                }
            }
            if !is_there {
                let of = self.element_name();
                return Err(self.not_read(format!(
                    "it is a list of {of} in which elements are null, or lists in it are empty, and arrays have none; fill or \
                     drop them"
                )));
            }
            at += 1;
        }
        if is_here {
            let cell = self.cell_of(elements, (first, at), is_null)?;
            let bytes = match (&cell, &elements.source) {
                (Cell::Packed(_), Source::Memory(bytes, _)) => {
                    bytes[first * elements.width..at * elements.width].to_vec()
                }
                _ => Vec::new(),
            };
            *open = Some(Open { cell, bytes });
        } else if let Some(before) = open.take() {
            // A page without values leaves the row as it is, with the bytes of its beginning.
            *open = Some(match at {
                0 => before,
                _ => Open { cell: self.continued(before, elements, at)?, bytes: Vec::new() },
            });
        }
        Ok(())
    }

    /// The cell of a row of these elements.
    fn cell_of(
        &mut self,
        Elements { source, width }: &Elements,
        (first, end): (usize, usize),
        is_null: bool,
    ) -> Result<Cell, DatasetError> {
        if is_null {
            return Ok(Cell::Null);
        }
        let (from, length) = (first * width, (end - first) * width);
        Ok(match source {
            Source::File(start, _) if length > 0 => {
                Cell::At { offset: start + from as u64, length: length as u64 }
            }
            Source::Memory(_, Some(place)) if length > KEPT_VALUE_BYTES => place.cell(from, length),
            Source::Memory(bytes, _) => {
                self.check_kept(length as u64)?;
                self.keep(length as u64 + 4)?;
                Cell::Value(bytes[from..from + length].to_vec())
            }
            Source::File(..) => Cell::Value(Vec::new()),
        })
    }

    /// Refuses a list that is too long to be kept in the index.
    fn check_kept(&mut self, bytes: u64) -> Result<(), DatasetError> {
        match bytes > MAX_PART_BYTES {
            true => Err(self.not_read(format!(
                "a list of it has {bytes} bytes, and of its pages at most {MAX_PART_BYTES} are read at once; {REWRITE}"
            ))),
            false => Ok(()),
        }
    }

    /// The cell of a row with `more` elements at the start of another page.
    fn continued(
        &mut self,
        Open { cell, bytes }: Open,
        Elements { source, width }: &Elements,
        more: usize,
    ) -> Result<Cell, DatasetError> {
        if more == 0 {
            return Ok(cell);
        }
        let length = more * width;
        let before = match &cell {
            Cell::At { length, .. } => *length,
            Cell::Value(value) => value.len() as u64,
            _ => bytes.len() as u64,
        };
        self.check_kept(before.saturating_add(length as u64))?;
        let mut all = match cell {
            Cell::At { offset, length } => {
                self.keep(length + 4)?;
                self.window.get(offset, length)?.to_vec()
            }
            Cell::Value(value) => value,
            _ => {
                self.keep(bytes.len() as u64 + 4)?;
                bytes
            }
        };
        self.keep(length as u64)?;
        all.extend(self.bytes(source, 0, length as u64)?);
        Ok(Cell::Value(all))
    }
}

#[test]
fn inner_lists_have_the_length_of_the_schema() {
    let sizes = [None, Some(2), Some(3)];
    let check = |repetitions: &[usize]| {
        let mut counts = Counts { sizes: &sizes, counts: vec![0; 3] };
        let begun: Vec<bool> = repetitions.iter().map(|list| counts.begin(*list)).collect();
        counts.end(0) && !begun.contains(&false)
    };
    assert!(check(&[]));
    let row = [0, 3, 3, 2, 3, 3];
    assert!(check(&row));
    let next = [1, 3, 3, 2, 3, 3];
    assert!(check(&[&row[..], &next, &row].concat()));
    for cut in [1, 2, 3, 4, 5] {
        assert!(!check(&row[..cut]) && !check(&[&row[..cut], &next].concat()), "{cut}");
    }
    assert!(!check(&[&row[..], &[3]].concat()) && !check(&[&row[..], &[2, 3, 3]].concat()));
}
