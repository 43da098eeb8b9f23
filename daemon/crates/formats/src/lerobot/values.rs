//! The values of frames, from the rows of Parquet files.

use half::f16;

use forebay_columnar::{ArrayForm, Encoding};
use forebay_dataset::error::DatasetError;
use forebay_index::saved_index::open_file;
use forebay_index::shards::Pace;
use forebay_storage::Storage;
use forebay_storage::version::FileStamp;

use super::BROKEN;
use super::episodes::Episode;
use super::index::Column;
use super::info::Feature;
use super::rows::Table;
use crate::tables::ROWS_PER_QUESTION;

/// The column that tells episodes apart.
const EPISODE: &str = "episode_index";
/// The most bytes of the values of a frame.
const MAX_ROW_BYTES: usize = 16 << 20;

/// The columns that are kept.
pub(super) struct Chosen {
    /// In the order of the features.
    pub(super) columns: Vec<(String, Column)>,
    /// The bytes of a frame.
    pub(super) row_bytes: usize,
    /// Features that are left out, with why.
    pub(super) left_out: Vec<String>,
}

/// Chooses the columns of the first file that can be kept.
///
/// # Errors
/// The values of a frame are too many.
pub(super) fn choose(table: &Table<'_>, features: &[Feature]) -> Result<Chosen, DatasetError> {
    let (mut columns, mut offset, mut left_out) = (Vec::new(), 0_usize, Vec::new());
    for feature in features.iter().filter(|feature| !feature.is_video()) {
        let name = &feature.name;
        let mut leave_out = |why: &str| left_out.push(format!("{name} ({why})"));
        match feature.dtype.as_str() {
            "image" => {
                leave_out(
                    "pictures in Parquet files are not read; write them as videos, with `lerobot-edit-dataset \
                     --operation.type convert_image_to_video`",
                );
                continue;
            }
            "string" | "language" | "audio" => {
                leave_out(&format!("its type is {}", feature.dtype));
                continue;
            }
            _ => {}
        }
        let Some(dtype) = forebay_columnar::dtype(&feature.dtype) else {
            leave_out(&format!("its type is {}", feature.dtype));
            continue;
        };
        let Some(place) = table.place(name) else {
            leave_out("the Parquet files have no such column");
            continue;
        };
        let encoding = &table.columns[place].encoding;
        if let Err(why) = element(encoding) {
            leave_out(&why);
            continue;
        }
        let shape = feature.row_shape().to_vec();
        let bytes = shape.iter().try_fold(dtype.size_bytes(), |all, side| all.checked_mul(*side));
        let bytes = bytes.and_then(|bytes| usize::try_from(bytes).ok());
        let Some(bytes) = bytes.filter(|bytes| (1..=MAX_ROW_BYTES).contains(bytes)) else {
            leave_out(&format!("its shape is {shape:?}"));
            continue;
        };
        let dtype = feature.dtype.clone();
        columns.push((name.clone(), Column { dtype, shape, offset, bytes }));
        offset = offset.saturating_add(bytes);
    }
    if offset > MAX_ROW_BYTES {
        return Err(table.file.fault(format!(
            "the values of a frame have {offset} bytes, and at most {MAX_ROW_BYTES} are read"
        )));
    }
    Ok(Chosen { columns, row_bytes: offset, left_out })
}

/// The type of a value's elements.
fn element(encoding: &Encoding) -> Result<&str, String> {
    match encoding {
        Encoding::Number(name)
        | Encoding::Array(ArrayForm::Plain(name, _) | ArrayForm::Rows(name, _)) => Ok(name),
        Encoding::Unread(why) => Err(why.clone()),
        _ => Err("its column is not of numbers".to_owned()),
    }
}

