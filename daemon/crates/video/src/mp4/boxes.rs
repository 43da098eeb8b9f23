//! Boxes in bytes, and the numbers in them.

use crate::error::{Result, refuse};

/// The four characters of a box.
pub(super) type Kind = [u8; 4];

/// A box inside of another one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part<'a> {
    pub(super) kind: Kind,
    pub(super) body: &'a [u8],
}

/// The boxes of a body, one after another. Fewer than 8 bytes at the end, and a size of zero, end it.
pub(super) fn parts(body: &[u8]) -> impl Iterator<Item = Result<Part<'_>>> {
    let mut rest = body;
    let mut next = move || -> Result<Option<Part<'_>>> {
        let Some((head, body)) = rest.split_first_chunk::<8>() else { return Ok(None) };
        let [a, b, c, d, kind @ ..] = *head;
        let (size, head_bytes, body) = match u32::from_be_bytes([a, b, c, d]) {
            0 => return Ok(None),
            1 => match body.split_first_chunk::<8>() {
                Some((size, body)) => (u64::from_be_bytes(*size), 16, body),
                None => return Ok(None),
            },
            size => (size.into(), 8, body),
        };
        let length = size.checked_sub(head_bytes).and_then(|length| usize::try_from(length).ok());
        match length.and_then(|length| body.split_at_checked(length)) {
            Some((body, others)) => {
                rest = others;
                Ok(Some(Part { kind, body }))
            }
            None => refuse!(
                "its box `{}` of {size} bytes does not fit into its place of {}",
                kind.escape_ascii(),
                rest.len()
            ),
        }
    };
    let mut has_failed = false;
    std::iter::from_fn(move || {
        if has_failed {
            return None;
        }
        let part = next().transpose();
        has_failed = matches!(part, Some(Err(_)));
        part
    })
}

/// The first box of a kind in a body.
pub(super) fn find<'a>(body: &'a [u8], kind: &Kind) -> Result<Option<&'a [u8]>> {
    for part in parts(body) {
        let part = part?;
        if part.kind == *kind {
            return Ok(Some(part.body));
        }
    }
    Ok(None)
}

/// Big-endian numbers of a box.
#[derive(Debug, Clone)]
pub(super) struct Numbers<'a> {
    kind: Kind,
    rest: &'a [u8],
}

impl<'a> Numbers<'a> {
    pub(super) const fn new(kind: Kind, rest: &'a [u8]) -> Self {
        Self { kind, rest }
    }

    /// The numbers of a box that begins with its version and 24 flags, which are returned too.
    pub(super) fn versioned(kind: Kind, body: &'a [u8]) -> Result<(Self, u8, u32)> {
        let mut numbers = Self::new(kind, body);
        let [version, flags @ ..] = numbers.u32()?.to_be_bytes();
        let flags = flags.iter().fold(0, |all, byte| all << 8 | u32::from(*byte));
        Ok((numbers, version, flags))
    }

    pub(super) const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub(super) fn bytes(&mut self, length: usize) -> Result<&'a [u8]> {
        match self.rest.split_at_checked(length) {
            Some((bytes, rest)) => {
                self.rest = rest;
                Ok(bytes)
            }
            None => refuse!("its box `{}` ends too early", self.kind.escape_ascii()),
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        Ok(self.bytes(N)?.first_chunk::<N>().copied().unwrap_or([0; N]))
    }

    pub(super) fn u8(&mut self) -> Result<u8> {
        self.array().map(u8::from_be_bytes)
    }

    pub(super) fn u16(&mut self) -> Result<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub(super) fn i32(&mut self) -> Result<i32> {
        self.array().map(i32::from_be_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// A number of 64 bits in a box of version 1, of 32 in one of version 0.
    pub(super) fn wide(&mut self, version: u8) -> Result<u64> {
        if version == 1 { self.u64() } else { self.u32().map(u64::from) }
    }

    /// The number of entries that follow, each of so many bytes or more: they must be there.
    pub(super) fn count(&mut self, entry_bytes: usize) -> Result<usize> {
        let count = self.u32()? as usize;
        if count > self.rest.len() / entry_bytes.max(1) {
            return refuse!(
                "its box `{}` announces {count} entries and has {} bytes",
                self.kind.escape_ascii(),
                self.rest.len()
            );
        }
        Ok(count)
    }
}
