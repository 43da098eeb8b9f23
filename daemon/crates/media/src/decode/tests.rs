//! Formats by content, limits, orientation.

use super::*;
use crate::test_images::{gradient, jpeg, with_orientation};
use forebay_config::Limits;

const MOST_PIXELS: u64 = 178_956_970;

#[test]
fn the_default_limit_is_pillows() {
    assert_eq!(Limits::default().pixels, MOST_PIXELS);
}

#[test]
fn too_many_pixels_are_refused_from_the_header() {
    let mut file = jpeg(&gradient(16, 16, 3), 16, 16, 3);
    let frame = file.windows(2).position(|marker| marker == [0xff, 0xc0]).unwrap();
    file[frame + 5..frame + 9].copy_from_slice(&[0xff, 0xff, 0xff, 0xff]);
    let refused = Decoders::default().read_header(&file, false, MOST_PIXELS).unwrap_err();
    assert_eq!(
        refused.0,
        "the image has 4294836225 pixels (65535x65535), more than limits.pixels (178956970)"
    );
    file[frame + 5..frame + 9].copy_from_slice(&[0, 0, 0, 9]);
    let refused = Decoders::default().read_header(&file, false, MOST_PIXELS).unwrap_err();
    assert_eq!(refused.0, "the image has no pixels (9x0)");
}

#[test]
fn orientation_is_applied_only_on_request() {
    let file = with_orientation(&jpeg(&gradient(24, 16, 3), 24, 16, 3), 6);
    let mut decoders = Decoders::default();
    let as_stored = decoders.read_header(&file, false, MOST_PIXELS).unwrap();
    assert_eq!(as_stored.size(), Size { width: 24, height: 16 });
    let turned = decoders.read_header(&file, true, MOST_PIXELS).unwrap();
    assert_eq!(turned.size(), Size { width: 16, height: 24 });
    let rgb =
        |needed| Wanted { reduction: Reduction::NONE, channels: 3, needed, in_colour_rows: false };
    let (mut before, mut after) = (Vec::new(), Vec::new());
    let whole = Rectangle::whole(as_stored.size());
    decoders.decode(&file, &as_stored, rgb(whole), &mut before).unwrap();
    let corner = Rectangle { left: 0, top: 0, width: 1, height: 1 };
    let area = decoders.decode(&file, &turned, rgb(corner), &mut after).unwrap().area;
    assert_eq!(area, Rectangle::whole(turned.size()));
    // Clockwise: the lower left corner moves to the upper left.
    assert_eq!(after[..3], before[15 * 24 * 3..15 * 24 * 3 + 3]);
}

#[test]
fn unsupported_formats_are_named() {
    for (file, name) in [
        (&b"\0\0\0\x18ftypheic\0\0\0\0"[..], "HEIC"),
        (b"\0\0\0\x18ftypmif1\0\0\0\0", "HEIC"),
        (b"\0\0\0\x20ftypavif\0\0\0\0", "AVIF"),
        (b"II\x2b\0\x08\0\0\0", "BigTIFF"),
        (b"8BPS\0\x01", "Photoshop (PSD)"),
        (b"\x76\x2f\x31\x01\x02", "OpenEXR"),
        (b"P6\n1 1\n255\n", "PNM"),
        (b"\xff\x0a\xfa\x1f", "JPEG XL"),
        (b"\0\0\0\x0cjP  \r\n\x87\n", "JPEG 2000"),
    ] {
        let refused = Decoders::default().read_header(file, false, MOST_PIXELS).unwrap_err();
        let expected = format!(
            "{name} is not read: convert the file to JPEG, PNG, WebP or TIFF, or decode it in a Python stage"
        );
        assert_eq!(refused.0, expected);
    }
    let refused = Decoders::default().read_header(b"RIFX", false, MOST_PIXELS).unwrap_err();
    assert_eq!(
        refused.0,
        "not a JPEG, PNG, WebP, TIFF, BMP or GIF file: it begins with 52 49 46 58"
    );
}
