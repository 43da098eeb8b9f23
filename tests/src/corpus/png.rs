//! Broken PNG files.

use super::broken_file::{BrokenFile, broken_in_any_format, misnamed, picture};
use super::bytes::{crc32, with, zlib_stored};

const GOOD: [&str; 9] =
    ["RGB", "L", "RGBA", "LA", "palette", "bilevel", "grey16", "transparent", "interlaced"];
const MAGIC: &[u8] = b"\x89PNG\r\n\x1a\n";

type Chunk = ([u8; 4], Vec<u8>);

pub(super) fn broken() -> Vec<BrokenFile> {
    let mut all = misnamed("png");
    for name in GOOD {
        let good = picture(&format!("png/{name}"));
        let base = format!("png-{name}");
        all.extend(broken_in_any_format(&base, "png", &good));
        for (way, bytes) in by_chunk(&good) {
            all.push(BrokenFile { name: format!("{base}-{way}.png"), bytes });
        }
    }
    all
}

fn chunks_of(file: &[u8]) -> Vec<Chunk> {
    let mut chunks = Vec::new();
    let mut at = MAGIC.len();
    while at < file.len() {
        let length = u32::from_be_bytes(file[at..at + 4].try_into().unwrap()) as usize;
        let name = file[at + 4..at + 8].try_into().unwrap();
        chunks.push((name, file[at + 8..at + 8 + length].to_vec()));
        at += length + 12;
    }
    chunks
}

fn file_of(chunks: &[Chunk]) -> Vec<u8> {
    let mut file = MAGIC.to_vec();
    for (name, body) in chunks {
        file.extend(u32::try_from(body.len()).unwrap().to_be_bytes());
        let covered = [&name[..], body].concat();
        file.extend(&covered);
        file.extend(crc32(&covered).to_be_bytes());
    }
    file
}

/// Damage at the chunks, their checksums right unless they are what is wrong.
fn by_chunk(good: &[u8]) -> Vec<(String, Vec<u8>)> {
    let chunks = chunks_of(good);
    let is = |name: &'static [u8; 4]| move |chunk: &Chunk| chunk.0 == *name;
    let data = chunks.iter().position(is(b"IDAT")).unwrap();
    let with_header = |place: usize, bytes: &[u8]| {
        let mut changed = chunks.clone();
        changed[0].1 = with(&chunks[0].1, place, bytes);
        file_of(&changed)
    };
    let with_data = |bytes: Vec<u8>| {
        let mut changed = chunks.clone();
        changed[data].1 = bytes;
        file_of(&changed)
    };
    let side = 60_000_u32.to_be_bytes();
    let mut all = vec![
        ("bomb-60000x60000".to_owned(), with_header(0, &[side, side].concat())),
        ("bomb-4294967295-wide".to_owned(), with_header(0, &[0xff; 4])),
        ("no-width".to_owned(), with_header(0, &[0; 4])),
        ("no-height".to_owned(), with_header(4, &[0; 4])),
        ("5-bits".to_owned(), with_header(8, &[5])),
        ("colour-type-7".to_owned(), with_header(9, &[7])),
        ("compression-1".to_owned(), with_header(10, &[1])),
        ("filter-method-1".to_owned(), with_header(11, &[1])),
        ("interlacing-9".to_owned(), with_header(12, &[9])),
        ("no-data".to_owned(), with_data(Vec::new())),
        ("data-is-no-zlib".to_owned(), with_data(vec![0x55; 200])),
        ("data-too-short".to_owned(), with_data(zlib_stored(&[0; 7]))),
        ("filter-9".to_owned(), with_data(zlib_stored(&[9; 9000]))),
    ];
    for (place, (name, _)) in chunks.iter().enumerate() {
        let name = String::from_utf8_lossy(name).into_owned();
        // What is not needed for the pixels may be missing; without a palette Pillow takes greys.
        if ["IHDR", "IDAT", "IEND"].contains(&name.as_str()) {
            let mut fewer = chunks.clone();
            fewer.remove(place);
            all.push((format!("no-{name}"), file_of(&fewer)));
        }
        let end: usize =
            MAGIC.len() + chunks[..=place].iter().map(|(_, body)| body.len() + 12).sum::<usize>();
        let last = good[end - 1] ^ 0xff;
        all.push((format!("checksum-of-{place}-{name}"), with(good, end - 1, &[last])));
        let start = end - chunks[place].1.len() - 12;
        all.push((format!("length-of-{place}-{name}"), with(good, start, &[0xff; 4])));
    }
    all
}
