//! Structs, and lists of anything, as JSON.
//!
//! Each value in them is a separate stored column, with levels that say where a list goes on and what is null. A row is
//! put together from all of them, page by page: of each column one page is in memory.

use std::collections::BTreeMap;

use super::footer::{Chunk, Group};
use super::lists::MAX_PAGE_LEVELS;
use super::pages::{Cursor, Pages, Source};
use super::runs::{Rows, Runs};
use super::schema::{JsonColumn, Leaf, Node, NodeKind};
use crate::{Cell, Encoding, json};
use forebay_dataset::error::DatasetError;
use forebay_index::window::Window;

/// A stored column, and the page that is read of it.
struct Stored<'a> {
    leaf: &'a Leaf,
    chunk: &'a Chunk,
    /// `None`: it is not begun.
    cursor: Option<Cursor>,
    /// The number of values behind the page.
    left: u64,
    /// The levels of the page, and the next one.
    repetition: Vec<u8>,
    definition: Vec<u8>,
    at: usize,
    values: Option<Rows>,
    /// What the page took of the budget.
    kept: u64,
}

/// Puts the rows of a column together.
pub(super) struct Nested<'a, 'f> {
    column: &'a JsonColumn,
    stored: Vec<Stored<'a>>,
    window: &'a mut Window<'f>,
    values: &'a mut Window<'f>,
    budget: &'a mut u64,
    room: usize,
    /// The reason why its values are not supported; unset if they are damaged.
    unread: Option<String>,
    text: Vec<u8>,
}

impl<'a, 'f> Nested<'a, 'f> {
    pub(super) fn new(
        column: &'a JsonColumn,
        (leaves, group): (&'a BTreeMap<usize, Leaf>, &'a Group),
        (window, values): (&'a mut Window<'f>, &'a mut Window<'f>),
        budget: &'a mut u64,
        room: usize,
    ) -> Self {
        let stored = leaves.range(column.node.stored.clone()).filter_map(|(place, leaf)| {
            let chunk = group.chunks.get(*place)?;
            let (repetition, definition) = (Vec::new(), Vec::new());
            let (cursor, left, values) = (None, chunk.values, None);
            Some(Stored {
                leaf,
                chunk,
                cursor,
                left,
                repetition,
                definition,
                at: 0,
                values,
                kept: 0,
            })
        });
        let stored = stored.collect();
        Self { column, stored, window, values, budget, room, unread: None, text: Vec::new() }
    }

    /// Reads the values of a row group.
    ///
    /// # Errors
    /// A page is damaged, or the storage fails.
    pub(super) fn read(mut self, rows: u64) -> Result<Runs, DatasetError> {
        let alike = |cell: Cell, room: usize| {
            let mut cells = Runs::new(room.max(1));
            let added = cells.push(cell, u32::try_from(rows).unwrap_or(u32::MAX));
            added.map(|()| cells)
        };
        let alike = |nested: &Self, cell| {
            alike(cell, nested.room).map_err(|_| nested.fault("it has too many rows"))
        };
        if matches!(self.column.column.column.encoding, Encoding::Unread(_)) {
            return alike(&self, Cell::Null);
        }
        let budget = *self.budget;
        match (self.read_rows(rows), self.unread.take()) {
            (Err(_), Some(reason)) => {
                *self.budget = budget;
                alike(&self, Cell::Unread(reason.into()))
            }
            (read, _) => {
                // The pages are no longer held.
                *self.budget += self.stored.iter().map(|stored| stored.kept).sum::<u64>();
                read
            }
        }
    }

    fn fault(&self, reason: &str) -> DatasetError {
        let name = &self.column.column.column.name;
        self.window.file.fault(format!("column {name}: {reason}"))
    }

    fn disagree(&self) -> DatasetError {
        self.fault("the columns in it do not have the same lists and structs: it is damaged")
    }

