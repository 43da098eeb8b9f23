//! The values that are classes: their numbers while they are read, and their bytes in a saved file.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use super::Found;

/// The most classes.
const MOST_CLASSES: usize = 1 << 24;
/// The most bytes of one class's text.
const MOST_BYTES: usize = 4_096;
/// The most bytes of the text of all classes.
const MOST_BYTES_OF_ALL: usize = 256 << 20;

const NUMBER: u8 = 0;
const TEXT: u8 = 1;

/// The value of a class.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum ClassValue {
    Number(i64),
    Text(Box<str>),
}

/// The values so far, each with the number of its class. Shared by threads, so the numbers are in no order.
#[derive(Debug, Default)]
pub(crate) struct ClassValues {
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    numbers: HashMap<ClassValue, u32>,
    bytes: usize,
    /// Why a value has no number, if all further ones have none either.
    too_many: Option<String>,
}

impl ClassValues {
    /// The number of a value's class, or why it has none.
    pub(crate) fn number_of(&self, value: ClassValue) -> Result<u32, String> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let Known { numbers, bytes, too_many } = &mut *known;
        if let Some(number) = numbers.get(&value) {
            return Ok(*number);
        }
        let length = match &value {
            ClassValue::Number(_) => 0,
            ClassValue::Text(text) => text.len(),
        };
        if length > MOST_BYTES {
            return Err(format!("its text has {length} bytes, and a class at most {MOST_BYTES}"));
        }
        if numbers.len() == MOST_CLASSES {
            *too_many = Some(format!("there are more than {MOST_CLASSES} classes"));
        } else if *bytes + length > MOST_BYTES_OF_ALL {
            *too_many = Some(format!(
                "the texts of all classes have more than {MOST_BYTES_OF_ALL} bytes; use a field of numbers"
            ));
        }
        if let Some(reason) = too_many {
            return Err(reason.clone());
        }
        *bytes += length;
        let number = u32::try_from(numbers.len()).unwrap_or(u32::MAX);
        numbers.insert(value, number);
        Ok(number)
    }

    /// Why there are too many classes.
    pub(crate) fn too_many(&self) -> Option<String> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).too_many.clone()
    }

    /// Takes the values out: the classes of samples, numbered in the order of the values, and the values. A number that is
    /// none of a class stays.
    pub(crate) fn in_order(&self, class_of: Vec<u32>) -> Found {
        let known = std::mem::take(&mut *self.known.lock().unwrap_or_else(PoisonError::into_inner));
        let mut sorted: Vec<(ClassValue, u32)> = known.numbers.into_iter().collect();
        sorted.sort_unstable();
        let mut places = vec![0; sorted.len()];
        for (place, (_, number)) in (0_u32..).zip(&sorted) {
            places[*number as usize] = place;
        }
        let mut class_of = class_of;
        for class in &mut class_of {
            *class = places.get(*class as usize).copied().unwrap_or(*class);
        }
        (class_of, sorted.into_iter().map(|(value, _)| value).collect())
    }
}

impl ClassValue {
    /// Values for a saved file.
    pub(crate) fn write_all(values: &[Self]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for value in values {
            match value {
                Self::Number(number) => {
                    bytes.push(NUMBER);
                    bytes.extend(number.to_le_bytes());
                }
                Self::Text(text) => {
                    bytes.push(TEXT);
                    bytes.extend((text.len() as u64).to_le_bytes());
                    bytes.extend(text.as_bytes());
                }
            }
        }
        bytes
    }

    /// The values of a saved file; `None`: they are damaged.
    pub(crate) fn read_all(bytes: &[u8]) -> Option<Vec<Self>> {
        let (mut values, mut rest) = (Vec::new(), bytes);
        while let Some((kind, behind)) = rest.split_first() {
            let (number, behind) = behind.split_first_chunk()?;
            rest = behind;
            values.push(match *kind {
                NUMBER => Self::Number(i64::from_le_bytes(*number)),
                TEXT => {
                    let length = usize::try_from(u64::from_le_bytes(*number)).ok()?;
                    let (text, behind) = rest.split_at_checked(length)?;
                    rest = behind;
                    Self::Text(std::str::from_utf8(text).ok()?.into())
                }
                _ => return None,
            });
        }
        Some(values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> ClassValue {
        ClassValue::Text(text.into())
    }

    #[test]
    fn classes_are_numbered_in_the_order_of_their_values() {
        let values = ClassValues::default();
        let numbers =
            ["dog", "cat", "dog", "ant"].map(|word| values.number_of(text(word)).unwrap());
        assert_eq!(numbers, [0, 1, 0, 2]);
        let (class_of, values) = values.in_order([&numbers[..], &[u32::MAX]].concat());
        assert_eq!(class_of, [2, 1, 2, 0, u32::MAX]);
        assert_eq!(values, ["ant", "cat", "dog"].map(text));
        let values = ClassValues::default();
        let numbers = [7, -2, 30].map(|of| values.number_of(ClassValue::Number(of)).unwrap());
        let (class_of, values) = values.in_order(numbers.into());
        assert_eq!(class_of, [1, 0, 2]);
        assert_eq!(values, [-2, 7, 30].map(ClassValue::Number));
    }

    #[test]
    fn texts_and_their_number_are_bounded() {
        let values = ClassValues::default();
        let error = values.number_of(text(&"x".repeat(MOST_BYTES + 1))).unwrap_err();
        assert!(error.contains("4097 bytes"), "{error}");
        assert_eq!(values.too_many(), None);
        let long = |number: usize| text(&format!("{number:0>4096}"));
        let most = MOST_BYTES_OF_ALL / MOST_BYTES;
        values.known.lock().unwrap().bytes = (most - 1) * MOST_BYTES;
        assert_eq!(values.number_of(long(1)), Ok(0));
        let error = values.number_of(long(2)).unwrap_err();
        assert_eq!((Some(error), values.number_of(long(1))), (values.too_many(), Ok(0)));
    }

    #[test]
    fn saved_values_are_read_again_and_damaged_ones_are_not() {
        let values = [ClassValue::Number(i64::MIN), text(""), text("ä\0b"), ClassValue::Number(3)];
        let bytes = ClassValue::write_all(&values);
        assert_eq!(ClassValue::read_all(&bytes).as_deref(), Some(&values[..]));
        for length in 0..bytes.len() {
            let cut = ClassValue::read_all(&bytes[..length]);
            assert!(cut.is_none_or(|cut| cut.len() < values.len()), "{length}");
        }
        let mut wrong = bytes;
        wrong[0] = 2;
        assert_eq!(ClassValue::read_all(&wrong), None);
        assert_eq!(ClassValue::read_all(&[TEXT, 255, 255, 255, 255, 255, 255, 255, 255]), None);
        assert_eq!(ClassValue::read_all(&[TEXT, 1, 0, 0, 0, 0, 0, 0, 0, 0xff]), None);
    }
}
