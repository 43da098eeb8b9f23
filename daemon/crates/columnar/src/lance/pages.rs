//! Walks the pages of a column, and gives the cell of each row.

use std::sync::Arc;

use super::Trouble;
use super::full_zip::FullZips;
use super::layout::{Constant, Layout, Refusal};
use super::mini_block::{Meaning, MiniBlocks, levels};
use super::rows::{ChunkLevels, Item, RowBuilder};
use super::values::{Damaged, MAX_VALUES, Values};
use crate::protobuf::{Part, append_integers, parts};
use crate::{Cell, Reads};
use forebay_dataset::error::DatasetError;
use forebay_index::window::{Bytes, Window, WindowSize};

/// The read size for what precedes a value in a local file.
const HEAD_BYTES: u64 = 16;
/// The maximum buffers of a page.
const MAX_BUFFERS: usize = 16;
/// Constants of more bytes are read from the file.
const MAX_KEPT_CONSTANT: usize = 64;

/// A column of a file.
pub(super) struct Column<'f> {
    /// The descriptions of its pages that were not read.
    rest: Vec<u8>,
    next: usize,
    window: Window<'f>,
    /// For a few bytes before each value.
    alone: Window<'f>,
    page: Page,
    /// The rows of the page that were not read.
    rows: u64,
}

enum Page {
    MiniBlocks(Box<MiniBlocks>),
    FullZips(Box<FullZips>),
    /// The same cell in each row.
    Same(Cell),
    /// The cells of all rows.
    Cells(std::vec::IntoIter<Cell>),
}

/// A page's description.
#[derive(Default)]
struct Described<'d> {
    places: Vec<u64>,
    sizes: Vec<u64>,
    rows: u64,
    layout: &'d [u8],
}

impl<'f> Column<'f> {
    /// `described`: the place of the column's description, and its bytes.
    pub(super) fn open(
        file: &'f dyn Bytes,
        described: (u64, u64),
        Reads { piece, is_local }: Reads,
    ) -> Result<Self, DatasetError> {
        let mut window = Window::new(file, WindowSize::fixed(piece));
        let rest = window.get(described.0, described.1)?.to_vec();
        let head = if is_local { HEAD_BYTES } else { piece };
        let alone = Window::new(file, WindowSize::fixed(head));
        Ok(Self {
            rest,
            next: 0,
            window,
            alone,
            page: Page::Cells(Vec::new().into_iter()),
            rows: 0,
        })
    }

    /// The cell of the next row.
    pub(super) fn next(&mut self) -> Result<Cell, Trouble> {
        while self.rows == 0 {
            self.open_page()?;
        }
        self.rows -= 1;
        let cell = match &mut self.page {
            Page::MiniBlocks(page) => page.next(&mut self.window)?,
            Page::FullZips(page) => page.next(&mut self.window, &mut self.alone)?,
            Page::Same(cell) => Some(cell.clone()),
            Page::Cells(cells) => cells.next(),
        };
        Ok(cell.ok_or(Damaged)?)
    }

    /// The memory that the current page uses, besides its window.
    pub(super) fn held(&self) -> u64 {
        match &self.page {
            Page::MiniBlocks(page) => page.held(),
            Page::FullZips(page) => page.held(),
            Page::Cells(cells) => (cells.len() * size_of::<Cell>()) as u64,
            Page::Same(_) => 0,
        }
    }

    fn open_page(&mut self) -> Result<(), Trouble> {
        let page = loop {
            let mut rest = self.rest.get(self.next..).unwrap_or_default();
            if rest.is_empty() {
                return Err(Damaged.into());
            }
            let part = Part::take(&mut rest).map_err(|_| Damaged)?;
            self.next = self.rest.len() - rest.len();
            if part.number == 2 {
                break part.content().ok_or(Damaged)?;
            }
        };
        let Described { places, sizes, rows, layout } = described(page)?;
        if places.len() != sizes.len() || places.len() > MAX_BUFFERS {
            return Err(Damaged.into());
        }
        let buffers: Vec<_> = places.into_iter().zip(sizes).collect();
        self.rows = rows;
        self.page = match Layout::parse(layout) {
            Err(Refusal::Damaged) => return Err(Damaged.into()),
            Err(Refusal::Unread(why)) => Page::Same(Cell::Unread(why.into())),
            Ok(Layout::MiniBlock(layout)) => {
                let page = MiniBlocks::open(layout, Meaning::Values, &buffers, &mut self.window)?;
                Page::MiniBlocks(Box::new(page))
            }
            Ok(Layout::Blob(layout)) => {
                let page = MiniBlocks::open(layout, Meaning::Places, &buffers, &mut self.window)?;
                Page::MiniBlocks(Box::new(page))
            }
            Ok(Layout::FullZip(layout)) => {
                match FullZips::open(layout, &buffers, rows, &mut self.window)? {
                    Some(page) => Page::FullZips(Box::new(page)),
                    None => {
                        let why = "its values are compressed one by one in a way that is not read";
                        Page::Same(Cell::Unread(Arc::from(why)))
                    }
                }
            }
            Ok(Layout::Constant(layout)) => constant(&layout, &buffers, rows, &mut self.window)?,
        };
        Ok(())
    }
}

