//! The elements of a Parquet file's schema: columns and groups, each group before its members.

use super::footer::size;
use super::thrift::{Broken, Reader, STRUCT};
use super::times;
use crate::NameSizes;
use crate::arrow::TimeUnit;

/// The converted and the logical types of a list and of a map.
const LISTS: (i64, i64) = (3, 3);
const MAPS: ([i64; 2], i64) = ([1, 2], 2);
/// The repetition of elements that a list has any number of.
const REPEATED: i64 = 2;

/// A column of the schema, or a group of columns.
#[derive(Debug, Default)]
pub(super) struct Element<'a> {
    pub(super) stored: i64,
    pub(super) length: u64,
    repetition: i64,
    pub(super) name: &'a str,
    pub(super) children: usize,
    pub(super) converted: Option<i64>,
    pub(super) logical: i64,
    /// The unit of a logical type.
    pub(super) unit: Option<TimeUnit>,
}

impl Element<'_> {
    pub(super) fn is_list(&self) -> bool {
        self.children > 0 && (self.converted == Some(LISTS.0) || self.logical == LISTS.1)
    }

    pub(super) fn is_map(&self) -> bool {
        let is_converted = self.converted.is_some_and(|number| MAPS.0.contains(&number));
        self.children > 0 && (is_converted || self.logical == MAPS.1)
    }

    pub(super) fn is_repeated(&self) -> bool {
        self.repetition == REPEATED
    }

    /// Whether it adds a definition level.
    pub(super) fn has_level(&self) -> bool {
        self.repetition > 0
    }
}

pub(super) fn element<'a>(reader: &mut Reader<'a>) -> Result<Element<'a>, Broken> {
    let mut element = Element { stored: -1, ..Element::default() };
    reader.fields(|number, _, reader| {
        match number {
            1 => element.stored = reader.integer()?,
            2 => element.length = size(reader)?,
            3 => element.repetition = reader.integer()?,
            4 => element.name = reader.text()?,
            5 => element.children = usize::try_from(size(reader)?).map_err(|_| Broken)?,
            6 => element.converted = Some(reader.integer()?),
            // A union, with one field set.
            10 => reader.fields(|number, kind, reader| {
                element.logical = number;
                if kind != STRUCT {
                    return Ok(false);
                }
                element.unit = times::logical_unit(number, reader)?;
                Ok(true)
            })?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok(element)
}

/// Checks the lengths of the columns' names. A truncated schema is checked up to its end.
pub(super) fn check_names(schema: &[Element<'_>]) -> Result<(), String> {
    let mut sizes = NameSizes::default();
    // For each enclosing group: the length of its name, and the number of its remaining elements.
    let mut above: Vec<(u64, usize)> = Vec::new();
    for element in schema.iter().skip(1) {
        while above.pop_if(|(_, left)| *left == 0).is_some() {}
        let around = above.last_mut().map_or(0, |(bytes, left)| {
            *left -= 1;
            *bytes
        });
        let bytes = NameSizes::below(around, element.name);
        match element.children {
            0 => sizes.add(bytes)?,
            children => above.push((bytes, children)),
        }
    }
    sizes.check()
}
