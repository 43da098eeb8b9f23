//! A drawn image of a house below the sun: its orientation, straight lines and familiar colours are recognised at once,
//! so that it shows the effect of an operation on an image.

/// Its pixels.
const SIZE: (i32, i32) = (384, 288);

/// The pixels of the picture, height × width × red, green and blue, and its width and height.
pub fn scene() -> (Vec<u8>, u16, u16) {
    let (width, height) = SIZE;
    let places = (0..height).flat_map(|y| (0..width).map(move |x| (x, y)));
    let pixels = places.flat_map(|(x, y)| colour(x, y).map(level)).collect();
    (pixels, u16::try_from(width).unwrap_or(0), u16::try_from(height).unwrap_or(0))
}

fn level(value: i32) -> u8 {
    u8::try_from(value.clamp(0, 255)).unwrap_or(0)
}

/// The colour at a position; objects in the foreground come first.
fn colour(x: i32, y: i32) -> [i32; 3] {
    let is_within = |left: i32, top: i32, width: i32, height: i32| {
        (left..left + width).contains(&x) && (top..top + height).contains(&y)
    };
    let distance = |to_x: i32, to_y: i32| (x - to_x).pow(2) + (y - to_y).pow(2);
    if distance(52, 150) < 34 * 34 || distance(66, 172) < 26 * 26 {
        return [40, 120 + (x * y / 7) % 12, 50];
    }
    if is_within(54, 170, 10, 60) {
        return [110, 75, 45];
    }
    if is_within(210, 190, 30, 54) {
        return [120, 60, 30];
    }
    if is_within(135, 175, 46, 34) {
        let is_bar = is_within(156, 175, 4, 34) || is_within(135, 190, 46, 4);
        return if is_bar { [250, 250, 250] } else { [60, 90, 150] };
    }
    if is_within(115, 150, 145, 94) {
        return [235, 222, 190];
    }
    // A roof of equal slope on both sides.
    if (90..150).contains(&y) && (x - 187).abs() < (y - 80) * 5 / 4 {
        let is_tile = (y / 6) % 2 == 0;
        return if is_tile { [200, 62, 45] } else { [178, 50, 40] };
    }
    if y > 205 + (x - 150).pow(2) / 1200 {
        return [90 - (y - 200) / 3, 165 - (y - 200) / 2, 70];
    }
    if distance(318, 58) < 32 * 32 {
        return [252, 214, 64];
    }
    [95 + y / 2, 150 + y / 3, 232]
}
