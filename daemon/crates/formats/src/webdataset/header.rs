//! The blocks of a tar archive before a member's data: one header of 512 bytes, and the records of extended headers.
//!
//! ustar, GNU and PAX archives are supported. If a size or name is given twice, both must agree: archives that readers
//! interpret differently are refused, because another program would see other samples in them.

/// The unit of a tar archive, in bytes.
pub(super) const BLOCK: usize = 512;
const MAGIC: &[u8] = b"ustar\0";
const SIZE: std::ops::Range<usize> = 124..136;
const CHECKSUM: std::ops::Range<usize> = 148..156;

/// The kind of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A regular file.
    File,
    /// PAX records for the next member.
    Extended,
    /// PAX records for all subsequent members.
    Global,
    /// The next member's name (GNU).
    LongName,
    /// The next member's link (GNU).
    LongLink,
    /// A file with holes (GNU).
    Sparse,
    /// A hard link to an earlier member, without data: GNU tar stores further names of a file this way.
    Link,
    /// A directory, symbolic link or device, without data.
    Empty,
    /// A vendor's extension, whose data is skipped.
    Other,
}

/// One header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) kind: Kind,
    /// The value of the header's size field.
    pub(super) size: u64,
}

/// Why bytes are not a header. Lower case, without the position.
pub(super) type Fault = &'static str;

/// Parses a header; `None`: a block of zeros, which ends the archive.
///
/// # Errors
/// The block is not a header.
pub(super) fn parse(block: &[u8; BLOCK]) -> Result<Option<Header>, Fault> {
    let expected = number(&block[CHECKSUM]);
    // The sum of signed or of unsigned bytes: old programs wrote the former. The checksum field itself counts as
    // spaces.
    let (mut sum, mut high) = (0_u64, 0_u64);
    for byte in block {
        sum += u64::from(*byte);
        high += u64::from(*byte >> 7);
    }
    if sum == 0 {
        return Ok(None);
    }
    for byte in &block[CHECKSUM] {
        sum = sum + u64::from(b' ') - u64::from(*byte);
        high -= u64::from(*byte >> 7);
    }
    if expected != Some(sum)
        && expected.map(|expected| expected.cast_signed())
            != Some(sum.cast_signed() - 256 * high.cast_signed())
    {
        return Err("no tar header is there (its checksum is wrong)");
    }
    let size = number(&block[SIZE]).ok_or("its size is no number")?;
    let kind = match block[156] {
        // Before POSIX, directories were files whose names end in a slash.
        0 if text(&block[..100]).ends_with(b"/") => Kind::Empty,
        b'0' | 0 | b'7' => Kind::File,
        b'x' => Kind::Extended,
        b'g' => Kind::Global,
        b'L' => Kind::LongName,
        b'K' => Kind::LongLink,
        b'S' => Kind::Sparse,
        b'1' => Kind::Link,
        b'2'..=b'6' => Kind::Empty,
        _ => Kind::Other,
    };
    if matches!(kind, Kind::Link | Kind::Empty) && size != 0 {
        return Err("a directory, link or device has data");
    }
    Ok(Some(Header { kind, size }))
}

/// Appends the name from the header's fields.
pub(super) fn append_name(block: &[u8; BLOCK], name: &mut Vec<u8>) {
    if &block[257..263] == MAGIC {
        let prefix = text(&block[345..500]);
        if !prefix.is_empty() {
            name.extend_from_slice(prefix);
            name.push(b'/');
        }
    }
    name.extend_from_slice(text(&block[..100]));
}

