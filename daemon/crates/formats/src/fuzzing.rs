//! Entry points of fuzzers for the parsers of files and indexes. See `forebay::fuzzing`.

use std::borrow::Cow;

use forebay_protocol::ids::SampleId;

use crate::image_folder;
use crate::litdata::nested;
use crate::{
    array_record, fields, hdf5, labels, litdata, manifest, mds, npz, records, tfrecord, tokens,
    webdataset, zarr,
};
use forebay_columnar::fuzzing::read_for_fuzzing;
use forebay_columnar::{arrow, lance, parquet};
use forebay_dataset::ArrayValue;
use forebay_dataset::IndexBytes;
use forebay_dataset::npy_header::{ArrayHeader, header_bytes, read_array};
use forebay_index::folder::index::FolderIndex;
use forebay_index::index_file::{HEADER_BYTES, seal};
use forebay_storage::codec::Codec;

/// The maximum size that an archive may inflate to.
const INFLATED_BYTES: u64 = 1 << 20;

/// Parses a `.npy` file, and only its header.
///
/// # Panics
/// The size of an array does not match its shape.
pub fn npy(bytes: &[u8]) {
    let _ = header_bytes(bytes);
    let _ = ArrayHeader::parse(bytes);
    if let Ok(array) = read_array(bytes) {
        check_array(&array);
    }
}

/// Converts a list or dict of LitData to text: it is JSON, and not longer than estimated.
///
/// # Panics
/// The text is not JSON or is too long.
pub fn litdata_nested(bytes: &[u8]) {
    if bytes.first().is_none_or(|first| *first > 0x20) {
        return;
    }
    if let Ok(text) = nested::json_text(bytes) {
        assert!(text.len() as u64 <= nested::most_text_bytes(bytes.len() as u64));
        serde_json::from_slice::<serde::de::IgnoredAny>(&text).expect("it is JSON");
    }
}

/// Reads a `.npz` file.
///
/// # Panics
/// The size of an array does not match its shape, or the members inflate beyond the limit.
pub fn npz(bytes: &[u8]) {
    let Ok(members) = npz::read_all_members(bytes, INFLATED_BYTES) else {
        return;
    };
    let mut inflated = 0;
    for (_, array) in &members {
        check_array(array);
        if let Cow::Owned(bytes) = &array.bytes {
            inflated += bytes.len() as u64;
        }
    }
    assert!(inflated <= INFLATED_BYTES, "{inflated}");
}

/// Reads a tar archive: its members are inside it and do not overlap.
///
/// # Panics
/// The members overlap or exceed the archive.
pub fn tar(bytes: &[u8]) {
    let mut before = 0;
    let _ = webdataset::walk_for_fuzzing(bytes, |name, offset, size| {
        assert!(offset >= before + 512 && offset % 512 == 0, "{offset} after {before}");
        assert!(offset + size <= bytes.len() as u64 && name.len() <= usize::from(u16::MAX));
        before = offset + size;
    });
}

/// Opens a saved index of archives. The checksum is corrected first, because a fuzzer could not pass it.
///
/// # Panics
/// Reading the opened index fails.
pub fn tar_index(bytes: &[u8]) {
    webdataset::check_index(sealed(bytes));
}

/// Parses a list of an archive's members in DALI's format: the members are inside the archive and do not overlap.
///
/// # Panics
/// The members overlap or exceed the archive.
pub fn dali_index(bytes: &[u8]) {
    webdataset::check_list(bytes);
}

/// Reads Energon's lists of parts and of fields: archives are below their folder.
///
/// # Panics
/// A name leads out of the folder.
pub fn energon(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    webdataset::check_metadata(text);
}

/// Reads a manifest: rows are in the order of their lines, and their size is bounded by the file's size.
///
/// # Panics
/// The order or the size is wrong, or rows that are written as CSV do not read back equal.
pub fn manifest(bytes: &[u8]) {
    for is_json in [false, true] {
        let (mut before, mut all, mut again) = (0, 0, b"\"\"".to_vec());
        let mut rows = Vec::new();
        let read = manifest::read_for_fuzzing(bytes, is_json, |line, cells| {
            assert!(line > before, "{line} after {before}");
            before = line;
            all += cells.iter().flatten().map(|cell| cell.len()).sum::<usize>();
            rows.push(cells.iter().map(|cell| cell.map(<[u8]>::to_vec)).collect::<Vec<_>>());
        });
        // Escapes and numbers in JSON are longer than their values, except numbers such as 1e20.
        assert!(all <= 32 * bytes.len(), "{all}");
        if is_json || read.is_err() {
            continue;
        }
        let columns = rows.first().map_or(0, Vec::len);
        again.extend((1..columns).flat_map(|place| format!(",{place}").into_bytes()));
        for row in &rows {
            again.push(b'\n');
            for (place, cell) in row.iter().enumerate() {
                again.extend_from_slice(if place == 0 { b"\"" } else { b",\"" });
                let cell = cell
                    .iter()
                    .flatten()
                    .flat_map(|byte| std::iter::repeat_n(*byte, if *byte == b'"' { 2 } else { 1 }));
                again.extend(cell);
                again.push(b'"');
            }
        }
        let mut rows = rows.iter();
        let read = manifest::read_for_fuzzing(&again, false, |_, cells| {
            let row = rows.next().map(|row| row.iter().map(Option::as_deref).collect::<Vec<_>>());
            assert_eq!(row.as_deref(), Some(cells));
        });
        assert!(columns == 0 || (read.is_ok() && rows.next().is_none()), "{read:?}");
    }
}

