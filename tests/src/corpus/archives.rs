//! Broken `.npz` files. The good one has the members `a` (float32 of shape (3, 4)) and `b` (four bool).

use std::io::{Cursor, Write as _};

use zip::CompressionMethod::{self, Deflated, Stored};
use zip::write::SimpleFileOptions;

use super::arrays::{self, array};
use super::broken_file::{BrokenFile, INFLATED_BYTES, broken_in_any_format, misnamed};
use super::bytes::{crc32, find, with};

fn flags() -> Vec<u8> {
    array("'|b1'", "False", "(4,)", &[0, 1, 0, 1])
}

/// An archive as a library writes it.
fn written(members: &[(&str, &[u8])], method: CompressionMethod) -> Vec<u8> {
    let mut writer = zip::ZipWriter::new(Cursor::new(Vec::new()));
    for (name, bytes) in members {
        writer.start_file(*name, SimpleFileOptions::default().compression_method(method)).unwrap();
        writer.write_all(bytes).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

/// An archive of stored members written by hand, which lets it say what no library would.
fn by_hand(members: &[(&[u8], &[u8])]) -> Vec<u8> {
    let (mut file, mut directory) = (Vec::new(), Vec::new());
    for (name, bytes) in members {
        let offset = u32::try_from(file.len()).unwrap();
        let size = u32::try_from(bytes.len()).unwrap();
        let name_length = u16::try_from(name.len()).unwrap();
        let mut common = Vec::new();
        common.extend([20, 0, 0, 0, 0, 0, 0, 0, 0x21, 0x50]);
        common.extend(crc32(bytes).to_le_bytes());
        common.extend(size.to_le_bytes());
        common.extend(size.to_le_bytes());
        common.extend(name_length.to_le_bytes());
        common.extend([0, 0]);
        file.extend(b"PK\x03\x04");
        file.extend(&common);
        file.extend(*name);
        file.extend(*bytes);
        directory.extend(b"PK\x01\x02\x14\0");
        directory.extend(&common);
        directory.extend([0; 10]);
        directory.extend(offset.to_le_bytes());
        directory.extend(*name);
    }
    let count = u16::try_from(members.len()).unwrap();
    let (start, size) = (file.len(), directory.len());
    file.extend(directory);
    file.extend(b"PK\x05\x06\0\0\0\0");
    file.extend(count.to_le_bytes());
    file.extend(count.to_le_bytes());
    file.extend(u32::try_from(size).unwrap().to_le_bytes());
    file.extend(u32::try_from(start).unwrap().to_le_bytes());
    file.extend([0, 0]);
    file
}

pub(super) fn good() -> Vec<u8> {
    written(&[("a.npy", &arrays::good()), ("b.npy", &flags())], Deflated)
}

pub(super) fn broken() -> Vec<BrokenFile> {
    let mut all = misnamed("npz");
    let (first, second) = (arrays::good(), flags());
    let members: [(&str, &[u8]); 2] = [("a.npy", &first), ("b.npy", &second)];
    for (how, method) in [("stored", Stored), ("deflated", Deflated)] {
        let good = written(&members, method);
        let base = format!("npz-{how}");
        let mut in_any_format = broken_in_any_format(&base, "npz", &good);
        // An archive may stand behind something else.
        in_any_format.retain(|file| !file.name.contains("line-break-before"));
        all.extend(in_any_format);
        for (what, bytes) in of_records(&good) {
            all.push(BrokenFile { name: format!("{base}-{what}.npz"), bytes });
        }
        // Each broken array is a broken member, too.
        for member in arrays::broken() {
            let name = member.name.trim_end_matches(".npy");
            let bytes = written(&[("a.npy", &member.bytes), members[1]], method);
            all.push(BrokenFile { name: format!("{base}-{name}.npz"), bytes });
        }
        let zeros = vec![0; usize::try_from(INFLATED_BYTES).unwrap()];
        let large = array("'|u1'", "False", &format!("({},)", zeros.len()), &zeros);
        let bomb = written(&[("a.npy", &large), members[1]], method);
        all.push(BrokenFile { name: format!("{base}-bomb.npz"), bytes: bomb });
    }
    for (what, bytes) in of_members(&first, &second) {
        all.push(BrokenFile { name: format!("npz-{what}.npz"), bytes });
    }
    all
}

/// Damage at the records of an archive: APPNOTE 4.3 and 4.4.
fn of_records(good: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let end = find(good, b"PK\x05\x06");
    let directory = find(good, b"PK\x01\x02");
    let flip = |place: usize| with(good, place, &[good[place] ^ 0x55]);
    let name_length = usize::from(u16::from_le_bytes([good[26], good[27]]));
    let content = 30 + name_length + usize::from(u16::from_le_bytes([good[28], good[29]]));
    vec![
        ("end-record-lost", good[..end].to_vec()),
        ("directory-lost", [&good[..directory], &good[end..]].concat()),
        ("directory-offset-beyond-the-file", with(good, end + 16, &[0xff, 0xff, 0xff, 0x7f])),
        ("directory-of-60000-members", with(good, end + 8, &[0x60, 0xea, 0x60, 0xea])),
        ("zip64-without-its-record", with(good, end + 8, &[0xff; 12])),
        ("local-header-lost", with(good, 0, &[0; 4])),
        ("content-changed", flip(content + 20)),
        ("checksum-changed", flip(directory + 16)),
        ("declares-a-byte-more", with(good, directory + 24, &[good[directory + 24] + 1])),
        ("declares-4-gib", with(good, directory + 24, &[0xfe, 0xff, 0xff, 0xff])),
        ("declares-no-bytes", with(good, directory + 24, &[0; 4])),
        ("method-99", with(&with(good, directory + 10, &[99]), 8, &[99])),
        ("method-12", with(&with(good, directory + 10, &[12]), 8, &[12])),
        ("encrypted", with(&with(good, directory + 8, &[1]), 6, &[1])),
        ("member-offset-beyond-the-file", with(good, directory + 42, &[0xff, 0xff, 0xff, 0x7f])),
        ("member-begins-in-the-directory", {
            let at = u32::try_from(directory).unwrap().to_le_bytes();
            with(good, directory + 42, &at)
        }),
    ]
}

/// Whole archives whose members are not the first sample's.
fn of_members(first: &[u8], second: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let wide = array("'<f8'", "False", "(3, 4)", &[1; 96]);
    let mut all = vec![
        ("no-members", by_hand(&[])),
        ("a-member-missing", by_hand(&[(b"a.npy", first)])),
        ("a-member-more", by_hand(&[(b"a.npy", first), (b"b.npy", second), (b"c.npy", second)])),
        ("a-member-twice", by_hand(&[(b"a.npy", first), (b"b.npy", second), (b"a.npy", first)])),
        ("a-member-of-text", by_hand(&[(b"a.npy", first), (b"b.txt", b"hello")])),
        ("an-empty-member", by_hand(&[(b"a.npy", b""), (b"b.npy", second)])),
        ("a-folder", by_hand(&[(b"a.npy/", b""), (b"b.npy", second)])),
        ("a-nameless-member", by_hand(&[(b"", first), (b"b.npy", second)])),
        ("a-name-of-an-extension", by_hand(&[(b".npy", first), (b"b.npy", second)])),
        ("a-name-with-zeros", by_hand(&[(b"a\0.npy", first), (b"b.npy", second)])),
        ("a-name-of-no-text", by_hand(&[(b"\xff\xfe.npy", first), (b"b.npy", second)])),
        ("a-path-upwards", by_hand(&[(b"../../a.npy", first), (b"b.npy", second)])),
        ("an-absolute-path", by_hand(&[(b"/etc/a.npy", first), (b"b.npy", second)])),
        ("another-type", by_hand(&[(b"a.npy", &wide), (b"b.npy", second)])),
        ("exchanged", by_hand(&[(b"a.npy", second), (b"b.npy", first)])),
    ];
    // Both members of the directory are the same bytes of the file.
    let honest = by_hand(&[(b"a.npy", first), (b"b.npy", second)]);
    let directory = find(&honest, b"PK\x01\x02");
    let other = directory + 46 + b"a.npy".len();
    all.push(("overlapping-members", with(&honest, other + 42, &[0; 4])));
    all
}
