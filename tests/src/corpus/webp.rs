//! Broken WebP files.

use super::broken_file::{BrokenFile, broken_in_any_format, misnamed, picture};
use super::bytes::{find, with};

const GOOD: [&str; 5] = ["lossy", "lossless", "alpha", "exif", "palette"];

pub(super) fn broken() -> Vec<BrokenFile> {
    let mut all = misnamed("webp");
    for name in GOOD {
        let good = picture(&format!("webp/{name}"));
        let base = format!("webp-{name}");
        all.extend(broken_in_any_format(&base, "webp", &good));
        for (way, bytes) in by_chunk(&good) {
            all.push(BrokenFile { name: format!("{base}-{way}.webp"), bytes });
        }
    }
    all
}

fn has(file: &[u8], chunk: &[u8]) -> bool {
    file.windows(4).any(|name| name == chunk)
}

/// Damage at the chunks of the container and at the frame's header.
fn by_chunk(good: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let mut all = vec![
        (
            "announces-more",
            with(good, 4, &(u32::try_from(good.len()).unwrap() + 100).to_le_bytes()),
        ),
        ("announces-4-gib", with(good, 4, &[0xfe, 0xff, 0xff, 0xff])),
        ("is-a-wave", with(good, 8, b"WAVE")),
        ("unknown-first-chunk", with(good, 12, b"NONE")),
        ("first-chunk-of-4-gib", with(good, 16, &[0xff; 4])),
        ("first-chunk-empty", with(good, 16, &[0; 4])),
    ];
    if has(good, b"VP8 ") {
        let frame = find(good, b"VP8 ") + 8;
        all.extend([
            ("no-key-frame", with(good, frame, &[good[frame] | 1])),
            ("wrong-start-code", with(good, frame + 3, &[0, 0, 0])),
            ("bomb-16383x16383", with(good, frame + 6, &[0xff, 0x3f, 0xff, 0x3f])),
            ("no-width", with(good, frame + 6, &[0, 0])),
            ("first-partition-too-long", with(good, frame, &[good[frame] | 0xe0, 0xff, 0xff])),
        ]);
    }
    if has(good, b"VP8L") {
        let stream = find(good, b"VP8L") + 8;
        all.extend([
            ("wrong-signature", with(good, stream, &[0x30])),
            ("bomb-16384x16384", with(good, stream + 1, &[0xff, 0xff, 0xff, 0x0f])),
            ("version-7", with(good, stream + 4, &[good[stream + 4] | 0xe0])),
            ("ones-instead-of-codes", with(good, stream + 5, &vec![0xff; good.len() - stream - 5])),
        ]);
    }
    if has(good, b"VP8X") {
        let extended = find(good, b"VP8X") + 8;
        all.extend([
            ("canvas-bomb", with(good, extended + 4, &[0xff; 6])),
            ("canvas-of-another-size", with(good, extended + 4, &[1, 0, 0, 1, 0, 0])),
        ]);
    }
    all
}