/// The bytes before the first zero.
pub(super) fn text(field: &[u8]) -> &[u8] {
    field.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// An octal number, or one in base 256, as GNU writes numbers with too many digits.
fn number(field: &[u8]) -> Option<u64> {
    let (first, rest) = field.split_first()?;
    if first & 0x80 != 0 {
        // 0xff begins a negative number.
        let start = (*first != 0xff).then_some(u64::from(first & 0x7f))?;
        let add = |sum: u64, byte: &u8| Some(sum.checked_mul(256)? + u64::from(*byte));
        let value = rest.iter().try_fold(start, add)?;
        return i64::try_from(value).is_ok().then_some(value);
    }
    let digits = field.trim_ascii_start();
    let end = digits.iter().position(|byte| matches!(byte, 0 | b' ')).unwrap_or(digits.len());
    digits[..end].iter().try_fold(0_u64, |sum, digit| {
        let value = matches!(digit, b'0'..=b'7').then(|| u64::from(digit - b'0'))?;
        Some(sum.checked_mul(8)? + value)
    })
}

/// The PAX records of a member.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Records {
    pub(super) path: Option<Vec<u8>>,
    pub(super) size: Option<u64>,
}

impl Records {
    /// Parses records `LENGTH KEY=VALUE\n`; a later record replaces an earlier one with the same key.
    ///
    /// # Errors
    /// The records are malformed, or describe a sparse file.
    pub(super) fn parse(mut bytes: &[u8]) -> Result<Self, Fault> {
        const MALFORMED: Fault = "its PAX records are malformed";
        let mut records = Self::default();
        while !bytes.is_empty() {
            let space = bytes.iter().take(20).position(|byte| *byte == b' ').ok_or(MALFORMED)?;
            let length = decimal(&bytes[..space]).ok_or(MALFORMED)?;
            let length = usize::try_from(length).map_err(|_| MALFORMED)?;
            let record = bytes.get(space + 1..length).ok_or(MALFORMED)?;
            let record = record.strip_suffix(b"\n").ok_or(MALFORMED)?;
            let equals = record.iter().position(|byte| *byte == b'=').ok_or(MALFORMED)?;
            let (key, value) = (&record[..equals], &record[equals + 1..]);
            match key {
                b"path" if value.is_empty() || value.contains(&0) => return Err(MALFORMED),
                b"path" => records.path = Some(value.to_vec()),
                b"size" => records.size = Some(decimal(value).ok_or(MALFORMED)?),
                key if key.starts_with(b"GNU.sparse.") => return Err(SPARSE),
                _ => {}
            }
            bytes = &bytes[length..];
        }
        Ok(records)
    }
}

/// The error for both forms of sparse files.
pub(super) const SPARSE: Fault =
    "it is a sparse file, whose data lies in pieces; make the archive again without --sparse (-S)";

fn decimal(digits: &[u8]) -> Option<u64> {
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    let value = is_number.then(|| std::str::from_utf8(digits).ok()?.parse::<u64>().ok())??;
    i64::try_from(value).is_ok().then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_octal_or_in_base_256() {
        assert_eq!(number(b"00000000012\0"), Some(10));
        assert_eq!(number(b"       12 \0"), Some(10));
        assert_eq!(number(b"\0\0\0\0\0\0\0\0\0\0\0\0"), Some(0));
        assert_eq!(number(b"0000000008\0\0"), None);
        assert_eq!(number(b"-0000000001\0"), None);
        assert_eq!(number(b"\x80\0\0\0\0\0\0\x02\0\0\0\x01"), Some((2 << 32) + 1));
        assert_eq!(number(b"\x80\0\0\0\xff\0\0\0\0\0\0\x01"), None);
        assert_eq!(number(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"), None);
    }

    #[test]
    fn records_are_complete_or_refused() {
        let records = Records::parse(b"12 path=a/b\n9 size=7\n15 mtime=1.523\n11 size=42\n");
        assert_eq!(records, Ok(Records { path: Some(b"a/b".to_vec()), size: Some(42) }));
        for bytes in [
            &b"11 path=a/b\n"[..],
            b"99 path=a/b\n",
            b"12 path=a/b ",
            b"path=a/b\n",
            b"0 \n",
            b"9 size=x\n",
            b"8 path=\n",
            b"11 size=-1\n",
            b"99999999999999999999 size=1\n",
        ] {
            assert_eq!(Records::parse(bytes), Err("its PAX records are malformed"), "{bytes:?}");
        }
        assert_eq!(Records::parse(b"22 GNU.sparse.major=1\n"), Err(SPARSE));
    }
}