    fn read_rows(&mut self, rows: u64) -> Result<Runs, DatasetError> {
        let mut cells = Runs::new(self.room);
        let node = &self.column.node;
        for row in 0..rows {
            for place in node.stored.clone() {
                match self.head(place)? {
                    Some((0, _)) => {}
                    Some(_) => return Err(self.disagree()),
                    None => {
                        return Err(self.fault(&format!(
                            "its lists are {row} rows, and its group has {rows}"
                        )));
                    }
                }
            }
            let cell = match self.reaches(node, node.level)? {
                false => {
                    self.skip(node)?;
                    Cell::Null
                }
                true => {
                    self.text.clear();
                    self.write_there(node)?;
                    self.check_length(0)?;
                    let bytes = self.text.len() as u64 + 4;
                    let left = self.budget.checked_sub(bytes).ok_or_else(|| {
                        self.fault(
                            "its JSON is too long to be kept in the index; leave it out of dataset.fields, or write it into \
                             several files",
                        )
                    })?;
                    *self.budget = left;
                    Cell::Value(self.text.clone())
                }
            };
            cells.push(cell, 1).map_err(|_| {
                self.fault("a group has too many rows; write it with row_group_size=100000")
            })?;
        }
        for place in node.stored.clone() {
            if self.head(place)?.is_some() {
                return Err(self.fault(&format!("its lists are more than {rows} rows")));
            }
        }
        Ok(cells)
    }

