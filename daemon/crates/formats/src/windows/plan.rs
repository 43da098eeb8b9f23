//! The fields of a window, and the rows that are read for them. Fields of one column whose rows are near each other
//! share a read.

use forebay_protocol::tensor::{DType, MAX_TENSORS};
use half::{bf16, f16};
use serde::{Deserialize, Serialize};

use super::index::Cut;
use super::keys::{FieldRows, Pad};
use crate::fields::{RESERVED, name_fault};
use forebay_dataset::{Field, FieldKind};

/// The most bytes between the rows of two fields that one read brings.
const MAX_GAP_BYTES: u64 = 64 << 10;
/// The name of the field of rows that exist.
const MASK: &str = "mask";

/// A column of numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Column<E> {
    pub(crate) name: String,
    pub(crate) dtype: String,
    /// The shape of a row.
    pub(crate) shape: Vec<u64>,
    /// Whether the most significant byte of an element is first.
    pub(crate) big_endian: bool,
    /// What the format adds.
    pub(crate) more: E,
}

impl<E> Column<E> {
    pub(crate) fn dtype(&self) -> Option<DType> {
        DType::from_name(&self.dtype)
    }

    /// The size of a row; `None`: it has none, or it is not a number.
    pub(crate) fn row_bytes(&self) -> Option<u64> {
        let each = self.dtype()?.size_bytes();
        let all = self.shape.iter().try_fold(each, |all, side| all.checked_mul(*side));
        all.filter(|bytes| *bytes > 0)
    }
}

/// Consecutive rows of a column, relative to the start of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Read {
    pub(super) column: usize,
    pub(super) start: i64,
    pub(super) end: i64,
}

impl Read {
    /// The rows of an episode that are read for a window, relative to the episode: at least one, the nearest of those
    /// that the window has.
    pub(super) fn clipped(&self, window: i64, rows: u64) -> (i64, i64) {
        let rows = i64::try_from(rows).unwrap_or(i64::MAX).max(1);
        let start = window.saturating_add(self.start).clamp(0, rows - 1);
        let end = window.saturating_add(self.end).clamp(start + 1, rows);
        (start, end)
    }
}

/// What a field is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Made {
    /// Rows of a read; `fill` is the row that replaces those beyond an end, if it is not the nearest one.
    Rows { read: usize, fill: Option<Vec<u8>> },
    /// Which rows exist.
    Mask,
}

/// A field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PlannedField {
    pub(super) name: String,
    pub(super) made: Made,
    pub(super) start: i64,
    pub(super) length: u64,
}

impl PlannedField {
    fn end(&self) -> i64 {
        self.start.saturating_add_unsigned(self.length)
    }
}

/// The fields and the reads of each window.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) fields: Vec<PlannedField>,
    pub(super) reads: Vec<Read>,
}

impl Plan {
    /// `named`: the fields; `place`: finds the column of a name.
    ///
    /// # Errors
    /// What is wrong, as a sentence with its remedy.
    pub(super) fn new<E>(
        columns: &[Column<E>],
        named: &[FieldRows],
        place: impl Fn(&str) -> Option<usize>,
        pad: Pad,
    ) -> Result<Self, String> {
        let mut fields = Vec::new();
        // Per field: its place and its column; in the order of reads.
        let mut places = Vec::new();
        for FieldRows { name, from, start, length } in named.iter().cloned() {
            let column = place(&from).ok_or_else(|| {
                let names = columns.iter().map(|column| format!("`{}`", column.name));
                format!(
                    "dataset.windows.fields.{name} is of {from:?}, and the data has {}",
                    names.collect::<Vec<_>>().join(", ")
                )
            })?;
            if let Some(fault) = name_fault(&name) {
                return Err(format!("{fault}: name it in dataset.windows.fields"));
            }
            places.push((column, start, fields.len()));
            let fill = match pad {
                Pad::Number(number) => Some(row_of(&columns[column], number)?),
                Pad::None | Pad::Repeat => None,
            };
            fields.push(PlannedField { name, made: Made::Rows { read: 0, fill }, start, length });
        }
        places.sort_unstable();
        let mut reads = Vec::<Read>::new();
        for (column, start, place) in places {
            let end = fields[place].end();
            let row_bytes = columns[column].row_bytes().unwrap_or(1);
            let is_near = |read: &Read| {
                let gap = start.saturating_sub(read.end).max(0).unsigned_abs();
                read.column == column && gap.saturating_mul(row_bytes) <= MAX_GAP_BYTES
            };
            match reads.last_mut().filter(|read| is_near(read)) {
                Some(read) => read.end = read.end.max(end),
                None => reads.push(Read { column, start, end }),
            }
            if let Made::Rows { read, .. } = &mut fields[place].made {
                *read = reads.len() - 1;
            }
        }
        if pad != Pad::None {
            add_masks(&mut fields)?;
        }
        if fields.len() + RESERVED.len() > MAX_TENSORS {
            return Err(format!(
                "a window has {} fields, and a batch has at most {}; name fewer in dataset.windows.fields",
                fields.len(),
                MAX_TENSORS - RESERVED.len()
            ));
        }
        Ok(Self { fields, reads })
    }

