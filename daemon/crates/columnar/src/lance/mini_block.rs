//! Pages of small values, in chunks that are read and unpacked as a whole. Values are kept in the index.

use std::collections::VecDeque;

use super::Trouble;
use super::layout::{Compression, MiniBlock};
use super::rows::{ChunkLevels, Item, RowBuilder};
use super::values::{Damaged, Form, MAX_VALUES, Values};
use crate::Cell;
use forebay_index::window::Window;

/// Buffers of a chunk, and chunks, begin at multiples of this many bytes.
const ALIGNMENT: usize = 8;

/// What the values of a page mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meaning {
    Values,
    /// Offsets and lengths of values in the file.
    Places,
}

/// The rest of a page.
#[derive(Debug)]
pub(super) struct MiniBlocks {
    layout: MiniBlock,
    meaning: Meaning,
    /// The sizes of the chunks that were not read.
    sizes: Vec<u8>,
    next_size: usize,
    /// The place of the next chunk.
    place: u64,
    /// The end of the chunks.
    end: u64,
    /// The values in the chunks that were not read.
    items: u64,
    dictionary: Option<Values>,
    rows: RowBuilder,
    ready: VecDeque<Cell>,
}

impl MiniBlocks {
    pub(super) fn open(
        layout: MiniBlock,
        meaning: Meaning,
        buffers: &[(u64, u64)],
        window: &mut Window<'_>,
    ) -> Result<Self, Trouble> {
        let [sizes, chunks, ..] = buffers else { return Err(Damaged.into()) };
        let sizes = window.get(sizes.0, sizes.1)?.to_vec();
        let dictionary = match (&layout.dictionary, buffers.get(2)) {
            (None, _) => None,
            (Some((compression, count)), Some((place, length))) => {
                let buffer = window.get(*place, *length)?;
                Some(Values::unpack(compression, &[buffer], *count, Form::Block)?)
            }
            (Some(_), None) => return Err(Damaged.into()),
        };
        Ok(Self {
            meaning,
            sizes,
            next_size: 0,
            place: chunks.0,
            end: chunks.0.checked_add(chunks.1).ok_or(Damaged)?,
            items: layout.items,
            dictionary,
            rows: RowBuilder::new(layout.levels),
            ready: VecDeque::new(),
            layout,
        })
    }

    /// The cell of the next row; `None`: there is none.
    pub(super) fn next(&mut self, window: &mut Window<'_>) -> Result<Option<Cell>, Trouble> {
        while self.ready.is_empty() {
            if self.next_size >= self.sizes.len() {
                let ready = &mut self.ready;
                self.rows.end(&mut |cell| ready.push_back(cell));
                break;
            }
            self.read_chunk(window)?;
        }
        Ok(self.ready.pop_front())
    }

    /// The memory that it uses.
    pub(super) fn held(&self) -> u64 {
        let dictionary = self.dictionary.as_ref().map_or(0, Values::held);
        dictionary.saturating_add(self.rows.held()).saturating_add(self.sizes.len() as u64)
    }

    /// The length and the number of values of the next chunk.
    fn next_chunk(&mut self) -> Result<(u64, u64), Damaged> {
        let size = if self.layout.is_large { 4 } else { 2 };
        let mut wide = [0; 8];
        let own = self.sizes.get(self.next_size..).and_then(|rest| rest.get(..size));
        wide[..size].copy_from_slice(own.ok_or(Damaged)?);
        self.next_size += size;
        let word = u64::from_le_bytes(wide);
        let is_last = self.next_size >= self.sizes.len();
        let count = if is_last { self.items } else { 1 << (word & 15) };
        self.items = self.items.checked_sub(count).ok_or(Damaged)?;
        if count > MAX_VALUES {
            return Err(Damaged);
        }
        Ok((((word >> 4) + 1) * ALIGNMENT as u64, count))
    }

