//! The distributions, compared with torchvision's definitions.

use super::*;
use forebay_media::test_images::draws;

const SIZE: Size = Size { width: 200, height: 101 };

fn affine() -> RandomAffine {
    RandomAffine {
        filling: Filling {
            fields: SharedFields::of_one_image(),
            picked: Picked::Nearest,
            fill: vec![0.0],
            mask_fill: [0.0],
        },
        degrees: (-30.0, 90.0),
        translate: Some([0.1, 0.3]),
        scale: Some(PositiveRange { low: 0.5, high: 1.5 }),
        shear: Some(Shear { x: (-10.0, 20.0), y: Some((0.0, 5.0)) }),
        center: None,
    }
}

/// Mean, minimum and maximum of numbers.
fn extent(values: impl Iterator<Item = f64>) -> [f64; 3] {
    let (mut sum, mut count, mut low, mut high) = (0.0, 0.0, f64::MAX, f64::MIN);
    for value in values {
        (sum, count) = (sum + value, count + 1.0);
        (low, high) = (f64::min(low, value), f64::max(high, value));
    }
    [sum / count, low, high]
}

fn assert_near(found: [f64; 3], expected: [f64; 3], tolerance: f64) {
    for (found, expected) in found.into_iter().zip(expected) {
        assert!((found - expected).abs() <= tolerance, "{found}, and {expected} is expected");
    }
}

#[test]
fn affine_shapes_are_uniform_and_translations_are_whole_pixels() {
    let mut draws = draws(1);
    let shapes: Vec<AffineShape> = (0..20_000).map(|_| affine().draw(SIZE, &mut draws)).collect();
    let of = |value: fn(&AffineShape) -> f64| extent(shapes.iter().map(value));
    assert_near(of(|shape| shape.angle), [30.0, -30.0, 90.0], 1.3);
    assert_near(of(|shape| shape.scale), [1.0, 0.5, 1.5], 0.011);
    assert_near(of(|shape| shape.shear[0]), [5.0, -10.0, 20.0], 0.32);
    assert_near(of(|shape| shape.shear[1]), [2.5, 0.0, 5.0], 0.06);
    // 0.1 of 200 and 0.3 of 101, rounded.
    assert_near(of(|shape| shape.translate[0]), [0.0, -20.0, 20.0], 0.42);
    assert_near(of(|shape| shape.translate[1]), [0.0, -30.0, 30.0], 0.62);
    assert!(shapes.iter().all(|shape| shape.translate.iter().all(|move_| move_.fract() == 0.0)));
    // The outermost translations have half the range of the others.
    let outermost = shapes.iter().filter(|shape| shape.translate[0] == 20.0).count();
    let inner = shapes.iter().filter(|shape| shape.translate[0] == 7.0).count();
    assert!(
        (180..=320).contains(&outermost) && (390..=610).contains(&inner),
        "{outermost} {inner}"
    );
}

#[test]
fn corners_move_inward_by_whole_pixels_up_to_the_bound() {
    let mut draws = draws(2);
    // Half of 200 and of 101, of which half: at most 50 and 25 pixels inward.
    let corners: Vec<_> = (0..20_000).map(|_| draw_corners(SIZE, 0.5, &mut draws)).collect();
    let of = |corner: usize, axis: usize| extent(corners.iter().map(|c| c[corner][axis]));
    let bounds = [
        ([25.0, 0.0, 50.0], [12.5, 0.0, 25.0]),
        ([174.0, 149.0, 199.0], [12.5, 0.0, 25.0]),
        ([174.0, 149.0, 199.0], [87.5, 75.0, 100.0]),
        ([25.0, 0.0, 50.0], [87.5, 75.0, 100.0]),
    ];
    for (corner, (x, y)) in bounds.into_iter().enumerate() {
        assert_near(of(corner, 0), x, 0.52);
        assert_near(of(corner, 1), y, 0.27);
    }
}

#[test]
fn unmoved_corners_yield_the_identity() {
    let corners = [[0.0, 0.0], [199.0, 0.0], [199.0, 100.0], [0.0, 100.0]];
    let found = perspective(corners, corners).unwrap();
    for (found, expected) in found.into_iter().zip([1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]) {
        assert!((found - expected).abs() < 1e-12);
    }
    let line = [[0.0, 0.0], [50.0, 0.0], [100.0, 0.0], [0.0, 100.0]];
    assert_eq!(perspective(corners, line), None, "three in one line");
}

#[test]
fn rotated_image_has_torchvisions_size() {
    let expanded = |angle: f64, width, height| {
        let shape = AffineShape {
            angle: -angle,
            translate: [0.0; 2],
            scale: 1.0,
            shear: [0.0; 2],
            center: [0.0; 2],
        };
        let size = turned_size(angle, &inverse_affine(&shape), Size { width, height });
        (size.width, size.height)
    };
    // F.rotate(torch.zeros(1, height, width), angle, expand=True).shape of torchvision 0.29.
    assert_eq!(expanded(90.0, 31, 20), (20, 31));
    assert_eq!(expanded(0.0, 31, 20), (31, 20));
    assert_eq!(expanded(45.0, 31, 20), (37, 38));
    assert_eq!(expanded(200.0, 64, 33), (72, 53));
}
