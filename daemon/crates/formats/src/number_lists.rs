//! Columns of JSON whose values are lists of numbers: arrays. The index keeps a list's text; here it becomes an array when a
//! sample is read.
//!
//! Whether a column is one its first rows say. All rows say whether it has floats, and whether all arrays have one shape.

use std::fmt;

use forebay_protocol::tensor::DType;
use serde::de::{DeserializeSeed, Deserializer, Error, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};

use forebay_dataset::{ArrayValue, Defect};

/// Dimensions that an array may have, as NumPy's.
const MAX_DIMENSIONS: usize = 32;

/// What the lists of a column have in common.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ListForm {
    /// Whether a row has a number that is not whole, or does not fit into an int64: then all are float64.
    is_float: bool,
    /// The shape of a list's elements; `None`: only empty lists were seen.
    row: Option<Vec<u64>>,
    /// The elements of the shortest and of the longest list; `None`: no list was seen.
    lengths: Option<(u64, u64)>,
}

impl ListForm {
    /// Takes note of a row's list. False: it is no list of numbers, or of another shape than those before.
    pub(crate) fn add(&mut self, text: &[u8]) -> bool {
        let Ok(list) = List::parse(text, Kept::Nothing) else { return false };
        if list.length() > 0 && self.row.as_deref().is_some_and(|row| row != list.row()) {
            return false;
        }
        self.is_float |= list.is_float;
        if list.length() > 0 && self.row.is_none() {
            self.row = Some(list.row().to_vec());
        }
        let length = list.length();
        let (least, most) = self.lengths.unwrap_or((length, length));
        self.lengths = Some((least.min(length), most.max(length)));
        true
    }

    /// Whether rows say what the arrays are.
    pub(crate) fn is_known(&self) -> bool {
        self.row.is_some()
    }

    pub(crate) fn dtype(&self) -> DType {
        if self.is_float { DType::F64 } else { DType::I64 }
    }

    /// The shape of an array of so many elements.
    fn shape(&self, length: u64) -> Vec<u64> {
        [&[length], self.row.as_deref().unwrap_or_default()].concat()
    }

    /// That of the first sample, or of the longest.
    pub(crate) fn first_shape(&self, first: Option<&[u8]>) -> Vec<u64> {
        let first = first.and_then(|text| List::parse(text, Kept::Nothing).ok());
        let longest = self.lengths.map_or(0, |(_, most)| most);
        self.shape(first.map_or(longest, |list| list.length()))
    }

    pub(crate) fn rows_differ(&self) -> bool {
        self.lengths.is_some_and(|(least, most)| least != most)
    }

    /// The bytes of the longest array.
    pub(crate) fn longest_bytes(&self) -> u64 {
        let longest = self.lengths.map_or(0, |(_, most)| most);
        self.shape(longest).iter().fold(8, |all: u64, axis| all.saturating_mul(*axis))
    }

    /// The array that a row's text is.
    ///
    /// # Errors
    /// It is none, or one of another shape than the others.
    pub(crate) fn value(&self, name: &str, text: &[u8]) -> Result<ArrayValue<'static>, Defect> {
        let kept = if self.is_float { Kept::Floats } else { Kept::Integers };
        let list = List::parse(text, kept).map_err(|error| {
            let shown = String::from_utf8_lossy(&text[..text.len().min(40)]).into_owned();
            let reason = error.to_string();
            let reason = reason.split(" at line ").next().unwrap_or_default();
            Defect(format!("`{name}` is no list of numbers: {shown:?}: {reason}"))
        })?;
        let row = self.row.as_deref().unwrap_or_default();
        if list.length() > 0 && list.row() != row {
            return Err(Defect(format!(
                "`{name}` has the shape {:?}, and elements of other rows have {row:?}: only the first dimension may differ",
                list.shape
            )));
        }
        if list.is_float && !self.is_float {
            return Err(Defect(format!(
                "`{name}` has numbers that are not whole, and no other row has"
            )));
        }
        Ok(ArrayValue::new(self.dtype(), self.shape(list.length()), list.bytes))
    }
}