    fn read_chunk(&mut self, window: &mut Window<'_>) -> Result<(), Trouble> {
        let (length, count) = self.next_chunk()?;
        let place = self.place;
        self.place = place.checked_add(length).filter(|end| *end <= self.end).ok_or(Damaged)?;
        let chunk = Chunk::parse(window.get(place, length)?, &self.layout)?;
        let of = |compression: &Option<Compression>, buffer| match compression {
            None => Ok(Vec::new()),
            Some(compression) => levels(compression, buffer, chunk.levels),
        };
        let levels = ChunkLevels {
            repetition: of(&self.layout.repetition, chunk.repetition)?,
            definition: of(&self.layout.definition, chunk.definition)?,
        };
        let values = Values::unpack(&self.layout.values, &chunk.values, count, Form::Chunk)?;
        let count = usize::try_from(count).map_err(|_| Damaged)?;
        let values = match &self.dictionary {
            None => values,
            Some(dictionary) if self.layout.levels.list.is_some() => {
                spelt_out(&values, dictionary, count)?
            }
            Some(_) => values,
        };
        let (dictionary, meaning) = (&self.dictionary, self.meaning);
        let cell = |item| match item {
            Item::Null => Ok(Cell::Null),
            Item::Value(number) if meaning == Meaning::Places => place_of(&values, number),
            Item::Value(number) => {
                let found = match dictionary {
                    None => values.get(number),
                    Some(dictionary) => entry(&values, dictionary, number),
                };
                found.map(Cell::number).ok_or(Damaged)
            }
        };
        let ready = &mut self.ready;
        self.rows.add(&levels, &values, count, cell, |cell| ready.push_back(cell))?;
        Ok(())
    }
}

/// The entry of a dictionary that a value names.
fn entry<'d>(values: &Values, dictionary: &'d Values, number: usize) -> Option<&'d [u8]> {
    dictionary.get(usize::try_from(values.number(number)?).ok()?)
}

/// The entries that values name, for lists of numbers.
fn spelt_out(values: &Values, dictionary: &Values, count: usize) -> Result<Values, Damaged> {
    let entries = (0..count).map(|number| entry(values, dictionary, number).ok_or(Damaged));
    Values::of(entries)
}

/// The place of a value in the file; a null has a level in place of an offset.
fn place_of(values: &Values, number: usize) -> Result<Cell, Damaged> {
    let pair = values.get(number).and_then(<[u8]>::first_chunk::<16>).ok_or(Damaged)?;
    let [offset, length] = [0, 8]
        .map(|start| pair[start..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes)));
    Ok(match (offset, length) {
        (0, 0) => Cell::Value(Vec::new()),
        (_, 0) => Cell::Null,
        _ => Cell::At { offset, length },
    })
}

/// Unpacks levels.
pub(super) fn levels(
    compression: &Compression,
    buffer: &[u8],
    count: u64,
) -> Result<Vec<u16>, Damaged> {
    let values = Values::unpack(compression, &[buffer], count, Form::Block)?;
    let count = usize::try_from(count).map_err(|_| Damaged)?;
    let level = |number| u16::try_from(values.number(number).ok_or(Damaged)?).map_err(|_| Damaged);
    (0..count).map(level).collect()
}

/// The parts of a chunk.
struct Chunk<'c> {
    levels: u64,
    repetition: &'c [u8],
    definition: &'c [u8],
    values: Vec<&'c [u8]>,
}

impl<'c> Chunk<'c> {
    /// Parses a chunk: the number of levels, the size of each buffer, and the buffers.
    fn parse(bytes: &'c [u8], layout: &MiniBlock) -> Result<Self, Damaged> {
        let mut at = 0;
        let mut number = |size: usize| -> Result<u64, Damaged> {
            let mut wide = [0; 8];
            wide[..size].copy_from_slice(bytes.get(at..at + size).ok_or(Damaged)?);
            at += size;
            Ok(u64::from_le_bytes(wide))
        };
        let levels = number(2)?;
        let repetition = layout.repetition.as_ref().map(|_| number(2)).transpose()?;
        let definition = layout.definition.as_ref().map(|_| number(2)).transpose()?;
        // A chunk has a few buffers: more would not fit.
        let buffers = usize::try_from(layout.buffers).ok().filter(|count| *count <= bytes.len());
        let size = if layout.is_large { 4 } else { 2 };
        let sizes: Result<Vec<_>, _> = (0..buffers.ok_or(Damaged)?).map(|_| number(size)).collect();
        let sizes = sizes?;
        let mut next = |size: Option<u64>| -> Result<&'c [u8], Damaged> {
            let Some(size) = size else { return Ok(&[][..]) };
            at = at.next_multiple_of(ALIGNMENT);
            let size = usize::try_from(size).map_err(|_| Damaged)?;
            let own = bytes.get(at..).and_then(|rest| rest.get(..size)).ok_or(Damaged)?;
            at += size;
            Ok(own)
        };
        let (repetition, definition) = (next(repetition)?, next(definition)?);
        let values: Result<Vec<_>, _> = sizes.into_iter().map(|size| next(Some(size))).collect();
        Ok(Self { levels, repetition, definition, values: values? })
    }
}