    fn at(&mut self, place: usize) -> Result<&mut Stored<'a>, DatasetError> {
        let number = place.wrapping_sub(self.column.node.stored.start);
        if number >= self.stored.len() {
            return Err(self.disagree());
        }
        Ok(&mut self.stored[number])
    }

    /// The levels of the next value of a stored column. `None`: it has no more.
    fn head(&mut self, place: usize) -> Result<Option<(u32, u32)>, DatasetError> {
        loop {
            let stored = self.at(place)?;
            if let Some(definition) = stored.definition.get(stored.at) {
                let repetition = stored.repetition.get(stored.at).copied().unwrap_or(0);
                return Ok(Some((repetition.into(), (*definition).into())));
            }
            if stored.left == 0 {
                return Ok(None);
            }
            self.load(place)?;
        }
    }

    /// Reads the next page of a stored column.
    fn load(&mut self, place: usize) -> Result<(), DatasetError> {
        let stored = self.at(place)?;
        let (leaf, chunk, left) = (stored.leaf, stored.chunk, stored.left);
        let kept = std::mem::take(&mut stored.kept);
        let cursor = stored.cursor.take();
        let own = cursor.as_ref().map_or(0, Cursor::held);
        (stored.repetition, stored.definition, stored.values) = (Vec::new(), Vec::new(), None);
        *self.budget += kept;
        let held: usize = self.stored.iter().map(|stored| stored.definition.len()).sum();
        // Each column keeps the dictionary of its chunk to the end of the chunk.
        let others = self.stored.iter().filter_map(|stored| stored.cursor.as_ref());
        let dictionaries = others.map(Cursor::held).sum::<usize>() + own;
        let room = self.room.saturating_sub(held).saturating_sub(dictionaries);
        let before = *self.budget;
        let (window, values, budget) = (&mut *self.window, &mut *self.values, &mut *self.budget);
        let mut pages = Pages { leaf, chunk, window, values, budget, room, unread: None };
        let read = read_page(&mut pages, cursor, left);
        self.unread = pages.unread.take();
        let Loaded { cursor, left, levels, values } = read?;
        let kept = before - *self.budget;
        let stored = self.at(place)?;
        (stored.repetition, stored.definition) = (levels.repetition, levels.definition);
        (stored.cursor, stored.left, stored.at) = (Some(cursor), left, 0);
        (stored.values, stored.kept) = (Some(values.into_rows()), kept);
        if held + stored.definition.len() > usize::try_from(MAX_PAGE_LEVELS).unwrap_or(usize::MAX) {
            let reason = format!(
                "pages of its columns have more than {MAX_PAGE_LEVELS} values together; write it with data_page_size=1048576"
            );
            self.unread = Some(reason.clone());
            return Err(self.fault(&reason));
        }
        Ok(())
    }

    /// Whether the next value of all columns in a node reaches a definition level.
    fn reaches(&mut self, node: &Node, level: u32) -> Result<bool, DatasetError> {
        let mut all = None;
        for place in node.stored.clone() {
            let (_, definition) = self.head(place)?.ok_or_else(|| self.disagree())?;
            let reaches = definition >= level;
            if *all.get_or_insert(reaches) != reaches {
                return Err(self.disagree());
            }
        }
        Ok(all == Some(true))
    }

    /// Passes a null, or an empty list, in all columns of a node.
    fn skip(&mut self, node: &Node) -> Result<(), DatasetError> {
        for place in node.stored.clone() {
            self.at(place)?.at += 1;
        }
        Ok(())
    }

    /// Refuses a row whose JSON has `more` bytes than it may have, or more.
    fn check_length(&self, more: usize) -> Result<(), DatasetError> {
        match self.text.len().saturating_add(more) > json::MAX_BYTES {
            true => Err(self.fault(&format!(
                "a row has more than {} bytes as JSON, which are not read",
                json::MAX_BYTES
            ))),
            false => Ok(()),
        }
    }

    /// Writes a value, or null.
    fn write(&mut self, node: &Node) -> Result<(), DatasetError> {
        self.check_length(0)?;
        if self.reaches(node, node.level)? {
            return self.write_there(node);
        }
        self.text.extend_from_slice(b"null");
        self.skip(node)
    }

    /// Writes a value that is not null.
    fn write_there(&mut self, node: &Node) -> Result<(), DatasetError> {
        match &node.kind {
            NodeKind::Value => self.write_value(node.stored.start),
            NodeKind::Struct(fields) => {
                self.text.push(b'{');
                for (number, field) in fields.iter().enumerate() {
                    json::write_key(&mut self.text, &field.name, number == 0);
                    self.write(field)?;
                }
                self.text.push(b'}');
                Ok(())
            }
            NodeKind::List { repetition, element } => {
                self.text.push(b'[');
                if self.reaches(node, node.level + 1)? {
                    self.write(element)?;
                    while self.goes_on(node, *repetition)? {
                        self.text.push(b',');
                        self.write(element)?;
                    }
                } else {
                    self.skip(node)?;
                }
                self.text.push(b']');
                Ok(())
            }
        }
    }

    /// Whether a list has another element.
    fn goes_on(&mut self, node: &Node, repetition: u32) -> Result<bool, DatasetError> {
        let mut all = None;
        for place in node.stored.clone() {
            let goes_on = self.head(place)?.is_some_and(|(next, _)| next == repetition);
            if *all.get_or_insert(goes_on) != goes_on {
                return Err(self.disagree());
            }
        }
        Ok(all == Some(true))
    }

    fn write_value(&mut self, place: usize) -> Result<(), DatasetError> {
        let stored = self.at(place)?;
        stored.at += 1;
        let leaf = stored.leaf;
        let cell = stored.values.as_mut().and_then(|values| values.take(1));
        let is_written = match (&cell, &leaf.column.column.encoding) {
            (Some((Cell::Number { bytes, length }, _)), Encoding::Number(name)) => {
                let bytes = &bytes[..usize::from(*length).min(8)];
                json::write_number(&mut self.text, name, bytes)
            }
            (Some((Cell::Value(text), _)), _) => {
                self.check_length(text.len())?;
                json::write_text(&mut self.text, text);
                true
            }
            _ => false,
        };
        match is_written {
            true => Ok(()),
            false => Err(self.fault("a page ends before its values do")),
        }
    }
}

/// A page of a stored column.
struct Loaded {
    cursor: Cursor,
    left: u64,
    levels: super::pages::Levels,
    values: Runs,
}

/// Reads a page with all of its values.
fn read_page(
    pages: &mut Pages<'_, '_>,
    cursor: Option<Cursor>,
    left: u64,
) -> Result<Loaded, DatasetError> {
    let mut cursor = match cursor {
        Some(cursor) => cursor,
        None => pages.cursor()?,
    };
    let page = pages.next_page(&mut cursor)?;
    let left = pages.check_count(&page, left)?;
    let (levels, source) = pages.levels(&page)?;
    let highest = u8::try_from(pages.leaf.level).unwrap_or(u8::MAX);
    let there = levels.definition.iter().filter(|level| **level == highest).count();
    // Texts are written as JSON, so none stays in the file.
    let source = match source {
        Source::File(..) => Source::Memory(pages.bytes(&source, 0, u64::MAX)?, None),
        held => held,
    };
    let values = pages.page_values(&page, &cursor, &source, there)?;
    if left == 0 {
        cursor.dictionary = None;
    }
    Ok(Loaded { cursor, left, levels, values })
}
