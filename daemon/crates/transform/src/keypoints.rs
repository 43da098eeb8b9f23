//! Keypoints of objects: an array float32 [n, k, 3] with a row for each box, of x, y and visibility (COCO's: 0 is not
//! labelled, 1 hidden, 2 visible).
//!
//! A point that leaves the image becomes one that is not labelled, and all of those are zeros, as in Detectron2.

use forebay_dataset::FieldKind;
use forebay_media::array::ArrayBuffer;
use forebay_media::size::Size;
use forebay_protocol::tensor::DType;

/// x and y in pixels.
pub(crate) type Place = [f32; 2];

/// The number of keypoints of each object, if an array has keypoints.
pub(crate) fn points_of(kind: &FieldKind) -> Option<u64> {
    match kind {
        FieldKind::RaggedArray { dtype: DType::F32, row_shape } => match row_shape[..] {
            [count, 3] => Some(count),
            _ => None,
        },
        _ => None,
    }
}

/// Refuses pairs of points that an object does not have, and points of several pairs.
///
/// # Errors
/// The reason.
pub(crate) fn check_pairs(pairs: &[[u32; 2]], count: u64) -> Result<(), String> {
    let mut seen = Vec::new();
    for point in pairs.iter().flatten() {
        if u64::from(*point) >= count {
            return Err(format!(
                "there is no point {point}: the points are 0 to {}",
                count.saturating_sub(1)
            ));
        }
        if seen.contains(point) {
            return Err(format!("the point {point} is there twice"));
        }
        seen.push(*point);
    }
    Ok(())
}

/// Moves the points of an array of keypoints in an image of this size, then exchanges those of each pair; other arrays
/// are unchanged.
pub(crate) fn move_points(
    array: &mut ArrayBuffer,
    size: Size,
    place: impl Fn(Place) -> Place,
    pairs: &[[u32; 2]],
) {
    let (DType::F32, [_, count, 3]) = (array.dtype, &array.shape[..]) else { return };
    let count = usize::try_from(*count).unwrap_or(usize::MAX);
    #[expect(clippy::cast_precision_loss, reason = "a side of an image")]
    let (width, height) = (size.width as f32, size.height as f32);
    let (numbers, _) = array.bytes.as_chunks_mut::<4>();
    let (points, _) = numbers.as_chunks_mut::<3>();
    for point in &mut *points {
        let [x, y, visibility] = point.map(f32::from_ne_bytes);
        let [x, y] = place([x, y]);
        let is_inside = (0.0..=width).contains(&x) && (0.0..=height).contains(&y);
        let is_labelled = visibility > 0.0 && is_inside;
        let moved = if is_labelled { [x, y, visibility] } else { [0.0; 3] };
        *point = moved.map(f32::to_ne_bytes);
    }
    for object in points.chunks_exact_mut(count.max(1)) {
        for [first, second] in pairs {
            let [first, second] = [first, second].map(|point| *point as usize);
            if first.max(second) < object.len() {
                object.swap(first, second);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_move_leave_and_change_places() {
        let points =
            [[10.0, 5.0, 2.0], [90.0, 6.0, 1.0], [3.0, 4.0, 0.0], [f32::NAN, 1.0, 2.0_f32]];
        let mut array = ArrayBuffer {
            dtype: DType::F32,
            shape: vec![1, 4, 3],
            bytes: points.iter().flatten().flat_map(|number| number.to_ne_bytes()).collect(),
        };
        let size = Size { width: 50, height: 20 };
        move_points(&mut array, size, |[x, y]| [x - 5.0, y], &[[0, 3]]);
        let read = |array: &ArrayBuffer| -> Vec<f32> {
            array.bytes.as_chunks().0.iter().map(|number| f32::from_ne_bytes(*number)).collect()
        };
        let zeros = [0.0; 3];
        assert_eq!(read(&array), [zeros, zeros, zeros, [5.0, 5.0, 2.0]].concat());
        array.shape = vec![4, 3];
        move_points(&mut array, size, |_| [1.0; 2], &[]);
        assert_eq!(read(&array)[9..], [5.0, 5.0, 2.0], "boxes' other arrays do not move");
    }

    #[test]
    fn pairs_are_of_points_that_exist_once() {
        assert_eq!(check_pairs(&[[1, 2], [0, 3]], 4), Ok(()));
        assert!(check_pairs(&[[1, 4]], 4).unwrap_err().contains("no point 4"));
        assert!(check_pairs(&[[1, 2], [2, 3]], 4).unwrap_err().contains("2 is there twice"));
    }
}
