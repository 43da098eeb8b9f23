//! Parquet files: the location of each row's values.
//!
//! The footer ([`footer`]) locates the parts of each column. Page headers, levels and lengths ([`pages`]) are read
//! once. Images and other bytes are then read alone, or unpacked from a compressed page; numbers and short texts are
//! kept in the index. Lists of numbers ([`lists`]) and of bytes ([`byte_lists`]) are located in the same way; other lists, and structs, become JSON
//! ([`nested`]), which is kept in the index.

mod byte_lists;
mod delta;
mod differences;
mod elements;
mod footer;
mod hybrid;
mod lists;
mod nested;
mod pages;
mod runs;
mod schema;
mod thrift;
mod times;

use self::footer::Footer;
use self::nested::Nested;
use self::pages::Pages;
use self::runs::Rows;
use self::schema::{JsonColumn, Leaf, Schema};
use crate::{Cell, Reader, Reads, TableColumn, Visit};
use forebay_dataset::error::DatasetError;
use forebay_index::window::{Bytes, Window, WindowSize};

/// The number of bytes read at once from a file's end.
const TAIL_BYTES: u64 = 64 << 10;
/// The read size for values that are far apart in a local file.
const LENGTH_BYTES: u64 = 16;
/// The budget of compressed texts kept in the index for a file: this many bytes, and this many per byte of the file.
const KEPT_BYTES: (u64, u64) = (256 << 20, 64);
/// The maximum number of values of a row group in memory, with equal neighbours counted once: at least this many, this
/// many per byte of the file, and at most this many.
const HELD_VALUES: (u64, u64, u64) = (4 << 20, 16, 16 << 20);
/// The maximum number of a file's values, each of which has a cell in the index: at least this many, and this many per
/// byte of the file.
const INDEXED_VALUES: (u64, u64) = (16 << 20, 64);

/// Reads Parquet files.
pub const READER: Reader = Reader { columns, rows };

fn columns(file: &dyn Bytes) -> Result<Vec<TableColumn>, DatasetError> {
    let footer = Footer::read(&mut Window::new(file, WindowSize::fixed(TAIL_BYTES)))?;
    let Schema { leaves, json, .. } = footer.schema;
    let leaves = leaves.into_iter().map(|leaf| leaf.column);
    Ok(leaves.chain(json.into_iter().map(|json| json.column)).collect())
}

/// A column that is read.
#[derive(Clone, Copy)]
enum Wanted<'s> {
    Leaf(&'s Leaf),
    Json(&'s JsonColumn),
}

/// The column with an index among [`columns`].
fn wanted(schema: &Schema, place: usize) -> Option<Wanted<'_>> {
    match place.checked_sub(schema.leaves.len()) {
        None => schema.leaves.get(place).map(Wanted::Leaf),
        Some(place) => schema.json.get(place).map(Wanted::Json),
    }
}

fn rows(
    file: &dyn Bytes,
    places: &[usize],
    Reads { piece, is_local }: Reads,
    visit: Visit<'_>,
) -> Result<(), DatasetError> {
    let footer = Footer::read(&mut Window::new(file, WindowSize::fixed(TAIL_BYTES)))?;
    let mut window = Window::new(file, WindowSize::fixed(piece));
    let mut values =
        Window::new(file, WindowSize::fixed(if is_local { LENGTH_BYTES } else { piece }));
    let schema = &footer.schema;
    let leaves: Vec<_> = places.iter().filter_map(|place| wanted(schema, *place)).collect();
    let (mut row, mut cells) = (0_u64, Vec::with_capacity(leaves.len()));
    let held = file.length().saturating_mul(HELD_VALUES.1).clamp(HELD_VALUES.0, HELD_VALUES.2);
    let indexed = file.length().saturating_mul(INDEXED_VALUES.1).max(INDEXED_VALUES.0);
    let mut budget = KEPT_BYTES.0.saturating_add(file.length().saturating_mul(KEPT_BYTES.1));
    for group in &footer.groups {
        let rows = row.saturating_add(group.rows);
        if rows.saturating_mul(leaves.len() as u64) > indexed {
            return Err(file.fault(format!(
                "it has {} bytes, and {rows} rows or more of {} columns; at most {indexed} values are read of a file of this \
                 size; name fewer columns in dataset.fields, or write fewer rows into a file",
                file.length(),
                leaves.len()
            )));
        }
        // Values held by the preceding columns.
        let mut before = 0;
        let mut columns = Vec::with_capacity(leaves.len());
        for leaf in &leaves {
            let (window, values, budget) = (&mut window, &mut values, &mut budget);
            let room = usize::try_from(held.saturating_sub(before)).unwrap_or(usize::MAX);
            let runs = match *leaf {
                Wanted::Leaf(leaf) => {
                    let Some(chunk) = group.chunks.get(leaf.place) else { continue };
                    Pages { leaf, chunk, window, values, budget, room, unread: None }
                        .read(group.rows)?
                }
                Wanted::Json(column) => {
                    let stored = (&schema.values, group);
                    Nested::new(column, stored, (window, values), budget, room).read(group.rows)?
                }
            };
            before += runs.held() as u64;
            columns.push(runs.into_rows());
        }
        for _ in 0..group.rows {
            cells.clear();
            let next = |column: &mut Rows| column.take(1).map_or(Cell::Null, |(cell, _)| cell);
            cells.extend(columns.iter_mut().map(next));
            if visit(row, &cells)?.is_break() {
                return Ok(());
            }
            row += 1;
        }
    }
    Ok(())
}

#[cfg(test)]
mod nested_tests;
#[cfg(test)]
mod tests;