    /// Whether no other field is of the same read.
    pub(super) fn is_only(&self, field: &PlannedField) -> bool {
        let read_of = |field: &PlannedField| match field.made {
            Made::Rows { read, .. } => Some(read),
            Made::Mask => None,
        };
        self.fields.iter().filter(|other| read_of(other) == read_of(field)).count() == 1
    }

    /// The memory of the fields of a window that are copied: all of one that is padded, and of unpacked rows those of a
    /// shared read.
    pub(super) fn copied_bytes<E>(&self, columns: &[Column<E>], are_unpacked: bool) -> u64 {
        let is_padded = self.fields.iter().any(|field| field.made == Made::Mask);
        let is_copied = |field: &&PlannedField| is_padded || are_unpacked && !self.is_only(field);
        let bytes = |field: &PlannedField| {
            let row_bytes = match field.made {
                Made::Rows { read, .. } => columns[self.reads[read].column].row_bytes(),
                Made::Mask => Some(1),
            };
            row_bytes.unwrap_or(0).saturating_mul(field.length)
        };
        self.fields.iter().filter(is_copied).map(bytes).fold(0, u64::saturating_add)
    }

    /// How windows are cut.
    pub(super) fn cut(&self, stride: u64, pad: Pad) -> Cut {
        let start = self.fields.iter().map(|field| field.start).min().unwrap_or(0);
        let end = self.fields.iter().map(PlannedField::end).max().unwrap_or(0);
        match pad {
            Pad::None => {
                let needs = end.saturating_sub(start).unsigned_abs();
                Cut { stride, first: -start, needs: Some(needs) }
            }
            Pad::Repeat | Pad::Number(_) => Cut { stride, first: 0, needs: None },
        }
    }

    /// The fields as the dataset declares them.
    pub(super) fn declared<E>(&self, columns: &[Column<E>]) -> Vec<Field> {
        let kind = |field: &PlannedField| match field.made {
            Made::Mask => FieldKind::Array { dtype: DType::Bool, shape: vec![field.length] },
            Made::Rows { read, .. } => {
                let column = &columns[self.reads[read].column];
                let dtype = column.dtype().unwrap_or(DType::U8);
                FieldKind::Array { dtype, shape: [&[field.length], &column.shape[..]].concat() }
            }
        };
        let field = |field: &PlannedField| Field { name: field.name.clone(), kind: kind(field) };
        self.fields.iter().map(field).collect()
    }
}

/// Adds a mask for each range of rows that fields have: `mask`, or with several ranges one named after the first field.
fn add_masks(fields: &mut Vec<PlannedField>) -> Result<(), String> {
    let mut masks = Vec::<PlannedField>::new();
    for PlannedField { name, start, length, .. } in fields.iter() {
        if !masks.iter().any(|mask| (mask.start, mask.length) == (*start, *length)) {
            let (name, start, length) = (format!("{name}_{MASK}"), *start, *length);
            masks.push(PlannedField { name, made: Made::Mask, start, length });
        }
    }
    if let [only] = &mut masks[..] {
        only.name = MASK.to_owned();
    }
    for mask in masks {
        if fields.iter().any(|field| field.name == mask.name) {
            return Err(format!(
                "the field `{}` says which rows exist, and a column has this name too; name the fields in \
                 dataset.windows.fields, as in x = {{ from = {:?} }}",
                mask.name, mask.name
            ));
        }
        if let Some(fault) = name_fault(&mask.name) {
            return Err(fault);
        }
        fields.push(mask);
    }
    Ok(())
}

/// A row that has this number in each element.
fn row_of<E>(column: &Column<E>, number: f64) -> Result<Vec<u8>, String> {
    let refuse = || {
        format!(
            "dataset.windows.pad is {number}, and `{}` has elements of {}; use a number that this type has, or \"repeat\"",
            column.name, column.dtype
        )
    };
    let dtype = column.dtype().ok_or_else(refuse)?;
    let mut element = element_of(dtype, number).ok_or_else(refuse)?;
    if column.big_endian {
        element.reverse();
    }
    let bytes = column.row_bytes().and_then(|bytes| usize::try_from(bytes).ok());
    Ok(element.repeat(bytes.ok_or_else(refuse)? / element.len()))
}

