//! Broken `.npy` files. The good one is float32 of shape (3, 4).

use super::broken_file::{BrokenFile, broken_in_any_format, misnamed};

/// A file of version 1.0 with any header text.
fn file(header: &str, elements: &[u8]) -> Vec<u8> {
    let mut bytes = b"\x93NUMPY\x01\0".to_vec();
    let mut text = header.as_bytes().to_vec();
    while !(10 + text.len() + 1).is_multiple_of(64) {
        text.push(b' ');
    }
    text.push(b'\n');
    bytes.extend(u16::try_from(text.len()).unwrap().to_le_bytes());
    bytes.extend(text);
    bytes.extend(elements);
    bytes
}

fn header(descr: &str, order: &str, shape: &str) -> String {
    format!("{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}")
}

/// A whole file of a type, an order and a shape.
pub(super) fn array(descr: &str, order: &str, shape: &str, elements: &[u8]) -> Vec<u8> {
    file(&header(descr, order, shape), elements)
}

/// float32 of shape (3, 4).
pub(super) fn good() -> Vec<u8> {
    array("'<f4'", "False", "(3, 4)", &[7; 48])
}

pub(super) fn broken() -> Vec<BrokenFile> {
    let good = good();
    let mut all = misnamed("npy");
    all.extend(broken_in_any_format("npy", "npy", &good));
    for (what, bytes) in of_elements() {
        all.push(BrokenFile { name: format!("npy-{what}.npy"), bytes });
    }
    for (what, header) in of_headers() {
        all.push(BrokenFile { name: format!("npy-{what}.npy"), bytes: file(&header, &[7; 48]) });
    }
    for (what, start) in [
        ("version-0", &b"\x93NUMPY\0\0"[..]),
        ("version-9", b"\x93NUMPY\x09\0"),
        ("version-1.7", b"\x93NUMPY\x01\x07"),
        ("header-of-4-gib", b"\x93NUMPY\x02\0\xff\xff\xff\xff"),
        ("header-of-65535-bytes", b"\x93NUMPY\x01\0\xff\xff"),
        ("header-of-no-bytes", b"\x93NUMPY\x01\0\0\0"),
        ("header-of-one-byte", b"\x93NUMPY\x01\0\x01\0"),
    ] {
        let bytes = [start, &good[start.len()..]].concat();
        all.push(BrokenFile { name: format!("npy-{what}.npy"), bytes });
    }
    all
}

/// Good headers, with other elements than they say, or another type or shape than the first sample's.
fn of_elements() -> Vec<(&'static str, Vec<u8>)> {
    let of = |descr: &str, shape: &str, bytes: usize| array(descr, "False", shape, &vec![1; bytes]);
    vec![
        ("one-byte-short", of("'<f4'", "(3, 4)", 47)),
        ("one-byte-long", of("'<f4'", "(3, 4)", 49)),
        ("no-elements", of("'<f4'", "(3, 4)", 0)),
        ("twice-the-elements", of("'<f4'", "(3, 4)", 96)),
        ("float64", of("'<f8'", "(3, 4)", 96)),
        ("int32", of("'<i4'", "(3, 4)", 48)),
        ("bool", of("'|b1'", "(3, 4)", 12)),
        ("another-shape", of("'<f4'", "(4, 3)", 48)),
        ("a-row-more", of("'<f4'", "(4, 4)", 64)),
        ("a-dimension-more", of("'<f4'", "(1, 3, 4)", 48)),
        ("a-dimension-less", of("'<f4'", "(12,)", 48)),
        ("a-scalar", of("'<f4'", "()", 4)),
        ("of-no-rows", of("'<f4'", "(0, 4)", 0)),
        ("bomb-of-a-tebibyte", of("'<f4'", "(274877906944,)", 48)),
    ]
}

fn of_headers() -> Vec<(&'static str, String)> {
    let shape = |shape: &str| header("'<f4'", "False", shape);
    let descr = |descr: &str| header(descr, "False", "(3, 4)");
    vec![
        ("product-beyond-64-bits", shape("(4294967296, 4294967296, 4)")),
        ("side-beyond-64-bits", shape("(99999999999999999999999,)")),
        ("zero-times-much", shape("(0, 9223372036854775807, 9223372036854775807)")),
        ("negative-side", shape("(-3, -4)")),
        ("shape-of-fractions", shape("(3.0, 4.0)")),
        ("shape-of-text", shape("('3', '4')")),
        ("shape-is-a-number", shape("12")),
        ("shape-is-a-list", shape("[3, 4]")),
        ("shape-of-hexadecimal", shape("(0x3, 0x4)")),
        ("shape-is-nested", shape("((3, 4), 1)")),
        ("shape-of-40-sides", shape(&format!("({})", "1, ".repeat(40)))),
        ("deeply-nested", shape(&format!("{}{}", "(".repeat(900), ")".repeat(900)))),
        ("of-objects", descr("'|O'")),
        ("of-text", descr("'<U4'")),
        ("of-bytes", descr("'|S4'")),
        ("of-voids", descr("'|V4'")),
        ("of-dates", descr("'<M8[ns]'")),
        ("of-complex-numbers", descr("'<c8'")),
        ("of-128-bits", descr("'<f16'")),
        ("of-3-byte-integers", descr("'<i3'")),
        ("of-no-size", descr("'<f'")),
        ("of-an-absurd-size", descr("'<f99999999999'")),
        ("structured", descr("[('a', '<i4'), ('b', '<f4')]")),
        ("type-is-a-number", descr("4")),
        ("order-is-a-number", header("'<f4'", "1", "(3, 4)")),
        ("order-is-none", header("'<f4'", "None", "(3, 4)")),
        ("no-type", "{'fortran_order': False, 'shape': (3, 4), }".to_owned()),
        ("no-order", "{'descr': '<f4', 'shape': (3, 4), }".to_owned()),
        ("no-shape", "{'descr': '<f4', 'fortran_order': False, }".to_owned()),
        ("empty-dict", "{}".to_owned()),
        ("no-dict", "(3, 4)".to_owned()),
        (
            "dict-does-not-end",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4)".to_owned(),
        ),
        (
            "quote-does-not-end",
            "{'descr': '<f4, 'fortran_order': False, 'shape': (3, 4), }".to_owned(),
        ),
        ("header-calls", "__import__('os').system('true')".to_owned()),
        ("header-of-spaces", " ".repeat(100)),
    ]
}
