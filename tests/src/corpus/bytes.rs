//! Small tools for bytes: checksums, searching, changing.

/// ISO 3309's CRC-32, as PNG and zip have it.
pub fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            crc >> 1 ^ (0xedb8_8320 & (crc & 1).wrapping_neg())
        })
    })
}

/// zlib's stream of stored blocks around some bytes (at most 65,535).
pub(super) fn zlib_stored(bytes: &[u8]) -> Vec<u8> {
    let length = u16::try_from(bytes.len()).unwrap();
    let (low, high) = bytes.iter().fold((1_u32, 0_u32), |(low, high), byte| {
        let low = (low + u32::from(*byte)) % 65_521;
        (low, (high + low) % 65_521)
    });
    let mut stream = vec![0x78, 0x01, 0x01];
    stream.extend(length.to_le_bytes());
    stream.extend((!length).to_le_bytes());
    stream.extend(bytes);
    stream.extend((high << 16 | low).to_be_bytes());
    stream
}

/// Where some bytes first stand.
pub(super) fn find(file: &[u8], wanted: &[u8]) -> usize {
    file.windows(wanted.len()).position(|window| window == wanted).unwrap()
}

/// The file with other bytes at a place.
pub(super) fn with(file: &[u8], place: usize, bytes: &[u8]) -> Vec<u8> {
    let mut file = file.to_vec();
    file[place..place + bytes.len()].copy_from_slice(bytes);
    file
}

/// The file without a part.
pub(super) fn without(file: &[u8], part: std::ops::Range<usize>) -> Vec<u8> {
    [&file[..part.start], &file[part.end..]].concat()
}