/// A number's bytes, the lowest first; `None`: the type does not have it.
fn element_of(dtype: DType, number: f64) -> Option<Vec<u8>> {
    #[expect(clippy::cast_possible_truncation, reason = "it has no fraction, and a cast saturates")]
    let whole = (number.fract() == 0.0).then_some(number as i128);
    macro_rules! whole {
        ($type:ty) => {
            <$type>::try_from(whole?).ok()?.to_le_bytes().to_vec()
        };
    }
    #[expect(clippy::cast_possible_truncation, reason = "floats are rounded")]
    Some(match dtype {
        DType::U8 => whole!(u8),
        DType::I8 => whole!(i8),
        DType::U16 => whole!(u16),
        DType::I16 => whole!(i16),
        DType::U32 => whole!(u32),
        DType::I32 => whole!(i32),
        DType::U64 => whole!(u64),
        DType::I64 => whole!(i64),
        DType::Bool => vec![u8::try_from(whole?).ok().filter(|bit| *bit <= 1)?],
        DType::F16 => f16::from_f64(number).to_le_bytes().to_vec(),
        DType::BF16 => bf16::from_f64(number).to_le_bytes().to_vec(),
        DType::F32 => (number as f32).to_le_bytes().to_vec(),
        DType::F64 => number.to_le_bytes().to_vec(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns() -> Vec<Column<()>> {
        let column = |name: &str, dtype: DType, shape: &[u64]| Column {
            name: name.to_owned(),
            dtype: dtype.name().to_owned(),
            shape: shape.to_vec(),
            big_endian: false,
            more: (),
        };
        vec![column("x", DType::F32, &[3]), column("n", DType::U8, &[])]
    }

    fn planned(named: &[FieldRows], pad: Pad) -> Result<Plan, String> {
        let place = |from: &str| columns().iter().position(|column| column.name == from);
        Plan::new(&columns(), named, place, pad)
    }

    fn field(name: &str, from: &str, start: i64, length: u64) -> FieldRows {
        FieldRows { name: name.to_owned(), from: from.to_owned(), start, length }
    }

    #[test]
    fn near_rows_of_a_column_are_one_read() {
        let named = [field("y", "x", 96, 24), field("x", "x", 0, 96), field("n", "n", -2, 1)];
        let plan = planned(&named, Pad::None).unwrap();
        let read = |column, start, end| Read { column, start, end };
        assert_eq!(plan.reads, [read(0, 0, 120), read(1, -2, -1)]);
        assert_eq!(plan.cut(5, Pad::None), Cut { stride: 5, first: 2, needs: Some(122) });
        assert_eq!(plan.copied_bytes(&columns(), true), (24 + 96) * 12);
        assert_eq!(plan.copied_bytes(&columns(), false), 0);
        let far = [field("x", "x", 0, 96), field("y", "x", 96 + 6000, 1)];
        assert_eq!(planned(&far, Pad::None).unwrap().reads.len(), 2);
    }

    #[test]
    fn rows_beyond_an_end_are_the_nearest_ones_of_the_episode() {
        let read = Read { column: 0, start: -3, end: 2 };
        assert_eq!(read.clipped(0, 10), (0, 2));
        assert_eq!(read.clipped(9, 10), (6, 10));
        assert_eq!(Read { start: 5, end: 9, ..read }.clipped(8, 10), (9, 10));
        assert_eq!(Read { start: -9, end: -5, ..read }.clipped(1, 10), (0, 1));
    }

    #[test]
    fn each_range_of_rows_has_a_mask_if_windows_are_padded() {
        let names = |named: &[FieldRows]| {
            let plan = planned(named, Pad::Number(0.0))?;
            Ok::<_, String>(plan.fields.iter().map(|field| field.name.clone()).collect::<Vec<_>>())
        };
        let same = [field("x", "x", 0, 4), field("n", "n", 0, 4)];
        assert_eq!(names(&same).unwrap(), ["x", "n", "mask"]);
        let two = [field("x", "x", 0, 4), field("n", "n", 4, 4)];
        assert_eq!(names(&two).unwrap(), ["x", "n", "x_mask", "n_mask"]);
        assert!(names(&[field("mask", "x", 0, 4)]).unwrap_err().contains("from = \"mask\""));
    }

    #[test]
    fn padding_that_a_type_does_not_have_is_refused() {
        assert_eq!(row_of(&columns()[1], 255.0).unwrap(), [255]);
        assert_eq!(row_of(&columns()[0], -1.5).unwrap(), (-1.5_f32).to_le_bytes().repeat(3));
        for number in [0.5, -1.0, 256.0] {
            assert!(row_of(&columns()[1], number).unwrap_err().contains("uint8"), "{number}");
        }
    }
}
