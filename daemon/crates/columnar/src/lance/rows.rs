//! Builds the cells of rows from values and their levels.

use std::sync::Arc;

use super::layout::{Levels, List};
use super::values::{Damaged, Values};
use crate::Cell;

/// Why a column of lists is left out.
const LACKING: &str = "a list has an item without a value; write it without nulls";

/// A value of a row.
pub(super) enum Item {
    Null,
    /// The value with this number of the chunk.
    Value(usize),
}

/// The repetition and definition levels of a chunk; empty: all are 0.
#[derive(Debug, Default)]
pub(super) struct ChunkLevels {
    pub(super) repetition: Vec<u16>,
    pub(super) definition: Vec<u16>,
}

/// A list whose end is not known.
#[derive(Debug)]
enum Open {
    Null,
    Items(Vec<u8>),
    Lacking,
}

/// Builds rows; lists may be in several chunks.
#[derive(Debug)]
pub(super) struct RowBuilder {
    levels: Levels,
    open: Option<Open>,
}

impl RowBuilder {
    pub(super) const fn new(levels: Levels) -> Self {
        Self { levels, open: None }
    }

    /// Calls `visit` with the cells of the rows that end in a chunk of `count` values. `cell` makes a cell of a value.
    pub(super) fn add(
        &mut self,
        levels: &ChunkLevels,
        values: &Values,
        count: usize,
        cell: impl Fn(Item) -> Result<Cell, Damaged>,
        mut visit: impl FnMut(Cell),
    ) -> Result<(), Damaged> {
        let ChunkLevels { repetition, definition } = levels;
        let Some(list) = self.levels.list else {
            if !repetition.is_empty() || !definition.is_empty() && definition.len() != count {
                return Err(Damaged);
            }
            for number in 0..count {
                let is_null = definition.get(number).is_some_and(|level| *level > 0);
                visit(match is_null {
                    true => cell(Item::Null)?,
                    false if values.lacks(number) => Cell::Unread(Arc::from(LACKING)),
                    false => cell(Item::Value(number))?,
                });
            }
            return Ok(());
        };
        if !definition.is_empty() && definition.len() != repetition.len() {
            return Err(Damaged);
        }
        let mut next = 0;
        for (place, repeats) in repetition.iter().enumerate() {
            let level = definition.get(place).copied().unwrap_or(0);
            if *repeats > 0 {
                self.end(&mut visit);
            } else if self.open.is_none() {
                return Err(Damaged);
            }
            next += self.add_item(list, (level, *repeats > 0), values, next)?;
        }
        match next == count {
            true => Ok(()),
            false => Err(Damaged),
        }
    }

    /// Adds an item, or a list without items. Gives the number of its values.
    fn add_item(
        &mut self,
        list: List,
        (level, is_first): (u16, bool),
        values: &Values,
        next: usize,
    ) -> Result<usize, Damaged> {
        if level > self.levels.visible {
            self.open = match is_first {
                true if level == list.empty => Some(Open::Items(Vec::new())),
                true => Some(Open::Null),
                false => return Err(Damaged),
            };
            return Ok(0);
        }
        if is_first {
            self.open = Some(Open::Items(Vec::new()));
        }
        match &mut self.open {
            _ if level > 0 || values.lacks(next) => self.open = Some(Open::Lacking),
            Some(Open::Items(bytes)) => {
                bytes.extend_from_slice(values.get(next).ok_or(Damaged)?);
            }
            Some(Open::Lacking) => {}
            Some(Open::Null) | None => return Err(Damaged),
        }
        Ok(1)
    }

    /// Ends the last list of a page.
    pub(super) fn end(&mut self, visit: &mut impl FnMut(Cell)) {
        match self.open.take() {
            None => {}
            Some(Open::Null) => visit(Cell::Null),
            Some(Open::Items(bytes)) => visit(Cell::Value(bytes)),
            Some(Open::Lacking) => visit(Cell::Unread(Arc::from(LACKING))),
        }
    }

    /// The memory of a list whose end is not known.
    pub(super) fn held(&self) -> u64 {
        match &self.open {
            Some(Open::Items(bytes)) => bytes.len() as u64,
            _ => 0,
        }
    }
}
