//! Spellings of a header that NumPy reads and npyz does not: `'=i4'` and `'int32'` for the machine's byte order, and
//! `(2L, 3L)` as Python 2 wrote it.

use std::borrow::Cow;

/// Names of types, as in `numpy.dtype("int32")`, and their type strings without the byte order.
const NAMES: [(&[u8], &[u8]); 12] = [
    (b"bool", b"b1"),
    (b"int8", b"i1"),
    (b"int16", b"i2"),
    (b"int32", b"i4"),
    (b"int64", b"i8"),
    (b"uint8", b"u1"),
    (b"uint16", b"u2"),
    (b"uint32", b"u4"),
    (b"uint64", b"u8"),
    (b"float16", b"f2"),
    (b"float32", b"f4"),
    (b"float64", b"f8"),
];
/// The byte order of a type string, for this machine.
const NATIVE: u8 = if cfg!(target_endian = "big") { b'>' } else { b'<' };

/// The header in npyz's spelling. `header` has passed the checks on hostile headers, and `before` bytes of it, magic,
/// version and length, precede the text.
pub(super) fn for_npyz(header: &[u8], before: usize) -> Cow<'_, [u8]> {
    let (start, text) = header.split_at(before);
    let mut spelled = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        spelled.push(*byte);
        if matches!(byte, b'\'' | b'"') {
            let Some(end) = rest.iter().position(|other| other == byte) else { break };
            push_type(&rest[..end], &mut spelled);
            spelled.push(*byte);
            rest = &rest[end + 1..];
        } else if byte.is_ascii_digit() && rest.first() == Some(&b'L') {
            rest = &rest[1..];
        }
    }
    spelled.extend_from_slice(rest);
    if spelled == text {
        return Cow::Borrowed(header);
    }
    // Magic and version, then the length of the new text, which is never longer than the first.
    let length = u32::try_from(spelled.len()).unwrap_or(u32::MAX).to_le_bytes();
    let bytes = [&start[..8], &length[..before - 8], &spelled].concat();
    Cow::Owned(bytes)
}

/// A quoted text: a type in npyz's spelling, anything else as it is.
fn push_type(text: &[u8], spelled: &mut Vec<u8>) {
    let (is_native, code) = match text {
        [b'=', code @ ..] => (true, code),
        _ => NAMES
            .iter()
            .find(|(name, _)| *name == text)
            .map_or((false, text), |(_, code)| (true, *code)),
    };
    if is_native {
        spelled.push(NATIVE);
    }
    spelled.extend_from_slice(code);
}
