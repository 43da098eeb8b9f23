//! A parser of `tf.train.Example` in protocol buffers (tensorflow/core/example/example.proto and feature.proto):
//!
//! ```text
//! Example   1: Features
//! Features  1: map entry, repeated    { 1: key, 2: Feature }
//! Feature   1: BytesList { 1: bytes, repeated }   2: FloatList { 1: float, repeated }
//!           3: Int64List { 1: int64, repeated }
//! ```
//!
//! Numbers may be packed. Entries have any order; if a key occurs twice, the last one counts. If a feature has lists of
//! two kinds, the last kind counts; several lists of one kind are one list. Values are not copied until they are
//! requested.

use std::borrow::Cow;

use forebay_columnar::protobuf::{self, BYTES, FIXED32, Part, VARINT};
use forebay_storage::varint;

/// The number and the wire type of a field.
type Tag = (u64, u8);

/// Why bytes are not an Example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A message ends within a field, or a number is too long.
    CutOff,
    /// A field has another type than in TensorFlow.
    WrongType,
    /// It is a SequenceExample.
    Sequence,
    /// It has no features, where some are expected.
    Empty,
}

impl Fault {
    pub(crate) const fn words(self) -> &'static str {
        match self {
            Self::CutOff => "it is no tf.train.Example: a message is cut off",
            Self::Empty => "it is no tf.train.Example: it has no features",
            Self::WrongType => "it is no tf.train.Example: a message has a field of another type",
            Self::Sequence => {
                "it is a tf.train.SequenceExample, and tf.train.Example is read; write its lists as features of an Example"
            }
        }
    }
}

/// The next field: its tag, and its bytes; for a varint, its encoded bytes.
fn field<'a>(rest: &mut &'a [u8]) -> Result<(Tag, &'a [u8]), Fault> {
    let part = Part::take(rest).map_err(|fault| match fault {
        protobuf::Fault::CutOff => Fault::CutOff,
        protobuf::Fault::UnknownType => Fault::WrongType,
    })?;
    Ok(((part.number, part.form), part.bytes))
}

/// The message in a field of a message.
pub(crate) fn inner(bytes: &[u8], number: u64) -> Option<&[u8]> {
    let mut rest = bytes;
    while !rest.is_empty() {
        let (tag, value) = field(&mut rest).ok()?;
        if tag == (number, BYTES) {
            return Some(value);
        }
    }
    None
}

/// The numbers of a message's first fields, 0 where there is none; `None`: it is no message of numbers.
pub(crate) fn numbers<const N: usize>(message: &[u8]) -> Option<[u64; N]> {
    let (mut rest, mut numbers) = (message, [0; N]);
    while !rest.is_empty() {
        let ((number, form), mut value) = field(&mut rest).ok()?;
        let place = usize::try_from(number).ok()?.checked_sub(1);
        let Some(found) = place.and_then(|place| numbers.get_mut(place)) else { continue };
        *found = varint::take(&mut value).filter(|_| form == VARINT)?;
    }
    Some(numbers)
}

/// Calls `visit` with each key and its feature.
///
/// # Errors
/// The bytes are not an Example.
pub(crate) fn features<'a>(
    example: &'a [u8],
    mut visit: impl FnMut(&'a [u8], Feature<'a>),
) -> Result<(), Fault> {
    let mut rest = example;
    while !rest.is_empty() {
        match field(&mut rest)? {
            ((1, BYTES), mut features) => {
                while !features.is_empty() {
                    match field(&mut features)? {
                        ((1, BYTES), entry) => {
                            let (key, feature) = entry_of(entry)?;
                            visit(key, feature);
                        }
                        ((1, _), _) => return Err(Fault::WrongType),
                        _ => {}
                    }
                }
            }
            ((1, _), _) => return Err(Fault::WrongType),
            ((2, BYTES), _) => return Err(Fault::Sequence),
            _ => {}
        }
    }
    Ok(())
}

fn entry_of(entry: &[u8]) -> Result<(&[u8], Feature<'_>), Fault> {
    let (mut rest, mut key, mut feature) = (entry, &[][..], &[][..]);
    while !rest.is_empty() {
        match field(&mut rest)? {
            ((1, BYTES), found) => key = found,
            ((2, BYTES), found) => feature = found,
            ((1 | 2, _), _) => return Err(Fault::WrongType),
            _ => {}
        }
    }
    Ok((key, Feature::of(feature)?))
}