/// A list of numbers, or of such lists.
#[derive(Debug, Default)]
struct List {
    /// The length of the first list of each depth; `None` until that list has ended.
    axes: Vec<Option<u64>>,
    shape: Vec<u64>,
    is_float: bool,
    /// How many lists each number is in.
    depth: Option<usize>,
    /// What is kept of the numbers.
    kept: Kept,
    bytes: Vec<u8>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Kept {
    #[default]
    Nothing,
    Integers,
    Floats,
}

impl List {
    fn parse(text: &[u8], kept: Kept) -> Result<Self, serde_json::Error> {
        let mut list = Self { kept, ..Self::default() };
        let mut json = serde_json::Deserializer::from_slice(text);
        Element { list: &mut list, depth: 0 }.deserialize(&mut json)?;
        json.end()?;
        if list.axes.is_empty() || list.depth.is_some_and(|depth| depth != list.axes.len()) {
            return Err(Error::custom("it is not one list, or numbers stand beside lists"));
        }
        list.shape = list.axes.iter().map(|axis| axis.unwrap_or(0)).collect();
        Ok(list)
    }

    fn length(&self) -> u64 {
        self.shape.first().copied().unwrap_or(0)
    }

    /// The shape of its elements.
    fn row(&self) -> &[u64] {
        self.shape.get(1..).unwrap_or_default()
    }

    /// `whole`: the number, where it is whole and fits.
    fn push<E: Error>(&mut self, depth: usize, whole: Option<i64>, float: f64) -> Result<(), E> {
        if *self.depth.get_or_insert(depth) != depth {
            return Err(E::custom("numbers stand beside lists"));
        }
        self.is_float |= whole.is_none();
        match (self.kept, whole) {
            (Kept::Nothing, _) => {}
            (Kept::Integers, whole) => {
                self.bytes.extend_from_slice(&whole.unwrap_or_default().to_le_bytes());
            }
            (Kept::Floats, _) => self.bytes.extend_from_slice(&float.to_le_bytes()),
        }
        Ok(())
    }
}

/// A number, or a list of elements.
struct Element<'l> {
    list: &'l mut List,
    /// The lists around it.
    depth: usize,
}

impl<'de> DeserializeSeed<'de> for Element<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Element<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a number or a list")
    }

    #[expect(clippy::cast_precision_loss, reason = "another number is a float")]
    fn visit_i64<E: Error>(self, value: i64) -> Result<(), E> {
        self.list.push(self.depth, Some(value), value as f64)
    }

    #[expect(clippy::cast_precision_loss, reason = "another number is a float")]
    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        self.list.push(self.depth, i64::try_from(value).ok(), value as f64)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<(), E> {
        self.list.push(self.depth, None, value)
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut elements: S) -> Result<(), S::Error> {
        let Self { list, depth } = self;
        if depth == MAX_DIMENSIONS {
            return Err(S::Error::custom(format!("it has more than {MAX_DIMENSIONS} dimensions")));
        }
        if list.axes.len() == depth {
            list.axes.push(None);
        }
        let mut count = 0;
        while elements.next_element_seed(Element { list: &mut *list, depth: depth + 1 })?.is_some()
        {
            count += 1;
        }
        match list.axes[depth].replace(count) {
            Some(other) if other != count => {
                Err(S::Error::custom(format!("lists in it have {other} and {count} elements")))
            }
            _ => Ok(()),
        }
    }
}

#[test]
fn lists_of_one_shape_are_arrays_and_others_are_not() {
    for (text, shape) in [
        ("[]", Some(&[0][..])),
        ("[1, 2, 3]", Some(&[3])),
        ("[[1, 2], [3, -4], [0.5, 6e2]]", Some(&[3, 2])),
        ("[[[18446744073709551615]]]", Some(&[1, 1, 1])),
        ("[[], []]", Some(&[2, 0])),
        ("1", None),
        ("[1, [2]]", None),
        ("[[], 1]", None),
        ("[[1], [2, 3]]", None),
        ("[1, null]", None),
        ("[true]", None),
        ("[\"1\"]", None),
        ("[{}]", None),
        ("[1", None),
        ("[1] [2]", None),
    ] {
        let found = List::parse(text.as_bytes(), Kept::Nothing).ok();
        assert_eq!(found.as_ref().map(|list| &list.shape[..]), shape, "{text}");
    }
    let deep = "[".repeat(100) + &"]".repeat(100);
    List::parse(deep.as_bytes(), Kept::Nothing).unwrap_err();
}
