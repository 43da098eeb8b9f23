//! Masks as formats of labels store them: the outlines or the runs of objects, in an image's size.
//!
//! A mask is an image file to the rest of the program (`EncodedImage`): a format writes it with [`MaskDraft`] into its
//! index, `decode-image` reads it ([`CodedMask`]) and paints the objects, each with its value, later ones over earlier
//! ones. The bytes, all numbers in groups of 7 bits, lowest first:
//!
//! ```text
//! magic, width u32, height u32, little-endian; then for each object
//! value      what its pixels become, from 1 to 65,535
//! 0          an outline: its number of points, then x and y of each, as differences from the point before, zigzag
//! 1          runs: their number, then the length of each; outside and inside by turns, down each column, columns from
//!            left to right
//! ```
//!
//! Points are in fifths of a pixel and rounded as pycocotools rounds them, which loses nothing: its `frPoly` uses no more
//! of a coordinate.

/// The first bytes of a mask.
const MAGIC: &[u8; 8] = b"\x8bmask\r\n\x01";
const HEADER_BYTES: usize = 16;
/// The parts of a pixel that outlines are made of.
pub const STEPS_PER_PIXEL: i32 = 5;
/// The maximal distance of a point from the image's corner, in steps: far beyond any image.
const MAX_STEPS: f64 = 268_435_456.0;

const OUTLINE: u64 = 0;
const RUNS: u64 = 1;

/// A coordinate in steps, as pycocotools rounds it: `int(5 * x + 0.5)`. `None`: it is not near any image.
pub fn in_steps(coordinate: f64) -> Option<i32> {
    let steps = f64::from(STEPS_PER_PIXEL) * coordinate + 0.5;
    #[expect(clippy::cast_possible_truncation, reason = "checked, and truncated as in C")]
    (steps.abs() <= MAX_STEPS).then_some(steps as i32)
}

/// Whether bytes begin like a mask.
pub fn is_mask(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC)
}

/// A mask under construction.
#[derive(Debug)]
pub struct MaskDraft(Vec<u8>);

impl MaskDraft {
    /// A mask of an image of this size, without objects.
    pub fn new(width: u32, height: u32) -> Self {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&width.to_le_bytes());
        bytes.extend_from_slice(&height.to_le_bytes());
        Self(bytes)
    }

    /// Adds the parts of an object, as [`push_outline`] and [`push_runs`] have written them.
    pub fn add(&mut self, value: u16, mut parts: &[u8]) {
        while let Some(part) = take_part(&mut parts) {
            push_number(&mut self.0, value.into());
            self.0.extend_from_slice(part);
        }
    }

    /// The bytes of the mask.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

/// Appends an outline, of points in [steps](in_steps).
pub fn push_outline(points: &[[i32; 2]], bytes: &mut Vec<u8>) {
    push_number(bytes, OUTLINE);
    push_number(bytes, points.len() as u64);
    let mut before = [0, 0];
    for point in points {
        for (axis, last) in before.iter_mut().enumerate() {
            let difference = i64::from(point[axis]) - i64::from(*last);
            push_number(bytes, (difference << 1 ^ difference >> 63).cast_unsigned());
            *last = point[axis];
        }
    }
}

/// Appends runs: the lengths of what is outside and inside by turns.
pub fn push_runs(lengths: &[u32], bytes: &mut Vec<u8>) {
    push_number(bytes, RUNS);
    push_number(bytes, lengths.len() as u64);
    lengths.iter().for_each(|length| push_number(bytes, (*length).into()));
}

/// One part of an object.
#[derive(Debug, Clone, Copy)]
pub enum MaskPart<'a> {
    /// A closed outline.
    Outline(Points<'a>),
    /// The lengths of runs outside and inside of the object by turns.
    Runs(Numbers<'a>),
}

/// A mask's bytes.
#[derive(Debug, Clone, Copy)]
pub struct CodedMask<'a> {
    /// In pixels.
    pub width: u32,
    /// In pixels.
    pub height: u32,
    objects: &'a [u8],
}

impl<'a> CodedMask<'a> {
    /// Reads the header; `None`: the bytes are no mask.
    pub fn open(bytes: &'a [u8]) -> Option<Self> {
        let (header, objects) = bytes.split_at_checked(HEADER_BYTES)?;
        let rest = header.strip_prefix(MAGIC)?;
        let side = |at: usize| rest.get(at..)?.first_chunk().map(|side| u32::from_le_bytes(*side));
        Some(Self { width: side(0)?, height: side(4)?, objects })
    }

