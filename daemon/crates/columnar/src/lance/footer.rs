//! The footer of a Lance file: its schema and the places of the columns' descriptions. Also the footer of a manifest.

use super::schema::Schema;
use crate::protobuf::{Part, parts};
use forebay_dataset::error::DatasetError;
use forebay_index::window::Window;

const MAGIC: &[u8; 4] = b"LANC";
const FOOTER_BYTES: u64 = 40;
/// The last bytes of a footer: a version and the magic.
const END_BYTES: u64 = 8;
/// The versions of manifests.
const OF_MANIFESTS: (u16, u16) = (0, 2);

/// What a file is, by its last bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Data,
    Manifest,
}

/// Tells data from manifests.
///
/// # Errors
/// It is neither, or of a version that is not supported.
pub(super) fn kind(window: &mut Window<'_>) -> Result<Kind, DatasetError> {
    let file = window.file;
    let length = file.length();
    // A manifest has its place before them.
    if length < 2 * END_BYTES {
        return Err(file.fault(format!("it has {length} bytes, and is no Lance file")));
    }
    let end = window.get(length - END_BYTES, END_BYTES)?;
    if !end.ends_with(MAGIC) {
        return Err(file.fault("it does not end as a Lance file does: it is cut off".to_owned()));
    }
    let number = |place| u16::from_le_bytes([end[place], end[place + 1]]);
    match (number(0), number(2)) {
        (2, 1 | 2) => Ok(Kind::Data),
        OF_MANIFESTS => Ok(Kind::Manifest),
        (0, _) | (2, 0) => Err(file.fault(
            "it is of a version before 2.1; write it anew: lance.write_dataset(ds, \"new.lance\", data_storage_version=\"2.2\")"
                .to_owned(),
        )),
        (major, minor) => Err(file.fault(format!(
            "it is of the version {major}.{minor}, and 2.1 and 2.2 are read; write it with data_storage_version=\"2.2\""
        ))),
    }
}

/// The message of a manifest.
///
/// # Errors
/// The file is cut off.
pub(super) fn manifest<'w>(window: &'w mut Window<'_>) -> Result<&'w [u8], DatasetError> {
    let length = window.file.length();
    let place = number(window.get(length - 2 * END_BYTES, 8)?);
    let size = window.get(place, 4)?.first_chunk().map_or(0, |size| u32::from_le_bytes(*size));
    window.get(place.saturating_add(4), size.into())
}

/// A file of values.
#[derive(Debug)]
pub(super) struct Footer {
    pub(super) schema: Schema,
    pub(super) rows: u64,
    /// By stored column: the place of its description, and its bytes.
    pub(super) columns: Vec<(u64, u64)>,
}

impl Footer {
    /// # Errors
    /// Describes damage, or a feature that is not supported.
    pub(super) fn read(window: &mut Window<'_>) -> Result<Self, DatasetError> {
        let file = window.file;
        let start = file.length().checked_sub(FOOTER_BYTES);
        let start = start.ok_or_else(|| file.fault("its footer is cut off".to_owned()))?;
        let footer = window.get(start, FOOTER_BYTES)?.to_vec();
        let short = |start: usize| {
            footer[start..].first_chunk().map_or(0, |bytes| u64::from(u32::from_le_bytes(*bytes)))
        };
        let (columns, buffers) = (number(&footer[8..]), number(&footer[16..]));
        let (global, stored) = (short(24), short(28));
        if global == 0 {
            return Err(file.fault("it has no schema".to_owned()));
        }
        let (place, length) = pair(window.get(buffers, 16)?);
        let (schema, rows) =
            described(window.get(place, length)?).map_err(|reason| file.fault(reason))?;
        if schema.stored as u64 != stored {
            return Err(file.fault(format!(
                "it has {stored} columns, and its schema {}; write it anew without empty structs",
                schema.stored
            )));
        }
        let table = window.get(columns, stored * 16)?;
        let columns = table.chunks_exact(16).map(pair).collect();
        Ok(Self { schema, rows, columns })
    }
}

/// The schema and the number of rows.
fn described(message: &[u8]) -> Result<(Schema, u64), String> {
    const DAMAGED: &str = "its schema is damaged";
    let (mut schema, mut rows) = (None, 0);
    for part in parts(message) {
        match part.map_err(|_| DAMAGED)? {
            part @ Part { number: 1, .. } => {
                schema = Some(Schema::parse(part.content().ok_or(DAMAGED)?, 5)?);
            }
            part @ Part { number: 2, .. } => rows = part.integer().ok_or(DAMAGED)?,
            _ => {}
        }
    }
    Ok((schema.ok_or(DAMAGED)?, rows))
}

fn number(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

fn pair(bytes: &[u8]) -> (u64, u64) {
    (number(bytes), number(bytes.get(8..).unwrap_or_default()))
}
