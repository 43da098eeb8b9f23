//! Entry points for fuzzers.

use super::Layout;
use super::description::Packing;
use super::packed::{Frame, read_frames, record_bytes};
use super::rules::{rule_of, value};
use super::scan::read_table;
use forebay_columnar::{Column, Encoding};
use forebay_dataset::{ArrayValue, FieldValue};
use forebay_index::shards::Extent;
use forebay_index::window::{InMemory, MAX_PART_BYTES};
use forebay_storage::codec::Codec;

/// Parses a record once for each encoding of its columns. Gives each array's type, elements and bytes.
pub(crate) fn read_for_fuzzing(record: &[u8], mut array: impl FnMut(&ArrayValue<'_>)) {
    for encoding in Encoding::for_fuzzing() {
        for bytes in [None, Some(8)] {
            let column = Column { name: "a".to_owned(), encoding: encoding.clone(), bytes };
            let rules = vec![rule_of("a", &encoding)];
            let layout = Layout {
                columns: vec![
                    column.clone(),
                    Column { name: "b".to_owned(), bytes: None, ..column },
                ],
                rules,
                packing: Packing::Plain,
            };
            let Ok(parts) = layout.split(record) else { continue };
            for part in parts {
                if let Ok(FieldValue::Array(found)) = value(&layout.rules[0], &encoding, part) {
                    array(&found);
                }
            }
        }
    }
}

/// Reads the table of a shard in memory. Gives the range of each sample, and checks the unpacked size of zstd frames.
///
/// # Errors
/// Describes the fault.
pub(crate) fn read_table_for_fuzzing(
    shard: &[u8],
    mut visit: impl FnMut(u64, u64),
) -> Result<(), String> {
    let samples = shard.first_chunk().map_or(0, |bytes| u64::from(u32::from_le_bytes(*bytes)));
    let visit = |extent: Extent| {
        let Extent { offset, bytes } = extent;
        visit(offset, bytes);
        let start = usize::try_from(offset).unwrap();
        let length = usize::try_from(bytes.min(Codec::MAX_ZSTD_HEAD_BYTES)).unwrap();
        if let Ok(unpacked) = record_bytes(extent, &shard[start..start + length]) {
            assert!(unpacked <= MAX_PART_BYTES);
        }
        Ok(())
    };
    read_table(&InMemory(shard), samples, visit).map_err(|fault| format!("{fault:?}"))
}

/// Reads the table of a shard of frames in memory. Gives for each frame its offset, its compressed and its unpacked
/// bytes, and the offsets and lengths of its records.
///
/// # Errors
/// Describes the fault.
pub(crate) fn read_frames_for_fuzzing(
    shard: &[u8],
    mut visit: impl FnMut((u64, u64), u64, &[(u64, u64)]),
) -> Result<(), String> {
    let samples = shard.get(12..).and_then(<[u8]>::first_chunk);
    let samples = samples.map_or(0, |bytes| u64::from(u32::from_le_bytes(*bytes)));
    let visit = |frame: &Frame| {
        let plain = |Extent { offset, bytes }: &Extent| (*offset, *bytes);
        let records: Vec<_> = frame.records.iter().map(plain).collect();
        visit(plain(&frame.place), frame.unpacked_bytes, &records);
        Ok(())
    };
    read_frames(&InMemory(shard), samples, visit).map_err(|fault| format!("{fault:?}"))
}