    /// The objects in order, each with its value; `None` in place of one that is cut off or malformed, which is the last.
    pub fn objects(self) -> impl Iterator<Item = Option<(u16, MaskPart<'a>)>> {
        let mut rest = self.objects;
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let object = take_object(&mut rest);
            if object.is_none() {
                rest = &[];
            }
            Some(object)
        })
    }
}

fn take_object<'a>(rest: &mut &'a [u8]) -> Option<(u16, MaskPart<'a>)> {
    let value = u16::try_from(take_number(rest)?).ok()?;
    let part = take_part(rest)?;
    let mut numbers = part;
    let kind = take_number(&mut numbers)?;
    take_number(&mut numbers)?;
    let numbers = Numbers(numbers);
    let part = if kind == OUTLINE {
        MaskPart::Outline(Points { numbers, at: [0, 0] })
    } else {
        MaskPart::Runs(numbers)
    };
    Some((value, part))
}

/// Removes the bytes of a part from the front of `rest`.
fn take_part<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let start = *rest;
    let numbers_each = match take_number(rest)? {
        OUTLINE => 2,
        RUNS => 1,
        _ => return None,
    };
    let count = take_number(rest)?.checked_mul(numbers_each)?;
    for _ in 0..count {
        take_number(rest)?;
    }
    start.get(..start.len() - rest.len())
}

/// The numbers of a part.
#[derive(Debug, Clone, Copy)]
pub struct Numbers<'a>(&'a [u8]);

impl Iterator for Numbers<'_> {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        take_number(&mut self.0)
    }
}

/// The points of an outline, in steps.
#[derive(Debug, Clone, Copy)]
pub struct Points<'a> {
    numbers: Numbers<'a>,
    at: [i32; 2],
}

impl Iterator for Points<'_> {
    type Item = [i32; 2];

    fn next(&mut self) -> Option<[i32; 2]> {
        for axis in 0..2 {
            let coded = self.numbers.next()?;
            let difference = (coded >> 1).cast_signed() ^ -(coded & 1).cast_signed();
            let place = i64::from(self.at[axis]).saturating_add(difference);
            // A damaged one stays near the image, where the bound on outlines refuses it.
            let most = i64::from(i32::MAX / 4);
            self.at[axis] = i32::try_from(place.clamp(-most, most)).unwrap_or(0);
        }
        Some(self.at)
    }
}

fn push_number(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    bytes.push(number.to_le_bytes()[0]);
}

/// Removes a number from the front; `None` if it is cut off.
fn take_number(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (byte, behind) = rest.split_first()?;
        *rest = behind;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_read_back_in_their_order() {
        let points = [[0, 0], [-7, 300], [1_000_000, -5]];
        let (mut outline, mut runs) = (Vec::new(), Vec::new());
        push_outline(&points, &mut outline);
        push_outline(&points[1..], &mut outline);
        push_runs(&[0, 200, 3_000_000_000], &mut runs);
        let mut draft = MaskDraft::new(640, 480);
        draft.add(1, &outline);
        draft.add(300, &runs);
        let bytes = draft.into_bytes();
        assert!(is_mask(&bytes));
        let mask = CodedMask::open(&bytes).unwrap();
        assert_eq!((mask.width, mask.height), (640, 480));
        let objects: Vec<_> = mask.objects().map(Option::unwrap).collect();
        let values: Vec<_> = objects.iter().map(|(value, _)| *value).collect();
        assert_eq!(values, [1, 1, 300]);
        let MaskPart::Outline(read) = objects[0].1 else { panic!() };
        assert_eq!(read.collect::<Vec<_>>(), points);
        let MaskPart::Outline(read) = objects[1].1 else { panic!() };
        assert_eq!(read.collect::<Vec<_>>(), points[1..]);
        let MaskPart::Runs(read) = objects[2].1 else { panic!() };
        assert_eq!(read.collect::<Vec<_>>(), [0, 200, 3_000_000_000]);
        // Cut off anywhere, it has fewer objects, or says that the last one is broken.
        for length in 0..bytes.len() {
            let cut = CodedMask::open(&bytes[..length]);
            let whole = cut.map_or(0, |cut| cut.objects().flatten().count());
            assert!(whole < 3, "{length}");
        }
    }

    #[test]
    fn coordinates_are_rounded_as_in_c() {
        assert_eq!([0.7, 0.1, 0.3, -0.1, -0.3, -1.0].map(in_steps), [4, 1, 2, 0, -1, -4].map(Some));
        assert_eq!((in_steps(f64::NAN), in_steps(1e9)), (None, None));
    }
}
