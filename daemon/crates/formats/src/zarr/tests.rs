//! Metadata and chunks that are refused.

use super::{ZarrArray, decode};

const ARRAY: &str = r#"{"zarr_format": 2, "shape": [4, 2], "chunks": [2, 2], "dtype": "<u2",
    "compressor": {"id": "blosc"}, "fill_value": null, "order": "C", "filters": null}"#;

fn refused(from: &str, to: &str) -> String {
    assert!(ARRAY.contains(from));
    ZarrArray::parse(ARRAY.replace(from, to).as_bytes(), false).unwrap_err()
}

#[test]
fn metadata_that_are_not_of_rows_of_numbers_are_refused_with_the_reason() {
    ZarrArray::parse(ARRAY.as_bytes(), false).unwrap();
    for (from, to, reason) in [
        ("[4, 2]", "[]", "single number"),
        ("[2, 2]", "[0, 2]", "do not fit its shape"),
        ("[2, 2]", "[2]", "do not fit its shape"),
        ("[4, 2]", "[9223372036854775807, 9223372036854775807]", "overflows"),
        ("[2, 2]", "[9223372036854775807, 2]", "overflows"),
        ("<u2", "<U4", "numbers and booleans are read"),
        ("\"<u2\"", "[[\"x\", \"<u2\"]]", "several fields"),
        ("blosc", "lzma", "\"lzma\""),
        ("\"filters\": null", "\"filters\": [{\"id\": \"delta\"}]", "the filter \"delta\""),
        ("\"order\": \"C\"", "\"order\": \"K\"", "its order"),
        ("\"fill_value\": null", "\"fill_value\": -1", "its fill_value is -1"),
        ("\"zarr_format\": 2", "\"zarr_format\": 1", "zarr_format is 1"),
        ("{", "", "malformed"),
    ] {
        let message = refused(from, to);
        assert!(message.contains(reason), "{message}");
    }
}

#[test]
fn sizes_in_a_blosc_header_are_not_trusted() {
    let array = ZarrArray::parse(ARRAY.as_bytes(), false).unwrap();
    let header = |unpacked: u32, block: u32, packed: u32, flags: u8| {
        let numbers = [unpacked, block, packed].map(u32::to_le_bytes).concat();
        [&[2, 1, flags, 2][..], &numbers, &[0; 40]].concat()
    };
    let fails = |bytes: &[u8]| {
        decode(&array, bytes, &mut [Vec::new(), Vec::new()]).unwrap_err().to_string()
    };
    for bytes in [
        header(8, 8, 56, 0x21),
        header(8, 0, 56, 0x21),
        header(8, u32::MAX, 56, 0x21),
        header(u32::MAX, 8, 56, 0x21),
        header(8, 8, 56, 0x02),
        header(8, 3, 56, 0x24),
        header(8, 8, 16, 0x21),
    ] {
        assert!(fails(&bytes).len() > 10);
        for cut in 0..bytes.len() {
            fails(&bytes[..cut]);
        }
    }
    let stored = [&header(8, 8, 24, 0x02)[..16], &[1, 0, 2, 0, 3, 0, 4, 0]].concat();
    let mut buffers = [Vec::new(), Vec::new()];
    assert_eq!(decode(&array, &stored, &mut buffers).unwrap(), [1, 0, 2, 0, 3, 0, 4, 0]);
}
