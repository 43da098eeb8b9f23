//! Statistics of a field's values in some samples: minimum, maximum and mean; for ragged fields also the lengths of
//! rows.

use std::fmt;

use forebay_client::{DType, Tensor};
use forebay_protocol::tensor::TensorSpec;

use crate::cli::values::{each_number, is_float};

/// Integers up to this are exact as floats.
const EXACT: f64 = 9_007_199_254_740_992.0;

/// The statistics of one field.
#[derive(Debug)]
pub(super) struct Figures {
    dtype: DType,
    content: Content,
    values: Range,
    /// For ragged fields: the number of entries per row.
    lengths: Option<Range>,
}

/// The kind of the elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Content {
    Numbers,
    /// Ragged bytes; each row is UTF-8.
    Text,
    /// Other ragged bytes.
    Bytes,
}

/// Minimum, maximum and sum of the finite values.
#[derive(Debug, Clone, Copy)]
struct Range {
    least: f64,
    greatest: f64,
    sum: f64,
    count: u64,
    not_finite: u64,
}

impl Range {
    const EMPTY: Self = Self {
        least: f64::INFINITY,
        greatest: f64::NEG_INFINITY,
        sum: 0.0,
        count: 0,
        not_finite: 0,
    };

    fn see(&mut self, value: f64) {
        if !value.is_finite() {
            self.not_finite += 1;
            return;
        }
        self.least = self.least.min(value);
        self.greatest = self.greatest.max(value);
        self.sum += value;
        self.count += 1;
    }

    #[expect(clippy::cast_precision_loss, reason = "a count of values")]
    fn mean(&self) -> f64 {
        self.sum / self.count as f64
    }

    /// The minimum and the maximum, such as `3 to 17`.
    fn ends(&self, is_float: bool) -> String {
        let decimals = if is_float { 4 } else { 0 };
        format!("{} to {}", shown(self.least, decimals), shown(self.greatest, decimals))
    }
}

fn shown(value: f64, decimals: usize) -> String {
    if value.abs() < EXACT { format!("{value:.decimals$}") } else { format!("{value:.4e}") }
}

impl Figures {
    /// The statistics of the first `rows` rows of a tensor.
    pub(super) fn of(tensor: &Tensor<'_>, spec: Option<&TensorSpec>, rows: usize) -> Self {
        match tensor.ragged() {
            None => Self::dense(tensor.bytes(), tensor.dtype()),
            Some(ragged) => {
                let is_list = spec.is_some_and(|spec| spec.row_shape.is_empty());
                let row = |row| Some((ragged.row_len(row)?, ragged.row_bytes(row)?));
                Self::ragged((0..rows).filter_map(row), tensor.dtype(), is_list)
            }
        }
    }

    fn dense(bytes: &[u8], dtype: DType) -> Self {
        let mut values = Range::EMPTY;
        each_number(bytes, dtype, |value| values.see(value));
        Self { dtype, content: Content::Numbers, values, lengths: None }
    }

