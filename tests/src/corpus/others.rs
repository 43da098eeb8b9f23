//! Broken TIFF, BMP and GIF files.

use super::broken_file::{BrokenFile, broken_in_any_format, misnamed, picture};
use super::bytes::with;

const TIFFS: [&str; 7] = ["plain", "grey", "palette", "alpha", "wide", "packbits", "deflate"];
const BMPS: [&str; 5] = ["colours", "alpha", "grey", "palette", "runs"];
const GIFS: [&str; 3] = ["palette", "interlaced", "transparent"];

pub(super) fn broken() -> Vec<BrokenFile> {
    let mut all = Vec::new();
    for (folder, extension, names) in
        [("tiff", "tif", &TIFFS[..]), ("bmp", "bmp", &BMPS), ("gif", "gif", &GIFS)]
    {
        all.extend(misnamed(extension));
        for name in names {
            let good = picture(&format!("{folder}/{name}"));
            let base = format!("{folder}-{name}");
            // What stands behind a GIF's pixels, behind the last run and behind a directory at a TIFF's end is not needed.
            let is_read = |file: &BrokenFile| {
                file.name.ends_with(&format!("-cut-at-end.{extension}"))
                    && (folder == "gif" || ["runs", "packbits", "deflate"].contains(name))
            };
            let broken = broken_in_any_format(&base, extension, &good);
            all.extend(broken.into_iter().filter(|file| !is_read(file)));
            let named = |way: &str| format!("{base}-{way}.{extension}");
            let mut add = |way, bytes| all.push(BrokenFile { name: named(way), bytes });
            match folder {
                "tiff" => {
                    add("no-directory", with(&good, 4, &[0xff; 4]));
                    add("directory-in-the-header", with(&good, 4, &[0; 4]));
                }
                "bmp" => {
                    add(
                        "bomb-100000x100000",
                        with(&good, 18, &[0xa0, 0x86, 1, 0, 0xa0, 0x86, 1, 0]),
                    );
                    add("no-width", with(&good, 18, &[0; 4]));
                    add("5-bits", with(&good, 28, &[5]));
                    add("unknown-compression", with(&good, 30, &[9]));
                    add("header-of-41-bytes", with(&good, 14, &[41]));
                    add("pixels-beyond", with(&good, 10, &[0xff; 4]));
                }
                _ => {
                    add("no-frame", [&good[..10], &[0; 3], b";"].concat());
                    add("version-90", with(&good, 4, b"0a"));
                }
            }
        }
    }
    all
}
