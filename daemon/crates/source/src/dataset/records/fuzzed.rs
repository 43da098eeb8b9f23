//! What fuzzers run of these formats.

use super::Layout;
use super::description::Column;
use super::encoding::Encoding;
use super::open::read_table;
use super::rules::RecordRule;
use crate::dataset::shards::Extent;
use crate::dataset::{ArrayValue, FieldValue};

/// Takes a record apart that has a column of each encoding, for fuzzers. Gives each array's type, elements and bytes.
pub(in crate::dataset) fn read_for_fuzzing(record: &[u8], mut array: impl FnMut(&ArrayValue<'_>)) {
    for encoding in Encoding::for_fuzzing() {
        for bytes in [None, Some(8)] {
            let column = Column { name: "a".to_owned(), encoding: encoding.clone(), bytes };
            let rules = vec![RecordRule::of("a", &encoding)];
            let layout = Layout {
                columns: vec![
                    column.clone(),
                    Column { name: "b".to_owned(), bytes: None, ..column },
                ],
                rules,
            };
            let Ok(parts) = layout.split(record) else { continue };
            for part in parts {
                if let Ok(FieldValue::Array(value)) = layout.rules[0].value(&encoding, part) {
                    array(&value);
                }
            }
        }
    }
}

/// Reads the table of a shard in memory, for fuzzers. Gives where each sample lies.
///
/// # Errors
/// What is wrong with it.
pub(in crate::dataset) fn read_table_for_fuzzing(
    shard: &[u8],
    mut visit: impl FnMut(u64, u64),
) -> Result<(), String> {
    let samples = shard.first_chunk().map_or(0, |bytes| u64::from(u32::from_le_bytes(*bytes)));
    let read = |offset: u64, length: u64, buffer: &mut Vec<u8>| {
        let start = usize::try_from(offset).unwrap();
        buffer.clear();
        buffer.extend_from_slice(&shard[start..start + usize::try_from(length).unwrap()]);
        Ok(())
    };
    let visit = |Extent { offset, bytes }| {
        visit(offset, bytes);
        Ok(())
    };
    read_table(shard.len() as u64, samples, read, visit).map_err(|fault| format!("{fault:?}"))
}
