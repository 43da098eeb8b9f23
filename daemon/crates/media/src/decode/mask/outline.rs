//! The pixels inside of an outline, as pycocotools' `rleFrPoly` finds them: the outline is followed in steps of a fifth
//! of a pixel, and where it crosses the middle of a column, the inside begins or ends.

use crate::size::Size;
use forebay_dataset::mask::{Points, STEPS_PER_PIXEL};

/// The steps that all outlines of a mask may have: for each pixel, and for any image. Outlines that touch each pixel of
/// an image several times are within it.
const MOST_STEPS: (u64, u64) = (20, 1 << 20);

/// The step of a pixel that its middle is.
const MIDDLE: i32 = STEPS_PER_PIXEL / 2;

/// The points of an outline, and the first one again.
fn closed(points: Points<'_>) -> impl Iterator<Item = [i32; 2]> {
    let mut again = points;
    points.chain(again.next())
}

/// The work of a mask's outlines, counted before they are followed.
pub(super) struct Effort {
    left: u64,
}

impl Effort {
    pub(super) const fn new(size: Size) -> Self {
        let area = size.width as u64 * size.height as u64;
        Self { left: MOST_STEPS.0 * area + MOST_STEPS.1 }
    }

    /// The maximal number of crossings of an outline; `None`: the outlines have too many steps.
    pub(super) fn add(&mut self, points: Points<'_>) -> Option<u64> {
        let mut crossings = 0;
        let mut before: Option<[i32; 2]> = None;
        for point in closed(points) {
            if let Some([x, y]) = before {
                let (across, down) = (x.abs_diff(point[0]), y.abs_diff(point[1]));
                self.left = self.left.checked_sub(u64::from(across.max(down)) + 1)?;
                crossings += u64::from(across / STEPS_PER_PIXEL.unsigned_abs()) + 1;
            }
            before = Some(point);
        }
        Some(crossings)
    }
}

/// Where an outline crosses the middles of columns: numbers of pixels, counted down the columns.
pub(super) struct Crossings(Vec<u32>);

impl Crossings {
    pub(super) fn with_capacity(crossings: usize) -> Self {
        Self(Vec::with_capacity(crossings))
    }

    /// The runs of pixels inside of an outline: the first one, and the one after the last.
    pub(super) fn of(&mut self, points: Points<'_>, size: Size) -> impl Iterator<Item = [u32; 2]> {
        self.0.clear();
        let mut last: Option<[i32; 2]> = None;
        let mut before: Option<[i32; 2]> = None;
        for point in closed(points) {
            if let Some(from) = before {
                follow(from, point, |place| {
                    if let Some(last) = last.filter(|last| last[0] != place[0]) {
                        self.0.extend(crossing(last, place, size));
                    }
                    last = Some(place);
                });
            }
            before = Some(point);
        }
        self.0.sort_unstable();
        // The last run of an outline that crosses an odd number of times ends with the image.
        let all = size.width.saturating_mul(size.height);
        self.0.chunks(2).map(move |run| [run[0], run.get(1).copied().unwrap_or(all)])
    }
}

/// Visits the steps from one point to another, including both. The slower axis is rounded as in C: toward zero.
fn follow(from: [i32; 2], to: [i32; 2], mut visit: impl FnMut([i32; 2])) {
    let (across, down) = (from[0].abs_diff(to[0]), from[1].abs_diff(to[1]));
    let steps = across.max(down);
    // The faster axis.
    let fast = usize::from(across < down);
    let is_backward = from[fast] > to[fast];
    let (start, end) = if is_backward { (to, from) } else { (from, to) };
    let slope = match steps {
        0 => 0.0,
        steps => f64::from(end[1 - fast] - start[1 - fast]) / f64::from(steps),
    };
    for step in 0..=steps {
        let step = if is_backward { steps - step } else { step };
        let mut place = [0; 2];
        place[fast] = start[fast].saturating_add_unsigned(step);
        let slow = f64::from(start[1 - fast]) + slope * f64::from(step) + 0.5;
        #[expect(clippy::cast_possible_truncation, reason = "between two points, which are i32")]
        let slow = slow as i32;
        place[1 - fast] = slow;
        visit(place);
    }
}

/// The row at which the outline crosses the middle of a column, if it does so between two steps.
fn crossing(last: [i32; 2], place: [i32; 2], size: Size) -> Option<u32> {
    let left = if place[0] < last[0] { place[0] } else { place[0] - 1 };
    if left.rem_euclid(STEPS_PER_PIXEL) != MIDDLE {
        return None;
    }
    let column = u32::try_from(left.div_euclid(STEPS_PER_PIXEL)).ok();
    let column = column.filter(|column| *column < size.width)?;
    // Rounded up to a pixel.
    let above = (place[1].min(last[1]) + STEPS_PER_PIXEL - 1 - MIDDLE).div_euclid(STEPS_PER_PIXEL);
    let row = u32::try_from(above).unwrap_or(0).min(size.height);
    Some(column * size.height + row)
}
