//! Elements: an id, a size, and bytes.

use crate::error::{Result, refuse};

/// The elements that are read, by their ids with the marker.
pub(super) mod id {
    pub(in super::super) const SEGMENT: u32 = 0x1853_8067;
    pub(in super::super) const INFO: u32 = 0x1549_a966;
    pub(in super::super) const TIMESTAMP_SCALE: u32 = 0x2a_d7b1;
    pub(in super::super) const TRACKS: u32 = 0x1654_ae6b;
    pub(in super::super) const TRACK: u32 = 0xae;
    pub(in super::super) const TRACK_NUMBER: u32 = 0xd7;
    pub(in super::super) const CODEC: u32 = 0x86;
    pub(in super::super) const CODEC_PRIVATE: u32 = 0x63a2;
    pub(in super::super) const CODEC_DELAY: u32 = 0x56aa;
    pub(in super::super) const DEFAULT_DURATION: u32 = 0x23_e383;
    pub(in super::super) const ENCODINGS: u32 = 0x6d80;
    pub(in super::super) const VIDEO: u32 = 0xe0;
    pub(in super::super) const WIDTH: u32 = 0xb0;
    pub(in super::super) const HEIGHT: u32 = 0xba;
    pub(in super::super) const COLOUR: u32 = 0x55b0;
    pub(in super::super) const MATRIX: u32 = 0x55b1;
    pub(in super::super) const BITS: u32 = 0x55b2;
    pub(in super::super) const RANGE: u32 = 0x55b9;
    pub(in super::super) const TRANSFER: u32 = 0x55ba;
    pub(in super::super) const PRIMARIES: u32 = 0x55bb;
    pub(in super::super) const AUDIO: u32 = 0xe1;
    pub(in super::super) const RATE: u32 = 0xb5;
    pub(in super::super) const CHANNELS: u32 = 0x9f;
    pub(in super::super) const CLUSTER: u32 = 0x1f43_b675;
    pub(in super::super) const TIMESTAMP: u32 = 0xe7;
    pub(in super::super) const SIMPLE_BLOCK: u32 = 0xa3;
    pub(in super::super) const BLOCK_GROUP: u32 = 0xa0;
    pub(in super::super) const BLOCK: u32 = 0xa1;
    pub(in super::super) const BLOCK_DURATION: u32 = 0x9b;
    pub(in super::super) const REFERENCE_BLOCK: u32 = 0xfb;
}

/// An element's head and place.
#[derive(Debug)]
pub(super) struct Element {
    pub(super) id: u32,
    pub(super) start: u64,
    pub(super) body: u64,
    /// `None`: not known when it was written.
    pub(super) size: Option<u64>,
}

impl Element {
    /// The element at a place, whose first bytes these are; `None`: there are too few.
    pub(super) fn read(bytes: &[u8], start: u64) -> Result<Option<Self>> {
        let Some(first) = bytes.first() else { return Ok(None) };
        let id_bytes = first.leading_zeros() as usize + 1;
        if id_bytes > 4 {
            return refuse!("an element at byte {start} has no id");
        }
        let (Some(id), Some(rest)) = (bytes.get(..id_bytes), bytes.get(id_bytes..)) else {
            return Ok(None);
        };
        if rest.is_empty() {
            return Ok(None);
        }
        let id = id.iter().fold(0, |all, byte| all << 8 | u32::from(*byte));
        let (size, size_bytes) = number(rest)?;
        let is_known = size < (1 << (7 * size_bytes)) - 1;
        let body = start + (id_bytes + size_bytes) as u64;
        Ok(Some(Self { id, start, body, size: is_known.then_some(size) }))
    }

    pub(super) fn end(&self) -> Option<u64> {
        self.body.checked_add(self.size?)
    }
}

/// A number of variable length, and the number of its bytes.
pub(super) fn number(bytes: &[u8]) -> Result<(u64, usize)> {
    let first = bytes.first().copied().unwrap_or(0);
    let length = first.leading_zeros() as usize + 1;
    let Some(rest) = bytes.get(1..length).filter(|_| length <= 8) else {
        return refuse!("it ends in the middle of a number");
    };
    let first = u64::from(first) & (0x7f >> (length - 1));
    Ok((rest.iter().fold(first, |all, byte| all << 8 | u64::from(*byte)), length))
}

/// The elements of a body, each with its bytes.
pub(super) fn elements(body: &[u8]) -> impl Iterator<Item = Result<(u32, &[u8])>> {
    let mut at = 0_usize;
    std::iter::from_fn(move || {
        let rest = body.get(at..).filter(|rest| !rest.is_empty())?;
        let next = || -> Result<Option<(u32, &[u8], usize)>> {
            let Some(element) = Element::read(rest, 0)? else { return Ok(None) };
            let place = |at: u64| usize::try_from(at).ok();
            let found = element.end().and_then(|end| {
                let (start, end) = (place(element.body)?, place(end)?);
                Some((element.id, rest.get(start..end)?, end))
            });
            match found {
                Some(found) => Ok(Some(found)),
                None => refuse!("its element {:#x} does not fit into its place", element.id),
            }
        };
        match next() {
            Ok(Some((id, bytes, end))) => {
                at = at.saturating_add(end.max(1));
                Some(Ok((id, bytes)))
            }
            Ok(None) => None,
            Err(refused) => {
                at = usize::MAX;
                Some(Err(refused))
            }
        }
    })
}

/// A whole number of up to 8 bytes.
pub(super) fn unsigned(bytes: &[u8]) -> Result<u64> {
    if bytes.len() > 8 {
        return refuse!("it has a number of {} bytes", bytes.len());
    }
    Ok(bytes.iter().fold(0, |all, byte| all << 8 | u64::from(*byte)))
}

/// A signed number of two bytes.
pub(super) fn signed(bytes: &[u8]) -> i64 {
    bytes.first_chunk::<2>().map_or(0, |bytes| i16::from_be_bytes(*bytes).into())
}

/// A float of 4 or 8 bytes; 0 for others.
pub(super) fn float(bytes: &[u8]) -> f64 {
    match bytes.len() {
        4 => bytes.first_chunk().map_or(0.0, |bytes| f32::from_be_bytes(*bytes).into()),
        8 => bytes.first_chunk().map_or(0.0, |bytes| f64::from_be_bytes(*bytes)),
        _ => 0.0,
    }
}
