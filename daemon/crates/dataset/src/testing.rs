//! Arrays in NumPy's format, for tests.

/// A `.npy` file of version 1.0 from the three entries of its header, in NumPy's syntax, and its elements.
pub fn npy_bytes(descr: &str, fortran_order: bool, shape: &str, elements: &[u8]) -> Vec<u8> {
    let order = if fortran_order { "True" } else { "False" };
    let text = format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}");
    npy_with_text(&text, elements)
}

/// A `.npy` file of version 1.0 with any header text, padded as NumPy does.
pub fn npy_with_text(text: &str, elements: &[u8]) -> Vec<u8> {
    let length = (10 + text.len() + 1).next_multiple_of(64) - 10;
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend_from_slice(&u16::try_from(length).unwrap().to_le_bytes());
    bytes.extend_from_slice(text.as_bytes());
    bytes.resize(10 + length - 1, b' ');
    bytes.push(b'\n');
    bytes.extend_from_slice(elements);
    bytes
}
