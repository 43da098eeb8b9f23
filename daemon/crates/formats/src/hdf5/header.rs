//! The header of an object: its messages, which may be in several blocks.

use forebay_dataset::error::DatasetError;

use super::{CHECKSUM_BYTES, Hdf5, Numbers, has_checksum};

/// The most blocks and messages of a header.
const MAX_BLOCKS: usize = 4096;
const MAX_MESSAGES: usize = 1 << 16;
/// The most bytes of a block.
const MAX_BLOCK_BYTES: u64 = 16 << 20;

pub(super) const DATASPACE: u16 = 0x01;
pub(super) const LINK_INFO: u16 = 0x02;
pub(super) const DATATYPE: u16 = 0x03;
pub(super) const OLD_FILL: u16 = 0x04;
pub(super) const FILL: u16 = 0x05;
pub(super) const LINK: u16 = 0x06;
pub(super) const EXTERNAL_FILES: u16 = 0x07;
pub(super) const LAYOUT: u16 = 0x08;
pub(super) const FILTERS: u16 = 0x0b;
const CONTINUATION: u16 = 0x10;
pub(super) const SYMBOL_TABLE: u16 = 0x11;

/// A message.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) kind: u16,
    /// Whether the bytes say where the message is, instead of being it.
    pub(super) is_shared: bool,
    /// The address of its bytes.
    pub(super) address: u64,
    pub(super) bytes: Vec<u8>,
}

impl Hdf5<'_> {
    /// The messages of the header at an address.
    ///
    /// # Errors
    /// It is damaged, or cannot be read.
    pub(super) fn header(&mut self, address: u64) -> Result<Vec<Message>, DatasetError> {
        let what = "the header of an object";
        let sizes = self.sizes;
        let start = self.get_at_most(address, 64)?.to_vec();
        let mut numbers = Numbers { rest: &start };
        let parsed = match start.first_chunk() == Some(b"OHDR") {
            true => new_start(&mut numbers),
            false => old_start(&mut numbers),
        };
        let Start { is_new, has_order, bytes } =
            parsed.ok_or_else(|| self.damaged(what, address))?;
        let before = (start.len() - numbers.rest.len()) as u64;
        if is_new {
            let whole = before.saturating_add(bytes).saturating_add(CHECKSUM_BYTES as u64);
            self.check_sum(what, address, whole)?;
        }
        let mut blocks = vec![(address.saturating_add(before), bytes)];
        let (mut messages, mut next) = (Vec::new(), 0);
        while let Some((at, bytes)) = blocks.get(next).copied() {
            next += 1;
            let is_known = blocks[..next - 1].iter().any(|(known, _)| *known == at);
            if is_known
                || bytes > MAX_BLOCK_BYTES
                || next > MAX_BLOCKS
                || messages.len() > MAX_MESSAGES
            {
                return Err(self.damaged(what, address));
            }
            let block = self.get(at, bytes)?.to_vec();
            let found = messages_of(&block, at, (is_new, has_order));
            for message in found.ok_or_else(|| self.damaged(what, at))? {
                if message.kind != CONTINUATION {
                    messages.push(message);
                    continue;
                }
                let mut numbers = Numbers { rest: &message.bytes };
                let place = numbers.address(sizes).flatten().zip(numbers.sized(sizes.length));
                let (at, bytes) = place.ok_or_else(|| self.damaged(what, at))?;
                if is_new {
                    self.check_sum(what, at, bytes)?;
                }
                blocks.push(match is_new {
                    true => (at.saturating_add(4), bytes.saturating_sub(4 + CHECKSUM_BYTES as u64)),
                    false => (at, bytes),
                });
            }
        }
        Ok(messages)
    }

    /// Compares the checksum at the end of a part.
    ///
    /// # Errors
    /// It is another one.
    pub(super) fn check_sum(
        &mut self,
        what: &str,
        address: u64,
        bytes: u64,
    ) -> Result<(), DatasetError> {
        let compares_sums = self.compares_sums;
        let is_sum =
            bytes <= MAX_BLOCK_BYTES && (has_checksum(self.get(address, bytes)?) || !compares_sums);
        if is_sum { Ok(()) } else { Err(self.damaged(what, address)) }
    }
}

/// What a header begins with.
struct Start {
    is_new: bool,
    /// Whether messages of a new header have the order in which they were made.
    has_order: bool,
    /// The bytes of the first block.
    bytes: u64,
}

fn old_start(numbers: &mut Numbers<'_>) -> Option<Start> {
    let version = numbers.u8()?;
    // A reserved byte, the number of messages, the number of links.
    numbers.skip(7)?;
    let bytes = numbers.u32()?.into();
    numbers.skip(4)?;
    (version == 1).then_some(Start { is_new: false, has_order: false, bytes })
}

fn new_start(numbers: &mut Numbers<'_>) -> Option<Start> {
    numbers.skip(4)?;
    let version = numbers.u8()?;
    let flags = numbers.u8()?;
    if flags & 0x20 != 0 {
        // Four times.
        numbers.skip(16)?;
    }
    if flags & 0x10 != 0 {
        // How many attributes are stored in which way.
        numbers.skip(4)?;
    }
    let bytes = numbers.sized(1 << (flags & 3))?;
    (version == 2).then_some(Start { is_new: true, has_order: flags & 4 != 0, bytes })
}

/// The messages of a block.
fn messages_of(
    block: &[u8],
    address: u64,
    (is_new, has_order): (bool, bool),
) -> Option<Vec<Message>> {
    let mut numbers = Numbers { rest: block };
    let head = match (is_new, has_order) {
        (false, _) => 8,
        (true, false) => 4,
        (true, true) => 6,
    };
    let mut messages = Vec::new();
    // A block of the new kind may end with a gap that is shorter than a message.
    while numbers.rest.len() >= head {
        let kind = if is_new { numbers.u8()?.into() } else { numbers.u16()? };
        let size = numbers.u16()?;
        let flags = numbers.u8()?;
        numbers.skip(head - if is_new { 4 } else { 5 })?;
        let at = address.saturating_add((block.len() - numbers.rest.len()) as u64);
        let bytes = numbers.take(size.into())?.to_vec();
        messages.push(Message { kind, is_shared: flags & 2 != 0, address: at, bytes });
    }
    Some(messages)
}