/// Parses a COCO file: the size of paths and boxes is at most that of the file.
///
/// # Panics
/// Paths and boxes are larger.
pub fn coco(bytes: &[u8]) {
    let mut kept = 0;
    let _ = manifest::coco::parse_for_fuzzing(bytes, |path, boxes| kept += path.len() + 16 * boxes);
    assert!(kept <= bytes.len(), "{kept}");
}

/// Reads a file of labels, as VOC's, YOLO's, and as a list of YOLO's classes: each box has a label.
///
/// # Panics
/// A box has no label or is not finite.
pub fn label_file(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    labels::read_for_fuzzing(text, |boxes, labels, outlines| {
        assert!(boxes == labels && (outlines == 0 || outlines == boxes));
        assert!(boxes <= text.len());
    });
}

/// Opens a saved index of manifests. The checksum is corrected first, because a fuzzer could not pass it.
///
/// # Panics
/// Reading the opened index fails.
pub fn manifest_index(bytes: &[u8]) {
    manifest::check_index(sealed(bytes));
}

/// Parses a shard of records: its table, one record, and the description of a folder of shards.
///
/// # Panics
/// Samples overlap, or the size of an array does not match its shape.
pub fn records(bytes: &[u8]) {
    let _ = (mds::describe(bytes), litdata::describe(bytes));
    litdata::tokens::read_for_fuzzing(bytes);
    let mut before = 0;
    let _ = records::read_table_for_fuzzing(bytes, |offset, length| {
        assert!(offset >= before && offset + length <= bytes.len() as u64);
        before = offset + length;
    });
    // Frames of records: they and the records in each lie one behind the other, and each unpacks to what was planned.
    let (mut before, mut unpacked) = (0, Vec::new());
    let _ = records::read_frames_for_fuzzing(bytes, |(offset, length), whole, records| {
        assert!(offset >= before && offset + length <= bytes.len() as u64);
        before = offset + length;
        let mut end = 0;
        for (offset, length) in records {
            assert_eq!(*offset, end);
            end += length;
        }
        assert_eq!(end, whole);
        let frame = usize::try_from(offset).unwrap()..usize::try_from(before).unwrap();
        if whole <= INFLATED_BYTES {
            let whole = usize::try_from(whole).unwrap();
            let is_whole = Codec::Zstd.unpack(&bytes[frame], (whole, whole), &mut unpacked);
            assert!(!is_whole || unpacked.len() == whole);
        }
    });
    records::read_for_fuzzing(bytes, check_array);
}

/// Reads a TFRecord file, and one Example: frames are adjacent.
///
/// # Panics
/// Frames are not adjacent, or the size of an array does not match its shape.
pub fn tfrecord(bytes: &[u8]) {
    let mut before = 0;
    let walked = tfrecord::walk_for_fuzzing(bytes, |offset, length| {
        assert_eq!(offset, before);
        before += length;
    });
    assert!(walked.is_err() || before == bytes.len() as u64);
    tfrecord::read_for_fuzzing(bytes, check_array);
}

/// Reads an `ArrayRecord` file of two blocks, of which the bytes have the beginnings: the records of a chunk are one after the other, and are all of what it unpacks to.
///
/// # Panics
/// Chunks overlap, or records do not fill their chunk.
pub fn array_record(bytes: &[u8]) {
    let mut before = 0;
    let _ = array_record::walk_for_fuzzing(bytes, |(offset, length), unpacked, records| {
        assert!(offset >= before);
        before = offset + length;
        let mut end = 0;
        for &(offset, length) in records {
            assert_eq!(offset, end);
            end += length;
        }
        assert_eq!(end, unpacked);
    });
}

/// Reads an Arrow stream.
///
/// # Panics
/// A value is outside the stream.
pub fn arrow_table(bytes: &[u8]) {
    read_for_fuzzing(&arrow::READER, bytes);
}

