//! Headers of `.npy` files: all types and orders, versions, and hostile headers.

use forebay_protocol::tensor::DType;

use super::{ArrayHeader, read_array};
use crate::testing::{npy_bytes, npy_with_text};

fn failure(bytes: &[u8]) -> String {
    read_array(bytes).unwrap_err().to_string()
}

#[test]
fn every_numeric_type_is_read_in_both_byte_orders() {
    for (code, dtype) in [
        ("b1", DType::Bool),
        ("u1", DType::U8),
        ("i1", DType::I8),
        ("u2", DType::U16),
        ("i2", DType::I16),
        ("u4", DType::U32),
        ("i4", DType::I32),
        ("u8", DType::U64),
        ("i8", DType::I64),
        ("f2", DType::F16),
        ("f4", DType::F32),
        ("f8", DType::F64),
    ] {
        let size = usize::try_from(dtype.size_bytes()).unwrap();
        let orders: &[(char, bool)] = if size == 1 {
            &[('|', false), ('<', false), ('>', false)]
        } else {
            &[('<', false), ('>', true)]
        };
        for (order, big_endian) in orders {
            let elements: Vec<u8> = (0_u8..48).take(6 * size).collect();
            for fortran_order in [false, true] {
                let bytes =
                    npy_bytes(&format!("{order}{code}"), fortran_order, "(2, 3)", &elements);
                let array = read_array(&bytes).unwrap();
                assert_eq!((array.dtype, array.big_endian), (dtype, *big_endian), "{order}{code}");
                assert_eq!((&array.shape[..], array.fortran_order), (&[2, 3][..], fortran_order));
                assert!(matches!(array.bytes, std::borrow::Cow::Borrowed(_)));
                assert_eq!(*array.bytes, elements[..]);
            }
        }
    }
}

#[test]
fn output_of_npyz_is_read_back() {
    use npyz::WriterBuilder;
    let mut bytes = Vec::new();
    let mut writer = npyz::WriteOptions::new()
        .default_dtype()
        .shape(&[2, 2])
        .writer(&mut bytes)
        .begin_nd()
        .unwrap();
    writer.extend([1.5_f32, -2.0, 3.0, 4.0]).unwrap();
    writer.finish().unwrap();
    let array = read_array(&bytes).unwrap();
    assert_eq!((array.dtype, &array.shape[..]), (DType::F32, &[2, 2][..]));
    assert_eq!(array.bytes[4..8], (-2.0_f32).to_le_bytes());
}

#[test]
fn scalars_and_arrays_without_elements_have_their_shapes() {
    assert_eq!(read_array(&npy_bytes("<i4", false, "()", &[1, 0, 0, 0])).unwrap().shape.len(), 0);
    assert_eq!(read_array(&npy_bytes("<i4", false, "(7,)", &[0; 28])).unwrap().shape[..], [7]);
    assert_eq!(read_array(&npy_bytes("<i4", false, "(0, 5)", &[])).unwrap().shape[..], [0, 5]);
}

#[test]
fn versions_two_and_three_are_read_and_others_refused() {
    let first = npy_bytes("<u2", false, "(2,)", &[1, 0, 2, 0]);
    for version in [2, 3] {
        let mut bytes = first[..6].to_vec();
        bytes.extend_from_slice(&[version, 0, first[8], first[9], 0, 0]);
        bytes.extend_from_slice(&first[10..]);
        assert_eq!(read_array(&bytes).unwrap().bytes[..], [1, 0, 2, 0]);
    }
    let mut bytes = first;
    bytes[6] = 4;
    assert!(failure(&bytes).starts_with("version 4.0 of .npy is unknown"));
}

#[test]
fn truncated_file_is_a_defect_at_any_length() {
    let bytes = npy_bytes("<u2", false, "(2,)", &[1, 0, 2, 0]);
    for length in 0..bytes.len() {
        assert!(read_array(&bytes[..length]).is_err(), "{length} bytes");
    }
    assert_eq!(failure(b""), "the file is empty");
    assert!(failure(&bytes[..9]).starts_with("cut short: 9 bytes end within the .npy header"));
    assert_eq!(
        failure(&bytes[..bytes.len() - 1]),
        "cut short: uint16 [2] takes 4 bytes and 3 follow the header"
    );
    let longer = [&bytes[..], b"x"].concat();
    assert!(failure(&longer).starts_with("too long: uint16 [2] takes 4 bytes and 5 follow"));
}

#[test]
fn two_arrays_in_one_file_are_refused_with_what_to_write() {
    let one = npy_bytes("<u2", false, "(2,)", &[1, 0, 2, 0]);
    let message = failure(&[&one[..], &one].concat());
    assert!(message.contains("another array was saved into the same file"), "{message}");
    assert!(message.ends_with("save each in its own file, or all of them with numpy.savez"));
}