    #[expect(clippy::cast_precision_loss, reason = "a length")]
    fn ragged<'a>(
        rows: impl Iterator<Item = (usize, &'a [u8])>,
        dtype: DType,
        is_list: bool,
    ) -> Self {
        let (mut values, mut lengths) = (Range::EMPTY, Range::EMPTY);
        let mut is_text = true;
        for (length, bytes) in rows {
            lengths.see(length as f64);
            is_text &= std::str::from_utf8(bytes).is_ok();
            each_number(bytes, dtype, |value| values.see(value));
        }
        let content = match (dtype == DType::U8 && is_list, is_text) {
            (false, _) => Content::Numbers,
            (true, true) => Content::Text,
            (true, false) => Content::Bytes,
        };
        Self { dtype, content, values, lengths: Some(lengths) }
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { dtype, content, values, lengths } = self;
        if let (Content::Text | Content::Bytes, Some(lengths)) = (content, lengths) {
            let word = if *content == Content::Text { "text" } else { "bytes" };
            let (ends, mean) = (lengths.ends(false), lengths.mean());
            return write!(formatter, "{word}, {ends} bytes a row, mean {mean:.1}");
        }
        formatter.write_str(dtype.name())?;
        if let Some(lengths) = lengths {
            write!(
                formatter,
                ", {} entries a row (mean {:.1})",
                lengths.ends(false),
                lengths.mean()
            )?;
        }
        match (values.count, dtype) {
            (0, _) if values.not_finite == 0 => formatter.write_str(", no values")?,
            (0, _) => {}
            (count, DType::Bool) => write!(formatter, ", true in {:.0} of {count}", values.sum)?,
            _ => {
                let (ends, mean) = (values.ends(is_float(*dtype)), shown(values.mean(), 4));
                write!(formatter, ", {ends}, mean {mean}")?;
            }
        }
        match values.not_finite {
            0 => Ok(()),
            some => write!(formatter, ", {some} of {} not finite", values.count + some),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes<const N: usize, T: Copy>(values: &[T], to: fn(T) -> [u8; N]) -> Vec<u8> {
        values.iter().flat_map(|value| to(*value)).collect()
    }

    #[test]
    fn numbers_of_each_kind_have_minimum_maximum_and_mean() {
        let dense = |bytes: &[u8], dtype| Figures::dense(bytes, dtype).to_string();
        let tokens = bytes(&[5_i64, -2, 9], i64::to_ne_bytes);
        assert_eq!(dense(&tokens, DType::I64), "int64, -2 to 9, mean 4.0000");
        let scalars = bytes(&[0.5_f64, 1.25], f64::to_ne_bytes);
        assert_eq!(dense(&scalars, DType::F64), "float64, 0.5000 to 1.2500, mean 0.8750");
        assert_eq!(dense(&[0, 255], DType::U8), "uint8, 0 to 255, mean 127.5000");
        let wide = bytes(&[1_u64, u64::MAX], u64::to_ne_bytes);
        let said = dense(&wide, DType::U64);
        assert_eq!(said, "uint64, 1 to 1.8447e19, mean 9.2234e18");
        assert_eq!(dense(&[1, 0, 1, 1], DType::Bool), "bool, true in 3 of 4");
        assert_eq!(dense(&[], DType::I64), "int64, no values");
    }

    #[test]
    fn non_finite_values_are_counted_and_otherwise_ignored() {
        let some = bytes(&[f32::NAN, 1.0, f32::INFINITY, 3.0], f32::to_ne_bytes);
        let said = Figures::dense(&some, DType::F32).to_string();
        assert_eq!(said, "float32, 1.0000 to 3.0000, mean 2.0000, 2 of 4 not finite");
        let none = bytes(&[f32::NAN], f32::to_ne_bytes);
        let said = Figures::dense(&none, DType::F32).to_string();
        assert_eq!(said, "float32, 1 of 1 not finite");
    }

    #[test]
    fn ragged_rows_have_lengths_and_texts_have_only_lengths() {
        let rows = [bytes(&[7_i32, 8, 9], i32::to_ne_bytes), Vec::new()];
        let rows = rows.iter().map(|row| (row.len() / 4, &row[..]));
        let said = Figures::ragged(rows, DType::I32, true).to_string();
        assert_eq!(said, "int32, 0 to 3 entries a row (mean 1.5), 7 to 9, mean 8.0000");
        let texts = |rows: &[&[u8]]| {
            let rows = rows.iter().map(|row| (row.len(), *row));
            Figures::ragged(rows, DType::U8, true).to_string()
        };
        assert_eq!(texts(&[b"a cat", "zwölf".as_bytes()]), "text, 5 to 6 bytes a row, mean 5.5");
        assert_eq!(texts(&[b"a cat", &[0xff]]), "bytes, 1 to 5 bytes a row, mean 3.0");
        let boxes = bytes(&[0.0_f32, 1.0, 2.0, 3.0], f32::to_ne_bytes);
        let said = Figures::ragged(std::iter::once((1, &boxes[..])), DType::F32, false).to_string();
        let expected = "float32, 1 to 1 entries a row (mean 1.0), 0.0000 to 3.0000, mean 1.5000";
        assert_eq!(said, expected);
    }
}
