//! Cuts the samples of a pool into steps of one shape: each step has a batch of `max_rows` samples for every rank, all of
//! the same shape.
//!
//! What is left of a shape is a step of shorter batches, whose ranks differ by a row at most; what is fewer than ranks of it
//! gives no step. The result depends on nothing but the shapes in their order and the [`Cut`].

use forebay_protocol::cuts::Cut;

use super::cutting::Steps;

/// Cuts `places`, which are indices into `shapes`, the numbers of the samples' shapes: in the order of the pool, which
/// decides among samples of one shape.
pub(super) fn cut_by_shape(places: &[u32], shapes: &[u32], cut: &Cut) -> Steps {
    let shape_at = |place: u32| shapes.get(place as usize).copied().unwrap_or(0);
    let mut sorted = places.to_vec();
    sorted.sort_unstable_by_key(|place| (shape_at(*place), *place));
    let ranks = cut.world_size.max(1) as usize;
    let step = ranks.saturating_mul(cut.max_rows.max(1) as usize);
    let mut steps = Steps { rows: Vec::with_capacity(sorted.len()), ..Steps::default() };
    for of_shape in sorted.chunk_by(|one, next| shape_at(*one) == shape_at(*next)) {
        let mut left = of_shape;
        while left.len() >= ranks {
            let (taken, others) = left.split_at(left.len().min(step));
            let (base, longer) = (taken.len() / ranks, taken.len() % ranks);
            let mut end = steps.rows.len();
            steps.rows.extend(taken);
            steps.ends.extend((0..ranks).map(|rank| {
                end += base + usize::from(rank < longer);
                place(end)
            }));
            left = others;
        }
        if !left.is_empty() {
            steps.rest.extend(left);
            steps.rest_ends.push(place(steps.rest.len()));
        }
    }
    steps
}

#[expect(clippy::cast_possible_truncation, reason = "places are numbered by u32")]
const fn place(place: usize) -> u32 {
    place as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cut_into_steps;

    #[test]
    fn steps_have_one_shape_and_the_rests_are_by_shape() {
        let cut = Cut { from: 0, world_size: 2, budget: 0, multiple_of: 1, max_rows: 2 };
        let shapes = [1, 0, 1, 1, 1, 0, 1, 1, 1, 2, 5, 5];
        let steps = cut_into_steps(&(0..12).collect::<Vec<_>>(), &shapes, &cut);
        // Of shape 1 there are seven: a step of four, and one of three in batches of two and one.
        assert_eq!(steps.rows, [1, 5, 0, 2, 3, 4, 6, 7, 8, 10, 11]);
        assert_eq!(steps.ends, [1, 2, 4, 6, 8, 9, 10, 11]);
        assert_eq!((&steps.rest[..], &steps.rest_ends[..]), (&[9][..], &[1][..]));
        let none = cut_into_steps(&[], &shapes, &cut);
        assert_eq!(none, Steps::default());
        let wide = Cut { world_size: 3, ..cut };
        let steps = cut_into_steps(&[1, 5, 9, 10, 11], &shapes, &wide);
        assert_eq!((&steps.ends[..], &steps.rest[..]), (&[][..], &[1, 5, 9, 10, 11][..]));
        assert_eq!(steps.rest_ends, [2, 3, 5]);
    }
}