/// Reads a data file or a manifest of Lance.
///
/// # Panics
/// A value is outside the file.
pub fn lance_file(bytes: &[u8]) {
    read_for_fuzzing(&lance::READER, bytes);
    let _ = lance::manifest::fragments(&forebay_index::window::InMemory(bytes));
}

/// Reads a Parquet file.
///
/// # Panics
/// A value is outside the file.
pub fn parquet_table(bytes: &[u8]) {
    read_for_fuzzing(&parquet::READER, bytes);
}

/// An index with a correct checksum, which a fuzzer could not find.
pub(crate) fn sealed(bytes: &[u8]) -> Vec<u8> {
    let mut sealed = bytes.to_vec();
    if bytes.len() >= HEADER_BYTES {
        seal(&mut sealed, [0; 32]);
    }
    sealed
}

/// Reads one key of a JSON member.
pub fn json_key(bytes: &[u8]) {
    fields::read_json_key(bytes);
}

/// Parses the start of a file of tokens, or of Megatron's index.
///
/// # Panics
/// The parsed header does not fit the file.
pub fn token_file(bytes: &[u8]) {
    tokens::fuzzing::start(bytes);
}

/// Parses the metadata of a Zarr array, decodes a chunk, and copies rows out of it. The bytes: the format's number, the
/// length of the metadata (u16), the metadata, the chunk.
///
/// # Panics
/// A chunk does not have the size of its elements, or names of chunks are not found again.
pub fn zarr(bytes: &[u8]) {
    zarr::read_for_fuzzing(bytes, INFLATED_BYTES);
}

/// Reads the groups and datasets of an HDF5 file, and some of their chunks.
///
/// # Panics
/// A chunk has a number that its dataset does not have, or not the size of its elements.
pub fn hdf5(bytes: &[u8]) {
    hdf5::read_for_fuzzing(bytes, INFLATED_BYTES);
}

/// Opens a saved index of documents of tokens.
///
/// # Panics
/// A row has more tokens than its length.
pub fn token_index(bytes: &[u8]) {
    tokens::fuzzing::index(bytes);
}

fn check_array(array: &ArrayValue<'_>) {
    let elements: u64 = array.shape.iter().product();
    assert_eq!(elements * array.dtype.size_bytes(), array.bytes.len() as u64, "{:?}", array.shape);
}

/// Opens a saved index, with its checksum corrected too.
///
/// # Panics
/// Reading the opened index fails.
pub fn index(bytes: &[u8]) {
    let extensions = image_folder::FORMAT.extensions;
    let open = |bytes: Vec<u8>| FolderIndex::open(IndexBytes::Owned(bytes), extensions);
    let _ = open(bytes.to_vec());
    let Ok(index) = open(sealed(bytes)) else {
        return;
    };
    let samples = index.sample_count();
    let ends = (0..64).chain(samples.saturating_sub(64)..samples);
    let mut path = Vec::new();
    for id in ends.filter(|id| *id < samples) {
        path.clear();
        index.append_path(SampleId(id), &mut path);
        let _ = index.label(SampleId(id));
    }
    for place in 0..index.directory_count().min(64) {
        let _ = index.directory(place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_index::index_file::LayoutFault;
    use forebay_index::row_index::RowIndex;
    use forebay_index::saved_index::SavedIndex;
    use forebay_index::shards::ShardIndex;

    /// Seeds of an earlier layout are refused at their first bytes and lead a fuzzer nowhere.
    #[test]
    fn seeds_of_saved_indexes_have_the_present_layout() {
        type Open = fn(IndexBytes) -> Result<(), LayoutFault>;
        let kinds: [(&str, Open); 4] = [
            ("index", |bytes| {
                FolderIndex::open(bytes, image_folder::FORMAT.extensions).map(|_| ())
            }),
            ("tar_index", |bytes| ShardIndex::open(bytes).map(|_| ())),
            ("manifest_index", |bytes| RowIndex::open(bytes).map(|_| ())),
            ("token_index", tokens::fuzzing::open),
        ];
        let corpus = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus");
        for (kind, open) in kinds {
            let open = |seed: std::io::Result<std::fs::DirEntry>| {
                let bytes = std::fs::read(seed.unwrap().path()).unwrap();
                open(IndexBytes::Owned(sealed(&bytes)))
            };
            let opened: Vec<_> = std::fs::read_dir(corpus.join(kind)).unwrap().map(open).collect();
            // Some are damaged on purpose.
            let is_present =
                |one: &Result<(), LayoutFault>| matches!(one, Ok(()) | Err(LayoutFault::Damaged));
            assert!(opened.iter().all(is_present), "{kind}: {opened:?}");
            assert!(opened.contains(&Ok(())), "{kind}: {opened:?}");
        }
    }
}