/// The kinds of lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Bytes,
    Floats,
    Integers,
}

/// One feature: a list of values of one kind.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Feature<'a> {
    /// `None`: the feature has no list.
    pub(crate) kind: Option<Kind>,
    /// The message from the first list of its kind on.
    lists: &'a [u8],
    pub(crate) count: usize,
}

impl<'a> Feature<'a> {
    fn of(message: &'a [u8]) -> Result<Self, Fault> {
        let (mut rest, mut kind, mut lists) = (message, None, message);
        while !rest.is_empty() {
            let before = rest;
            let found = match field(&mut rest)? {
                ((1, BYTES), _) => Kind::Bytes,
                ((2, BYTES), _) => Kind::Floats,
                ((3, BYTES), _) => Kind::Integers,
                ((1..=3, _), _) => return Err(Fault::WrongType),
                _ => continue,
            };
            if kind != Some(found) {
                (kind, lists) = (Some(found), before);
            }
        }
        let mut feature = Self { kind, lists, count: 0 };
        let mut count = 0_usize;
        feature.runs(|run| {
            count += match feature.kind {
                Some(Kind::Floats) => run.len() / 4,
                // The last byte of each number has its highest bit clear.
                Some(Kind::Integers) => run.iter().filter(|byte| **byte & 0x80 == 0).count(),
                _ => 1,
            };
            Ok(())
        })?;
        feature.count = count;
        Ok(feature)
    }

    /// Calls `visit` with each bytes value, or with each run of numbers: a packed run, or a single number.
    fn runs(&self, mut visit: impl FnMut(&'a [u8]) -> Result<(), Fault>) -> Result<(), Fault> {
        let mut rest = self.lists;
        while !rest.is_empty() {
            let ((1..=3, _), mut list) = field(&mut rest)? else { continue };
            while !list.is_empty() {
                let ((1, form), run) = field(&mut list)? else { continue };
                let is_right = match self.kind {
                    Some(Kind::Bytes) => form == BYTES,
                    Some(Kind::Floats) => {
                        form == FIXED32 || (form == BYTES && run.len().is_multiple_of(4))
                    }
                    Some(Kind::Integers) => {
                        form == VARINT
                            || (form == BYTES && run.last().is_none_or(|last| last & 0x80 == 0))
                    }
                    None => false,
                };
                if !is_right {
                    return Err(Fault::WrongType);
                }
                visit(run)?;
            }
        }
        Ok(())
    }

    /// The first bytes value.
    pub(crate) fn bytes(&self) -> Option<&'a [u8]> {
        let mut first = None;
        let _ = self.runs(|run| {
            first = first.or(Some(run));
            Ok(())
        });
        first.filter(|_| self.kind == Some(Kind::Bytes))
    }

    /// The bytes of the floats, little endian: borrowed if they are one run, otherwise concatenated.
    pub(crate) fn floats(&self) -> Cow<'a, [u8]> {
        let mut floats = Cow::Borrowed(&[][..]);
        let _ = self.runs(|run| {
            match floats.is_empty() {
                true => floats = Cow::Borrowed(run),
                false => floats.to_mut().extend_from_slice(run),
            }
            Ok(())
        });
        floats
    }

    /// Calls `visit` with each number.
    ///
    /// # Errors
    /// A number is too long.
    pub(crate) fn integers(&self, mut visit: impl FnMut(i64)) -> Result<(), Fault> {
        self.runs(|mut run| {
            while !run.is_empty() {
                visit(varint::take(&mut run).ok_or(Fault::CutOff)?.cast_signed());
            }
            Ok(())
        })
    }

    /// The memory that reading it as an array allocates.
    pub(crate) fn unpacked_bytes(&self) -> u64 {
        match self.kind {
            Some(Kind::Integers) => 8 * self.count as u64,
            // Packed floats are used in place.
            Some(Kind::Floats) => 4 * self.count as u64,
            _ => 0,
        }
    }
}
