//! The `segmentation` of a COCO annotation: polygons, or runs, as numbers or as a string of pycocotools.

use serde::Deserialize;
use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::marker::PhantomData;

use forebay_dataset::mask::{in_steps, push_outline, push_runs};

/// The maximal length of a polygon or of a list of runs.
const MAX_NUMBERS: usize = 1 << 22;

/// A segmentation, as the parts of an object of a mask.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Segmentation {
    /// As [`MaskDraft::add`](forebay_dataset::mask::MaskDraft::add) takes them; empty: there are none.
    pub(super) parts: Vec<u8>,
    /// Height and width of the image, if runs state them.
    pub(super) size: Option<[u32; 2]>,
}

impl<'de> Deserialize<'de> for Segmentation {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Segmentations)
    }
}

struct Segmentations;

impl<'de> Visitor<'de> for Segmentations {
    type Value = Segmentation;

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .write_str("a segmentation, which is a list of polygons, or runs with counts and size")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Segmentation, E> {
        Ok(Segmentation::default())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut polygons: A) -> Result<Segmentation, A::Error> {
        let mut parts = Vec::new();
        while let Some(Polygon(points)) = polygons.next_element()? {
            // Fewer have no inside.
            if points.len() > 2 {
                push_outline(&points, &mut parts);
            }
        }
        Ok(Segmentation { parts, size: None })
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Segmentation, M::Error> {
        let (mut counts, mut size) = (None, None);
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "counts" => counts = Some(map.next_value::<Counts>()?.0),
                "size" => size = Some(map.next_value::<[u32; 2]>()?),
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        let (Some(counts), Some(size)) = (counts, size) else {
            return Err(de::Error::custom("a segmentation of runs has no counts or no size"));
        };
        let mut parts = Vec::new();
        push_runs(&counts, &mut parts);
        Ok(Segmentation { parts, size: Some(size) })
    }
}

/// The points of a polygon, in steps.
struct Polygon(Vec<[i32; 2]>);

impl<'de> Deserialize<'de> for Polygon {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let seed = Numbers(PhantomData::<f64>, "a polygon, which is [x, y, x, y, ...] in pixels");
        let numbers = seed.deserialize(deserializer)?;
        let (pairs, rest) = numbers.as_chunks::<2>();
        if !rest.is_empty() {
            return Err(de::Error::custom("a polygon has an odd number of coordinates"));
        }
        let point = |pair: &[f64; 2]| Some([in_steps(pair[0])?, in_steps(pair[1])?]);
        let points: Option<_> = pairs.iter().map(point).collect();
        let far =
            || de::Error::custom("a polygon has a coordinate that is far outside of any image");
        points.map(Self).ok_or_else(far)
    }
}

/// The lengths of runs.
struct Counts(Vec<u32>);

impl<'de> Deserialize<'de> for Counts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Counts;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("counts, which are a list of numbers or a string")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Counts, E> {
                let broken =
                    || E::custom("the counts of a segmentation are not what pycocotools writes");
                unpack(text.as_bytes()).map(Counts).ok_or_else(broken)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Counts, A::Error> {
                numbers(list).map(Counts)
            }
        }
        deserializer.deserialize_any(Any)
    }
}

/// A list of numbers, with a name for messages.
pub(super) struct Numbers<T>(pub(super) PhantomData<T>, pub(super) &'static str);

impl<'de, T: Deserialize<'de>> DeserializeSeed<'de> for Numbers<T> {
    type Value = Vec<T>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vec<T>, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for Numbers<T> {
    type Value = Vec<T>;

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.1)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Vec<T>, A::Error> {
        numbers(list)
    }
}

/// The numbers of a list that is not too long.
fn numbers<'de, T: Deserialize<'de>, A: SeqAccess<'de>>(mut list: A) -> Result<Vec<T>, A::Error> {
    let mut numbers = Vec::new();
    while let Some(number) = list.next_element()? {
        if numbers.len() == MAX_NUMBERS {
            return Err(de::Error::custom(format!(
                "a list of an annotation has more than {MAX_NUMBERS} numbers"
            )));
        }
        numbers.push(number);
    }
    Ok(numbers)
}

