//! Writes the parts of JSON: compact, as the values of nested columns.

use half::f16;

/// The maximum length of a row's JSON, in bytes.
pub(crate) const MAX_BYTES: usize = 16 << 20;
/// The maximum length of the names of all columns that may be read as JSON. More are not offered: a small header can name
/// a long struct around thousands of others.
pub(crate) const MAX_NAMES_BYTES: usize = 1 << 20;

/// Why a part of a column keeps it from being JSON.
pub(crate) fn fault(name: &str, what: &str) -> String {
    let shown: String = name.chars().take(100).collect();
    format!(
        "{shown} in it is {what}, which JSON does not have; name other columns of it in dataset.fields by themselves, or \
         convert it"
    )
}

/// Writes a string. One that is not UTF-8 stays as it is: the text of its row is then none, and a bad sample.
pub(crate) fn write_text(out: &mut Vec<u8>, text: &[u8]) {
    match std::str::from_utf8(text) {
        // Writing to memory cannot fail.
        Ok(text) => drop(serde_json::to_writer(out, text)),
        Err(_) => {
            out.push(b'"');
            out.extend_from_slice(text);
            out.push(b'"');
        }
    }
}

/// Writes the key of an object's entry.
pub(crate) fn write_key(out: &mut Vec<u8>, name: &str, is_first: bool) {
    if !is_first {
        out.push(b',');
    }
    write_text(out, name.as_bytes());
    out.push(b':');
}

/// Writes a number of the named type, or a bool. Floats have the fewest digits that give them back; those that JSON does
/// not have are strings. False: the bytes are no such number.
pub(crate) fn write_number(out: &mut Vec<u8>, name: &str, bytes: &[u8]) -> bool {
    macro_rules! integer {
        ($kind:ty) => {
            bytes.try_into().is_ok_and(|bytes| {
                serde_json::to_writer(out, &<$kind>::from_le_bytes(bytes)).is_ok()
            })
        };
    }
    match name {
        "bool" => {
            let [byte] = bytes else { return false };
            out.extend_from_slice(if *byte > 0 { b"true" } else { b"false" });
            true
        }
        "int8" => integer!(i8),
        "int16" => integer!(i16),
        "int32" => integer!(i32),
        "int64" => integer!(i64),
        "uint8" => integer!(u8),
        "uint16" => integer!(u16),
        "uint32" => integer!(u32),
        "uint64" => integer!(u64),
        "float16" => bytes
            .try_into()
            .is_ok_and(|bytes| write_float(out, f32::from(f16::from_le_bytes(bytes)))),
        "float32" => {
            bytes.try_into().is_ok_and(|bytes| write_float(out, f32::from_le_bytes(bytes)))
        }
        "float64" => {
            bytes.try_into().is_ok_and(|bytes| write_float(out, f64::from_le_bytes(bytes)))
        }
        _ => false,
    }
}

fn write_float<F: Copy + Into<f64> + serde::Serialize + std::fmt::Display>(
    out: &mut Vec<u8>,
    value: F,
) -> bool {
    match value.into().is_finite() {
        true => serde_json::to_writer(out, &value).is_ok(),
        false => serde_json::to_writer(out, &value.to_string()).is_ok(),
    }
}

#[test]
fn numbers_and_texts_are_written_as_json_has_them() {
    let number = |name: &str, bytes: &[u8]| {
        let mut out = Vec::new();
        write_number(&mut out, name, bytes).then(|| String::from_utf8(out).unwrap())
    };
    assert_eq!(number("int8", &[0xff]).unwrap(), "-1");
    assert_eq!(number("uint64", &[0xff; 8]).unwrap(), u64::MAX.to_string());
    assert_eq!(number("float32", &0.1_f32.to_le_bytes()).unwrap(), "0.1");
    assert_eq!(number("float64", &1e300_f64.to_le_bytes()).unwrap(), "1e+300");
    assert_eq!(number("float16", &f16::from_f32(-2.5).to_le_bytes()).unwrap(), "-2.5");
    assert_eq!(number("float32", &f32::NEG_INFINITY.to_le_bytes()).unwrap(), "\"-inf\"");
    assert_eq!(number("bool", &[1]).unwrap(), "true");
    assert_eq!((number("int32", &[1, 2]), number("text", b"a")), (None, None));
    let text = |text: &[u8]| {
        let mut out = Vec::new();
        write_text(&mut out, text);
        out
    };
    assert_eq!(text("a\"\\\n\u{1}é".as_bytes()), "\"a\\\"\\\\\\n\\u0001é\"".as_bytes());
    assert_eq!(text(b"\xff"), b"\"\xff\"");
}
