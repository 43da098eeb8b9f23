//! The fields of one row: tokens, labels, and the boundaries of documents.
//!
//! If documents are not distinguished, tokens and labels are parts of the read bytes. If they are, a label that would
//! be another document's token is [`IGNORED`], and padding is a separate segment.

use std::borrow::Cow;

use forebay_protocol::tensor::DType;

use super::keys::{Boundary, Labels, TokenKeys};
use forebay_dataset::{ArrayValue, Field, FieldKind, FieldValue};

/// The label of a position that does not count: the default `ignore_index` of PyTorch's cross entropy.
const IGNORED: i64 = -100;
/// The name of the field of tokens.
pub(super) const TOKENS: &str = "tokens";
const LABELS: &str = "labels";

/// Builds the fields of a row.
#[derive(Debug)]
pub(super) struct RowValues {
    keys: TokenKeys,
    dtype: DType,
    length: usize,
    /// The shapes of the fields: the row's length, and one more.
    shapes: [[u64; 1]; 2],
}

/// The boundaries of a row's documents.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ends<'a> {
    /// The end of each segment in the row, ascending; the last end is the number of tokens without padding.
    pub(super) ends: &'a [usize],
    /// Whether the last segment's document continues after the row; the last label is then its next token.
    pub(super) goes_on: bool,
}

impl RowValues {
    pub(super) fn new(keys: TokenKeys, dtype: DType) -> Self {
        let length = usize::try_from(keys.length).unwrap_or(usize::MAX);
        let shapes = [[keys.length], [keys.length + 1]];
        Self { keys, dtype, length, shapes }
    }

    /// The fields of every row.
    pub(super) fn fields(&self) -> Vec<Field> {
        let field = |name: &str, dtype, [length]: [u64; 1]| Field {
            name: name.to_owned(),
            kind: FieldKind::Array { dtype, shape: vec![length] },
        };
        let [row, one_more] = self.shapes;
        let labels = match self.keys.has_segments() {
            true => DType::I64,
            false => self.dtype,
        };
        let mut fields = vec![field(TOKENS, self.dtype, row)];
        if self.keys.labels != Labels::None {
            fields.push(field(LABELS, labels, row));
        }
        fields.extend(self.keys.boundaries.iter().map(|boundary| {
            let shape = if *boundary == Boundary::CuSeqlens { one_more } else { row };
            field(boundary.word(), DType::I32, shape)
        }));
        fields
    }

    /// Reads rows whose documents are not distinguished. Appends to `values`.
    pub(super) fn of_stream<'a>(
        &'a self,
        fetched: Cow<'a, [u8]>,
        values: &mut Vec<FieldValue<'a>>,
    ) {
        let token_bytes = self.token_bytes();
        let row_bytes = self.length * token_bytes;
        let ahead = match self.keys.labels {
            Labels::Shifted => Some(token_bytes),
            Labels::Same => Some(0),
            Labels::None => None,
        };
        for start in std::iter::once(0).chain(ahead) {
            let range = start..start + row_bytes;
            let bytes = match &fetched {
                Cow::Borrowed(bytes) => bytes.get(range).unwrap_or_default().into(),
                Cow::Owned(bytes) => bytes.get(range).unwrap_or_default().to_vec().into(),
            };
            values.push(self.array(self.dtype, false, bytes));
        }
    }

    /// Reads segments, from the row's tokens and, if present, the token of the last label. Appends to `values`.
    pub(super) fn of_segments<'a>(
        &'a self,
        row: Ends<'_>,
        bytes: Cow<'a, [u8]>,
        values: &mut Vec<FieldValue<'a>>,
    ) {
        if self.keys.labels != Labels::None {
            let labels = self.labels(row, &bytes);
            values.push(self.array(DType::I64, false, native(&labels, i64::to_le_bytes).into()));
        }
        let tokens = self.array(self.dtype, false, self.padded(row, bytes));
        let place = values.len() - usize::from(self.keys.labels != Labels::None);
        values.insert(place, tokens);
        for boundary in &self.keys.boundaries {
            let numbers = match boundary {
                Boundary::CuSeqlens => self.cu_seqlens(row.ends),
                Boundary::PositionIds => self.position_ids(row.ends),
                Boundary::SegmentIds => self.segment_ids(row.ends),
            };
            let is_longer = *boundary == Boundary::CuSeqlens;
            let bytes = native(&numbers, i32::to_le_bytes);
            values.push(self.array(DType::I32, is_longer, bytes.into()));
        }
    }

    fn array<'a>(&'a self, dtype: DType, is_longer: bool, bytes: Cow<'a, [u8]>) -> FieldValue<'a> {
        // Files of tokens are little endian, and so are the computed fields.
        let shape = &self.shapes[usize::from(is_longer)][..];
        FieldValue::Array(ArrayValue::new(dtype, shape, bytes))
    }

    fn token_bytes(&self) -> usize {
        usize::try_from(self.dtype.size_bytes()).unwrap_or(1)
    }

    /// Finds the ends of a window's documents: after each `end` token, and at the end of the row. Replaces the contents
    /// of `ends`; returns whether the last document continues.
    pub(super) fn find_ends(&self, bytes: &[u8], ends: &mut Vec<usize>) -> bool {
        ends.clear();
        if let Some(end) = self.keys.end_id() {
            find_token(bytes, self.token_bytes(), end, self.length, |place| ends.push(place + 1));
        }
        let goes_on = ends.last() != Some(&self.length);
        if goes_on {
            ends.push(self.length);
        }
        goes_on
    }

    fn padded<'a>(&self, row: Ends<'_>, bytes: Cow<'a, [u8]>) -> Cow<'a, [u8]> {
        let (token_bytes, filled) = (self.token_bytes(), filled(row.ends));
        if filled == self.length {
            let row_bytes = self.length * token_bytes;
            return match bytes {
                Cow::Borrowed(bytes) => bytes.get(..row_bytes).unwrap_or_default().into(),
                Cow::Owned(mut bytes) => {
                    bytes.truncate(row_bytes);
                    bytes.into()
                }
            };
        }
        let mut padded = Vec::with_capacity(self.length * token_bytes);
        padded.extend_from_slice(bytes.get(..filled * token_bytes).unwrap_or_default());
        let end = u64::from(self.keys.end_id().unwrap_or(0)).to_le_bytes();
        for _ in filled..self.length {
            padded.extend_from_slice(&end[..token_bytes]);
        }
        padded.into()
    }

    fn labels(&self, row: Ends<'_>, bytes: &[u8]) -> Vec<i64> {
        let filled = filled(row.ends);
        let mut labels = vec![IGNORED; self.length];
        match self.keys.labels {
            Labels::None => {}
            Labels::Same => {
                widen(bytes, self.dtype, &mut labels[..filled]);
                let starts = std::iter::once(0).chain(row.ends.iter().copied());
                for start in starts.filter(|start| *start < self.length) {
                    labels[start] = IGNORED;
                }
            }
            Labels::Shifted => {
                let ahead = bytes.get(self.token_bytes()..).unwrap_or_default();
                widen(ahead, self.dtype, &mut labels[..filled]);
                for end in row.ends.iter().filter(|end| !(row.goes_on && **end == filled)) {
                    labels[end - 1] = IGNORED;
                }
            }
        }
        labels
    }

    /// The end of each segment; padding is the last segment.
    fn all_ends(&self, ends: &[usize]) -> impl Iterator<Item = usize> {
        ends.iter().copied().chain((filled(ends) < self.length).then_some(self.length))
    }

    fn cu_seqlens(&self, ends: &[usize]) -> Vec<i32> {
        let mut numbers = Vec::with_capacity(self.length + 1);
        numbers.push(0);
        numbers.extend(self.all_ends(ends).map(number));
        numbers.resize(self.length + 1, number(self.length));
        numbers
    }

    fn position_ids(&self, ends: &[usize]) -> Vec<i32> {
        let mut numbers = Vec::with_capacity(self.length);
        let mut start = 0;
        for end in self.all_ends(ends) {
            numbers.extend((0..end - start).map(number));
            start = end;
        }
        numbers
    }

    fn segment_ids(&self, ends: &[usize]) -> Vec<i32> {
        let mut numbers = Vec::with_capacity(self.length);
        for (segment, end) in (1..).zip(ends) {
            numbers.resize(*end, segment);
        }
        numbers.resize(self.length, 0);
        numbers
    }
}

