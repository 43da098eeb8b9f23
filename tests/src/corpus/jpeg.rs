//! Broken JPEG files.

use super::broken_file::{BrokenFile, broken_in_any_format, misnamed, seed};
use super::bytes::{find, with, without};

const GOOD: [&str; 9] =
    ["baseline", "444", "422", "grey", "progressive", "cmyk", "restart", "exif", "optimised"];

pub(super) fn broken() -> Vec<BrokenFile> {
    let mut all = misnamed("jpg");
    for name in GOOD {
        let good = seed(&format!("jpeg_markers/{name}"));
        all.extend(broken_in_any_format(&format!("jpeg-{name}"), "jpg", &good));
        for (way, bytes) in by_marker(&good) {
            all.push(BrokenFile { name: format!("jpeg-{name}-{way}.jpg"), bytes });
        }
    }
    all
}

/// Damage at the markers: T.81, annex B.
fn by_marker(good: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let frame = [0xc0, 0xc1, 0xc2]
        .iter()
        .find_map(|marker| good.windows(2).position(|bytes| bytes == [0xff, *marker]))
        .unwrap();
    let scan = find(good, &[0xff, 0xda]);
    let length_of = |at: usize| usize::from(u16::from_be_bytes([good[at + 2], good[at + 3]])) + 2;
    let sides = frame + 5..frame + 9;
    let mut all = vec![
        ("bomb-65535x65535", with(good, sides.start, &[0xff; 4])),
        ("no-width", with(good, sides.start + 2, &[0, 0])),
        ("no-height", with(good, sides.start, &[0, 0])),
        ("no-frame", without(good, frame..frame + length_of(frame))),
        ("no-scan", [&good[..scan], &[0xff, 0xd9]].concat()),
        ("frame-of-12-bits", with(good, frame + 4, &[12])),
        ("frame-without-components", with(good, frame + 9, &[0])),
        ("frame-with-200-components", with(good, frame + 9, &[200])),
        ("frame-length-beyond-the-file", with(good, frame + 2, &[0xff, 0xff])),
        ("hierarchical-frame", with(good, frame + 1, &[0xc5])),
        ("arithmetic-hierarchical-frame", with(good, frame + 1, &[0xcd])),
        ("sampling-of-15x15", with(good, frame + 11, &[0xff])),
        ("sampling-of-0x0", with(good, frame + 11, &[0])),
        ("quantisation-table-9", with(good, frame + 12, &[9])),
        ("scan-of-an-unknown-component", with(good, scan + 5, &[0x77])),
        ("scan-of-no-component", with(good, scan + 4, &[0])),
        ("scan-length-beyond-the-file", with(good, scan + 2, &[0xff, 0xff])),
        ("ends-in-the-scans-header", good[..scan + 5].to_vec()),
        (
            "two-frames",
            [&good[..frame], &good[frame..frame + length_of(frame)], &good[frame..]].concat(),
        ),
    ];
    let table = find(good, &[0xff, 0xdb]);
    all.push(("quantisation-length-beyond-the-file", with(good, table + 2, &[0xff, 0xff])));
    let huffman = find(good, &[0xff, 0xc4]);
    all.push(("huffman-table-of-class-15", with(good, huffman + 4, &[0xff])));
    all.push(("huffman-table-of-too-many-codes", with(good, huffman + 5, &[0xff; 16])));
    all
}