fn described(page: &[u8]) -> Result<Described<'_>, Damaged> {
    let mut found = Described::default();
    for part in parts(page) {
        let part = part?;
        match part.number {
            1 => append_integers(part, &mut found.places)?,
            2 => append_integers(part, &mut found.sizes)?,
            3 => found.rows = part.integer().ok_or(Damaged)?,
            4 => found.layout = inner(inner(part.content().ok_or(Damaged)?, 2)?, 1)?,
            _ => {}
        }
    }
    Ok(found)
}

/// A message in a message.
fn inner(message: &[u8], number: u64) -> Result<&[u8], Damaged> {
    for part in parts(message) {
        let part = part?;
        if part.number == number {
            return part.content().ok_or(Damaged);
        }
    }
    Err(Damaged)
}

/// A page of one value, or of none.
fn constant(
    layout: &Constant,
    buffers: &[(u64, u64)],
    rows: u64,
    window: &mut Window<'_>,
) -> Result<Page, Trouble> {
    // An odd number of buffers begins with the value; the other two have levels.
    let (value, buffers) = match buffers {
        [value, rest @ ..] if buffers.len() % 2 == 1 => (Some(*value), rest),
        all => (None, all),
    };
    let value = match (&layout.value, value) {
        (Some(value), _) => Some(Cell::number(value)),
        (None, Some((place, length))) => Some(scalar(place, window.get(place, length)?)?),
        (None, None) => None,
    };
    let whole = value.clone().unwrap_or(Cell::Null);
    let levels = match buffers {
        [] => return Ok(Page::Same(whole)),
        [repetition, definition] => ChunkLevels {
            repetition: of_levels(layout.repetition.as_ref(), *repetition, window)?,
            definition: of_levels(layout.definition.as_ref(), *definition, window)?,
        },
        _ => return Err(Damaged.into()),
    };
    let visible = |level: &&u16| **level <= layout.levels.visible;
    let count = match (&levels.definition[..], &levels.repetition[..]) {
        ([], []) => return Ok(Page::Same(whole)),
        ([], repetition) => repetition.len(),
        (definition, []) => definition.len(),
        (definition, _) => definition.iter().filter(visible).count(),
    };
    // Items of lists are of one short value.
    let items = match (&whole, layout.levels.list) {
        (Cell::Number { bytes, length }, Some(_)) => {
            let value = &bytes[..usize::from(*length).min(bytes.len())];
            Values::of(std::iter::repeat_n(Ok(value), count))?
        }
        _ => Values::default(),
    };
    let mut cells = Vec::new();
    let mut builder = RowBuilder::new(layout.levels);
    let cell = |item| {
        Ok(match item {
            Item::Null => Cell::Null,
            Item::Value(_) => whole.clone(),
        })
    };
    builder.add(&levels, &items, count, cell, |cell| cells.push(cell))?;
    builder.end(&mut |cell| cells.push(cell));
    match cells.len() as u64 == rows {
        true => Ok(Page::Cells(cells.into_iter())),
        false => Err(Damaged.into()),
    }
}

/// Levels of a constant: 16 bits each, unless they are compressed.
fn of_levels(
    compression: Option<&(super::layout::Compression, u64)>,
    (place, length): (u64, u64),
    window: &mut Window<'_>,
) -> Result<Vec<u16>, Trouble> {
    let buffer = window.get(place, length)?;
    if let Some((compression, count)) = compression {
        return Ok(levels(compression, buffer, *count)?);
    }
    if length / 2 > MAX_VALUES {
        return Err(Damaged.into());
    }
    let (all, _) = buffer.as_chunks();
    Ok(all.iter().map(|level| u16::from_le_bytes(*level)).collect())
}

/// A value in a buffer: the number of its parts, the length of each, and the parts. The last one is its bytes.
fn scalar(place: u64, buffer: &[u8]) -> Result<Cell, Damaged> {
    let (lengths, _) = buffer.as_chunks();
    let mut lengths = lengths.iter().map(|number| u32::from_le_bytes(*number) as usize);
    let parts = lengths.next().filter(|parts| matches!(parts, 1 | 2)).ok_or(Damaged)?;
    let sizes: Vec<usize> = lengths.take(parts).collect();
    let [before @ .., length] = &sizes[..] else { return Err(Damaged) };
    let start = before.iter().sum::<usize>() + 4 * (parts + 1);
    let value = buffer.get(start..).and_then(|rest| rest.get(..*length)).ok_or(Damaged)?;
    Ok(match value.len() > MAX_KEPT_CONSTANT {
        true => Cell::At { offset: place + start as u64, length: value.len() as u64 },
        false => Cell::number(value),
    })
}