/// The number of tokens in a row, without padding.
fn filled(ends: &[usize]) -> usize {
    ends.last().copied().unwrap_or(0)
}

/// A position in a row; a row's length is far below 2^31.
fn number(place: usize) -> i32 {
    i32::try_from(place).unwrap_or(i32::MAX)
}

fn native<T: Copy, const N: usize>(numbers: &[T], to_bytes: impl Fn(T) -> [u8; N]) -> Vec<u8> {
    let mut bytes = vec![0; numbers.len() * N];
    for (to, from) in bytes.as_chunks_mut::<N>().0.iter_mut().zip(numbers) {
        *to = to_bytes(*from);
    }
    bytes
}

/// Converts tokens to numbers; as many as exist and fit.
fn widen(bytes: &[u8], dtype: DType, to: &mut [i64]) {
    fn from<const N: usize>(bytes: &[u8], to: &mut [i64], number: impl Fn([u8; N]) -> i64) {
        for (to, from) in to.iter_mut().zip(bytes.as_chunks::<N>().0) {
            *to = number(*from);
        }
    }
    match dtype {
        DType::I8 => from(bytes, to, |token| i64::from(i8::from_le_bytes(token))),
        DType::U16 => from(bytes, to, |token| i64::from(u16::from_le_bytes(token))),
        DType::I16 => from(bytes, to, |token| i64::from(i16::from_le_bytes(token))),
        DType::U32 => from(bytes, to, |token| i64::from(u32::from_le_bytes(token))),
        DType::I32 => from(bytes, to, |token| i64::from(i32::from_le_bytes(token))),
        DType::I64 => from(bytes, to, i64::from_le_bytes),
        DType::U64 => from(bytes, to, |token| u64::from_le_bytes(token).cast_signed()),
        _ => from(bytes, to, |token| i64::from(u8::from_le_bytes(token))),
    }
}

/// Calls `found` with the position of each token equal to `number` among the first `tokens`.
pub(super) fn find_token(
    bytes: &[u8],
    token_bytes: usize,
    number: u32,
    tokens: usize,
    mut found: impl FnMut(usize),
) {
    fn find<const N: usize>(
        bytes: &[u8],
        wanted: u64,
        tokens: usize,
        found: &mut dyn FnMut(usize),
    ) {
        let wanted: [u8; N] = std::array::from_fn(|place| wanted.to_le_bytes()[place]);
        for (place, token) in bytes.as_chunks::<N>().0.iter().take(tokens).enumerate() {
            if *token == wanted {
                found(place);
            }
        }
    }
    let number = u64::from(number);
    match token_bytes {
        1 => find::<1>(bytes, number, tokens, &mut found),
        2 => find::<2>(bytes, number, tokens, &mut found),
        4 => find::<4>(bytes, number, tokens, &mut found),
        _ => find::<8>(bytes, number, tokens, &mut found),
    }
}
