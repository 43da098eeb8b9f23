//! The fuzzers' way to the array files' and the index's parsers. See `forebay::fuzzing`.

use std::borrow::Cow;

use forebay_protocol::ids::SampleId;

use super::ArrayValue;
use super::folder::index::{FolderIndex, IndexBytes};
use super::folder::layout;
use super::image_folder;
use super::npy_header::{ArrayHeader, header_bytes, read_array};
use super::{
    arrow, fields, litdata, manifest, mds, npz, parquet, records, tables, tfrecord, tokens,
    webdataset,
};

/// The most that a target lets an archive inflate to.
const INFLATED_BYTES: u64 = 1 << 20;

/// A `.npy` file, and its header alone.
///
/// # Panics
/// When an array has not exactly the bytes of its shape.
pub fn npy(bytes: &[u8]) {
    let _ = header_bytes(bytes);
    let _ = ArrayHeader::parse(bytes);
    if let Ok(array) = read_array(bytes) {
        check_array(&array);
    }
}

/// A `.npz` file.
///
/// # Panics
/// When an array has not exactly the bytes of its shape, or the members inflate beyond their limit.
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

/// A tar archive: its members lie in it, one behind the other.
///
/// # Panics
/// When they do not.
pub fn tar(bytes: &[u8]) {
    let mut before = 0;
    let _ = webdataset::walk_for_fuzzing(bytes, |name, offset, size| {
        assert!(offset >= before + 512 && offset % 512 == 0, "{offset} after {before}");
        assert!(offset + size <= bytes.len() as u64 && name.len() <= usize::from(u16::MAX));
        before = offset + size;
    });
}

/// A saved index of archives. The checksum, which hides the rest from a fuzzer, is set right first.
///
/// # Panics
/// When an index that opens cannot be walked.
pub fn tar_index(bytes: &[u8]) {
    webdataset::check_index(sealed(bytes));
}

/// A list of an archive's members, as DALI has it: they lie one behind another, within the archive.
///
/// # Panics
/// When they do not.
pub fn dali_index(bytes: &[u8]) {
    webdataset::check_list(bytes);
}

/// A manifest: rows come in the order of their lines, and have at most the bytes of the file.
///
/// # Panics
/// When they do not, or when rows written as CSV again are other rows.
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
        // JSON's escapes are longer than what they stand for, and so are numbers, but for those such as 1e20.
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

/// A COCO file: paths and boxes are at most what its bytes can hold.
///
/// # Panics
/// When they are more.
pub fn coco(bytes: &[u8]) {
    let mut kept = 0;
    let _ = manifest::coco::parse_for_fuzzing(bytes, |path, boxes| kept += path.len() + 16 * boxes);
    assert!(kept <= bytes.len(), "{kept}");
}

/// A saved index of manifests. The checksum, which hides the rest from a fuzzer, is set right first.
///
/// # Panics
/// When an index that opens cannot be walked.
pub fn manifest_index(bytes: &[u8]) {
    manifest::check_index(sealed(bytes));
}

/// A shard of records: as its table, as one record, and as the description of a folder of them.
///
/// # Panics
/// When samples do not lie one behind the other, or an array has not exactly the bytes of its shape.
pub fn records(bytes: &[u8]) {
    let _ = (mds::describe(bytes), litdata::describe(bytes));
    let mut before = 0;
    let _ = records::read_table_for_fuzzing(bytes, |offset, length| {
        assert!(offset >= before && offset + length <= bytes.len() as u64);
        before = offset + length;
    });
    records::read_for_fuzzing(bytes, check_array);
}

/// A TFRecord file, and one Example: frames lie one behind the other.
///
/// # Panics
/// When they do not, or an array has not exactly the bytes of its shape.
pub fn tfrecord(bytes: &[u8]) {
    let mut before = 0;
    let walked = tfrecord::walk_for_fuzzing(bytes, |offset, length| {
        assert_eq!(offset, before);
        before += length;
    });
    assert!(walked.is_err() || before == bytes.len() as u64);
    tfrecord::read_for_fuzzing(bytes, check_array);
}

/// A stream of Arrow's.
///
/// # Panics
/// When a value does not lie in it.
pub fn arrow_table(bytes: &[u8]) {
    tables::read_for_fuzzing(&arrow::TABLES, bytes);
}

/// A Parquet file.
///
/// # Panics
/// When a value does not lie in it.
pub fn parquet_table(bytes: &[u8]) {
    tables::read_for_fuzzing(&parquet::TABLES, bytes);
}

fn sealed(bytes: &[u8]) -> Vec<u8> {
    let mut sealed = bytes.to_vec();
    if bytes.len() >= layout::HEADER_BYTES {
        layout::seal(&mut sealed, [0; 32]);
    }
    sealed
}

/// A JSON member, of which one key is read.
pub fn json_key(bytes: &[u8]) {
    fields::read_json_key(bytes);
}

/// The start of a file of tokens, or of Megatron's index.
///
/// # Panics
/// When what it announces does not fit the file.
pub fn token_file(bytes: &[u8]) {
    tokens::fuzzing::start(bytes);
}

/// A saved index of documents of tokens.
///
/// # Panics
/// When a row has more tokens than it may have.
pub fn token_index(bytes: &[u8]) {
    tokens::fuzzing::index(bytes);
}

fn check_array(array: &ArrayValue<'_>) {
    let elements: u64 = array.shape.iter().product();
    assert_eq!(elements * array.dtype.size_bytes(), array.bytes.len() as u64, "{:?}", array.shape);
}

/// A saved index. The checksum, which hides the rest from a fuzzer, is set right first.
///
/// # Panics
/// When an index that opens cannot be walked.
pub fn index(bytes: &[u8]) {
    let extensions = image_folder::FORMAT.extensions;
    let open = |bytes: Vec<u8>| FolderIndex::open(IndexBytes::Owned(bytes), extensions);
    let _ = open(bytes.to_vec());
    if bytes.len() < layout::HEADER_BYTES {
        return;
    }
    let mut sealed = bytes.to_vec();
    layout::seal(&mut sealed, [0; 32]);
    let Ok(index) = open(sealed) else {
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
