//! The configurations of codecs in boxes of their own.

use super::boxes::Numbers;
use crate::error::{Result, refuse};

const ES: u8 = 3;
const DECODER: u8 = 4;
const SPECIFIC: u8 = 5;

/// The type of the object and the decoder's configuration of `esds`.
pub(super) fn esds(body: &[u8]) -> Result<(u8, &[u8])> {
    let kind = *b"esds";
    let (mut numbers, ..) = Numbers::versioned(kind, body)?;
    let (tag, stream) = descriptor(&mut numbers)?;
    let mut numbers = Numbers::new(kind, stream);
    let (tag, decoder) = if tag == ES {
        numbers.u16()?;
        let flags = numbers.u8()?;
        if flags & 0x80 != 0 {
            numbers.u16()?;
        }
        if flags & 0x40 != 0 {
            let length = numbers.u8()?;
            numbers.bytes(length.into())?;
        }
        if flags & 0x20 != 0 {
            numbers.u16()?;
        }
        descriptor(&mut numbers)?
    } else {
        (tag, stream)
    };
    if tag != DECODER {
        return refuse!("its box `esds` has no decoder");
    }
    let mut numbers = Numbers::new(kind, decoder);
    let object = numbers.u8()?;
    // The kind of stream, its buffer and rates.
    numbers.bytes(12)?;
    if numbers.rest().is_empty() {
        return Ok((object, &[]));
    }
    let (tag, specific) = descriptor(&mut numbers)?;
    Ok((object, if tag == SPECIFIC { specific } else { &[] }))
}

/// The tag and the body of the next descriptor.
fn descriptor<'a>(numbers: &mut Numbers<'a>) -> Result<(u8, &'a [u8])> {
    let tag = numbers.u8()?;
    let mut length = 0;
    for _ in 0..4 {
        let byte = numbers.u8()?;
        length = length << 7 | usize::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            break;
        }
    }
    Ok((tag, numbers.bytes(length)?))
}

/// The header of an Ogg stream that says what `dOps` does: the same numbers, the least significant byte first.
pub(super) fn opus_head(body: &[u8]) -> Result<Vec<u8>> {
    let mut numbers = Numbers::new(*b"dOps", body);
    let version = numbers.u8()?;
    if version != 0 {
        return refuse!("its box `dOps` has version {version}");
    }
    let mut head = b"OpusHead\x01".to_vec();
    head.push(numbers.u8()?);
    head.extend(numbers.u16()?.to_le_bytes());
    head.extend(numbers.u32()?.to_le_bytes());
    head.extend(numbers.u16()?.to_le_bytes());
    head.extend_from_slice(numbers.rest());
    Ok(head)
}