#[test]
fn types_without_a_byte_order_and_names_of_types_are_read_as_numpy_reads_them() {
    for (descr, dtype) in [
        ("=u2", DType::U16),
        ("=i2", DType::I16),
        ("uint16", DType::U16),
        ("int16", DType::I16),
        ("float16", DType::F16),
    ] {
        let bytes = npy_bytes(descr, false, "(2,)", &[1, 0, 2, 0]);
        let array = read_array(&bytes).unwrap();
        assert_eq!((array.dtype, array.big_endian), (dtype, cfg!(target_endian = "big")));
        assert_eq!((&array.shape[..], &array.bytes[..]), (&[2][..], &[1, 0, 2, 0][..]), "{descr}");
    }
    for (descr, dtype) in [("bool", DType::Bool), ("int8", DType::I8), ("uint8", DType::U8)] {
        assert_eq!(read_array(&npy_bytes(descr, false, "(1,)", &[1])).unwrap().dtype, dtype);
    }
    for (descr, dtype) in [
        ("int64", DType::I64),
        ("uint64", DType::U64),
        ("float64", DType::F64),
        ("=f8", DType::F64),
    ] {
        assert_eq!(read_array(&npy_bytes(descr, false, "(1,)", &[0; 8])).unwrap().dtype, dtype);
    }
    for (descr, dtype) in [("int32", DType::I32), ("uint32", DType::U32), ("float32", DType::F32)] {
        assert_eq!(read_array(&npy_bytes(descr, false, "(1,)", &[0; 4])).unwrap().dtype, dtype);
    }
    assert!(failure(&npy_bytes("str", false, "(1,)", &[0; 4])).contains("cannot be read"));
}

#[test]
fn long_integers_of_python_2_are_read() {
    let mut bytes = npy_bytes("<u2", false, "(2L, 1L)", &[1, 0, 2, 0]);
    let array = read_array(&bytes).unwrap();
    assert_eq!((&array.shape[..], &array.bytes[..]), (&[2, 1][..], &[1, 0, 2, 0][..]));
    // In a header of version 2, too.
    let length = [bytes[8], bytes[9], 0, 0];
    bytes.splice(6..10, [2, 0].into_iter().chain(length));
    assert_eq!(read_array(&bytes).unwrap().shape[..], [2, 1]);
    for shape in ["(2LL,)", "(2l,)", "(L2,)", "(2L3,)"] {
        assert!(read_array(&npy_bytes("<u2", false, shape, &[1, 0, 2, 0])).is_err(), "{shape}");
    }
}

#[test]
fn other_files_and_broken_headers_are_refused() {
    assert!(failure(b"\x89PNG\r\n\x1a\n").starts_with("not a .npy file"));
    for text in [
        "",
        "{}",
        "3",
        "{'descr': '<f4', 'shape': (1,)}",
        "{'descr': '<f4', 'fortran_order': 1, 'shape': (1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': 'x'}",
        "{'descr': '<q4', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)",
    ] {
        let message = failure(&npy_with_text(text, &[0; 4]));
        assert!(message.starts_with("the .npy header cannot be read: "), "{text}: {message}");
    }
}

#[test]
fn non_numeric_types_are_refused_by_name() {
    for descr in ["<c8", "|S3", "<U3", "|O", "<M8[ns]", "|V4", "<f16"] {
        let message = failure(&npy_bytes(descr, false, "(1,)", &[0; 16]));
        assert!(
            message.contains("are not supported") || message.contains("cannot be read"),
            "{descr}: {message}"
        );
    }
    let text = "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}";
    assert!(
        failure(&npy_with_text(text, &[0; 4])).starts_with("structured arrays are not supported")
    );
}

#[test]
fn hostile_headers_are_refused_before_parsing() {
    let shape = |shape: &str| failure(&npy_bytes("<f4", false, shape, &[]));
    assert_eq!(shape("(4294967296, 4294967296, 2)"), "the shape in the .npy header overflows");
    assert_eq!(shape("(99999999999999999999999,)"), "the shape in the .npy header overflows");
    assert_eq!(
        shape("(0xffffffffffff, 0xffffffffffff)"),
        "the .npy header holds a number that is not decimal"
    );
    assert_eq!(shape(&"(".repeat(4000)), "the .npy header is nested more than a header is");
    assert!(shape(&"[".repeat(4000)).starts_with("structured arrays"));
    assert!(shape("(1, 1, 1, 1, 1, 1, 1, 1)").starts_with("the array has 8 dimensions"));
    assert!(failure(&npy_bytes("<U9999999999999999999", false, "(1,)", &[])).contains("absurd"));
    let mut bytes = npy_bytes("<f4", false, "(1,)", &[0; 4]);
    bytes[8..10].copy_from_slice(&u16::MAX.to_le_bytes());
    assert_eq!(
        failure(&bytes),
        "the .npy header claims 65535 bytes, and NumPy takes at most 10000"
    );
    bytes[8..10].copy_from_slice(&9_000_u16.to_le_bytes());
    assert!(failure(&bytes).starts_with("cut short: the .npy header ends at 9010"));
}

proptest::proptest! {
    #[test]
    fn header_parser_does_not_panic_on_any_text(text in "[-+{}()'\", :.0-9a-fjxOLTFdescrshapfon_]{0,120}") {
        let _ = ArrayHeader::parse(&npy_with_text(&text, &[]));
    }

    #[test]
    fn header_parser_does_not_panic_if_two_bytes_change(first in 0_usize..128, second in 0_usize..128, value: u8) {
        let mut bytes = npy_bytes("<f4", false, "(3, 4, 5)", &[0; 240]);
        bytes[first] = value;
        bytes[second] = value.wrapping_add(13);
        let _ = read_array(&bytes);
    }
}