/// The lengths that pycocotools packs into a string: five bits a character, lowest first, and from the fourth length on
/// the difference to the one before the last.
fn unpack(text: &[u8]) -> Option<Vec<u32>> {
    let mut counts: Vec<u32> = Vec::new();
    let mut rest = text.iter();
    while !rest.as_slice().is_empty() {
        let (mut number, mut shift) = (0_i64, 0);
        loop {
            let bits = rest.next()?.checked_sub(48).filter(|bits| *bits < 64)?;
            number |= i64::from(bits & 0x1f) << shift;
            shift += 5;
            if bits & 0x20 == 0 {
                if bits & 0x10 != 0 {
                    number |= -1 << shift;
                }
                break;
            }
            // Seven characters hold more than any length.
            if shift > 30 {
                return None;
            }
        }
        if counts.len() > 2 {
            number += i64::from(counts[counts.len() - 2]);
        }
        counts.push(u32::try_from(number).ok()?);
    }
    Some(counts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_dataset::mask::{CodedMask, MaskDraft, MaskPart};

    fn read(json: &str) -> Result<Segmentation, String> {
        serde_json::from_str(json).map_err(|error| error.to_string())
    }

    fn runs(json: &str) -> Vec<u64> {
        let mut draft = MaskDraft::new(1, 1);
        draft.add(1, &read(json).unwrap().parts);
        let bytes = draft.into_bytes();
        let objects: Vec<_> = CodedMask::open(&bytes).unwrap().objects().flatten().collect();
        match objects[..] {
            [(1, MaskPart::Runs(lengths))] => lengths.collect(),
            _ => panic!("{objects:?}"),
        }
    }

    #[test]
    fn packed_runs_are_those_that_are_written_as_numbers() {
        // `pycocotools.mask.frPyObjects({"counts": [6, 1, 40, 4, 5, 4, 5, 4, 21], "size": [9, 10]}, 9, 10)["counts"]`
        let packed = runs(r#"{"size": [9, 10], "counts": "61X13mN000`0"}"#);
        let plain = runs(r#"{"counts": [6, 1, 40, 4, 5, 4, 5, 4, 21], "size": [9, 10]}"#);
        assert_eq!(packed, plain);
        assert_eq!(read(r#"{"counts": [], "size": [9, 10]}"#).unwrap().size, Some([9, 10]));
    }

    #[test]
    fn what_is_no_segmentation_is_named() {
        for (json, reason) in [
            ("7", "a list of polygons, or runs with counts and size"),
            ("[7]", "a polygon, which is [x, y, x, y, ...]"),
            ("[[1, 2, 3]]", "an odd number of coordinates"),
            ("[[1, 2, 3, 1e300]]", "far outside of any image"),
            (r#"{"counts": [1]}"#, "no counts or no size"),
            (r#"{"size": [1, 1]}"#, "no counts or no size"),
            (r#"{"counts": [-1], "size": [1, 1]}"#, "invalid value"),
            (r#"{"counts": "!", "size": [1, 1]}"#, "not what pycocotools writes"),
            (r#"{"counts": "oooooooooooo", "size": [1, 1]}"#, "not what pycocotools writes"),
            (r#"{"counts": "P", "size": [1, 1]}"#, "not what pycocotools writes"),
            (r#"{"counts": "@", "size": [1, 1]}"#, "not what pycocotools writes"),
        ] {
            let error = read(json).unwrap_err();
            assert!(error.contains(reason), "{json}: {error}");
        }
        for none in ["null", "[]", "[[]]", "[[1, 2, 3, 4]]"] {
            assert_eq!(read(none).unwrap(), Segmentation::default(), "{none}");
        }
    }
}