/// Elements in another width of floats.
fn converted(bytes: &[u8], from: &str, to: &str) -> Option<Vec<u8>> {
    let numbers: Vec<f64> = match from {
        "float16" => {
            bytes.as_chunks().0.iter().map(|bytes| f16::from_le_bytes(*bytes).to_f64()).collect()
        }
        "float32" => {
            bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes).into()).collect()
        }
        "float64" => bytes.as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect(),
        _ => return None,
    };
    #[expect(clippy::cast_possible_truncation, reason = "floats are rounded")]
    Some(match to {
        "float16" => numbers.into_iter().flat_map(|n| f16::from_f64(n).to_le_bytes()).collect(),
        "float32" => numbers.into_iter().flat_map(|n| (n as f32).to_le_bytes()).collect(),
        "float64" => numbers.into_iter().flat_map(f64::to_le_bytes).collect(),
        _ => return None,
    })
}

/// Reads the values of the frames of one file, in which the rows of these episodes follow one another. Rows behind them
/// are not read if `is_cut`.
pub(super) fn read(
    storage: &dyn Storage,
    path: &[u8],
    columns: &[(String, Column)],
    episodes: &[&Episode],
    is_cut: bool,
    pace: &dyn Pace,
) -> Result<(Vec<u8>, FileStamp), DatasetError> {
    let file = open_file(storage, path)?;
    let table = Table::new(&file)?;
    let mut places = vec![table.required(EPISODE)?];
    let mut kinds = Vec::with_capacity(columns.len());
    for (name, column) in columns {
        let place = table.required(name)?;
        let from = element(&table.columns[place].encoding)
            .map_err(|why| file.fault(format!("the column {name:?} cannot be read: {why}")))?;
        kinds.push((name, column, from));
        places.push(place);
    }
    let mut values = Vec::new();
    let mut expected =
        episodes.iter().flat_map(|episode| (0..episode.rows).map(|_| episode.number));
    let all = episodes.iter().map(|episode| episode.rows).fold(0, u64::saturating_add);
    let mut rows = 0_u64;
    table.visit(storage, &places, |row| {
        if row.number.is_multiple_of(ROWS_PER_QUESTION) && pace.is_stopped_at(0, 0) {
            return Err(DatasetError::Cancelled);
        }
        let number = row.count(0).map_err(|reason| file.fault(reason))?;
        rows += 1;
        let Some(expected) = expected.next() else { return Ok(()) };
        if number != expected {
            return Err(file.fault(format!(
                "row {} is of episode {number}, and by the list of episodes it is of episode {expected}; {BROKEN}",
                row.number
            )));
        }
        for (place, (name, column, from)) in (1..).zip(&kinds) {
            let bytes = row.bytes(place).map_err(|reason| file.fault(reason))?;
            let before = values.len();
            if **from == column.dtype {
                values.extend_from_slice(bytes);
            } else {
                let converted = converted(bytes, from, &column.dtype).ok_or_else(|| {
                    file.fault(format!(
                        "the column {name:?} is {from}, and meta/info.json says {}; {BROKEN}",
                        column.dtype
                    ))
                })?;
                values.extend(converted);
            }
            if values.len() - before != column.bytes {
                return Err(file.fault(format!(
                    "row {}: the column {name:?} has {} bytes, and the shape {:?} of meta/info.json has {}; {BROKEN}",
                    row.number,
                    values.len() - before,
                    column.shape,
                    column.bytes
                )));
            }
        }
        Ok(())
    })?;
    if rows < all || (rows > all && !is_cut) {
        return Err(file.fault(format!(
            "it has {rows} rows, and by the list of episodes it has {all}; {BROKEN}"
        )));
    }
    Ok((values, file.stamp))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_of_another_width_are_rounded() {
        let wide: Vec<u8> = [0.1_f64, -2.5].into_iter().flat_map(f64::to_le_bytes).collect();
        let narrow: Vec<u8> = [0.1_f32, -2.5].into_iter().flat_map(f32::to_le_bytes).collect();
        assert_eq!(converted(&wide, "float64", "float32").unwrap(), narrow);
        assert_eq!(converted(&narrow, "float32", "float16").unwrap()[2..], [0x00, 0xc1]);
        assert_eq!(converted(&wide, "int64", "float32"), None);
        assert_eq!(converted(&wide, "float64", "int64"), None);
    }
}
